//! `tandem corpus`: checks a dataset, writes the demo corpus, or writes one file's features.

pub(crate) mod check;
pub(crate) mod demo;
mod features;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgMatches, Command};

use crate::exit::Exit;
use crate::screen::Screen;

/// Arguments of `tandem corpus`.
pub(crate) enum CorpusCommand {
    Check(check::CheckArgs),
    Demo(demo::DemoArgs),
    Features(features::FeaturesArgs),
}

impl CorpusCommand {
    pub(crate) fn json(&self) -> bool {
        matches!(self, CorpusCommand::Check(args) if args.json)
    }

    pub(crate) fn quiet(&self) -> bool {
        match self {
            CorpusCommand::Check(args) => args.quiet,
            CorpusCommand::Demo(args) => args.quiet,
            CorpusCommand::Features(args) => args.quiet,
        }
    }
}

pub(crate) fn command() -> Command {
    Command::new("corpus")
        .about("Check a dataset, write the demo corpus, or write one file's features")
        .subcommand_required(true)
        .subcommand(check::command())
        .subcommand(demo::command())
        .subcommand(features::command())
}

/// The parsed subcommand. None only for matches that clap does not produce.
pub(crate) fn parse(matches: &ArgMatches) -> Option<CorpusCommand> {
    match matches.subcommand()? {
        ("check", matches) => check::parse(matches).map(CorpusCommand::Check),
        ("demo", matches) => demo::parse(matches).map(CorpusCommand::Demo),
        ("features", matches) => features::parse(matches).map(CorpusCommand::Features),
        _ => None,
    }
}

pub(crate) fn run(args: &CorpusCommand, screen: &Screen) -> Result<ExitCode, Exit> {
    silence_decoder_panics();
    match args {
        CorpusCommand::Check(args) => check::run(args, screen),
        CorpusCommand::Demo(args) => demo::run(args, screen),
        CorpusCommand::Features(args) => features::run(args, screen),
    }
}

/// Hides the panic messages of decoders. Such a panic is caught and reported with the name of the file.
pub(crate) fn silence_decoder_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.location().is_some_and(|location| location.file().contains("symphonia")) {
            usual(panic);
        }
    }));
}

/// A path quoted for a shell.
fn shell_path(path: &std::path::Path) -> String {
    tandem_plan::quoted(&path.display().to_string())
}

fn required_path(matches: &ArgMatches, name: &str) -> Option<PathBuf> {
    matches.get_one::<PathBuf>(name).cloned()
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
