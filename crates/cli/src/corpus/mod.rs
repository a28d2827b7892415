//! `tandem corpus`: checks a dataset, indexes or writes its shards, writes the demo corpus, or writes one file's features.

pub(crate) mod check;
pub(crate) mod demo;
mod features;
mod index;
mod pack;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};
use tandem_corpus::{CorpusError, OpenOptions, SpeakerPattern, user_cache};
use tandem_feed::{FeedError, OpenedCorpus};
use tandem_plan::parse_columns;
use tandem_storage::Storage;

use crate::data::{is_failure, open_shards};
use crate::exit::Exit;
use crate::screen::Screen;

/// Arguments of `tandem corpus`.
pub(crate) enum CorpusCommand {
    Check(check::CheckArgs),
    Demo(demo::DemoArgs),
    Features(features::FeaturesArgs),
    Index(index::IndexArgs),
    Pack(pack::PackArgs),
}

impl CorpusCommand {
    pub(crate) fn json(&self) -> bool {
        match self {
            CorpusCommand::Check(args) => args.json,
            CorpusCommand::Index(args) => args.json,
            _ => false,
        }
    }

    pub(crate) fn quiet(&self) -> bool {
        match self {
            CorpusCommand::Check(args) => args.quiet,
            CorpusCommand::Demo(args) => args.quiet,
            CorpusCommand::Features(args) => args.quiet,
            CorpusCommand::Index(args) => args.quiet,
            CorpusCommand::Pack(args) => args.quiet,
        }
    }
}

pub(crate) fn command() -> Command {
    Command::new("corpus")
        .about("Check, index or pack a dataset, write the demo corpus, or one file's features")
        .subcommand_required(true)
        .subcommand(check::command())
        .subcommand(index::command())
        .subcommand(pack::command())
        .subcommand(demo::command())
        .subcommand(features::command())
}

/// The parsed subcommand. None only for matches that clap does not produce.
pub(crate) fn parse(matches: &ArgMatches) -> Option<CorpusCommand> {
    match matches.subcommand()? {
        ("check", matches) => check::parse(matches).map(CorpusCommand::Check),
        ("index", matches) => Some(CorpusCommand::Index(index::parse(matches))),
        ("pack", matches) => pack::parse(matches).map(CorpusCommand::Pack),
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
        CorpusCommand::Index(args) => index::run(args, screen),
        CorpusCommand::Pack(args) => pack::run(args, screen),
    }
}

/// The argument for the names of a corpus.
fn sources() -> Arg {
    Arg::new("sources")
        .value_name("SOURCE")
        .required(true)
        .num_args(1..)
        .help("Folder, list, corpus.yaml, or shards: 'data/*.parquet', 's3://bucket/shard-{000..127}.tar'")
}

/// A flag with a value.
fn value(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(value).allow_hyphen_values(true).help(help)
}

/// The flag for the columns of tables.
fn columns() -> Arg {
    value("columns", "C", "Columns of Parquet and Arrow files: audio=mp3,text=sentence,speaker=client_id")
}

/// The flag for the folder that is written.
fn output() -> Arg {
    let folder = Arg::new("output").short('o').long("output").value_name("DIR").required(true);
    folder.value_parser(value_parser!(PathBuf)).help("A new or empty folder")
}

fn names(matches: &ArgMatches) -> Vec<String> {
    matches.get_many::<String>("sources").into_iter().flatten().cloned().collect()
}

/// The names of a corpus as they can be typed again, without passwords and signatures.
pub(crate) fn shown_names(names: &[String]) -> String {
    names.iter().map(|name| tandem_plan::quoted(&tandem_plan::shown_source(name))).collect::<Vec<_>>().join(" ")
}

/// `1 shard`, `2 shards`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// How to read a corpus, as flags say it.
#[derive(Default)]
struct SourceOptions<'a> {
    speaker_pattern: Option<&'a str>,
    exclude_ids: Option<&'a Path>,
    columns: Option<&'a str>,
}

/// Opens a corpus that was named on the command line.
fn open(names: &[String], options: &SourceOptions<'_>, screen: &Screen) -> Result<OpenedCorpus, Exit> {
    let usage = |error: String| Exit::Usage(format!("❌ {error}"));
    let speaker_pattern = options.speaker_pattern.map(SpeakerPattern::parse).transpose();
    let columns = options.columns.map(parse_columns).transpose();
    let options = OpenOptions {
        speaker_pattern: speaker_pattern.map_err(|error| usage(error.to_string()))?,
        exclude_ids: options.exclude_ids.map(Path::to_owned),
        columns: columns.map_err(|error| usage(format!("--columns: {error}")))?.unwrap_or_default(),
        storage: Storage::default(),
        index_folder: user_cache::shards(),
    };
    let opened = open_shards(names, &options, screen).map_err(|error| match &error {
        // A file named on the command line that does not exist is wrong usage.
        FeedError::Corpus(CorpusError::Read { path, .. }) if Some(path) == options.exclude_ids.as_ref() => {
            usage(format!("--exclude-ids: {error}"))
        }
        FeedError::Corpus(CorpusError::Read { .. }) => Exit::Failed(error.into()),
        _ if is_failure(&error) => Exit::Failed(error.into()),
        _ => usage(error.to_string()),
    })?;
    if let Some(error) = &opened.index_error {
        screen.warn(&format!("the index is not stored: {error}"));
    }
    Ok(opened)
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

/// Refuses a folder with files in it: nothing is overwritten. `command` is suggested again with a free name like `name`.
fn check_empty(folder: &Path, command: &str, name: &str) -> Result<(), Exit> {
    let shown = folder.display();
    match std::fs::read_dir(folder).map(Iterator::count) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Exit::Usage(format!("❌ -o: expected a new or empty folder ({error}): {shown}"))),
        Ok(0) => Ok(()),
        Ok(_) => Err(Exit::Usage(format!(
            "❌ the folder is not empty, and existing files are never overwritten: {shown}\n   Type: tandem corpus {command} -o {}",
            shell_path(&free_name(folder, name))
        ))),
    }
}

/// The first unused name inside `folder`.
fn free_name(folder: &Path, name: &str) -> PathBuf {
    let mut names = std::iter::once(name.to_owned()).chain((2..).map(|number| format!("{name}-{number}")));
    names.by_ref().map(|name| folder.join(name)).find(|path| !path.exists()).unwrap_or_else(|| folder.join(name))
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
