//! The feed: recordings in, batches on the model device out.
//!
//! ```text
//! row queue ─> load ══ pinned ring ══> upload ─> featurize ─> collate ══ data ring ══> transfer ══ model ring ══> lease
//!          decode threads              └──────── data thread ───────┘              transfer thread              the step
//! ```
//!
//! Double lines are rings. All their memory is taken when the feed starts. A full ring blocks its filler, and the wait is
//! measured. With a hand-over the step leases from the data ring. The feed is endless: epoch follows epoch until it is
//! dropped, which joins every thread and frees all memory.

pub(crate) mod spec;
pub(crate) mod rings;
mod start;
mod data_thread;
pub(crate) mod messages;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tandem_corpus::Cursor;
use tandem_device::transfer::Measured;
use tandem_device::{Block, Device, Event, Stream};
use tandem_pipeline::{Crew, ReadySlot, RingHandle};

use self::messages::Messages;
use self::rings::BatchTaker;
use self::spec::{FeedState, FeedStats, Warm};
use self::start::Shutdown;
use crate::batch::feed_plan::FeedPlan;
use crate::batch::info::BatchInfo;
use crate::error::FeedError;
use crate::lease::DeviceBatch;
use crate::load::context::LoadContext;
use crate::load::decode_threads::DecodeThreads;
use crate::load::read_ahead::ReadAheadWindow;
use crate::shared_lease::{ReturnStream, SharedBatch};
use crate::transfer_checks::TransferChecks;
use crate::waits;

/// A running feed. Dropping it stops and joins its threads.
pub struct Feed {
    // Dropped before the crew: threads that wait for this consumer end.
    taker: BatchTaker,
    rings: Vec<RingHandle>,
    crew: Option<Crew<()>>,
    shutdown: Shutdown,
    data_stream: Arc<Stream>,
    threads: Arc<DecodeThreads>,
    context: Arc<LoadContext>,
    read_ahead: Option<Arc<ReadAheadWindow>>,
    stall_ns: Arc<AtomicU64>,
    leased: u64,
    next: Cursor,
    /// Replacements before this batch are forgotten. Behind `next`, because [`Feed::rewind`] may go back.
    forgotten_before: Cursor,
    messages: Messages,
    list_error_reported: AtomicBool,
    transfer: Option<Measured>,
    /// Of the transfer, if it is verified.
    checks: Option<Arc<TransferChecks>>,
    /// Whether batches come from another card than the model's.
    crosses_cards: bool,
    /// The device of the consumer.
    consumer: Device,
    /// Where shared batches are released; created with the first.
    returns: Option<Arc<ReturnStream>>,
    /// A batch that was taken from its ring and has not arrived yet.
    late: Option<ReadySlot<Block, Arc<BatchInfo>, Event>>,
    warm_slots: usize,
}

impl Feed {
    /// Waits until every slot of the data side has a batch, for `longest` at most. Returns how many have one.
    ///
    /// Fails with the error that ended the feed, if it has ended.
    pub fn wait_warm(&mut self, longest: Duration) -> Result<Warm, FeedError> {
        self.wait_for_rings(1, longest)
    }

    /// [`wait_warm`](Feed::wait_warm), and until the pinned ring is full as well: then all threads of the feed are idle.
    pub fn wait_full(&mut self, longest: Duration) -> Result<Warm, FeedError> {
        self.wait_for_rings(0, longest)
    }

    fn wait_for_rings(&mut self, first: usize, longest: Duration) -> Result<Warm, FeedError> {
        let began = Instant::now();
        let deadline = began + longest;
        let mut ready = 0;
        // From the consumer's end: the last ring fills first.
        for ring in self.rings.iter().skip(first).rev() {
            let left = deadline.saturating_duration_since(Instant::now());
            ready += ring.wait_ready(usize::MAX, left);
        }
        if self.threads.has_ended() {
            return Err(self.join_and_take_error());
        }
        // The batches are queued; this waits until they are made.
        self.data_stream.drain()?;
        Ok(Warm { ready: ready.min(self.warm_slots), of: self.warm_slots, waited: began.elapsed() })
    }

