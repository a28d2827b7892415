//! A clip as a file: a header of 96 bytes, then its samples.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | magic |
//! | 8..12, 12..16 | version, samples per second |
//! | 16..32 | name: a hash of the path and the part the clip was decoded from |
//! | 32..72 | identity of the recording before decoding: size, modified, changed, inode, device |
//! | 72..80 | number of samples |
//! | 80..88, 88..96 | checksum of the samples, checksum of the 88 bytes before |
//!
//! Checksums are XXH3. Numbers are little-endian, as are the machines this runs on. Files are not synced: after a power cut
//! a file may have any content, and its checksums do not match.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use tandem_audio::Clip;
use tandem_corpus::Identity;
use tandem_files::open_regular;
use twox_hash::XxHash3_64;

use super::{EntryName, Lookup};

pub(super) const HEADER_BYTES: usize = 96;
const MAGIC: [u8; 8] = *b"TNDMCLIP";
const VERSION: u32 = 2;
/// File names end so. Another version has another ending: its files are never opened.
pub(super) const ENDING: &str = "v2.clip";

/// A clip to write.
#[derive(Debug)]
pub(super) struct CacheEntry {
    pub(super) name: EntryName,
    pub(super) identity: Identity,
    pub(super) clip: Clip,
}

impl CacheEntry {
    /// Writes the file to `temporary` and renames it to `path`: a reader of `path` finds all of it, or the file before it. On
    /// failure `temporary` is removed, if the disk allows it.
    pub(super) fn write(&self, temporary: &Path, path: &Path) -> io::Result<()> {
        let written = self.write_all(temporary).and_then(|()| fs::rename(temporary, path));
        written.inspect_err(|_| drop(fs::remove_file(temporary)))
    }

    fn write_all(&self, path: &Path) -> io::Result<()> {
        let samples = bytemuck::cast_slice(&self.clip.samples);
        let mut file = File::create_new(path)?;
        file.write_all(&header(self.name, &self.identity, self.clip.rate_hz, samples))?;
        file.write_all(samples)
    }
}

/// Reads the file at `path` into `clip`, if it is the entry of `name` and `identity`. Otherwise `clip` is undefined.
pub(super) fn read_into(path: &Path, name: EntryName, identity: &Identity, clip: &mut Clip) -> Lookup {
    // Any reason not to open it is a miss: the recording is decoded again.
    let Ok(mut file) = open_regular(path) else { return Lookup::Absent };
    read(&mut file, name, identity, clip).unwrap_or(Lookup::Damaged)
}

fn read(file: &mut File, name: EntryName, identity: &Identity, clip: &mut Clip) -> io::Result<Lookup> {
    let mut found = [0; HEADER_BYTES];
    file.read_exact(&mut found)?;
    if found[..8] != MAGIC || checksum(&found[..88]).to_le_bytes() != found[88..] {
        return Ok(Lookup::Damaged);
    }
    let num_samples = u64::from_le_bytes(eight(&found[72..80]));
    // Checked before memory is allocated for them.
    if num_samples.checked_mul(2).and_then(|bytes| bytes.checked_add(HEADER_BYTES as u64))
        != Some(file.metadata()?.len())
    {
        return Ok(Lookup::Damaged);
    }
    if found[8..12] != VERSION.to_le_bytes() || found[16..72] != key(name, identity) {
        return Ok(Lookup::Stale);
    }
    clip.rate_hz = u32::from_le_bytes([found[12], found[13], found[14], found[15]]);
    clip.samples.resize(num_samples as usize, 0);
    let samples = bytemuck::cast_slice_mut(&mut clip.samples);
    file.read_exact(samples)?;
    Ok(if checksum(samples).to_le_bytes() == found[80..88] { Lookup::Hit } else { Lookup::Damaged })
}

fn header(name: EntryName, identity: &Identity, rate_hz: u32, samples: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&rate_hz.to_le_bytes());
    header[16..72].copy_from_slice(&key(name, identity));
    header[72..80].copy_from_slice(&(samples.len() as u64 / 2).to_le_bytes());
    header[80..88].copy_from_slice(&checksum(samples).to_le_bytes());
    let sum = checksum(&header[..88]);
    header[88..].copy_from_slice(&sum.to_le_bytes());
    header
}

/// Name and identity as stored in the header.
fn key(name: EntryName, identity: &Identity) -> [u8; 56] {
    let Identity { num_bytes, modified_ns, changed_ns, inode, device } = *identity;
    let words = [num_bytes, modified_ns as u64, changed_ns as u64, inode, device];
    let mut key = [0; 56];
    key[..16].copy_from_slice(&name.0.to_le_bytes());
    for (bytes, word) in key[16..].as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    key
}

fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

fn eight(bytes: &[u8]) -> [u8; 8] {
    std::array::from_fn(|i| bytes[i])
}
