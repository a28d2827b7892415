//! Each stage alone: the feed without a step, and the step without a feed.

use std::time::{Duration, Instant};

use tandem_device::{DeviceKind, Isolation};
use tandem_diagnosis::{Stage, Summary};
use tandem_events::{Record, RunEvent};
use tandem_plan::Plan;
use tandem_train::{StepLoop, StepReport};

use crate::benchmarks::BenchError;
use tandem_launch::EventBuffer;

/// For how long, and for how many batches at least and at most.
const LONGEST: Duration = Duration::from_secs(2);
const FEWEST: usize = 8;
const MOST: usize = 400;

/// How long one stage takes alone.
#[derive(Clone, Debug, PartialEq)]
pub struct StandaloneTimes {
    /// `load`, `upload`, `features`, `transfer`, `feed` or `step`.
    pub name: &'static str,
    /// Of a step's batches; decoding divided by its threads.
    pub time_ns: Summary,
}

impl StandaloneTimes {
    /// Steps per second if this were the only work.
    pub fn steps_per_s(&self) -> f64 {
        if self.time_ns.mean > 0.0 { 1e9 / self.time_ns.mean } else { 0.0 }
    }
}

/// Leases batches as fast as they come and releases them at once.
pub(super) fn measure(
    trainer: &mut StepLoop,
    roles: &Isolation,
    plan: &Plan,
    kind: DeviceKind,
    events: &EventBuffer,
    model_only: &[StepReport],
) -> Result<Vec<StandaloneTimes>, BenchError> {
    let stream = roles.model.device.stream(true)?;
    let stock = super::stock(plan);
    let (begun, mut counted_from, mut counted) = (Instant::now(), Instant::now(), 0);
    for number in 0..stock + MOST {
        if number == stock {
            // From here on, batches arrive at the rate of the feed.
            drop(events.take());
            counted_from = Instant::now();
        }
        if number >= stock + FEWEST && begun.elapsed() > LONGEST {
            break;
        }
        drop(trainer.feed_mut().lease(&stream)?);
        stream.drain()?;
        counted += usize::from(number >= stock);
    }
    let feed_ns = counted_from.elapsed().as_nanos() as f64 / counted.max(1) as f64;
    let (batches, threads) = (plan.local_micro_batches() as f64, trainer.feed().stats().threads.max(1) as f64);
    let records = events.take();
    let mut found: Vec<StandaloneTimes> = Stage::ALL
        .into_iter()
        .map(|stage| {
            let shared = if stage == Stage::Load { threads } else { 1.0 };
            StandaloneTimes { name: stage.name(), time_ns: times_of(&records, stage, batches / shared) }
        })
        .filter(|alone| alone.time_ns.count > 0)
        .collect();
    if kind != DeviceKind::Simulated {
        // With simulated cards, this would time the host.
        found.push(StandaloneTimes { name: "feed", time_ns: Summary::of(&[batches * feed_ns]) });
    }
    let steps: Vec<f64> = model_only.iter().map(|report| report.on_device.wall_ns as f64).collect();
    found.push(StandaloneTimes { name: "step", time_ns: Summary::of(&steps) });
    Ok(found)
}

/// The time of `stage` per batch, times `scale`.
fn times_of(records: &[Record], stage: Stage, scale: f64) -> Summary {
    let times: Vec<f64> = records
        .iter()
        .filter_map(|record| match &record.event {
            RunEvent::Stage { stage: name, ns, busy_ns, .. } if *name == stage.name() => {
                Some(if stage == Stage::Load { *busy_ns } else { *ns } as f64 * scale)
            }
            _ => None,
        })
        .collect();
    Summary::of(&times)
}

#[cfg(test)]
mod tests {
    use tandem_events::VERSION;

    use super::*;

    #[test]
    fn decoding_time_is_divided_by_its_threads_and_other_stages_are_not() {
        let record = |stage: &str, ns, busy_ns| {
            let event =
                RunEvent::Stage { stage: stage.to_owned(), batch: 0, ns, busy_ns, wait_ns: 0, spans: Vec::new() };
            Record { v: VERSION, seq: 0, t_ns: 0, dropped: 0, event }
        };
        let records = [record("load", 9, 80), record("features", 7, 7), record("load", 9, 40)];
        // Two batches a step, four threads.
        let load = times_of(&records, Stage::Load, 2.0 / 4.0);
        assert_eq!((load.count, load.mean), (2, 30.0));
        assert_eq!(times_of(&records, Stage::Features, 2.0).mean, 14.0);
        assert_eq!(times_of(&records, Stage::Transfer, 2.0).count, 0);
        let alone = StandaloneTimes { name: "load", time_ns: Summary::of(&[4e6, 6e6]) };
        assert_eq!(alone.steps_per_s(), 200.0);
    }
}
