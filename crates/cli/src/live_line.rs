//! A line at the bottom of a terminal that is redrawn in place, and erased when dropped.

use std::time::Duration;

use crate::console::{Console, live_columns};
use crate::duration::short_duration;
use crate::style::OutputStream;

const BAR_COLUMNS: usize = 20;
const MIN_BAR_COLUMNS: usize = 4;
const SIMULATED_COLUMNS: usize = 12;

/// Holding one of these means that the terminal has a live line. Dropping it erases the line.
pub(crate) struct LiveLine {
    console: Console,
    stream: OutputStream,
}

impl LiveLine {
    pub(crate) fn new(console: Console, stream: OutputStream) -> LiveLine {
        LiveLine { console, stream }
    }

    /// Shows a bar and `fields`, as many of them as fit. The first `required` of them are always shown, with a shorter bar.
    pub(crate) fn show(&self, progress: Progress, fields: &[String], required: usize) {
        let prefix = if self.console.look().simulated { SIMULATED_COLUMNS } else { 0 };
        let room = live_columns(self.stream).saturating_sub(prefix);
        self.console.show_live(&text(progress, fields, required, room), self.stream);
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        self.console.end_live();
    }
}

/// How much is done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) done: u64,
    pub(crate) total: u64,
}

impl Progress {
    /// `██████░░░░`
    fn bar(self, columns: usize) -> String {
        let full = (self.done.min(self.total) as u128 * columns as u128 / u128::from(self.total.max(1))) as usize;
        "█".repeat(full) + &"░".repeat(columns - full)
    }

    /// The time to the end at the mean speed so far. None before the first.
    pub(crate) fn left(self, elapsed: Duration) -> Option<Duration> {
        let per_unit = elapsed.as_secs_f64() / (self.done > 0).then_some(self.done as f64)?;
        Duration::try_from_secs_f64(per_unit * self.total.saturating_sub(self.done) as f64).ok()
    }
}

/// `12 s left`
pub(crate) fn left_text(left: Option<Duration>) -> String {
    format!("{} left", left.map_or_else(|| "—".to_owned(), short_duration))
}

fn text(progress: Progress, fields: &[String], required: usize, room: usize) -> String {
    let width = |fields: &[String]| fields.iter().map(|field| field.chars().count() + 2).sum::<usize>();
    let more = (required..=fields.len()).rev().find(|count| width(&fields[..*count]) + BAR_COLUMNS <= room);
    let shown = &fields[..more.unwrap_or(required.min(fields.len()))];
    let bar = room.saturating_sub(width(shown)).clamp(MIN_BAR_COLUMNS, BAR_COLUMNS);
    let parts = std::iter::once(progress.bar(bar)).chain(shown.iter().cloned());
    parts.collect::<Vec<_>>().join("  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_full_as_the_work_is_done() {
        let check = |done, total, expected: &str| assert_eq!(Progress { done, total }.bar(4), expected);
        check(0, 300, "░░░░");
        check(150, 300, "██░░");
        check(299, 300, "███░");
        check(300, 300, "████");
        check(9, 3, "████");
        check(0, 0, "░░░░");
    }

    #[test]
    fn what_does_not_fit_is_left_out_and_the_bar_shrinks_before_a_required_field_goes() {
        let fields: Vec<String> = ["1/2", "loss 1.0", "more"].map(str::to_owned).to_vec();
        let check = |room, expected: &str| {
            let text = text(Progress { done: 1, total: 2 }, &fields, 2, room);
            assert_eq!(text.replace("██████████░░░░░░░░░░", "[20]"), expected);
        };
        check(80, "[20]  1/2  loss 1.0  more");
        check(40, "[20]  1/2  loss 1.0");
        check(25, "█████░░░░░  1/2  loss 1.0");
        check(10, "██░░  1/2  loss 1.0");
    }

    #[test]
    fn the_time_left_follows_the_mean_speed() {
        let check = |done, expected: &str| {
            assert_eq!(left_text(Progress { done, total: 300 }.left(Duration::from_secs(60))), expected);
        };
        check(0, "— left");
        check(100, "2 min 0 s left");
        check(300, "0 s left");
        assert_eq!(left_text(Progress { done: 400, total: 300 }.left(Duration::MAX)), "0 s left");
    }
}
