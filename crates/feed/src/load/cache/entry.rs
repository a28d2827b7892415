//! One clip as a file: 96 bytes that say what it is, then its samples.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | magic |
//! | 8..12, 12..16 | version, samples per second |
//! | 16..32 | name: the path and the part the clip was decoded from, hashed |
//! | 32..72 | identity of the recording then: size, modified, changed, inode, device |
//! | 72..80 | number of samples |
//! | 80..88, 88..96 | checksum of the samples, checksum of the 88 bytes before |
//!
//! Numbers are little-endian, as are the machines this runs on. Nothing is synced: after a power cut a file may be
//! anything, and the checksums say so.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use tandem_audio::Clip;
use tandem_corpus::Identity;

use super::checksum::checksum;
use super::{Found, Name};

pub(super) const HEADER_BYTES: usize = 96;
const MAGIC: [u8; 8] = *b"TNDMCLIP";
const VERSION: u32 = 1;

/// What is to be written.
#[derive(Debug)]
pub(super) struct CacheEntry {
    pub(super) name: Name,
    pub(super) identity: Identity,
    pub(super) clip: Clip,
}

impl CacheEntry {
    /// Writes the file under `temporary` and renames it to `path`: whoever reads `path` finds all of it, or what was
    /// there before. Fails with nothing left under `temporary`, where the disk allows that.
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

/// Reads the clip at `path` into `clip`, if it is the one that is meant. Otherwise `clip` holds anything.
pub(super) fn read_into(path: &Path, name: Name, identity: &Identity, clip: &mut Clip) -> Found {
    // Whatever keeps it from being opened, it can be decoded again.
    let Ok(mut file) = File::open(path) else { return Found::Absent };
    read(&mut file, name, identity, clip).unwrap_or(Found::Damaged)
}

fn read(file: &mut File, name: Name, identity: &Identity, clip: &mut Clip) -> io::Result<Found> {
    let mut found = [0; HEADER_BYTES];
    file.read_exact(&mut found)?;
    if found[..8] != MAGIC || checksum(0, &found[..88]).to_le_bytes() != found[88..] {
        return Ok(Found::Damaged);
    }
    let num_samples = u64::from_le_bytes(eight(&found[72..80]));
    // Before memory is taken for them: are so many there?
    if num_samples.checked_mul(2).and_then(|bytes| bytes.checked_add(HEADER_BYTES as u64))
        != Some(file.metadata()?.len())
    {
        return Ok(Found::Damaged);
    }
    if found[8..12] != VERSION.to_le_bytes() || found[16..72] != who(name, identity) {
        return Ok(Found::Stale);
    }
    clip.rate_hz = u32::from_le_bytes([found[12], found[13], found[14], found[15]]);
    clip.samples.resize(num_samples as usize, 0);
    let samples = bytemuck::cast_slice_mut(&mut clip.samples);
    file.read_exact(samples)?;
    Ok(if checksum(0, samples).to_le_bytes() == found[80..88] { Found::Hit } else { Found::Damaged })
}

fn header(name: Name, identity: &Identity, rate_hz: u32, samples: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&rate_hz.to_le_bytes());
    header[16..72].copy_from_slice(&who(name, identity));
    header[72..80].copy_from_slice(&(samples.len() as u64 / 2).to_le_bytes());
    header[80..88].copy_from_slice(&checksum(0, samples).to_le_bytes());
    let sum = checksum(0, &header[..88]);
    header[88..].copy_from_slice(&sum.to_le_bytes());
    header
}

/// Name and identity as they lie in the header.
fn who(name: Name, identity: &Identity) -> [u8; 56] {
    let Identity { num_bytes, modified_ns, changed_ns, inode, device } = *identity;
    let words = [num_bytes, modified_ns as u64, changed_ns as u64, inode, device];
    let mut who = [0; 56];
    who[..16].copy_from_slice(&name.0.to_le_bytes());
    for (place, word) in who[16..].as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    who
}

fn eight(bytes: &[u8]) -> [u8; 8] {
    std::array::from_fn(|i| bytes[i])
}
