//! Writes tar archives whose bytes depend on names and contents only.

use std::io::{Cursor, Write};

use ::tar::{Builder, EntryType, Header};

use crate::fault::{SIZE_ADVICE, ShardFault};
use crate::tar::check_name;

/// Writes an archive member by member: mode 0644, owner 0, date 0. The same members in the same order are the same bytes.
///
/// Names of up to 100 bytes, or 255 that can be split at a slash, are in the header; longer ones in a pax record.
/// Dropping it without [`TarWriter::finish`] still tries to write the end marker, and says nothing if that fails.
pub struct TarWriter<W: Write> {
    builder: Builder<W>,
}

impl<W: Write> TarWriter<W> {
    /// Writes to `writer`, which needs a buffer if writes are costly: a member is three.
    pub fn new(writer: W) -> TarWriter<W> {
        TarWriter { builder: Builder::new(writer) }
    }

    /// Adds a file. Fails with [`ShardFault::Unsupported`] before anything is written if [`crate::TarReader`] would
    /// refuse its name or size, or if a part of the name is empty or `.`, which programs drop when they unpack.
    pub fn append(&mut self, name: &str, bytes: &[u8]) -> Result<(), ShardFault> {
        let refuse = |what: &str| ShardFault::Unsupported { reason: format!("`{name}` {what}") };
        check_name(name).map_err(refuse)?;
        if name.split('/').any(|part| part.is_empty() || part == ".") {
            return Err(refuse("is a name with an empty part or `.`: expected parts of one character and more"));
        }
        if u32::try_from(bytes.len()).is_err() {
            return Err(refuse(&format!("has {} bytes: {SIZE_ADVICE}", bytes.len())));
        }
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(bytes.len() as u64);
        if header.set_path(name).is_err() {
            self.builder.append_pax_extensions([("path", name.as_bytes())])?;
            set_short_name(&mut header, name);
        }
        header.set_cksum();
        Ok(self.builder.append(&header, Cursor::new(bytes))?)
    }

    /// Writes the end marker and hands the writer back. It is not flushed.
    pub fn finish(self) -> Result<W, ShardFault> {
        Ok(self.builder.into_inner()?)
    }
}

/// The beginning of the name, for programs that do not read pax records.
fn set_short_name(header: &mut Header, name: &str) {
    let old = header.as_old_mut();
    old.name.fill(0);
    for (slot, byte) in old.name.iter_mut().zip(name.bytes()) {
        *slot = byte;
    }
    // A try to split the name may have left a prefix.
    if let Some(ustar) = header.as_ustar_mut() {
        ustar.prefix.fill(0);
    }
}
