//! `bad_samples.jsonl`: a line for every bad sample, there as soon as it is known.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::json;
use tandem_corpus::Sample;

use crate::FeedError;

/// The list on its disk, and the ids that are in it.
#[derive(Debug)]
pub(super) struct Listed {
    path: PathBuf,
    /// Opened when there is something to write: a run without bad samples leaves no file.
    file: Option<File>,
    ids: HashSet<String>,
    /// The file ends within a line: a write was cut short, by a full disk or by the end of a process.
    torn: bool,
    first_error: Option<String>,
}

/// What a line says.
pub(super) struct BadSampleLine<'a> {
    pub(super) epoch: u64,
    pub(super) k: u64,
    pub(super) position: usize,
    pub(super) sample: &'a Sample<'a>,
    pub(super) reason: &'a str,
    pub(super) replaced_by: Option<&'a str>,
}

/// What is read back of a line.
#[derive(Deserialize)]
struct Known {
    id: String,
}

impl Listed {
    /// The list at `path`, which need not be there. Lines that make no sense are stepped over.
    pub(super) fn open(path: &Path) -> Result<Listed, FeedError> {
        // Something else than a file or a folder has no lines to read back, and may have no end either.
        let is_other = fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir());
        let bytes = match if is_other { Ok(Vec::new()) } else { fs::read(path) } {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(why) => return Err(FeedError::Unusable { what: "list of bad samples", why, path: path.into() }),
        };
        let lines = bytes.split(|byte| *byte == b'\n');
        let ids = lines.filter_map(|line| serde_json::from_slice(line).ok()).map(|Known { id }| id).collect();
        let torn = bytes.last().is_some_and(|last| *last != b'\n');
        Ok(Listed { path: path.to_owned(), file: None, ids, torn, first_error: None })
    }

    /// Writes the line of a sample that has none yet. When that fails it is tried again the next time the sample is met.
    pub(super) fn add(&mut self, line: &BadSampleLine<'_>) {
        if self.ids.contains(line.sample.id) {
            return;
        }
        match self.append(&line.json()) {
            Ok(()) => drop(self.ids.insert(line.sample.id.to_owned())),
            Err(error) => {
                self.first_error.get_or_insert_with(|| format!("{error}: {}", self.path.display()));
            }
        }
    }

    pub(super) fn write_error(&self) -> Option<String> {
        self.first_error.clone()
    }

    /// One write for one line: others that append to the same file cannot come between.
    fn append(&mut self, line: &str) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(File::options().create(true).append(true).open(&self.path)?),
        };
        let start = if self.torn { "\n" } else { "" };
        self.torn = true;
        file.write_all(format!("{start}{line}\n").as_bytes())?;
        self.torn = false;
        Ok(())
    }
}

impl BadSampleLine<'_> {
    fn json(&self) -> String {
        let BadSampleLine { epoch, k, position, sample, reason, replaced_by } = self;
        json!({
            "id": sample.id,
            "file": sample.file.display().to_string(),
            "line": sample.line,
            "audio": sample.audio.show(),
            "reason": reason,
            "epoch": epoch,
            "k": k,
            "position": position,
            "replaced_by": replaced_by,
        })
        .to_string()
    }
}
