//! Changes that make a valid file a damaged or a hostile one.

use std::ops::Range;

use proptest::prelude::*;
use proptest::sample::Index;

/// A change of some bytes of a file.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// A bit is another one.
    Bit(Index, u8),
    /// A byte is another one.
    Byte(Index, u8),
    /// A number of `width` bytes is another one: a size, a count, an offset.
    Word { at: Index, value: u64, width: usize, is_big_endian: bool },
    /// The rest is missing.
    Cut(Index),
    /// A part is missing.
    Hole(Index, usize),
    /// A part of another file is here, instead of what was here or before it.
    Splice { from: Index, to: Index, size: usize, is_inserted: bool },
}

/// Numbers at the limits of their types.
const LIMITS: [u64; 11] =
    [0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, u64::MAX >> 1, 1 << 63, u64::MAX];

/// One to five changes.
pub(crate) fn changes() -> impl Strategy<Value = Vec<Change>> {
    let size = 1_usize..600;
    let value = prop_oneof![prop::sample::select(&LIMITS[..]), any::<u64>(), 0_u64..5000];
    let width = prop::sample::select(&[1_usize, 2, 4, 8][..]);
    let change = prop_oneof![
        2 => (any::<Index>(), 0_u8..8).prop_map(|(at, bit)| Change::Bit(at, bit)),
        3 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        4 => (any::<Index>(), value, width, any::<bool>())
            .prop_map(|(at, value, width, is_big_endian)| Change::Word { at, value, width, is_big_endian }),
        1 => any::<Index>().prop_map(Change::Cut),
        1 => (any::<Index>(), size.clone()).prop_map(|(at, size)| Change::Hole(at, size)),
        2 => (any::<Index>(), any::<Index>(), size, any::<bool>())
            .prop_map(|(from, to, size, is_inserted)| Change::Splice { from, to, size, is_inserted }),
    ];
    prop::collection::vec(change, 1..6)
}

/// `bytes` with all changes, one after the other. `other` is where spliced parts come from.
pub(crate) fn damaged(bytes: &[u8], other: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for change in changes.iter().cloned() {
        if bytes.is_empty() {
            break;
        }
        match change {
            Change::Bit(at, bit) => *at.get_mut(&mut bytes) ^= 1 << bit,
            Change::Byte(at, byte) => *at.get_mut(&mut bytes) = byte,
            Change::Word { at, value, width, is_big_endian } => {
                let word = match is_big_endian {
                    true => value.to_be_bytes()[8 - width..].to_vec(),
                    false => value.to_le_bytes()[..width].to_vec(),
                };
                let place = range(at, width, &bytes);
                bytes.splice(place.clone(), word[..place.len()].iter().copied());
            }
            Change::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Change::Hole(at, size) => drop(bytes.drain(range(at, size, &bytes))),
            Change::Splice { from, to, size, is_inserted } => {
                let part = other[range(from, size, other)].to_vec();
                let place = range(to, part.len(), &bytes);
                let place = if is_inserted { place.start..place.start } else { place };
                bytes.splice(place, part);
            }
        }
    }
    bytes
}

/// `size` bytes from `at` on, or as many as there are.
fn range(at: Index, size: usize, bytes: &[u8]) -> Range<usize> {
    let start = at.index(bytes.len());
    start..bytes.len().min(start + size)
}

/// How often a property is tried. A failure is printed with its input and is not stored in a file.
pub(crate) fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}
