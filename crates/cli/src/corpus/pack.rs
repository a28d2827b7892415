//! `tandem corpus pack`: writes a dataset as shards.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::builder::PossibleValuesParser;
use clap::{ArgMatches, Command};
use tandem_feed::{PackFormat, PackOptions, pack};

use crate::args::{path, quiet};
use crate::exit::{Exit, FAILED};
use crate::screen::Screen;

/// Problems that are shown; `corpus check` shows all.
const SHOWN: usize = 10;

pub(crate) struct PackArgs {
    names: Vec<String>,
    folder: PathBuf,
    options: PackOptions,
    columns: Option<String>,
    exclude_ids: Option<PathBuf>,
    pub(super) quiet: bool,
}

pub(super) fn command() -> Command {
    Command::new("pack")
        .about("Write a dataset as shards, for a bucket or a network disk; recordings are copied byte for byte")
        .arg(super::sources())
        .arg(super::output())
        .arg(
            super::value("format", "F", "tar (WebDataset) or parquet (Hugging Face) [default: tar]")
                .value_parser(PossibleValuesParser::new(["tar", "parquet"]))
                .hide_possible_values(true),
        )
        .arg(super::value("shard-mb", "N", "A shard ends once it has N MB [default: 256]").value_parser(super::count))
        .arg(super::columns())
        .arg(path("exclude-ids", "Text file of utterance ids to leave out, one per line"))
        .arg(quiet())
}

pub(super) fn parse(matches: &ArgMatches) -> Option<PackArgs> {
    let format = match matches.get_one::<String>("format").map(String::as_str) {
        Some("parquet") => PackFormat::Parquet,
        _ => PackFormat::Tar,
    };
    let shard_mb = matches.get_one::<u32>("shard-mb").copied().unwrap_or(256);
    Some(PackArgs {
        names: super::names(matches),
        folder: super::required_path(matches, "output")?,
        options: PackOptions { format, shard_bytes: u64::from(shard_mb) << 20 },
        columns: matches.get_one("columns").cloned(),
        exclude_ids: matches.get_one("exclude-ids").cloned(),
        quiet: matches.get_flag("quiet"),
    })
}

pub(super) fn run(args: &PackArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    super::check_empty(&args.folder, "pack SOURCE", "shards")?;
    let options = super::SourceOptions {
        columns: args.columns.as_deref(),
        exclude_ids: args.exclude_ids.as_deref(),
        speaker_pattern: None,
    };
    let dataset = super::open(&args.names, &options, screen)?.dataset;
    let total = dataset.samples().len() - dataset.num_excluded();
    let mut ticker = screen.ticker("Utterances");
    let report = pack(&dataset, &args.folder, &args.options, |done| ticker.show(done, total));
    drop(ticker);
    let report = report.context("cannot write the shards")?;
    let (count, shards) =
        (super::counted(report.num_utterances, "utterance"), super::counted(report.shards.len(), "shard"));
    let folder = super::shell_path(&args.folder);
    let megabytes = report.num_bytes.div_ceil(1 << 20);
    screen.print(&format!("✅ {count} in {shards}, {megabytes} MB: {folder}"))?;
    screen.progress(&format!("   To train on them: tandem train --train-data {folder}"))?;
    let num_left_out = report.problems.len() + dataset.rejected().values().sum::<usize>();
    if num_left_out == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    let all = dataset.problems().iter().filter(|problem| problem.kind.rejects_row()).chain(&report.problems);
    all.take(SHOWN).for_each(|problem| screen.warn(&problem.to_string()));
    let left_out = super::counted(num_left_out, "utterance");
    screen.warn(&format!("{left_out} could not be read, and no shard has them"));
    Ok(ExitCode::from(FAILED))
}
