//! A shard that can be scanned: where it is, what it is, and what describes its recordings.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, BufRead, Read, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use tandem_shards::ShardFault;
use tandem_storage::{Object, ObjectLocation, ObjectReader, ObjectStamp, ReadAt, Storage, StorageError};

use super::nemo::NemoList;
use super::scan::{LengthProbe, ShardScan};
use super::segment::ScannedShard;
use super::{cuts, nemo, shar, tables, webdataset};
use crate::error::CorpusError;
use crate::problem::{Findings, Problem, ProblemKind};
use crate::shard::{ShardFile, ShardKind};

/// Columns of tables by name, where they are not the usual ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ColumnNames {
    /// The recording: bytes, or a struct with `bytes` and `path`, or a path.
    pub audio: Option<String>,
    /// What is said.
    pub text: Option<String>,
    /// Who says it.
    pub speaker: Option<String>,
    /// The name of the utterance.
    pub id: Option<String>,
    /// The language.
    pub lang: Option<String>,
    /// Seconds.
    pub duration: Option<String>,
}

/// A file or object as it was when it was found.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StampedObject {
    pub(crate) location: ObjectLocation,
    pub(crate) stamp: ObjectStamp,
}

/// What is in a shard, and who says it.
#[derive(Clone, Debug)]
pub(crate) enum ShardContent {
    /// A tar archive with texts and recordings.
    WebDataset,
    /// A tar archive of recordings, whose texts are in a manifest: rows of this number, or all of them.
    Nemo {
        list: Arc<SharedList>,
        shard: Option<u32>,
        /// The first archive of a list: what is wrong with the list is said there.
        reports_list: bool,
    },
    /// A tar archive of recordings, whose texts are in cuts of the same number.
    Shar { cuts: StampedObject },
    /// A table in a Parquet file.
    Parquet,
    /// A table in an Arrow file.
    Arrow,
}

/// A manifest that describes several shards: read by the first of them that needs it.
pub(crate) struct SharedList {
    pub(crate) object: StampedObject,
    /// The numbers of the archives, if one list describes them all.
    archives: Option<BTreeSet<u32>>,
    entries: Mutex<Option<Arc<ReadList>>>,
}

impl fmt::Debug for SharedList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedList").field("object", &self.object).finish_non_exhaustive()
    }
}

impl SharedList {
    pub(crate) fn new(object: StampedObject, archives: Option<BTreeSet<u32>>) -> SharedList {
        SharedList { object, archives, entries: Mutex::new(None) }
    }

    /// The rows, and what is wrong with the list.
    fn read(&self, storage: &Storage) -> Result<Arc<ReadList>, CorpusError> {
        // Held while the list is read: other shards that need it wait.
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entries) = &*entries {
            return Ok(Arc::clone(entries));
        }
        let mut problems = Vec::new();
        let file = Path::new(&self.object.location.to_string()).into();
        let mut findings = Findings { file, list: &mut problems };
        let lines = open_list(storage, &self.object)?;
        let list = NemoList::read(lines, &mut findings);
        let list = list.map_err(|source| CorpusError::of_io(source, &self.object.location))?;
        for (shard, count) in list.shards() {
            if let (Some(archives), Some(shard)) = (&self.archives, shard)
                && !archives.contains(&shard)
            {
                let detail = format!("{count} rows with `shard_id` {shard}: there is no archive with this number");
                findings.whole(ProblemKind::MissingAudio, detail);
            }
        }
        let read = Arc::new(ReadList { list, problems });
        *entries = Some(Arc::clone(&read));
        Ok(read)
    }
}

/// A manifest that was read.
struct ReadList {
    list: NemoList,
    problems: Vec<Problem>,
}

/// A shard of a corpus, not yet scanned.
#[derive(Clone, Debug)]
pub struct ShardSource {
    pub(crate) container: StampedObject,
    pub(crate) content: ShardContent,
    pub(crate) columns: Arc<ColumnNames>,
    pub(crate) storage: Storage,
}

impl ShardSource {
    /// Where it is.
    pub fn location(&self) -> &ObjectLocation {
        &self.container.location
    }

    /// Its size.
    pub fn num_bytes(&self) -> u64 {
        self.container.stamp.num_bytes
    }

    /// Reads the shard from front to back: its utterances, and where their recordings are. Recordings without a known length
    /// are measured with `probe`; without one their lengths stay unknown.
    ///
    /// Costs a few small reads per utterance of a file. An object in a store is read as a whole, in blocks of 8 MiB. A shard
    /// that is damaged keeps the rows before the damage, which is a problem. Fails if the shard is gone or has changed, or if
    /// the store does not answer.
    pub fn scan(&self, probe: Option<&dyn LengthProbe>) -> Result<ScannedShard, CorpusError> {
        let object = self.storage.open(&self.container.location, Some(&self.container.stamp))?;
        let is_table = matches!(self.content, ShardContent::Parquet);
        let remote = self.container.location.is_remote().then(|| Arc::new(RemoteBytes::new(object.clone(), !is_table)));
        let bytes: Arc<dyn ReadAt> = match &remote {
            Some(remote) => Arc::clone(remote) as Arc<dyn ReadAt>,
            None => Arc::new(object),
        };
        let mut scan = ShardScan::new(self.file_name(), probe);
        let outcome = match &self.content {
            ShardContent::WebDataset => webdataset::scan(&bytes, &mut scan).map(|()| ShardKind::Tar),
            ShardContent::Nemo { list, shard, reports_list } => {
                let read = list.read(&self.storage)?;
                scan.problems.extend(read.problems.iter().filter(|_| *reports_list).cloned());
                nemo::scan(&bytes, &read.list, *shard, &mut scan).map(|()| ShardKind::Tar)
            }
            ShardContent::Shar { cuts } => {
                let lines = open_list(&self.storage, cuts)?;
                shar::scan(&bytes, lines, &mut scan).map(|()| ShardKind::Tar)
            }
            ShardContent::Parquet => {
                tables::scan_parquet(&bytes, &self.columns, self.stem(), &mut scan).map(ShardKind::Parquet)
            }
            ShardContent::Arrow => {
                tables::scan_arrow(&bytes, &self.columns, self.stem(), &mut scan).map(|()| ShardKind::Arrow)
            }
        };
        // First: a store without an answer says nothing about the shard, and nothing about the recording that was measured.
        if let Some(error) = remote.and_then(|remote| remote.take_failure()) {
            return Err(error.into());
        }
        match outcome {
            Ok(kind) => Ok(ScannedShard::new(scan, kind)),
            Err(fault) => self.scan_to_damage(scan, fault),
        }
    }

