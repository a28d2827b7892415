//! Definition levels: which rows of a page have a value.

use bytes::Bytes;

use super::hybrid::HybridReader;

/// Reads levels in order, without decoding the ones that follow. Allocates nothing.
pub(super) struct PresenceReader {
    levels: HybridReader,
    /// The level of a row that has a value.
    present: u32,
}

impl PresenceReader {
    /// Over levels that are stored as runs; `max_level` is the one of a row that has a value.
    pub(super) fn new(bytes: Bytes, max_level: u8) -> Result<PresenceReader, String> {
        let width = u8::BITS - max_level.leading_zeros();
        Ok(PresenceReader { levels: HybridReader::new(bytes, width as u8)?, present: max_level.into() })
    }

    /// With a copy of the levels: they are a part of their page, which would stay in memory.
    pub(super) fn copied(mut self) -> PresenceReader {
        self.levels.copy_bytes();
        self
    }

    /// Whether the next row has a value. Fails if there are no more levels.
    pub(super) fn next_row(&mut self) -> Result<bool, &'static str> {
        self.levels.next().map(|level| level == self.present)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_deepest_level_counts_at_every_width() {
        for (max_level, width) in [(1_u8, 1), (2, 2), (3, 2), (4, 3), (9, 4), (31, 5), (255, 8)] {
            let levels: Vec<u8> = (0..16).map(|i| (i * 7 % (u32::from(max_level) + 1)) as u8).collect();
            let packed = levels.iter().rev().fold(0_u128, |bits, level| bits << width | u128::from(*level));
            // Two groups of eight.
            let bytes = [&[5], &packed.to_le_bytes()[..width * 2]].concat();
            let mut reader = PresenceReader::new(bytes.into(), max_level).unwrap();
            for level in levels {
                assert_eq!(reader.next_row(), Ok(level == max_level), "width {width}");
            }
            assert!(reader.next_row().is_err(), "width {width}");
        }
    }

    #[test]
    fn a_run_of_structs_without_the_field_has_no_values() {
        let mut reader = PresenceReader::new(Bytes::from_static(&[6, 1, 4, 2]), 2).unwrap();
        let found: Vec<bool> = (0..5).map(|_| reader.next_row().unwrap()).collect();
        assert_eq!(found, [false, false, false, true, true]);
    }
}
