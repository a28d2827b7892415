//! Records of a pax header: `LENGTH KEY=VALUE\n`, one after the other.
//!
//! The length decides where a record ends: a value may contain line breaks, which the iterator of the `tar` crate takes
//! for the end.

use crate::fault::ShardFault;

/// What the records of one pax header say. The last record of a key counts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PaxRecords<'a> {
    pub(super) name: Option<&'a [u8]>,
    pub(super) num_bytes: Option<u64>,
    pub(super) is_sparse: bool,
}

impl<'a> PaxRecords<'a> {
    /// Reads the records in `bytes`, which lie at `offset` of the archive.
    pub(super) fn parse(bytes: &'a [u8], offset: u64) -> Result<PaxRecords<'a>, ShardFault> {
        let mut records = PaxRecords::default();
        let mut rest = bytes;
        // Some writers fill the block with zeros and count them.
        while rest.first().is_some_and(|byte| *byte != 0) {
            let at = offset + (bytes.len() - rest.len()) as u64;
            let damaged = |reason: &str| ShardFault::Damaged { offset: at, reason: reason.to_owned() };
            let (key, value, after) =
                split_record(rest).ok_or_else(|| damaged("expected a pax record, `LENGTH KEY=VALUE`, found none"))?;
            match key {
                b"path" => records.name = Some(value),
                b"size" => {
                    let size = str::from_utf8(value).ok().and_then(|value| value.parse().ok());
                    records.num_bytes = Some(size.ok_or_else(|| damaged("expected a size in a pax record"))?);
                }
                _ => records.is_sparse |= key.starts_with(b"GNU.sparse."),
            }
            rest = after;
        }
        Ok(records)
    }

    /// Global records may hold a comment or a date. A name or a size for all members makes no sense.
    pub(super) fn check_global(&self) -> Result<(), ShardFault> {
        if *self == PaxRecords::default() {
            return Ok(());
        }
        let reason = "a global pax header gives all members one name or size: write the archive without it".to_owned();
        Err(ShardFault::Unsupported { reason })
    }
}

/// Key, value and what comes after the first record.
fn split_record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().position(|byte| *byte == b' ')?;
    let length: usize = str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
    let (record, after) = bytes.split_at_checked(length)?;
    let body = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|byte| *byte == b'=')?;
    Some((&body[..equals], &body[equals + 1..], after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_a_record_decides_where_it_ends() {
        let bytes = b"9 a=b\nc\n\n17 path=x\ny/z\xff.a\n11 size=12\n\0\0";
        let records = PaxRecords::parse(bytes, 0).unwrap();
        assert_eq!(records, PaxRecords { name: Some(b"x\ny/z\xff.a"), num_bytes: Some(12), is_sparse: false });
        assert!(PaxRecords::parse(b"22 GNU.sparse.major=1\n", 0).unwrap().is_sparse);
    }

    #[test]
    fn records_that_are_none_are_faults_with_their_place() {
        for bytes in [
            &b"x"[..],
            b"9 a=b\n",
            b"6 a=b",
            b"6 a-bc\n",
            b"0 a=b\n",
            b"1 a=b\n",
            b"99999999999999999999 a=b\n",
            b"10 size=-1\n",
            b"30 size=99999999999999999999999\n",
        ] {
            assert!(PaxRecords::parse(bytes, 0).is_err(), "{}", bytes.escape_ascii());
        }
        let Err(ShardFault::Damaged { offset, .. }) = PaxRecords::parse(b"6 a=b\n6 a:b\n", 512) else { panic!() };
        assert_eq!(offset, 518);
    }

    #[test]
    fn a_global_header_may_hold_comments_only() {
        assert!(PaxRecords::parse(b"13 comment=x\n", 0).unwrap().check_global().is_ok());
        assert!(PaxRecords::parse(b"10 path=x\n", 0).unwrap().check_global().is_err());
    }
}
