//! How good a pipeline is, in a word.

use std::fmt;

use crate::verdicts::Busy;

/// Waiting for less than this share of the time is never: a run that has 0.98 of its model_only has what is promised. On one
/// card features take turns with the step, so that it is never nothing.
const NEVER: f64 = 0.02;

/// How good it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Not even the first.
    BelowMinimum,
    /// Data busy over 40 %, model over 70 %, variation under 40 %.
    Minimum,
    /// Over 50 %, over 80 %, under 30 %.
    Good,
    /// Over 60 %, over 90 %, under 20 %.
    Excellent,
}

/// The tier and the figures it was found by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierLine {
    /// The tier.
    pub tier: Tier,
    /// The data device worked this share of the time.
    pub data_busy: f64,
    /// The model device worked this share of the time.
    pub model_busy: f64,
    /// Variation of step times.
    pub variation: f64,
    /// The data side was never waited for: how busy it is does not matter then.
    pub is_never_waited_for: bool,
}

impl TierLine {
    pub(crate) fn of(busy: Busy, variation: f64, stall_share: f64) -> TierLine {
        let is_never_waited_for = stall_share < NEVER;
        let levels = [(Tier::Excellent, 0.6, 0.9, 0.2), (Tier::Good, 0.5, 0.8, 0.3), (Tier::Minimum, 0.4, 0.7, 0.4)];
        let reached = levels.into_iter().find(|(_, data, model, most)| {
            (is_never_waited_for || busy.data > *data) && busy.model > *model && variation < *most
        });
        let tier = reached.map_or(Tier::BelowMinimum, |(tier, ..)| tier);
        TierLine { tier, data_busy: busy.data, model_busy: busy.model, variation, is_never_waited_for }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tier::BelowMinimum => "below minimum",
            Tier::Minimum => "minimum",
            Tier::Good => "good",
            Tier::Excellent => "excellent",
        })
    }
}

impl fmt::Display for TierLine {
    /// `excellent (data: 3 % busy, never waited for; model: 97 % busy; variation 2 %)`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [data, model, variation] = [self.data_busy, self.model_busy, self.variation].map(|share| 100.0 * share);
        let never = if self.is_never_waited_for { ", never waited for" } else { "" };
        write!(f, "{} (data: {data:.0} % busy{never}; model: {model:.0} % busy; variation {variation:.0} %)", self.tier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check([data, model, variation, stall]: [f64; 4], expected: &str) {
        let line = TierLine::of(Busy { data, model, train: model }, variation, stall);
        assert_eq!(line.to_string(), expected);
    }

    #[test]
    fn tiers_are_those_that_were_promised() {
        check([0.61, 0.91, 0.19, 0.05], "excellent (data: 61 % busy; model: 91 % busy; variation 19 %)");
        check([0.59, 0.91, 0.19, 0.05], "good (data: 59 % busy; model: 91 % busy; variation 19 %)");
        check([0.59, 0.75, 0.19, 0.05], "minimum (data: 59 % busy; model: 75 % busy; variation 19 %)");
        check([0.59, 0.75, 0.45, 0.05], "below minimum (data: 59 % busy; model: 75 % busy; variation 45 %)");
    }

    #[test]
    fn a_data_device_with_no_more_to_do_is_as_good_as_any() {
        for stall in [0.0, 0.012] {
            let expected = "excellent (data: 3 % busy, never waited for; model: 97 % busy; variation 2 %)";
            check([0.03, 0.97, 0.02, stall], expected);
        }
        check([0.03, 0.85, 0.02, 0.1], "below minimum (data: 3 % busy; model: 85 % busy; variation 2 %)");
    }
}
