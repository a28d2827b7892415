//! The byte strings of a page, one after the other, in all encodings that are read.

use std::sync::Arc;
use std::vec;

use bytes::{Buf, Bytes};

use super::delta::decode_delta;
use super::hybrid::HybridReader;
use super::page_header::ValueEncoding;

/// Reads the values of a page in order. A value shares the memory of its page or dictionary, except one that is built
/// from the one before.
pub(super) enum ByteValues {
    Plain(PlainBytes),
    Keys {
        keys: HybridReader,
        dictionary: Arc<ByteDictionary>,
    },
    /// All lengths first, then all values.
    Lengths {
        lengths: vec::IntoIter<i64>,
        rest: Bytes,
    },
    /// How much of the value before each one begins with, then lengths and values of what follows.
    Prefixes {
        prefixes: vec::IntoIter<i64>,
        lengths: vec::IntoIter<i64>,
        rest: Bytes,
        before: Bytes,
    },
}

/// Values that are each a length and bytes.
pub(super) struct PlainBytes {
    rest: Bytes,
}

const CUT: &str = "the page has fewer values than its rows need";

impl ByteValues {
    /// Over `values`, the part of a page behind its levels, which has at most `most` values.
    pub(super) fn new(
        values: Bytes,
        encoding: ValueEncoding,
        most: u32,
        dictionary: Option<&Arc<ByteDictionary>>,
    ) -> Result<ByteValues, String> {
        match (encoding, dictionary) {
            (ValueEncoding::Plain, _) => Ok(ByteValues::Plain(PlainBytes { rest: values })),
            (ValueEncoding::Dictionary, Some(dictionary)) => {
                Ok(ByteValues::Keys { keys: keys(values)?, dictionary: Arc::clone(dictionary) })
            }
            (ValueEncoding::Dictionary, None) => Err("the page needs a dictionary and there is none".into()),
            (ValueEncoding::DeltaLengthByteArray, _) => {
                let (lengths, end) = decode_delta(&values, most)?;
                Ok(ByteValues::Lengths { lengths: lengths.into_iter(), rest: values.slice(end..) })
            }
            (ValueEncoding::DeltaByteArray, _) => {
                let (prefixes, end) = decode_delta(&values, most)?;
                let values = values.slice(end..);
                let (lengths, end) = decode_delta(&values, most)?;
                let (prefixes, lengths) = (prefixes.into_iter(), lengths.into_iter());
                Ok(ByteValues::Prefixes { prefixes, lengths, rest: values.slice(end..), before: Bytes::new() })
            }
            (other, _) => Err(other.not_read()),
        }
    }

    /// The next value. Fails if there is none.
    pub(super) fn next(&mut self) -> Result<Bytes, String> {
        match self {
            ByteValues::Plain(values) => values.next(),
            ByteValues::Keys { keys, dictionary } => dictionary.get(keys.next()?),
            ByteValues::Lengths { lengths, rest } => take(rest, lengths.next().map(narrow)),
            ByteValues::Prefixes { prefixes, lengths, rest, before } => {
                let end = take(rest, lengths.next().map(narrow))?;
                let start = take(&mut before.clone(), prefixes.next().map(narrow))?;
                *before = if start.is_empty() { end } else { [start, end].concat().into() };
                Ok(before.clone())
            }
        }
    }

    /// Passes over `count` values.
    pub(super) fn skip(&mut self, count: u32) -> Result<(), String> {
        match self {
            ByteValues::Keys { keys, .. } => Ok(keys.skip(count.into())?),
            _ => (0..count).try_for_each(|_| self.next().map(drop)),
        }
    }
}

impl PlainBytes {
    fn next(&mut self) -> Result<Bytes, String> {
        let length = self.rest.first_chunk::<4>().map(|length| u32::from_le_bytes(*length));
        if length.is_some() {
            self.rest.advance(4);
        }
        take(&mut self.rest, length.map(i64::from))
    }
}

/// Lengths have 32 bits, and their differences wrap.
fn narrow(length: i64) -> i64 {
    i64::from(length as i32)
}

/// The first `length` bytes of `rest`, which then begins behind them.
fn take(rest: &mut Bytes, length: Option<i64>) -> Result<Bytes, String> {
    let length = length.ok_or(CUT)?;
    match usize::try_from(length) {
        Ok(length) if length <= rest.len() => Ok(rest.split_to(length)),
        _ => Err(format!("a value claims {length} bytes, and {} are left", rest.len())),
    }
}

/// Keys of a dictionary: a byte says how many bits each has.
pub(super) fn keys(values: Bytes) -> Result<HybridReader, String> {
    match values.first() {
        Some(width) => HybridReader::new(values.slice(1..), *width),
        // A page of nulls alone.
        None => HybridReader::new(values, 0),
    }
}

