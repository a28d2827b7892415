//! Recordings with a text file each: `ada/0001.wav` with `ada/0001.txt`, in the folder itself or in a folder for each
//! speaker, one level deep. Reading the text files is shared with VCTK, which has them in a folder of their own.
//!
//! In: folders. Out: rows in [`Samples`], or a [`Problem`] for each text without a recording, each recording without a
//! text, and each text that cannot be read.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use tandem_files::read_bounded;

use crate::error::CorpusError;
use crate::format::{endings, folders, is_recording};
use crate::lines::MAX_LINE_BYTES;
use crate::locator::{EXTENSIONS, without_extension};
use crate::problem::{Problem, ProblemKind, excerpt};
use crate::sample::{NewRow, Samples, Subset};
use crate::speaker::SpeakerPattern;

/// What a folder and the folders in it hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PairCounts {
    /// Recordings with a text.
    pub(crate) pairs: usize,
    /// Recordings.
    pub(crate) recordings: usize,
    /// Texts.
    pub(crate) texts: usize,
}

/// PairCounts recordings and texts in `folder` and, unless `top_only`, in the folders in it.
pub(crate) fn count(folder: &Path, top_only: bool) -> PairCounts {
    let inside = if top_only { Vec::new() } else { folders(folder) };
    let all = inside.iter().map(|name| folder.join(name)).chain([folder.to_owned()]);
    all.filter_map(|folder| Files::list(&folder).ok()).fold(PairCounts::default(), |counts, files| PairCounts {
        pairs: counts.pairs + files.texts.keys().filter(|stem| files.recordings.contains_key(*stem)).count(),
        recordings: counts.recordings + files.recordings.len(),
        texts: counts.texts + files.texts.len(),
    })
}

/// Reads the corpus in `root`. Fails when a folder cannot be listed.
pub(crate) fn read(
    root: &Path,
    pattern: Option<&SpeakerPattern>,
    samples: &mut Samples,
    problems: &mut Vec<Problem>,
) -> Result<(), CorpusError> {
    let mut reader = TextReader { pattern, samples, problems };
    for speaker in std::iter::once(None).chain(folders(root).into_iter().map(Some)) {
        let folder = speaker.as_ref().map_or_else(|| root.to_owned(), |name| root.join(name));
        let files = Files::list(&folder).map_err(|source| CorpusError::Read { path: folder.clone(), source })?;
        if files.recordings.is_empty() {
            // Notes, licences and the like.
            continue;
        }
        let prefix = speaker.as_ref().map(|name| format!("{name}/")).unwrap_or_default();
        for (stem, name) in &files.texts {
            let key = files.recordings.get(stem).map(|recording| format!("{prefix}{recording}"));
            let text = folder.join(name);
            match key {
                Some(key) => reader.row(&format!("{prefix}{stem}"), speaker.as_deref(), &key, &text),
                None => reader.no_recording(&text, &format!("{prefix}{stem}")),
            }
        }
        for (stem, name) in files.recordings.iter().filter(|(stem, _)| !files.texts.contains_key(*stem)) {
            reader.no_text(&folder.join(name), &format!("{prefix}{stem}.txt"));
        }
    }
    Ok(())
}

/// The recordings and the texts of a folder, by name without the ending.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) recordings: BTreeMap<String, String>,
    pub(crate) texts: BTreeMap<String, String>,
}

impl Files {
    pub(crate) fn list(folder: &Path) -> io::Result<Files> {
        let mut files = Files::default();
        for entry in fs::read_dir(folder)? {
            let Ok(name) = entry?.file_name().into_string() else { continue };
            if name.starts_with('.') {
                continue;
            }
            if is_recording(&name) {
                let stem = without_extension(&name).to_owned();
                // Of one recording in several formats, the one preferred first.
                let kept = files.recordings.entry(stem).or_insert_with(|| name.clone());
                if rank(&name) < rank(kept) {
                    *kept = name;
                }
            } else if let Some(stem) = text_stem(&name) {
                files.texts.insert(stem.to_owned(), name);
            }
        }
        Ok(files)
    }
}

fn text_stem(name: &str) -> Option<&str> {
    let (stem, extension) = name.rsplit_once('.')?;
    (extension.eq_ignore_ascii_case("txt") && !stem.is_empty()).then_some(stem)
}

fn rank(name: &str) -> usize {
    let extension = name.rsplit('.').next().unwrap_or_default();
    EXTENSIONS.iter().position(|known| extension.eq_ignore_ascii_case(known)).unwrap_or(EXTENSIONS.len())
}

/// Stores the texts that are files as rows of a corpus.
pub(crate) struct TextReader<'a> {
    pub(crate) pattern: Option<&'a SpeakerPattern>,
    pub(crate) samples: &'a mut Samples,
    pub(crate) problems: &'a mut Vec<Problem>,
}

impl TextReader<'_> {
    /// Stores the row of the recording `key`, whose text is in `file`.
    pub(crate) fn row(&mut self, id: &str, speaker: Option<&str>, key: &str, file: &Path) {
        let text = match read_text(file) {
            Ok(text) => text,
            Err((kind, detail)) => return self.problem(file, Some(1), kind, detail),
        };
        if text.is_empty() {
            return self.problem(file, Some(1), ProblemKind::EmptyText, format!("`{}` says nothing", excerpt(id)));
        }
        let found = speaker.is_none().then_some(self.pattern).flatten().map(|pattern| pattern.find(id));
        if found == Some(None) {
            let detail = format!("the speaker pattern does not match `{}`", excerpt(id));
            self.problem(file, Some(1), ProblemKind::NoSpeaker, detail);
        }
        let speaker = speaker.or(found.flatten());
        let part = Subset::Undecided;
        let row = NewRow {
            id,
            text: &text,
            speaker,
            lang: None,
            key,
            offset_s: None,
            duration_s: None,
            part,
            line: 1,
            address: None,
        };
        self.samples.push_file(&row, file);
    }

    /// Reports a text without a recording, whose name would be `expected` and an ending.
    pub(crate) fn no_recording(&mut self, file: &Path, expected: &str) {
        let detail = format!("no {}{}", excerpt(expected), endings());
        self.problem(file, Some(1), ProblemKind::MissingAudio, detail);
    }

    /// Reports a recording without a text, whose name would be `expected`.
    pub(crate) fn no_text(&mut self, file: &Path, expected: &str) {
        self.problem(file, None, ProblemKind::MissingText, format!("no {}", excerpt(expected)));
    }

    fn problem(&mut self, file: &Path, line: Option<u32>, kind: ProblemKind, detail: String) {
        self.problems.push(Problem { file: file.into(), line, kind, detail });
    }
}

/// The words of a text file, on one line.
fn read_text(path: &Path) -> Result<String, (ProblemKind, String)> {
    let bytes = read_bounded(path, MAX_LINE_BYTES as u64).map_err(|error| match error.kind() {
        io::ErrorKind::FileTooLarge => (ProblemKind::LineTooLong, error.to_string()),
        _ => (ProblemKind::MissingText, format!("cannot read the text: {error}")),
    })?;
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
    let text = str::from_utf8(bytes).map_err(|error| {
        (ProblemKind::InvalidUtf8, format!("byte {} of the file is no UTF-8", error.valid_up_to() + 1))
    })?;
    Ok(text.split_whitespace().collect::<Vec<_>>().join(" "))
}
