//! Row offsets of a packed (ragged) batch: where each utterance begins in a tensor that holds them back to back.
//!
//! A sequence tensor is `[sum of row lengths, channels]`. Linear layers, norms and pointwise ops do not see rows at all; ops
//! that mix frames of one utterance (attention, convolution, the length regulator, losses) take the row offsets, as
//! `cu_seqlens` in flash attention's packed interface. The offsets are constants of a bucket. The number of valid frames of
//! each row is data: a `[batch]` tensor of lengths.

use std::sync::Arc;

/// Row offsets: where each row begins, and where the last one ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rows {
    starts: Arc<[u32]>,
}

impl Rows {
    /// Rows of these lengths, back to back. A row may be empty, but there is at least one.
    pub fn new(lengths: &[u32]) -> Rows {
        assert!(!lengths.is_empty(), "a batch has at least one row");
        let mut starts = Vec::with_capacity(lengths.len() + 1);
        let mut end = 0;
        starts.push(0);
        for length in lengths {
            end += length;
            starts.push(end);
        }
        Rows { starts: starts.into() }
    }

    /// `count` rows of the same length.
    pub fn even(count: u32, length: u32) -> Rows {
        Rows::new(&vec![length; count as usize])
    }

    /// Number of rows.
    pub fn count(&self) -> u32 {
        self.starts.len() as u32 - 1
    }

    /// Frames of all rows.
    pub fn total(&self) -> u32 {
        self.starts[self.starts.len() - 1]
    }

    /// Frames of the longest row.
    pub fn longest(&self) -> u32 {
        (0..self.count()).map(|row| self.length(row)).max().unwrap_or(0)
    }

    /// Frames of a row.
    pub fn length(&self, row: u32) -> u32 {
        self.starts[row as usize + 1] - self.starts[row as usize]
    }

    /// The `count + 1` offsets: where each row begins, and where the last ends.
    pub fn starts(&self) -> &[u32] {
        &self.starts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_each_other() {
        let rows = Rows::new(&[3, 0, 4]);
        assert_eq!((rows.count(), rows.total(), rows.longest()), (3, 7, 4));
        assert_eq!(rows.starts(), [0, 3, 3, 7]);
        assert_eq!(Rows::even(2, 5), Rows::new(&[5, 5]));
    }
}
