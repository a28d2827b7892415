//! How much of the copy time overlaps with the step's compute.
//!
//! Measured by the devices' own clocks: when each copy ran, and when the model device was busy. Only steps that count are
//! considered, so that copies before the first step or during a checkpoint are ignored.

use tandem_events::TimeSpan;

/// A step by the devices' clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepSpan {
    /// From the end of the previous step to its own end.
    pub(crate) whole: TimeSpan,
    /// The last part of it, in which the device was busy.
    pub(crate) work: TimeSpan,
}

/// The share of the copy time within `steps` during which the device was busy with the step. Copies and steps may be in any
/// order. `None` if nothing was copied within the steps, or if the log has no device times.
pub(crate) fn copy_overlap(copies: &[TimeSpan], steps: &[StepSpan]) -> Option<f64> {
    let within = |spans: &mut dyn Iterator<Item = TimeSpan>| common_ns(copies, spans.collect());
    let all_ns = within(&mut steps.iter().map(|step| step.whole));
    let overlap_ns = within(&mut steps.iter().map(|step| step.work));
    (all_ns > 0).then(|| overlap_ns as f64 / all_ns as f64)
}

/// Nanoseconds of `spans` that one of `others` covers. The `others` do not overlap each other.
fn common_ns(spans: &[TimeSpan], mut others: Vec<TimeSpan>) -> u64 {
    others.sort_by_key(|other| other.began_ns);
    let common = |span: &TimeSpan| {
        let from = others.partition_point(|other| other.ended_ns() <= span.began_ns);
        let overlapping = others[from..].iter().take_while(|other| other.began_ns < span.ended_ns());
        overlapping.map(|other| other.ended_ns().min(span.ended_ns()) - other.began_ns.max(span.began_ns)).sum::<u64>()
    };
    spans.iter().map(common).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(began_ns: u64, ended_ns: u64) -> TimeSpan {
        TimeSpan { began_ns, ns: ended_ns - began_ns }
    }

    fn step(began_ns: u64, worked_ns: u64, ended_ns: u64) -> StepSpan {
        StepSpan { whole: span(began_ns, ended_ns), work: span(worked_ns, ended_ns) }
    }

    #[test]
    fn only_copies_within_steps_count_and_only_busy_time_overlaps() {
        // 100 to 140 waits, 140 to 200 works; 200 to 300 works; then a pause; 400 to 500 works.
        let steps = [step(400, 400, 500), step(100, 140, 200), step(200, 200, 300)];
        let share = |copies: &[TimeSpan]| copy_overlap(copies, &steps);
        assert_eq!(share(&[span(150, 160)]), Some(1.0));
        assert_eq!(share(&[span(110, 130)]), Some(0.0));
        assert_eq!(share(&[span(120, 160)]), Some(0.5));
        assert_eq!(share(&[span(190, 210), span(120, 140)]), Some(0.5), "across the boundary of two steps");
        assert_eq!(share(&[span(290, 410)]), Some(1.0), "the pause does not count");
        assert_eq!([share(&[]), share(&[span(0, 90)]), share(&[span(310, 390)])], [None; 3]);
        assert_eq!(copy_overlap(&[span(1, 2)], &[]), None);
    }
}
