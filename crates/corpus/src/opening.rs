//! A corpus while it is opened: what has been read, and which shards must still be scanned.
//!
//! ```text
//! begin: names ─> sources ─> lists are read, indexes of shards are loaded ─> pending shards
//! caller: scans pending shards on its threads, adds each ─> finish: one dataset
//! ```
//!
//! Scanning is the caller's, because this crate starts no threads and knows no audio format.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dataset::{Dataset, OpenOptions};
use crate::error::CorpusError;
use crate::locator::Store;
use crate::sample::{MAX_SHARDS, Samples};
use crate::sharded::index_file::IndexFolder;
use crate::sharded::segment::ScannedShard;
use crate::sharded::source::ShardSource;
use crate::sources::{CorpusSource, MixedSource, ShardSet, SourceFinder};

/// A corpus that is being opened.
#[derive(Debug)]
pub struct CorpusOpening {
    options: OpenOptions,
    index: Option<IndexFolder>,
    whole: OpeningPart,
    /// Shards that must be scanned.
    pending: Vec<Arc<ShardSource>>,
    num_indexed: usize,
    index_error: Option<CorpusError>,
    num_measured: u64,
    num_decoded: u64,
}

/// A corpus, or one of a mixture.
#[derive(Debug)]
enum OpeningPart {
    /// Lists, which are read at once.
    Read(Box<Dataset>),
    Shards {
        set: ShardSetHead,
        shards: Vec<(Arc<ShardSource>, Option<ScannedShard>)>,
    },
    Mixture {
        path: PathBuf,
        parts: Vec<(MixedHead, OpeningPart)>,
    },
}

/// What a set of shards is, beside them.
#[derive(Debug)]
struct ShardSetHead {
    path: PathBuf,
    format: crate::Format,
    store: Store,
    not_read: Vec<String>,
}

#[derive(Debug)]
struct MixedHead {
    name: String,
    weight: f64,
    lang: Option<String>,
}

/// A corpus of a mixture that was read.
pub(crate) struct MixedDataset {
    pub(crate) name: String,
    pub(crate) weight: f64,
    pub(crate) lang: Option<String>,
    pub(crate) dataset: Dataset,
}

impl CorpusOpening {
    /// Finds out what `names` stand for, reads lists, and loads the indexes of shards that have not changed.
    ///
    /// Fails like [`Dataset::open`].
    pub fn begin(names: &[String], options: &OpenOptions) -> Result<CorpusOpening, CorpusError> {
        let columns = Arc::new(options.columns.clone());
        let finder = SourceFinder { storage: &options.storage, columns, in_mixture: false };
        let source = finder.find(names, Path::new(""))?;
        let index = options.index_folder.clone().map(IndexFolder);
        let mut opening = CorpusOpening {
            options: options.clone(),
            index,
            whole: OpeningPart::Mixture { path: PathBuf::new(), parts: Vec::new() },
            pending: Vec::new(),
            num_indexed: 0,
            index_error: None,
            num_measured: 0,
            num_decoded: 0,
        };
        opening.whole = opening.part(source)?;
        Ok(opening)
    }

    fn part(&mut self, source: CorpusSource) -> Result<OpeningPart, CorpusError> {
        match source {
            CorpusSource::Local { path, layout } => {
                let dataset = Dataset::read_local(&path, &layout, &self.options)?;
                Ok(OpeningPart::Read(Box::new(dataset)))
            }
            CorpusSource::Lists(lists) => Ok(OpeningPart::Read(Box::new(Dataset::read_stored(&lists, &self.options)?))),
            CorpusSource::Shards(set) => Ok(self.shards(set)),
            CorpusSource::Mixture { path, sources } => {
                let mut parts = Vec::with_capacity(sources.len());
                for MixedSource { name, weight, lang, source } in sources {
                    parts.push((MixedHead { name, weight, lang }, self.part(source)?));
                }
                Ok(OpeningPart::Mixture { path, parts })
            }
        }
    }

    fn shards(&mut self, set: ShardSet) -> OpeningPart {
        let ShardSet { format, shards, root, not_read } = set;
        let path = match shards.as_slice() {
            [only] => PathBuf::from(only.location().to_string()),
            _ => PathBuf::from(root.to_string()),
        };
        let head = ShardSetHead { path, format, store: Store::of(&root, &self.options.storage), not_read };
        let shards = shards.into_iter().map(|shard| {
            let shard = Arc::new(shard);
            let known = self
                .index
                .as_ref()
                .and_then(|index| index.load(&shard.identity(), &shard.key(), &shard.file_name(), shard.num_bytes()));
            match known.is_some() {
                true => self.num_indexed += 1,
                false => self.pending.push(Arc::clone(&shard)),
            }
            (shard, known)
        });
        OpeningPart::Shards { set: head, shards: shards.collect() }
    }

