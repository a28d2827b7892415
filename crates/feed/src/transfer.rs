//! Whole batches cross from the data role's memory to the model role's.
//!
//! In come slots of the data ring, out go slots of the model ring, in the same order. One thread queues the copies and
//! waits for nothing but slots: the copies themselves wait on the device, for the batch to be written and for the
//! target's last step. A hand-over has no such thread: the step leases the data ring's slots where they are.

use std::sync::Arc;

use tandem_device::Transfer;

use crate::data_side::{BatchFiller, BatchTaker};
use crate::error::FeedError;

/// Carries batches until the feed ends. When it returns, every copy has arrived.
pub(crate) fn carry(mut transfer: Transfer, from: &BatchTaker, to: &BatchFiller) -> Result<(), FeedError> {
    let outcome = carry_all(&mut transfer, from, to);
    outcome.and(transfer.drain().map_err(FeedError::from))
}

fn carry_all(transfer: &mut Transfer, from: &BatchTaker, to: &BatchFiller) -> Result<(), FeedError> {
    loop {
        // A place first: a batch that waits for one waits where it is counted as ready.
        let target = to.take()?;
        let Some(ready) = from.take() else { return Ok(()) };
        let target = target.claim(|freed| transfer.after_free(freed))?;
        let source = ready.lease(|written| transfer.after_written(written))?;
        let info = Arc::clone(source.payload());
        let bytes = info.layout.bytes;
        transfer.copy(source.memory().part(0, bytes), target.memory().part(0, bytes))?;
        source.release(|sent| transfer.record_sent(sent))?;
        target.publish(info, |arrived| transfer.record_arrived(arrived))?;
    }
}
