//! Why a rank cannot join its group, or has no group any more.

use std::fmt::Write;
use std::time::Duration;

use crate::EnvironmentError;

/// The ranks that a message names at most.
const MAX_NAMED_RANKS: usize = 16;

/// A group did not form, or has ended.
///
/// [`Lost`](RankError::Lost), [`Left`](RankError::Left), [`Aborted`](RankError::Aborted),
/// [`TimedOut`](RankError::TimedOut) and [`Protocol`](RankError::Protocol) end the group for every rank, and every later
/// call fails with the same error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RankError {
    /// The environment does not describe a rank that can join.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),

    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen at {address}: {reason}. Set TANDEM_PORT to a free port, the same on every rank")]
    Bind {
        /// Where.
        address: String,
        /// What the system said.
        reason: String,
    },

    /// The system would not start a thread, or set up a connection.
    #[error("the system has no room for the connections of the ranks: {reason}. Raise ulimit -n and ulimit -u")]
    System {
        /// What the system said.
        reason: String,
    },

    /// Rank 0 did not answer in time, or cannot be reached at all.
    #[error(
        "rank 0 did not answer at {address} for {} ({reason}). Check that rank 0 is running, that MASTER_ADDR is its \
         machine, and that no firewall is between",
        seconds(*waited)
    )]
    Unreachable {
        /// Where.
        address: String,
        /// How long this rank tried.
        waited: Duration,
        /// The result of the last attempt.
        reason: String,
    },

    /// Another program listens where rank 0 should.
    #[error("{address} is not rank 0 of this run: {reason}. Set TANDEM_PORT to a free port, the same on every rank")]
    NotRankZero {
        /// Where.
        address: String,
        /// What is wrong with its answer.
        reason: String,
    },

    /// Rank 0 refused this process.
    #[error("rank 0 refused this process: {reason}")]
    Refused {
        /// Why, and what to do.
        reason: String,
    },

    /// Ranks are missing at the end of the join timeout.
    #[error("{} did not join within {}. Look at the start of their logs for the cause", ranks_text(missing), seconds(*waited))]
    NotAllJoined {
        /// The ranks that are missing.
        missing: Vec<u32>,
        /// How long rank 0 waited.
        waited: Duration,
    },

    /// A rank died, hangs, or cannot be reached.
    #[error("rank {rank} is lost: {reason}. Look at the end of its log for the cause")]
    Lost {
        /// The rank.
        rank: u32,
        /// How that was noticed.
        reason: String,
    },

    /// A rank left in an orderly way while others still need it.
    #[error("rank {rank} has left the group, and other ranks still need it: the ranks do not run the same steps")]
    Left {
        /// The rank.
        rank: u32,
    },

    /// A rank ended the group.
    #[error("rank {rank} ended the run: {reason}")]
    Aborted {
        /// The rank.
        rank: u32,
        /// Its reason.
        reason: String,
    },

    /// Ranks are alive and did not take part in a collective in time.
    #[error(
        "{} did not reach {what} within {}: the program hangs, or is far slower than other ranks",
        ranks_text(ranks),
        seconds(*waited)
    )]
    TimedOut {
        /// The ranks that others waited for.
        ranks: Vec<u32>,
        /// The collective.
        what: String,
        /// How long.
        waited: Duration,
    },

    /// A fact differs between ranks.
    #[error(
        "the ranks have different {what}: {fact} is {found} on rank {rank} and {expected} on rank 0. Start every rank \
         with the same settings and files"
    )]
    Different {
        /// The collective.
        what: String,
        /// The rank that differs from rank 0.
        rank: u32,
        /// The name of the fact.
        fact: String,
        /// Its value on rank 0.
        expected: String,
        /// Its value on `rank`.
        found: String,
    },

    /// A rank broke the protocol: it is in another collective, or sent what no rank sends. A bug in the program.
    #[error("rank {rank} does not follow the protocol: {reason}")]
    Protocol {
        /// The rank.
        rank: u32,
        /// What it did.
        reason: String,
    },
}

/// `rank 2`, or `ranks 1, 2, 5`.
fn ranks_text(ranks: &[u32]) -> String {
    let mut text = if ranks.len() == 1 { "rank" } else { "ranks" }.to_owned();
    for (index, rank) in ranks.iter().take(MAX_NAMED_RANKS).enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(text, "{comma} {rank}");
    }
    let more = ranks.len().saturating_sub(MAX_NAMED_RANKS);
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

/// `0.3 s`, `30 s`.
pub(crate) fn seconds(duration: Duration) -> String {
    let decimals = if duration < Duration::from_secs(10) { 1 } else { 0 };
    format!("{:.decimals$} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_ranks_and_times() {
        let waited = Duration::from_secs(300);
        let missing = RankError::NotAllJoined { missing: vec![1, 2, 5], waited };
        assert_eq!(
            missing.to_string(),
            "ranks 1, 2, 5 did not join within 300 s. Look at the start of their logs for the cause"
        );
        let late =
            RankError::TimedOut { ranks: vec![3], what: "gradients".into(), waited: Duration::from_millis(1250) };
        assert!(late.to_string().starts_with("rank 3 did not reach gradients within 1.2 s"), "{late}");
        let many = RankError::NotAllJoined { missing: (1..=100).collect(), waited };
        assert!(many.to_string().contains("15, 16 and 84 more did not join"), "{many}");
    }
}
