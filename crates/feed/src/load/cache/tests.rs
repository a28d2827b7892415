//! The promises of a cache, in memory and on a disk.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tandem_corpus::{AudioRange, Store};
use tandem_pipeline::Worker;

use super::disk::Write;
use super::entry::ENDING;
use super::*;
use crate::fixture::FeedFolder;
use crate::load_into;

const PLENTY: u64 = 1 << 30;

/// A corpus of different recordings, and a folder for a cache.
struct Corpus {
    folder: FeedFolder,
    store: Store,
}

impl Corpus {
    fn new(name: &str) -> Corpus {
        let folder = FeedFolder::new(name);
        let store = Store::Files { root: folder.path().join("corpus") };
        let corpus = Corpus { folder, store };
        (0..4).for_each(|number| corpus.write(number, number));
        corpus
    }

    /// Writes recording `number`. `sound` chooses its samples, `number` its length.
    fn write(&self, number: u32, sound: u32) {
        let value = |i: u32| (i.wrapping_mul(2_654_435_761).wrapping_add(sound) >> 16) as i16;
        let samples = (0..3000 + number).map(value).collect();
        self.folder.wav(&format!("corpus/{number}.wav"), &Clip { samples, rate_hz: 8000 + number });
    }

    fn recording(&self, number: u32) -> PathBuf {
        self.folder.path().join(format!("corpus/{number}.wav"))
    }

    fn cache_folder(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn spec(&self, kind: CacheKind, budget_bytes: u64) -> CacheSpec {
        match kind {
            CacheKind::None => CacheSpec::None,
            CacheKind::Memory => CacheSpec::Memory { budget_bytes },
            CacheKind::Disk => CacheSpec::Disk { budget_bytes, folder: self.cache_folder() },
        }
    }

    fn open(&self, kind: CacheKind, budget_bytes: u64) -> Cache {
        Cache::open(&self.spec(kind, budget_bytes), |message| panic!("{message}")).unwrap()
    }

    /// A disk cache that writes with `write`, and its messages.
    fn open_with(&self, write: Box<Write>, grace: Duration) -> (Cache, Receiver<String>) {
        let (sender, messages) = sync_channel(100);
        let on_message = Box::new(move |message| sender.send(message).unwrap());
        let mut disk = DiskCache::open(&self.cache_folder(), PLENTY, on_message, write).unwrap();
        disk.grace = grace;
        (Cache::new(Storage::Disk(disk)), messages)
    }

    /// Loads as a loader does; returns whether it was a hit. Compares a hit with decoding.
    fn load(&self, cache: &Cache, number: u32, range: Option<AudioRange>) -> bool {
        let key = format!("{number}.wav");
        let audio = Locator { store: &self.store, key: &key, piece: None, range };
        let (mut clip, mut decoded) = (Clip { samples: vec![1; 9], rate_hz: 9 }, Clip::default());
        load_into(&audio, &mut decoded).unwrap();
        let hit = cache.get_into(SampleIndex(number), &audio, &mut clip);
        if hit {
            assert_eq!(clip, decoded, "{audio:?}");
        } else {
            assert_eq!(clip, Clip::default());
            cache.put(SampleIndex(number), &audio, &decoded);
            cache.flush();
        }
        hit
    }

    fn load_all(&self, cache: &Cache) -> Vec<bool> {
        (0..4).map(|number| self.load(cache, number, None)).collect()
    }

    /// The only file of the cache.
    fn cached(&self) -> PathBuf {
        let files: Vec<PathBuf> = fs::read_dir(self.cache_folder()).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].clone()
    }
}

const BOTH: [CacheKind; 2] = [CacheKind::Memory, CacheKind::Disk];

