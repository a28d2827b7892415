//! When marks of a card were reached, on the host's clock.
//!
//! A card tells only how long lies between two of its own marks, in a float of milliseconds. So one mark is made when the
//! card is opened, with the host's clock read around it, and all others are measured from it. A float has 24 bits: the
//! longer the distance, the less it tells. So every few seconds a newer mark takes over, measured from the one before.
//! Marks of one card, whoever made them, are therefore right to about a microsecond among themselves. Against the host
//! they are off by the few microseconds of the first mark, and by what two oscillators drift apart.

use std::sync::Mutex;

use super::api::{self, DriverApi, Handle};
use super::{CudaDriver, OpenCard};
use crate::error::DeviceError;
use crate::machine::lock;

/// How old a mark becomes: at four seconds a float still tells a quarter of a microsecond.
const OLDEST_NS: i64 = 4_000_000_000;

/// The clock of a card; stopped while the card is closed.
#[derive(Default)]
pub(super) struct CardClock(Mutex<Option<Marks>>);

struct Marks {
    /// What is measured from, and when it was reached.
    from: Handle,
    from_ns: u64,
    /// What takes over.
    next: Handle,
    is_next_queued: bool,
}

impl CardClock {
    /// For a card that closes, in its context. Also where it was never started.
    pub(super) fn stop(&self, api: &DriverApi) {
        let Some(marks) = lock(&self.0).take() else { return };
        for mark in [marks.from, marks.next] {
            // SAFETY: made by `start_clock`, and given back once.
            unsafe { (api.cuEventDestroy_v2)(mark) };
        }
    }
}

impl CudaDriver {
    /// Starts the clock of a card whose context is current and whose service stream is idle.
    pub(super) fn start_clock(&self, card: usize, open: &OpenCard) -> Result<(), DeviceError> {
        let during = "starting the clock of the card";
        let (mut from, mut next) = (0, 0);
        for mark in [&raw mut from, &raw mut next] {
            // SAFETY: one handle is written.
            self.check(card, during, unsafe { (self.api.cuEventCreate)(mark, 0) })?;
        }
        let mut around_ns = [0; 2];
        // Twice: the first record of a context takes longer than any other. The second one stands.
        for _ in 0..2 {
            let before_ns = self.host_ns();
            // SAFETY: the event is alive, and so is the stream.
            self.check(card, during, unsafe { (self.api.cuEventRecord)(from, open.service) })?;
            // SAFETY: as above.
            self.check(card, during, unsafe { (self.api.cuEventSynchronize)(from) })?;
            around_ns = [before_ns, self.host_ns()];
        }
        let from_ns = around_ns[0].midpoint(around_ns[1]);
        *lock(&self.seat(card)?.clock.0) = Some(Marks { from, from_ns, next, is_next_queued: false });
        Ok(())
    }

    /// When `mark`, a timer of an open card that was reached, was reached.
    pub(super) fn time_of(&self, card: usize, mark: Handle) -> Result<u64, DeviceError> {
        let during = "reading the time of an event";
        let open = self.enter(card, during)?;
        let mut clock = lock(&self.seat(card)?.clock.0);
        let Some(marks) = &mut *clock else {
            return Err(DeviceError::Failed { card, during, what: "the card's clock does not run".to_owned() });
        };
        let since_ns = self.between_ns(card, during, marks.from, mark)?;
        let reached_ns = marks.from_ns.saturating_add_signed(since_ns);
        if marks.is_next_queued {
            // SAFETY: the event is alive.
            let code = unsafe { (self.api.cuEventQuery)(marks.next) };
            if code != api::NOT_READY {
                self.check(card, during, code)?;
                let later_ns = self.between_ns(card, during, marks.from, marks.next)?;
                marks.from_ns = marks.from_ns.saturating_add_signed(later_ns);
                std::mem::swap(&mut marks.from, &mut marks.next);
                marks.is_next_queued = false;
            }
        } else if since_ns > OLDEST_NS {
            // SAFETY: both are alive. The stream is idle but for reservations, so that the mark is reached soon.
            self.check(card, during, unsafe { (self.api.cuEventRecord)(marks.next, open.service) })?;
            marks.is_next_queued = true;
        }
        Ok(reached_ns)
    }

    /// The host's clock.
    pub(super) fn host_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// From one mark to another, both reached; below zero where the other came first.
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
