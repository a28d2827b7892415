//! Waiting for the work of a card with a deadline: for an allocation, and before memory is freed or the card is closed.
//!
//! A stream may wait for an event of another card that never comes, and a copy between two cards may never end. So nothing
//! here sleeps in the driver: all streams of the card are polled. If they are not idle in time, the card is abandoned, and
//! the end of the process frees everything.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use super::api::{self, Code, Handle};
use super::capture_lock::CAPTURE_LOCK;
use super::{CudaDriver, OpenCard};
use crate::error::DeviceError;
use crate::machine::lock;

/// The pause between two rounds of queries grows from the first to the second.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// The streams of a card.
#[derive(Default)]
pub(super) struct CardStreams(Mutex<Streams>);

#[derive(Default)]
struct Streams {
    live: Vec<Handle>,
    /// No longer in use, but with work in flight when they were given up.
    retired: Vec<Handle>,
}

impl CardStreams {
    pub(super) fn add(&self, stream: Handle) {
        lock(&self.0).live.push(stream);
    }
}

impl CudaDriver {
    /// Destroys a stream once its work is done: its context must be current.
    pub(super) fn retire_stream(&self, card: usize, stream: Handle) {
        let Some(cuda_card) = self.cuda_cards.get(card) else { return };
        let mut streams = lock(&cuda_card.streams.0);
        streams.live.retain(|live| *live != stream);
        // A destroyed stream still runs its work, and nothing could wait for it.
        if self.is_busy(stream) {
            streams.retired.push(stream);
            return;
        }
        // SAFETY: the stream came from `create_stream`, is idle, and is destroyed once.
        unsafe { (self.api.cuStreamDestroy_v2)(stream) };
    }

    /// Waits for all work of a card, if it is open. Waits for graph captures there first.
    pub(super) fn wait_for_all(&self, card: usize) {
        let Ok(key) = self.capture_key(card) else { return };
        if let Ok(open) = self.enter(card, "releasing memory") {
            let _no_captures = CAPTURE_LOCK.exclude_captures(key);
            self.becomes_idle(card, open);
        }
    }

    /// Polls the streams of a card whose context is current until the work that was queued before is done, and destroys those
    /// that were given up. `false` if that takes too long: the card is abandoned then.
    pub(super) fn becomes_idle(&self, card: usize, open: OpenCard) -> bool {
        let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
        let streams = &self.cuda_cards[card].streams.0;
        let mut waited_for: Vec<Handle> = lock(streams).live.clone();
        waited_for.push(open.service_stream);
        loop {
            let mut streams = lock(streams);
            streams.retired.retain(|stream| {
                let is_busy = self.is_busy(*stream);
                if !is_busy {
                    // SAFETY: given up by its owner, idle, and destroyed once.
                    unsafe { (self.api.cuStreamDestroy_v2)(*stream) };
                }
                is_busy
            });
            // A stream that was idle once has done what was queued before. One that was given up meanwhile is in the other list.
            let Streams { live, retired } = &*streams;
            waited_for.retain(|stream| {
                let is_alive = live.contains(stream) || *stream == open.service_stream;
                is_alive && self.is_busy(*stream)
            });
            if waited_for.is_empty() && retired.is_empty() {
                return true;
            }
            drop(streams);
            if began.elapsed() > self.teardown_deadline {
                self.mark_abandoned(card);
                return false;
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Waits for an allocation on the service stream of a card, and returns its result. Fails if it does not end in time: the
    /// card is abandoned then.
    pub(super) fn await_service(&self, card: usize, during: &'static str, open: OpenCard) -> Result<Code, DeviceError> {
        let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
        loop {
            // SAFETY: the stream lives until the card is closed.
            match unsafe { (self.api.cuStreamQuery)(open.service_stream) } {
                api::NOT_READY if began.elapsed() > self.teardown_deadline => {
                    self.mark_abandoned(card);
                    let seconds = self.teardown_deadline.as_secs();
                    return Err(DeviceError::TimedOut { card, during, seconds });
                }
                api::NOT_READY => thread::sleep(pause),
                code => return Ok(code),
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The loss of the card, if the driver says so: libraries on top of it have no error code of their own for that.
    pub(super) fn loss(&self, card: usize, during: &'static str) -> Option<DeviceError> {
        let driver_says = self
            .opened(card, during)
            .and_then(|open| self.await_service(card, during, open).and_then(|code| self.check(card, during, code)));
        driver_says.err().filter(|error| matches!(error, DeviceError::Lost { .. }))
    }

    /// Whether work of the stream is in flight. A stream that cannot be queried has none: its card is lost.
    fn is_busy(&self, stream: Handle) -> bool {
        // SAFETY: the stream is alive.
        unsafe { (self.api.cuStreamQuery)(stream) == api::NOT_READY }
    }
}
