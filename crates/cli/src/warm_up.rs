//! Progress of the warm-up: a counter while programs are compiled, and a line at the end if it took long.

use std::time::{Duration, Instant};

use crate::screen::Screen;
use crate::ticker::Ticker;

/// A shorter warm-up gets no line.
const MIN_REPORTED: Duration = Duration::from_secs(2);

/// A warm-up in progress.
pub(crate) struct WarmUp<'a> {
    screen: &'a Screen,
    started: Instant,
    ticker: Option<Ticker>,
}

impl WarmUp<'_> {
    pub(crate) fn new(screen: &Screen) -> WarmUp<'_> {
        WarmUp { screen, started: Instant::now(), ticker: None }
    }

    /// Shows that `ready` of `of` programs are compiled. Returns a line to print at the end of a long warm-up.
    pub(crate) fn show(&mut self, ready: usize, of: usize) -> Option<String> {
        if ready == 0 {
            self.started = Instant::now();
        }
        self.ticker.get_or_insert_with(|| self.screen.ticker("Warm-up")).show(ready, of);
        if ready < of {
            return None;
        }
        self.ticker = None;
        summary(of, self.started.elapsed())
    }
}

fn summary(programs: usize, took: Duration) -> Option<String> {
    (took > MIN_REPORTED).then(|| format!("   Warm-up: {programs} programs in {:.1} s", took.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_warm_up_is_reported() {
        assert_eq!(summary(17, Duration::from_millis(5820)).as_deref(), Some("   Warm-up: 17 programs in 5.8 s"));
        assert_eq!(summary(17, Duration::from_millis(1900)), None);
    }
}
