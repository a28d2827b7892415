//! The live view: reads new records, draws, and waits for a key or the next refresh. A resized terminal is noticed when it is
//! drawn.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::exit::Exit;

use super::figures::MonitorFrame;
use super::keys::{self, KeyPoll};
use super::liveness::{self, RunStatus};
use super::power::PowerMeter;
use super::run_state::{RecentFigures, RunState};
use super::tail::{Tail, TailProgress};
use super::terminal::Terminal;
use super::view;

/// The refresh interval: about as fast as people can read changing numbers.
const REFRESH: Duration = Duration::from_millis(250);
/// Power changes slowly, and reading it costs the driver time.
const POWER_EVERY: Duration = Duration::from_secs(1);
/// The exit code of a hangup: 128 + SIGHUP.
const HUNG_UP: u8 = 129;

/// Shows the run until a key or a signal ends the view.
pub(super) fn watch(log: PathBuf, is_plain: bool) -> Result<ExitCode, Exit> {
    let mut tail = Tail::open(log)?;
    let mut state = RunState::default();
    // A file that is not a log is refused before the terminal is taken over.
    tail.advance(&mut state)?;
    let mut terminal = Terminal::take()?;
    let mut power = PowerReadings::default();
    let mut recent: Option<RecentFigures> = None;
    loop {
        let progress = read_on(&mut tail, &mut state)?;
        if progress == TailProgress::Read {
            recent = None;
        }
        let status = liveness::status(&tail, &state);
        let run = MonitorFrame {
            recent: recent.take().unwrap_or_else(|| state.recent_figures()),
            watts: power.watts(&state, &status),
            status,
            log: tail.path().to_owned(),
            share_read: tail.share_read(),
            state: &state,
        };
        terminal.draw(|frame| view::draw(frame, &run, is_plain)).context("cannot draw on the terminal")?;
        recent = Some(run.recent);
        if let Some(code) = terminal.signalled() {
            return Ok(ExitCode::from(code));
        }
        let timeout = if tail.share_read() < 1.0 { Duration::ZERO } else { REFRESH };
        match keys::wait(io::stdin(), timeout).context("cannot read the keyboard")? {
            KeyPoll::Nothing => {}
            KeyPoll::Quit => return Ok(ExitCode::SUCCESS),
            KeyPoll::Gone => return Ok(ExitCode::from(HUNG_UP)),
        }
    }
}

/// Reads for at most one refresh interval, so that keys are answered while a long log is read.
fn read_on(tail: &mut Tail, state: &mut RunState) -> Result<TailProgress, Exit> {
    let started = Instant::now();
    let mut progress = TailProgress::Idle;
    while started.elapsed() < REFRESH && tail.advance(state)? == TailProgress::Read {
        progress = TailProgress::Read;
    }
    Ok(progress)
}

/// The power of the run's GPUs, read once a second while it runs.
#[derive(Default)]
struct PowerReadings {
    meter: Option<PowerMeter>,
    last: Option<(Instant, [Option<f32>; 2])>,
}

impl PowerReadings {
    fn watts(&mut self, state: &RunState, status: &RunStatus) -> [Option<f32>; 2] {
        if !matches!(status, RunStatus::Running { .. }) || state.command.is_none() {
            return [None; 2];
        }
        if let Some((_, watts)) = self.last.filter(|(then, _)| then.elapsed() < POWER_EVERY) {
            return watts;
        }
        let watts = self.meter.get_or_insert_with(|| PowerMeter::of(&state.plan)).watts(&state.plan);
        self.last = Some((Instant::now(), watts));
        watts
    }
}