#[test]
fn a_hit_equals_decoding_bit_for_bit() {
    for kind in BOTH {
        let corpus = Corpus::new("cache");
        let cache = corpus.open(kind, PLENTY);
        assert_eq!(corpus.load_all(&cache), [false; 4]);
        assert_eq!(corpus.load_all(&cache), [true; 4]);
        // Each part of a recording is an entry.
        let part = |offset_s, duration_s| Some(AudioRange { offset_s, duration_s });
        for range in [part(0.0, None), part(0.1, None), part(0.1, Some(0.1)), part(0.0, Some(0.1))] {
            assert!(!corpus.load(&cache, 0, range) && corpus.load(&cache, 0, range), "{range:?}");
        }
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.misses, stats.entries), (8, 8, 8));
        assert_eq!((stats.refused, stats.stale, stats.damaged, stats.write_errors), (0, 0, 0, 0));
    }
}

#[test]
fn a_disk_cache_serves_the_next_run_and_a_memory_cache_does_not() {
    let corpus = Corpus::new("cache_again");
    for kind in BOTH {
        corpus.load_all(&corpus.open(kind, PLENTY));
    }
    assert_eq!(corpus.load_all(&corpus.open(CacheKind::Memory, PLENTY)), [false; 4]);
    let again = corpus.open(CacheKind::Disk, PLENTY);
    // Six thousand bytes and a header are two blocks of the disk.
    assert_eq!((again.stats().entries, again.stats().bytes), (4, 4 * 8192));
    assert_eq!(corpus.load_all(&again), [true; 4]);
}

#[test]
fn without_a_cache_nothing_is_stored_or_counted() {
    let corpus = Corpus::new("cache_none");
    let cache = Cache::open(&CacheSpec::default(), |_| {}).unwrap();
    assert_eq!([corpus.load_all(&cache), corpus.load_all(&cache)].concat(), [false; 8]);
    assert_eq!(cache.stats(), CacheStats::default());
}

#[test]
fn a_changed_recording_is_decoded_again_even_with_the_same_date() {
    for kind in BOTH {
        let corpus = Corpus::new("cache_changed");
        let cache = corpus.open(kind, PLENTY);
        corpus.load_all(&cache);
        let changed = |path: &Path| fs::metadata(path).map(|file| (file.ctime(), file.ctime_nsec())).unwrap();
        let path = corpus.recording(2);
        let (before, size) = (changed(&path), fs::metadata(&path).unwrap().len());
        let date = fs::metadata(&path).unwrap().modified().unwrap();
        // Until the file system's clock has advanced: two changes within one tick look like one.
        while changed(&path) == before {
            corpus.write(2, 99);
            File::options().write(true).open(&path).unwrap().set_modified(date).unwrap();
        }
        let now = fs::metadata(&path).unwrap();
        assert_eq!((now.len(), now.modified().unwrap()), (size, date));
        let bytes = cache.stats().bytes;
        assert_eq!(corpus.load_all(&cache), [true, true, false, true]);
        assert_eq!(corpus.load_all(&cache), [true; 4]);
        let stats = cache.stats();
        assert_eq!((stats.stale, stats.entries, stats.bytes), (1, 4, bytes), "replaced, not added: {kind:?}");
    }
}

#[test]
fn a_recording_that_changes_while_it_is_decoded_is_decoded_again() {
    for kind in BOTH {
        let corpus = Corpus::new("cache_race");
        let cache = corpus.open(kind, PLENTY);
        let audio = Locator { store: &corpus.store, key: "1.wav", piece: None, range: None };
        let mut clip = Clip::default();
        assert!(!cache.get_into(SampleIndex(1), &audio, &mut clip));
        load_into(&audio, &mut clip).unwrap();
        // Another file with the same name: independent of the clock.
        fs::rename(corpus.recording(3), corpus.recording(1)).unwrap();
        cache.put(SampleIndex(1), &audio, &clip);
        cache.flush();
        assert!(!corpus.load(&cache, 1, None));
        assert!(corpus.load(&cache, 1, None));
        assert_eq!(cache.stats().stale, 1);
    }
}

