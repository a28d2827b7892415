//! The header before a page, and what it may claim.

use super::codec::PageCodec;
use super::compact::{BOOL_FALSE, BOOL_TRUE, CompactFault, CompactReader, STRUCT, expect};

/// The most bytes that a page may have, compressed or not. A writer starts a new one at about a mebibyte; only a single
/// large value makes a page larger.
pub(super) const MOST_PAGE_BYTES: u32 = 1 << 30;

/// The most rows of a page with delta encoding: all lengths or numbers are decoded at once, eight bytes each.
const MOST_DELTA_ROWS: u32 = 1 << 24;

/// The most values of a dictionary: the places of all are found at once, eight bytes each. Writers end one at about a
/// mebibyte.
const MOST_DICTIONARY_VALUES: u32 = 1 << 22;

/// How values are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueEncoding {
    Plain,
    Dictionary,
    DeltaBinaryPacked,
    DeltaLengthByteArray,
    DeltaByteArray,
    ByteStreamSplit,
    /// Another one, by its number in the format.
    Unknown(u32),
}

impl ValueEncoding {
    fn of(number: u32) -> ValueEncoding {
        match number {
            0 => ValueEncoding::Plain,
            2 | 8 => ValueEncoding::Dictionary,
            5 => ValueEncoding::DeltaBinaryPacked,
            6 => ValueEncoding::DeltaLengthByteArray,
            7 => ValueEncoding::DeltaByteArray,
            9 => ValueEncoding::ByteStreamSplit,
            number => ValueEncoding::Unknown(number),
        }
    }

    /// Why values cannot be read.
    pub(super) fn not_read(self) -> String {
        format!("the values are encoded as {self:?}, which is not read for this type; write the file again")
    }
}

/// What a page holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageKind {
    Dictionary,
    /// Version 1: levels and values are compressed together.
    Data {
        /// Levels are run-length encoded, as every writer of the last ten years does it.
        levels_are_rle: bool,
    },
    /// Version 2: levels come first and are not compressed.
    DataV2 {
        repetition_bytes: u32,
        definition_bytes: u32,
        is_compressed: bool,
    },
    /// Something that readers pass over.
    Other,
}

/// The header of a page. It may hold statistics, which are not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageHead {
    /// Size of the header itself.
    pub(super) header_bytes: u32,
    pub(super) compressed_bytes: u32,
    pub(super) uncompressed_bytes: u32,
    /// Values with nulls; in a column that is not repeated, rows.
    pub(super) num_values: u32,
    pub(super) encoding: ValueEncoding,
    pub(super) kind: PageKind,
}

impl PageHead {
    /// The header at the front of `bytes`. [`CompactFault::Short`] if it does not end within them.
    pub(super) fn parse(bytes: &[u8]) -> Result<PageHead, CompactFault> {
        let mut reader = CompactReader::new(bytes);
        let (mut kind, mut uncompressed, mut compressed) = (None, None, None);
        let (mut data, mut dictionary, mut data_v2) = (None, None, None);
        let mut last = 0;
        while let Some((field, field_kind)) = reader.field(&mut last)? {
            match field {
                1 => kind = Some(reader.count(field_kind)?),
                2 => uncompressed = Some(reader.count(field_kind)?),
                3 => compressed = Some(reader.count(field_kind)?),
                5 => data = Some(data_fields(&mut reader, field_kind)?),
                7 => dictionary = Some(dictionary_fields(&mut reader, field_kind)?),
                8 => data_v2 = Some(data_v2_fields(&mut reader, field_kind)?),
                _ => reader.skip(field_kind)?,
            }
        }
        let (kind, num_values, encoding) = match (kind, data, dictionary, data_v2) {
            (Some(0), Some(fields), None, None) | (Some(2), None, Some(fields), None) => fields,
            (Some(3), None, None, Some(fields)) => fields,
            (Some(1 | 4..), ..) => (PageKind::Other, 0, ValueEncoding::Unknown(0)),
            _ => return Err(CompactFault::Wrong("its type and its fields do not belong together")),
        };
        let missing = CompactFault::Wrong("it does not say how large the page is");
        Ok(PageHead {
            header_bytes: u32::try_from(reader.position()).map_err(|_| missing)?,
            compressed_bytes: compressed.ok_or(missing)?,
            uncompressed_bytes: uncompressed.ok_or(missing)?,
            num_values,
            encoding,
            kind,
        })
    }

    /// Size of header and page in the file.
    pub(super) fn total_bytes(&self) -> u64 {
        u64::from(self.header_bytes) + u64::from(self.compressed_bytes)
    }

