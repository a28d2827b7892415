//! The model in a checkpoint folder speaks, the same way every time, on every kind of device.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tandem_audio::{Clip, FeatureSettings};
use tandem_checkpoint::{
    Architecture, CheckpointError, ComputeDtype, Dtype, MODEL_FILE, MelStatistics, ModelContract, ModelText,
    TensorFile, TensorRef, Vocoder, WEIGHTS_FILE,
};
use tandem_device::{Device, Machine};
use tandem_model::{Acoustic, Preset, VoiceReferences};
use tandem_synth::{Speech, SpeechOptions, SynthError, Synthesizer, VoiceSource};
use tandem_text::{Language, LanguageRules, Phonemizer, Script, SymbolTable};
use tempfile::TempDir;

const MELS: usize = 80;

fn contract(compute_dtype: ComputeDtype) -> ModelContract {
    let symbols = SymbolTable::fixed(Language::English, Phonemizer::Characters).unwrap();
    ModelContract {
        architecture: Architecture::Preset { name: Preset::Nano, dims: Preset::Nano.sizes() },
        text: Some(ModelText {
            languages: vec![LanguageRules {
                tag: "en".to_owned(),
                phonemizer: Phonemizer::Characters,
                script: Some(Script::LATIN),
            }],
            language_embedding: false,
            symbols: symbols.symbols().to_vec(),
            blanks: false,
            keep_harakat: false,
            longest_tokens: None,
            espeak_version: None,
            lexicon: None,
        }),
        features: FeatureSettings::default(),
        mel_statistics: MelStatistics { mean: -5.0, std: 2.0, band_means: vec![-5.0; MELS] },
        compute_dtype,
        vocoder: Vocoder::GriffinLim,
        duration_scale: None,
    }
}

/// A model with arbitrary weights, and the voices of `speakers`.
fn checkpoint(compute_dtype: ComputeDtype, speakers: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let contract = contract(compute_dtype);
    fs::write(folder.path().join(MODEL_FILE), contract.to_json().unwrap()).unwrap();
    let acoustic = Acoustic::new(Preset::Nano.sizes(), contract.text.unwrap().vocabulary(), MELS as u32).unwrap();
    let parameters = acoustic.parameters();
    // Not the initial weights: with those the decoder adds nothing.
    let other = |(i, x): (usize, f64)| (x + 0.05 * (i as f64 * 1.7).sin()) as f32;
    let values: Vec<f32> = parameters.initial(7).into_iter().enumerate().map(other).collect();
    let mut voices = VoiceReferences::default();
    for (number, speaker) in speakers.iter().enumerate() {
        let mel: Vec<f32> = (0..500 * MELS).map(|i| -9.0 + ((i * (number + 3)) % 80) as f32 * 0.1).collect();
        assert!(voices.add(speaker, &mel, MELS));
    }
    let parameter = |(_, p): (_, &tandem_engine::Parameter)| {
        let at = p.offset as usize..(p.offset + p.shape.elements()) as usize;
        let shape: Vec<usize> = p.shape.dims().iter().map(|&d| d as usize).collect();
        (p.name.to_string(), shape, &values[at])
    };
    let tensors: Vec<(String, Vec<usize>, &[f32])> = parameters
        .iter()
        .map(parameter)
        .chain(voices.tensors().map(|(name, values)| (name, vec![400, MELS], values)))
        .collect();
    let refs: Vec<TensorRef<'_>> = tensors
        .iter()
        .map(|(name, shape, values)| TensorRef { name, dtype: Dtype::F32, shape, bytes: bytemuck::cast_slice(values) })
        .collect();
    TensorFile::write(&folder.path().join(WEIGHTS_FILE), &refs).unwrap();
    folder
}

fn cpu() -> Device {
    Machine::cpu().open(0).unwrap()
}

fn simulated() -> Device {
    Machine::simulated("1x1GiB".parse().unwrap()).open(0).unwrap()
}

fn speak(synthesizer: &mut Synthesizer, text: &str, rate: f64, seed: u64) -> Speech {
    let voice = synthesizer.voice(None).unwrap();
    let text = synthesizer.tokenize(text, None).unwrap();
    synthesizer.synthesize(&text, &voice, &SpeechOptions { rate, seed }).unwrap()
}

