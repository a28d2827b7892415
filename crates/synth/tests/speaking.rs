//! What the crate promises: a folder with a model in it speaks, the same way every time, on every kind of device.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::json;
use tandem_audio::Clip;
use tandem_device::{Device, Machine};
use tandem_model::{Acoustic, Preset, VoiceReferences};
use tandem_synth::{MODEL_FILE, Speech, SpeechOptions, SynthError, Synthesizer, VoiceSource, WEIGHTS_FILE};
use tandem_text::{Language, SymbolTable, Units};
use tempfile::TempDir;

const MELS: usize = 80;

/// A model that learnt nothing useful, and the voices it keeps.
fn checkpoint(compute: &str, speakers: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let symbols = SymbolTable::fixed(Language::English, Units::Characters).unwrap();
    let model = json!({
        "format": 1,
        "preset": "nano",
        "sizes": Preset::Nano.sizes(),
        "symbols": symbols.symbols(),
        "features": {
            "rate_hz": 22_050, "n_fft": 1024, "hop_samples": 256, "n_mels": MELS, "fmin_hz": 0.0, "fmax_hz": 8000.0,
            "floor": 1e-5,
        },
        "statistics": { "mean": -5.0, "deviation": 2.0, "bands": vec![-5.0; MELS] },
        "compute": compute,
        "of a later version": true,
    });
    fs::write(folder.path().join(MODEL_FILE), model.to_string()).unwrap();
    let acoustic = Acoustic::new(Preset::Nano.sizes(), symbols.len() as u32, MELS as u32).unwrap();
    let parameters = acoustic.parameters();
    // Not as training begins: then the decoder adds nothing.
    let other = |(i, x): (usize, f64)| (x + 0.05 * (i as f64 * 1.7).sin()) as f32;
    let initial: Vec<f32> = parameters.initial(7).into_iter().enumerate().map(other).collect();
    let mut tensors: Vec<(String, Vec<usize>, &[f32])> = Vec::new();
    for (_, p) in parameters.iter() {
        let at = p.offset as usize..(p.offset + p.shape.elements()) as usize;
        tensors.push((p.name.to_string(), p.shape.dims().iter().map(|&d| d as usize).collect(), &initial[at]));
    }
    let mut voices = VoiceReferences::default();
    for (number, speaker) in speakers.iter().enumerate() {
        let mel: Vec<f32> = (0..500 * MELS).map(|i| -9.0 + ((i * (number + 3)) % 80) as f32 * 0.1).collect();
        assert!(voices.add(speaker, &mel, MELS));
    }
    tensors.extend(voices.tensors().map(|(name, values)| (name, vec![400, MELS], values)));
    let views = tensors.iter().map(|(name, shape, values)| {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        (name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap())
    });
    fs::write(folder.path().join(WEIGHTS_FILE), safetensors::serialize(views, None).unwrap()).unwrap();
    folder
}

fn cpu() -> Device {
    Machine::cpu().open(0).unwrap()
}

fn simulated() -> Device {
    Machine::simulated("1x1GiB".parse().unwrap()).open(0).unwrap()
}

fn say(synthesizer: &mut Synthesizer, text: &str, rate: f64, seed: u64) -> Speech {
    let voice = synthesizer.voice(None).unwrap();
    synthesizer.speak(text, &voice, &SpeechOptions { rate, seed }).unwrap()
}

#[test]
fn what_was_said_comes_with_its_spectrum_and_the_frames_of_each_symbol() {
    let folder = checkpoint("f32", &[]);
    let mut synthesizer = Synthesizer::open(folder.path(), cpu()).unwrap();
    for text in ["Good morning.", &"It is a fine day, they say. ".repeat(12)] {
        let spoken = say(&mut synthesizer, text, 1.0, 1);
        let (tokens, frames) = spoken.pieces.iter().fold((0, 0), |(t, f), piece| (t + piece.tokens, f + piece.frames));
        let sum = spoken.durations.iter().sum::<i32>() as usize;
        assert_eq!((spoken.durations.len(), sum, spoken.spectrum.num_frames()), (tokens, frames, frames));
    }
}

