//! One header block: its checksum, what sort of member it begins, its size and short name.

use ::tar::Header;

use crate::fault::ShardFault;

/// Headers and data begin at multiples of this.
pub(super) const BLOCK_BYTES: u64 = 512;

/// A header whose checksum is right.
pub(super) struct TarHeader {
    pub(super) kind: MemberKind,
    /// Bytes of data that follow. Zero for what has none, whatever the field says.
    pub(super) num_bytes: u64,
    /// The name in the header, with its prefix. A long one is cut off.
    pub(super) name: Vec<u8>,
    /// Whether blocks with more of a sparse map come before the data.
    pub(super) has_sparse_map: bool,
}

/// What a header begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemberKind {
    Regular,
    Directory,
    /// The name of the next member, as GNU tar writes long ones.
    LongName,
    /// The target of the next member, a link.
    LongLink,
    /// Records about the next member.
    Pax,
    /// Records about all members.
    PaxGlobal,
    /// What it is, in words.
    Other(&'static str),
}

impl MemberKind {
    /// Whether it describes the next member.
    pub(super) fn is_extension(self) -> bool {
        matches!(self, MemberKind::LongName | MemberKind::LongLink | MemberKind::Pax | MemberKind::PaxGlobal)
    }

    /// Whether its size counts bytes of data. Links, devices and directories may have a size, and never have data.
    pub(super) fn has_data(self) -> bool {
        !matches!(self, MemberKind::Directory | MemberKind::Other(HARD_LINK | SYMBOLIC_LINK | DEVICE | PIPE))
    }
}

const HARD_LINK: &str = "a hard link";
const SYMBOLIC_LINK: &str = "a symbolic link";
const DEVICE: &str = "a device";
const PIPE: &str = "a named pipe";
const SPARSE: &str = "a sparse file";

/// Where the old GNU format says that more of a sparse map follows: in the header, and in a block of the map.
const SPARSE_FLAG_IN_HEADER: usize = 482;
const SPARSE_FLAG_IN_MAP: usize = 504;

impl TarHeader {
    /// Reads the block at `offset` of the archive. Fails with [`ShardFault::Damaged`] if its checksum or its size is
    /// wrong: where the next header is cannot be known then.
    pub(super) fn parse(block: &[u8], offset: u64) -> Result<TarHeader, ShardFault> {
        if block.len() as u64 != BLOCK_BYTES || !has_right_checksum(block) {
            return Err(not_a_tar(offset, block));
        }
        let header = Header::from_byte_slice(block);
        let name = header.path_bytes().into_owned();
        let kind = kind_of(header.as_old().linkflag[0], &name);
        let num_bytes = if kind.has_data() { size_of(header, offset)? } else { 0 };
        let is_sparse = kind == MemberKind::Other(SPARSE);
        let has_sparse_map = is_sparse && block.get(SPARSE_FLAG_IN_HEADER).is_some_and(|flag| *flag != 0);
        Ok(TarHeader { kind, num_bytes, name, has_sparse_map })
    }
}

/// Whether another block of a sparse map follows this one.
pub(super) fn continues_sparse_map(block: &[u8]) -> bool {
    block.get(SPARSE_FLAG_IN_MAP).is_some_and(|flag| *flag != 0)
}

/// What is wrong with a block that is no header. Names the format if it is a compressed archive.
pub(super) fn not_a_tar(offset: u64, block: &[u8]) -> ShardFault {
    let compressed = [
        (&b"\x1f\x8b"[..], "gzip"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"\xfd7zXZ\0", "xz"),
        (b"BZh", "bzip2"),
        (b"\x04\x22\x4d\x18", "lz4"),
    ];
    if let Some((_, format)) = compressed.iter().find(|(magic, _)| offset == 0 && block.starts_with(magic)) {
        let reason = format!(
            "expected a plain tar archive, found one compressed with {format}: decompress it (members are read in any \
             order)"
        );
        return ShardFault::Unsupported { reason };
    }
    let reason = match (offset, block.len() as u64) {
        (0, ..BLOCK_BYTES) => format!("expected a tar archive, found a file of {} bytes", block.len()),
        (0, _) => "expected a tar archive, found no tar header".to_owned(),
        (_, ..BLOCK_BYTES) => "expected a tar header, found the end of the file: it was cut short".to_owned(),
        _ => "expected a tar header, found a block with a wrong checksum".to_owned(),
    };
    ShardFault::Damaged { offset, reason }
}

/// The sum of all bytes, with spaces for the checksum itself. Some old programs added signed bytes.
fn has_right_checksum(block: &[u8]) -> bool {
    const FIELD: std::ops::Range<usize> = 148..156;
    let Ok(expected) = Header::from_byte_slice(block).cksum() else { return false };
    let spaces = FIELD.len() as u32 * u32::from(b' ');
    let others = || block.iter().enumerate().filter(|(at, _)| !FIELD.contains(at)).map(|(_, byte)| *byte);
    let unsigned = others().map(u32::from).sum::<u32>() + spaces;
    let signed = || others().map(|byte| i64::from(byte as i8)).sum::<i64>() + i64::from(spaces);
    unsigned == expected || signed() == i64::from(expected)
}

fn kind_of(flag: u8, name: &[u8]) -> MemberKind {
    match flag {
        // Before POSIX a directory was a file whose name ended in a slash.
        0 if name.ends_with(b"/") => MemberKind::Directory,
        0 | b'0' | b'7' => MemberKind::Regular,
        b'1' => MemberKind::Other(HARD_LINK),
        b'2' => MemberKind::Other(SYMBOLIC_LINK),
        b'3' | b'4' => MemberKind::Other(DEVICE),
        b'5' => MemberKind::Directory,
        b'6' => MemberKind::Other(PIPE),
        b'L' => MemberKind::LongName,
        b'K' => MemberKind::LongLink,
        b'x' => MemberKind::Pax,
        b'g' => MemberKind::PaxGlobal,
        b'S' => MemberKind::Other(SPARSE),
        _ => MemberKind::Other("of a type that is not known"),
    }
}

fn size_of(header: &Header, offset: u64) -> Result<u64, ShardFault> {
    let field = &header.as_old().size;
    // A binary size has 95 bits. The crate reads the last 64 of them.
    let is_binary = field[0] & 0x80 != 0;
    let is_too_large = is_binary && (field[0] != 0x80 || field[1..4] != [0; 3]);
    match header.entry_size() {
        Ok(num_bytes) if !is_too_large => Ok(num_bytes),
        _ => {
            let reason = format!("expected the size of a member, found {:?}", field.escape_ascii().to_string());
            Err(ShardFault::Damaged { offset, reason })
        }
    }
}
