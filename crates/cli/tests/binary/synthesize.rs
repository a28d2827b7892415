//! `tandem synthesize`: synthesises with checkpoints of `tandem train`, and refuses bad input before it loads anything.

mod batch;
mod documents;
mod pipes;

use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tandem_audio::{Clip, decode};

use crate::command::{Ran, TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::{demo, tone, wav_of};

/// A run of three steps, trained once for all tests, which must not change it.
fn run_folder() -> &'static Path {
    static RUN: OnceLock<PathBuf> = OnceLock::new();
    RUN.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("spoken-run");
        let _ = fs::remove_dir_all(&path);
        let line = "train --model-size nano --batch-size 4 --mode cpu --buffer-size 6 --num-workers 2 --max-steps 3 \
                    --checkpoint-every 2";
        let ran = TandemCommand::new(line).arg("--train-data").arg(demo()).arg("--checkpoint-dir").arg(&path).run();
        assert_eq!(ran.code, 0, "{ran:?}");
        path
    })
}

/// A copy of the run, to be damaged.
fn copy_of_run(folder: &TempFolder) -> PathBuf {
    for name in ["run.json", "checkpoint-00000002", "checkpoint-00000003"] {
        let from = run_folder().join(name);
        if from.is_file() {
            folder.file(name, fs::read(from).unwrap());
            continue;
        }
        for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
            let file = format!("{name}/{}", entry.file_name().into_string().unwrap());
            folder.file(&file, fs::read(entry.path()).unwrap());
        }
    }
    folder.path("")
}

fn command(line: &str, text: &str, out: &Path) -> TandemCommand {
    TandemCommand::new(&format!("synthesize {line}")).arg("--text").arg(text).arg("-o").arg(out)
}

#[track_caller]
fn spoken(line: &str, text: &str, folder: &TempFolder) -> (Vec<u8>, Ran) {
    let out = folder.path("out.wav");
    let ran = command(line, text, &out).arg("--checkpoint").arg(run_folder()).run();
    assert_eq!(ran.code, 0, "{line}: {ran:?}");
    (fs::read(out).unwrap(), ran)
}

fn clip(wav: &[u8]) -> Clip {
    let mut clip = Clip::default();
    decode(Cursor::new(wav.to_vec()), &mut clip).unwrap();
    clip
}

#[test]
fn a_text_becomes_a_wav_that_follows_rate_and_seed() {
    let folder = TempFolder::new();
    let text = "The quick brown fox jumps over the lazy dog.";
    let (wav, ran) = spoken("--mode cpu", text, &folder);
    contains(&ran.out, &["Synthesising on the CPU", "checkpoint-0000000", "s of speech, synthesised in", "out.wav"]);
    let usual = clip(&wav);
    assert_eq!(usual.rate_hz, 22_050);
    assert!(usual.samples.len() >= text.len() * 256 && usual.samples.iter().any(|x| *x != 0));

    assert_eq!(spoken("--mode cpu", text, &folder).0, wav, "the same seed, the same bytes");
    assert_eq!(spoken("--mode cpu --seed 1234", text, &folder).0, wav);
    let other = spoken("--mode cpu --seed 7", text, &folder).0;
    assert!(other != wav && other.len() == wav.len());

    let slow = clip(&spoken("--mode cpu --speaking-rate 0.5", text, &folder).0);
    let ratio = slow.samples.len() as f64 / usual.samples.len() as f64;
    assert!((1.9..=2.1).contains(&ratio), "{ratio}");
    let names: Vec<_> = fs::read_dir(folder.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["out.wav"], "no other file is left");
}

#[test]
fn simulated_cards_give_the_same_bytes_as_the_cpu() {
    let folder = TempFolder::new();
    let on_cpu = spoken("--mode cpu", "Good morning.", &folder).0;
    let (on_card, ran) = spoken("--sim 2x24GiB --gpu 1", "Good morning.", &folder);
    contains(&ran.out, &["[simulated] Synthesising on GPU 1"]);
    assert_eq!(on_card, on_cpu, "trained and synthesised in f32");
    let (_, ran) = spoken("--sim 2x24GiB --mode cpu", "Good morning.", &folder);
    contains(&ran.out, &["Synthesising on the CPU"]);
}

#[test]
fn the_best_checkpoint_of_the_folder_is_the_default() {
    let folder = TempFolder::new();
    let run = TempFolder::new();
    copy_of_run(&run);
    fs::rename(run.path(""), folder.path("checkpoints")).unwrap();
    let ran = TandemCommand::new("synthesize --mode cpu --text hello -o out.wav").inside(&folder).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["checkpoints/checkpoint-00000003"]);

    // The best one is truncated: the previous one is used, with a warning.
    let weights = folder.path("checkpoints/checkpoint-00000003/weights.safetensors");
    fs::write(&weights, &fs::read(&weights).unwrap()[..1000]).unwrap();
    let ran = TandemCommand::new("synthesize --mode cpu --text hello -o out.wav").inside(&folder).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.both(), &["skipping a damaged checkpoint", "checkpoint-00000003", "checkpoint-00000002"]);

    let empty = TempFolder::new();
    let ran = TandemCommand::new("synthesize --mode cpu --text hello -o out.wav").inside(&empty).run();
    assert_eq!(ran.code, 2, "{ran:?}");
    contains(&ran.err, &["no checkpoint in ./checkpoints", "tandem train", "--checkpoint"]);
}

