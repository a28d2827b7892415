//! How much of the time of copies passes beside the step.
//!
//! By the devices' own clocks: when each copy was under way, and when the model device was at work. Only time of steps that
//! count is looked at, so that what is copied before the first step or beside a checkpoint is not held against anybody.

use tandem_events::TimeSpan;

/// A step on the devices' clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SteppedAt {
    /// From the end of the step before to its own.
    pub(crate) whole: TimeSpan,
    /// The last part of it, in which the device worked.
    pub(crate) work: TimeSpan,
}

/// The share of the time of `copies` within `steps`, both in any order, in which the step was at work. None where nothing
/// was copied in it, or where no clock told.
pub(crate) fn beside_work(copies: &[TimeSpan], steps: &[SteppedAt]) -> Option<f64> {
    let within = |spans: &mut dyn Iterator<Item = TimeSpan>| common_ns(copies, spans.collect());
    let all_ns = within(&mut steps.iter().map(|step| step.whole));
    let beside_ns = within(&mut steps.iter().map(|step| step.work));
    (all_ns > 0).then(|| beside_ns as f64 / all_ns as f64)
}

/// Nanoseconds of `spans` in which one of `others` is under way. Others do not overlap each other.
fn common_ns(spans: &[TimeSpan], mut others: Vec<TimeSpan>) -> u64 {
    others.sort_by_key(|other| other.began_ns);
    let common = |span: &TimeSpan| {
        let from = others.partition_point(|other| other.ended_ns() <= span.began_ns);
        let met = others[from..].iter().take_while(|other| other.began_ns < span.ended_ns());
        met.map(|other| other.ended_ns().min(span.ended_ns()) - other.began_ns.max(span.began_ns)).sum::<u64>()
    };
    spans.iter().map(common).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(began_ns: u64, ended_ns: u64) -> TimeSpan {
        TimeSpan { began_ns, ns: ended_ns - began_ns }
    }

    fn stepped(began_ns: u64, worked_ns: u64, ended_ns: u64) -> SteppedAt {
        SteppedAt { whole: span(began_ns, ended_ns), work: span(worked_ns, ended_ns) }
    }

    #[test]
    fn only_time_of_steps_counts_and_only_work_is_beside() {
        // 100 to 140 waits, 140 to 200 works; 200 to 300 works; then a pause; 400 to 500 works.
        let steps = [stepped(400, 400, 500), stepped(100, 140, 200), stepped(200, 200, 300)];
        let share = |copies: &[TimeSpan]| beside_work(copies, &steps);
        assert_eq!(share(&[span(150, 160)]), Some(1.0));
        assert_eq!(share(&[span(110, 130)]), Some(0.0));
        assert_eq!(share(&[span(120, 160)]), Some(0.5));
        assert_eq!(share(&[span(190, 210), span(120, 140)]), Some(0.5), "across the border of two steps");
        assert_eq!(share(&[span(290, 410)]), Some(1.0), "the pause does not count");
        assert_eq!([share(&[]), share(&[span(0, 90)]), share(&[span(310, 390)])], [None; 3]);
        assert_eq!(beside_work(&[span(1, 2)], &[]), None);
    }
}
