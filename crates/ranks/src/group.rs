//! A rank's membership in its group, and the calls that it can make.

use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tandem_pipeline::Crew;

use crate::admission::{Admitted, admit};
use crate::collective::{Collective, CollectiveKind};
use crate::connect::connect;
use crate::handshake::GroupIdentity;
use crate::link::RankLink;
use crate::shared::Shared;
use crate::{RankEnvironment, RankError, World, control, facts};

/// How long a rank that leaves waits until the others have read its goodbye.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long ranks wait for each other.
#[derive(Debug)]
pub struct JoinOptions {
    /// For all ranks to be there.
    pub join_timeout: Duration,
    /// In one collective, for ranks that are alive.
    pub collective_timeout: Duration,
    /// For a sign of life.
    pub heartbeat_timeout: Duration,
    /// A socket for rank 0 that is bound already, by the supervisor that chose the port.
    pub listener: Option<TcpListener>,
}

impl Default for JoinOptions {
    fn default() -> JoinOptions {
        JoinOptions {
            join_timeout: Duration::from_secs(300),
            collective_timeout: Duration::from_secs(600),
            heartbeat_timeout: Duration::from_secs(30),
            listener: None,
        }
    }
}

/// Holding one of these means that this process is a rank of a group whose ranks were all there at the start.
///
/// Every rank makes the same calls in the same order. When a rank is lost, hangs or aborts, the calls of all others fail,
/// also those that are blocked, and every later call fails at once with the same error. Dropping the group leaves it; while
/// the thread panics, it ends the group for everyone.
pub struct Group {
    shared: Arc<Shared>,
    collective_timeout: Mutex<Duration>,
    num_rejected: u64,
    /// One collective at a time, and memory for a chunk of an all-reduce.
    chunk: Mutex<Vec<f32>>,
    /// One control thread for each link.
    controls: Crew,
}

impl Group {
    /// Joins the group of `environment`, and returns when all ranks are there. Rank 0 listens; the others connect to it, and
    /// try again while it is not there yet. A world of one rank opens no socket.
    ///
    /// `version` is that of the program, and must be the same on every rank. Fails when ranks are missing after the join
    /// timeout, and when rank 0 refuses this process. Connections that do not belong to the run are dropped.
    pub fn join(environment: &RankEnvironment, version: &str, options: JoinOptions) -> Result<Group, RankError> {
        environment.check()?;
        let world = environment.world;
        let identity = GroupIdentity::new(environment, version);
        let JoinOptions { join_timeout, collective_timeout, heartbeat_timeout, listener } = options;
        let Admitted { links, num_rejected } = match world {
            World { size: 1, .. } => Admitted { links: Vec::new(), num_rejected: 0 },
            World { rank: 0, .. } => admit(environment, identity, join_timeout, listener)?,
            _ => Admitted { links: vec![connect(environment, &identity, join_timeout)?], num_rejected: 0 },
        };
        let shared = Arc::new(Shared::new(world, links, heartbeat_timeout));
        let controls = start_controls(&shared)?;
        let collective_timeout = Mutex::new(collective_timeout);
        Ok(Group { shared, collective_timeout, num_rejected, chunk: Mutex::default(), controls })
    }

