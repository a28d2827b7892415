//! What the tests of several crates share.

pub mod corpora;
mod numbers;
pub mod object_server;
mod skip;
mod wav;

pub use numbers::largest;
pub use skip::{LIST_VARIABLE, real_voice, skip};
pub use wav::raw_wav;
