//! Text from standard input, speech to standard output, and file names that say what is in the file.

use std::fs;
use std::io::Write as _;
use std::process::Stdio;

use super::{clip, command, run_folder, spoken};
use crate::command::{Ran, TandemCommand, contains};
use crate::machine::TempFolder;
use crate::terminal::TestTerminal;

const TEXT: &str = "Good morning. The quick brown fox jumps over the lazy dog.";

/// Runs a command with bytes on its standard input. Its standard output may be anything.
pub(super) fn with_input(command: TandemCommand, input: &[u8]) -> (Vec<u8>, Ran) {
    let mut command = command.into_std();
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let (out, written) = std::thread::scope(|scope| {
        // A child that refuses its flags closes the pipe without reading it.
        let written = scope.spawn(move || stdin.write_all(input));
        (child.wait_with_output().unwrap(), written.join().unwrap())
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let ran = Ran { code: out.status.code().unwrap_or(-1), out: text(&out.stdout), err: text(&out.stderr) };
    assert!(written.is_ok() || ran.code != 0, "{written:?} {ran:?}");
    (out.stdout, ran)
}

#[test]
fn speech_goes_to_standard_output_and_messages_to_standard_error() {
    let folder = TempFolder::new();
    let (expected, _) = spoken("--mode cpu", TEXT, &folder);
    let piped = TandemCommand::new("synthesize --mode cpu -o - --text").arg(TEXT);
    let (wav, ran) = with_input(piped.arg("--checkpoint").arg(run_folder()), b"");
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(wav == expected, "the bytes of a file, lengths included: {} and {}", wav.len(), expected.len());
    assert!(!clip(&wav).samples.is_empty());
    contains(&ran.err, &["Synthesising on the CPU", "s of speech", "standard output"]);
    // `-q` leaves nothing but the result.
    let piped = TandemCommand::new("synthesize --mode cpu -q -o - --text").arg(TEXT);
    let (wav, ran) = with_input(piped.arg("--checkpoint").arg(run_folder()), b"");
    assert!(wav == expected && !ran.err.contains("Synthesising on"), "{}", ran.err);
}

#[test]
fn text_comes_from_standard_input() {
    let folder = TempFolder::new();
    let (expected, _) = spoken("--mode cpu", TEXT, &folder);
    let say = |input: &[u8]| {
        let piped = TandemCommand::new("synthesize --mode cpu --text-file - -o -");
        with_input(piped.arg("--checkpoint").arg(run_folder()), input)
    };
    let (wav, ran) = say(format!("\u{FEFF}{TEXT}").as_bytes());
    assert!(ran.code == 0 && wav == expected, "{}", ran.err);
    for (input, parts) in [
        (&b" \n"[..], &["the text is empty"][..]),
        (b"caf\xe9", &["--text-file: not UTF-8", "standard input"]),
        (
            &[b'a'; (16 << 20) + 1],
            &["--text-file: cannot read it", "expected at most 16777216 bytes", "standard input"],
        ),
    ] {
        let (wav, ran) = say(input);
        assert!(ran.code == 2 && wav.is_empty(), "{}", ran.err);
        contains(&ran.err, parts);
    }
}

#[test]
fn a_reader_that_closes_early_is_not_a_failure() {
    let line = "synthesize --mode cpu -o - --text hello --checkpoint";
    let mut command = TandemCommand::new(line).arg(run_folder()).into_std();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let error = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{error}");
}

#[test]
fn the_extension_says_wav_or_is_refused_before_anything_is_loaded() {
    let folder = TempFolder::new();
    for (name, parts) in [
        ("a.mp3", &["found .mp3", "a.wav, and convert it: ffmpeg -i "][..]),
        ("a.FLAC", &["found .flac", "a.wav"]),
        ("a.ogg", &["found .ogg", "a.wav"]),
        ("speech", &["found no extension", "speech.wav"]),
        ("speech.v2", &["found .v2", "speech.v2.wav"]),
    ] {
        let ran = command("--mode cpu --checkpoint nowhere", "hi", &folder.path(name)).run();
        assert_eq!(ran.code, 2, "{ran:?}");
        contains(&ran.err, &["-o: expected a file that ends in .wav"]);
        contains(&ran.err, parts);
    }
    assert_eq!(fs::read_dir(folder.path("")).unwrap().count(), 0);
    for name in ["a.wav", "a.WAV", "a.b.Wav"] {
        let ran = command("--mode cpu", "hi", &folder.path(name)).arg("--checkpoint").arg(run_folder()).run();
        assert!(ran.code == 0 && folder.path(name).is_file(), "{ran:?}");
    }
}

#[test]
fn a_terminal_gets_no_wav() {
    let line = format!("LANG=C.UTF-8 {} synthesize --checkpoint nowhere --text hi -o -", env!("CARGO_BIN_EXE_tandem"));
    let Some(terminal) = TestTerminal::run(&line, (160, 24)) else { return };
    terminal.until(&["standard output is a terminal", "-o speech.wav", "ended with 2"]);
}
