//! Messages for users, buffered until the owner of the feed takes them: libraries print nothing.

use std::sync::{Arc, Mutex, PoisonError};

/// A buffer of messages. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Messages {
    lines: Arc<Mutex<Vec<String>>>,
}

/// Further messages are dropped: memory is bounded if they are never taken.
const MAX_MESSAGES: usize = 256;

impl Messages {
    pub(crate) fn push(&self, line: String) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() < MAX_MESSAGES {
            lines.push(line);
        }
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
