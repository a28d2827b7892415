//! The warm-up on the screen: a line that is written over while programs get ready, and one that stays if it took long.

use std::time::{Duration, Instant};

use crate::screen::{Screen, Ticker};

/// What is shorter is not worth a line.
const WORTH_TELLING: Duration = Duration::from_secs(2);

/// A warm-up that is being shown.
pub(crate) struct WarmUp<'a> {
    screen: &'a Screen,
    begun: Instant,
    ticker: Option<Ticker>,
}

impl WarmUp<'_> {
    pub(crate) fn new(screen: &Screen) -> WarmUp<'_> {
        WarmUp { screen, begun: Instant::now(), ticker: None }
    }

    /// Shows that `ready` of `of` programs can run. In the end there may be a line to say.
    pub(crate) fn show(&mut self, ready: usize, of: usize) -> Option<String> {
        if ready == 0 {
            self.begun = Instant::now();
        }
        self.ticker.get_or_insert_with(|| self.screen.ticker("Warm-up")).show(ready, of);
        if ready < of {
            return None;
        }
        self.ticker = None;
        told(of, self.begun.elapsed())
    }
}

fn told(programs: usize, took: Duration) -> Option<String> {
    (took > WORTH_TELLING).then(|| format!("   Warm-up: {programs} programs in {:.1} s", took.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_took_long_is_told() {
        assert_eq!(told(17, Duration::from_millis(5820)).as_deref(), Some("   Warm-up: 17 programs in 5.8 s"));
        assert_eq!(told(17, Duration::from_millis(1900)), None);
    }
}