#[test]
fn a_deleted_recording_is_not_served() {
    for kind in BOTH {
        let corpus = Corpus::new("cache_gone");
        let cache = corpus.open(kind, PLENTY);
        corpus.load_all(&cache);
        fs::remove_file(corpus.recording(0)).unwrap();
        let mut clip = Clip { samples: vec![1; 9], rate_hz: 9 };
        let audio = Locator { store: &corpus.store, key: "0.wav", piece: None, range: None };
        assert!(!cache.get_into(SampleIndex(0), &audio, &mut clip));
        assert_eq!(clip, Clip::default());
    }
}

#[test]
fn the_cache_stays_within_its_budget_and_evicts_nothing() {
    for kind in BOTH {
        let corpus = Corpus::new("cache_budget");
        // Room for two and a half clips of 6000 bytes, or of two disk blocks.
        let budget_bytes = if kind == CacheKind::Memory { 15_500 } else { 20_000 };
        let cache = corpus.open(kind, budget_bytes);
        for _ in 0..3 {
            corpus.load_all(&cache);
        }
        let stats = cache.stats();
        assert_eq!((stats.hits, stats.entries, stats.refused), (4, 2, 6), "{stats:?}");
        assert!(stats.bytes > budget_bytes / 2 && stats.bytes <= budget_bytes, "{stats:?}");
        drop(cache);
        // The budget of a disk includes the files already there.
        let again = corpus.open(kind, budget_bytes);
        let expected = [kind == CacheKind::Disk, kind == CacheKind::Disk, false, false];
        assert_eq!(corpus.load_all(&again), expected);
        assert_eq!(again.stats().entries, 2);
        assert_eq!(corpus.open(kind, 0).stats().hits, 0);
    }
}

#[test]
fn a_damaged_file_is_decoded_again_and_replaced() {
    let check = |what: &str, damage: &dyn Fn(&mut Vec<u8>)| {
        let corpus = Corpus::new("cache_damaged");
        let cache = corpus.open(CacheKind::Disk, PLENTY);
        corpus.load(&cache, 0, None);
        let path = corpus.cached();
        let intact = fs::read(&path).unwrap();
        let mut bytes = intact.clone();
        damage(&mut bytes);
        fs::write(&path, &bytes).unwrap();
        assert!(!corpus.load(&cache, 0, None), "{what}");
        assert_eq!((cache.stats().damaged, cache.stats().stale), (1, 0), "{what}");
        assert_eq!(fs::read(&path).unwrap(), intact, "{what}");
        assert!(corpus.load(&cache, 0, None));
    };
    for byte in (0..96).chain([96, 97, 1234, 6095]) {
        check(&format!("byte {byte}"), &|bytes| bytes[byte] ^= 0x10);
    }
    for num_bytes in [0, 1, 95, 96, 97, 4096, 6095] {
        check(&format!("{num_bytes} bytes"), &|bytes| bytes.truncate(num_bytes));
    }
    check("longer", &|bytes| bytes.push(0));
    check("zeros", &|bytes| bytes.fill(0));
    check("no cache file at all", &|bytes| *bytes = b"RIFF".repeat(2000));
}

#[test]
fn a_file_of_another_recording_is_not_served() {
    let corpus = Corpus::new("cache_swapped");
    let cache = corpus.open(CacheKind::Disk, PLENTY);
    corpus.load(&cache, 0, None);
    let first = corpus.cached();
    let away = corpus.folder.path().join("away");
    fs::rename(&first, &away).unwrap();
    corpus.load(&cache, 1, None);
    fs::rename(away, corpus.cached()).unwrap();
    assert!(!corpus.load(&cache, 1, None));
    assert_eq!(cache.stats().stale, 1);
}

#[test]
fn a_full_disk_is_reported_once_and_existing_entries_are_still_served() {
    let corpus = Corpus::new("cache_full");
    let tried = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&tried);
    let write = move |entry: &CacheEntry, temporary: &Path, path: &Path| {
        *counted.lock().unwrap() += 1;
        if *counted.lock().unwrap() <= 2 {
            entry.write(temporary, path)
        } else {
            Err(io::ErrorKind::StorageFull.into())
        }
    };
    let (cache, messages) = corpus.open_with(Box::new(write), Duration::MAX);
    for _ in 0..3 {
        corpus.load_all(&cache);
    }
    let stats = cache.stats();
    assert_eq!((stats.hits, stats.entries, stats.write_errors, stats.refused), (4, 2, 1, 5), "{stats:?}");
    drop(cache);
    let messages: Vec<String> = messages.iter().collect();
    assert_eq!((messages.len(), *tried.lock().unwrap()), (1, 3), "{messages:?}");
    assert!(messages[0].contains("no storage space") && messages[0].ends_with("cache"), "{messages:?}");
}

