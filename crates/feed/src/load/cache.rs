//! Decoded audio, cached between epochs within a byte budget.
//!
//! An entry is the output of [`load_into`](crate::load_into), bit for bit: samples and sample rate of one recording or of a
//! part of it. The loader asks the cache first, and adds what it had to decode:
//!
//! ```
//! # use tandem_audio::Clip;
//! # use tandem_corpus::{Sample, SampleIndex};
//! # use tandem_feed::{Cache, FeedError, load_into};
//! fn load(cache: &Cache, index: SampleIndex, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
//!     if !cache.get_into(index, &sample.audio, clip) {
//!         load_into(&sample.audio, clip)?;
//!         cache.put(index, &sample.audio, clip);
//!     }
//!     Ok(())
//! }
//! ```
//!
//! An entry has the [`Identity`] that its recording had *before* it was decoded: a recording that changes while it is being
//! read is decoded again the next time. A deleted recording is never served, so that its loader reports it. The cache never
//! fails a run: an entry that cannot be stored is counted, one that cannot be read is decoded again.

mod disk;
mod entry;
mod memory;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tandem_audio::Clip;
use tandem_corpus::{Identity, Locator, SampleIndex, Store};
use twox_hash::XxHash3_64;

use self::disk::DiskCache;
use self::entry::CacheEntry;
use self::memory::MemoryCache;
use crate::FeedError;

/// Number of locks, so that decode threads rarely contend. Neighbouring samples never share one.
const SHARDS: usize = 32;

/// Where decoded audio is cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheKind {
    /// Nowhere: everything is decoded every time.
    #[default]
    None,
    /// In memory, for this run.
    Memory,
    /// In a folder, also for later runs.
    Disk,
}

impl CacheKind {
    /// Its name in flags.
    pub fn slug(self) -> &'static str {
        match self {
            CacheKind::None => "none",
            CacheKind::Memory => "memory",
            CacheKind::Disk => "disk",
        }
    }
}

/// A cache to open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CacheSpec {
    /// [`CacheKind::None`].
    #[default]
    None,
    /// [`CacheKind::Memory`].
    Memory {
        /// The most bytes it takes, bookkeeping included.
        budget_bytes: u64,
    },
    /// [`CacheKind::Disk`].
    Disk {
        /// The most bytes it takes, bookkeeping included.
        budget_bytes: u64,
        /// Its folder, created if it is missing.
        folder: PathBuf,
    },
}

impl CacheSpec {
    /// Where audio is cached.
    pub fn kind(&self) -> CacheKind {
        match self {
            CacheSpec::None => CacheKind::None,
            CacheSpec::Memory { .. } => CacheKind::Memory,
            CacheSpec::Disk { .. } => CacheKind::Disk,
        }
    }

    /// The most bytes it takes.
    pub fn budget_bytes(&self) -> u64 {
        match self {
            CacheSpec::None => 0,
            CacheSpec::Memory { budget_bytes } | CacheSpec::Disk { budget_bytes, .. } => *budget_bytes,
        }
    }
}

/// What a cache did since it was opened, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Clips served from the cache.
    pub hits: u64,
    /// Clips that had to be decoded, for any reason.
    pub misses: u64,
    /// Bytes stored, or queued to be.
    pub bytes: u64,
    /// Clips stored, or queued to be.
    pub entries: u64,
    /// Clips not stored: the budget or the write queue was full, or writing had failed before.
    pub refused: u64,
    /// Misses because the recording has changed.
    pub stale: u64,
    /// Misses because the file in the folder was damaged.
    pub damaged: u64,
    /// Failed writes. Nothing is written after the first.
    pub write_errors: u64,
}

/// Decoded audio by recording and part. Shared by all threads, and by any number of corpora.
#[derive(Debug)]
pub struct Cache {
    storage: Storage,
    /// Identities of recordings at their last miss, until their clips are put.
    missed: [Mutex<HashMap<EntryName, Identity>>; SHARDS],
    hits: AtomicU64,
    misses: AtomicU64,
    stale: AtomicU64,
    damaged: AtomicU64,
}

#[derive(Debug)]
enum Storage {
    None,
    Memory(Box<MemoryCache>),
    Disk(DiskCache),
}

/// What a storage holds now, and what it could not store.
#[derive(Clone, Copy, Debug, Default)]
struct StorageStats {
    bytes: u64,
    entries: u64,
    refused: u64,
    write_errors: u64,
}

/// A hash of a recording's location and part. 128 bits: entries of a corpus do not collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct EntryName(u128);

/// The result of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lookup {
    Hit,
    Absent,
    Stale,
    Damaged,
}

impl Cache {
    /// An empty cache, or the existing one of the folder.
    ///
    /// `on_message` is called once, on a thread of the cache, if writing to a disk fails. Cost: for a disk, one metadata
    /// call per file in its folder. Fails with [`FeedError::Unusable`] if the folder cannot be created or listed, and if a
    /// thread cannot be started.
    pub fn open(spec: &CacheSpec, on_message: impl Fn(String) + Send + Sync + 'static) -> Result<Cache, FeedError> {
        let storage = match spec {
            CacheSpec::None => Storage::None,
            CacheSpec::Memory { budget_bytes } => Storage::Memory(Box::new(MemoryCache::new(*budget_bytes))),
            CacheSpec::Disk { budget_bytes, folder } => {
                let write = Box::new(CacheEntry::write);
                Storage::Disk(DiskCache::open(folder, *budget_bytes, Box::new(on_message), write)?)
            }
        };
        Ok(Cache::new(storage))
    }

