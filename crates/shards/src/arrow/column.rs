//! A column of one record batch in memory, and its cells.

use std::ops::Range;

use super::dictionary::ArrowDictionary;
use super::number::{NumberFormat, nth};
use crate::fault::{SIZE_ADVICE, ShardFault};
use crate::table::{Cell, ValueAddress};

/// The buffers of a column that its cells need.
pub(super) struct LoadedColumn<'d> {
    /// A bit for each row: whether it has a value. None if all have.
    pub(super) validity: Option<Vec<u8>>,
    pub(super) values: ColumnValues<'d>,
    /// Of the message, for faults.
    pub(super) offset: u64,
}

/// The values of a column.
pub(super) enum ColumnValues<'d> {
    /// `text` begins at the first offset.
    Text {
        offsets: Offsets,
        text: Vec<u8>,
    },
    /// The bytes are at `position` of the file.
    Bytes {
        offsets: Offsets,
        position: u64,
    },
    Numbers {
        format: NumberFormat,
        bytes: Vec<u8>,
    },
    Coded {
        keys: NumberFormat,
        bytes: Vec<u8>,
        dictionary: &'d ArrowDictionary,
    },
}

impl LoadedColumn<'_> {
    /// The cell of row `index` of the batch. Fails if it is text that is not UTF-8, a byte string of 4 GiB and more, or
    /// a key that its dictionary does not have.
    pub(super) fn cell(&self, index: usize) -> Result<Cell<'_>, ShardFault> {
        let damaged = |reason: String| ShardFault::Damaged { offset: self.offset, reason };
        let no_value = || damaged(format!("expected a value for row {index} of the batch, found none"));
        if !self.validity.as_ref().is_none_or(|bits| is_set(bits, index)) {
            return Ok(Cell::Null);
        }
        match &self.values {
            ColumnValues::Text { offsets, text } => {
                let value = offsets.place(index).and_then(|place| text.get(place)).ok_or_else(no_value)?;
                let value = str::from_utf8(value).map_err(|_| {
                    damaged(format!("expected UTF-8 text in row {index} of the batch, found other bytes"))
                })?;
                Ok(Cell::Text(value))
            }
            ColumnValues::Bytes { offsets, position } => {
                let (start, end) = offsets.get(index).ok_or_else(no_value)?;
                let extent = u32::try_from(end - start).map_err(|_| ShardFault::Unsupported {
                    reason: format!(
                        "row {index} of the batch at byte {} has {} bytes: {SIZE_ADVICE}",
                        self.offset,
                        end - start
                    ),
                })?;
                Ok(Cell::Bytes(ValueAddress { position: position + start, extent }))
            }
            ColumnValues::Numbers { format, bytes } => format.get(bytes, index).map(Cell::Number).ok_or_else(no_value),
            ColumnValues::Coded { keys, bytes, dictionary } => {
                let key = keys.get_int(bytes, index).ok_or_else(no_value)?;
                let found = u64::try_from(key).ok().and_then(|key| dictionary.get(key));
                found.unwrap_or_else(|| Err(damaged(format!("expected a key of the dictionary, found {key}"))))
            }
        }
    }
}

/// Where values begin and end in their data (bytes of text, items of a list): they rise, and none is beyond it.
#[derive(Default)]
pub(super) struct Offsets {
    bytes: Vec<u8>,
    is_large: bool,
    num_values: usize,
}

impl Offsets {
    /// Checks the offsets of `num_values` values in data of `data_len` bytes or items.
    pub(super) fn check(bytes: Vec<u8>, is_large: bool, num_values: usize, data_len: u64) -> Result<Offsets, String> {
        let offsets = Offsets { bytes, is_large, num_values };
        let mut before = 0;
        for index in 0..=num_values {
            let offset = offsets.at(index).ok_or_else(|| format!("offset {index} is missing or negative"))?;
            if offset < before || offset > data_len {
                return Err(format!("expected offset {index} between {before} and {data_len}, found {offset}"));
            }
            before = offset;
        }
        Ok(offsets)
    }

    /// Where the data of all values begins.
    pub(super) fn first(&self) -> u64 {
        self.at(0).unwrap_or(0)
    }

    /// Where the data of all values ends.
    pub(super) fn last(&self) -> u64 {
        self.at(self.num_values).unwrap_or(0)
    }

    /// How many values there are.
    pub(super) fn num_values(&self) -> usize {
        self.num_values
    }

    /// Begin and end of a value.
    pub(super) fn get(&self, index: usize) -> Option<(u64, u64)> {
        Some((self.at(index)?, self.at(index + 1)?))
    }

    /// Where a value is in data that begins at the first offset.
    pub(super) fn place(&self, index: usize) -> Option<Range<usize>> {
        let (start, end) = self.get(index)?;
        let place = |offset: u64| usize::try_from(offset - self.first()).ok();
        Some(place(start)?..place(end)?)
    }

    fn at(&self, index: usize) -> Option<u64> {
        match self.is_large {
            true => u64::try_from(i64::from_le_bytes(nth(&self.bytes, index)?)).ok(),
            false => u64::try_from(i32::from_le_bytes(nth(&self.bytes, index)?)).ok(),
        }
    }
}

/// Bits are counted from the lowest.
pub(super) fn is_set(bits: &[u8], index: usize) -> bool {
    bits.get(index / 8).is_some_and(|byte| byte >> (index % 8) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(offsets: &[i32]) -> Vec<u8> {
        offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect()
    }

    #[test]
    fn offsets_rise_and_stay_inside_their_data() {
        let check = |offsets: &[i32], num_values| Offsets::check(small(offsets), false, num_values, 10).is_ok();
        assert!(check(&[0, 0, 5, 10], 3));
        assert!(check(&[4, 10], 1));
        assert!(check(&[0], 0));
        assert!(!check(&[0, 5, 4], 2), "falls");
        assert!(!check(&[0, 11], 1), "outside");
        assert!(!check(&[-1, 5], 1), "negative");
        assert!(!check(&[0, 5], 2), "too few");
    }

    #[test]
    fn text_begins_at_the_first_offset() {
        let offsets = Offsets::check(small(&[3, 5, 5, 6]), false, 3, 6).unwrap();
        assert_eq!((offsets.first(), offsets.last()), (3, 6));
        let places = [0, 1, 2, 3].map(|index| offsets.place(index));
        assert_eq!(places, [Some(0..2), Some(2..2), Some(2..3), None]);
    }

    #[test]
    fn offsets_of_64_bits() {
        let bytes = [0i64, 7, 1 << 33].iter().flat_map(|offset| offset.to_le_bytes()).collect();
        let offsets = Offsets::check(bytes, true, 2, 1 << 33).unwrap();
        let column = LoadedColumn {
            validity: Some(vec![0b11]),
            values: ColumnValues::Bytes { offsets, position: 100 },
            offset: 0,
        };
        assert_eq!(column.cell(0).unwrap(), Cell::Bytes(ValueAddress { position: 100, extent: 7 }));
        assert!(matches!(column.cell(1), Err(ShardFault::Unsupported { .. })), "over 4 GiB");
    }
}
