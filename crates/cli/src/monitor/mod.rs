//! `tandem monitor`: shows a run, live or afterwards, from its log alone.
//!
//! `log_file` finds the log, `tail` follows it, `run_state` accumulates its records, `view` and `snapshot` show the result.
//! The monitor only reads: it opens nothing for writing, takes no lock and sends nothing to the run.

mod alarms;
mod curve;
mod document;
mod figures;
mod keys;
mod live;
mod liveness;
mod log_file;
mod plan_facts;
mod power;
mod recent;
mod run_state;
mod slots;
mod snapshot;
mod tail;
mod terminal;
mod view;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};
use ratatui::crossterm::style::force_color_output;
use serde_json::Value;

use crate::args::switch;
use crate::exit::Exit;
use crate::screen::{self, Screen};
use crate::style::UseColor;

use self::figures::MonitorFrame;
use self::liveness::RunStatus;
use self::power::PowerMeter;
use self::run_state::RunState;
use self::tail::{Tail, TailProgress};

/// The default folder of a run.
const DEFAULT_RUN: &str = "checkpoints";

/// Arguments of `tandem monitor`.
pub(crate) struct MonitorArgs {
    /// A run's folder or a log file.
    run: PathBuf,
    once: bool,
    pub(crate) json: bool,
}

pub(crate) fn command() -> Command {
    Command::new("monitor")
        .about("Show a run in the terminal, live or afterwards; never affects the run")
        .arg(
            Arg::new("run")
                .value_name("RUN")
                .default_value(DEFAULT_RUN)
                .value_parser(value_parser!(PathBuf))
                .help("Folder of a run (its --checkpoint-dir) or a run log"),
        )
        .arg(switch("once", "Print the current state as plain text and exit"))
        .arg(switch("json", "Print the current state as one JSON document and exit").conflicts_with("once"))
}

pub(crate) fn parse(matches: &ArgMatches) -> MonitorArgs {
    let run = matches.get_one::<PathBuf>("run").cloned().unwrap_or_else(|| DEFAULT_RUN.into());
    MonitorArgs { run, once: matches.get_flag("once"), json: matches.get_flag("json") }
}

pub(crate) fn run(args: &MonitorArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    let log = log_file::find(&args.run)?;
    if args.once {
        return print_once(log, screen);
    }
    if args.json {
        screen::write_json(&document_of(&log)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        let run = tandem_plan::quoted(&args.run.display().to_string());
        return Err(Exit::Usage(format!("❌ monitor needs a terminal; for plain text: tandem monitor {run} --once")));
    }
    // Without a choice, `NO_COLOR` decides.
    if screen.color() != UseColor::Auto {
        force_color_output(screen.color() == UseColor::Always);
    }
    live::watch(log, screen.is_plain())
}

fn print_once(log: PathBuf, screen: &Screen) -> Result<ExitCode, Exit> {
    let Snapshot { text, .. } = snapshot_of(&log)?;
    screen::write(&if screen.is_plain() { figures::plain(&text) } else { text })?;
    Ok(ExitCode::SUCCESS)
}

/// The state of a run.
pub(crate) struct Snapshot {
    /// In a few words: `running`.
    pub(crate) status: String,
    /// In full.
    pub(crate) text: String,
}

/// The state of a run, from all that is in its log now.
pub(crate) fn snapshot_of(log: &Path) -> Result<Snapshot, Exit> {
    let (tail, state) = read(log)?;
    let run = frame_of(&tail, &state);
    Ok(Snapshot { status: run.status().0, text: snapshot::text(&run) })
}

/// The same as a JSON document, with the power of the run's GPUs.
fn document_of(log: &Path) -> Result<Value, Exit> {
    let (tail, state) = read(log)?;
    let mut run = frame_of(&tail, &state);
    if matches!(run.status, RunStatus::Running { .. }) {
        run.watts = PowerMeter::of(&state.plan).watts(&state.plan);
    }
    Ok(document::document(&run))
}

fn read(log: &Path) -> Result<(Tail, RunState), Exit> {
    let mut tail = Tail::open(log.to_owned())?;
    let mut state = RunState::default();
    while tail.advance(&mut state)? != TailProgress::Idle {}
    Ok((tail, state))
}

fn frame_of<'a>(tail: &Tail, state: &'a RunState) -> MonitorFrame<'a> {
    MonitorFrame {
        recent: state.recent_figures(),
        status: liveness::status(tail, state),
        watts: [None; 2],
        log: tail.path().to_owned(),
        share_read: 1.0,
        state,
    }
}
