//! Clips kept in a folder, one file each, written by one thread.
//!
//! Decode threads read files themselves and hand clips to be written to a [`WriteQueue`]; when it is full, a clip is not
//! kept. Other processes may use the same folder at the same time: names of unfinished files are nobody else's, and
//! finished ones appear at once. The budget is held against what lay in the folder when it was opened and what was
//! written since by this process; what others write meanwhile is counted at the next opening.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tandem_audio::Clip;
use tandem_corpus::Identity;
use tandem_pipeline::Worker;

use super::entry::{CacheEntry, HEADER_BYTES, read_into};
use super::queue::WriteQueue;
use super::{Found, Name};
use crate::FeedError;

/// Clips that wait to be written: two seconds of a slow disk, and little beside what decoding itself holds.
const QUEUE_BYTES: u64 = 64 << 20;
/// How long the queue is written out yet when the cache goes.
const GRACE: Duration = Duration::from_millis(500);
/// A disk gives room in pieces of this size.
const BLOCK_BYTES: u64 = 4096;
/// Unfinished files older than this were left by a process that is gone.
const LEFT_BEHIND: Duration = Duration::from_secs(3600);

/// How a file is written: to a temporary path, and from there to its own. Tests bring worse ones.
pub(super) type Write = dyn Fn(&CacheEntry, &Path, &Path) -> io::Result<()> + Send;
pub(super) type CacheNotes = dyn Fn(String) + Send;

#[derive(Debug)]
pub(super) struct DiskCache {
    shared: Arc<Shared>,
    pub(super) grace: Duration,
    /// Dropped after the queue is closed, which ends it; dropping it waits for its end.
    _writer: Worker,
}

#[derive(Debug)]
struct Shared {
    folder: PathBuf,
    queue: WriteQueue<CacheEntry>,
    ledger: Mutex<Ledger>,
    refused: AtomicU64,
    write_errors: AtomicU64,
    /// Writing has failed once, and is not tried again.
    gave_up: AtomicBool,
}

/// What lies in the folder, and what is about to.
#[derive(Debug, Default)]
struct Ledger {
    files: HashMap<Name, u64>,
    bytes: u64,
    budget_bytes: u64,
}

