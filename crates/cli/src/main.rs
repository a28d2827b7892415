//! The `tandem` binary: reads the command line, runs one command, turns what came of it into an exit code.

mod alarms;
mod args;
mod auto;
mod bench;
mod corpus;
mod data;
mod doctor;
mod exit;
mod exports;
mod farewell;
mod interrupts;
mod monitor;
mod plan;
mod profile;
mod run_log;
mod scratch;
mod screen;
mod synthesize;
mod train;
mod validate;
mod warm_up;

use std::process::ExitCode;

use args::Invocation;
use exit::OutputStyle;
use screen::Screen;

fn main() -> ExitCode {
    interrupts::let_large_writes_fail();
    let args: Vec<_> = std::env::args_os().collect();
    let manner = OutputStyle::of(&args);
    let outcome = args::parse(args).and_then(|call| {
        let screen = Screen::new(&call);
        match &call {
            Invocation::Train(call) => train::run(call, &screen),
            Invocation::Plan(call) => plan::run(call, &screen),
            Invocation::Validate(call) => validate::run(call, &screen),
            Invocation::Monitor(call) => monitor::run(call, &screen),
            Invocation::Doctor(call) => doctor::run(call, &screen),
            Invocation::Profile(call) => profile::run(call, &screen),
            Invocation::Synthesize(call) => synthesize::run(call, &screen),
            Invocation::Bench(call) => bench::run(call, &screen),
            Invocation::Corpus(call) => corpus::run(call, &screen),
        }
    });
    outcome.unwrap_or_else(|exit| exit.report(manner))
}
