//! Members of a tar archive, by name and byte position.
//!
//! One pass over the headers; the data of members is skipped by seeking. Names come from the header, from GNU long-name
//! records or from pax records. Regular files are members and directories are passed over. Anything else (a link, a
//! device, a sparse file, a name that leaves the folder) is a fault of that one member, and reading continues. Zero
//! blocks do not end the archive: archives may be concatenated, so it ends where the file ends.

mod header;
mod name;
mod pax;

use std::io::{self, Read, Seek, SeekFrom};

use self::header::{BLOCK_BYTES, MemberKind, TarHeader};
pub(crate) use self::name::check_name;
use self::pax::PaxRecords;
use crate::fault::{SIZE_ADVICE, ShardFault};

/// A regular file in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TarMember {
    /// Its name as the archive spells it: relative, UTF-8, without `..`.
    pub name: String,
    /// Its first data byte, from the start of the archive.
    pub offset: u64,
    /// Its size, below 4 GiB. `offset + num_bytes` lies inside the archive.
    pub num_bytes: u64,
    /// Its header, from the start of the archive. Long-name records that belong to it come before.
    pub header_offset: u64,
}

/// Reads the members of an archive in the order they are stored.
///
/// An iterator: each item is a member or a fault. A fault of one member is followed by the members after it; after a
/// fault of the archive itself (damaged, cut short, unreadable) the iterator ends.
///
/// A member costs a seek, a read of 4 KiB and its name. Headers and small members that lie close together share a read.
pub struct TarReader<R> {
    reader: R,
    num_bytes: u64,
    /// Where the next header is.
    position: u64,
    window: Window,
    /// What extension records say of the next member.
    pending: Pending,
    /// Whether the last block was an end-of-archive marker.
    at_marker: bool,
    is_finished: bool,
}

/// Bytes of the archive in memory, from `start` on.
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

/// Extension records that were read and whose member was not.
#[derive(Default)]
struct Pending {
    name: Option<Vec<u8>>,
    num_bytes: Option<u64>,
    is_sparse: bool,
    is_any: bool,
}

/// Read at once at a header. A page: the header, a transcript and the next header often fit.
const WINDOW_BYTES: u64 = 4096;

/// Read at once between concatenated archives and at the end, where padding can be long.
const PADDING_WINDOW_BYTES: u64 = 256 << 10;

/// The most that a long name or the pax records of one member may have.
const MAX_EXTENSION_BYTES: u64 = 1 << 20;

impl<R: Read + Seek> TarReader<R> {
    /// Reads the archive in `reader`, which has `num_bytes` bytes. Reads nothing yet.
    pub fn new(reader: R, num_bytes: u64) -> TarReader<R> {
        TarReader {
            reader,
            num_bytes,
            position: 0,
            window: Window { start: 0, bytes: Vec::new() },
            pending: Pending::default(),
            at_marker: false,
            is_finished: false,
        }
    }

    /// Replaces `out` by the bytes of a member: a transcript, a JSON object.
    ///
    /// Fails with [`ShardFault::Unsupported`] before anything is read if it has more than `max_bytes`.
    pub fn read_small(&mut self, member: &TarMember, max_bytes: u64, out: &mut Vec<u8>) -> Result<(), ShardFault> {
        let TarMember { name, offset, num_bytes, .. } = member;
        if *num_bytes > max_bytes {
            let reason = format!("`{name}`: expected at most {max_bytes} bytes, found {num_bytes}");
            return Err(ShardFault::Unsupported { reason });
        }
        let end = offset.checked_add(*num_bytes).filter(|end| *end <= self.num_bytes);
        if end.is_none() {
            let reason = format!("`{name}`: {num_bytes} bytes do not fit into the {} of the archive", self.num_bytes);
            return Err(ShardFault::Damaged { offset: *offset, reason });
        }
        self.read_into(*offset, *num_bytes, out)
    }

