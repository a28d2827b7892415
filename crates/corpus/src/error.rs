//! What ends the reading or the ordering of a corpus. Faulty rows do not: they are [`crate::Problem`]s.

use std::io;
use std::path::PathBuf;

/// The corpus could not be used as asked. A variant is a different thing to do next.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// The path is neither of the two things that can be read: give another one.
    #[error(
        "expected an LJSpeech folder (metadata.csv, or metadata_train.csv and metadata_eval.csv, beside wavs/) or a \
         JSONL manifest, found {found}: {}", path.display()
    )]
    NotADataset {
        /// What was given.
        path: PathBuf,
        /// What is there.
        found: &'static str,
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
