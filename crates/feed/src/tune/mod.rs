//! Tuning.

mod evidence;
pub(crate) mod tuner;
pub(crate) mod self_tuning;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
