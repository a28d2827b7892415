//! What is wrong with a container.

/// A container, or a part of it, cannot be read. Nothing before it is affected.
#[derive(Debug, thiserror::Error)]
pub enum ShardFault {
    /// The bytes are not what they must be: the container is damaged, cut short, or lies about itself.
    #[error("{reason} (byte {offset})")]
    Damaged {
        /// Where, from the start of the container.
        offset: u64,
        /// What was expected and what was found.
        reason: String,
    },

    /// It is well formed and uses something that is not read.
    #[error("{reason}")]
    Unsupported {
        /// What, and what to do instead.
        reason: String,
    },

    /// Its bytes could not be read.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// What to do about a recording whose size does not fit its address. The first number is `u32::MAX`.
pub(crate) const SIZE_ADVICE: &str = "expected at most 4294967295 (4 GiB), which the address of a recording can hold; \
                                      split the recording into shorter ones, or leave it out";

/// A fault at a position of the container.
pub(crate) fn damaged(offset: u64, reason: impl Into<String>) -> ShardFault {
    ShardFault::Damaged { offset, reason: reason.into() }
}
