//! The `tandem` binary: reads the command line, runs one command, turns what came of it into an exit code.

mod args;
mod exit;
mod plan;
mod screen;
mod validate;

use std::process::ExitCode;

use args::Command;
use exit::Exit;
use screen::Screen;

fn main() -> ExitCode {
    let outcome = args::parse(std::env::args_os()).and_then(|call| {
        let mut screen = Screen::new(&call);
        match call.command {
            Command::Plan => plan::run(&call, &mut screen),
            Command::Validate => validate::run(&call, &mut screen),
        }
    });
    outcome.unwrap_or_else(Exit::report)
}
