//! The numbers of a page, one after the other, in all encodings that are read.

use std::sync::Arc;
use std::vec;

use bytes::Bytes;

use super::byte_values::keys;
use super::delta::decode_delta;
use super::hybrid::HybridReader;
use super::page_header::ValueEncoding;

/// Width and sign of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberKind {
    I32,
    U32,
    I64,
    U64,
    F32,
    F64,
}

/// Reads the numbers of a page in order. Integers beyond 2^53 are rounded.
pub(super) enum NumberValues {
    Plain {
        kind: NumberKind,
        bytes: Bytes,
        next: usize,
    },
    Keys {
        keys: HybridReader,
        dictionary: Arc<[f64]>,
    },
    Differences {
        kind: NumberKind,
        values: vec::IntoIter<i64>,
    },
    /// The first bytes of all numbers, then the second ones, and so on.
    Split {
        kind: NumberKind,
        bytes: Bytes,
        next: usize,
    },
}

impl NumberKind {
    fn width(self) -> usize {
        match self {
            NumberKind::I32 | NumberKind::U32 | NumberKind::F32 => 4,
            NumberKind::I64 | NumberKind::U64 | NumberKind::F64 => 8,
        }
    }

    /// The number whose bits are these; of narrow ones the low half.
    fn of_bits(self, bits: u64) -> f64 {
        match self {
            NumberKind::I32 => f64::from(bits as i32),
            NumberKind::U32 => f64::from(bits as u32),
            NumberKind::I64 => bits as i64 as f64,
            NumberKind::U64 => bits as f64,
            NumberKind::F32 => f64::from(f32::from_bits(bits as u32)),
            NumberKind::F64 => f64::from_bits(bits),
        }
    }

    /// The number whose bytes these are.
    fn read<'a>(self, bytes: impl Iterator<Item = &'a u8>) -> f64 {
        let mut word = [0; 8];
        word.iter_mut().zip(bytes).for_each(|(byte, stored)| *byte = *stored);
        self.of_bits(u64::from_le_bytes(word))
    }

    /// `num_values` numbers in plain encoding.
    pub(super) fn dictionary(self, bytes: &[u8], num_values: u32) -> Result<Arc<[f64]>, String> {
        let found = bytes.len() / self.width();
        match found >= num_values as usize {
            true => {
                let numbers = bytes.chunks_exact(self.width()).take(num_values as usize);
                Ok(numbers.map(|bytes| self.read(bytes.iter())).collect())
            }
            false => Err(format!("the dictionary claims {num_values} numbers and has {found}")),
        }
    }
}

impl NumberValues {
    /// Over `bytes`, the part of a page behind its levels, which has at most `most` values.
    pub(super) fn new(
        bytes: Bytes,
        kind: NumberKind,
        encoding: ValueEncoding,
        most: u32,
        dictionary: Option<&Arc<[f64]>>,
    ) -> Result<NumberValues, String> {
        let is_integer = !matches!(kind, NumberKind::F32 | NumberKind::F64);
        match (encoding, dictionary) {
            (ValueEncoding::Plain, _) => Ok(NumberValues::Plain { kind, bytes, next: 0 }),
            (ValueEncoding::Dictionary, Some(dictionary)) => {
                Ok(NumberValues::Keys { keys: keys(bytes)?, dictionary: Arc::clone(dictionary) })
            }
            (ValueEncoding::Dictionary, None) => Err("the page needs a dictionary and there is none".into()),
            (ValueEncoding::DeltaBinaryPacked, _) if is_integer => {
                let values = decode_delta(&bytes, most)?.0.into_iter();
                Ok(NumberValues::Differences { kind, values })
            }
            (ValueEncoding::ByteStreamSplit, _) => Ok(NumberValues::Split { kind, bytes, next: 0 }),
            (other, _) => Err(other.not_read()),
        }
    }

