//! Thrift's compact protocol, as far as Parquet uses it.
//!
//! The `parquet` crate has a reader too. It reserves memory and stack by what the bytes claim and takes fields whatever
//! type they say they have, so a check before it can be led past what it reads. Footers and page headers are therefore
//! read here and nowhere else.

/// Structs inside structs. Parquet's own go five deep.
const MOST_DEPTH: u32 = 32;

/// Types of fields and of list elements.
pub(super) const BOOL_TRUE: u8 = 1;
pub(super) const BOOL_FALSE: u8 = 2;
pub(super) const I32: u8 = 5;
pub(super) const I64: u8 = 6;
pub(super) const BINARY: u8 = 8;
pub(super) const LIST: u8 = 9;
pub(super) const STRUCT: u8 = 12;

/// Why a structure cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CompactFault {
    /// The bytes end inside it: more of them may help.
    Short,
    /// More bytes do not help.
    Wrong(&'static str),
}

impl CompactFault {
    /// What is wrong, for a message, when there are no more bytes.
    pub(super) fn reason(self) -> &'static str {
        match self {
            CompactFault::Short => "it is cut short",
            CompactFault::Wrong(reason) => reason,
        }
    }
}

/// Reads a structure from the front of a slice. Allocates nothing.
pub(super) struct CompactReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> CompactReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> CompactReader<'a> {
        CompactReader { bytes, at: 0 }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Bytes that are left.
    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The number and type of the next field of a struct; none at its end. `last` is 0 at the start of a struct.
    pub(super) fn field(&mut self, last: &mut i16) -> Result<Option<(i16, u8)>, CompactFault> {
        let head = self.byte()?;
        let kind = head & 0x0f;
        if kind == 0 {
            return Ok(None);
        }
        *last = match head >> 4 {
            0 => i16::try_from(self.integer()?).map_err(|_| CompactFault::Wrong("a field number is over 32767"))?,
            step => last.checked_add(i16::from(step)).ok_or(CompactFault::Wrong("a field number is over 32767"))?,
        };
        Ok(Some((*last, kind)))
    }

    /// A 32-bit field that counts something.
    pub(super) fn count(&mut self, kind: u8) -> Result<u32, CompactFault> {
        expect(kind, I32)?;
        match i32::try_from(self.integer()?) {
            Ok(value @ 0..) => Ok(value.unsigned_abs()),
            _ => Err(CompactFault::Wrong("a count is negative or over 2147483647")),
        }
    }

    /// A 64-bit field.
    pub(super) fn long(&mut self, kind: u8) -> Result<i64, CompactFault> {
        expect(kind, I64)?;
        self.integer()
    }

    /// A field of bytes.
    pub(super) fn binary(&mut self, kind: u8) -> Result<&'a [u8], CompactFault> {
        expect(kind, BINARY)?;
        let size = usize::try_from(self.varint()?).map_err(|_| CompactFault::Short)?;
        let start = self.at;
        self.pass(size)?;
        Ok(&self.bytes[start..self.at])
    }

    /// The number of structs in a list that follow. There are no more of them than bytes left.
    pub(super) fn structs(&mut self, kind: u8) -> Result<usize, CompactFault> {
        expect(kind, LIST)?;
        match self.list()? {
            // Some writers give an empty list no type.
            (_, 0) => Ok(0),
            (STRUCT, count) => Ok(count),
            _ => Err(CompactFault::Wrong("a list has elements of another type than it must")),
        }
    }

    /// The element type and the number of elements of a list.
    fn list(&mut self) -> Result<(u8, usize), CompactFault> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            count => u64::from(count),
        };
        match usize::try_from(count) {
            Ok(count) if count <= self.remaining() => Ok((head & 0x0f, count)),
            _ => Err(CompactFault::Short),
        }
    }

    fn integer(&mut self) -> Result<i64, CompactFault> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// Passes over a field of type `kind`.
    pub(super) fn skip(&mut self, kind: u8) -> Result<(), CompactFault> {
        self.skip_within(kind, MOST_DEPTH)
    }

    fn skip_within(&mut self, kind: u8, depth: u32) -> Result<(), CompactFault> {
        let depth = depth.checked_sub(1).ok_or(CompactFault::Wrong("it is nested too deeply"))?;
        match kind {
            BOOL_TRUE | BOOL_FALSE => Ok(()),
            3 => self.pass(1),
            4..=6 => self.varint().map(drop),
            7 => self.pass(8),
            8 => {
                let size = self.varint()?;
                self.pass(usize::try_from(size).map_err(|_| CompactFault::Short)?)
            }
            LIST | 10 => {
                let (element, count) = self.list()?;
                (0..count).try_for_each(|_| self.skip_element(element, depth))
            }
            11 => self.skip_map(depth),
            STRUCT => {
                let mut last = 0;
                while let Some((_, kind)) = self.field(&mut last)? {
                    self.skip_within(kind, depth)?;
                }
                Ok(())
            }
            13 => self.pass(16),
            _ => Err(CompactFault::Wrong("a field has an unknown type")),
        }
    }

    fn skip_map(&mut self, depth: u32) -> Result<(), CompactFault> {
        let count = usize::try_from(self.varint()?).map_err(|_| CompactFault::Short)?;
        if count == 0 {
            return Ok(());
        }
        let kinds = self.byte()?;
        if count > self.remaining() {
            return Err(CompactFault::Short);
        }
        (0..count).try_for_each(|_| {
            self.skip_element(kinds >> 4, depth)?;
            self.skip_element(kinds & 0x0f, depth)
        })
    }

    /// A boolean is a byte in a list; in a struct its type is its value.
    fn skip_element(&mut self, kind: u8, depth: u32) -> Result<(), CompactFault> {
        match kind {
            BOOL_TRUE | BOOL_FALSE => self.pass(1),
            kind => self.skip_within(kind, depth),
        }
    }

    fn pass(&mut self, count: usize) -> Result<(), CompactFault> {
        match count <= self.remaining() {
            true => {
                self.at += count;
                Ok(())
            }
            false => Err(CompactFault::Short),
        }
    }

    fn byte(&mut self) -> Result<u8, CompactFault> {
        let byte = *self.bytes.get(self.at).ok_or(CompactFault::Short)?;
        self.at += 1;
        Ok(byte)
    }

    /// An unsigned number, seven bits to a byte, the low ones first.
    pub(super) fn varint(&mut self) -> Result<u64, CompactFault> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(CompactFault::Wrong("a number has more than 64 bits"))
    }
}

