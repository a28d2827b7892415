//! `tandem corpus index`: scans shards that have no index yet, so that runs start at once.

use std::process::ExitCode;
use std::time::Instant;

use clap::{ArgMatches, Command};
use serde_json::json;

use crate::args::{json as json_flag, quiet};
use crate::exit::{Exit, FAILED};
use crate::screen::{self, Screen};
use tandem_corpus::user_cache;

pub(crate) struct IndexArgs {
    names: Vec<String>,
    columns: Option<String>,
    pub(super) json: bool,
    pub(super) quiet: bool,
}

pub(super) fn command() -> Command {
    Command::new("index")
        .about("Scan the shards of a dataset and store where each recording is; runs do it too, when they must")
        .arg(super::sources())
        .arg(super::columns())
        .arg(json_flag())
        .arg(quiet())
}

pub(super) fn parse(matches: &ArgMatches) -> IndexArgs {
    IndexArgs {
        names: super::names(matches),
        columns: matches.get_one("columns").cloned(),
        json: matches.get_flag("json"),
        quiet: matches.get_flag("quiet"),
    }
}

pub(super) fn run(args: &IndexArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    let started = Instant::now();
    let options = super::SourceOptions { columns: args.columns.as_deref(), ..super::SourceOptions::default() };
    let opened = super::open(&args.names, &options, screen)?;
    let seconds = started.elapsed().as_secs_f64();
    let dataset = &opened.dataset;
    let (num_rows, num_problems) = (dataset.samples().len(), dataset.problems().len());
    if args.json {
        screen::write_json(&json!({
            "format": dataset.format().slug(),
            "utterances": num_rows,
            "problems": num_problems,
            "shards": dataset.samples().shards().len(),
            "shards_indexed": opened.num_indexed,
            "shards_scanned": opened.num_scanned,
            "scanned_bytes": opened.scanned_bytes,
            "recordings_measured": opened.num_measured,
            "recordings_decoded": opened.num_decoded,
            "seconds": seconds,
        }))?;
        return Ok(ExitCode::from(if num_rows == 0 { FAILED } else { 0 }));
    }
    let taken = dataset.describe();
    if num_rows == 0 {
        let names = super::shown_names(&args.names);
        let what = format!("no utterance can be read ({taken}); to list the problems: tandem corpus check {names}");
        return Err(Exit::Failed(anyhow::Error::msg(what)));
    }
    screen.print(&format!("✅ {} ({taken}), ready in {seconds:.1} s", super::counted(num_rows, "utterance")))?;
    if dataset.samples().shards().len() == 0 {
        screen.progress(
            "   It has no shards: lists are read at every start, and lengths are kept by runs and `corpus check`",
        )?;
    } else {
        screen.progress(&format!("   {}", crate::data::describe_index(&opened)))?;
        if let Some(folder) = user_cache::shards() {
            screen.progress(&format!("   Index: {}", folder.display()))?;
        }
    }
    if num_problems > 0 {
        let names = super::shown_names(&args.names);
        let problems = super::counted(num_problems, "problem");
        screen.warn(&format!("{problems}; to list them: tandem corpus check {names}"));
    }
    Ok(ExitCode::SUCCESS)
}