#[test]
fn speech_comes_with_its_spectrogram_and_the_frames_of_each_symbol() {
    let folder = checkpoint(ComputeDtype::F32, &[]);
    let mut synthesizer = Synthesizer::open(folder.path(), cpu()).unwrap();
    for text in ["Good morning.", &"It is a fine day, they say. ".repeat(12)] {
        let speech = speak(&mut synthesizer, text, 1.0, 1);
        let (tokens, frames) = speech.chunks.iter().fold((0, 0), |(t, f), chunk| (t + chunk.tokens, f + chunk.frames));
        let sum = speech.durations.iter().sum::<i32>() as usize;
        assert_eq!((speech.durations.len(), sum, speech.spectrogram.num_frames()), (tokens, frames, frames));
    }
}

#[test]
fn a_recording_is_aligned_with_its_text_if_possible() {
    let folder = checkpoint(ComputeDtype::F32, &[]);
    let mut synthesizer = Synthesizer::open(folder.path(), cpu()).unwrap();
    let voice = synthesizer.voice(None).unwrap();
    let tone = |seconds: f64| {
        let samples = (0..(seconds * 44_100.0) as u32).map(|i| ((f64::from(i) * 0.06).sin() * 9000.0) as i16);
        Clip { samples: samples.collect(), rate_hz: 44_100 }
    };
    let text = synthesizer.tokenize("Good morning.", None).unwrap();
    let aligned = synthesizer.align(&text, &tone(1.0), &voice).unwrap().unwrap();
    let frames = aligned.spectrogram.num_frames();
    assert!((85..=88).contains(&frames), "{frames}");
    assert!(aligned.durations.iter().sum::<i32>() as usize == frames && aligned.durations.iter().all(|d| *d >= 1));
    assert_eq!(synthesizer.align(&text, &tone(0.05), &voice).unwrap(), None, "more symbols than frames");
    let long = synthesizer.tokenize(&"It is a fine day, they say. ".repeat(12), None).unwrap();
    assert_eq!(synthesizer.align(&long, &tone(9.0), &voice).unwrap(), None, "more than one chunk");
}

