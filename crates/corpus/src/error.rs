//! What ends the reading or the ordering of a corpus. Faulty rows do not: they are [`crate::Problem`]s.

use std::io;
use std::path::{Path, PathBuf};

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

const READABLE: [&str; 6] = [
    "LJSpeech: a folder with metadata.csv (or metadata_train.csv and metadata_eval.csv) and wavs/",
    "Piper: a folder with metadata.csv and wav/",
    "Common Voice: a folder with train.tsv or validated.tsv, and clips/",
    "VCTK: a folder with txt/ and wav48/ or wav48_silence_trimmed/",
    "text files: a folder of recordings with a .txt of the same name beside each, or a folder for each speaker",
    "JSONL manifest: a file with an object per line",
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
