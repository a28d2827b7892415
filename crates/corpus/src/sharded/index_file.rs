//! The index of a shard: a file that stores what a scan found, for as long as the shard is the same.
//!
//! One file for each shard, so that a changed shard is scanned alone, and an interrupted scan keeps the shards it has done. A
//! file has a first line that says what it is, the key of the shard (place, size, date, ETag, options), and the rows with
//! their checksum. A file that is damaged, cut off, of another version or of another key is ignored, and replaced by the next
//! scan.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tandem_files::read_bounded;
use twox_hash::XxHash3_64;

use super::segment::ScannedShard;
use crate::error::CorpusError;
use crate::sample::bytes::ByteInput;

const HEAD: &[u8] = b"tandem shard index 2\n";

/// The most bytes of an index: more than ten million rows.
const MAX_INDEX_BYTES: u64 = 4 << 30;

/// The folder of indexes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexFolder(pub(crate) PathBuf);

impl IndexFolder {
    /// The index of the shard at the place `identity`.
    fn path(&self, identity: &str) -> PathBuf {
        self.0.join(format!("shard-{:016x}.index", XxHash3_64::oneshot(identity.as_bytes())))
    }

    /// What was found in the shard when it was scanned with the same `key`. None if it must be scanned.
    pub(crate) fn load(&self, identity: &str, key: &str, file: &Arc<Path>, num_bytes: u64) -> Option<ScannedShard> {
        let bytes = read_bounded(self.path(identity), MAX_INDEX_BYTES).ok()?;
        let mut input = ByteInput(bytes.strip_prefix(HEAD)?);
        let key_bytes = input.u32()?;
        if input.take(key_bytes as usize)? != key.as_bytes() {
            return None;
        }
        let checksum = input.u64()?;
        if checksum != XxHash3_64::oneshot(input.0) {
            return None;
        }
        ScannedShard::decode(input.0, file, num_bytes)
    }

    /// Stores what a scan found, under a temporary name first: what is there is always whole.
    pub(crate) fn save(&self, identity: &str, key: &str, scanned: &ScannedShard) -> Result<(), CorpusError> {
        let path = self.path(identity);
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        let rows = scanned.encode();
        let written = fs::create_dir_all(&self.0).and_then(|()| {
            let mut file = fs::File::create(&temporary)?;
            file.write_all(HEAD)?;
            file.write_all(&(key.len() as u32).to_le_bytes())?;
            file.write_all(key.as_bytes())?;
            file.write_all(&XxHash3_64::oneshot(&rows).to_le_bytes())?;
            file.write_all(&rows)?;
            fs::rename(&temporary, &path)
        });
        written.map_err(|source| {
            // Half an index under a temporary name is of no use to anybody; failing to remove it, of no consequence.
            let _ = fs::remove_file(&temporary);
            CorpusError::Write { path, source }
        })
    }
}
