//! `tandem monitor`: a run as it goes on, or as it went, read off its log and nothing else.
//!
//! `log_file` finds the log, `tail` follows it, `run_state` is what its records add up to, `view` and `snapshot` show
//! that. Nothing of the run is opened for writing, locked or asked: it does not know that it is watched.

mod alarms;
mod curve;
mod figures;
mod keys;
mod live;
mod log_file;
mod plan_facts;
mod power;
mod recent;
mod run_state;
mod sign_of_life;
mod slots;
mod snapshot;
mod tail;
mod terminal;
mod view;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command as Clap, value_parser};

use crate::args::switch;
use crate::exit::Exit;
use crate::screen::{self, Screen};

use self::figures::MonitorFrame;
use self::run_state::RunState;
use self::tail::{Tail, TailProgress};

/// Where `train` puts a run when it is not told otherwise.
const USUAL_RUN: &str = "checkpoints";

/// One call of `tandem monitor`.
pub(crate) struct MonitorArgs {
    /// A run's folder, or a log.
    run: PathBuf,
    once: bool,
}

pub(crate) fn grammar() -> Clap {
    Clap::new("monitor")
        .about("Show a run in the terminal while it goes on, or afterwards; it is not touched")
        .arg(
            Arg::new("run")
                .value_name("RUN")
                .default_value(USUAL_RUN)
                .value_parser(value_parser!(PathBuf))
                .help("The folder of a run (its --checkpoint-dir), or a run log"),
        )
        .arg(switch("once", "Print how it stands as plain text, and end"))
}

pub(crate) fn read(given: &ArgMatches) -> MonitorArgs {
    let run = given.get_one::<PathBuf>("run").cloned().unwrap_or_else(|| USUAL_RUN.into());
    MonitorArgs { run, once: given.get_flag("once") }
}

pub(crate) fn run(call: &MonitorArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    let log = log_file::find(&call.run)?;
    if call.once {
        return print_once(log, screen);
    }
    if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
        let run = tandem_plan::quoted(&call.run.display().to_string());
        return Err(Exit::Usage(format!(
            "❌ monitor shows a run in a terminal, and this is none; for plain text: tandem monitor {run} --once"
        )));
    }
    live::watch(log, screen.is_plain())
}

fn print_once(log: PathBuf, screen: &Screen) -> Result<ExitCode, Exit> {
    let (_, text) = snapshot_of(&log)?;
    screen::write(&if screen.is_plain() { figures::plain(&text) } else { text })?;
    Ok(ExitCode::SUCCESS)
}

/// How a run stands, in a few words and in full, by all that is in its log now.
pub(crate) fn snapshot_of(log: &Path) -> Result<(String, String), Exit> {
    let mut tail = Tail::open(log.to_owned())?;
    let mut state = RunState::default();
    while tail.advance(&mut state)? != TailProgress::Idle {}
    let picture = MonitorFrame {
        lately: state.lately(),
        life: sign_of_life::look(&tail, &state),
        watts: [None; 2],
        log: tail.path().to_owned(),
        share_read: 1.0,
        state: &state,
    };
    Ok((picture.life().0, snapshot::text(&picture)))
}
