//! Random numbers that are the same on every machine and in every release. Checkpoints and resumed runs depend on that,
//! which is why no crate is used whose generator may change.
//!
//! - [`keyed`]: a pure function of what a number is for. Corpus order, splits, voice references.
//! - [`SplitMix`]: a sequence from a seed. Simulated devices, tests, initial phases.
//!
//! The engine's device-side numbers (Philox) are in the engine: kernels compute them too.
//!
//! ```
//! use tandem_random::{SplitMix, keyed};
//!
//! let key = keyed::key(&[1234, 7]);
//! assert_eq!(keyed::draw(key, 700), keyed::draw(key, 700));
//! assert!(SplitMix::new(1).below(6) < 6);
//! ```

pub mod keyed;
mod split_mix;

pub use split_mix::{SplitMix, split_mix};