    /// How many bytes at the front of the page are never compressed, and whether the others are.
    pub(super) fn stored(&self) -> (u64, bool) {
        match self.kind {
            PageKind::DataV2 { repetition_bytes, definition_bytes, is_compressed, .. } => {
                (u64::from(repetition_bytes) + u64::from(definition_bytes), is_compressed)
            }
            _ => (0, true),
        }
    }

    /// Whether it holds rows.
    pub(super) fn is_data(&self) -> bool {
        matches!(self.kind, PageKind::Data { .. } | PageKind::DataV2 { .. })
    }

    /// Fails if the page claims what cannot be: a size past the `room` bytes that follow the header, one that its codec
    /// cannot reach, or one over the limit. After this, memory for its uncompressed size may be reserved.
    pub(super) fn check(&self, codec: PageCodec, room: u64) -> Result<(), String> {
        let (compressed, uncompressed) = (self.compressed_bytes, self.uncompressed_bytes);
        if u64::from(compressed) > room {
            return Err(format!("the page claims {compressed} bytes and {room} are left"));
        }
        if compressed.max(uncompressed) > MOST_PAGE_BYTES {
            let found = compressed.max(uncompressed);
            return Err(format!("the page claims {found} bytes; the limit is {MOST_PAGE_BYTES}"));
        }
        let (stored, is_compressed) = self.stored();
        if stored > u64::from(compressed.min(uncompressed)) {
            return Err(format!("the page claims {stored} bytes of levels and has {compressed}"));
        }
        let most = match is_compressed {
            true => codec.most_uncompressed(u64::from(compressed) - stored).saturating_add(stored),
            false => u64::from(compressed),
        };
        let exact = !is_compressed || codec == PageCodec::Uncompressed;
        if u64::from(uncompressed) > most || (exact && u64::from(uncompressed) != most) {
            return Err(format!("{compressed} bytes ({codec:?}) cannot hold a page of {uncompressed} bytes"));
        }
        self.check_values()
    }

    fn check_values(&self) -> Result<(), String> {
        let (rows, bytes) = (self.num_values, self.uncompressed_bytes);
        use ValueEncoding::{DeltaBinaryPacked, DeltaByteArray, DeltaLengthByteArray};
        let is_delta = matches!(self.encoding, DeltaBinaryPacked | DeltaLengthByteArray | DeltaByteArray);
        match self.kind {
            // A value of a dictionary has at least its length, or is a number of four bytes.
            PageKind::Dictionary if rows > bytes / 4 => {
                Err(format!("the dictionary claims {rows} values in {bytes} bytes"))
            }
            PageKind::Dictionary if rows > MOST_DICTIONARY_VALUES => {
                Err(format!("the dictionary claims {rows} values; the limit is {MOST_DICTIONARY_VALUES}"))
            }
            _ if is_delta && rows > MOST_DELTA_ROWS => {
                Err(format!("the page claims {rows} delta-encoded values; the limit is {MOST_DELTA_ROWS}"))
            }
            _ => Ok(()),
        }
    }
}

type Fields = (PageKind, u32, ValueEncoding);

fn data_fields(reader: &mut CompactReader<'_>, kind: u8) -> Result<Fields, CompactFault> {
    expect(kind, STRUCT)?;
    let (mut num_values, mut encoding, mut level_encoding) = (None, None, None);
    let mut last = 0;
    while let Some((field, kind)) = reader.field(&mut last)? {
        match field {
            1 => num_values = Some(reader.count(kind)?),
            2 => encoding = Some(reader.count(kind)?),
            3 => level_encoding = Some(reader.count(kind)?),
            _ => reader.skip(kind)?,
        }
    }
    let kind = PageKind::Data { levels_are_rle: level_encoding == Some(3) };
    fields(kind, num_values, encoding)
}

fn dictionary_fields(reader: &mut CompactReader<'_>, kind: u8) -> Result<Fields, CompactFault> {
    expect(kind, STRUCT)?;
    let (mut num_values, mut encoding) = (None, None);
    let mut last = 0;
    while let Some((field, kind)) = reader.field(&mut last)? {
        match field {
            1 => num_values = Some(reader.count(kind)?),
            2 => encoding = Some(reader.count(kind)?),
            _ => reader.skip(kind)?,
        }
    }
    fields(PageKind::Dictionary, num_values, encoding)
}

