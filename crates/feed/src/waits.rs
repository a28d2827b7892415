//! The waits of a feed, by name: tests take each one away and must see the damage. Those of the copy between the roles
//! are in [`tandem_device::transfer::waits`].

/// Decoding writes page-locked memory only after the last copy out of it.
pub const COPIED: &str = "decode waits for the upload to be copied";
/// A copy lands only in memory whose last batch has become features.
pub const CONSUMED: &str = "upload waits for the features of the batch before";
/// Features are made only of samples that have arrived.
pub const UPLOADED: &str = "features wait for their upload";
/// A batch is made only in memory whose last batch has been sent.
pub const SENT: &str = "features wait for the batch before to be sent";
/// With a hand-over: a batch is made only in memory the step has released.
pub const RELEASED: &str = "features wait for the step to release the slot";
/// The step starts only when its batch is there.
pub const ARRIVED: &str = "step waits for its batch";