/// Fails if a field has another type than it must.
pub(super) fn expect(kind: u8, expected: u8) -> Result<(), CompactFault> {
    match kind == expected {
        true => Ok(()),
        false => Err(CompactFault::Wrong("a field has another type than it must")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_the_types_they_have() {
        // Field 1 is 150, field 3 is a list of two empty structs, field 4 is "ab", field 5 is -2, field 20 is true.
        let bytes = [0x15, 0xac, 0x02, 0x29, 0x2c, 0, 0, 0x18, 2, b'a', b'b', 0x16, 3, 0x01, 0x28, 0x00];
        let mut reader = CompactReader::new(&bytes);
        let mut last = 0;
        assert_eq!(reader.field(&mut last), Ok(Some((1, I32))));
        assert_eq!(reader.count(I32), Ok(150));
        assert_eq!(reader.field(&mut last), Ok(Some((3, LIST))));
        assert_eq!(reader.structs(LIST), Ok(2));
        assert_eq!((reader.skip(STRUCT), reader.skip(STRUCT)), (Ok(()), Ok(())));
        assert_eq!(reader.field(&mut last), Ok(Some((4, BINARY))));
        assert_eq!(reader.binary(BINARY), Ok(&b"ab"[..]));
        assert_eq!(reader.field(&mut last), Ok(Some((5, I64))));
        assert_eq!(reader.long(I64), Ok(-2));
        assert_eq!(reader.field(&mut last), Ok(Some((20, BOOL_TRUE))));
        assert_eq!(reader.field(&mut last), Ok(None));
        assert_eq!(reader.position(), bytes.len());
    }

    #[test]
    fn a_field_of_another_type_is_wrong() {
        let read = |bytes: &'static [u8]| CompactReader::new(bytes);
        assert!(matches!(read(&[2]).count(I64), Err(CompactFault::Wrong(_))));
        assert!(matches!(read(&[1]).count(I32), Err(CompactFault::Wrong(_))), "-1 is no count");
        assert!(matches!(read(&[2]).long(I32), Err(CompactFault::Wrong(_))));
        assert!(matches!(read(&[0]).binary(LIST), Err(CompactFault::Wrong(_))));
        assert!(matches!(read(&[0x15, 0]).structs(LIST), Err(CompactFault::Wrong(_))), "a list of numbers");
        assert!(matches!(read(&[0x1c, 0]).structs(10), Err(CompactFault::Wrong(_))), "a set");
        assert_eq!(read(&[0]).structs(LIST), Ok(0));
    }

    #[test]
    fn a_structure_cut_anywhere_is_short() {
        let bytes = [0x15, 0xac, 0x02, 0x29, 0x25, 0x02, 0x04, 0x18, 0x02, b'a', b'b', 0x00];
        assert_eq!(CompactReader::new(&bytes).skip(STRUCT), Ok(()));
        for end in 0..bytes.len() {
            assert_eq!(CompactReader::new(&bytes[..end]).skip(STRUCT), Err(CompactFault::Short), "cut at {end}");
        }
    }

    #[test]
    fn claims_beyond_the_bytes_and_deep_nesting_are_faults() {
        let list = [0x19, 0xf5, 0xff, 0xff, 0xff, 0xff, 0x0f];
        assert_eq!(CompactReader::new(&list).skip(STRUCT), Err(CompactFault::Short));
        let deep = [0x1c; 10_000];
        assert!(matches!(CompactReader::new(&deep).skip(STRUCT), Err(CompactFault::Wrong(_))));
    }
}
