//! What the feed has to say to people, kept until its owner asks: libraries print nothing.

use std::sync::{Arc, Mutex, PoisonError};

/// Lines for the screen. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes {
    lines: Arc<Mutex<Vec<String>>>,
}

/// More are not kept: nobody is asking, and memory is bounded.
const MOST: usize = 256;

impl Notes {
    pub(crate) fn say(&self, line: String) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() < MOST {
            lines.push(line);
        }
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