#[test]
fn stopped_synthesis_is_an_error_and_can_be_repeated() {
    let folder = checkpoint(ComputeDtype::F32, &[]);
    let mut synthesizer = Synthesizer::open(folder.path(), cpu()).unwrap();
    let stop = Arc::new(AtomicBool::new(true));
    let voice = synthesizer.voice(None).unwrap();
    let text = synthesizer.tokenize("Good morning.", None).unwrap();
    let speak = |synthesizer: &mut Synthesizer| synthesizer.synthesize(&text, &voice, &SpeechOptions::default());
    // Before its programs are compiled, and after.
    for _ in 0..2 {
        synthesizer.stop_when(stop.clone());
        assert!(matches!(speak(&mut synthesizer), Err(SynthError::Stopped)));
        stop.store(false, Ordering::Relaxed);
        assert!(speak(&mut synthesizer).is_ok());
        stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_same_seed_gives_the_same_speech_whatever_came_before() {
    let folder = checkpoint(ComputeDtype::F32, &[]);
    let mut synthesizer = Synthesizer::open(folder.path(), cpu()).unwrap();
    let first = speak(&mut synthesizer, "Good morning.", 1.0, 1);
    let long = speak(&mut synthesizer, &"It is a fine day, they say. ".repeat(12), 1.0, 1);
    assert!(long.chunks.len() > 1);
    assert_eq!(speak(&mut synthesizer, "Good morning.", 1.0, 1), first);
    assert_ne!(speak(&mut synthesizer, "Good morning.", 1.0, 2).clip, first.clip);
    for speech in [&first, &long] {
        let expected: usize = speech.chunks.iter().map(|chunk| chunk.frames * 256 + chunk.pause_samples).sum();
        assert_eq!((speech.clip.samples.len(), speech.clip.rate_hz), (expected, 22_050));
    }
    assert_eq!(long.chunks.last().unwrap().pause_samples, 0, "no pause at the end");
    assert!(long.chunks[0].pause_samples > 0);
}

#[test]
fn slow_speech_takes_longer() {
    let folder = checkpoint(ComputeDtype::F32, &[]);
    let mut synthesizer = Synthesizer::open(folder.path(), cpu()).unwrap();
    let mut frames = |rate| speak(&mut synthesizer, "How do you do?", rate, 1).chunks[0].frames;
    let (fast, usual, slow) = (frames(2.0), frames(1.0), frames(0.25));
    assert!(fast <= usual && usual.abs_diff(slow / 4) <= 1, "{fast} {usual} {slow}");
}

#[test]
fn simulated_cards_give_the_speech_of_the_cpu() {
    let folder = checkpoint(ComputeDtype::F32, &[]);
    let on = |device| speak(&mut Synthesizer::open(folder.path(), device).unwrap(), "Good morning.", 1.0, 1);
    assert_eq!(on(cpu()), on(simulated()));
    // Trained in bf16: a card computes in bf16, too.
    let folder = checkpoint(ComputeDtype::Bf16, &[]);
    let on = |device| speak(&mut Synthesizer::open(folder.path(), device).unwrap(), "Good morning.", 1.0, 1);
    let (f32, bf16) = (on(cpu()), on(simulated()));
    assert_eq!(f32.chunks, bf16.chunks);
    assert_ne!(f32.clip, bf16.clip);
}

#[test]
fn a_voice_is_from_the_checkpoint_or_a_recording() {
    let folder = checkpoint(ComputeDtype::F32, &["anna", "bert"]);
    let mut synthesizer = Synthesizer::open(folder.path(), cpu()).unwrap();
    assert_eq!(synthesizer.speakers().collect::<Vec<_>>(), ["anna", "bert"]);
    assert_eq!(synthesizer.voice(None).unwrap(), synthesizer.voice(Some("anna")).unwrap());
    let refused = synthesizer.voice(Some("carl")).unwrap_err().to_string();
    assert!(refused.contains("\"carl\"") && refused.contains("anna, bert"), "{refused}");
    let tone = Clip { samples: (0..44_100).map(|i| ((i * 300) % 20_000) as i16 - 10_000).collect(), rate_hz: 22_050 };
    let from_recording = synthesizer.voice_from_recording(&tone).unwrap();
    assert_eq!(from_recording.source, VoiceSource::Recording);
    let voices = [synthesizer.voice(Some("anna")).unwrap(), synthesizer.voice(Some("bert")).unwrap(), from_recording];
    let text = synthesizer.tokenize("Hello.", None).unwrap();
    let clips = voices.map(|voice| synthesizer.synthesize(&text, &voice, &SpeechOptions::default()).unwrap().clip);
    assert!(clips[0] != clips[1] && clips[1] != clips[2]);

    let without_voices = checkpoint(ComputeDtype::F32, &[]);
    let without_voices = Synthesizer::open(without_voices.path(), cpu()).unwrap();
    assert_eq!(without_voices.voice(None).unwrap().source, VoiceSource::Mean);
    assert!(
        matches!(without_voices.voice(Some("anna")), Err(SynthError::NoSuchVoice { known, .. }) if known.is_empty())
    );
}

#[test]
fn a_text_that_cannot_be_spoken_is_refused() {
    let folder = checkpoint(ComputeDtype::F32, &[]);
    let mut synthesizer = Synthesizer::open(folder.path(), cpu()).unwrap();
    let voice = synthesizer.voice(None).unwrap();
    let mut refused = |text: &str, rate: f64| {
        let text = synthesizer.tokenize(text, None);
        text.and_then(|text| synthesizer.synthesize(&text, &voice, &SpeechOptions { rate, seed: 1 })).unwrap_err()
    };
    assert!(matches!(refused("", 1.0), SynthError::EmptyText));
    assert!(matches!(refused("中文", 1.0), SynthError::NoKnownSymbol { .. }));
    assert!(matches!(refused("hello", 9.0), SynthError::Rate { .. }));
    let full = || Err(std::io::Error::from(std::io::ErrorKind::StorageFull));
    let text = synthesizer.tokenize("hello", None).unwrap();
    let stopped = synthesizer.synthesize_chunks(&text, &voice, &SpeechOptions::default(), &mut |_, _| full());
    assert!(matches!(stopped, Err(SynthError::Output(_))));
    let text = synthesizer.tokenize("He中llo.", None).unwrap();
    let speech = synthesizer.synthesize(&text, &voice, &SpeechOptions::default()).unwrap();
    assert_eq!(speech.unknown_chars, ['中']);
}

#[test]
fn a_folder_without_a_speech_model_is_refused() {
    let empty = tempfile::tempdir().unwrap();
    let error = Synthesizer::open(empty.path(), cpu()).unwrap_err();
    assert!(matches!(error, SynthError::Checkpoint(CheckpointError::NotACheckpoint { .. })), "{error}");
    // A custom model.
    let custom = tempfile::tempdir().unwrap();
    let architecture = Architecture::Custom { name: "mine".into() };
    let model = ModelContract { architecture, ..contract(ComputeDtype::F32) };
    fs::write(custom.path().join(MODEL_FILE), model.to_json().unwrap()).unwrap();
    let error = Synthesizer::open(custom.path(), cpu()).unwrap_err();
    assert!(matches!(error, SynthError::NotAModel { .. }), "{error}");
    assert!(error.to_string().contains("found the custom model `mine`"), "{error}");
    // The weights of one model, and the contract of another.
    let folder = checkpoint(ComputeDtype::F32, &[]);
    let architecture = Architecture::Preset { name: Preset::Tiny, dims: Preset::Tiny.sizes() };
    let model = ModelContract { architecture, ..contract(ComputeDtype::F32) };
    fs::write(folder.path().join(MODEL_FILE), model.to_json().unwrap()).unwrap();
    let error = Synthesizer::open(folder.path(), cpu()).unwrap_err();
    assert!(matches!(error, SynthError::Checkpoint(CheckpointError::WrongTensors { .. })), "{error}");
}

#[test]
fn a_card_without_room_is_an_error() {
    let folder = checkpoint(ComputeDtype::F32, &[]);
    let device = Machine::simulated("1x560MiB".parse().unwrap()).open(0).unwrap();
    let mut synthesizer = Synthesizer::open(folder.path(), device).unwrap();
    let voice = synthesizer.voice(None).unwrap();
    let text = synthesizer.tokenize("hello", None).unwrap();
    let refused = synthesizer.synthesize(&text, &voice, &SpeechOptions::default()).unwrap_err();
    assert!(matches!(refused, SynthError::NoRoom { .. }), "{refused}");
}

/// On a real card: the same bytes twice, nearly the speech of the CPU, and all memory released.
#[test]
#[ignore = "needs an NVIDIA card"]
fn gpu_speech_is_close_to_the_cpus() {
    let machine = Machine::cuda().unwrap().expect("a card");
    for (compute, tolerance) in [(ComputeDtype::F32, 0.02), (ComputeDtype::Bf16, 0.2)] {
        let folder = checkpoint(compute, &["anna"]);
        let text = "It is a fine day, they say. ".repeat(12);
        let on = |device| speak(&mut Synthesizer::open(folder.path(), device).unwrap(), &text, 0.5, 1);
        let [first, again] = [(), ()].map(|()| on(machine.open(0).unwrap()));
        assert_eq!(first, again, "{compute:?}");
        assert_eq!(machine.counters(0).live_bytes, 0, "{compute:?}");
        let expected = on(cpu());
        let ratio = first.clip.samples.len() as f64 / expected.clip.samples.len() as f64;
        assert!((ratio - 1.0).abs() <= tolerance, "{compute:?}: {ratio}");
        // Griffin-Lim starts from random phases: the waveforms differ, their loudness does not.
        let loudness = |clip: &Clip| {
            let squares: f64 = clip.samples.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            (squares / clip.samples.len() as f64).sqrt()
        };
        let ratio = loudness(&first.clip) / loudness(&expected.clip);
        assert!((ratio - 1.0).abs() <= tolerance, "{compute:?}: loudness {ratio}");
    }
}