#[test]
fn clips_queued_behind_a_failed_write_are_not_counted_as_stored() {
    let corpus = Corpus::new("cache_behind");
    let (fail, failing) = sync_channel::<()>(0);
    let write = move |_: &CacheEntry, _: &Path, _: &Path| {
        failing.recv().unwrap();
        Err(io::ErrorKind::StorageFull.into())
    };
    let (cache, messages) = corpus.open_with(Box::new(write), Duration::MAX);
    let mut clip = Clip::default();
    for key in ["0.wav", "1.wav", "2.wav", "3.wav"] {
        let audio = Locator { store: &corpus.store, key, piece: None, range: None };
        assert!(!cache.get_into(SampleIndex(0), &audio, &mut clip));
        cache.put(SampleIndex(0), &audio, &Clip { samples: vec![7; 50], rate_hz: 8000 });
    }
    assert_eq!(cache.stats().entries, 4);
    fail.send(()).unwrap();
    // The writer has ended, and its sender with it.
    assert_eq!(messages.iter().count(), 1);
    let stats = cache.stats();
    assert_eq!((stats.entries, stats.bytes, stats.refused, stats.write_errors), (0, 0, 3, 1));
}

#[test]
fn a_folder_that_disappears_does_not_fail_the_run() {
    let corpus = Corpus::new("cache_no_folder");
    let (cache, messages) = corpus.open_with(Box::new(CacheEntry::write), Duration::MAX);
    fs::remove_dir(corpus.cache_folder()).unwrap();
    fs::write(corpus.cache_folder(), "now a file").unwrap();
    assert_eq!([corpus.load_all(&cache), corpus.load_all(&cache)].concat(), [false; 8]);
    assert_eq!((cache.stats().write_errors, cache.stats().entries), (1, 0));
    drop(cache);
    assert_eq!(messages.iter().count(), 1);
    // At the start, before training, it is an error.
    let opened = Cache::open(&corpus.spec(CacheKind::Disk, PLENTY), |_| {});
    assert!(opened.unwrap_err().to_string().starts_with("the cache folder cannot be used"));
}

#[test]
fn a_file_that_cannot_be_finished_is_removed() {
    let corpus = Corpus::new("cache_unfinished");
    let (cache, messages) = corpus.open_with(Box::new(CacheEntry::write), Duration::MAX);
    let audio = Locator { store: &corpus.store, key: "0.wav", piece: None, range: None };
    // A folder has the name of the file: the file is written, and cannot be renamed.
    fs::create_dir(corpus.cache_folder().join(format!("{:032x}.{ENDING}", EntryName::of(&audio).0))).unwrap();
    assert!(!corpus.load(&cache, 0, None) && !corpus.load(&cache, 0, None));
    assert!(corpus.cached().is_dir());
    drop(cache);
    assert_eq!(messages.iter().count(), 1);
}

