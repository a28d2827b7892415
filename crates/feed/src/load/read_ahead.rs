//! Recordings that are fetched from object stores before a decode thread asks for them, within a budget of bytes.
//!
//! ```text
//! order ─> walk ─> window: rows whose recordings are on their way or here ─> row queue ─> decode thread
//! ```
//!
//! A thread walks the order ahead of the row queue ([`walk`]) and puts fetches into the [`window`], in the order of the rows.
//! The window reserves the bytes of a fetch before it is started, so that bytes on their way never exceed the budget. The row
//! queue takes a row's fetch with the row. A row that it hands out before its fetch was started is fetched by its decode thread,
//! as all rows are without read-ahead: batches are the same with any budget.

mod walk;
mod window;

#[cfg(test)]
mod tests;

pub(crate) use self::walk::ReadAheadWalk;
pub use self::window::ReadAheadStats;
pub(crate) use self::window::{AheadRecording, ReadAheadWindow, RowPlace};
