//! Transfers that are checked while they run (`--verify-transfers N`): every Nth batch has a checksum on both devices.
//!
//! The transfer thread queues the checksums with the copy, and `lease` compares them once the batch has arrived: before a step
//! can train on it. From another card the host waits for each batch to arrive anyway, so that the comparison costs no further
//! wait. A batch whose checksums differ is never leased.
//!
//! Batches are leased in the order in which they are sent. So at most as many checks are in flight as there are checked batches
//! among the slots of the model side, and all of them are taken when the feed starts.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tandem_device::transfer::{Checksums, CopyCheck};
use tandem_device::{Block, DeviceError, Isolation, Route};

use crate::batch::feed_plan::{CHECKSUMS, FeedPlan};
use crate::error::FeedError;

/// The checks of a feed. Shared by the thread that sends batches and the consumer that leases them.
pub(crate) struct TransferChecks {
    every: u64,
    route: Route,
    /// The cards of the data role and of the model role.
    cards: [usize; 2],
    /// Where the slots of the model side begin in its arena, in their order.
    slot_offsets: Vec<u64>,
    state: Mutex<CheckState>,
}

struct CheckState {
    free: Vec<CopyCheck>,
    /// Oldest first.
    in_flight: VecDeque<SentBatch>,
    verified: u64,
}

/// A batch that was sent with a check.
struct SentBatch {
    sequence: u64,
    slot: usize,
    check: CopyCheck,
}

impl TransferChecks {
    /// Takes the memory of all checks; none if the plan verifies nothing. `slots` are those of the model side.
    pub(crate) fn create<'a>(
        roles: &Isolation,
        plan: &FeedPlan,
        slots: impl Iterator<Item = &'a Block>,
    ) -> Result<Option<TransferChecks>, DeviceError> {
        let Some(every) = plan.verify_every.filter(|_| plan.num_checks() > 0) else { return Ok(None) };
        let check = |_| CopyCheck::take(CHECKSUMS, &roles.data.arena, &roles.model.arena);
        let free = (0..plan.num_checks()).map(check).collect::<Result<Vec<_>, _>>()?;
        let in_flight = VecDeque::with_capacity(free.len());
        Ok(Some(TransferChecks {
            every,
            route: plan.route,
            cards: [roles.data.device.index(), roles.model.device.index()],
            slot_offsets: slots.map(Block::offset).collect(),
            state: Mutex::new(CheckState { free, in_flight, verified: 0 }),
        }))
    }

    /// The check for a batch that is about to be sent; none if its turn has not come.
    pub(crate) fn start(&self, sequence: u64) -> Option<CopyCheck> {
        if !self.is_checked(sequence) {
            return None;
        }
        let check = self.lock().free.pop();
        assert!(check.is_some(), "more checked batches are in flight than the model side has slots for");
        check
    }

    /// A batch is queued with its check; before it is published.
    pub(crate) fn sent(&self, sequence: u64, target: &Block, check: CopyCheck) {
        let slot = self.slot_offsets.iter().position(|offset| *offset == target.offset()).unwrap_or(0);
        self.lock().in_flight.push_back(SentBatch { sequence, slot, check });
    }

    /// Whether this batch is sent with a check.
    pub(crate) fn is_checked(&self, sequence: u64) -> bool {
        sequence.is_multiple_of(self.every)
    }

    /// Compares both sides of a checked batch that has arrived.
    pub(crate) fn compare(&self, sequence: u64) -> Result<(), FeedError> {
        let mut state = self.lock();
        let Some(SentBatch { slot, check, .. }) = state.take(sequence) else {
            unreachable!("a check is stored before its batch is published");
        };
        let Checksums { sent, arrived } = check.read()?;
        state.free.push(check);
        if sent == arrived {
            state.verified += 1;
            return Ok(());
        }
        let [from, to] = self.cards;
        Err(FeedError::CorruptBatch { route: self.route, from, to, batch: sequence, slot, every: self.every })
    }

    /// Batches that arrived as they were sent.
    pub(crate) fn verified(&self) -> u64 {
        self.lock().verified
    }

    fn lock(&self) -> MutexGuard<'_, CheckState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CheckState {
    /// The check of this batch. Those before it were never leased.
    fn take(&mut self, sequence: u64) -> Option<SentBatch> {
        while let Some(sent) = self.in_flight.pop_front() {
            if sent.sequence == sequence {
                return Some(sent);
            }
            self.free.push(sent.check);
        }
        None
    }
}
