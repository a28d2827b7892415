//! One text to one wav.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;
use tandem_synth::{SpeechOptions, SynthError, TokenizedText, Voice};

use super::flags::SynthesizeArgs;
use super::input::InputText;
use super::model::{LoadedModel, exit_of};
use super::voices::{print_voice, recording, voice, voice_json};
use super::wav_file::{WavFile, WavTarget};
use crate::exit::Exit;
use crate::output_guard::{OutputGuard, OutputKind};
use crate::screen::{Screen, write_json};

/// Unknown characters that a warning lists.
const MAX_LISTED: usize = 12;

/// Why a wav was not written.
pub(super) enum SpeakError {
    /// The model, or what it was given.
    Model(SynthError),
    /// The file.
    File(Exit),
}

impl From<SynthError> for SpeakError {
    fn from(error: SynthError) -> SpeakError {
        SpeakError::Model(error)
    }
}

impl From<Exit> for SpeakError {
    fn from(exit: Exit) -> SpeakError {
        SpeakError::File(exit)
    }
}

impl SpeakError {
    pub(super) fn into_exit(self) -> Exit {
        match self {
            SpeakError::Model(error) => exit_of("nothing was written", error),
            SpeakError::File(exit) => exit,
        }
    }
}

/// Speaks one text.
pub(super) fn run(
    args: &SynthesizeArgs,
    text: &InputText,
    target: &WavTarget,
    screen: &Screen,
) -> Result<ExitCode, Exit> {
    let started = Instant::now();
    // Cheap checks come before anything is loaded.
    let guard = guard(args, text);
    if let Some(file) = target.file() {
        guard.check("-o", file, OutputKind::Audio)?;
    }
    let out = WavFile::create(target.clone())?;
    let text = text.read()?;
    let recording = args.reference.as_deref().map(recording).transpose()?;
    let mut model = LoadedModel::load(args, screen)?;
    let script = model.synthesizer.tokenize(&text, args.lang.as_deref()).map_err(|error| exit_of("the text", error))?;
    let voice = voice(args, recording.as_ref(), &model.synthesizer)?;
    announce(&model, screen)?;
    print_voice(&voice, screen)?;
    if !script.unknown_chars.is_empty() {
        screen.warn(&format!("skipped characters the model does not know: {}", listed(&script.unknown_chars)));
    }
    if let Some((trained, now)) = model.synthesizer.other_espeak(&script) {
        screen.warn(&format!("the model was trained with espeak-ng {trained}, this is {now}: phonemes may differ"));
    }
    let mut ticker = screen.ticker("Chunks");
    let mut on_chunk = |done| ticker.show(done, script.num_chunks());
    let spoken = write_wav(&mut model, &script, &voice, &args.options, out, &mut on_chunk);
    drop(ticker);
    let seconds = spoken.map_err(SpeakError::into_exit)?;
    let (chunks, took_s) = (script.num_chunks(), started.elapsed().as_secs_f64());
    if args.json {
        let (source, speaker) = voice_json(&voice);
        write_json(&json!({
            "file": target.file().map(|file| file.display().to_string()),
            "seconds": seconds,
            "rate_hz": model.synthesizer.rate_hz(),
            "chunks": chunks,
            "voice": source,
            "speaker": speaker,
            "lang": script.lang,
            "unknown_characters": script.unknown_chars,
            "checkpoint": model.checkpoint.display().to_string(),
            "device": model.place,
            "took_s": took_s,
            "simulated": screen.is_simulated(),
        }))?;
    }
    let chunks = if chunks == 1 { String::new() } else { format!(" in {chunks} chunks") };
    let path = target.file().map_or("standard output".into(), |file| file.display().to_string());
    screen.print(&format!("✅ {seconds:.1} s of speech{chunks}, synthesised in {took_s:.1} s: {path}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Synthesises a text into a wav. `on_chunk` gets the number of chunks that are done. Returns the seconds of speech.
pub(super) fn write_wav(
    model: &mut LoadedModel,
    text: &TokenizedText,
    voice: &Voice,
    options: &SpeechOptions,
    out: WavFile,
    on_chunk: &mut dyn FnMut(usize),
) -> Result<f64, SpeakError> {
    let (mut out, mut done) = (out.begin(model.synthesizer.rate_hz())?, 0);
    model.synthesizer.synthesize_chunks(text, voice, options, &mut |_, samples| {
        done += 1;
        on_chunk(done);
        out.append(samples)
    })?;
    Ok(out.finish()?)
}

/// What the command may not replace: other people's files, and what it reads.
pub(super) fn guard(args: &SynthesizeArgs, text: &InputText) -> OutputGuard {
    let inputs: Vec<PathBuf> =
        [args.reference.as_deref(), text.file()].into_iter().flatten().map(PathBuf::from).collect();
    OutputGuard { overwrite: args.overwrite, inputs, own_run: None }
}

pub(super) fn announce(model: &LoadedModel, screen: &Screen) -> Result<(), Exit> {
    screen.progress(&format!("Synthesising on {} with {}", model.place, model.checkpoint.display()))
}

pub(super) fn listed(characters: &[char]) -> String {
    let shown = characters.iter().take(MAX_LISTED).map(|c| format!("{c:?}")).collect::<Vec<_>>().join(" ");
    if characters.len() > MAX_LISTED { format!("{shown} and {} more", characters.len() - MAX_LISTED) } else { shown }
}
