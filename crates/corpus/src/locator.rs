//! Where a recording is, said so that whoever decodes it never sees a path.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use tandem_files::open_regular;
use tandem_random::keyed;
use tandem_shards::ValueAddress;
use tandem_storage::{ObjectFetch, ObjectLocation, ObjectStamp, Storage, StorageError};

use crate::error::CorpusError;
use crate::recording_reader::RecordingReader;
use crate::shard::ShardFile;

/// A place that holds recordings that are files or objects of their own.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Store {
    /// Files on this machine.
    Files {
        /// Where relative keys start.
        root: PathBuf,
    },
    /// Files and objects in object stores.
    Objects(ObjectFolder),
}

/// Objects below a location, and what is known of them.
#[derive(Clone, Debug)]
pub struct ObjectFolder {
    root: ObjectLocation,
    storage: Storage,
    /// Listings by folder, each read when it is first asked for: one request for a thousand objects.
    listings: Arc<Mutex<HashMap<ObjectLocation, Arc<Listed>>>>,
}

/// The objects of a folder by name, or why they could not be listed.
type Listed = Result<HashMap<String, ObjectStamp>, String>;

impl Store {
    /// Objects and files below `root`.
    pub(crate) fn objects(root: ObjectLocation, storage: Storage) -> Store {
        Store::Objects(ObjectFolder { root, storage, listings: Arc::default() })
    }

    /// The recordings below `root`, which may also be named by URLs.
    pub(crate) fn of(root: &ObjectLocation, storage: &Storage) -> Store {
        Store::objects(root.clone(), storage.clone())
    }

    /// Whether keys without a scheme are in an object store.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Store::Objects(folder) if folder.root.is_remote())
    }
}

impl PartialEq for Store {
    fn eq(&self, other: &Store) -> bool {
        match (self, other) {
            (Store::Files { root }, Store::Files { root: other }) => root == other,
            (Store::Objects(folder), Store::Objects(other)) => folder.root == other.root,
            _ => false,
        }
    }
}

impl Eq for Store {}

impl ObjectFolder {
    /// Size and version of an object. A folder that cannot be listed is asked for each object.
    fn stamp(&self, location: &ObjectLocation) -> Result<ObjectStamp, StorageError> {
        if !location.is_remote() {
            return self.storage.stamp(location);
        }
        let folder = location.parent();
        let known = self.listings.lock().unwrap_or_else(PoisonError::into_inner).get(&folder).cloned();
        let listed = match known {
            Some(listed) => listed,
            None => self.list(folder)?,
        };
        match &*listed {
            Ok(objects) => objects
                .get(location.name())
                .cloned()
                .ok_or_else(|| StorageError::Missing { location: location.to_string() }),
            Err(_) => self.storage.stamp(location),
        }
    }

    /// Lists a folder, and remembers the answer. Fails only if the wait for it is interrupted: that says nothing about the
    /// folder, and whoever asks next may list it.
    fn list(&self, folder: ObjectLocation) -> Result<Arc<Listed>, StorageError> {
        let by_name = |found: Vec<(ObjectLocation, ObjectStamp)>| {
            found.into_iter().map(|(location, stamp)| (location.name().to_owned(), stamp)).collect()
        };
        let listed = match self.storage.list(&folder) {
            Err(error @ StorageError::Interrupted { .. }) => return Err(error),
            listed => Arc::new(listed.map(by_name).map_err(|error| error.to_string())),
        };
        self.listings.lock().unwrap_or_else(PoisonError::into_inner).insert(folder, Arc::clone(&listed));
        Ok(listed)
    }
}

/// A part of a recording.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AudioRange {
    /// Where it begins.
    pub offset_s: f64,
    /// How long it is; to the end when nobody said.
    pub duration_s: Option<f64>,
}

/// A recording inside a shard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Piece<'a> {
    /// The container.
    pub shard: &'a ShardFile,
    /// Where it is in there.
    pub address: ValueAddress,
}

