//! What a corpus is written as, and how that is found out.
//!
//! A file is a list: `*.csv` is LJSpeech metadata (Piper's where the recordings are in `wav/`), `*.tsv` is a list of
//! Common Voice, anything else is a JSONL manifest. A folder is the first of these that it fits:
//!
//! 1. LJSpeech or Piper: `metadata_train.csv`, `metadata_eval.csv` or `metadata.csv`.
//! 2. Common Voice: `train.tsv` or `validated.tsv`, and `clips/`.
//! 3. VCTK: `txt/`, and a folder `wav48*/` (`wav` and a number).
//! 4. Text files: recordings with a `.txt` beside each, in the folder itself or in a folder for each speaker.
//!
//! What else the folder fits is not read, and said. A folder that fits nothing is refused with what is missing.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::CorpusError;
use crate::locator::{EXTENSIONS, without_extension};
use crate::sample::Subset;
use crate::{common_voice, ljspeech, text_files, vctk};

/// What a corpus is written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A folder with metadata and `wavs/`.
    LjSpeech,
    /// A folder with metadata and `wav/`.
    Piper,
    /// A folder with lists `*.tsv` and `clips/`.
    CommonVoice,
    /// A folder with `txt/` and `wav48*/`, and a folder for each speaker in both.
    Vctk,
    /// A folder of recordings with a text file beside each.
    TextFiles,
    /// A file with a JSON object per line.
    Manifest,
    /// Tar archives with a recording and its text under one name.
    WebDataset,
    /// Parquet files with an audio column.
    Parquet,
    /// Arrow files with an audio column.
    Arrow,
    /// A NeMo manifest and tar archives.
    NemoTarred,
    /// Lhotse cuts, and recordings that are files.
    LhotseCuts,
    /// Lhotse Shar: cuts and tar archives.
    LhotseShar,
    /// Several corpora.
    Mixture,
}

impl Format {
    /// Its name in messages.
    pub fn title(self) -> &'static str {
        match self {
            Self::LjSpeech => "LJSpeech",
            Self::Piper => "Piper",
            Self::CommonVoice => "Common Voice",
            Self::Vctk => "VCTK",
            Self::TextFiles => "text files",
            Self::Manifest => "JSONL manifest",
            Self::WebDataset => "WebDataset",
            Self::Parquet => "Parquet",
            Self::Arrow => "Arrow",
            Self::NemoTarred => "NeMo tarred dataset",
            Self::LhotseCuts => "Lhotse cuts",
            Self::LhotseShar => "Lhotse Shar",
            Self::Mixture => "mixture",
        }
    }

    /// Its name in reports for programs: an interface.
    pub fn slug(self) -> &'static str {
        match self {
            Self::LjSpeech => "ljspeech",
            Self::Piper => "piper",
            Self::CommonVoice => "common-voice",
            Self::Vctk => "vctk",
            Self::TextFiles => "text-files",
            Self::Manifest => "manifest",
            Self::WebDataset => "webdataset",
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
            Self::NemoTarred => "nemo-tarred",
            Self::LhotseCuts => "lhotse-cuts",
            Self::LhotseShar => "lhotse-shar",
            Self::Mixture => "mixture",
        }
    }
}

/// How to read a corpus.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CorpusLayout {
    pub(crate) format: Format,
    /// Lists in the order they are read; none where texts are files.
    pub(crate) lists: Vec<(PathBuf, Subset)>,
    /// A list that is there for nothing.
    pub(crate) unused: Option<PathBuf>,
    /// The folder of the recordings, from the corpus: `wavs/`.
    pub(crate) audio: String,
    /// What was there and is not read, in words.
    pub(crate) not_read: Vec<String>,
}

/// How well a folder fits a format.
enum Fit {
    Whole(CorpusLayout),
    /// What is there and what is missing, in words.
    Part(String),
    None,
}

impl CorpusLayout {
    /// A layout with recordings in the folder `audio`.
    pub(crate) fn new(format: Format, audio: &str) -> CorpusLayout {
        CorpusLayout { format, lists: Vec::new(), unused: None, audio: audio.to_owned(), not_read: Vec::new() }
    }

