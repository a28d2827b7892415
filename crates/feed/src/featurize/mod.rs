//! The third stage: int16 samples become log-mel, energy and pitch.
//!
//! [`on_device`] makes the features of a batch on the data device. [`on_host`] makes those of one recording on the CPU, without a
//! feed.

pub(crate) mod on_device;
pub(crate) mod on_host;
