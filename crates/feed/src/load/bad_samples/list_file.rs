//! `bad_samples.jsonl`: one line per bad sample, written as soon as it is reported.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::json;

use super::BadSample;
use crate::FeedError;

/// The file, and the ids it has.
#[derive(Debug)]
pub(super) struct ListFile {
    path: PathBuf,
    /// Opened with the first line: a run without bad samples leaves no file.
    file: Option<File>,
    ids: HashSet<String>,
    /// The file ends within a line: a full disk or a killed process cut a write short.
    torn: bool,
    first_error: Option<String>,
}

/// What is read back from a line.
#[derive(Deserialize)]
struct KnownLine {
    id: String,
}

impl ListFile {
    /// The list at `path`, which need not exist. Skips invalid lines.
    pub(super) fn open(path: &Path) -> Result<ListFile, FeedError> {
        // A device has no lines to read back, and may be endless.
        let is_other = fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir());
        let bytes = match if is_other { Ok(Vec::new()) } else { fs::read(path) } {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(why) => return Err(FeedError::Unusable { what: "list of bad samples", why, path: path.into() }),
        };
        let lines = bytes.split(|byte| *byte == b'\n');
        let ids = lines.filter_map(|line| serde_json::from_slice(line).ok()).map(|KnownLine { id }| id).collect();
        let torn = bytes.last().is_some_and(|last| *last != b'\n');
        Ok(ListFile { path: path.to_owned(), file: None, ids, torn, first_error: None })
    }

    /// Writes the line of a sample that has none yet. A failed write is repeated at the sample's next report.
    pub(super) fn add(&mut self, bad: &BadSample<'_>) {
        if self.ids.contains(bad.sample.id) {
            return;
        }
        match self.append(&json_line(bad)) {
            Ok(()) => drop(self.ids.insert(bad.sample.id.to_owned())),
            Err(error) => {
                self.first_error.get_or_insert_with(|| format!("{error}: {}", self.path.display()));
            }
        }
    }

    pub(super) fn write_error(&self) -> Option<String> {
        self.first_error.clone()
    }

    /// One write per line: other processes that append to the file cannot interleave.
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

fn json_line(bad: &BadSample<'_>) -> String {
    json!({
        "id": bad.sample.id,
        "file": bad.sample.file.display().to_string(),
        "line": bad.sample.line,
        "audio": bad.sample.audio.show(),
        "reason": bad.reason,
        "epoch": bad.cursor.epoch,
        "k": bad.cursor.k,
        "position": bad.position,
        "replaced_by": bad.replaced_by,
    })
    .to_string()
}