    /// Whether nothing follows what the iterator gave last: it was a fault of the archive rather than of a member.
    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    fn next_item(&mut self) -> Result<Option<TarMember>, Stop> {
        loop {
            let header_offset = self.position;
            let Some(header) = self.read_header()? else { return self.end() };
            let data_offset = self.skip_sparse_maps(&header, header_offset + BLOCK_BYTES)?;
            let num_bytes = match (header.kind.is_extension(), self.pending.num_bytes) {
                (false, Some(num_bytes)) if header.kind.has_data() => num_bytes,
                _ => header.num_bytes,
            };
            let Some(end) = data_offset.checked_add(num_bytes).filter(|end| *end <= self.num_bytes) else {
                let left = self.num_bytes.saturating_sub(data_offset);
                let name = String::from_utf8_lossy(self.pending.name.as_deref().unwrap_or(&header.name));
                let reason = format!("`{}` has {num_bytes} bytes, and the archive ends after {left}", clip(&name));
                return Err(Stop::archive(ShardFault::Damaged { offset: header_offset, reason }));
            };
            self.position = end.checked_next_multiple_of(BLOCK_BYTES).unwrap_or(u64::MAX);
            if header.kind.is_extension() {
                self.read_extension(header.kind, header_offset, data_offset, num_bytes)?;
                continue;
            }
            let pending = std::mem::take(&mut self.pending);
            if let Some(member) = to_member(header, pending, header_offset, data_offset, num_bytes)? {
                return Ok(Some(member));
            }
        }
    }

    /// The next header; zero blocks before it are passed over. `None` is the end of the file.
    fn read_header(&mut self) -> Result<Option<TarHeader>, Stop> {
        loop {
            let offset = self.position;
            let left = self.num_bytes.saturating_sub(offset);
            let window_bytes = if self.at_marker { PADDING_WINDOW_BYTES } else { WINDOW_BYTES };
            let block = self.block(offset, left.min(BLOCK_BYTES), window_bytes)?;
            let is_zero = block.iter().all(|byte| *byte == 0);
            if left < BLOCK_BYTES {
                return match is_zero {
                    true => Ok(None),
                    false => Err(Stop::archive(header::not_a_tar(offset, block))),
                };
            }
            if is_zero {
                self.position += BLOCK_BYTES;
                self.at_marker = true;
                continue;
            }
            let header = TarHeader::parse(block, offset).map_err(Stop::archive)?;
            self.at_marker = false;
            return Ok(Some(header));
        }
    }

    /// The file ends here: is that where the archive ends?
    fn end(&mut self) -> Result<Option<TarMember>, Stop> {
        let reason = match (self.num_bytes, self.pending.is_any, self.at_marker) {
            (0, ..) => "expected a tar archive, found an empty file",
            (_, true, _) => "expected the member that a long-name record describes, found the end of the file",
            (_, _, false) => "expected the end-of-archive marker, found the end of the file: it was cut short",
            _ => return Ok(None),
        };
        Err(Stop::archive(ShardFault::Damaged { offset: self.num_bytes, reason: reason.to_owned() }))
    }

    /// Where the data begins: GNU tar puts the rest of a long sparse map between the header and the data.
    fn skip_sparse_maps(&mut self, header: &TarHeader, mut offset: u64) -> Result<u64, Stop> {
        let mut has_more = header.has_sparse_map;
        while has_more {
            if self.num_bytes.saturating_sub(offset) < BLOCK_BYTES {
                let reason = "expected the rest of a sparse map, found the end of the file".to_owned();
                return Err(Stop::archive(ShardFault::Damaged { offset, reason }));
            }
            has_more = header::continues_sparse_map(self.block(offset, BLOCK_BYTES, WINDOW_BYTES)?);
            offset += BLOCK_BYTES;
        }
        Ok(offset)
    }

    /// Takes a long name or pax records into account.
    fn read_extension(
        &mut self,
        kind: MemberKind,
        header_offset: u64,
        offset: u64,
        num_bytes: u64,
    ) -> Result<(), Stop> {
        self.pending.is_any |= kind != MemberKind::PaxGlobal;
        if kind == MemberKind::LongLink {
            return Ok(());
        }
        if num_bytes > MAX_EXTENSION_BYTES {
            let reason =
                format!("expected a name or pax records of at most {MAX_EXTENSION_BYTES} bytes, found {num_bytes}");
            return Err(Stop::archive(ShardFault::Damaged { offset: header_offset, reason }));
        }
        let mut bytes = Vec::new();
        self.read_into(offset, num_bytes, &mut bytes).map_err(Stop::archive)?;
        if kind == MemberKind::LongName {
            let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
            bytes.truncate(end);
            self.pending.name = Some(bytes);
            return Ok(());
        }
        let records = PaxRecords::parse(&bytes, offset).map_err(Stop::archive)?;
        if kind == MemberKind::PaxGlobal {
            return records.check_global().map_err(Stop::archive);
        }
        self.pending.num_bytes = records.num_bytes.or(self.pending.num_bytes);
        self.pending.is_sparse |= records.is_sparse;
        if let Some(name) = records.name {
            self.pending.name = Some(name.to_vec());
        }
        Ok(())
    }

