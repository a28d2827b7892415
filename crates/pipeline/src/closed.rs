//! How a ring ends.

/// The other end was dropped, or the ring was closed: nothing more will go through. This is the end of the stream, not
/// a failure: drop your own end and return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is closed")]
pub struct Closed {
    /// The ring's name.
    pub name: &'static str,
}
