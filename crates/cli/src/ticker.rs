//! A counter on standard error for work that takes a while: a live line on a terminal, else a line every ten seconds at most.

use std::time::Instant;

use crate::console::Console;
use crate::live_line::{LiveLine, Progress, left_text};
use crate::rate_limit::{LINE_EVERY, LIVE_EVERY, RateLimit};
use crate::style::OutputStream;

/// Counts one kind of work. On a terminal its line is erased when it is dropped.
pub(crate) struct Ticker {
    what: &'static str,
    started: Instant,
    live: Option<LiveLine>,
    /// Where lines go without a terminal. None prints nothing.
    lines: Option<Console>,
    limit: RateLimit,
}

impl Ticker {
    pub(crate) fn new(what: &'static str, live: Option<LiveLine>, lines: Option<Console>, now: Instant) -> Ticker {
        let limit = match live.is_some() {
            true => RateLimit::from_now_on(LIVE_EVERY),
            false => RateLimit::after(now, LINE_EVERY),
        };
        Ticker { what, started: now, live, lines, limit }
    }

    /// Shows that `done` of `total` are done, if it is time to.
    pub(crate) fn show(&mut self, done: usize, total: usize) {
        let now = Instant::now();
        if !self.limit.is_due(now) {
            return;
        }
        let progress = Progress { done: done as u64, total: total as u64 };
        let left = left_text(progress.left(now.saturating_duration_since(self.started)));
        if let Some(live) = &self.live {
            live.show(progress, &[format!("{} {done}/{total}", self.what), left], 2);
        } else if let Some(console) = &self.lines {
            let percent = done * 100 / total.max(1);
            let line = format!("{}: {done} of {total} ({percent} %), {left}", self.what);
            // A stalled reader of standard error does not stop the work.
            console.print_nonblocking(&line, OutputStream::Err);
        }
    }
}
