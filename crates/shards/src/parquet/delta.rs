//! Numbers as differences: blocks of a smallest difference and of packed differences to it.
//!
//! A block has parts of equal size, each with its own number of bits. Parts past the last number are left out; the last
//! one that is there is padded.

use super::compact::CompactReader;

/// The most numbers of a block. Writers have 128.
const MOST_BLOCK: u64 = 1 << 20;

/// Decodes the numbers at the front of `bytes`, at most `most`; and where they end. They are exact modulo 2^64.
///
/// Reserves memory for numbers that are there, not for as many as are claimed.
pub(super) fn decode_delta(bytes: &[u8], most: u32) -> Result<(Vec<i64>, usize), String> {
    let mut reader = CompactReader::new(bytes);
    let fail = |reason: &str| format!("delta-encoded numbers: {reason}");
    let mut next = || reader.varint().map_err(|fault| fail(fault.reason()));
    let (block, parts, total, first) = (next()?, next()?, next()?, next()?);
    if total > u64::from(most) {
        return Err(fail(&format!("expected at most {most}, found {total}")));
    }
    let part_values = block.checked_div(parts).unwrap_or(0);
    if part_values == 0 || part_values % 8 != 0 || block > MOST_BLOCK || parts * part_values != block {
        return Err(fail(&format!("{parts} parts of a block of {block}")));
    }
    let mut at = reader.position();
    let mut values = Vec::new();
    if total > 0 {
        values.push(zigzag(first));
    }
    while (values.len() as u64) < total {
        let rest = bytes.get(at..).unwrap_or_default();
        let mut reader = CompactReader::new(rest);
        let least = zigzag(reader.varint().map_err(|fault| fail(fault.reason()))?);
        let widths_end = reader.position() + parts as usize;
        let widths = rest.get(reader.position()..widths_end).ok_or_else(|| fail("they are cut short"))?;
        at += widths_end;
        for width in widths {
            let left = total - values.len() as u64;
            if left == 0 {
                break;
            }
            let size = usize::from(*width) * part_values as usize / 8;
            let part = bytes.get(at..at + size).filter(|_| *width <= 64);
            let part = part.ok_or_else(|| fail("they are cut short"))?;
            add_part(part, *width, least, left.min(part_values), &mut values);
            at += size;
        }
    }
    Ok((values, at))
}

/// Adds `count` numbers: each is the one before, the smallest difference and `width` bits of `part`.
fn add_part(part: &[u8], width: u8, least: i64, count: u64, values: &mut Vec<i64>) {
    let mut last = values.last().copied().unwrap_or(0);
    let mask = if width == 64 { u64::MAX } else { (1 << width) - 1 };
    for bit in (0..count as usize).map(|index| index * usize::from(width)) {
        let stored = &part[bit / 8..part.len().min(bit / 8 + 9)];
        let mut word = [0; 16];
        word.iter_mut().zip(stored).for_each(|(byte, stored)| *byte = *stored);
        let difference = (u128::from_le_bytes(word) >> (bit % 8)) as u64 & mask;
        last = last.wrapping_add(least).wrapping_add(difference as i64);
        values.push(last);
    }
}

fn zigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn varint(mut value: u64, out: &mut Vec<u8>) {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    /// Blocks of 128 in four parts, as writers have them.
    fn encode(values: &[i64]) -> Vec<u8> {
        let folded = |value: i64| (value << 1 ^ value >> 63) as u64;
        let mut out = vec![0x80, 0x01, 4];
        varint(values.len() as u64, &mut out);
        varint(folded(values.first().copied().unwrap_or(0)), &mut out);
        let steps: Vec<i64> = values.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        for block in steps.chunks(128) {
            let least = *block.iter().min().unwrap();
            varint(folded(least), &mut out);
            let parts: Vec<Vec<u64>> = block
                .chunks(32)
                .map(|part| part.iter().map(|step| step.wrapping_sub(least) as u64).collect())
                .collect();
            let width = |part: &Vec<u64>| u64::BITS - part.iter().fold(0, |bits, step| bits | step).leading_zeros();
            let widths: Vec<u32> = parts.iter().map(width).collect();
            out.extend((0..4).map(|part| widths.get(part).copied().unwrap_or(0) as u8));
            for (part, width) in parts.iter().zip(widths) {
                let step = |at: usize| part.get(at).copied().unwrap_or(0);
                let bits: Vec<u64> = (0..32).flat_map(|at| (0..width).map(move |bit| step(at) >> bit & 1)).collect();
                out.extend(bits.chunks(8).map(|bits| bits.iter().rev().fold(0, |byte, bit| byte << 1 | *bit as u8)));
            }
        }
        out
    }

    /// A block of 128 numbers in four parts, `total` numbers, all differences zero.
    fn constant(total: u8) -> Vec<u8> {
        vec![0x80, 0x01, 4, total, 10, 0, 0, 0, 0, 0]
    }

    #[test]
    fn the_end_is_behind_the_last_part_that_is_there() {
        assert_eq!(decode_delta(&constant(100), 100), Ok((vec![5; 100], 10)));
        assert_eq!(decode_delta(&constant(1), 100), Ok((vec![5], 5)), "one number has no block");
        assert_eq!(decode_delta(&constant(0), 100), Ok((vec![], 5)));
        let mut wide = constant(20);
        wide[6] = 3;
        assert!(decode_delta(&wide, 100).is_err(), "12 bytes are missing");
        wide.extend([0; 12]);
        assert_eq!(decode_delta(&wide, 100).map(|(_, end)| end), Ok(22));
    }

    #[test]
    fn claims_that_cannot_be_are_faults() {
        assert!(decode_delta(&constant(101), 100).is_err());
        assert!(decode_delta(&[0x80, 0x01, 4, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0], 100).is_err());
        assert!(decode_delta(&[0, 0, 1, 0], 100).is_err());
        assert!(decode_delta(&[0x80, 0x01, 3, 1, 0], 100).is_err(), "parts of different sizes");
        let mut wide = constant(20);
        wide[6] = 65;
        wide.extend([0; 1000]);
        assert!(decode_delta(&wide, 100).is_err(), "65 bits");
    }

    proptest! {
        #[test]
        fn numbers_come_back(
            values in prop::collection::vec(prop_oneof![any::<i64>(), -100_i64..100, Just(i64::MIN)], 0..400),
            behind in prop::collection::vec(any::<u8>(), 0..10),
        ) {
            let bytes = encode(&values);
            let size = bytes.len();
            prop_assert_eq!(decode_delta(&[bytes, behind].concat(), 400), Ok((values, size)));
        }

        #[test]
        fn any_bytes_are_numbers_or_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..300), is_block: bool) {
            let head: &[u8] = if is_block { &[0x80, 0x01, 4] } else { &[] };
            if let Ok((values, end)) = decode_delta(&[head, &bytes].concat(), 1000) {
                prop_assert!(values.len() <= 1000 && end <= head.len() + bytes.len());
            }
        }
    }
}
