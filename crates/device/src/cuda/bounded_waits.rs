//! Waits of the host that end even if a card is lost.
//!
//! A stream that waits for an event of a lost card waits for ever, and with it every event behind it. Where several cards are
//! open, the host therefore polls events instead of sleeping in the driver. Once a card is lost, events of the others have a
//! few more seconds. Memory that a lost card may still be using is left to the end of the process.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::api::{self, Handle};
use super::{CudaCard, CudaDriver};
use crate::error::DeviceError;

/// Work that does not depend on the lost card ends within this time: it is queued two steps ahead at most.
pub(super) const GRACE: Duration = Duration::from_secs(5);
/// The pause between two queries grows from the first to the second: a short wait ends soon, a long one costs no core.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_micros(320);

impl CudaDriver {
    /// From now on nothing waits for the work of `card`.
    pub(super) fn mark_lost(&self, card: usize) {
        if let Some(cuda_card) = self.cuda_cards.get(card) {
            cuda_card.lost_at.get_or_init(Instant::now);
        }
    }

    /// The lost cards, and since when.
    fn lost_cards(&self) -> impl Iterator<Item = (usize, Instant)> {
        let lost_at = |(card, cuda_card): (usize, &CudaCard)| Some((card, *cuda_card.lost_at.get()?));
        self.cuda_cards.iter().enumerate().filter_map(lost_at)
    }

    /// Treats `card` as lost although no call has failed: its work does not end.
    pub(super) fn mark_abandoned(&self, card: usize) {
        self.has_abandoned_card.store(true, Ordering::Relaxed);
        self.mark_lost(card);
    }

    /// Whether memory and contexts are left to the end of the process: what may still use them cannot be waited for. A lost
    /// card that is the only one uses nothing any more.
    pub(super) fn leaves_all_to_the_system(&self) -> bool {
        let is_lost = |(card, _)| self.may_wait_for_others(card);
        self.has_abandoned_card.load(Ordering::Relaxed) || self.lost_cards().any(is_lost)
    }

    /// Whether a card other than `card` is open: work of one may wait for the other.
    pub(super) fn may_wait_for_others(&self, card: usize) -> bool {
        let is_open = |cuda_card: &CudaCard| cuda_card.open.read().unwrap_or_else(PoisonError::into_inner).is_some();
        self.cuda_cards.iter().enumerate().any(|(index, other)| index != card && is_open(other))
    }

    /// Waits for an event of a card whose context is current; `false` if it was not reached within `longest`.
    ///
    /// Fails with the loss of another card if the event is not reached soon after it.
    pub(super) fn poll(
        &self,
        card: usize,
        event: Handle,
        during: &'static str,
        longest: Option<Duration>,
    ) -> Result<bool, DeviceError> {
        let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            // SAFETY: the event is alive.
            match unsafe { (self.api.cuEventQuery)(event) } {
                api::NOT_READY => {}
                code => return self.check(card, during, code).map(|()| true),
            }
            let is_over = |lost: &(usize, Instant)| lost.0 == card || lost.1.elapsed() > self.grace;
            if let Some((lost, since)) = self.lost_cards().find(is_over) {
                let what = format!("GPU {card} waited for it, {:.1} s after the loss", since.elapsed().as_secs_f64());
                return Err(DeviceError::Lost { card: lost, during, what });
            }
            if longest.is_some_and(|longest| began.elapsed() > longest) {
                return Ok(false);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}