#[test]
fn put_never_waits_and_dropping_the_cache_drops_queued_clips() {
    let corpus = Corpus::new("cache_hanging");
    // The gate opens after all clips are put: a put that waited would hang forever.
    let (open, gate) = sync_channel::<()>(0);
    let (began, begun) = sync_channel(100);
    let write = move |_: &CacheEntry, _: &Path, _: &Path| {
        began.send(()).unwrap();
        gate.recv().unwrap_or(());
        Ok(())
    };
    let (cache, _messages) = corpus.open_with(Box::new(write), Duration::ZERO);
    // Nine mebibytes each: seven fit in the write queue.
    let clip = Clip { samples: vec![5; 9 << 19], rate_hz: 8000 };
    let mut none = Clip::default();
    let keys: Vec<String> = (0..10).map(|number| format!("{}.wav", number % 4)).collect();
    for (number, key) in (0..10).zip(&keys) {
        let range = Some(AudioRange { offset_s: f64::from(number), duration_s: None });
        let audio = Locator { store: &corpus.store, key, piece: None, range };
        assert!(!cache.get_into(SampleIndex(number), &audio, &mut none));
        cache.put(SampleIndex(number), &audio, &clip);
    }
    assert_eq!((cache.stats().entries, cache.stats().refused), (7, 3));
    // The writer has the first one until the cache is being dropped and the gate opens.
    begun.recv().unwrap();
    let dropper = Worker::spawn("dropper", move |_| drop(cache)).unwrap();
    drop(open);
    dropper.join().unwrap();
    let written = 1 + begun.iter().count();
    assert!(written <= 7, "the writer has ended, and the queue with it");
}

#[test]
fn a_cache_with_time_to_finish_writes_everything() {
    let corpus = Corpus::new("cache_finish");
    let (cache, _messages) = corpus.open_with(Box::new(CacheEntry::write), Duration::MAX);
    let mut clip = Clip::default();
    for key in ["0.wav", "1.wav", "2.wav", "3.wav"] {
        let audio = Locator { store: &corpus.store, key, piece: None, range: None };
        assert!(!cache.get_into(SampleIndex(0), &audio, &mut clip));
        load_into(&audio, &mut clip).unwrap();
        cache.put(SampleIndex(0), &audio, &clip);
    }
    drop(cache);
    assert_eq!(corpus.load_all(&corpus.open(CacheKind::Disk, PLENTY)), [true; 4]);
}

#[test]
fn many_threads_and_two_caches_of_one_folder_do_not_damage_entries() {
    for kind in BOTH {
        let corpus = Arc::new(Corpus::new("cache_shared"));
        let caches = [0, 1].map(|_| Arc::new(corpus.open(kind, PLENTY)));
        let loader = |number: usize| {
            let (corpus, cache) = (Arc::clone(&corpus), Arc::clone(&caches[number % 2]));
            let work = move |_: &_| (0..20).for_each(|_| drop(corpus.load_all(&cache)));
            Worker::spawn(format!("decode-{number}"), work).unwrap()
        };
        let loaders: Vec<Worker> = (0..4).map(loader).collect();
        loaders.into_iter().for_each(|loader| loader.join().unwrap());
        for cache in caches {
            let stats = cache.stats();
            assert!(stats.hits + stats.misses == 160 && stats.entries <= 4, "{stats:?}");
            assert_eq!((stats.damaged, stats.stale, stats.write_errors), (0, 0, 0), "{stats:?}");
        }
        let again = corpus.open(CacheKind::Disk, PLENTY);
        assert_eq!(again.stats().entries, if kind == CacheKind::Disk { 4 } else { 0 });
    }
}

#[test]
fn old_unfinished_files_and_old_versions_are_removed() {
    let corpus = Corpus::new("cache_left");
    let file = |name: &str, age_s: u64| {
        let path = corpus.cache_folder().join(name);
        corpus.folder.write(&format!("cache/{name}"), [0; 5000]);
        let date = SystemTime::now() - Duration::from_secs(age_s);
        File::options().write(true).open(&path).unwrap().set_modified(date).unwrap();
        path
    };
    let old = file("00ff.12-34-0.part", 2 * 3600);
    let young = file("00ff.12-34-1.part", 0);
    let foreign = file("notes.part", 2 * 3600);
    let version_1 = file("00fe.clip", 0);
    file(&format!("00fe.{ENDING}"), 2 * 3600);
    let cache = corpus.open(CacheKind::Disk, PLENTY);
    let exist = [&old, &version_1, &young, &foreign].map(|path| path.exists());
    assert_eq!(exist, [false, false, true, true]);
    assert_eq!((cache.stats().entries, cache.stats().bytes), (1, 8192));
}