fn data_v2_fields(reader: &mut CompactReader<'_>, kind: u8) -> Result<Fields, CompactFault> {
    expect(kind, STRUCT)?;
    let (mut num_values, mut encoding) = (None, None);
    let (mut definition_bytes, mut repetition_bytes, mut is_compressed) = (0, 0, true);
    let mut last = 0;
    while let Some((field, kind)) = reader.field(&mut last)? {
        match (field, kind) {
            (1, _) => num_values = Some(reader.count(kind)?),
            // The numbers of nulls and rows are not needed: levels have the nulls, and without lists a row is a value.
            (4, _) => encoding = Some(reader.count(kind)?),
            (5, _) => definition_bytes = reader.count(kind)?,
            (6, _) => repetition_bytes = reader.count(kind)?,
            (7, BOOL_TRUE | BOOL_FALSE) => is_compressed = kind == BOOL_TRUE,
            _ => reader.skip(kind)?,
        }
    }
    fields(PageKind::DataV2 { repetition_bytes, definition_bytes, is_compressed }, num_values, encoding)
}

fn fields(kind: PageKind, num_values: Option<u32>, encoding: Option<u32>) -> Result<Fields, CompactFault> {
    match (num_values, encoding) {
        (Some(num_values), Some(encoding)) => Ok((kind, num_values, ValueEncoding::of(encoding))),
        _ => Err(CompactFault::Wrong("it does not say how many values the page has and how they are encoded")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page of version 1: 100 bytes, 40 compressed, 7 values in plain encoding.
    const HEADER: [u8; 17] = [0x15, 0, 0x15, 200, 1, 0x15, 80, 0x2c, 0x15, 14, 0x15, 0, 0x15, 6, 0x15, 6, 0];

    fn head() -> PageHead {
        PageHead::parse(&[&HEADER[..], &[0, 9, 9]].concat()).unwrap()
    }

    #[test]
    fn a_header_is_read_without_the_page_behind_it() {
        let expected = PageHead {
            header_bytes: 18,
            compressed_bytes: 40,
            uncompressed_bytes: 100,
            num_values: 7,
            encoding: ValueEncoding::Plain,
            kind: PageKind::Data { levels_are_rle: true },
        };
        assert_eq!(head(), expected);
        for end in 0..=HEADER.len() {
            assert_eq!(PageHead::parse(&HEADER[..end]), Err(CompactFault::Short), "cut at {end}");
        }
    }

    #[test]
    fn a_field_of_another_type_hides_nothing() {
        // The size of the page as bytes, among which another reader would find the fields of another header.
        let hidden = [&[0x15, 0, 0x18, HEADER.len() as u8][..], &HEADER, &[0]].concat();
        assert!(matches!(PageHead::parse(&hidden), Err(CompactFault::Wrong(_))));
    }

    #[test]
    fn sizes_that_cannot_be_are_refused_before_memory_is_reserved() {
        let check = |codec, room, change: fn(&mut PageHead)| {
            let mut head = head();
            change(&mut head);
            head.check(codec, room)
        };
        assert_eq!(check(PageCodec::Snappy, 40, |_| ()), Ok(()));
        assert!(check(PageCodec::Snappy, 39, |_| ()).is_err(), "past the end");
        assert!(check(PageCodec::Uncompressed, 40, |_| ()).is_err(), "100 bytes in 40");
        assert!(check(PageCodec::Snappy, 40, |head| head.uncompressed_bytes = 40 * 64 + 1).is_err());
        assert_eq!(check(PageCodec::Zstd, 40, |head| head.uncompressed_bytes = 40 * 65_536), Ok(()));
        let is_over = check(PageCodec::Zstd, u64::MAX, |head| head.uncompressed_bytes = MOST_PAGE_BYTES + 1);
        assert!(is_over.is_err(), "over the limit");
    }

    #[test]
    fn counts_that_cannot_be_are_refused_before_memory_is_reserved() {
        let check = |kind, encoding, num_values| {
            PageHead { kind, encoding, num_values, uncompressed_bytes: 1 << 26, ..head() }.check_values()
        };
        let (data, plain) = (PageKind::Data { levels_are_rle: true }, ValueEncoding::Plain);
        assert!(check(PageKind::Dictionary, plain, MOST_DICTIONARY_VALUES).is_ok());
        assert!(check(PageKind::Dictionary, plain, MOST_DICTIONARY_VALUES + 1).is_err());
        assert!(check(PageKind::Dictionary, plain, (1 << 24) + 1).is_err(), "a value has four bytes");
        assert!(check(data, ValueEncoding::DeltaByteArray, MOST_DELTA_ROWS).is_ok());
        assert!(check(data, ValueEncoding::DeltaByteArray, MOST_DELTA_ROWS + 1).is_err());
    }
}
