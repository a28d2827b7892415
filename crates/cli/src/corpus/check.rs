//! `tandem corpus check`: reports every problem of a dataset in one pass, and its statistics.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{ArgMatches, Command};
use tandem_corpus::user_cache;
use tandem_feed::{CheckOptions, check, report_json, show_report};

use crate::args::{json, path, quiet, switch};
use crate::exit::{Exit, FAILED};
use crate::screen::{self, Screen};

/// Problems of one kind shown on a terminal.
const SHOWN_PER_KIND: usize = 10;
const MAX_WORKERS: usize = 8;

pub(crate) struct CheckArgs {
    names: Vec<String>,
    columns: Option<String>,
    options: CheckOptions,
    speaker_pattern: Option<String>,
    exclude_ids: Option<PathBuf>,
    verbose: bool,
    pub(super) json: bool,
    pub(super) quiet: bool,
}

pub(super) fn command() -> Command {
    Command::new("check")
        .about("Report every problem of a dataset with file and line, and its statistics; exit code 1 if there is any")
        .arg(super::sources())
        .arg(super::columns())
        .arg(json())
        .arg(quiet())
        .arg(
            switch("verbose", "Show all problems, not only the first 10 of each kind")
                .short('v')
                .conflicts_with("quiet"),
        )
        .arg(
            super::value("batch-size", "N", "Utterances per batch, for the padding estimate [default: 16]")
                .value_parser(super::count),
        )
        .arg(
            super::value("max-seconds", "S", "Report longer recordings as a problem [default: 30]")
                .value_parser(super::positive),
        )
        .arg(super::value("lang", "L", "Language of rows that do not name one [default: en]"))
        .arg(super::value(
            "speaker-id-pattern",
            "P",
            "Where to find the speaker in an id: {speaker}_* finds p248 in p248_065",
        ))
        .arg(path("exclude-ids", "Text file of utterance ids to leave out, one per line"))
        .arg(
            super::value("num-workers", "N", "Decode threads [default: one per core, at most 8]")
                .value_parser(super::count),
        )
}

pub(super) fn parse(matches: &ArgMatches) -> Option<CheckArgs> {
    let defaults = CheckOptions::default();
    let number = |name: &str| matches.get_one::<u32>(name).copied();
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get().min(MAX_WORKERS));
    Some(CheckArgs {
        names: super::names(matches),
        columns: text("columns"),
        options: CheckOptions {
            batch: number("batch-size").unwrap_or(defaults.batch),
            max_seconds: matches.get_one("max-seconds").copied().unwrap_or(defaults.max_seconds),
            lang: text("lang"),
            num_workers: number("num-workers").map_or_else(cores, |workers| workers as usize),
            ..defaults
        },
        speaker_pattern: text("speaker-id-pattern"),
        exclude_ids: matches.get_one("exclude-ids").cloned(),
        verbose: matches.get_flag("verbose"),
        json: matches.get_flag("json"),
        quiet: matches.get_flag("quiet"),
    })
}

pub(super) fn run(args: &CheckArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    let opened = super::open(&args.names, &source_options(args), screen)?;
    let dataset = opened.dataset;
    let mut ticker = screen.ticker("Recordings");
    let checked = check(dataset, &args.options, |progress| ticker.show(progress.done, progress.total));
    drop(ticker);
    let mut checked = checked.context("cannot finish the check")?;
    if let Some(Err(error)) = user_cache::lengths().map(|folder| checked.keep_lengths(&folder)) {
        screen.warn(&format!("cannot save the measured lengths: {error}"));
    }
    let report = checked.report;
    let printed = match args.json {
        true => screen::write_json(&report_json(&report)),
        false if args.quiet => {
            report.hints.iter().for_each(|hint| screen.warn(hint));
            screen.print(show_report(&report, 0).lines().next().unwrap_or_default())
        }
        false => {
            let all = args.verbose || !std::io::stdout().is_terminal();
            screen.print(&show_report(&report, if all { usize::MAX } else { SHOWN_PER_KIND }))
        }
    };
    match printed {
        // The exit code is that of the check, whether the output was closed or not.
        Ok(()) | Err(Exit::Closed) => Ok(ExitCode::from(if report.passed() { 0 } else { FAILED })),
        Err(exit) => Err(exit),
    }
}

fn source_options(args: &CheckArgs) -> super::SourceOptions<'_> {
    super::SourceOptions {
        speaker_pattern: args.speaker_pattern.as_deref(),
        exclude_ids: args.exclude_ids.as_deref(),
        columns: args.columns.as_deref(),
    }
}
