//! The demo corpus as a folder that any trainer of speech models can read: `metadata.csv` and `wavs/`.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::{DemoUtterance, RATE_HZ, utterance};
use crate::error::CorpusError;

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WrittenDemo {
    /// Utterances.
    pub num_utterances: u64,
    /// Their length together.
    pub duration_s: f64,
}

/// Writes at least `minutes` of speech in so many `voices`, one utterance at least, to `folder` in LJSpeech layout: `wavs/<id>.wav`,
/// `metadata.csv` with `id|text|normalized|speaker|lang`, and `phones.jsonl` with what is said when
/// (`{"id", "rate_hz", "phones": [[phone, stress, first sample, samples]]}`).
///
/// `write_wav` is given a path, the samples and their rate: this crate writes no audio. It is called once per
/// utterance, so it can show progress and end the writing with an error. `metadata.csv` comes last and at once, so a
/// folder that has one is whole. Fails with [`CorpusError::WouldOverwrite`] when there is one already.
pub fn write(
    folder: &Path,
    minutes: f64,
    (seed, voices): (u64, usize),
    mut write_wav: impl FnMut(&Path, &[i16], u32) -> io::Result<()>,
) -> Result<WrittenDemo, CorpusError> {
    let metadata_path = folder.join("metadata.csv");
    for name in ["metadata.csv", "metadata_train.csv", "metadata_eval.csv"] {
        if folder.join(name).exists() {
            return Err(CorpusError::WouldOverwrite { path: folder.join(name) });
        }
    }
    let wavs = folder.join("wavs");
    fs::create_dir_all(&wavs).map_err(failed(&wavs))?;
    let (mut metadata, mut phones) = (String::new(), Vec::new());
    let mut written = WrittenDemo { num_utterances: 0, duration_s: 0.0 };
    while written.num_utterances == 0 || written.duration_s < minutes * 60.0 {
        let said = utterance(seed, written.num_utterances, voices);
        let path = wavs.join(format!("{}.wav", said.id));
        write_wav(&path, &said.samples, RATE_HZ).map_err(failed(&path))?;
        metadata.push_str(&format!("{}|{}|{}|{}|en\n", said.id, said.text, said.text, said.speaker));
        push_phones(&mut phones, &said);
        written.num_utterances += 1;
        written.duration_s += said.samples.len() as f64 / f64::from(RATE_HZ);
    }
    write_whole(&folder.join("phones.jsonl"), &phones)?;
    write_whole(&metadata_path, metadata.as_bytes())?;
    Ok(written)
}

fn push_phones(lines: &mut Vec<u8>, said: &DemoUtterance) {
    let mut start = 0;
    let spans: Vec<_> = said
        .phones
        .iter()
        .map(|span| {
            start += span.num_samples;
            (span.phone, span.stress, start - span.num_samples, span.num_samples)
        })
        .collect();
    let line = serde_json::json!({"id": said.id, "rate_hz": RATE_HZ, "phones": spans});
    // A vector takes everything.
    let _ = writeln!(lines, "{line}");
}

fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), CorpusError> {
    let temporary = path.with_extension("tmp");
    fs::write(&temporary, bytes).map_err(failed(path))?;
    fs::rename(&temporary, path).map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> CorpusError {
    let path = path.to_owned();
    move |source| CorpusError::Write { path, source }
}