#[test]
fn a_reference_recording_changes_the_voice() {
    let folder = TempFolder::new();
    let synthesize = |file: &Path| {
        let out = folder.path("out.wav");
        let ran = command("--mode cpu", "Good morning.", &out)
            .arg("--checkpoint")
            .arg(run_folder())
            .arg("--reference")
            .arg(file)
            .run();
        assert_eq!(ran.code, 0, "{ran:?}");
        fs::read(out).unwrap()
    };
    let speech = fs::read_dir(demo().join("wavs")).unwrap().next().unwrap().unwrap().path();
    let short = folder.file("short.wav", wav_of(&tone(44_100, 0.6)));
    let (by_speech, by_tone) = (synthesize(&speech), synthesize(&short));
    assert_ne!(by_speech, by_tone);
    assert_ne!(by_speech, spoken("--mode cpu", "Good morning.", &folder).0);
}

#[test]
fn a_long_text_is_synthesised_in_chunks() {
    let folder = TempFolder::new();
    let text = "Dr. Smith, it is said, paid $5 for it. And that was that! ".repeat(12);
    let file = folder.file("text.txt", format!("\u{FEFF}{text}\n\nThe end. 中"));
    let out = folder.path("out.wav");
    let ran = TandemCommand::new("synthesize --mode cpu --speaking-rate 4 --text-file")
        .arg(file)
        .arg("--checkpoint")
        .arg(run_folder())
        .arg("-o")
        .arg(&out)
        .run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &[" chunks, synthesised in "]);
    contains(&ran.err, &["skipped characters the model does not know: '中'"]);
    let speech = clip(&fs::read(out).unwrap());
    assert!(speech.samples.len() > 800 * 256, "{}", speech.samples.len());
}

#[test]
fn bad_input_is_refused_and_nothing_is_written() {
    let folder = TempFolder::new();
    let out = folder.path("out.wav");
    let check = |flags: &[&str], parts: &[&str]| {
        let ran = TandemCommand::new("synthesize --mode cpu -o").arg(&out).args(flags).run();
        assert_eq!(ran.code, 2, "{flags:?}: {ran:?}");
        contains(&ran.err, parts);
        assert!(!out.exists(), "{flags:?}");
    };
    let run = run_folder().to_str().unwrap();
    let say = |text: &str, more: &[&str], parts: &[&str]| {
        check(&[&["--checkpoint", run, "--text", text], more].concat(), parts);
    };
    say("", &[], &["the text is empty"]);
    say(" \n ", &[], &["the text is empty"]);
    say("中文", &[], &["no symbol that this model knows", "\"中\"", "\"AA0\" \"AA1\""]);
    say("hi", &["--speaking-rate", "0"], &["--speaking-rate", "0.25 to 4, found 0"]);
    say("hi", &["--speaker", "nobody"], &["--speaker", "\"nobody\""]);
    say("hi", &["--gpu", "0"], &["--mode cpu", "--gpu"]);
    say("hi", &["--text-file", "x"], &["cannot be used with"]);

    let file = |name: &str, bytes: &[u8]| folder.file(name, bytes).to_str().unwrap().to_owned();
    let silent = file("silent.wav", &wav_of(&Clip { samples: vec![0; 44_100], rate_hz: 22_050 }));
    let short = file("short.wav", &wav_of(&tone(22_050, 0.01)));
    let notes = file("notes.wav", b"these are notes");
    for (recording, part) in [(&silent, "is silent"), (&short, "found 0.01 s"), (&notes, "not an audio file")] {
        say("hi", &["--reference", recording], &["--reference", part]);
    }
    let empty = file("empty.txt", b" \n");
    let latin = file("latin.txt", b"caf\xe9");
    for (text, part) in [(&empty, "the text is empty"), (&latin, "not UTF-8"), (&out.display().to_string(), "read")] {
        check(&["--checkpoint", run, "--text-file", text], &[part]);
    }
    check(&[], &["--text"]);

    for name in ["tf/checkpoint", "tf/ckpt-1.index", "tf/ckpt-1.data-00000-of-00001", "saved/saved_model.pb"] {
        file(name, b"x");
    }
    for (name, part) in [("tf", "`checkpoint`"), ("saved", "`saved_model.pb`"), ("nowhere", "found nothing")] {
        let path = folder.path(name);
        check(&["--text", "hi", "--checkpoint", path.to_str().unwrap()], &["--checkpoint", part]);
    }
}

#[test]
fn an_output_that_cannot_be_written_is_refused_first() {
    let folder = TempFolder::new();
    for (out, part) in [("no/such/out.wav", "the folder does not exist"), ("", "not a file")] {
        let ran = TandemCommand::new("synthesize --checkpoint nowhere --text hi -o").arg(folder.path(out)).run();
        assert_eq!(ran.code, 2, "{ran:?}");
        contains(&ran.err, &[part]);
    }
}

#[test]
fn damaged_checkpoints_are_refused() {
    let folder = TempFolder::new();
    let run = copy_of_run(&folder);
    let out = folder.path("out.wav");
    let checkpoint = run.join("checkpoint-00000003");
    let weights = checkpoint.join("weights.safetensors");
    let good = fs::read(&weights).unwrap();
    let mut bad = good.clone();
    let last = bad.len() - 5;
    bad[last] ^= 0x10;
    for (bytes, part) in [(&bad[..], "expected checksum"), (&good[..good.len() / 2], "bytes, found")] {
        fs::write(&weights, bytes).unwrap();
        let ran = command("--mode cpu", "hi", &out).arg("--checkpoint").arg(&checkpoint).run();
        assert_eq!(ran.code, 1, "{ran:?}");
        contains(&ran.err, &["--checkpoint", part, "weights.safetensors"]);
    }
    fs::remove_file(&weights).unwrap();
    let ran = command("--mode cpu", "hi", &out).arg("--checkpoint").arg(&checkpoint).run();
    assert_eq!(ran.code, 1, "{ran:?}");
    contains(&ran.err, &["the file is missing"]);
    assert!(!out.exists());
}
