//! Whole batches cross from the data role's memory to the model role's.
//!
//! In come slots of the data ring, out go slots of the model ring, in the same order. One thread queues the copies and
//! waits for nothing but slots: the copies themselves wait on the device, for the batch to be written and for the
//! target's last step. A hand-over has no such thread: the step leases the data ring's slots where they are.
//!
//! What each copy took by the devices' clocks is told once it is known. Over a bounce the legs of two batches overlap: a
//! batch takes the way for its longer leg.

use std::sync::Arc;

use tandem_device::Transfer;
use tandem_device::transfer::CopyTimers;
use tandem_events::{Emitter, RunEvent};

use crate::error::FeedError;
use crate::feed::data_thread::{BatchFiller, BatchTaker};
use crate::upload::stopwatch::Stopwatches;

/// Copies that are under way beside those whose targets are slots of the ring: those the step has ahead of its device.
const SPARE_WATCHES: u64 = 4;

/// Carries batches until the feed ends. When it returns, every copy has arrived.
pub(crate) fn carry(
    mut transfer: Transfer,
    from: &BatchTaker,
    to: &BatchFiller,
    emitter: &Emitter,
) -> Result<(), FeedError> {
    let outcome = carry_all(&mut transfer, from, to, emitter);
    outcome.and(transfer.drain().map_err(FeedError::from))
}

fn carry_all(transfer: &mut Transfer, from: &BatchTaker, to: &BatchFiller, emitter: &Emitter) -> Result<(), FeedError> {
    let slots = to.stats().slots as u64;
    let mut watches = Stopwatches::new(slots + SPARE_WATCHES, || transfer.timers())?;
    loop {
        // A place first: a batch that waits for one waits where it is counted as ready.
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
        transfer.copy_timed(source.memory().part(0, bytes), target.memory().part(0, bytes), timers)?;
        source.release(|sent| transfer.record_sent(sent))?;
        target.publish(info, |arrived| transfer.record_arrived(arrived))?;
    }
}