    fn new(storage: Storage) -> Cache {
        let [hits, misses, stale, damaged] = Default::default();
        Cache { storage, missed: Default::default(), hits, misses, stale, damaged }
    }

    /// Fills `clip`, whose memory is reused, with the audio of `audio`. False, with an empty clip, if it must be decoded: it
    /// is not cached, the recording has changed or is gone, or the entry is damaged.
    ///
    /// Cost of a hit: one metadata call and one copy; on a disk, one file read and its checksum.
    pub fn get_into(&self, sample: SampleIndex, audio: &Locator<'_>, clip: &mut Clip) -> bool {
        if matches!(self.storage, Storage::None) {
            return miss(clip);
        }
        let found = audio.identity().map_or(Lookup::Absent, |identity| {
            let name = EntryName::of(audio);
            let found = self.storage.get_into(shard(sample), name, &identity, clip);
            if found != Lookup::Hit {
                self.missed(sample).insert(name, identity);
            }
            found
        });
        self.count(found);
        found == Lookup::Hit || miss(clip)
    }

    /// Whether a clip of `audio` is likely to be served: it is here, of the recording as it is now. On a disk the file may still
    /// be stale or damaged. Counts neither a hit nor a miss.
    ///
    /// Cost: one metadata call for a cache in memory, none for one on a disk.
    pub fn holds(&self, sample: SampleIndex, audio: &Locator<'_>) -> bool {
        match &self.storage {
            Storage::None => false,
            Storage::Memory(memory) => {
                audio.identity().is_ok_and(|identity| memory.holds(shard(sample), EntryName::of(audio), &identity))
            }
            Storage::Disk(disk) => disk.holds(EntryName::of(audio)),
        }
    }

    /// Stores `clip`, decoded from `audio` after [`Cache::get_into`] missed it. Never fails, and never waits for a disk: a
    /// clip that does not fit is not stored.
    pub fn put(&self, sample: SampleIndex, audio: &Locator<'_>, clip: &Clip) {
        if matches!(self.storage, Storage::None) {
            return;
        }
        let name = EntryName::of(audio);
        // Without a lookup, the identity before decoding is unknown: the recording may have changed since.
        let Some(identity) = self.missed(sample).remove(&name) else { return };
        match &self.storage {
            Storage::None => {}
            Storage::Memory(memory) => memory.put(shard(sample), name, identity, clip),
            Storage::Disk(disk) => disk.put(name, identity, clip),
        }
    }

    /// Waits until every clip that was put is on the disk, or writing has failed.
    pub fn flush(&self) {
        if let Storage::Disk(disk) = &self.storage {
            disk.flush();
        }
    }

    /// What it did and what it holds. Cheap; the figures are of about the same time.
    pub fn stats(&self) -> CacheStats {
        let StorageStats { bytes, entries, refused, write_errors } = match &self.storage {
            Storage::None => StorageStats::default(),
            Storage::Memory(memory) => memory.stats(),
            Storage::Disk(disk) => disk.stats(),
        };
        let [hits, misses, stale, damaged] =
            [&self.hits, &self.misses, &self.stale, &self.damaged].map(|count| count.load(Ordering::Relaxed));
        CacheStats { hits, misses, bytes, entries, refused, stale, damaged, write_errors }
    }

    /// Bytes held in memory now.
    pub fn memory_bytes(&self) -> u64 {
        match &self.storage {
            Storage::Memory(memory) => memory.stats().bytes,
            Storage::None | Storage::Disk(_) => 0,
        }
    }

    fn missed(&self, sample: SampleIndex) -> MutexGuard<'_, HashMap<EntryName, Identity>> {
        // A panic between two calls leaves the map intact.
        self.missed[shard(sample)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, found: Lookup) {
        let counts: &[&AtomicU64] = match found {
            Lookup::Hit => &[&self.hits],
            Lookup::Absent => &[&self.misses],
            Lookup::Stale => &[&self.misses, &self.stale],
            Lookup::Damaged => &[&self.misses, &self.damaged],
        };
        for count in counts {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Storage {
    fn get_into(&self, shard: usize, name: EntryName, identity: &Identity, clip: &mut Clip) -> Lookup {
        match self {
            Storage::None => Lookup::Absent,
            Storage::Memory(memory) => memory.get_into(shard, name, identity, clip),
            Storage::Disk(disk) => disk.get_into(name, identity, clip),
        }
    }
}

impl EntryName {
    fn of(audio: &Locator<'_>) -> EntryName {
        let mut bytes = audio.show().into_bytes();
        // Queries of URLs are not shown, and may be all that tells two recordings apart.
        if let (None, Store::Objects(_)) = (audio.piece, audio.store) {
            bytes.push(0);
            bytes.extend_from_slice(audio.key.as_bytes());
        }
        // A part without an end gets a duration that no list can give.
        if let Some(range) = audio.range {
            bytes.extend_from_slice(&range.offset_s.to_bits().to_le_bytes());
            bytes.extend_from_slice(&range.duration_s.map_or(u64::MAX, f64::to_bits).to_le_bytes());
        }
        bytes.push(u8::from(audio.range.is_some()));
        let [high, low] = [1, 2].map(|seed| u128::from(XxHash3_64::oneshot_with_seed(seed, &bytes)));
        EntryName(high << 64 | low)
    }
}

fn shard(sample: SampleIndex) -> usize {
    sample.at() % SHARDS
}

fn miss(clip: &mut Clip) -> bool {
    clip.clear();
    false
}
