//! Where a recording is, said so that whoever decodes it never sees a path.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use tandem_files::open_regular;

use crate::error::CorpusError;

/// A place that holds recordings. Today there is one sort; shards and object stores would be others.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Store {
    /// Files on this machine.
    Files {
        /// Where relative keys start.
        root: PathBuf,
    },
}

/// A part of a recording.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AudioRange {
    /// Where it begins.
    pub offset_s: f64,
    /// How long it is; to the end when nobody said.
    pub duration_s: Option<f64>,
}

/// The address of a recording, or of a part of one. Holding one says nothing about whether it is there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Locator<'a> {
    /// Where to look.
    pub store: &'a Store,
    /// What to look for: a path, relative to the store's root unless it is absolute.
    pub key: &'a str,
    /// The part that is meant; none is the whole recording.
    pub range: Option<AudioRange>,
}

impl Locator<'_> {
    /// Opens the recording for reading, at its beginning. The range is the decoder's to apply.
    ///
    /// Two system calls. Fails with [`CorpusError::Audio`], which names the file; only a file is a recording.
    pub fn open(&self) -> Result<File, CorpusError> {
        open_regular(self.path()).map_err(|source| CorpusError::Audio { path: self.path(), source })
    }

    /// What the store says of the recording, if it is a file. Asked before it is opened: opening a pipe would wait for
    /// a writer that never comes.
    fn file(&self) -> Result<Metadata, CorpusError> {
        let failed = |source| CorpusError::Audio { path: self.path(), source };
        let metadata = fs::metadata(self.path()).map_err(failed)?;
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

    /// The place in words, for messages.
    pub fn show(&self) -> String {
        self.path().display().to_string()
    }

    /// Size and time of change: what tells a changed recording from the one that was measured.
    pub(crate) fn stamp(&self) -> Result<Stamp, CorpusError> {
        let metadata = self.file()?;
        let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let modified_ns = modified.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX));
        Ok(Stamp { num_bytes: metadata.len(), modified_ns })
    }

    /// What tells this very recording from every other, and from itself after a change. Says nothing about the range.
    ///
    /// One system call. Fails like [`Locator::open`], so that a recording that is gone is found out by asking.
    pub fn identity(&self) -> Result<Identity, CorpusError> {
        let metadata = self.file()?;
        Ok(Identity {
            num_bytes: metadata.len(),
            modified_ns: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
            inode: metadata.ino(),
            device: metadata.dev(),
        })
    }

    fn path(&self) -> PathBuf {
        let Store::Files { root } = self.store;
        root.join(self.key)
    }
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
    use super::*;
    use crate::fixture::CorpusFolder;

    #[test]
    fn endings() {
        let check = |key: &str, extension: Option<&str>, stem: &str| {
            let store = Store::Files { root: PathBuf::new() };
            assert_eq!(Locator { store: &store, key, range: None }.extension(), extension, "{key}");
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
            let error = Locator { store: &store, key, range: None }.open().unwrap_err();
            assert!(error.to_string().contains(&std::env::temp_dir().join(key).display().to_string()), "{error}");
        }
    }

    #[test]
    fn a_changed_recording_has_another_identity_whatever_its_date_says() {
        let folder = CorpusFolder::new("identity");
        let store = Store::Files { root: folder.path().to_owned() };
        let locator = Locator { store: &store, key: "a.wav", range: None };
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