    /// The layout of the folder or list at `path`. Fails with [`CorpusError::NotADataset`], which says what is missing,
    /// and with [`CorpusError::Read`].
    pub(crate) fn of(path: &Path) -> Result<CorpusLayout, CorpusError> {
        let refused = |found: &str, missing| not_a_dataset(path, found.to_owned(), missing);
        match fs::metadata(path) {
            Err(source) if source.kind() == std::io::ErrorKind::NotFound => Err(refused("nothing", Vec::new())),
            Err(source) => Err(CorpusError::Read { path: path.to_owned(), source }),
            Ok(metadata) if metadata.is_dir() => CorpusLayout::of_folder(path),
            Ok(_) if has_extension(path, "csv") => {
                let lists = vec![(path.to_owned(), Subset::Undecided)];
                Ok(CorpusLayout { lists, ..metadata_layout(folder_of(path)) })
            }
            Ok(_) if has_extension(path, "tsv") => match folder_of(path).join(common_voice::CLIPS).is_dir() {
                true => {
                    let lists = vec![(path.to_owned(), Subset::Undecided)];
                    Ok(CorpusLayout { lists, ..CorpusLayout::new(Format::CommonVoice, common_voice::CLIPS) })
                }
                false => Err(refused("a list", vec!["Common Voice: clips/ beside the list is missing".to_owned()])),
            },
            Ok(_) => {
                let lists = vec![(path.to_owned(), Subset::Undecided)];
                Ok(CorpusLayout { lists, ..CorpusLayout::new(Format::Manifest, "") })
            }
        }
    }

    fn of_folder(folder: &Path) -> Result<CorpusLayout, CorpusError> {
        let mut taken: Option<CorpusLayout> = None;
        let mut missing = Vec::new();
        for fit in [ljspeech, common_voice, vctk, text_files] {
            // Beside another format, recordings in folders of their own are that format's.
            match (fit(folder, taken.is_some()), &mut taken) {
                (Fit::Whole(layout), None) => taken = Some(layout),
                (Fit::Whole(layout), Some(taken)) => taken.not_read.push(layout.format.title().to_owned()),
                (Fit::Part(what), _) => missing.push(what),
                (Fit::None, _) => {}
            }
        }
        taken.ok_or_else(|| not_a_dataset(folder, contents(folder), missing))
    }
}

/// The refusal of `path`, with a folder inside it that can be read.
fn not_a_dataset(path: &Path, found: String, missing: Vec<String>) -> CorpusError {
    let inside = folders(path).into_iter().map(|name| path.join(name)).find(|inside| {
        let fits = [ljspeech, common_voice, vctk].into_iter().any(|fit| matches!(fit(inside, true), Fit::Whole(_)));
        path.is_dir() && fits
    });
    CorpusError::NotADataset { path: path.to_owned(), found, missing, inside }
}

fn ljspeech(folder: &Path, _: bool) -> Fit {
    let ljspeech::Lists { read, unused } = ljspeech::lists(folder);
    let layout = metadata_layout(folder);
    let has_audio = folder.join(&layout.audio).is_dir();
    match (read.is_empty(), has_audio) {
        (false, _) => Fit::Whole(CorpusLayout { lists: read, unused, ..layout }),
        (true, true) => {
            Fit::Part(format!("LJSpeech and Piper: {} is there, metadata.csv beside it is missing", layout.audio))
        }
        (true, false) => Fit::None,
    }
}

/// The layout of metadata in `folder`: recordings in `wavs/`, or as Piper has them in `wav/`.
fn metadata_layout(folder: &Path) -> CorpusLayout {
    let [wavs, wav] = ["wavs/", "wav/"].map(|name| folder.join(name).is_dir());
    match (wavs, wav) {
        (false, true) => CorpusLayout::new(Format::Piper, "wav/"),
        (_, is_unread) => {
            let not_read = is_unread.then(|| "wav/ (wavs/ is there)".to_owned()).into_iter().collect();
            CorpusLayout { not_read, ..CorpusLayout::new(Format::LjSpeech, "wavs/") }
        }
    }
}

