//! Clips in a folder, one file each, written by one thread.
//!
//! Decode threads read files, and push new clips to a [`WriteQueue`]; when it is full, a clip is not stored. Other processes
//! may use the same folder at the same time: names of unfinished files are unique, and finished files appear atomically. The
//! budget covers the files found when the folder was opened and those written since by this process; files that other
//! processes write are counted the next time the folder is opened.

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

use super::entry::{CacheEntry, ENDING, HEADER_BYTES, read_into};
use super::queue::WriteQueue;
use super::{EntryName, Lookup, StorageStats};
use crate::FeedError;

/// Bytes of clips that wait to be written: two seconds of a slow disk, and little beside the memory of decoding.
const QUEUE_BYTES: u64 = 64 << 20;
/// How long queued clips are still written when the cache is dropped.
const GRACE: Duration = Duration::from_millis(500);
/// The allocation unit of a disk.
const BLOCK_BYTES: u64 = 4096;
/// Unfinished files older than this belong to a process that has ended.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// Writes a file: to a temporary path, then to its own. Tests inject failures.
pub(super) type Write = dyn Fn(&CacheEntry, &Path, &Path) -> io::Result<()> + Send;
pub(super) type OnMessage = dyn Fn(String) + Send;

#[derive(Debug)]
pub(super) struct DiskCache {
    shared: Arc<Shared>,
    pub(super) grace: Duration,
    /// Dropped after the queue is closed, which ends the thread; dropping it joins the thread.
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
    has_stopped: AtomicBool,
}

/// Sizes of the files in the folder and of those queued.
#[derive(Debug, Default)]
struct Ledger {
    files: HashMap<EntryName, u64>,
    bytes: u64,
    budget_bytes: u64,
}

impl DiskCache {
    /// Fails if the folder cannot be created or listed. A folder that cannot be written to is found when writing.
    pub(super) fn open(
        folder: &Path,
        budget_bytes: u64,
        on_message: Box<OnMessage>,
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
            has_stopped: AtomicBool::new(false),
        });
        let writers = Arc::clone(&shared);
        let writer = Worker::spawn("cache-write", move |_| run(&writers, &*on_message, &*write))?;
        Ok(DiskCache { shared, grace: GRACE, _writer: writer })
    }

    pub(super) fn get_into(&self, name: EntryName, identity: &Identity, clip: &mut Clip) -> Lookup {
        read_into(&self.shared.path(name), name, identity, clip)
    }

    pub(super) fn holds(&self, name: EntryName) -> bool {
        self.shared.ledger().files.contains_key(&name)
    }

    pub(super) fn put(&self, name: EntryName, identity: Identity, clip: &Clip) {
        if !self.shared.try_put(name, identity, clip) {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn stats(&self) -> StorageStats {
        let [refused, write_errors] =
            [&self.shared.refused, &self.shared.write_errors].map(|count| count.load(Ordering::Relaxed));
        let ledger = self.shared.ledger();
        StorageStats { bytes: ledger.bytes, entries: ledger.files.len() as u64, refused, write_errors }
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
    fn try_put(&self, name: EntryName, identity: Identity, clip: &Clip) -> bool {
        let num_bytes = HEADER_BYTES as u64 + size_of_val(clip.samples.as_slice()) as u64;
        if self.has_stopped.load(Ordering::Relaxed) {
            return false;
        }
        let Some(before) = self.ledger().replace(name, on_disk(num_bytes)) else { return false };
        let queued = self.queue.try_push(num_bytes, || CacheEntry { name, identity, clip: clip.clone() });
        if !queued {
            self.ledger().set(name, before);
        }
        queued
    }

    fn path(&self, name: EntryName) -> PathBuf {
        self.folder.join(format!("{:032x}.{ENDING}", name.0))
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // Both numbers of the ledger change together, without code between them that could panic.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    /// Enters a file of so many bytes in place of one of the same name, if the budget allows it. Returns that one's bytes.
    fn replace(&mut self, name: EntryName, num_bytes: u64) -> Option<u64> {
        let before = self.files.get(&name).copied().unwrap_or(0);
        let sum = (self.bytes - before).checked_add(num_bytes)?;
        (sum <= self.budget_bytes).then(|| {
            self.set(name, num_bytes);
            before
        })
    }

    /// Enters a file of so many bytes; removes it for 0.
    fn set(&mut self, name: EntryName, num_bytes: u64) {
        let before = if num_bytes == 0 { self.files.remove(&name) } else { self.files.insert(name, num_bytes) };
        self.bytes = self.bytes - before.unwrap_or(0) + num_bytes;
    }
}

/// The writer thread: writes queued clips until the queue is closed or writing fails.
fn run(shared: &Shared, on_message: &OnMessage, write: &Write) {
    // Also if `on_message` panics: other threads must not wait for a writer that has ended.
    let _stop = StopWriting(shared);
    let process = format!("{}-{}", std::process::id(), now_ns());
    for number in 0_u64.. {
        let Some(entry) = shared.queue.take() else { return };
        let temporary = shared.folder.join(format!("{:032x}.{process}-{number}.part", entry.name.0));
        let Err(error) = write(&entry, &temporary, &shared.path(entry.name)) else { continue };
        shared.write_errors.fetch_add(1, Ordering::Relaxed);
        shared.ledger().set(entry.name, 0);
        on_message(format!(
            "cannot write to the cache: no more audio is cached, existing entries are still used ({error}): {}",
            shared.folder.display()
        ));
        return;
    }
}

/// Dropping this stops writing: queued clips are counted as refused.
struct StopWriting<'a>(&'a Shared);

impl Drop for StopWriting<'_> {
    fn drop(&mut self) {
        self.0.has_stopped.store(true, Ordering::Relaxed);
        for entry in self.0.queue.abandon() {
            self.0.ledger().set(entry.name, 0);
            self.0.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The clips of a folder and their sizes. Removes files that a process left unfinished long ago, and clips of version 1, whose
/// names this version never looks up.
fn list(folder: &Path) -> io::Result<HashMap<EntryName, u64>> {
    let mut files = HashMap::new();
    for file in fs::read_dir(folder)? {
        let file = file?;
        let (path, name) = (file.path(), file.file_name());
        let Some((stem, ending)) = name.to_str().and_then(|name| name.split_once('.')) else { continue };
        let (Ok(name), Ok(metadata)) = (u128::from_str_radix(stem, 16), file.metadata()) else { continue };
        if ending == ENDING {
            files.insert(EntryName(name), on_disk(metadata.len()));
        } else if ending == "clip" || (ending.ends_with(".part") && is_old(&metadata)) {
            // Another process may have removed it, or the permissions may forbid it: it only takes room.
            let _ = fs::remove_file(path);
        }
    }
    Ok(files)
}

fn is_old(metadata: &fs::Metadata) -> bool {
    let age = metadata.modified().ok().and_then(|time| time.elapsed().ok());
    age.is_some_and(|age| age > ABANDONED_AFTER)
}

fn on_disk(num_bytes: u64) -> u64 {
    num_bytes.next_multiple_of(BLOCK_BYTES)
}

/// Distinguishes processes with the same id on two machines, or at two times.
fn now_ns() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}
