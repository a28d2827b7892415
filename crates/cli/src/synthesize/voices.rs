//! The voice to speak in, and the voices there are.

use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};
use tandem_audio::{Clip, decode};
use tandem_files::open_regular;
use tandem_synth::{Synthesizer, Voice, VoiceSource};

use super::flags::SynthesizeArgs;
use super::model::{LoadedModel, exit_of};
use crate::corpus::silence_decoder_panics;
use crate::exit::Exit;
use crate::screen::{Screen, write_json};

/// The largest reference recording: an hour of uncompressed audio.
const MAX_REFERENCE_BYTES: u64 = 1 << 30;

/// Reads the reference recording, before the model is loaded.
pub(super) fn recording(path: &Path) -> Result<Clip, Exit> {
    silence_decoder_panics();
    let refused = |error: &dyn Display| Exit::Usage(format!("❌ --reference: {error}: {}", path.display()));
    let file = open_regular(path).map_err(|error| refused(&format!("cannot open it ({error})")))?;
    let bytes = file.metadata().map_or(0, |found| found.len());
    if bytes > MAX_REFERENCE_BYTES {
        let mb = MAX_REFERENCE_BYTES >> 20;
        return Err(refused(&format!("expected a few seconds of speech, found more than {mb} MB")));
    }
    let mut clip = Clip::default();
    decode(file, &mut clip).map_err(|error| refused(&error))?;
    Ok(clip)
}

/// The voice that the flags choose.
pub(super) fn voice(args: &SynthesizeArgs, recording: Option<&Clip>, synthesizer: &Synthesizer) -> Result<Voice, Exit> {
    match recording {
        Some(clip) => synthesizer.voice_from_recording(clip).map_err(|error| exit_of("--reference", error)),
        None => synthesizer.voice(args.speaker.as_deref()).map_err(|error| exit_of("--speaker", error)),
    }
}

pub(super) fn print_voice(voice: &Voice, screen: &Screen) -> Result<(), Exit> {
    match &voice.source {
        VoiceSource::Speaker(speaker) if !speaker.is_empty() => screen.progress(&format!("   Voice: {speaker}")),
        VoiceSource::Mean => screen.progress(
            "   Voice: the mean of the training voices (the checkpoint has no speakers); --reference FILE gives another",
        ),
        VoiceSource::Speaker(_) | VoiceSource::Recording => Ok(()),
    }
}

/// Where the voice is from, and the speaker if it has a name.
pub(super) fn voice_json(voice: &Voice) -> (&'static str, Value) {
    match &voice.source {
        VoiceSource::Speaker(speaker) if speaker.is_empty() => ("checkpoint", Value::Null),
        VoiceSource::Speaker(speaker) => ("checkpoint", json!(speaker)),
        VoiceSource::Recording => ("reference", Value::Null),
        VoiceSource::Mean => ("mean", Value::Null),
    }
}

/// `--list-speakers`
pub(super) fn list_speakers(args: &SynthesizeArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    let model = LoadedModel::load_on_cpu(args, screen)?;
    let speakers: Vec<&str> = model.synthesizer.speakers().filter(|speaker| !speaker.is_empty()).collect();
    if args.json {
        let checkpoint = model.checkpoint.display().to_string();
        write_json(&json!({ "checkpoint": checkpoint, "speakers": speakers, "simulated": screen.is_simulated() }))?;
    } else if speakers.is_empty() {
        screen.warn("the corpus of this checkpoint names no speakers; --reference FILE imitates a recording");
    } else {
        screen.print(&speakers.join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}
