//! Durations as people write them.

use std::time::Duration;

/// `12 s`, `4 min 5 s`, `37 min`, `2 h 5 min`, `3 days`.
pub(crate) fn short_duration(time: Duration) -> String {
    match time.as_secs() {
        s if s < 60 => format!("{s} s"),
        s if s < 600 => format!("{} min {} s", s / 60, s % 60),
        s if s < 3600 => format!("{} min", s / 60),
        s if s < 48 * 3600 => format!("{} h {} min", s / 3600, s / 60 % 60),
        s => format!("{} days", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_at_most_two_units() {
        let check = |seconds, expected| assert_eq!(short_duration(Duration::from_secs(seconds)), expected);
        check(0, "0 s");
        check(61, "1 min 1 s");
        check(3599, "59 min");
        check(7500, "2 h 5 min");
        check(200_000, "2 days");
    }
}
