//! When events of a card were reached, on the host's clock.
//!
//! CUDA reports only the time between two events of a card, in a float of milliseconds. So a reference event is recorded
//! when the card is opened, with the host's clock read before and after it, and all events are measured from it. A float
//! has 24 bits of precision, so long intervals are imprecise: every few seconds a newer reference event replaces the old
//! one, measured from it. Event times of one card are therefore consistent to about a microsecond. Against the host's
//! clock they are off by some microseconds of the first reference event, and by the drift of the two oscillators.

use std::sync::Mutex;

use super::api::{self, DriverApi, Handle};
use super::{CudaDriver, OpenCard};
use crate::error::DeviceError;
use crate::machine::lock;

/// The maximum age of a reference event: at four seconds a float still resolves a quarter of a microsecond.
const OLDEST_NS: i64 = 4_000_000_000;

/// The clock of a card; stopped while the card is closed.
#[derive(Default)]
pub(super) struct CardClock(Mutex<Option<ReferenceEvents>>);

struct ReferenceEvents {
    /// The current reference event, and when it was reached.
    from: Handle,
    from_ns: u64,
    /// Its replacement.
    next: Handle,
    is_next_queued: bool,
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
        *lock(&self.cuda_card(card)?.clock.0) = Some(ReferenceEvents { from, from_ns, next, is_next_queued: false });
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
        if events.is_next_queued {
            // SAFETY: the event is alive.
            let code = unsafe { (self.api.cuEventQuery)(events.next) };
            if code != api::NOT_READY {
                self.check(card, during, code)?;
                let later_ns = self.between_ns(card, during, events.from, events.next)?;
                events.from_ns = events.from_ns.saturating_add_signed(later_ns);
                std::mem::swap(&mut events.from, &mut events.next);
                events.is_next_queued = false;
            }
        } else if since_ns > OLDEST_NS {
            // SAFETY: both are alive. The stream is idle except for allocations, so the event is reached soon.
            self.check(card, during, unsafe { (self.api.cuEventRecord)(events.next, open.service_stream) })?;
            events.is_next_queued = true;
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
