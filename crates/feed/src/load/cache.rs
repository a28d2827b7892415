//! Decoded audio kept between epochs, within a budget, as long as the recordings stay what they were.
//!
//! In comes what [`load_into`](crate::load_into) made, out comes the same to the bit: samples and rate of one recording
//! or of the part of it that is meant. The loader asks first and brings what it had to decode:
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
//! A clip is kept with the [`Identity`] its recording had *before* it was decoded: a recording that changes while it is
//! being read is decoded again the next time. One that is gone is never served, so that its loader says so. Nothing
//! here can fail a run: what cannot be kept is counted, what cannot be read is decoded.

mod checksum;
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
use tandem_corpus::{Identity, Locator, SampleIndex};

pub(crate) use self::checksum::checksum;
use self::disk::DiskCache;
use self::entry::CacheEntry;
use self::memory::MemoryCache;
use crate::FeedError;

/// Locks, so that decode threads seldom meet: samples next to each other never do.
const SHARDS: usize = 32;

/// Where decoded audio is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheKind {
    /// Nowhere: everything is decoded every time.
    #[default]
    None,
    /// In memory, as long as the run lasts.
    Memory,
    /// In a folder, also for the next run.
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

/// What a cache may take, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheSpec {
    /// Where.
    pub kind: CacheKind,
    /// How much, bookkeeping included.
    pub budget_bytes: u64,
    /// The folder of [`CacheKind::Disk`].
    pub folder: Option<PathBuf>,
}

/// What a cache did since it was opened, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Clips that did not have to be decoded.
    pub hits: u64,
    /// Clips that had to, whatever the reason.
    pub misses: u64,
    /// Bytes held, or about to be.
    pub bytes: u64,
    /// Clips held, or about to be.
    pub entries: u64,
    /// Clips not kept: the budget or the way to the disk was full, or writing had failed before.
    pub refused: u64,
    /// Misses because the recording is not what it was.
    pub stale: u64,
    /// Misses because the file in the folder was damaged.
    pub damaged: u64,
    /// Times that writing failed. It is not tried again after the first.
    pub write_errors: u64,
}

/// Decoded audio by recording and part. One for all threads, and for any number of corpora.
#[derive(Debug)]
pub struct Cache {
    kept: Kept,
    /// What recordings were when they were asked for in vain, until their clips are brought.
    asked: [Mutex<HashMap<Name, Identity>>; SHARDS],
    hits: AtomicU64,
    misses: AtomicU64,
    stale: AtomicU64,
    damaged: AtomicU64,
}

#[derive(Debug)]
enum Kept {
    Nothing,
    InMemory(Box<MemoryCache>),
    OnDisk(DiskCache),
}

/// A recording and the part of it that is meant, in 128 bits: no two of a corpus meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Name(u128);

/// What was found under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Hit,
    Absent,
    Stale,
    Damaged,
}

impl Cache {
    /// An empty cache, or the one that lies in the folder.
    ///
    /// `notes` is told, once and on a thread of its own, when a disk no longer takes anything. Cost: for a disk, one
    /// question to the file system per file in its folder. Fails with [`FeedError::Unusable`] when the folder cannot be
    /// made or listed, and when a thread cannot be started. A disk cache without a folder is the caller's mistake.
    pub fn open(spec: &CacheSpec, notes: impl Fn(String) + Send + Sync + 'static) -> Result<Cache, FeedError> {
        let kept = match (spec.kind, &spec.folder) {
            (CacheKind::None, _) => Kept::Nothing,
            (CacheKind::Memory, _) => Kept::InMemory(Box::new(MemoryCache::new(spec.budget_bytes))),
            (CacheKind::Disk, folder) => {
                assert!(folder.is_some(), "a disk cache has a folder");
                let folder = folder.as_deref().unwrap_or(".".as_ref());
                Kept::OnDisk(DiskCache::open(folder, spec.budget_bytes, Box::new(notes), Box::new(CacheEntry::write))?)
            }
        };
        Ok(Cache::new(kept))
    }

    fn new(kept: Kept) -> Cache {
        let [hits, misses, stale, damaged] = Default::default();
        Cache { kept, asked: Default::default(), hits, misses, stale, damaged }
    }

