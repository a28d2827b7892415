//! Times steps by the model device's clock: timer events on its stream, read together with the results of a step.
//!
//! ```text
//! … end of the previous step ─> asked ─> (the stream waits for the batch) ─> began ─> work ─> ended …
//! ```
//!
//! The host never waits for them: it records three events per step, and reads those of a step whose results have
//! arrived. `asked` is recorded before the host leases a batch, so that a batch whose copy was not even queued counts as
//! waiting, too.

use tandem_device::{Device, DeviceError, Event, Stream};

/// The times of a step by the model device's clock: on the CPU the host's clock, on simulated cards a simulated one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceTimes {
    /// The step's first batch, counted from the start of the feed.
    pub first_batch: u64,
    /// The start of its work.
    pub began_ns: u64,
    /// From the start of its work to the end.
    pub busy_ns: u64,
    /// How long its stream was idle before that, waiting for the batches.
    pub wait_ns: u64,
    /// From the end of the previous step to its end; for the first step, from `asked`.
    pub wall_ns: u64,
}

/// The timers of steps in flight.
pub(crate) struct StepClock {
    rounds: Vec<Round>,
    next: usize,
    /// The round of the previous step; `None` if something else ran after it.
    previous: Option<usize>,
}

struct Round {
    asked: Event,
    began: Event,
    ended: Event,
}

/// A step that is being timed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    round: usize,
    previous: Option<usize>,
}

impl StepClock {
    /// For `in_flight` steps that are queued and not yet read.
    pub(crate) fn new(device: &Device, in_flight: usize) -> Result<StepClock, DeviceError> {
        let round = |_| Ok(Round { asked: device.timer()?, began: device.timer()?, ended: device.timer()? });
        // One more: a step is measured from the end of the previous one.
        let rounds = (0..=in_flight).map(round).collect::<Result<_, DeviceError>>()?;
        Ok(StepClock { rounds, next: 0, previous: None })
    }

    /// The next step is not measured from the end of a previous one.
    pub(crate) fn restart(&mut self) {
        self.previous = None;
    }

    /// Records that the host asks for the batches of a step.
    pub(crate) fn ask(&mut self, stream: &Stream) -> Result<Timed, DeviceError> {
        let round = self.next % self.rounds.len();
        self.next += 1;
        stream.record(&self.rounds[round].asked)?;
        Ok(Timed { round, previous: self.previous.replace(round) })
    }

    /// Records that its batches are available to the work queued from here on.
    pub(crate) fn begin(&self, timed: Timed, stream: &Stream) -> Result<(), DeviceError> {
        stream.record(&self.rounds[timed.round].began)
    }

    /// Records the end of its work.
    pub(crate) fn end(&self, timed: Timed, stream: &Stream) -> Result<(), DeviceError> {
        stream.record(&self.rounds[timed.round].ended)
    }

    /// The times of a step whose end has been reached.
    pub(crate) fn read(&self, timed: Timed, first_batch: u64) -> Result<DeviceTimes, DeviceError> {
        let Round { asked, began, ended } = &self.rounds[timed.round];
        let since = timed.previous.map_or(asked, |previous| &self.rounds[previous].ended);
        Ok(DeviceTimes {
            first_batch,
            began_ns: began.reached_at_ns()?,
            busy_ns: ended.ns_since(began)?,
            wait_ns: began.ns_since(asked)?,
            wall_ns: ended.ns_since(since)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::{Arena, ArenaSpec, Machine, SimSpec};
    use tandem_events::Role;

    use super::*;

    /// Bytes that a step fills. On simulated cards 900 bytes take a nanosecond and each fill 4 µs more, within 5 %.
    const BYTES: u64 = 90 << 20;
    const FILL_NS: std::ops::Range<u64> = 90_000..130_000;

    #[test]
    fn work_counts_as_busy_a_late_batch_as_waiting_and_both_as_the_step() {
        let machine = Machine::simulated(SimSpec::new(1, 1 << 30));
        let device = machine.open(0).unwrap();
        let (limit_bytes, driver_bytes) = (256 << 20, 0);
        let spec = ArenaSpec {
            role: Role::Model,
            limit_bytes,
            driver_bytes,
            arena_bytes: limit_bytes,
            peer_bytes: 0,
            capped: false,
        };
        let arena = Arena::reserve(&device, spec).unwrap();
        let [mine, theirs] = [(); 2].map(|()| arena.take("filled", BYTES).unwrap());
        let [stream, feed] = [(); 2].map(|()| device.stream(true).unwrap());
        let arrived = device.event().unwrap();
        let mut clock = StepClock::new(&device, 1).unwrap();
        let mut step = |is_late: bool| {
            let timed = clock.ask(&stream).unwrap();
            if is_late {
                feed.fill(theirs.view(), 1).unwrap();
                feed.record(&arrived).unwrap();
                stream.wait(&arrived, "a step waits for its batch").unwrap();
            }
            clock.begin(timed, &stream).unwrap();
            stream.fill(mine.view(), 2).unwrap();
            clock.end(timed, &stream).unwrap();
            stream.drain().unwrap();
            clock.read(timed, 7).unwrap()
        };
        let (prompt, late) = (step(false), step(true));
        for times in [prompt, late] {
            assert!(FILL_NS.contains(&times.busy_ns), "{times:?}");
            assert_eq!(times.first_batch, 7);
        }
        // Events take no time on the card; the host's calls between them do.
        assert!(prompt.wait_ns < 10_000 && prompt.wall_ns < FILL_NS.end + 10_000, "{prompt:?}");
        assert!(FILL_NS.contains(&late.wait_ns), "{late:?}");
        assert!(late.wall_ns >= late.wait_ns + late.busy_ns, "{late:?}");
        let between_ns = (late.began_ns + late.busy_ns) - (prompt.began_ns + prompt.busy_ns);
        assert_eq!(between_ns, late.wall_ns, "from the end of one to the end of the next");
    }
}
