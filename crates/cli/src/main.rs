//! The `tandem` binary: parses the command line, runs one command, maps the result to an exit code.

mod alarms;
mod args;
mod auto;
mod bench;
mod check_pair;
mod child_process;
mod command_help;
mod completions;
mod console;
mod corpus;
mod data;
mod doctor;
mod duration;
mod exit;
mod exports;
mod farewell;
mod flag_table;
mod help_page;
mod interrupts;
mod launch_command;
mod live_line;
mod man;
mod monitor;
mod output_guard;
mod pair_checks;
mod plan;
mod profile;
mod ranks;
mod rate_limit;
mod retired_flags;
mod run_log;
mod run_progress;
mod run_reporter;
mod run_totals;
mod scratch;
mod screen;
mod start_from;
mod style;
mod supervisor;
mod synthesize;
mod ticker;
mod train;
mod unknown_flag;
mod validate;
mod warm_up;
mod whole_file;

use std::process::ExitCode;

use args::Invocation;
use screen::Screen;
use style::OutputStyle;

fn main() -> ExitCode {
    interrupts::ignore_file_size_signal();
    let words: Vec<_> = std::env::args_os().collect();
    let style = OutputStyle::of(&words);
    let outcome = args::parse(words).and_then(|invocation| {
        let screen = Screen::new(&invocation, style.color);
        match &invocation {
            Invocation::Train(args) => train::run(args, &screen),
            Invocation::Launch(args) => launch_command::run(args, &screen),
            Invocation::Plan(args) => plan::run(args, &screen),
            Invocation::Validate(args) => validate::run(args, &screen),
            Invocation::Monitor(args) => monitor::run(args, &screen),
            Invocation::Doctor(args) => doctor::run(args, &screen),
            Invocation::Profile(args) => profile::run(args, &screen),
            Invocation::Synthesize(args) => synthesize::run(args, &screen),
            Invocation::Bench(args) => bench::run(args, &screen),
            Invocation::Corpus(args) => corpus::run(args, &screen),
            Invocation::Completions(args) => completions::run(args),
            Invocation::Man(args) => man::run(args, &screen),
            Invocation::CheckPair(args) => check_pair::run(args),
        }
    });
    outcome.unwrap_or_else(|exit| exit.report(style))
}