    /// How long ranks that are alive are waited for in later collectives. The same on every rank, at the same point: a long
    /// preparation is waited for longer than a step.
    pub fn set_collective_timeout(&self, timeout: Duration) {
        *self.collective_timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    /// How long ranks that are alive are waited for in a collective.
    pub fn collective_timeout(&self) -> Duration {
        *self.collective_timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This rank's place.
    pub fn world(&self) -> World {
        self.shared.world
    }

    /// On rank 0, the connections that were dropped while the ranks joined, because they did not belong to the run.
    pub fn num_rejected(&self) -> u64 {
        self.num_rejected
    }

    /// Everybody's bytes, in rank order, on every rank.
    ///
    /// `what` names the collective in errors, and is compared: a rank in another collective is
    /// [`RankError::Protocol`], which names both. Each rank may give up to [`MAX_PAYLOAD_BYTES`](crate::MAX_PAYLOAD_BYTES).
    pub fn all_gather(&self, what: &'static str, mine: &[u8]) -> Result<Vec<Vec<u8>>, RankError> {
        let num_parts = self.world().size as usize;
        self.exchange(CollectiveKind::AllGather, what, mine, num_parts, |parts| parts)
    }

    /// The bytes of rank 0, on every rank. Those of other ranks are ignored.
    pub fn broadcast(&self, what: &'static str, bytes: Vec<u8>) -> Result<Vec<u8>, RankError> {
        let mine = if self.world().rank == 0 { &bytes[..] } else { &[] };
        let results =
            self.exchange(CollectiveKind::Broadcast, what, mine, 1, |parts| parts.into_iter().take(1).collect())?;
        Ok(results.into_iter().next().unwrap_or_default())
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self, what: &'static str) -> Result<(), RankError> {
        // The result is empty, and still one that every rank waits for.
        self.exchange(CollectiveKind::Barrier, what, &[], 1, |_| vec![Vec::new()]).map(|_| ())
    }

    /// Replaces `values` on every rank by the sum over ranks, added in rank order: ((0 + 1) + 2) + …. So the bits depend on
    /// neither the order of arrival nor the machine. All ranks have the same number of values; otherwise it is
    /// [`RankError::Protocol`].
    ///
    /// After an error, `values` are partly sums and of no use.
    pub fn all_reduce(&self, what: &'static str, values: &mut [f32]) -> Result<(), RankError> {
        // A chunk has no meaning between calls: it is valid even if a thread panicked.
        let mut chunk = self.chunk.lock().unwrap_or_else(PoisonError::into_inner);
        Collective::new(&self.shared, CollectiveKind::AllReduce, what, self.collective_timeout())
            .sum(values, &mut chunk)
    }

    /// Compares named facts with those of rank 0. The first difference is [`RankError::Different`], the same on every rank.
    /// It does not end the group.
    pub fn agree(&self, what: &'static str, facts: &[(String, String)]) -> Result<(), RankError> {
        let parts = self.all_gather(what, &facts::encode(facts))?;
        facts::compare(what, &parts)
    }

    /// Ends the group for everyone. Calls of other ranks, running and later ones, fail with [`RankError::Aborted`], which has
    /// this rank and `reason` (its first KiB). If the group has ended already, this does nothing.
    pub fn abort(&self, reason: &str) {
        let reason = crate::wire::clipped(reason).to_owned();
        self.shared.fail(RankError::Aborted { rank: self.world().rank, reason });
    }

    /// The error that has ended the group. That ranks have left is one only when a call still needs them. Locks one mutex: cheap enough to ask at every step.
    pub fn failure(&self) -> Option<RankError> {
        self.shared.failure()
    }

    /// Leaves the group in an orderly way, as dropping it does. Other ranks can complete what this rank has completed; a
    /// collective that it has not fails with [`RankError::Left`].
    pub fn leave(self) {}

    fn exchange(
        &self,
        kind: CollectiveKind,
        what: &'static str,
        mine: &[u8],
        num_results: usize,
        combine: impl FnOnce(Vec<Vec<u8>>) -> Vec<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>, RankError> {
        let _one_at_a_time = self.chunk.lock().unwrap_or_else(PoisonError::into_inner);
        Collective::new(&self.shared, kind, what, self.collective_timeout()).exchange(mine, num_results, combine)
    }

    /// Ends all connections without a word, as the death of the process would.
    #[cfg(test)]
    pub(crate) fn vanish(self) {
        self.shared.vanish();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abort("its program panicked");
        }
        self.shared.leave();
        // The others close their ends when they have read the goodbye. Closing before could destroy it in their buffers.
        self.shared.wait_for_controls(LEAVE_TIMEOUT);
        self.shared.links.iter().for_each(RankLink::shut_control);
        self.controls.stop();
    }
}

fn start_controls(shared: &Arc<Shared>) -> Result<Crew, RankError> {
    let mut crew = Crew::new("rank-control");
    let ending = Arc::clone(shared);
    crew.on_stop(move || ending.links.iter().for_each(RankLink::shut_control));
    for (index, link) in shared.links.iter().enumerate() {
        let shared = Arc::clone(shared);
        let started = crew.spawn(link.rank.to_string(), move |_| control::serve(&shared, index));
        started.map_err(|error| RankError::System { reason: error.to_string() })?;
    }
    Ok(crew)
}

#[cfg(test)]
mod tests;