    /// Fills `clip`, whose memory is reused, with what `audio` means. False, with an empty clip, when it must be
    /// decoded: it is not here, the recording has changed or is gone, or what was kept is damaged.
    ///
    /// Cost of a hit: one question to the file system and one copy; on a disk, one file read and summed up.
    pub fn get_into(&self, sample: SampleIndex, audio: &Locator<'_>, clip: &mut Clip) -> bool {
        if matches!(self.kept, Kept::Nothing) {
            return miss(clip);
        }
        let found = audio.identity().map_or(Found::Absent, |identity| {
            let name = Name::of(audio);
            let found = self.kept.get_into(shard(sample), name, &identity, clip);
            if found != Found::Hit {
                self.asked(sample).insert(name, identity);
            }
            found
        });
        self.count(found);
        found == Found::Hit || miss(clip)
    }

    /// Keeps `clip`, which `audio` was decoded to after [`Cache::get_into`] did not have it. Never fails, and never
    /// waits for a disk: what has no room is not kept.
    pub fn put(&self, sample: SampleIndex, audio: &Locator<'_>, clip: &Clip) {
        if matches!(self.kept, Kept::Nothing) {
            return;
        }
        let name = Name::of(audio);
        // Nobody asked: then nobody knows what was decoded, and it may have changed since.
        let Some(identity) = self.asked(sample).remove(&name) else { return };
        match &self.kept {
            Kept::Nothing => {}
            Kept::InMemory(memory) => memory.put(shard(sample), name, identity, clip),
            Kept::OnDisk(disk) => disk.put(name, identity, clip),
        }
    }

    /// Waits until everything brought so far is on the disk, or given up.
    pub fn flush(&self) {
        if let Kept::OnDisk(disk) = &self.kept {
            disk.flush();
        }
    }

    /// What it did and what it holds. Cheap; the figures are of about the same moment.
    pub fn stats(&self) -> CacheStats {
        let (bytes, entries, refused, write_errors) = match &self.kept {
            Kept::Nothing => (0, 0, 0, 0),
            Kept::InMemory(memory) => {
                let (bytes, entries, refused) = memory.holdings();
                (bytes, entries, refused, 0)
            }
            Kept::OnDisk(disk) => disk.holdings(),
        };
        let [hits, misses, stale, damaged] =
            [&self.hits, &self.misses, &self.stale, &self.damaged].map(|count| count.load(Ordering::Relaxed));
        CacheStats { hits, misses, bytes, entries, refused, stale, damaged, write_errors }
    }

    /// Bytes held in memory now.
    pub fn memory_bytes(&self) -> u64 {
        match &self.kept {
            Kept::InMemory(memory) => memory.holdings().0,
            Kept::Nothing | Kept::OnDisk(_) => 0,
        }
    }

    fn asked(&self, sample: SampleIndex) -> MutexGuard<'_, HashMap<Name, Identity>> {
        // A map whose owner panicked between two calls is still a whole map.
        self.asked[shard(sample)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, found: Found) {
        let counts: &[&AtomicU64] = match found {
            Found::Hit => &[&self.hits],
            Found::Absent => &[&self.misses],
            Found::Stale => &[&self.misses, &self.stale],
            Found::Damaged => &[&self.misses, &self.damaged],
        };
        for count in counts {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Kept {
    fn get_into(&self, shard: usize, name: Name, identity: &Identity, clip: &mut Clip) -> Found {
        match self {
            Kept::Nothing => Found::Absent,
            Kept::InMemory(memory) => memory.get_into(shard, name, identity, clip),
            Kept::OnDisk(disk) => disk.get_into(name, identity, clip),
        }
    }
}

impl Name {
    fn of(audio: &Locator<'_>) -> Name {
        let mut words = audio.show().into_bytes();
        // A part without an end gets a duration that no list can give.
        if let Some(range) = audio.range {
            words.extend_from_slice(&range.offset_s.to_bits().to_le_bytes());
            words.extend_from_slice(&range.duration_s.map_or(u64::MAX, f64::to_bits).to_le_bytes());
        }
        words.push(u8::from(audio.range.is_some()));
        Name(u128::from(checksum(1, &words)) << 64 | u128::from(checksum(2, &words)))
    }
}

fn shard(sample: SampleIndex) -> usize {
    sample.at() % SHARDS
}

fn miss(clip: &mut Clip) -> bool {
    clip.clear();
    false
}
