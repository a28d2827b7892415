//! How often something is printed. The caller has the clock, so that a test can have another.

use std::time::{Duration, Instant};

/// A live line is redrawn this often at most: smooth enough to watch, slow enough to read.
pub(crate) const LIVE_EVERY: Duration = Duration::from_millis(100);
/// A line of progress is printed this often at most, where lines scroll.
pub(crate) const LINE_EVERY: Duration = Duration::from_secs(10);

/// Something that is due at most once in an interval.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateLimit {
    every: Duration,
    last: Option<Instant>,
}

impl RateLimit {
    /// The first is due at once.
    pub(crate) fn from_now_on(every: Duration) -> RateLimit {
        RateLimit { every, last: None }
    }

    /// The first is due one interval after `start`.
    pub(crate) fn after(start: Instant, every: Duration) -> RateLimit {
        RateLimit { every, last: Some(start) }
    }

    /// Whether it is due. If so, the next one is due an interval later.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.last.is_none_or(|last| now.saturating_duration_since(last) >= self.every);
        if is_due {
            self.last = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how often it is due in `seconds` at 300 steps a second.
    fn count(mut limit: RateLimit, start: Instant, seconds: u32) -> usize {
        (0..=300 * seconds).filter(|step| limit.is_due(start + Duration::from_secs(1) / 300 * *step)).count()
    }

    #[test]
    fn it_is_due_once_in_an_interval() {
        let start = Instant::now();
        assert_eq!(count(RateLimit::from_now_on(LINE_EVERY), start, 60), 6);
        assert_eq!(count(RateLimit::after(start, LINE_EVERY), start, 60), 5);
        assert!((90..=101).contains(&count(RateLimit::from_now_on(LIVE_EVERY), start, 10)));
    }

    #[test]
    fn a_clock_that_steps_back_is_no_panic() {
        let start = Instant::now();
        let mut limit = RateLimit::after(start + LINE_EVERY, LINE_EVERY);
        assert!(!limit.is_due(start));
    }
}
