//! Many texts to as many wav files, with one model that is loaded once.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use serde_json::{Value, json};
use tandem_synth::{SynthError, Voice};

use super::batch_list::{BatchList, BatchRow, RowFault};
use super::flags::SynthesizeArgs;
use super::input::InputText;
use super::model::LoadedModel;
use super::speak::{SpeakError, announce, guard, listed, write_wav};
use super::voices::{recording, voice, voice_json};
use super::wav_file::{WavFile, WavTarget};
use crate::exit::{Exit, FAILED};
use crate::output_guard::OutputKind;
use crate::screen::{Screen, write_json};

/// Rows that the list of failures shows. `--json` has all of them.
const MAX_LISTED: usize = 40;

/// A row that was spoken.
struct SpokenRow {
    id: String,
    file: PathBuf,
    seconds: f64,
    chunks: usize,
    voice: Voice,
    unknown_chars: Vec<char>,
}

/// Speaks every row. A row that cannot be spoken is listed at the end, with exit code 1, and the others are spoken.
pub(super) fn run(args: &SynthesizeArgs, list: &InputText, folder: &Path, screen: &Screen) -> Result<ExitCode, Exit> {
    let started = Instant::now();
    // Cheap checks come before anything is loaded: ids, files that are in the way, the folder.
    let guard = guard(args, list);
    let BatchList { rows, mut faults } = BatchList::parse(&list.read()?)?;
    for row in &rows {
        guard.check("-o", &file_of(folder, row), OutputKind::Audio)?;
    }
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !parent.is_dir() {
        return Err(Exit::Usage(format!("❌ -o: the folder does not exist: {}", parent.display())));
    }
    let recording = args.reference.as_deref().map(recording).transpose()?;
    let mut model = LoadedModel::load(args, screen)?;
    let default = voice(args, recording.as_ref(), &model.synthesizer)?;
    let refused = |error| Exit::Usage(format!("❌ -o: cannot create the folder ({error}): {}", folder.display()));
    fs::create_dir_all(folder).map_err(refused)?;
    announce(&model, screen)?;

    let (mut spoken, mut voices) = (Vec::new(), HashMap::new());
    let mut ticker = screen.ticker("Rows");
    for (index, row) in rows.iter().enumerate() {
        match speak_row(row, folder, args, &mut model, &default, &mut voices) {
            Ok(row) => spoken.push(row),
            Err(SpeakError::Model(error)) if is_of_row(&error) => {
                faults.push(RowFault { line: row.line, id: row.id.clone(), reason: error.to_string() });
            }
            // The next row would meet it too: a full disk, a lost card, a wrong flag.
            Err(other) => return Err(other.into_exit()),
        }
        ticker.show(index + 1, rows.len());
    }
    drop(ticker);
    faults.sort_by_key(|fault| fault.line);
    report(args, folder, &model, &spoken, &faults, started.elapsed().as_secs_f64(), screen)?;
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn speak_row(
    row: &BatchRow,
    folder: &Path,
    args: &SynthesizeArgs,
    model: &mut LoadedModel,
    default: &Voice,
    voices: &mut HashMap<String, Voice>,
) -> Result<SpokenRow, SpeakError> {
    let voice = match &row.speaker {
        None => default.clone(),
        Some(speaker) => match voices.get(speaker) {
            Some(voice) => voice.clone(),
            None => {
                let voice = model.synthesizer.voice(Some(speaker))?;
                voices.insert(speaker.clone(), voice.clone());
                voice
            }
        },
    };
    let text = model.synthesizer.tokenize(&row.text, row.lang.as_deref().or(args.lang.as_deref()))?;
    let file = file_of(folder, row);
    let out = WavFile::create(WavTarget::File(file.clone()))?;
    let seconds = write_wav(model, &text, &voice, &args.options, out, &mut |_| {})?;
    Ok(SpokenRow {
        id: row.id.clone(),
        file,
        seconds,
        chunks: text.num_chunks(),
        voice,
        unknown_chars: text.unknown_chars,
    })
}

fn file_of(folder: &Path, row: &BatchRow) -> PathBuf {
    folder.join(format!("{}.wav", row.id))
}

/// Whether the error is about this row, so that another may be spoken.
fn is_of_row(error: &SynthError) -> bool {
    matches!(
        error,
        SynthError::EmptyText
            | SynthError::NoKnownSymbol { .. }
            | SynthError::NoSuchLanguage { .. }
            | SynthError::NoSuchVoice { .. }
            | SynthError::NoRoom { .. }
            | SynthError::NotFinite { .. }
    )
}

fn report(
    args: &SynthesizeArgs,
    folder: &Path,
    model: &LoadedModel,
    spoken: &[SpokenRow],
    faults: &[RowFault],
    took_s: f64,
    screen: &Screen,
) -> Result<(), Exit> {
    let seconds: f64 = spoken.iter().map(|row| row.seconds).sum();
    let unknown: BTreeSet<char> = spoken.iter().flat_map(|row| row.unknown_chars.iter().copied()).collect();
    if !unknown.is_empty() {
        let rows = spoken.iter().filter(|row| !row.unknown_chars.is_empty()).count();
        let unknown = listed(&unknown.into_iter().collect::<Vec<_>>());
        let rows = if rows == 1 { "1 row".to_owned() } else { format!("{rows} rows") };
        screen.warn(&format!("skipped characters the model does not know, in {rows}: {unknown}"));
    }
    if args.json {
        write_json(&json!({
            "folder": folder.display().to_string(),
            "files": spoken.iter().map(SpokenRow::json).collect::<Vec<_>>(),
            "failed": faults.iter().map(|fault| json!({
                "line": fault.line, "id": fault.id, "reason": fault.reason,
            })).collect::<Vec<_>>(),
            "seconds": seconds,
            "rate_hz": model.synthesizer.rate_hz(),
            "checkpoint": model.checkpoint.display().to_string(),
            "device": model.place,
            "took_s": took_s,
            "simulated": screen.is_simulated(),
        }))?;
    }
    let files = if spoken.len() == 1 { "1 file".to_owned() } else { format!("{} files", spoken.len()) };
    let sign = if faults.is_empty() { "✅ " } else { "" };
    screen.print(&format!(
        "{sign}{files} with {seconds:.1} s of speech, synthesised in {took_s:.1} s: {}",
        folder.display()
    ))?;
    if !faults.is_empty() {
        screen.error(&failures(faults, spoken.len() + faults.len()));
    }
    Ok(())
}

fn failures(faults: &[RowFault], rows: usize) -> String {
    let mut text = format!("{} of {rows} rows were not spoken:", faults.len());
    for RowFault { line, id, reason } in faults.iter().take(MAX_LISTED) {
        text += &format!("\n   line {line} ({id}): {reason}");
    }
    if faults.len() > MAX_LISTED {
        text += &format!("\n   and {} more; --json lists all of them", faults.len() - MAX_LISTED);
    }
    text
}

impl SpokenRow {
    fn json(&self) -> Value {
        let (source, speaker) = voice_json(&self.voice);
        json!({
            "id": self.id,
            "file": self.file.display().to_string(),
            "seconds": self.seconds,
            "chunks": self.chunks,
            "voice": source,
            "speaker": speaker,
            "unknown_characters": self.unknown_chars,
        })
    }
}