/// The address of a recording, or of a part of one. Holding one says nothing about whether it is there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Locator<'a> {
    /// Where to look for recordings that are in no shard.
    pub store: &'a Store,
    /// What to look for: a path or URL, relative to the store's root unless it is absolute; in a shard, the member's name.
    pub key: &'a str,
    /// Where it is in a shard; none for a file or an object of its own.
    pub piece: Option<Piece<'a>>,
    /// The part that is meant; none is the whole recording.
    pub range: Option<AudioRange>,
}

/// What tells recordings of one corpus apart: rows that share one are parts of the same recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordingKey<'a> {
    key: &'a str,
    shard: Option<(&'a ObjectLocation, ValueAddress)>,
}

/// A recording of an object store that is to be fetched, or on its way here. Dropping it cancels the requests.
#[derive(Debug)]
pub struct PendingRecording {
    value: ObjectFetch,
    /// The dictionary that a Parquet page needs.
    dictionary: Option<ObjectFetch>,
}

impl PendingRecording {
    /// Bytes to fetch. Known before any of them is asked for.
    pub fn num_bytes(&self) -> u64 {
        let dictionary_bytes = self.dictionary.as_ref().map_or(0, ObjectFetch::num_bytes);
        self.value.num_bytes().saturating_add(dictionary_bytes)
    }

    /// Makes the requests, and waits for nothing. Again does nothing.
    pub fn start(&mut self) {
        self.value.start();
        self.dictionary.iter_mut().for_each(ObjectFetch::start);
    }
}

impl<'a> Locator<'a> {
    /// Opens the recording for reading, at its beginning. The range is the decoder's to apply.
    ///
    /// Cost: two system calls for a file; for a piece of a shard, or an object, its bytes. Fails with
    /// [`CorpusError::Audio`] and [`CorpusError::Storage`], which name it; only a file or an object is a recording.
    pub fn open(&self) -> Result<RecordingReader, CorpusError> {
        match (self.fetch()?, self.piece, self.path()) {
            (Some(pending), ..) => self.open_fetched(pending),
            (None, Some(piece), _) => piece.shard.open(piece.address),
            (None, None, Some(path)) => open_regular(&path)
                .map(RecordingReader::File)
                .map_err(|source| CorpusError::Audio { path: path.into_owned(), source }),
            (None, None, None) => unreachable!("what is not on this machine is fetched"),
        }
    }

    /// A recording of an object store, to be fetched: [`PendingRecording::start`] makes the requests. None for one on this
    /// machine.
    ///
    /// Cost: no request for a piece of a shard. For an object of its own, the listing of its folder the first time, or one
    /// request where there are no lists: its size is known afterwards. Fails like [`Locator::open`].
    pub fn fetch(&self) -> Result<Option<PendingRecording>, CorpusError> {
        match (self.piece, self.store) {
            (Some(piece), _) if piece.shard.location().is_remote() => {
                let (value, dictionary) = piece.shard.fetch(piece.address)?;
                Ok(Some(PendingRecording { value, dictionary }))
            }
            (None, Store::Objects(folder)) => {
                let location = folder.root.join(self.key);
                if !location.is_remote() {
                    return Ok(None);
                }
                let stamp = folder.stamp(&location)?;
                let value = folder.storage.fetch(&location, 0..stamp.num_bytes, &stamp);
                Ok(Some(PendingRecording { value, dictionary: None }))
            }
            _ => Ok(None),
        }
    }

    /// Waits for a recording of [`Locator::fetch`], and opens it. Starts to fetch it, if nobody did.
    pub fn open_fetched(&self, mut pending: PendingRecording) -> Result<RecordingReader, CorpusError> {
        // Both at once.
        pending.start();
        let value = pending.value.wait()?;
        match self.piece {
            None => Ok(RecordingReader::of_bytes(value)),
            Some(piece) => {
                let dictionary = pending.dictionary.map(ObjectFetch::wait).transpose()?;
                piece.shard.open_fetched(piece.address, value, dictionary)
            }
        }
    }

    /// What the store says of the recording, if it is a file. Asked before it is opened: opening a pipe would wait for
    /// a writer that never comes.
    fn file(path: &Path) -> Result<Metadata, CorpusError> {
        let failed = |source| CorpusError::Audio { path: path.to_owned(), source };
        let metadata = fs::metadata(path).map_err(failed)?;
        match metadata.file_type() {
            kind if kind.is_file() => Ok(metadata),
            kind if kind.is_dir() => Err(failed(io::ErrorKind::IsADirectory.into())),
            _ => Err(failed(io::Error::other("not a regular file"))),
        }
    }

