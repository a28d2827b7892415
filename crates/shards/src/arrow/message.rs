//! Messages of an Arrow stream: a marker, the size of the metadata, the metadata, the body.

use std::ops::Range;

use arrow_ipc::{Message, root_as_message};
use tandem_storage::ReadAt;

use crate::fault::ShardFault;

/// Where the messages of a file are.
pub(super) struct MessageSpan {
    pub(super) start: u64,
    end: u64,
    /// Whether the messages may end without an end-of-stream marker. They may in a stream, and before a footer; in the
    /// file format without a footer it means that the file was cut short.
    may_end: bool,
}

/// A message and where its body is, inside the file.
pub(super) struct ArrowMessage<'a> {
    pub(super) message: Message<'a>,
    pub(super) body: Range<u64>,
}

/// First and last bytes of the file format. Two bytes of padding follow the first.
const MAGIC: &[u8; 6] = b"ARROW1";
const MAGIC_PADDED_BYTES: u64 = 8;
/// The footer's size and the magic number.
const TAIL_BYTES: u64 = 10;

const CONTINUATION: u32 = u32::MAX;

/// The most metadata that a message may have. A schema of ten thousand columns has two megabytes.
const MAX_METADATA_BYTES: u64 = 16 << 20;

impl MessageSpan {
    /// Finds out whether it is the file format or a stream.
    pub(super) fn find(reader: &dyn ReadAt) -> Result<MessageSpan, ShardFault> {
        let num_bytes = reader.num_bytes();
        if num_bytes < MAGIC_PADDED_BYTES {
            let found = if num_bytes == 0 { "an empty file".to_owned() } else { format!("{num_bytes} bytes") };
            let reason = format!("expected an Arrow file or stream, found {found}");
            return Err(ShardFault::Damaged { offset: 0, reason });
        }
        let mut head = [0; MAGIC.len()];
        reader.read_exact_at(0, &mut head)?;
        if head != *MAGIC {
            return Ok(MessageSpan { start: 0, end: num_bytes, may_end: true });
        }
        let footer = find_footer(reader, num_bytes)?;
        let end = footer.unwrap_or(num_bytes);
        Ok(MessageSpan { start: MAGIC_PADDED_BYTES, end, may_end: footer.is_some() })
    }
}

/// Where the footer begins, if it is there.
fn find_footer(reader: &dyn ReadAt, num_bytes: u64) -> Result<Option<u64>, ShardFault> {
    let Some(tail_offset) = num_bytes.checked_sub(TAIL_BYTES) else { return Ok(None) };
    let mut tail = [0; TAIL_BYTES as usize];
    reader.read_exact_at(tail_offset, &mut tail)?;
    let [a, b, c, d, magic @ ..] = tail;
    let footer = tail_offset.checked_sub(u64::from(u32::from_le_bytes([a, b, c, d])));
    Ok(footer.filter(|offset| magic == *MAGIC && *offset >= MAGIC_PADDED_BYTES))
}

/// Reads the metadata of the message at `offset` into `metadata`. `None` is the end of the messages.
///
/// A message takes eight bytes at least, so a walk over all of them ends.
pub(super) fn read_message<'a>(
    reader: &dyn ReadAt,
    offset: u64,
    span: &MessageSpan,
    metadata: &'a mut Vec<u8>,
) -> Result<Option<ArrowMessage<'a>>, ShardFault> {
    let damaged = |reason: String| ShardFault::Damaged { offset, reason };
    let Some((metadata_offset, num_bytes)) = read_prefix(reader, offset, span)? else { return Ok(None) };
    let left = span.end.saturating_sub(metadata_offset);
    if num_bytes > left.min(MAX_METADATA_BYTES) {
        return Err(damaged(format!(
            "expected metadata of at most {MAX_METADATA_BYTES} bytes, {left} are left; found a size of {num_bytes}"
        )));
    }
    metadata.clear();
    metadata.resize(usize::try_from(num_bytes).unwrap_or(0), 0);
    reader.read_exact_at(metadata_offset, metadata)?;
    let message =
        root_as_message(metadata).map_err(|_| damaged("expected the metadata of a message, found none".into()))?;
    let start = metadata_offset + num_bytes;
    let body_bytes = message.bodyLength();
    let end = u64::try_from(body_bytes).ok().and_then(|bytes| start.checked_add(bytes)).filter(|end| *end <= span.end);
    let Some(end) = end else {
        let left = span.end.saturating_sub(start);
        return Err(damaged(format!(
            "a message has a body of {body_bytes} bytes, and {left} are left: it was cut short"
        )));
    };
    Ok(Some(ArrowMessage { message, body: start..end }))
}

/// Where the metadata begins and its size. `None` is the end of the messages.
fn read_prefix(reader: &dyn ReadAt, offset: u64, span: &MessageSpan) -> Result<Option<(u64, u64)>, ShardFault> {
    let left = span.end.saturating_sub(offset);
    let cut = || ShardFault::Damaged { offset, reason: "expected a message, found the end of the file".to_owned() };
    let mut prefix = [0; 8];
    match left {
        0 if span.may_end => return Ok(None),
        0..4 => return Err(cut()),
        // The old end-of-stream marker has four bytes.
        4..8 => reader.read_exact_at(offset, &mut prefix[..4])?,
        _ => reader.read_exact_at(offset, &mut prefix)?,
    }
    let [a, b, c, d, e, f, g, h] = prefix;
    let (first, second) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
    // Before version 0.15 there was no marker.
    let (metadata_offset, num_bytes) = match first {
        CONTINUATION if left < 8 => return Err(cut()),
        CONTINUATION => (offset + 8, second),
        num_bytes => (offset + 4, num_bytes),
    };
    Ok((num_bytes != 0).then_some((metadata_offset, u64::from(num_bytes))))
}
