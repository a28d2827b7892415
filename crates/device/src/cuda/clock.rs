//! When events of a card were reached, on the host's clock.
//!
//! CUDA reports only the time between two events of a card, in a float of milliseconds. So a reference event is recorded
//! when the card is opened, with the host's clock read before and after it, and all events are measured from it. A float
//! has 24 bits of precision, so long intervals are imprecise: every few seconds a newer reference event replaces the old
//! one, measured from it. Event times of one card are therefore consistent to about a microsecond.
//!
//! The oscillators of card and host drift apart (6 to 8 parts per million were measured: 25 ms in an hour). So each new
//! reference event is anchored to the host's clock again: it was reached after it was recorded and before it was seen to be
//! reached, some ten microseconds later, and its time is moved into that interval. Nothing waits for it: if the card is
//! busy, the interval is longer.

use std::sync::Mutex;

use super::api::{self, DriverApi, Handle};
use super::{CudaDriver, OpenCard};
use crate::error::DeviceError;
use crate::machine::lock;

/// The maximum age of a reference event: at four seconds a float still resolves a quarter of a microsecond.
const OLDEST_NS: i64 = 4_000_000_000;
/// Queries after a reference event was recorded. An idle card reaches it within a few of them.
const QUERIES: usize = 16;

/// The clock of a card; stopped while the card is closed.
#[derive(Default)]
pub(super) struct CardClock(Mutex<Option<ReferenceEvents>>);

struct ReferenceEvents {
    /// The current reference event, and when it was reached.
    from: Handle,
    from_ns: u64,
    /// Its replacement.
    next: Handle,
    /// When that was recorded, by the host's clock; `None` if it was not.
    next_recorded_ns: Option<u64>,
}

impl ReferenceEvents {
    /// Takes the next reference event over: reached `later_ns` after the current one by the card's clock, recorded and seen
    /// at these times of the host's.
    fn advance(&mut self, later_ns: i64, recorded_ns: u64, seen_ns: u64) {
        let by_card_ns = self.from_ns.saturating_add_signed(later_ns);
        self.from_ns = by_card_ns.clamp(recorded_ns, seen_ns.max(recorded_ns));
        std::mem::swap(&mut self.from, &mut self.next);
        self.next_recorded_ns = None;
    }
}

impl CardClock {
    /// Stops the clock of a card that is being closed, if it was started. The card's context must be current.
    pub(super) fn stop(&self, api: &DriverApi) {
        let Some(events) = lock(&self.0).take() else { return };
        for event in [events.from, events.next] {
            // SAFETY: created by `start_clock`, and destroyed once.
            unsafe { (api.cuEventDestroy_v2)(event) };
        }
    }
}

impl CudaDriver {
    /// Starts the clock of a card whose context is current and whose service stream is idle.
    pub(super) fn start_clock(&self, card: usize, open: &OpenCard) -> Result<(), DeviceError> {
        let during = "starting the clock of the card";
        let (mut from, mut next) = (0, 0);
        for event in [&raw mut from, &raw mut next] {
            // SAFETY: one handle is written.
            self.check(card, during, unsafe { (self.api.cuEventCreate)(event, 0) })?;
        }
        let mut around_ns = [0; 2];
        // Twice: the first record in a context is slower than all others. The second one counts.
        for _ in 0..2 {
            let before_ns = self.host_ns();
            // SAFETY: the event is alive, and so is the stream.
            self.check(card, during, unsafe { (self.api.cuEventRecord)(from, open.service_stream) })?;
            // SAFETY: as above.
            self.check(card, during, unsafe { (self.api.cuEventSynchronize)(from) })?;
            around_ns = [before_ns, self.host_ns()];
        }
        let from_ns = around_ns[0].midpoint(around_ns[1]);
        *lock(&self.cuda_card(card)?.clock.0) = Some(ReferenceEvents { from, from_ns, next, next_recorded_ns: None });
        Ok(())
    }

    /// When the timer `event` was reached. It must have been reached, and the card must be open.
    pub(super) fn time_of(&self, card: usize, event: Handle) -> Result<u64, DeviceError> {
        let during = "reading the time of an event";
        let open = self.enter(card, during)?;
        let mut clock = lock(&self.cuda_card(card)?.clock.0);
        let Some(events) = &mut *clock else {
            return Err(DeviceError::Failed { card, during, what: "the card's clock is not running".to_owned() });
        };
        let since_ns = self.between_ns(card, during, events.from, event)?;
        let reached_ns = events.from_ns.saturating_add_signed(since_ns);
        let mut queries = 1;
        if events.next_recorded_ns.is_none() && since_ns > OLDEST_NS {
            events.next_recorded_ns = Some(self.host_ns());
            // SAFETY: both are alive. The stream is idle except for allocations, so the event is reached soon.
            self.check(card, during, unsafe { (self.api.cuEventRecord)(events.next, open.service_stream) })?;
            queries = QUERIES;
        }
        if let Some(recorded_ns) = events.next_recorded_ns {
            for _ in 0..queries {
                // SAFETY: the event is alive.
                let code = unsafe { (self.api.cuEventQuery)(events.next) };
                let seen_ns = self.host_ns();
                if code != api::NOT_READY {
                    self.check(card, during, code)?;
                    let later_ns = self.between_ns(card, during, events.from, events.next)?;
                    events.advance(later_ns, recorded_ns, seen_ns);
                    break;
                }
            }
        }
        Ok(reached_ns)
    }

    /// The host's clock.
    pub(super) fn host_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Nanoseconds from one event to another, both reached; negative if the other came first.
    pub(super) fn between_ns(
        &self,
        card: usize,
        during: &'static str,
        from: Handle,
        to: Handle,
    ) -> Result<i64, DeviceError> {
        let mut milliseconds = 0.0f32;
        // SAFETY: one float is written; both events are alive.
        let code = unsafe { (self.api.cuEventElapsedTime)(&raw mut milliseconds, from, to) };
        self.check(card, during, code)?;
        Ok((f64::from(milliseconds) * 1e6) as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two hours with a card whose clock runs faster or slower by `ppm`: the largest error in nanoseconds.
    fn largest_error_ns(ppm: f64, seen_after_ns: u64) -> u64 {
        let by_card = |host_ns: u64| (host_ns as f64 * (1.0 + ppm / 1e6)) as i64;
        let mut events = ReferenceEvents { from: 1, from_ns: 0, next: 2, next_recorded_ns: None };
        let mut from_at_ns = 0;
        (1..1800).fold(0, |largest, turn| {
            let recorded_ns = turn * OLDEST_NS as u64;
            let reached_ns = recorded_ns + 5_000;
            events.advance(by_card(reached_ns) - by_card(from_at_ns), recorded_ns, reached_ns + seen_after_ns);
            from_at_ns = reached_ns;
            largest.max(events.from_ns.abs_diff(reached_ns))
        })
    }

    #[test]
    fn a_clock_that_drifts_is_anchored_again_and_again() {
        for ppm in [0.0, 8.0, -8.0, 100.0, -100.0] {
            let error_ns = largest_error_ns(ppm, 10_000);
            assert!(error_ns <= 10_000, "{ppm} ppm: {error_ns} ns");
        }
        // On a busy card the event is seen late: a clock that runs fast is off by as much, and by no more.
        let error_ns = largest_error_ns(8.0, 3_000_000);
        assert!((1_000_000..=3_000_000).contains(&error_ns), "{error_ns} ns");
    }
}