    /// What a shard has before its damage. Bytes that could not be read say nothing about the shard, and are not stored.
    fn scan_to_damage(&self, mut scan: ShardScan<'_>, fault: ShardFault) -> Result<ScannedShard, CorpusError> {
        let fault = match fault {
            ShardFault::Io(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                return Err(CorpusError::of_io(error, &self.container.location));
            }
            other => other,
        };
        let kind = match &self.content {
            // Without its page table, no recording of a Parquet file can be found.
            ShardContent::Parquet => {
                return Err(CorpusError::Shard { shard: self.container.location.to_string(), fault });
            }
            _ if matches!(fault, ShardFault::Unsupported { .. }) => {
                return Err(CorpusError::Shard { shard: self.container.location.to_string(), fault });
            }
            ShardContent::Arrow => ShardKind::Arrow,
            _ => ShardKind::Tar,
        };
        scan.problem(None, ProblemKind::DamagedShard, fault.to_string());
        Ok(ScannedShard::new(scan, kind))
    }

    /// The shard with what was found in it, for reading recordings.
    pub(crate) fn file(&self, kind: ShardKind) -> ShardFile {
        let StampedObject { location, stamp } = &self.container;
        ShardFile::new(location.clone(), stamp.clone(), kind, self.storage.clone())
    }

    /// Its name in problems.
    pub(crate) fn file_name(&self) -> Arc<Path> {
        Path::new(&self.container.location.to_string()).into()
    }

    /// Its place, for the name of its index.
    pub(crate) fn identity(&self) -> String {
        self.container.location.identity()
    }

    /// All that its rows depend on: another key means another scan.
    pub(crate) fn key(&self) -> String {
        let object = |object: &StampedObject| {
            let ObjectStamp { num_bytes, modified_ns, etag } = &object.stamp;
            format!("{} {num_bytes} {modified_ns} {}", object.location.identity(), etag.as_deref().unwrap_or("-"))
        };
        let content = match &self.content {
            ShardContent::WebDataset => "webdataset".to_owned(),
            ShardContent::Nemo { list, shard, reports_list } => {
                // The first archive also says which are missing.
                let archives = list.archives.as_ref().filter(|_| *reports_list);
                format!("nemo {shard:?} {reports_list} {archives:?} {}", object(&list.object))
            }
            ShardContent::Shar { cuts } => format!("shar {}", object(cuts)),
            ShardContent::Parquet => format!("parquet {:?}", self.columns),
            ShardContent::Arrow => format!("arrow {:?}", self.columns),
        };
        format!("{}\n{content}", object(&self.container))
    }

    /// The name of the file without its ending.
    fn stem(&self) -> &str {
        let name = self.container.location.name();
        name.rsplit_once('.').map_or(name, |(stem, _)| stem)
    }
}

/// The bytes of a list from its beginning to its end; unpacked if its name ends with `.gz`.
pub(crate) fn open_list(storage: &Storage, list: &StampedObject) -> Result<Box<dyn BufRead + Send>, CorpusError> {
    let reader = reader_of(storage, list)?;
    Ok(cuts::open_lines(Box::new(reader), list.location.name().ends_with(".gz")))
}

fn reader_of(storage: &Storage, list: &StampedObject) -> Result<impl Read + Send + use<>, CorpusError> {
    let object = storage.open(&list.location, Some(&list.stamp))?;
    Ok(object.reader(0..list.stamp.num_bytes))
}

/// An object of a store while it is scanned. Remembers that the store failed, whoever asked for the bytes.
struct RemoteBytes {
    object: Object,
    /// For what is read from front to back, with the next block on its way: one request for 8 MiB instead of one for every
    /// header. The columns of a Parquet file are in different places, and read by themselves.
    sequential: Option<Mutex<ObjectReader>>,
    /// The first error of the store.
    failure: Mutex<Option<StorageError>>,
}

impl RemoteBytes {
    fn new(object: Object, is_sequential: bool) -> RemoteBytes {
        let sequential = is_sequential.then(|| Mutex::new(object.reader(0..object.num_bytes())));
        RemoteBytes { object, sequential, failure: Mutex::new(None) }
    }

    fn take_failure(&self) -> Option<StorageError> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let Some(reader) = &self.sequential else { return self.object.read_exact_at(offset, buffer) };
        // A failed read leaves the reader at some position, and each read seeks first.
        let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
        reader.seek(SeekFrom::Start(offset))?;
        reader.read_exact(buffer)
    }
}

impl ReadAt for RemoteBytes {
    fn num_bytes(&self) -> u64 {
        self.object.num_bytes()
    }

    fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read(offset, buffer).map_err(|error| match error.downcast::<StorageError>() {
            Ok(error) => {
                let shown = io::Error::other(error.to_string());
                self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                shown
            }
            Err(other) => other,
        })
    }
}
