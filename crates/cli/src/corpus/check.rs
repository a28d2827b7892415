//! `tandem corpus check`: everything wrong with a dataset, in one pass, and what it is like.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Arg, ArgMatches, Command as Clap, value_parser};
use tandem_corpus::{CorpusError, Dataset, OpenOptions, SpeakerPattern};
use tandem_feed::{CheckOptions, check, report_json, show_report};

use crate::args::{json, path, quiet, switch};
use crate::exit::{Exit, FAILED};
use crate::screen::{self, Screen};

/// Problems of one kind that a terminal is shown.
const SHOWN_PER_KIND: usize = 10;
const MAX_WORKERS: usize = 8;

pub(crate) struct CheckArgs {
    path: PathBuf,
    options: CheckOptions,
    speaker_pattern: Option<String>,
    exclude_ids: Option<PathBuf>,
    verbose: bool,
    pub(super) json: bool,
    pub(super) quiet: bool,
}

pub(super) fn grammar() -> Clap {
    let value = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).allow_hyphen_values(true).help(help)
    };
    Clap::new("check")
        .about("Report every problem of a dataset with file and line, and what it is like; exit code 1 if there is any")
        .arg(
            Arg::new("path")
                .value_name("PATH")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("LJSpeech folder, its metadata file (.csv), or a JSONL manifest"),
        )
        .arg(json())
        .arg(quiet())
        .arg(switch("verbose", "Show all problems, not only the first of each kind").short('v'))
        .arg(value("batch-size", "N", "Utterances of a batch [default: 16]").value_parser(super::count))
        .arg(value("max-seconds", "S", "Longer recordings are a problem [default: 30]").value_parser(super::positive))
        .arg(value("lang", "L", "Language of rows that name none [default: en]"))
        .arg(value("speaker-id-pattern", "P", "Where an id names the speaker: {speaker}_* finds p248 in p248_065"))
        .arg(path("exclude-ids", "Utterances to leave out, an id per line"))
        .arg(
            value("num-workers", "N", "Threads that decode [default: one per core, at most 8]")
                .value_parser(super::count),
        )
}

pub(super) fn read(given: &ArgMatches) -> Option<CheckArgs> {
    let defaults = CheckOptions::default();
    let number = |name: &str| given.get_one::<u32>(name).copied();
    let text = |name: &str| given.get_one::<String>(name).cloned();
    let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get().min(MAX_WORKERS));
    Some(CheckArgs {
        path: super::required_path(given, "path")?,
        options: CheckOptions {
            batch: number("batch-size").unwrap_or(defaults.batch),
            max_seconds: given.get_one("max-seconds").copied().unwrap_or(defaults.max_seconds),
            lang: text("lang"),
            num_workers: number("num-workers").map_or_else(cores, |workers| workers as usize),
            ..defaults
        },
        speaker_pattern: text("speaker-id-pattern"),
        exclude_ids: given.get_one("exclude-ids").cloned(),
        verbose: given.get_flag("verbose"),
        json: given.get_flag("json"),
        quiet: given.get_flag("quiet"),
    })
}

pub(super) fn run(call: &CheckArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    let dataset = open(call)?;
    let mut ticker = screen.ticker("Recordings");
    let checked = check(dataset, &call.options, |progress| ticker.show(progress.done, progress.total));
    drop(ticker);
    let mut checked = checked.context("the check could not be finished")?;
    if let Some(Err(error)) = lengths_folder().map(|folder| checked.keep_lengths(&folder)) {
        screen.warn(&format!("the lengths that were found are not kept: {error}"));
    }
    let report = checked.report;
    let told = match call.json {
        true => screen::write_json(&report_json(&report)),
        false => {
            let all = call.verbose || !std::io::stdout().is_terminal();
            screen.say(&show_report(&report, if all { usize::MAX } else { SHOWN_PER_KIND }))
        }
    };
    match told {
        // The check has its answer, whether anybody reads it or not.
        Ok(()) | Err(Exit::Closed) => Ok(ExitCode::from(if report.passed() { 0 } else { FAILED })),
        Err(exit) => Err(exit),
    }
}

fn open(call: &CheckArgs) -> Result<Dataset, Exit> {
    let usage = |error: CorpusError| Exit::Usage(format!("❌ {error}"));
    let speaker_pattern = call.speaker_pattern.as_deref().map(SpeakerPattern::parse).transpose().map_err(usage)?;
    let options = OpenOptions { speaker_pattern, exclude_ids: call.exclude_ids.clone() };
    Dataset::open(&call.path, &options).map_err(|error| match error {
        CorpusError::NotADataset { .. } => usage(error),
        // A file that was named on the command line and is not there is a slip of the fingers.
        CorpusError::Read { ref path, .. } if Some(path) == call.exclude_ids.as_ref() => {
            Exit::Usage(format!("❌ --exclude-ids: {error}"))
        }
        other => Exit::Failed(other.into()),
    })
}

/// Where lengths are kept: the user's cache, never the dataset. None for a user without a home.
pub(crate) fn lengths_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("tandem").join("lengths"))
}