#[test]
fn a_recording_is_aligned_with_its_text_where_that_can_be() {
    let folder = checkpoint("f32", &[]);
    let mut synthesizer = Synthesizer::open(folder.path(), cpu()).unwrap();
    let voice = synthesizer.voice(None).unwrap();
    let tone = |seconds: f64| {
        let samples = (0..(seconds * 44_100.0) as u32).map(|i| ((f64::from(i) * 0.06).sin() * 9000.0) as i16);
        Clip { samples: samples.collect(), rate_hz: 44_100 }
    };
    let aligned = synthesizer.align("Good morning.", &tone(1.0), &voice).unwrap().unwrap();
    let frames = aligned.spectrum.num_frames();
    assert!((85..=88).contains(&frames), "{frames}");
    assert!(aligned.durations.iter().sum::<i32>() as usize == frames && aligned.durations.iter().all(|d| *d >= 1));
    assert_eq!(synthesizer.align("Good morning.", &tone(0.05), &voice).unwrap(), None, "more symbols than frames");
    let long = "It is a fine day, they say. ".repeat(12);
    assert_eq!(synthesizer.align(&long, &tone(9.0), &voice).unwrap(), None, "not read at once");
}

#[test]
fn who_gives_up_is_told_so_and_may_ask_again() {
    let folder = checkpoint("f32", &[]);
    let mut synthesizer = Synthesizer::open(folder.path(), cpu()).unwrap();
    let stop = Arc::new(AtomicBool::new(true));
    let voice = synthesizer.voice(None).unwrap();
    let speak = |synthesizer: &mut Synthesizer| synthesizer.speak("Good morning.", &voice, &SpeechOptions::default());
    // Before its programs are made, and when they are there.
    for _ in 0..2 {
        synthesizer.stop_when(stop.clone());
        assert!(matches!(speak(&mut synthesizer), Err(SynthError::Stopped)));
        stop.store(false, Ordering::Relaxed);
        assert!(speak(&mut synthesizer).is_ok());
        stop.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_same_seed_says_the_same_whatever_was_said_before() {
    let folder = checkpoint("f32", &[]);
    let mut synthesizer = Synthesizer::open(folder.path(), cpu()).unwrap();
    let first = say(&mut synthesizer, "Good morning.", 1.0, 1);
    let long = say(&mut synthesizer, &"It is a fine day, they say. ".repeat(12), 1.0, 1);
    assert!(long.pieces.len() > 1);
    assert_eq!(say(&mut synthesizer, "Good morning.", 1.0, 1), first);
    assert_ne!(say(&mut synthesizer, "Good morning.", 1.0, 2).clip, first.clip);
    for spoken in [&first, &long] {
        let expected: usize = spoken.pieces.iter().map(|piece| piece.frames * 256 + piece.pause_samples).sum();
        assert_eq!((spoken.clip.samples.len(), spoken.clip.rate_hz), (expected, 22_050));
    }
    assert_eq!(long.pieces.last().unwrap().pause_samples, 0, "nothing is waited for at the end");
    assert!(long.pieces[0].pause_samples > 0);
}

#[test]
fn slow_speech_takes_longer() {
    let folder = checkpoint("f32", &[]);
    let mut synthesizer = Synthesizer::open(folder.path(), cpu()).unwrap();
    let mut frames = |rate| say(&mut synthesizer, "How do you do?", rate, 1).pieces[0].frames;
    let (fast, usual, slow) = (frames(2.0), frames(1.0), frames(0.25));
    assert!(fast <= usual && usual.abs_diff(slow / 4) <= 1, "{fast} {usual} {slow}");
}

#[test]
fn simulated_cards_say_what_the_cpu_says() {
    let folder = checkpoint("f32", &[]);
    let on = |device| say(&mut Synthesizer::open(folder.path(), device).unwrap(), "Good morning.", 1.0, 1);
    assert_eq!(on(cpu()), on(simulated()));
    // Trained in bf16, and spoken so on a card.
    let folder = checkpoint("bf16", &[]);
    let on = |device| say(&mut Synthesizer::open(folder.path(), device).unwrap(), "Good morning.", 1.0, 1);
    let (wide, narrow) = (on(cpu()), on(simulated()));
    assert_eq!(wide.pieces, narrow.pieces);
    assert_ne!(wide.clip, narrow.clip);
}

#[test]
fn a_voice_is_the_checkpoints_or_a_recordings() {
    let folder = checkpoint("f32", &["anna", "bert"]);
    let mut synthesizer = Synthesizer::open(folder.path(), cpu()).unwrap();
    assert_eq!(synthesizer.speakers().collect::<Vec<_>>(), ["anna", "bert"]);
    assert_eq!(synthesizer.voice(None).unwrap(), synthesizer.voice(Some("anna")).unwrap());
    let refused = synthesizer.voice(Some("carl")).unwrap_err().to_string();
    assert!(refused.contains("\"carl\"") && refused.contains("anna, bert"), "{refused}");
    let tone = Clip { samples: (0..44_100).map(|i| ((i * 300) % 20_000) as i16 - 10_000).collect(), rate_hz: 22_050 };
    let recorded = synthesizer.voice_of(&tone).unwrap();
    assert_eq!(recorded.source, VoiceSource::Recording);
    let voices = [synthesizer.voice(Some("anna")).unwrap(), synthesizer.voice(Some("bert")).unwrap(), recorded];
    let said = voices.map(|voice| synthesizer.speak("Hello.", &voice, &SpeechOptions::default()).unwrap().clip);
    assert!(said[0] != said[1] && said[1] != said[2]);

    let nobody = checkpoint("f32", &[]);
    let nobody = Synthesizer::open(nobody.path(), cpu()).unwrap();
    assert_eq!(nobody.voice(None).unwrap().source, VoiceSource::Mean);
    assert!(matches!(nobody.voice(Some("anna")), Err(SynthError::NoSuchVoice { known, .. }) if known.is_empty()));
}

#[test]
fn what_cannot_be_said_is_refused() {
    let folder = checkpoint("f32", &[]);
    let mut synthesizer = Synthesizer::open(folder.path(), cpu()).unwrap();
    let voice = synthesizer.voice(None).unwrap();
    let mut refused =
        |text: &str, rate: f64| synthesizer.speak(text, &voice, &SpeechOptions { rate, seed: 1 }).unwrap_err();
    assert!(matches!(refused("", 1.0), SynthError::EmptyText));
    assert!(matches!(refused("中文", 1.0), SynthError::NoKnownSymbol { .. }));
    assert!(matches!(refused("hello", 9.0), SynthError::Rate { .. }));
    let full = || Err(std::io::Error::from(std::io::ErrorKind::StorageFull));
    let script = synthesizer.read("hello").unwrap();
    let stopped = synthesizer.say(&script, &voice, &SpeechOptions::default(), &mut |_, _| full());
    assert!(matches!(stopped, Err(SynthError::NotTaken(_))));
    let spoken = synthesizer.speak("He中llo.", &voice, &SpeechOptions::default()).unwrap();
    assert_eq!(spoken.left_out, ['中']);
}

#[test]
fn what_is_no_checkpoint_is_refused() {
    let empty = tempfile::tempdir().unwrap();
    let error = Synthesizer::open(empty.path(), cpu()).unwrap_err();
    assert!(matches!(error, SynthError::NotAModel { .. }), "{error}");
    // The weights of one model, and the description of another.
    let folder = checkpoint("f32", &[]);
    let path = folder.path().join(MODEL_FILE);
    let mut model: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    model["sizes"] = json!(Preset::Tiny.sizes());
    fs::write(&path, model.to_string()).unwrap();
    let error = Synthesizer::open(folder.path(), cpu()).unwrap_err();
    assert!(matches!(error, SynthError::WrongTensors { .. }), "{error}");
}

#[test]
fn a_card_without_room_is_told() {
    let folder = checkpoint("f32", &[]);
    let device = Machine::simulated("1x560MiB".parse().unwrap()).open(0).unwrap();
    let mut synthesizer = Synthesizer::open(folder.path(), device).unwrap();
    let voice = synthesizer.voice(None).unwrap();
    let refused = synthesizer.speak("hello", &voice, &SpeechOptions::default()).unwrap_err();
    assert!(matches!(refused, SynthError::NoRoom { .. }), "{refused}");
}

/// One test body on a real card: the same bytes twice, about what the CPU says, and every byte given back.
#[test]
#[ignore = "needs an NVIDIA card"]
fn gpu_says_about_what_the_cpu_says() {
    let machine = Machine::cuda().unwrap().expect("a card");
    for (compute, tolerance) in [("f32", 0.02), ("bf16", 0.2)] {
        let folder = checkpoint(compute, &["anna"]);
        let text = "It is a fine day, they say. ".repeat(12);
        let on = |device| say(&mut Synthesizer::open(folder.path(), device).unwrap(), &text, 0.5, 1);
        let [first, again] = [(), ()].map(|()| on(machine.open(0).unwrap()));
        assert_eq!(first, again, "{compute}");
        assert_eq!(machine.counters(0).live_bytes, 0, "{compute}");
        let expected = on(cpu());
        let ratio = first.clip.samples.len() as f64 / expected.clip.samples.len() as f64;
        assert!((ratio - 1.0).abs() <= tolerance, "{compute}: {ratio}");
        // Phases are found from noise: the sounds differ, how loud they are does not.
        let loudness = |clip: &Clip| {
            let squares: f64 = clip.samples.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            (squares / clip.samples.len() as f64).sqrt()
        };
        let ratio = loudness(&first.clip) / loudness(&expected.clip);
        assert!((ratio - 1.0).abs() <= tolerance, "{compute}: loudness {ratio}");
    }
}
