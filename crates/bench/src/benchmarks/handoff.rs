//! `bench handoff`: what it costs to take a batch that is ready.
//!
//! Two figures: taking a slot from the ring (a lock), and beside it the driver calls of a hand-over, which are the
//! device's and not ours: the stream waits for the batch's event, and an event is recorded after its reader.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_device::{DeviceError, Stream};
use tandem_feed::{FromFiles, TrainingSet};
use tandem_pipeline::{RingSlot, ring};

use super::BenchError;
use super::serve::{BenchContext, Served};
use super::spread::percentile;

/// Microseconds, half of which and 99 of 100 of which are below.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// The median.
    pub p50_us: f64,
    /// One in a hundred is above.
    pub p99_us: f64,
}

/// What a hand-over costs.
#[derive(Clone, Copy, Debug)]
pub struct Handoff {
    /// Taking a ready slot from the ring and sending it home, with nothing for a driver to do.
    pub ring: Latency,
    /// [`tandem_feed::Feed::lease`] of a batch that is ready, with the driver's part in it.
    pub lease: Latency,
    /// The driver's part of a lease: a stream waits for an event.
    pub wait: Latency,
    /// The driver's part of giving it back: an event is recorded.
    pub record: Latency,
}

/// Measures `num_leases` leases, for each of which a batch has to be made, and `rounds` of everything else.
pub fn measure(
    context: &BenchContext,
    training_set: &Arc<TrainingSet>,
    rounds: usize,
    num_leases: usize,
) -> Result<Handoff, BenchError> {
    let cache = tandem_feed::CacheSpec::default();
    let served = Served { training_set: Arc::clone(training_set), recordings: Arc::new(FromFiles), batch: 8, cache };
    let mut serving = context.serve(&served, |_| 0)?;
    let device = serving.roles.model.device.clone();
    let stream = device.stream(true)?;
    let event = device.event()?;
    let mut leases = Vec::new();
    if let Some(feed) = serving.feed.as_mut() {
        while leases.len() < num_leases {
            // Ready, and made: what is measured is the taking alone.
            feed.wait_warm(Duration::from_secs(60))?;
            // Of the last ring only: batches behind it still have to be carried across.
            let ready = feed.stats().rings.last().map_or(0, |ring| ring.ready);
            for _ in 0..ready.min(num_leases - leases.len()) {
                let (taken, batch) = timed(|| feed.lease(&stream));
                drop(batch?);
                leases.push(taken);
            }
            stream.drain()?;
        }
    }
    serving.feed = None;
    Ok(Handoff {
        ring: ring_alone(rounds),
        lease: latency(leases),
        wait: calls(&stream, rounds, || stream.wait(&event, "a benchmark waits"))?,
        record: calls(&stream, rounds, || stream.record(&event))?,
    })
}

fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let made = work();
    (start.elapsed().as_nanos() as f64 / 1e3, made)
}

fn latency(mut us: Vec<f64>) -> Latency {
    us.sort_by(f64::total_cmp);
    Latency { p50_us: percentile(&us, 0.5), p99_us: percentile(&us, 0.99) }
}

/// A ring whose fences are nothing: what is left is the ring.
fn ring_alone(rounds: usize) -> Latency {
    let slots = (0..8).map(|_| RingSlot { memory: (), written: (), freed: () });
    let (filler, taker) = ring::<(), u64, ()>("benchmark", slots);
    let go = |_: &()| Ok::<(), DeviceError>(());
    let mut us = Vec::with_capacity(rounds);
    for number in 0..rounds as u64 {
        let filled = filler.take().map(|slot| slot.claim(go).and_then(|slot| slot.publish(number, go)));
        assert!(matches!(filled, Ok(Ok(()))), "an open ring with a free slot");
        let (taken, slot) = timed(|| taker.take().map(|slot| slot.lease(go).and_then(|slot| slot.release(go))));
        assert!(matches!(slot, Some(Ok(()))), "a slot that was published");
        us.push(taken);
    }
    latency(us)
}

fn calls(stream: &Stream, rounds: usize, call: impl Fn() -> Result<(), DeviceError>) -> Result<Latency, DeviceError> {
    let mut us = Vec::with_capacity(rounds);
    for round in 0..rounds {
        let (taken, outcome) = timed(&call);
        outcome?;
        us.push(taken);
        if round % 256 == 255 {
            // A full queue would be measured otherwise.
            stream.drain()?;
        }
    }
    Ok(latency(us))
}