    /// How the key ends (`wav`), for a decoder that wants a first guess.
    pub fn extension(&self) -> Option<&str> {
        let name = self.key.rsplit('/').next().unwrap_or(self.key);
        name.rsplit_once('.').map(|(_, extension)| extension)
    }

    /// The place in words, for messages. Credentials and queries of URLs are not shown.
    pub fn show(&self) -> String {
        match (self.piece, self.path(), self.store) {
            (Some(piece), ..) => piece.shard.show(self.key, piece.address),
            (None, Some(path), _) => path.display().to_string(),
            (None, None, Store::Objects(folder)) => folder.root.join(self.key).to_string(),
            (None, None, Store::Files { .. }) => unreachable!("files have paths"),
        }
    }

    /// What tells this recording from the others of its corpus.
    pub fn recording(&self) -> RecordingKey<'a> {
        let shard = self.piece.map(|piece| (piece.shard.location(), piece.address));
        RecordingKey { key: self.key, shard }
    }

    /// What its length is kept under.
    pub(crate) fn length_key(&self) -> Cow<'a, str> {
        match self.piece {
            Some(piece) => piece.shard.show(self.key, piece.address).into(),
            None => self.key.into(),
        }
    }

    /// The key with the root before it: valid whatever the root is.
    pub(crate) fn full_key(&self) -> Cow<'a, str> {
        match (self.piece, self.store) {
            (Some(_), _) => self.key.into(),
            (None, Store::Files { root }) => {
                let path = root.join(self.key);
                std::path::absolute(&path).unwrap_or(path).to_string_lossy().into_owned().into()
            }
            (None, Store::Objects(folder)) => folder.root.join(self.key).identity().into(),
        }
    }

    /// Size and time of change: what tells a changed recording from the one that was measured.
    pub(crate) fn stamp(&self) -> Result<Stamp, CorpusError> {
        match self.standing()? {
            Standing::File(metadata) => {
                let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
                let modified_ns = modified.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
                Ok(Stamp { num_bytes: metadata.len(), modified_ns })
            }
            Standing::Object(stamp) => Ok(Stamp { num_bytes: stamp.num_bytes, modified_ns: version(&stamp) }),
        }
    }

    /// What tells this very recording from every other, and from itself after a change. Says nothing about the range.
    ///
    /// One system call. Fails like [`Locator::open`], so that a recording that is gone is found out by asking.
    pub fn identity(&self) -> Result<Identity, CorpusError> {
        match self.standing()? {
            Standing::File(metadata) => Ok(Identity {
                num_bytes: metadata.len(),
                modified_ns: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
                changed_ns: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
                inode: metadata.ino(),
                device: metadata.dev(),
            }),
            Standing::Object(stamp) => Ok(Identity {
                num_bytes: stamp.num_bytes,
                modified_ns: stamp.modified_ns as i64,
                changed_ns: version(&stamp) as i64,
                inode: 0,
                device: 0,
            }),
        }
    }

    /// The file or object that holds the recording, as it is now; of a shard in an object store, as it was indexed.
    fn standing(&self) -> Result<Standing, CorpusError> {
        match (self.piece, self.path(), self.store) {
            (Some(piece), ..) => match piece.shard.location().path() {
                Some(path) => Locator::file(path).map(Standing::File),
                None => Ok(Standing::Object(piece.shard.stamp().clone())),
            },
            (None, Some(path), _) => Locator::file(&path).map(Standing::File),
            (None, None, Store::Objects(folder)) => Ok(Standing::Object(folder.stamp(&folder.root.join(self.key))?)),
            (None, None, Store::Files { .. }) => unreachable!("files have paths"),
        }
    }

    /// The path of a file of its own on this machine.
    fn path(&self) -> Option<Cow<'a, Path>> {
        match (self.piece, self.store) {
            (Some(_), _) => None,
            (None, Store::Files { root }) => Some(root.join(self.key).into()),
            (None, Store::Objects(folder)) => {
                let location = folder.root.join(self.key);
                location.path().map(|path| path.to_owned().into())
            }
        }
    }
}

