//! The bytes of a page behind its header: decompressed, and split into levels and values.

use bytes::Bytes;

use super::codec::PageCodec;
use super::levels::PresenceReader;
use super::page_header::{PageHead, PageKind};

/// A page in memory.
pub(super) struct PageBody {
    /// Which rows have a value; none if all have.
    pub(super) levels: Option<PresenceReader>,
    /// The values, encoded.
    pub(super) values: Bytes,
}

impl PageBody {
    /// Decompresses a page and splits it. `bytes` are its header and what follows, which `head` has been parsed from and
    /// checked against; `max_level` is the definition level of a row that has a value.
    ///
    /// Memory: the size that the header claims, unless the page is not compressed. Fails if it becomes anything but that.
    pub(super) fn open(codec: PageCodec, head: &PageHead, max_level: u8, bytes: &Bytes) -> Result<PageBody, String> {
        let body = decompress(codec, head, bytes)?;
        let (levels, values) = match head.kind {
            PageKind::DataV2 { repetition_bytes, definition_bytes, .. } => {
                let start = repetition_bytes as usize;
                let end = start + definition_bytes as usize;
                let levels = (end <= body.len()).then(|| body.slice(start..end));
                (levels.ok_or("its levels do not fit the page")?, body.slice(end..))
            }
            PageKind::Data { levels_are_rle: true } if max_level > 0 => levels_of_v1(&body)?,
            PageKind::Data { levels_are_rle: false } if max_level > 0 => return Err(OLD_LEVELS.into()),
            PageKind::Data { .. } | PageKind::Dictionary => (Bytes::new(), body),
            PageKind::Other => return Err("expected a page of values, found another".into()),
        };
        let levels = match (max_level, head.is_data()) {
            (1.., true) => Some(PresenceReader::new(levels, max_level)?),
            _ => None,
        };
        Ok(PageBody { levels, values })
    }
}

/// What to do about levels that are bit-packed without runs, as writers did it ten years ago.
pub(super) const OLD_LEVELS: &str = "expected run-length encoded definition levels, found the old bit-packed encoding; \
                                     write the file again with a current version of pyarrow";

/// What follows the header, decompressed.
fn decompress(codec: PageCodec, head: &PageHead, bytes: &Bytes) -> Result<Bytes, String> {
    if head.total_bytes() != bytes.len() as u64 {
        return Err(format!("the page has {} bytes, expected {}", bytes.len(), head.total_bytes()));
    }
    let body = bytes.slice(head.header_bytes as usize..);
    let (stored, is_compressed) = head.stored();
    if !is_compressed || codec == PageCodec::Uncompressed {
        return Ok(body);
    }
    let mut out = vec![0; head.uncompressed_bytes as usize];
    let parts = out.split_at_mut_checked(stored as usize).zip(body.split_at_checked(stored as usize));
    let ((levels, values), (stored, compressed)) = parts.ok_or("its levels do not fit the page")?;
    levels.copy_from_slice(stored);
    // A page of nulls has no values, and writers differ in what they compress then.
    if !values.is_empty() {
        codec.decompress(compressed, values)?;
    }
    Ok(out.into())
}

/// The definition levels of a page of version 1 behind their size, and the values.
fn levels_of_v1(body: &Bytes) -> Result<(Bytes, Bytes), String> {
    let size = body.first_chunk::<4>().map(|size| u32::from_le_bytes(*size) as usize);
    let end = size.and_then(|size| size.checked_add(4)).filter(|end| *end <= body.len());
    let end = end.ok_or_else(|| format!("definition levels do not fit a page of {} bytes", body.len()))?;
    Ok((body.slice(4..end), body.slice(end..)))
}

#[cfg(test)]
mod tests {
    use super::super::page_header::ValueEncoding;
    use super::*;

    fn open(kind: PageKind, max_level: u8, body: &'static [u8]) -> Result<(bool, Bytes), String> {
        let head = PageHead {
            header_bytes: 0,
            compressed_bytes: body.len() as u32,
            uncompressed_bytes: body.len() as u32,
            num_values: 3,
            encoding: ValueEncoding::Plain,
            kind,
        };
        let body = PageBody::open(PageCodec::Uncompressed, &head, max_level, &Bytes::from_static(body))?;
        Ok((body.levels.is_some(), body.values))
    }

    #[test]
    fn levels_come_before_values_in_both_versions() {
        let v1 = PageKind::Data { levels_are_rle: true };
        assert_eq!(open(v1, 1, b"\x02\0\0\0\x06\x01abc"), Ok((true, Bytes::from_static(b"abc"))));
        assert_eq!(open(v1, 0, b"abc"), Ok((false, Bytes::from_static(b"abc"))));
        let v2 = PageKind::DataV2 { repetition_bytes: 1, definition_bytes: 2, is_compressed: false };
        assert_eq!(open(v2, 1, b"x\x06\x01abc"), Ok((true, Bytes::from_static(b"abc"))));
        assert_eq!(open(v2, 0, b"x\x06\x01abc"), Ok((false, Bytes::from_static(b"abc"))));
    }

    #[test]
    fn levels_that_do_not_fit_are_a_fault() {
        let v1 = PageKind::Data { levels_are_rle: true };
        for body in [&b"\x04\0\0\0abc"[..], b"\0\0", b"\xff\xff\xff\xff", b""] {
            assert!(open(v1, 1, body).is_err(), "{body:?}");
        }
        let v2 = PageKind::DataV2 { repetition_bytes: 2, definition_bytes: 2, is_compressed: false };
        assert!(open(v2, 1, b"abc").is_err());
        assert_eq!(open(PageKind::Data { levels_are_rle: false }, 1, b"abc"), Err(OLD_LEVELS.into()));
    }
}
