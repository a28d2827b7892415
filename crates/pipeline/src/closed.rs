//! The one way in which links and rings end.

/// The other side is gone, or somebody closed it: nothing more will go through. Not a failure but the end; what to do
/// next is to let go of one's own end and return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is closed")]
pub struct Closed {
    /// Which link or ring.
    pub name: &'static str,
}
