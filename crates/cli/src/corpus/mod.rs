//! `tandem corpus`: what a dataset is like, one to try things on, and one file's features.

pub(crate) mod check;
pub(crate) mod demo;
mod features;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgMatches, Command as Clap};

use crate::exit::Exit;
use crate::screen::Screen;

/// One call of `tandem corpus`.
pub(crate) enum CorpusCommand {
    Check(check::CheckArgs),
    Demo(demo::DemoArgs),
    Features(features::FeaturesArgs),
}

impl CorpusCommand {
    pub(crate) fn json(&self) -> bool {
        matches!(self, CorpusCommand::Check(call) if call.json)
    }

    pub(crate) fn quiet(&self) -> bool {
        match self {
            CorpusCommand::Check(call) => call.quiet,
            CorpusCommand::Demo(call) => call.quiet,
            CorpusCommand::Features(_) => false,
        }
    }
}

pub(crate) fn grammar() -> Clap {
    Clap::new("corpus")
        .about("Check a dataset, write the demo corpus, or write one file's features")
        .subcommand_required(true)
        .subcommand(check::grammar())
        .subcommand(demo::grammar())
        .subcommand(features::grammar())
}

/// What was typed after `corpus`; nothing where the grammar let nothing through.
pub(crate) fn read(given: &ArgMatches) -> Option<CorpusCommand> {
    match given.subcommand()? {
        ("check", given) => check::read(given).map(CorpusCommand::Check),
        ("demo", given) => demo::read(given).map(CorpusCommand::Demo),
        ("features", given) => features::read(given).map(CorpusCommand::Features),
        _ => None,
    }
}

pub(crate) fn run(call: &CorpusCommand, screen: &Screen) -> Result<ExitCode, Exit> {
    hush_decoders();
    match call {
        CorpusCommand::Check(call) => check::run(call, screen),
        CorpusCommand::Demo(call) => demo::run(call, screen),
        CorpusCommand::Features(call) => features::run(call, screen),
    }
}

/// Decoders assert what they read. That is caught and told with the name of the file; their own message is noise.
pub(crate) fn hush_decoders() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.location().is_some_and(|location| location.file().contains("symphonia")) {
            usual(panic);
        }
    }));
}

/// A path as it is typed into a shell.
fn typed(path: &std::path::Path) -> String {
    tandem_plan::quoted(&path.display().to_string())
}

fn required_path(given: &ArgMatches, name: &str) -> Option<PathBuf> {
    given.get_one::<PathBuf>(name).cloned()
}

/// For clap: a count of at least one.
fn count(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err("expected a whole number above 0".to_owned()),
    }
}

/// For clap: a number above 0.
fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err("expected a number above 0".to_owned()),
    }
}