    /// The shards that must be scanned, with the number to add each by. In any order, on any thread.
    pub fn pending(&self) -> Vec<(usize, Arc<ShardSource>)> {
        self.pending.iter().cloned().enumerate().collect()
    }

    /// Shards whose rows came from an index.
    pub fn num_indexed(&self) -> usize {
        self.num_indexed
    }

    /// Recordings that scans measured, and those of them that had to be decoded from beginning to end.
    pub fn num_measured(&self) -> (u64, u64) {
        (self.num_measured, self.num_decoded)
    }

    /// Adds what scanning the pending shard `number` found, and stores it in the index.
    ///
    /// # Panics
    ///
    /// If there is no such number.
    pub fn add(&mut self, number: usize, scanned: ScannedShard) {
        let shard = Arc::clone(&self.pending[number]);
        self.num_measured += scanned.num_measured;
        self.num_decoded += scanned.num_decoded;
        if let (Some(index), None) = (&self.index, &self.index_error) {
            self.index_error = index.save(&shard.identity(), &shard.key(), &scanned).err();
        }
        self.whole.put(&shard, scanned);
    }

    /// Why the index could not be stored: it will be built again the next time.
    pub fn index_error(&self) -> Option<&CorpusError> {
        self.index_error.as_ref()
    }

    /// The corpus. Fails if it has too many shards, and if the list of excluded ids cannot be read.
    ///
    /// # Panics
    ///
    /// If a pending shard was not added.
    pub fn finish(self) -> Result<Dataset, CorpusError> {
        let dataset = self.whole.finish(&self.options)?;
        dataset.finished(&self.options)
    }
}

impl OpeningPart {
    /// Puts a scanned shard in its place. Gives it back if its place is not here.
    fn put(&mut self, shard: &Arc<ShardSource>, scanned: ScannedShard) -> Option<ScannedShard> {
        match self {
            OpeningPart::Read(_) => Some(scanned),
            OpeningPart::Shards { shards, .. } => {
                match shards.iter_mut().find(|(known, _)| Arc::ptr_eq(known, shard)) {
                    Some((_, place)) => {
                        *place = Some(scanned);
                        None
                    }
                    None => Some(scanned),
                }
            }
            OpeningPart::Mixture { parts, .. } => {
                parts.iter_mut().try_fold(scanned, |scanned, (_, part)| part.put(shard, scanned))
            }
        }
    }

    fn finish(self, options: &OpenOptions) -> Result<Dataset, CorpusError> {
        match self {
            OpeningPart::Read(dataset) => Ok(*dataset),
            OpeningPart::Shards { set, shards } => Ok(assemble(set, shards, options)),
            OpeningPart::Mixture { path, parts } => {
                let mut mixed = Vec::with_capacity(parts.len());
                for (MixedHead { name, weight, lang }, part) in parts {
                    mixed.push(MixedDataset { name, weight, lang, dataset: part.finish(options)? });
                }
                let num_files: usize = mixed.iter().map(|part| part.dataset.samples().num_files()).sum();
                if num_files >= MAX_SHARDS {
                    let reason = format!("expected fewer than {MAX_SHARDS} lists and shards, found {num_files}");
                    return Err(CorpusError::BadSource { name: path.display().to_string(), reason });
                }
                Ok(Dataset::mixed(path, &options.storage, mixed))
            }
        }
    }
}

/// One dataset of all shards, in their order.
fn assemble(
    set: ShardSetHead,
    shards: Vec<(Arc<ShardSource>, Option<ScannedShard>)>,
    options: &OpenOptions,
) -> Dataset {
    let ShardSetHead { path, format, store, not_read } = set;
    let mut samples = Samples::of_store(store);
    let found = || shards.iter().filter_map(|(_, scanned)| scanned.as_ref());
    samples.reserve(
        found().map(|scanned| scanned.samples.len()).sum(),
        found().map(|scanned| scanned.samples.num_letters()).sum(),
    );
    let mut dataset = Dataset::new(path, format, samples).with_not_read(not_read);
    for (source, scanned) in shards {
        let Some(scanned) = scanned else { unreachable!("every pending shard was added") };
        dataset.append_shard(&source, scanned);
    }
    dataset.finish_shards(options);
    dataset
}
