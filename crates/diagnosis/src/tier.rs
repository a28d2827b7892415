//! The tier of a pipeline.

use std::fmt;

use crate::verdicts::Busy;

/// A smaller stall share counts as "never waited for": a run at 0.98 of its model-only throughput reaches the goal. On one card
/// features take turns with the step, so the share is never 0.
const MAX_STALL: f64 = 0.02;

/// Quality of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Below all of the others.
    BelowMinimum,
    /// Data device busy over 40 %, model device over 70 %, variation under 40 %.
    Minimum,
    /// Over 50 %, over 80 %, under 30 %.
    Good,
    /// Over 60 %, over 90 %, under 20 %.
    Excellent,
}

/// The tier and the figures behind it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierLine {
    /// The tier.
    pub tier: Tier,
    /// Busy share of the data device.
    pub data_busy: f64,
    /// Busy share of the model device.
    pub model_busy: f64,
    /// Variation of step times.
    pub variation: f64,
    /// The model never waited for the data side. Then the data device's busy share does not matter.
    pub is_never_waited_for: bool,
}

/// The bounds of a tier.
struct TierBounds {
    tier: Tier,
    min_data: f64,
    min_model: f64,
    max_variation: f64,
}

/// Best tier first.
const BOUNDS: [TierBounds; 3] = [
    TierBounds { tier: Tier::Excellent, min_data: 0.6, min_model: 0.9, max_variation: 0.2 },
    TierBounds { tier: Tier::Good, min_data: 0.5, min_model: 0.8, max_variation: 0.3 },
    TierBounds { tier: Tier::Minimum, min_data: 0.4, min_model: 0.7, max_variation: 0.4 },
];

impl TierLine {
    pub(crate) fn of(busy: Busy, variation: f64, stall_share: f64) -> TierLine {
        let is_never_waited_for = stall_share < MAX_STALL;
        let reached = BOUNDS.iter().find(|bounds| {
            (is_never_waited_for || busy.data > bounds.min_data)
                && busy.model > bounds.min_model
                && variation < bounds.max_variation
        });
        let tier = reached.map_or(Tier::BelowMinimum, |bounds| bounds.tier);
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
    fn tiers_have_the_documented_bounds() {
        check([0.61, 0.91, 0.19, 0.05], "excellent (data: 61 % busy; model: 91 % busy; variation 19 %)");
        check([0.59, 0.91, 0.19, 0.05], "good (data: 59 % busy; model: 91 % busy; variation 19 %)");
        check([0.59, 0.75, 0.19, 0.05], "minimum (data: 59 % busy; model: 75 % busy; variation 19 %)");
        check([0.59, 0.75, 0.45, 0.05], "below minimum (data: 59 % busy; model: 75 % busy; variation 45 %)");
    }

    #[test]
    fn a_data_device_that_is_never_waited_for_does_not_lower_the_tier() {
        for stall in [0.0, 0.012] {
            let expected = "excellent (data: 3 % busy, never waited for; model: 97 % busy; variation 2 %)";
            check([0.03, 0.97, 0.02, stall], expected);
        }
        check([0.03, 0.85, 0.02, 0.1], "below minimum (data: 3 % busy; model: 85 % busy; variation 2 %)");
    }
}
