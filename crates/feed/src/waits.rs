//! The waits of a feed, by name. Tests remove each one in turn and must see wrong bytes. The waits of the copy between the roles
//! are in [`tandem_device::transfer::waits`].

/// Decoding writes pinned memory only after the last copy from it.
pub const COPIED: &str = "decode waits for the upload to be copied";
/// An upload overwrites a block only after the features of its last batch are made.
pub const CONSUMED: &str = "upload waits for the features of the batch before";
/// Features read samples only after they are uploaded.
pub const UPLOADED: &str = "features wait for their upload";
/// A batch is written to a slot only after the slot's last batch has been sent.
pub const SENT: &str = "features wait for the batch before to be sent";
/// With a hand-over: a batch is written to a slot only after the step has released it.
pub const RELEASED: &str = "features wait for the step to release the slot";
/// A slot is free only after every stream that read its batch.
pub const READ: &str = "release waits for each reader of the batch";
/// The step reads its batch only after it has arrived.
pub const ARRIVED: &str = "step waits for its batch";
