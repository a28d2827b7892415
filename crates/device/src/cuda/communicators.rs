//! Communicators of cards, with NCCL: joining, collectives, and an end that never hangs.
//!
//! NCCL allows one thread at a time on a communicator, so each has a lock. A thread that holds it polls; who wants to abort
//! says so first, and the poll ends. A communicator ends in order if its last collective has run and NCCL agrees; otherwise
//! it is aborted. On a lost card NCCL is not called any more, and the end of the process frees everything.
//!
//! Collectives are never part of a captured graph: NCCL destroys and aborts a communicator only after every graph with one of
//! its collectives is destroyed, and waits for that without a deadline (`commDestroySync` in its `init.cc`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::Duration;

use super::CudaDriver;
use super::api::{Code, Handle, NcclApi};
use super::capture_lock::CAPTURE_LOCK;
use super::contexts::ContextKind;
use super::nccl::{CUDA_ERROR, FLOAT32, IN_PROGRESS, Nccl, SUM, UINT8, Unsettled};
use crate::driver::{Address, COMMUNICATOR_ID_BYTES, Driver as _, Joined, Membership, MembershipId, StreamId};
use crate::error::DeviceError;
use crate::machine::lock;

const JOINING: &str = "joining a communicator";
const QUEUEING: &str = "queueing a collective";
const LEAVING: &str = "leaving a communicator";

/// The communicators of a card, by their handles.
#[derive(Default)]
pub(super) struct CardCommunicators(Mutex<HashMap<MembershipId, Arc<Rank>>>);

/// This process's rank in one communicator.
struct Rank {
    nccl: Arc<Nccl>,
    /// NCCL's handle; 0 if it could not be created.
    handle: Handle,
    /// Recorded behind every collective.
    last_collective: Handle,
    /// The rank and its card, for messages.
    who: String,
    deadline: Duration,
    state: Mutex<RankState>,
    /// Whether a thread waits to abort: polls end.
    is_aborted: AtomicBool,
}

enum RankState {
    Usable,
    /// A call failed, with this status. Only aborting is left.
    Failed(String),
    /// The handle is not valid any more.
    Ended,
}

impl Rank {
    fn error(&self, call: &'static str, status: String, detail: String) -> DeviceError {
        DeviceError::Communicator { who: self.who.clone(), call, status, detail }
    }

    /// Refuses a call on a communicator that failed or ended before.
    fn check_usable(&self, state: &RankState, call: &'static str) -> Result<(), DeviceError> {
        let status = match state {
            RankState::Usable => return Ok(()),
            RankState::Failed(status) => format!("an earlier call failed: {status}"),
            RankState::Ended => self.status(Unsettled::Aborted),
        };
        Err(self.error(call, status, String::new()))
    }

    fn status(&self, why: Unsettled) -> String {
        match why {
            Unsettled::Failed(code) => self.nccl.describe(code),
            Unsettled::TimedOut(deadline) => format!("not all ranks took part within {deadline:?}"),
            Unsettled::Aborted => "this rank has aborted the communicator".to_owned(),
        }
    }
}

impl CudaDriver {
    pub(super) fn make_communicator_id(&self) -> Result<[u8; COMMUNICATOR_ID_BYTES], DeviceError> {
        self.nccl.check_environment()?;
        let nccl = self.nccl.get()?;
        nccl.unique_id().map_err(|code| DeviceError::Communicator {
            who: "the rank that makes the id".to_owned(),
            call: "ncclGetUniqueId",
            status: nccl.describe(code),
            detail: nccl.last_error(0),
        })
    }

    pub(super) fn join_ranks(&self, card: usize, membership: &Membership) -> Result<Joined, DeviceError> {
        self.nccl.check_environment()?;
        if self.cuda_card(card)?.context != ContextKind::Primary {
            let what = "NCCL uses the primary context of a card, and this one has another".to_owned();
            return Err(DeviceError::Failed { card, during: JOINING, what });
        }
        let nccl = self.nccl.get()?;
        let last_collective = self.create_event(card, false)? as Handle;
        // NCCL allocates memory and waits for its streams.
        let _no_captures = CAPTURE_LOCK.exclude_captures(self.capture_key(card)?);
        let Membership { id, rank, size, deadline } = *membership;
        let (handle, code) = nccl.init(id, rank, size);
        let rank = Rank {
            nccl,
            handle,
            last_collective,
            who: format!("rank {rank} of {size} on GPU {card}"),
            deadline,
            state: Mutex::new(RankState::Usable),
            is_aborted: AtomicBool::new(false),
        };
        if let Err(why) = rank.nccl.settle(handle, code, deadline, &rank.is_aborted) {
            let error = self.collective_failed(card, JOINING, &rank, "ncclCommInitRankConfig", why);
            self.abort_now(card, &rank);
            self.destroy_event(card, last_collective as u64);
            return Err(error);
        }
        let description = format!("{}, {}", rank.nccl.name(), self.nccl.algorithm());
        lock(&self.cuda_card(card)?.communicators.0).insert(handle as MembershipId, Arc::new(rank));
        Ok(Joined { id: handle as MembershipId, description })
    }

    pub(super) fn queue_all_reduce(
        &self,
        at: Address,
        count: u64,
        membership: MembershipId,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        self.queue_collective(at.card, membership, stream, "ncclAllReduce", |api, communicator| {
            let (count, stream) = (count as usize, stream as Handle);
            // SAFETY: the communicator and the stream are of this card and alive; the range is in one of its reservations,
            // whose owner keeps it until the collective has run.
            unsafe { (api.ncclAllReduce)(at.raw, at.raw, count, FLOAT32, SUM, communicator, stream) }
        })
    }

