//! The loop: reads what is new in the log, draws it, and waits for a key or for the next look. A new size of the terminal is
//! seen when it is drawn.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::exit::Exit;

use super::figures::MonitorFrame;
use super::keys::{self, KeyPoll};
use super::power::PowerMeter;
use super::run_state::{Lately, RunState};
use super::sign_of_life::{self, Life};
use super::tail::{Tail, TailProgress};
use super::terminal::Terminal;
use super::view;

/// How often the log is looked at: as often as people see a number change.
const EVERY: Duration = Duration::from_millis(250);
/// Power changes slowly, and asking for it costs the driver something.
const POWER_EVERY: Duration = Duration::from_secs(1);
/// What the shell would be told of a signal: 128 and its number.
const HUNG_UP: u8 = 129;

/// Shows the run until a key or a signal ends it.
pub(super) fn watch(log: PathBuf, is_plain: bool) -> Result<ExitCode, Exit> {
    let mut tail = Tail::open(log)?;
    let mut state = RunState::default();
    // What is no log is told before the terminal is taken.
    tail.advance(&mut state)?;
    let mut terminal = Terminal::take()?;
    let mut power = Power::default();
    let mut lately: Option<Lately> = None;
    loop {
        let progress = read_on(&mut tail, &mut state)?;
        if progress == TailProgress::Read {
            lately = None;
        }
        let life = sign_of_life::look(&tail, &state);
        let picture = MonitorFrame {
            lately: lately.take().unwrap_or_else(|| state.lately()),
            watts: power.watts(&state, &life),
            life,
            log: tail.path().to_owned(),
            share_read: tail.share_read(),
            state: &state,
        };
        terminal.draw(|frame| view::draw(frame, &picture, is_plain)).context("the terminal cannot be drawn on")?;
        lately = Some(picture.lately);
        if let Some(code) = terminal.signalled() {
            return Ok(ExitCode::from(code));
        }
        let patience = if tail.share_read() < 1.0 { Duration::ZERO } else { EVERY };
        match keys::wait(io::stdin(), patience).context("the keyboard cannot be read")? {
            KeyPoll::Nothing => {}
            KeyPoll::Quit => return Ok(ExitCode::SUCCESS),
            KeyPoll::Gone => return Ok(ExitCode::from(HUNG_UP)),
        }
    }
}

/// Reads for a moment: a long log comes in several, with keys answered in between.
fn read_on(tail: &mut Tail, state: &mut RunState) -> Result<TailProgress, Exit> {
    let begun = Instant::now();
    let mut progress = TailProgress::Idle;
    while begun.elapsed() < EVERY && tail.advance(state)? == TailProgress::Read {
        progress = TailProgress::Read;
    }
    Ok(progress)
}

/// What the cards draw, asked now and then while the run goes on.
#[derive(Default)]
struct Power {
    meter: Option<PowerMeter>,
    last: Option<(Instant, [Option<f32>; 2])>,
}

impl Power {
    fn watts(&mut self, state: &RunState, life: &Life) -> [Option<f32>; 2] {
        if !matches!(life, Life::Running { .. }) || state.command.is_none() {
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
