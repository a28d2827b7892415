//! The `tandem` binary: reads the command line, runs one command, turns what came of it into an exit code.

mod args;
mod exit;
mod plan;
mod screen;
mod validate;

use std::process::ExitCode;

use args::Command;
use exit::Manner;
use screen::Screen;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    let manner = Manner::of(&args);
    let outcome = args::parse(args).and_then(|call| {
        let screen = Screen::new(&call);
        match call.command {
            Command::Plan => plan::run(&call, &screen),
            Command::Validate => validate::run(&call, &screen),
        }
    });
    outcome.unwrap_or_else(|exit| exit.report(manner))
}