    /// The next number. Fails if there is none.
    pub(super) fn next(&mut self) -> Result<f64, String> {
        const CUT: &str = "the page has fewer numbers than its rows need";
        match self {
            NumberValues::Plain { kind, bytes, next } => {
                let start = *next;
                let number = bytes.get(start..start + kind.width()).ok_or(CUT)?;
                *next += kind.width();
                Ok(kind.read(number.iter()))
            }
            NumberValues::Keys { keys, dictionary } => {
                let key = keys.next()?;
                let count = dictionary.len();
                let unknown = || format!("expected a key of a dictionary of {count} numbers, found {key}");
                dictionary.get(key as usize).copied().ok_or_else(unknown)
            }
            NumberValues::Differences { kind, values } => {
                values.next().map(|value| kind.of_bits(value as u64)).ok_or_else(|| CUT.into())
            }
            NumberValues::Split { kind, bytes, next } => {
                let count = bytes.len() / kind.width();
                let index = *next;
                if index >= count {
                    return Err(CUT.into());
                }
                *next += 1;
                Ok(kind.read(bytes.iter().skip(index).step_by(count).take(kind.width())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KINDS: [NumberKind; 6] =
        [NumberKind::I32, NumberKind::U32, NumberKind::I64, NumberKind::U64, NumberKind::F32, NumberKind::F64];

    fn read(bytes: &[u8], kind: NumberKind, encoding: ValueEncoding) -> Vec<f64> {
        let dictionary = kind.dictionary(&[7; 16], 2).ok();
        let values = NumberValues::new(Bytes::copy_from_slice(bytes), kind, encoding, 100, dictionary.as_ref());
        values.map_or(Vec::new(), |mut values| std::iter::from_fn(|| values.next().ok()).take(100).collect())
    }

    #[test]
    fn every_kind_in_plain_and_split_encoding() {
        let check = |kind, bytes: &[&[u8]], expected: &[f64]| {
            assert_eq!(read(&bytes.concat(), kind, ValueEncoding::Plain), expected, "{kind:?}");
            let width = bytes[0].len();
            let split: Vec<u8> = (0..width).flat_map(|at| bytes.iter().map(move |number| number[at])).collect();
            assert_eq!(read(&split, kind, ValueEncoding::ByteStreamSplit), expected, "{kind:?}");
        };
        check(NumberKind::I32, &[&[0xff; 4], &5_i32.to_le_bytes()], &[-1.0, 5.0]);
        check(NumberKind::U32, &[&[0xff; 4], &5_i32.to_le_bytes()], &[4_294_967_295.0, 5.0]);
        check(NumberKind::I64, &[&[0xff; 8], &(1_i64 << 40).to_le_bytes()], &[-1.0, 2_f64.powi(40)]);
        check(NumberKind::U64, &[&[0xff; 8]], &[2_f64.powi(64)]);
        check(NumberKind::F32, &[&0.5_f32.to_le_bytes(), &(-2_f32).to_le_bytes()], &[0.5, -2.0]);
        check(NumberKind::F64, &[&0.1_f64.to_le_bytes()], &[0.1]);
    }

    #[test]
    fn numbers_that_are_cut_are_not_read() {
        assert_eq!(read(&[1, 0, 0, 0, 2, 0, 0], NumberKind::I32, ValueEncoding::Plain), [1.0]);
        assert_eq!(read(&[1; 7], NumberKind::I64, ValueEncoding::ByteStreamSplit), [0.0; 0]);
        assert!(NumberKind::I64.dictionary(&[0; 15], 2).is_err());
        assert_eq!(read(&[3, 4, 5], NumberKind::I64, ValueEncoding::Dictionary), [0.0; 0], "key 5 of 2");
        assert_eq!(read(&[3, 4, 1], NumberKind::I64, ValueEncoding::Dictionary).len(), 2);
    }

    #[test]
    fn differences_of_narrow_numbers_wrap() {
        // -1, then a difference of i32::MIN in 32 bits: i32::MAX.
        let page = [&[0x80, 0x01, 4, 2, 1, 0, 32, 0, 0, 0, 0, 0, 0, 0x80][..], &[0; 124]].concat();
        assert_eq!(read(&page, NumberKind::I32, ValueEncoding::DeltaBinaryPacked), [-1.0, f64::from(i32::MAX)]);
        assert_eq!(read(&page, NumberKind::F32, ValueEncoding::DeltaBinaryPacked), [0.0; 0], "not for floats");
    }

    proptest! {
        #[test]
        fn any_bytes_are_numbers_or_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            use ValueEncoding::{ByteStreamSplit, DeltaBinaryPacked, Dictionary, Plain};
            for (kind, encoding) in
                KINDS.into_iter().flat_map(|kind| [Plain, Dictionary, DeltaBinaryPacked, ByteStreamSplit].map(|e| (kind, e)))
            {
                let found = read(&bytes, kind, encoding);
                prop_assert!(encoding == Dictionary || encoding == DeltaBinaryPacked || found.len() <= bytes.len());
            }
        }
    }
}