/// The values that keys stand for.
#[derive(Debug)]
pub(super) struct ByteDictionary {
    bytes: Bytes,
    /// Begin and end of each.
    spans: Vec<(u32, u32)>,
}

impl ByteDictionary {
    /// Reads `num_values` values in plain encoding. Memory: eight bytes for each that is there.
    pub(super) fn new(bytes: Bytes, num_values: u32) -> Result<ByteDictionary, String> {
        let (mut values, mut spans) = (PlainBytes { rest: bytes.clone() }, Vec::new());
        for _ in 0..num_values {
            let size = values.next()?.len();
            let end = bytes.len() - values.rest.len();
            let span = u32::try_from(end - size).ok().zip(u32::try_from(end).ok());
            spans.push(span.ok_or_else(|| format!("the dictionary has {} bytes", bytes.len()))?);
        }
        Ok(ByteDictionary { bytes, spans })
    }

    /// Memory that it holds.
    pub(super) fn num_bytes(&self) -> usize {
        self.bytes.len() + size_of_val(self.spans.as_slice())
    }

    fn get(&self, key: u32) -> Result<Bytes, String> {
        match self.spans.get(key as usize) {
            Some((start, end)) => Ok(self.bytes.slice(*start as usize..*end as usize)),
            None => Err(format!("expected a key of a dictionary of {} values, found {key}", self.spans.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ENCODINGS: [ValueEncoding; 4] = [
        ValueEncoding::Plain,
        ValueEncoding::Dictionary,
        ValueEncoding::DeltaLengthByteArray,
        ValueEncoding::DeltaByteArray,
    ];

    fn dictionary() -> Arc<ByteDictionary> {
        let bytes = Bytes::from_static(b"\x01\0\0\0a\0\0\0\0\x02\0\0\0bc");
        Arc::new(ByteDictionary::new(bytes, 3).unwrap())
    }

    fn open(bytes: &[u8], encoding: ValueEncoding) -> Result<ByteValues, String> {
        ByteValues::new(Bytes::copy_from_slice(bytes), encoding, 100, Some(&dictionary()))
    }

    #[test]
    fn lengths_that_lie_are_faults() {
        let mut values = open(b"\x01\0\0\0a\x05\0\0\0bcd", ValueEncoding::Plain).unwrap();
        assert_eq!(values.next(), Ok(Bytes::from_static(b"a")));
        assert_eq!(values.next(), Err("a value claims 5 bytes, and 3 are left".into()));
        let mut values = open(b"\x01\0\0", ValueEncoding::Plain).unwrap();
        assert_eq!(values.next(), Err(CUT.into()));
        // Two values of length -1.
        let mut values = open(&[0x80, 0x01, 4, 2, 1, 0, 0, 0, 0, 0], ValueEncoding::DeltaLengthByteArray).unwrap();
        assert_eq!(values.next(), Err("a value claims -1 bytes, and 0 are left".into()));
        assert!(ByteDictionary::new(Bytes::from_static(b"\x01\0\0\0a"), 2).is_err());
    }

    #[test]
    fn a_key_without_a_value_is_a_fault() {
        let mut values = open(&[2, 4, 2, 2, 3], ValueEncoding::Dictionary).unwrap();
        assert_eq!(values.next(), Ok(Bytes::from_static(b"bc")));
        values.skip(1).unwrap();
        assert_eq!(values.next(), Err("expected a key of a dictionary of 3 values, found 3".into()));
    }

    #[test]
    fn a_value_may_begin_like_the_one_before() {
        // Beginnings 0, 2, 1; then lengths 3, 1, 0.
        let beginnings = [0x80, 0x01, 4, 3, 0, 1, 2, 0, 0, 0, 0b0011, 0, 0, 0, 0, 0, 0, 0];
        let lengths = [0x80, 0x01, 4, 3, 6, 3, 1, 0, 0, 0, 0b10, 0, 0, 0];
        let page = [&beginnings[..], &lengths, b"abcd"].concat();
        let mut values = open(&page, ValueEncoding::DeltaByteArray).unwrap();
        assert_eq!(values.next(), Ok(Bytes::from_static(b"abc")));
        assert_eq!(values.next(), Ok(Bytes::from_static(b"abd")));
        assert_eq!(values.next(), Ok(Bytes::from_static(b"a")));
        assert_eq!(values.next(), Err(CUT.into()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_values_or_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..60), skip in 0_u32..20, is_block: bool) {
            let head: &[u8] = if is_block { &[0x80, 0x01, 4] } else { &[] };
            for encoding in ENCODINGS {
                let Ok(mut values) = open(&[head, &bytes].concat(), encoding) else { continue };
                let _ = values.skip(skip);
                while let Ok(value) = values.next() {
                    prop_assert!(value.len() <= bytes.len() + 3);
                    if matches!(encoding, ValueEncoding::Dictionary) {
                        break;
                    }
                }
            }
        }
    }
}
