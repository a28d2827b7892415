//! Texts from the command line, a file or standard input.

use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use tandem_files::{TooLarge, read_bounded};

use crate::exit::Exit;

/// The longest text: days of speech.
const MAX_BYTES: u64 = 16 << 20;

/// A text that the user gives, and the flag that gives it.
pub(super) struct InputText {
    flag: &'static str,
    source: TextSource,
}

enum TextSource {
    Given(String),
    File(PathBuf),
    Stdin,
}

impl InputText {
    pub(super) fn given(text: &str) -> InputText {
        InputText { flag: "--text", source: TextSource::Given(text.to_owned()) }
    }

    /// The text of a file; `-` is standard input.
    pub(super) fn of_path(flag: &'static str, path: &Path) -> InputText {
        let source = if path == Path::new("-") { TextSource::Stdin } else { TextSource::File(path.to_owned()) };
        InputText { flag, source }
    }

    /// The file that is read.
    pub(super) fn file(&self) -> Option<&Path> {
        match &self.source {
            TextSource::File(file) => Some(file),
            TextSource::Given(_) | TextSource::Stdin => None,
        }
    }

    /// Reads it, without a byte order mark.
    pub(super) fn read(&self) -> Result<String, Exit> {
        let refused =
            |why: &dyn fmt::Display, place: &dyn fmt::Display| Exit::Usage(format!("❌ {}: {why}: {place}", self.flag));
        let (bytes, place) = match &self.source {
            TextSource::Given(text) => return Ok(text.clone()),
            TextSource::File(file) => (read_bounded(file, MAX_BYTES), file.display().to_string()),
            TextSource::Stdin => (read_stdin(), "standard input".to_owned()),
        };
        let bytes = bytes.map_err(|error| refused(&format!("cannot read it ({error})"), &place))?;
        let text = String::from_utf8(bytes).map_err(|error| refused(&format!("not UTF-8 text ({error})"), &place))?;
        Ok(text.trim_start_matches('\u{FEFF}').to_owned())
    }
}

fn read_stdin() -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    io::stdin().lock().take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        found if found > MAX_BYTES => Err(io::Error::other(TooLarge { bytes: found, max_bytes: MAX_BYTES })),
        _ => Ok(bytes),
    }
}