    /// The next batch, for work on `stream`. The stream waits for the batch; the host waits only if none is queued.
    ///
    /// From another card, the host waits until the batch has arrived: a stream that waits for a card that was lost would wait
    /// for ever, and the model on it could not be saved.
    ///
    /// A batch that is verified has then arrived as it was sent: the host waits for it, also on one device.
    ///
    /// Fails with the error that ended the feed, and with [`FeedError::CorruptBatch`].
    pub fn lease<'s>(&mut self, stream: &'s Stream) -> Result<DeviceBatch<'s>, FeedError> {
        let (ready, mut wait_ns) = match self.taker.try_take() {
            Ok(Some(ready)) => (Some(ready), 0),
            _ => {
                let waiting = Instant::now();
                let ready = self.taker.take();
                (ready, waiting.elapsed().as_nanos() as u64)
            }
        };
        let Some(ready) = ready else { return Err(self.join_and_take_error()) };
        let sequence = ready.payload().sequence;
        let checks = self.checks.as_ref().filter(|checks| checks.is_checked(sequence));
        let slot = ready.lease(|arrived| {
            if (self.crosses_cards || checks.is_some()) && !arrived.reached()? {
                let waiting = Instant::now();
                arrived.synchronize(waits::ARRIVED)?;
                wait_ns += waiting.elapsed().as_nanos() as u64;
            }
            checks.map_or(Ok(()), |checks| checks.compare(sequence))?;
            stream.wait(arrived, waits::ARRIVED).map_err(FeedError::from)
        })?;
        self.count_lease(slot.payload().group, wait_ns);
        Ok(DeviceBatch::new(slot, stream, wait_ns))
    }

    /// The next batch, for a program that reads it on streams of its own: see [`SharedBatch`]. Waits on the host for `longest`
    /// at most; `None` if no batch is queued by then.
    ///
    /// Its work is queued when this returns. Readers wait for it on their streams, or on the host by
    /// [`SharedBatch::synchronize`].
    ///
    /// Fails with the error that ended the feed, and with [`FeedError::CorruptBatch`].
    pub fn lease_shared(&mut self, longest: Duration) -> Result<Option<SharedBatch>, FeedError> {
        if let Some(returns) = &self.returns {
            returns.release_set_aside()?;
        }
        let (ready, mut wait_ns) = match self.late.take().map_or_else(|| self.taker.try_take(), |late| Ok(Some(late))) {
            Ok(None) => {
                let waiting = Instant::now();
                self.taker.wait_ready(1, longest);
                (self.taker.try_take(), waiting.elapsed().as_nanos() as u64)
            }
            taken => (taken, 0),
        };
        let ready = match ready {
            Ok(Some(ready)) => ready,
            Ok(None) => {
                self.stall_ns.fetch_add(wait_ns, Ordering::Relaxed);
                return Ok(None);
            }
            Err(_) => return Err(self.join_and_take_error()),
        };
        let sequence = ready.payload().sequence;
        let checks = self.checks.as_ref().filter(|checks| checks.is_checked(sequence));
        if self.crosses_cards || checks.is_some() {
            // As in `lease`: a reader's stream must not wait for a card that may be lost.
            let waiting = Instant::now();
            let arrived = ready.written();
            let has_arrived = arrived.reached()? || arrived.synchronize_named_within(waits::ARRIVED, longest)?;
            wait_ns += waiting.elapsed().as_nanos() as u64;
            if !has_arrived {
                self.late = Some(ready);
                self.stall_ns.fetch_add(wait_ns, Ordering::Relaxed);
                return Ok(None);
            }
        }
        let slot = ready.lease(|_| checks.map_or(Ok(()), |checks| checks.compare(sequence)))?;
        let returns = match &self.returns {
            Some(returns) => Arc::clone(returns),
            None => Arc::clone(self.returns.insert(Arc::new(ReturnStream::create(&self.consumer)?))),
        };
        self.count_lease(slot.payload().group, wait_ns);
        Ok(Some(SharedBatch::new(slot, returns, wait_ns)))
    }

    fn count_lease(&mut self, group: Cursor, wait_ns: u64) {
        self.stall_ns.fetch_add(wait_ns, Ordering::Relaxed);
        self.leased += 1;
        if self.leased.is_multiple_of(64) {
            self.context.made().drop_before(self.forgotten_before);
            self.forgotten_before = self.next;
        }
        self.next = self.context.input.next_group(group);
    }

    /// Fault injection: the data role's card faults.
    pub fn trap_data_card(&self) -> Result<(), FeedError> {
        Ok(self.data_stream.trap()?)
    }

    /// Takes back the batches since the group of `info`, which were leased and not trained on: a state made now serves them
    /// again. At most the last 64.
    pub fn rewind(&mut self, info: &BatchInfo) {
        self.next = info.group;
    }

    fn join_and_take_error(&mut self) -> FeedError {
        let joined = self.crew.take().map(|crew| {
            crew.stop();
            crew.join()
        });
        match (self.shutdown.take_error(), joined) {
            (Some(error), _) => error,
            (None, Some(Err(panic))) => FeedError::Worker(panic),
            (None, _) => FeedError::Ended,
        }
    }

    /// The next batch that [`lease`](Feed::lease) gives; with several ranks, the first of their next group.
    pub fn next(&self) -> Cursor {
        self.next
    }

    /// The state for a checkpoint made now.
    pub fn state(&self) -> FeedState {
        let mut replacements = self.context.resumed.clone();
        let mut made = self.context.made();
        made.drop_before(self.next);
        made.iter().for_each(|replacement| replacements.insert(replacement));
        replacements.drop_before(self.next);
        FeedState { next: self.next, replacements }
    }

    /// Messages for users since the last call: changes of self-tuning, errors of the cache or of the list of bad samples.
    pub fn take_messages(&self) -> Vec<String> {
        let mut lines = self.messages.take();
        let error = self.context.bad.write_error();
        let error = error.filter(|_| !self.list_error_reported.swap(true, Ordering::Relaxed));
        lines.extend(error.map(|error| format!("the list of bad samples is incomplete ({error})")));
        lines
    }

    /// Recordings of this run that could not be used so far.
    pub fn num_bad(&self) -> usize {
        self.context.bad.total()
    }

    /// The same as `id: reason`, in the order in which they were found.
    pub fn bad_samples(&self) -> Vec<String> {
        self.context.bad.known()
    }

    /// What the verified transfer measured; none for a hand-over.
    pub fn transfer(&self) -> Option<Measured> {
        self.transfer
    }

    /// Batches that were verified and had arrived as they were sent; none if no batch is verified.
    pub fn verified(&self) -> Option<u64> {
        self.checks.as_ref().map(|checks| checks.verified())
    }

    /// Bytes of decoded audio in the memory cache; 0 for a disk cache.
    pub fn cached_bytes(&self) -> u64 {
        self.context.cache.memory_bytes()
    }

    /// Bytes of recordings that were fetched from object stores and are not decoded yet, those on their way included.
    pub fn read_ahead_bytes(&self) -> u64 {
        self.read_ahead.as_ref().map_or(0, |window| window.stats().bytes)
    }

    /// Batches of an epoch.
    pub fn batches_per_epoch(&self) -> u64 {
        self.context.input.order.num_batches()
    }

    /// Its plan.
    pub fn plan(&self) -> &FeedPlan {
        &self.context.input.plan
    }

    /// Its counters.
    pub fn stats(&self) -> FeedStats {
        FeedStats {
            rings: self.rings.iter().map(RingHandle::stats).collect(),
            stall_ns: self.stall_ns.load(Ordering::Relaxed),
            leased: self.leased,
            threads: self.threads.active(),
            num_bad: self.context.bad.total(),
            cache: self.context.cache.stats(),
            read_ahead: self.read_ahead.as_ref().map(|window| window.stats()).unwrap_or_default(),
        }
    }

    /// Stops and joins every thread. Fails with the error that ended the feed before, if any.
    ///
    /// Frees all memory. The feed's streams are drained by then; a caller with work queued on leased batches drains its own
    /// stream first.
    pub fn stop(mut self) -> Result<(), FeedError> {
        match self.join_and_take_error() {
            FeedError::Ended => Ok(()),
            error => Err(error),
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        // Dropping a crew stops and joins it. An error has no receiver here.
        self.crew.take();
    }
}
