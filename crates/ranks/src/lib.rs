//! The processes of a data-parallel training run, its *ranks*: who they are, how they meet, and how they exchange small
//! messages at every step. The crate knows nothing about devices, models, batches, files or flags.
//!
//! A launcher starts the ranks and describes them in environment variables, which [`RankEnvironment::read`] reads.
//! [`Group::join`] connects every rank to rank 0, and returns when all of them are there. The calls of a [`Group`] are
//! collectives: every rank makes the same calls in the same order.
//!
//! ```
//! use tandem_ranks::{Group, JoinOptions, RankEnvironment};
//!
//! // One rank on its own opens no socket, and every collective is the identity.
//! let environment = RankEnvironment::local(0, 1, 0, 0, None);
//! let group = Group::join(&environment, "0.1.0", JoinOptions::default())?;
//! let mut gradients = [0.5, 1.0];
//! group.all_reduce("gradients", &mut gradients)?;
//! assert_eq!(gradients, [0.5, 1.0]);
//! group.leave();
//! # Ok::<(), tandem_ranks::RankError>(())
//! ```
//!
//! When a rank dies, hangs or gives up, the calls of all others fail with the same cause, also those that are blocked. A
//! group that has failed does not recover: the launcher starts all ranks again.

mod token;
mod environment;
mod error;
mod wire;
mod deadline;
mod handshake;
mod message;
mod link;
mod admission;
mod connect;
mod shared;
mod control;
mod collective;
mod facts;
mod group;

pub use environment::{EnvironmentError, Launcher, RankEnvironment, World};
pub use error::RankError;
pub use group::{Group, JoinOptions};
pub use token::Token;
pub use wire::MAX_PAYLOAD_BYTES;
