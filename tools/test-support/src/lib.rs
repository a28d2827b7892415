//! What the tests of several crates share.

mod numbers;
mod skip;

pub use numbers::largest;
pub use skip::{LIST_VARIABLE, real_voice, skip};