    /// `num_bytes` bytes at `offset`, both inside the archive, with up to `window_bytes` read at once.
    fn block(&mut self, offset: u64, num_bytes: u64, window_bytes: u64) -> Result<&[u8], Stop> {
        if self.window.get(offset, num_bytes).is_none() {
            let size = window_bytes.min(self.num_bytes.saturating_sub(offset)).max(num_bytes);
            let mut bytes = std::mem::take(&mut self.window.bytes);
            self.read_from(offset, size, &mut bytes).map_err(Stop::archive)?;
            self.window = Window { start: offset, bytes };
        }
        self.window.get(offset, num_bytes).ok_or_else(|| Stop::archive(unexpected_end().into()))
    }

    /// Replaces `out` by `num_bytes` bytes at `offset`, from the window if they are there.
    fn read_into(&mut self, offset: u64, num_bytes: u64, out: &mut Vec<u8>) -> Result<(), ShardFault> {
        match self.window.get(offset, num_bytes) {
            Some(bytes) => {
                out.clear();
                out.extend_from_slice(bytes);
                Ok(())
            }
            None => self.read_from(offset, num_bytes, out),
        }
    }

    /// `num_bytes` is bounded by the caller: a window, an extension, or what the user of `read_small` allows.
    fn read_from(&mut self, offset: u64, num_bytes: u64, out: &mut Vec<u8>) -> Result<(), ShardFault> {
        self.reader.seek(SeekFrom::Start(offset))?;
        out.clear();
        out.resize(usize::try_from(num_bytes).map_err(|_| unexpected_end())?, 0);
        self.reader.read_exact(out)?;
        Ok(())
    }
}

impl<R: Read + Seek> Iterator for TarReader<R> {
    type Item = Result<TarMember, ShardFault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_finished {
            return None;
        }
        match self.next_item() {
            Ok(Some(member)) => Some(Ok(member)),
            Ok(None) => {
                self.is_finished = true;
                None
            }
            Err(Stop { fault, is_final }) => {
                self.is_finished = is_final;
                Some(Err(fault))
            }
        }
    }
}

impl Window {
    fn get(&self, offset: u64, num_bytes: u64) -> Option<&[u8]> {
        let start = usize::try_from(offset.checked_sub(self.start)?).ok()?;
        self.bytes.get(start..start.checked_add(usize::try_from(num_bytes).ok()?)?)
    }
}

/// A fault, and whether anything can be read after it.
struct Stop {
    fault: ShardFault,
    is_final: bool,
}

impl Stop {
    fn archive(fault: ShardFault) -> Stop {
        Stop { fault, is_final: true }
    }

    fn member(name: &[u8], header_offset: u64, what: &str) -> Stop {
        let name = String::from_utf8_lossy(name);
        let reason = format!("`{}` {what} (header at byte {header_offset})", clip(&name));
        Stop { fault: ShardFault::Unsupported { reason }, is_final: false }
    }
}

/// The member, if it is one. A directory is none.
fn to_member(
    header: TarHeader,
    pending: Pending,
    header_offset: u64,
    offset: u64,
    num_bytes: u64,
) -> Result<Option<TarMember>, Stop> {
    let name = pending.name.unwrap_or(header.name);
    let refuse = |what: &str| Stop::member(&name, header_offset, what);
    match header.kind {
        MemberKind::Directory => return Ok(None),
        MemberKind::Regular if pending.is_sparse => return Err(refuse("is a sparse file: expected a regular file")),
        MemberKind::Regular => {}
        MemberKind::Other(what) => return Err(refuse(&format!("is {what}: expected a regular file"))),
        // Extensions are not handed here.
        _ => return Ok(None),
    }
    let Ok(text) = str::from_utf8(&name) else { return Err(refuse("is no UTF-8: expected a name in UTF-8")) };
    check_name(text).map_err(refuse)?;
    if num_bytes > u64::from(u32::MAX) {
        return Err(refuse(&format!("has {num_bytes} bytes: {SIZE_ADVICE}")));
    }
    let name = String::from_utf8(name).map_err(|error| Stop::member(error.as_bytes(), header_offset, "is no UTF-8"))?;
    Ok(Some(TarMember { name, offset, num_bytes, header_offset }))
}

/// The beginning of a name, for messages.
fn clip(name: &str) -> String {
    const MAX_CHARS: usize = 200;
    match name.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

fn unexpected_end() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than its size said")
}
