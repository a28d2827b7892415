//! VCTK folders: `txt/p225/p225_001.txt`, and `wav48/p225/p225_001.wav` or, as in later releases,
//! `wav48_silence_trimmed/p225/p225_001_mic1.flac`.
//!
//! Of the two microphones, the first is read where it is there: an utterance is a row once. The speaker is the name of the
//! folder, the id `p225/p225_001`. Texts and recordings in `txt/` and `wav48/` themselves have no speaker.

use std::collections::BTreeSet;
use std::path::Path;

use crate::audio_folder::AudioFolder;
use crate::error::CorpusError;
use crate::format::folders;
use crate::locator::without_extension;
use crate::problem::Problem;
use crate::sample::Samples;
use crate::speaker::SpeakerPattern;
use crate::text_files::{Files, TextReader};

/// Where the texts are.
pub(crate) const TEXTS: &str = "txt/";

/// Which microphone a recording is from, the one preferred first.
const MICROPHONES: [&str; 3] = ["", "_mic1", "_mic2"];

/// Whether a folder holds recordings: `wav48`, `wav48_silence_trimmed`, or a resampled copy such as `wav22`.
pub(crate) fn is_audio_folder(name: &str) -> bool {
    name.strip_prefix("wav").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Which of several folders is read: trimmed recordings first, then those of the original release.
pub(crate) fn preference(name: &str) -> (usize, String) {
    let known = ["wav48_silence_trimmed", "wav48"];
    (known.iter().position(|known| *known == name).unwrap_or(known.len()), name.to_owned())
}

/// Reads the corpus in `root`, with recordings in the folder `audio`. Fails when a folder cannot be listed.
pub(crate) fn read(
    root: &Path,
    audio: &str,
    pattern: Option<&SpeakerPattern>,
    samples: &mut Samples,
    problems: &mut Vec<Problem>,
) -> Result<(), CorpusError> {
    let mut reader = TextReader { pattern, samples, problems };
    let mut recordings = AudioFolder::new(root, audio);
    let texts = root.join(TEXTS);
    let speakers: BTreeSet<String> = folders(&texts).into_iter().chain(folders(&root.join(audio))).collect();
    for speaker in std::iter::once(None).chain(speakers.into_iter().map(Some)) {
        let prefix = speaker.as_ref().map(|name| format!("{name}/")).unwrap_or_default();
        let folder = texts.join(&prefix);
        let files = match folder.is_dir() {
            true => Files::list(&folder).map_err(|source| CorpusError::Read { path: folder.clone(), source })?,
            false => Files::default(),
        };
        for (stem, name) in &files.texts {
            let id = format!("{prefix}{stem}");
            let keys =
                MICROPHONES.iter().find_map(|microphone| recordings.find_under(audio, &format!("{id}{microphone}")));
            match keys {
                Some(key) => reader.row(&id, speaker.as_deref(), &key, &folder.join(name)),
                None => reader.no_recording(&folder.join(name), &format!("{audio}{id}")),
            }
        }
        let mut reported = BTreeSet::new();
        for name in recordings.names(&format!("{audio}{prefix}")) {
            let stem = utterance(&name);
            if !files.texts.contains_key(stem) && reported.insert(stem.to_owned()) {
                reader.no_text(&root.join(audio).join(&prefix).join(&name), &format!("{TEXTS}{prefix}{stem}.txt"));
            }
        }
    }
    Ok(())
}

/// The name of the utterance of a recording: without ending and microphone.
fn utterance(name: &str) -> &str {
    let stem = without_extension(name);
    MICROPHONES[1..].iter().find_map(|microphone| stem.strip_suffix(microphone)).unwrap_or(stem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_and_microphones() {
        for name in ["wav48", "wav48_silence_trimmed", "wav22", "wav16"] {
            assert!(is_audio_folder(name), "{name}");
        }
        for name in ["wav", "wavs", "txt", "wave1"] {
            assert!(!is_audio_folder(name), "{name}");
        }
        assert_eq!(utterance("p225_001_mic2.flac"), "p225_001");
        assert_eq!(utterance("p225_001.wav"), "p225_001");
    }
}
