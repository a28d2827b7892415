//! What a feed promises, on simulated cards and on the CPU; the same bodies on an NVIDIA card if there is one.

mod support;

mod contents;
mod same_batches;
mod waits;
mod shared;
mod trouble;
mod read_ahead;
mod stored;
mod verified;
mod running;
mod cores;
mod events;
mod cuda;
