//! The transfer stage: batches are copied from the data role's memory to the model role's.
//!
//! A thread takes slots of the data ring and fills slots of the model ring, in the same order. It queues the copies and waits
//! only for slots; a copy waits on the device until its batch is written and the target's last step is done. With a hand-over
//! this thread does not exist: the step leases the slots of the data ring.
//!
//! Every Nth copy may have checksums on both devices: `transfer_checks`.
//!
//! The time of each copy, by the devices' clocks, is reported once it is known. Over a bounce the legs of two batches overlap:
//! a batch occupies the link for its longer leg.

use std::sync::Arc;

use tandem_device::Transfer;
use tandem_device::transfer::CopyTimers;
use tandem_events::{Emitter, RunEvent};

use crate::error::FeedError;
use crate::feed::rings::{BatchFiller, BatchTaker};
use crate::transfer_checks::TransferChecks;
use crate::upload::stopwatch::Stopwatches;

/// Timed copies beside those whose targets are slots of the ring: those the step has queued ahead of its device.
const SPARE_WATCHES: u64 = 4;

/// The transfer thread: the copies, the ring they come from and the ring they go to.
pub(crate) struct TransferThread {
    pub(crate) transfer: Transfer,
    pub(crate) from: BatchTaker,
    pub(crate) to: BatchFiller,
    pub(crate) emitter: Emitter,
    pub(crate) checks: Option<Arc<TransferChecks>>,
}

impl TransferThread {
    /// Copies batches until the feed ends. When it returns, every copy has arrived.
    pub(crate) fn run(mut self) -> Result<(), FeedError> {
        let outcome = self.copy_all();
        outcome.and(self.transfer.drain().map_err(FeedError::from))
    }

    fn copy_all(&mut self) -> Result<(), FeedError> {
        let TransferThread { transfer, from, to, emitter, checks } = self;
        let slots = to.stats().slots as u64;
        let mut watches = Stopwatches::new(slots + SPARE_WATCHES, || transfer.timers())?;
        loop {
            // The target first: a batch that waits for a target stays in the data ring, where it counts as ready.
            let target = to.take()?;
            let Some(ready) = from.take() else { return Ok(()) };
            let target = target.claim(|freed| transfer.after_free(freed))?;
            let source = ready.lease(|written| transfer.after_written(written))?;
            let info = Arc::clone(source.payload());
            let bytes = info.layout.bytes;
            while let Some((batch, times)) = watches.take(CopyTimers::read)? {
                let (stage, ns, busy_ns) = ("transfer".to_owned(), times.longest_ns(), times.busy_ns());
                emitter.emit(RunEvent::Stage { stage, batch, ns, busy_ns, wait_ns: 0, spans: times.legs });
            }
            let timers = watches.start(info.sequence);
            let mut check = checks.as_ref().and_then(|checks| checks.start(info.sequence));
            let (sent, received) = (source.memory().part(0, bytes), target.memory().part(0, bytes));
            transfer.copy_timed(sent, received, timers, check.as_mut())?;
            if let (Some(checks), Some(check)) = (&checks, check) {
                checks.sent(info.sequence, target.memory(), check);
            }
            source.release(|sent| transfer.record_sent(sent))?;
            target.publish(info, |arrived| transfer.record_arrived(arrived))?;
        }
    }
}