    pub(super) fn queue_broadcast(
        &self,
        at: Address,
        bytes: u64,
        root: u32,
        membership: MembershipId,
        stream: StreamId,
    ) -> Result<(), DeviceError> {
        self.queue_collective(at.card, membership, stream, "ncclBroadcast", |api, communicator| {
            let (bytes, root, stream) = (bytes as usize, root.cast_signed(), stream as Handle);
            // SAFETY: as for the sum.
            unsafe { (api.ncclBroadcast)(at.raw, at.raw, bytes, UINT8, root, communicator, stream) }
        })
    }

    /// Calls `queue`, and returns once its work is on the stream. The first collective also connects the ranks, and so waits
    /// for the others.
    fn queue_collective(
        &self,
        card: usize,
        membership: MembershipId,
        stream: StreamId,
        call: &'static str,
        queue: impl FnOnce(&NcclApi, Handle) -> Code,
    ) -> Result<(), DeviceError> {
        let rank = self.rank(card, membership)?;
        self.enter(card, QUEUEING)?;
        let mut state = lock(&rank.state);
        rank.check_usable(&state, call)?;
        let code = queue(&rank.nccl.api, rank.handle);
        if let Err(why) = rank.nccl.settle(rank.handle, code, rank.deadline, &rank.is_aborted) {
            *state = RankState::Failed(rank.status(why));
            return Err(self.collective_failed(card, QUEUEING, &rank, call, why));
        }
        self.record(card, stream, rank.last_collective as u64)
    }

    pub(super) fn check_ranks(&self, card: usize, membership: MembershipId) -> Result<(), DeviceError> {
        let (call, during) = ("ncclCommGetAsyncError", "checking a communicator");
        let rank = self.rank(card, membership)?;
        let mut state = match rank.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // The thread that holds it sees the error itself.
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        rank.check_usable(&state, call)?;
        self.enter(card, during)?;
        match rank.nccl.state(rank.handle) {
            0 | IN_PROGRESS => Ok(()),
            code => {
                let why = Unsettled::Failed(code);
                *state = RankState::Failed(rank.status(why));
                Err(self.collective_failed(card, during, &rank, call, why))
            }
        }
    }

    pub(super) fn abort_ranks(&self, card: usize, membership: MembershipId) {
        let Ok(rank) = self.rank(card, membership) else { return };
        rank.is_aborted.store(true, Ordering::Relaxed);
        self.abort_now(card, &rank);
    }

    pub(super) fn leave_ranks(&self, card: usize, membership: MembershipId) {
        let Ok(rank) = self.rank(card, membership) else { return };
        lock(&self.cuda_cards[card].communicators.0).remove(&membership);
        if !self.destroy_in_order(card, &rank) {
            self.abort_now(card, &rank);
        }
        self.destroy_event(card, rank.last_collective as u64);
    }

    /// Destroys a communicator that no call failed on; `false` if it is still alive, or has ended before.
    fn destroy_in_order(&self, card: usize, rank: &Rank) -> bool {
        let mut state = lock(&rank.state);
        if !matches!(*state, RankState::Usable) || self.enter(card, LEAVING).is_err() {
            return false;
        }
        let deadline = self.teardown_deadline;
        // NCCL would wait for a collective on the card without a deadline.
        let is_idle = matches!(self.poll(card, rank.last_collective, LEAVING, Some(deadline)), Ok(true));
        let Ok(key) = self.capture_key(card) else { return false };
        let _no_captures = CAPTURE_LOCK.exclude_captures(key);
        if !is_idle || !rank.nccl.destroy(rank.handle, deadline, &rank.is_aborted) {
            return false;
        }
        *state = RankState::Ended;
        true
    }

    /// Aborts a communicator that is still alive.
    fn abort_now(&self, card: usize, rank: &Rank) {
        let mut state = lock(&rank.state);
        let has_ended = matches!(std::mem::replace(&mut *state, RankState::Ended), RankState::Ended);
        let is_lost = self.cuda_cards[card].lost_at.get().is_some();
        if has_ended || rank.handle == 0 || is_lost || self.enter(card, LEAVING).is_err() {
            return;
        }
        let Ok(key) = self.capture_key(card) else { return };
        let _no_captures = CAPTURE_LOCK.exclude_captures(key);
        rank.nccl.abort(rank.handle);
    }

    fn rank(&self, card: usize, membership: MembershipId) -> Result<Arc<Rank>, DeviceError> {
        let ranks = lock(&self.cuda_card(card)?.communicators.0);
        ranks.get(&membership).map(Arc::clone).ok_or_else(|| {
            let what = "there is no such communicator".to_owned();
            DeviceError::Failed { card, during: QUEUEING, what }
        })
    }

    /// The error of a call. If CUDA failed below NCCL, the driver is asked whether the card is lost.
    fn collective_failed(
        &self,
        card: usize,
        during: &'static str,
        rank: &Rank,
        call: &'static str,
        why: Unsettled,
    ) -> DeviceError {
        let lost = if why == Unsettled::Failed(CUDA_ERROR) { self.loss(card, during) } else { None };
        lost.unwrap_or_else(|| {
            let detail = match why {
                Unsettled::Failed(_) => rank.nccl.last_error(rank.handle),
                Unsettled::TimedOut(_) | Unsettled::Aborted => String::new(),
            };
            rank.error(call, rank.status(why), detail)
        })
    }
}

#[cfg(test)]
mod tests;