fn common_voice(folder: &Path, _: bool) -> Fit {
    let common_voice::TsvLists { read, not_read, other } = common_voice::lists(folder);
    let clips = folder.join(common_voice::CLIPS).is_dir();
    match (clips, read.first(), other) {
        (true, Some(_), _) => Fit::Whole(CorpusLayout {
            lists: read,
            not_read,
            ..CorpusLayout::new(Format::CommonVoice, common_voice::CLIPS)
        }),
        (true, None, None) => {
            Fit::Part("Common Voice: clips/ is there, train.tsv or validated.tsv beside it is missing".to_owned())
        }
        (true, None, Some(other)) => Fit::Part(format!(
            "Common Voice: clips/ and {other} are there, train.tsv or validated.tsv is missing; to read {other}, give \
             its path"
        )),
        (false, Some((list, _)), _) => {
            let list = list.file_name().unwrap_or_default().to_string_lossy();
            Fit::Part(format!("Common Voice: {list} is there, clips/ beside it is missing"))
        }
        (false, None, _) => Fit::None,
    }
}

fn vctk(folder: &Path, _: bool) -> Fit {
    let mut audio = folders(folder);
    audio.retain(|name| vctk::is_audio_folder(name));
    audio.sort_by_key(|name| vctk::preference(name));
    match (folder.join(vctk::TEXTS).is_dir(), audio.split_first()) {
        (true, Some((first, others))) => {
            let not_read = others.iter().map(|name| format!("{name}/ ({first}/ is there)")).collect();
            Fit::Whole(CorpusLayout { not_read, ..CorpusLayout::new(Format::Vctk, &format!("{first}/")) })
        }
        (true, None) => {
            Fit::Part("VCTK: txt/ is there, wav48/ or wav48_silence_trimmed/ beside it is missing".to_owned())
        }
        (false, Some((first, _))) => Fit::Part(format!("VCTK: {first}/ is there, txt/ beside it is missing")),
        (false, None) => Fit::None,
    }
}

fn text_files(folder: &Path, top_only: bool) -> Fit {
    let text_files::PairCounts { pairs, recordings, texts } = text_files::count(folder, top_only);
    match (pairs, recordings, texts) {
        (1.., ..) => Fit::Whole(CorpusLayout::new(Format::TextFiles, "")),
        (0, 1.., _) if !top_only => {
            let plural = if recordings == 1 { "recording is" } else { "recordings are" };
            Fit::Part(format!(
                "text files: {recordings} {plural} there, a .txt of the same name beside each is missing"
            ))
        }
        (0, 0, 1..) if !top_only => {
            let plural = if texts == 1 { "text is" } else { "texts are" };
            Fit::Part(format!(
                "text files: {texts} {plural} there, a recording of the same name beside each is missing"
            ))
        }
        _ => Fit::None,
    }
}

/// What is in a folder, in a few words.
fn contents(folder: &Path) -> String {
    let Ok(entries) = fs::read_dir(folder) else { return "a folder that cannot be listed".to_owned() };
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| {
            let end = if entry.path().is_dir() { "/" } else { "" };
            format!("{}{end}", entry.file_name().to_string_lossy())
        })
        .collect();
    names.sort_unstable();
    const SHOWN: usize = 5;
    let more = match names.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match names.is_empty() {
        true => "an empty folder".to_owned(),
        false => {
            names.truncate(SHOWN);
            format!("a folder with {}{more}", crate::problem::excerpt(&names.join(", ")))
        }
    }
}

/// The folders in `folder`, sorted, without hidden ones and without those whose name is no UTF-8.
pub(crate) fn folders(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().is_dir())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort_unstable();
    names
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn has_extension(path: &Path, expected: &str) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(expected))
}

/// Whether a file name ends as recordings do.
pub(crate) fn is_recording(name: &str) -> bool {
    without_extension(name).len() < name.len()
}

