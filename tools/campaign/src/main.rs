//! A fault campaign against the built `tandem` binary, from the outside: mutated files, kills, signals, full disks,
//! unusual environments, injected faults and a soak, for a given time and from a seed.

mod args;
mod choices;
mod kind;
mod schedule;
mod mutate;
mod audio_files;
mod command;
mod verdict;
mod tree;
mod mounts;
mod fixtures;
mod case;
mod recordings;
mod lists;
mod configs;
mod run_logs;
mod checkpoints;
mod speech;
mod kills;
mod shards;
mod signals;
mod disks;
mod environments;
mod faults;
mod soak;
mod report;
mod campaign;
#[cfg(test)]
mod fake;

use std::fs;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("❌ {error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Whether the campaign found no failure.
fn run() -> anyhow::Result<bool> {
    let args = match args::parse() {
        Ok(args) => args,
        Err(text) => {
            say(&text.to_string());
            // `--help` is printed this way, too.
            return if text.use_stderr() { anyhow::bail!("wrong usage") } else { Ok(true) };
        }
    };
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let report = campaign::run(&args.options, &stop, &say);
    say(report.table().trim_end());
    let document = format!("{:#}\n", report.to_json());
    match &args.json {
        Some(path) => fs::write(path, document).with_context(|| format!("cannot write {}", path.display()))?,
        None => say(document.trim_end()),
    }
    Ok(report.passed())
}

/// Prints a line. A closed output does not end a campaign.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
