//! What ends the reading or the ordering of a corpus. Faulty rows do not: they are [`crate::Problem`]s.

use std::io;
use std::path::{Path, PathBuf};

use tandem_shards::ShardFault;
use tandem_storage::{ObjectLocation, StorageError};

/// What would make a path a corpus.
fn advice(missing: &[String], inside: Option<&Path>) -> String {
    let mut lines: Vec<String> = missing.to_vec();
    if missing.is_empty() {
        lines.push("What can be read:".to_owned());
        lines.extend(READABLE.map(|format| format!("  {format}")));
    }
    lines.extend(inside.map(|inside| format!("Did you mean {}?", inside.display())));
    lines.iter().map(|line| format!("\n   {line}")).collect()
}

const READABLE: [&str; 10] = [
    "LJSpeech: a folder with metadata.csv (or metadata_train.csv and metadata_eval.csv) and wavs/",
    "Piper: a folder with metadata.csv and wav/",
    "Common Voice: a folder with train.tsv or validated.tsv, and clips/",
    "VCTK: a folder with txt/ and wav48/ or wav48_silence_trimmed/",
    "text files: a folder of recordings with a .txt of the same name beside each, or a folder for each speaker",
    "JSONL manifest: a file with an object per line",
    "WebDataset: .tar shards with a recording and its .txt or .json, also as shard-{000..127}.tar",
    "Parquet and Arrow: .parquet or .arrow files with an audio column and a text column",
    "NeMo: tarred_audio_manifest.json beside audio_0.tar, audio_1.tar, …",
    "Lhotse: cuts.jsonl or cuts.jsonl.gz, or a Shar folder with cuts.000000.jsonl.gz and recording.000000.tar",
];

/// The corpus could not be used as asked. A variant is a different thing to do next.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// The path is nothing that can be read: give another one, or add what is missing.
    #[error(
        "expected a corpus, found {found}: {}{}", path.display(), advice(missing, inside.as_deref())
    )]
    NotADataset {
        /// What was given.
        path: PathBuf,
        /// What is there.
        found: String,
        /// What it lacks, by format.
        missing: Vec<String>,
        /// A corpus inside it.
        inside: Option<PathBuf>,
    },

    /// A list lacks columns without which nothing in it can be read.
    #[error(
        "expected a header with {missing}, found `{found}`: {}\n   A list of Common Voice has the columns client_id, path, \
         sentence and locale, separated by tabs", path.display()
    )]
    MissingColumns {
        /// The list.
        path: PathBuf,
        /// The missing columns.
        missing: String,
        /// The first line.
        found: String,
    },

    /// A list (metadata, manifest, ids) could not be read to its end: repair it or the rights on it.
    #[error("could not be read ({source}): {}", path.display())]
    Read {
        /// The list.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// A recording could not be opened: skip it and say so.
    #[error("the recording could not be opened ({source}): {}", path.display())]
    Audio {
        /// The recording.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// A file or an object could not be read: see [`StorageError::is_exhausted`] for what to do next.
    #[error(transparent)]
    Storage(#[from] StorageError),

    /// A shard cannot be read, as a whole or at one recording.
    #[error("{fault}: {shard}")]
    Shard {
        /// The shard.
        shard: String,
        /// What is wrong with it.
        fault: ShardFault,
    },

    /// The source cannot be read as asked: give another one, or change the options.
    #[error("{reason}: {name}")]
    BadSource {
        /// What was given.
        name: String,
        /// What is wrong, and what to do.
        reason: String,
    },

    /// Something of ours could not be written: make room, or choose another folder.
    #[error("could not be written ({source}): {}", path.display())]
    Write {
        /// What was being written.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// There is a corpus already: choose another folder.
    #[error("there is a corpus already, and nothing is overwritten; choose an empty folder: {}", path.display())]
    WouldOverwrite {
        /// The file in the way.
        path: PathBuf,
    },

    /// The speaker pattern cannot be understood.
    #[error("speaker pattern `{pattern}`: {reason} (example: `{{speaker}}_*` takes p248 from p248_065)")]
    SpeakerPattern {
        /// What was given.
        pattern: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// There is nothing to look at: bring recordings, or longer rows.
    #[error("no recording fits the rows of the batches: {too_long} are too long for all of them")]
    NothingFits {
        /// Recordings that are too long.
        too_long: usize,
    },
}

impl CorpusError {
    /// A failed read of the file or object at `location`. An error of a store keeps what it says.
    pub(crate) fn of_io(error: io::Error, location: &ObjectLocation) -> CorpusError {
        match error.downcast::<StorageError>() {
            Ok(error) => CorpusError::Storage(error),
            Err(source) => CorpusError::Read { path: PathBuf::from(location.to_string()), source },
        }
    }

    /// Whether the world failed, rather than what was asked for: a store that does not answer, a damaged shard, an object that
    /// changed.
    pub fn is_failure(&self) -> bool {
        match self {
            // Well formed, and not to be read as asked: other columns, or another file, must be given.
            CorpusError::Shard { fault, .. } => !matches!(fault, ShardFault::Unsupported { .. }),
            CorpusError::Storage(error) => error.is_exhausted() || matches!(error, StorageError::Changed { .. }),
            _ => false,
        }
    }

    /// Whether it says something about a store rather than about this recording: the next one fails alike.
    pub fn is_exhausted(&self) -> bool {
        matches!(self, CorpusError::Storage(error) if error.is_exhausted())
    }
}
