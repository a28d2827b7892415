//! Small numbers as runs: one number repeated, or groups of eight numbers packed bit by bit. Definition levels and keys of
//! dictionaries are stored so.

use bytes::Bytes;

/// Reads numbers in order, without decoding the ones that follow. Allocates nothing.
pub(super) struct HybridReader {
    bytes: Bytes,
    at: usize,
    /// Bits of a number, at most 32.
    width: usize,
    run: Run,
}

enum Run {
    Repeated {
        value: u32,
        left: u64,
    },
    /// From bit `next` of the bytes on.
    Packed {
        next: usize,
        left: u64,
    },
}

const CUT: &str = "there are fewer levels or keys than rows";

impl HybridReader {
    /// Over numbers of `width` bits.
    pub(super) fn new(bytes: Bytes, width: u8) -> Result<HybridReader, String> {
        match width {
            0..=32 => Ok(HybridReader { bytes, at: 0, width: width.into(), run: Run::Repeated { value: 0, left: 0 } }),
            _ => Err(format!("expected levels or keys of at most 32 bits, found {width}")),
        }
    }

    /// Lets go of what the numbers are a part of.
    pub(super) fn copy_bytes(&mut self) {
        self.bytes = Bytes::copy_from_slice(&self.bytes);
    }

    /// The next number. Fails if there are no more.
    pub(super) fn next(&mut self) -> Result<u32, &'static str> {
        self.load_run()?;
        match &mut self.run {
            Run::Repeated { value, left } => {
                *left -= 1;
                Ok(*value)
            }
            Run::Packed { next, left } => {
                let bit = *next;
                *left -= 1;
                *next += self.width;
                self.packed(bit)
            }
        }
    }

    /// Passes over `count` numbers. Fails if there are not so many.
    pub(super) fn skip(&mut self, mut count: u64) -> Result<(), &'static str> {
        while count > 0 {
            self.load_run()?;
            let (Run::Repeated { left, .. } | Run::Packed { left, .. }) = &mut self.run;
            let step = count.min(*left);
            *left -= step;
            count -= step;
            if let Run::Packed { next, .. } = &mut self.run {
                // No more bits than the bytes have: a run was checked against them.
                *next += usize::try_from(step).map_err(|_| CUT)? * self.width;
            }
        }
        Ok(())
    }

    /// Goes to the next run that is not empty, if this one is. Each takes a byte at least, so this ends.
    fn load_run(&mut self) -> Result<(), &'static str> {
        while let Run::Repeated { left: 0, .. } | Run::Packed { left: 0, .. } = self.run {
            self.run = self.next_run()?;
        }
        Ok(())
    }

    fn next_run(&mut self) -> Result<Run, &'static str> {
        let head = self.varint()?;
        let count = head >> 1;
        if head & 1 == 0 {
            let size = self.width.div_ceil(8);
            let mut value = [0; 4];
            let stored = self.bytes.get(self.at..self.at + size).ok_or(CUT)?;
            value.iter_mut().zip(stored).for_each(|(byte, stored)| *byte = *stored);
            self.at += size;
            return Ok(Run::Repeated { value: u32::from_le_bytes(value), left: count });
        }
        // The last group may be cut: only numbers that are asked for must be there.
        let start = self.at;
        let groups = usize::try_from(count).map_err(|_| CUT)?;
        let end = groups.checked_mul(self.width).and_then(|bytes| bytes.checked_add(start)).ok_or(CUT)?;
        self.at = end.min(self.bytes.len());
        let stored = match self.width {
            0 => count.saturating_mul(8),
            width => ((self.at - start) * 8 / width) as u64,
        };
        Ok(Run::Packed { next: start * 8, left: stored.min(count.saturating_mul(8)) })
    }

    /// The number that begins at `bit`.
    fn packed(&self, bit: usize) -> Result<u32, &'static str> {
        let (start, shift) = (bit / 8, bit % 8);
        let stored = self.bytes.get(start..start + (shift + self.width).div_ceil(8)).ok_or(CUT)?;
        let mut word = [0; 8];
        word.iter_mut().zip(stored).for_each(|(byte, stored)| *byte = *stored);
        let value = (u64::from_le_bytes(word) >> shift) & ((1 << self.width) - 1);
        u32::try_from(value).map_err(|_| CUT)
    }

    fn varint(&mut self) -> Result<u64, &'static str> {
        let mut value = 0_u64;
        for shift in (0..35).step_by(7) {
            let byte = *self.bytes.get(self.at).ok_or(CUT)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("the length of a run has more than 32 bits")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &'static [u8], width: u8, count: usize) -> Result<Vec<u32>, &'static str> {
        let mut reader = HybridReader::new(Bytes::from_static(bytes), width).unwrap();
        (0..count).map(|_| reader.next()).collect()
    }

    #[test]
    fn repeated_and_packed_runs_follow_each_other() {
        // Three times 1, then a group of eight bits, then twice 0.
        let found = read(&[6, 1, 3, 0b0101_0011, 4, 0], 1, 13).unwrap();
        assert_eq!(found, [1, 1, 1, 1, 1, 0, 0, 1, 0, 1, 0, 0, 0]);
        // Numbers of 12 bits have two bytes where they are repeated.
        assert_eq!(read(&[4, 0xbc, 0x0a], 12, 2), Ok(vec![0xabc, 0xabc]));
        // Numbers of no bits: twice, then a group of eight.
        assert_eq!(read(&[4, 3], 0, 10), Ok(vec![0; 10]));
        assert_eq!(read(&[4, 3], 0, 11), Err(CUT));
    }

    #[test]
    fn too_few_numbers_are_a_fault() {
        assert_eq!(read(&[6, 1], 1, 4), Err(CUT));
        assert_eq!(read(&[3], 1, 1), Err(CUT));
        assert_eq!(read(&[6], 1, 1), Err(CUT));
        assert!(read(&[0xff; 9], 1, 1).is_err());
        assert_eq!(read(&[0, 1, 0, 1], 1, 1), Err(CUT), "runs of nothing end");
        assert!(HybridReader::new(Bytes::new(), 33).is_err());
    }

    /// Runs of numbers of `width` bits: one number repeated, or packed.
    fn encode(width: u32, runs: &[(bool, Vec<u32>)]) -> (Vec<u8>, Vec<u32>) {
        let (mut bytes, mut values) = (Vec::new(), Vec::new());
        for (is_packed, run) in runs {
            let run: Vec<u32> = run.iter().map(|value| value & ((1_u64 << width) - 1) as u32).collect();
            if *is_packed {
                bytes.push(run.len() as u8 / 8 * 2 + 1);
                let mut bits = Vec::new();
                run.iter().for_each(|value| bits.extend((0..width).map(|bit| value >> bit & 1)));
                bytes.extend(bits.chunks(8).map(|bits| bits.iter().rev().fold(0, |byte, bit| byte << 1 | *bit as u8)));
                values.extend(run);
            } else {
                bytes.push(run.len() as u8 * 2);
                bytes.extend(&run[0].to_le_bytes()[..width.div_ceil(8) as usize]);
                values.extend(vec![run[0]; run.len()]);
            }
        }
        (bytes, values)
    }

    proptest! {
        #[test]
        fn numbers_of_all_widths_are_read_and_passed_over(
            width in 0_u32..=32,
            runs in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u32>(), 24)), 1..5),
            skips in prop::collection::vec(0_u64..40, 0..6),
        ) {
            let (bytes, values) = encode(width, &runs);
            let mut reader = HybridReader::new(bytes.into(), width as u8).unwrap();
            let mut at = 0;
            for skip in skips {
                let end = at + skip as usize;
                prop_assert_eq!(reader.skip(skip).is_ok(), end <= values.len());
                prop_assume!(end <= values.len());
                at = end;
                if at < values.len() {
                    prop_assert_eq!(reader.next(), Ok(values[at]));
                    at += 1;
                }
            }
            for value in &values[at..] {
                prop_assert_eq!(reader.next(), Ok(*value));
            }
            prop_assert_eq!(reader.next(), Err(CUT));
        }

        #[test]
        fn any_bytes_are_numbers_or_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..40), width in 0_u8..=32, skip: u64) {
            let mut reader = HybridReader::new(bytes.into(), width).unwrap();
            for _ in 0..100 {
                let _ = reader.next();
            }
            let _ = reader.skip(skip % 100_000);
            let _ = reader.next();
        }
    }
}