/// The endings of recordings, for messages: `.wav, .flac, .ogg or .mp3`.
pub(crate) fn endings() -> String {
    let [first @ .., last] = EXTENSIONS;
    format!("{} or .{last}", first.map(|extension| format!(".{extension}")).join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::CorpusFolder;

    fn layout(files: &[&str]) -> Result<CorpusLayout, String> {
        let folder = CorpusFolder::new("format");
        files.iter().for_each(|name| folder.write(name, ""));
        CorpusLayout::of(folder.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_folder_is_the_first_format_that_it_fits() {
        let check = |files: &[&str], format: Format, audio: &str, not_read: &[&str]| {
            let layout = layout(files).unwrap();
            assert_eq!((layout.format, layout.audio.as_str()), (format, audio), "{files:?}");
            assert_eq!(layout.not_read, not_read, "{files:?}");
        };
        check(&["metadata.csv", "wavs/a.wav"], Format::LjSpeech, "wavs/", &[]);
        check(&["metadata.csv"], Format::LjSpeech, "wavs/", &[]);
        check(&["metadata.csv", "wav/a.wav"], Format::Piper, "wav/", &[]);
        check(&["metadata.csv", "wav/a.wav", "wavs/a.wav"], Format::LjSpeech, "wavs/", &["wav/ (wavs/ is there)"]);
        check(&["train.tsv", "dev.tsv", "clips/a.mp3"], Format::CommonVoice, "clips/", &[]);
        check(&["validated.tsv", "clips/a.mp3"], Format::CommonVoice, "clips/", &[]);
        check(&["txt/p1/p1_1.txt", "wav48/p1/p1_1.wav"], Format::Vctk, "wav48/", &[]);
        let both = ["txt/p1/p1_1.txt", "wav48/p1/p1_1.wav", "wav48_silence_trimmed/p1/p1_1_mic1.flac"];
        check(&both, Format::Vctk, "wav48_silence_trimmed/", &["wav48/ (wav48_silence_trimmed/ is there)"]);
        check(&["a.wav", "a.txt"], Format::TextFiles, "", &[]);
        check(&["ada/a.flac", "ada/a.txt", "README.md"], Format::TextFiles, "", &[]);
        // What comes first is read.
        let three = ["metadata.csv", "wavs/a.wav", "train.tsv", "clips/b.mp3", "c.wav", "c.txt"];
        check(&three, Format::LjSpeech, "wavs/", &["Common Voice", "text files"]);
        // Texts beside the recordings of another format belong to it.
        check(&["metadata.csv", "wavs/a.wav", "wavs/a.txt"], Format::LjSpeech, "wavs/", &[]);
    }

    #[test]
    fn a_folder_that_fits_nothing_is_refused_with_what_is_missing() {
        let check = |files: &[&str], parts: &[&str]| {
            let message = layout(files).unwrap_err();
            for part in parts {
                assert!(message.contains(part), "{part:?} in {message}");
            }
        };
        check(&["wavs/a.wav"], &["wavs/ is there, metadata.csv beside it is missing"]);
        check(&["wav/a.wav"], &["wav/ is there, metadata.csv"]);
        check(&["clips/a.mp3"], &["clips/ is there, train.tsv or validated.tsv beside it is missing"]);
        check(&["clips/a.mp3", "other.tsv"], &["to read other.tsv, give its path"]);
        check(&["train.tsv"], &["train.tsv is there, clips/ beside it is missing"]);
        check(&["txt/p1/a.txt"], &["txt/ is there, wav48/ or wav48_silence_trimmed/ beside it is missing"]);
        check(&["wav48/p1/a.wav"], &["wav48/ is there, txt/ beside it is missing"]);
        check(&["a.wav", "b.wav"], &["2 recordings are there, a .txt of the same name beside each is missing"]);
        check(&["x/a.wav"], &["1 recording is there"]);
        check(&["a.txt", "b.txt"], &["2 texts are there, a recording of the same name beside each is missing"]);
        check(
            &["notes.md", "x.py"],
            &["found a folder with notes.md, x.py", "metadata.csv", "clips/", "txt/", "JSONL"],
        );
        check(&[], &["found an empty folder"]);
        check(&["en/train.tsv", "en/clips/a.mp3"], &["found a folder with en/", "Did you mean ", "/en?"]);
    }
}