impl DiskCache {
    /// Fails when the folder cannot be made or listed; whether it can be written to shows later.
    pub(super) fn open(
        folder: &Path,
        budget_bytes: u64,
        notes: Box<CacheNotes>,
        write: Box<Write>,
    ) -> Result<DiskCache, FeedError> {
        let listed = fs::create_dir_all(folder).and_then(|()| list(folder));
        let unusable = |why| FeedError::Unusable { what: "cache folder", why, path: folder.to_owned() };
        let files = listed.map_err(unusable)?;
        let ledger = Ledger { bytes: files.values().sum(), files, budget_bytes };
        let shared = Arc::new(Shared {
            folder: folder.to_owned(),
            queue: WriteQueue::new(QUEUE_BYTES),
            ledger: Mutex::new(ledger),
            refused: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
            gave_up: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        let writer = Worker::spawn("cache-write", move |_| run(&theirs, &*notes, &*write))?;
        Ok(DiskCache { shared, grace: GRACE, _writer: writer })
    }

    pub(super) fn get_into(&self, name: Name, identity: &Identity, clip: &mut Clip) -> Found {
        read_into(&self.shared.path(name), name, identity, clip)
    }

    pub(super) fn put(&self, name: Name, identity: Identity, clip: &Clip) {
        if !self.shared.try_put(name, identity, clip) {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Bytes, entries, how many were refused, and how often writing failed.
    pub(super) fn holdings(&self) -> (u64, u64, u64, u64) {
        let [refused, failed] = [&self.shared.refused, &self.shared.write_errors].map(|n| n.load(Ordering::Relaxed));
        let ledger = self.shared.ledger();
        (ledger.bytes, ledger.files.len() as u64, refused, failed)
    }

    /// Waits until the queue is written.
    pub(super) fn flush(&self) {
        self.shared.queue.wait_until_empty();
    }
}

impl Drop for DiskCache {
    fn drop(&mut self) {
        self.shared.queue.close(self.grace);
    }
}

impl Shared {
    fn try_put(&self, name: Name, identity: Identity, clip: &Clip) -> bool {
        let num_bytes = HEADER_BYTES as u64 + size_of_val(clip.samples.as_slice()) as u64;
        if self.gave_up.load(Ordering::Relaxed) {
            return false;
        }
        let Some(before) = self.ledger().replace(name, on_disk(num_bytes)) else { return false };
        let queued = self.queue.try_push(num_bytes, || CacheEntry { name, identity, clip: clip.clone() });
        if !queued {
            self.ledger().set(name, before);
        }
        queued
    }

    fn path(&self, name: Name) -> PathBuf {
        self.folder.join(format!("{:032x}.clip", name.0))
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // Both numbers of the ledger change together, with nothing between them that could panic.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    /// Notes a file of so many bytes in place of one of the same name, if there is room for it. What that one took.
    fn replace(&mut self, name: Name, num_bytes: u64) -> Option<u64> {
        let before = self.files.get(&name).copied().unwrap_or(0);
        let sum = (self.bytes - before).checked_add(num_bytes)?;
        (sum <= self.budget_bytes).then(|| {
            self.set(name, num_bytes);
            before
        })
    }

    /// Notes a file of so many bytes; none for 0.
    fn set(&mut self, name: Name, num_bytes: u64) {
        let before = if num_bytes == 0 { self.files.remove(&name) } else { self.files.insert(name, num_bytes) };
        self.bytes = self.bytes - before.unwrap_or(0) + num_bytes;
    }
}

/// The writer: everything that comes out of the queue, until it is closed or writing fails.
fn run(shared: &Shared, notes: &CacheNotes, write: &Write) {
    // Also when `notes` panics: nobody may wait for a writer that is gone.
    let _gave_up = GaveUp(shared);
    let process = format!("{}-{}", std::process::id(), now_ns());
    for number in 0_u64.. {
        let Some(entry) = shared.queue.take() else { return };
        let temporary = shared.folder.join(format!("{:032x}.{process}-{number}.part", entry.name.0));
        let Err(error) = write(&entry, &temporary, &shared.path(entry.name)) else { continue };
        shared.write_errors.fetch_add(1, Ordering::Relaxed);
        shared.ledger().set(entry.name, 0);
        notes(format!(
            "no more recordings are cached, those that are still serve ({error}): {}",
            shared.folder.display()
        ));
        return;
    }
}

/// When this goes, nothing is written any more, and what waited for it is not kept.
struct GaveUp<'a>(&'a Shared);

impl Drop for GaveUp<'_> {
    fn drop(&mut self) {
        self.0.gave_up.store(true, Ordering::Relaxed);
        for entry in self.0.queue.abandon() {
            self.0.ledger().set(entry.name, 0);
            self.0.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The clips of a folder and what they take. What was left unfinished long ago is removed.
fn list(folder: &Path) -> io::Result<HashMap<Name, u64>> {
    let mut files = HashMap::new();
    for file in fs::read_dir(folder)? {
        let file = file?;
        let (path, name) = (file.path(), file.file_name());
        let Some((stem, ending)) = name.to_str().and_then(|name| name.split_once('.')) else { continue };
        let (Ok(name), Ok(metadata)) = (u128::from_str_radix(stem, 16), file.metadata()) else { continue };
        if ending == "clip" {
            files.insert(Name(name), on_disk(metadata.len()));
        } else if ending.ends_with(".part") && is_old(&metadata) {
            // Somebody else may have been faster, or we may not be allowed to: it is only room.
            let _ = fs::remove_file(path);
        }
    }
    Ok(files)
}

fn is_old(metadata: &fs::Metadata) -> bool {
    let age = metadata.modified().ok().and_then(|time| time.elapsed().ok());
    age.is_some_and(|age| age > LEFT_BEHIND)
}

fn on_disk(num_bytes: u64) -> u64 {
    num_bytes.next_multiple_of(BLOCK_BYTES)
}

/// Tells processes of one number on two machines, or after each other, apart.
fn now_ns() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}