/// What holds a recording, as it is now.
enum Standing {
    File(Metadata),
    Object(ObjectStamp),
}

/// A number for a version of an object: of its ETag, or of its date where it has none.
fn version(stamp: &ObjectStamp) -> u64 {
    stamp.etag.as_deref().map_or(stamp.modified_ns, |etag| keyed::hash(0, etag.as_bytes()))
}

/// Two equal ones mean the same content, unless it was changed twice within one tick of the file system's clock (some
/// milliseconds; on newer kernels no such gap is left).
///
/// The time of modification can be set back by anyone, the time of change by nobody: a recording that was edited and
/// given its old date still differs. So does one whose rights or links were changed, which costs a decoding and no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Size.
    pub num_bytes: u64,
    /// When the content was last modified, as the file says; from 1970.
    pub modified_ns: i64,
    /// When anything of the file was last changed; from 1970.
    pub changed_ns: i64,
    /// Its number in its file system.
    pub inode: u64,
    /// The file system. May be another after a restart of the machine.
    pub device: u64,
}

/// Absurd dates wrap round: they only have to differ.
fn nanoseconds(seconds: i64, rest_ns: i64) -> i64 {
    seconds.wrapping_mul(1_000_000_000).wrapping_add(rest_ns)
}

/// What a file looked like from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) num_bytes: u64,
    pub(crate) modified_ns: u64,
}

/// Endings of files that hold recordings, the one preferred first.
pub const EXTENSIONS: [&str; 4] = ["wav", "flac", "ogg", "mp3"];

/// `name` without the ending of a recording, if it has one.
pub(crate) fn without_extension(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((stem, extension)) if EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known)) => stem,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::fixture::CorpusFolder;

    #[test]
    fn endings() {
        let check = |key: &str, extension: Option<&str>, stem: &str| {
            let store = Store::Files { root: PathBuf::new() };
            assert_eq!(Locator { store: &store, key, piece: None, range: None }.extension(), extension, "{key}");
            assert_eq!(without_extension(key), stem);
        };
        check("wavs/a.wav", Some("wav"), "wavs/a");
        check("wavs/a.b.FLAC", Some("FLAC"), "wavs/a.b");
        check("v1.2/a", None, "v1.2/a");
        check("LJ001.0002", Some("0002"), "LJ001.0002");
    }

    #[test]
    fn what_cannot_be_opened_is_named() {
        let store = Store::Files { root: std::env::temp_dir() };
        for key in ["no such recording.wav", ""] {
            let error = Locator { store: &store, key, piece: None, range: None }.open().unwrap_err();
            assert!(error.to_string().contains(&std::env::temp_dir().join(key).display().to_string()), "{error}");
        }
    }

    #[test]
    fn a_changed_recording_has_another_identity_whatever_its_date_says() {
        let folder = CorpusFolder::new("identity");
        let store = Store::Files { root: folder.path().to_owned() };
        let locator = Locator { store: &store, key: "a.wav", piece: None, range: None };
        let path = folder.path().join("a.wav");
        let changed_ns = || fs::metadata(&path).map(|file| (file.ctime(), file.ctime_nsec())).unwrap();

        folder.write("a.wav", "one");
        let first = locator.identity().unwrap();
        assert_eq!(locator.identity().unwrap(), first);
        assert_eq!((first.num_bytes, locator.stamp().unwrap().modified_ns as i64), (3, first.modified_ns));

        let (date, tick) = (fs::metadata(&path).unwrap().modified().unwrap(), changed_ns());
        // Until the file system's clock has moved on: two changes within one tick look like one.
        while changed_ns() == tick {
            folder.write("a.wav", "two");
            File::options().write(true).open(&path).unwrap().set_modified(date).unwrap();
        }
        let second = locator.identity().unwrap();
        assert_eq!((second.num_bytes, second.modified_ns), (first.num_bytes, first.modified_ns));
        assert_ne!(second, first);

        fs::remove_file(&path).unwrap();
        assert!(matches!(locator.identity(), Err(CorpusError::Audio { .. })));
    }
}
