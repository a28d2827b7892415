//! Self-tuning: the number of decode threads and the prefetch depth follow the measured waits.
//!
//! The [`tuner`] decides, without clock or thread. [`self_tuning`] measures and applies its decisions in a running feed.

pub(crate) mod tuner;
mod evidence;
pub(crate) mod self_tuning;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
