//! A small model from its graph to its updates, on the CPU and on simulated cards.

mod support;

mod memory;
mod accumulation;
mod guard;
mod orders;
mod fusion;
mod mutations;
mod refusals;
