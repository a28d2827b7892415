//! What scripts read: the speakers of a checkpoint, and what was written.

use std::fs;

use tandem_audio::Clip;

use super::{clip, command, run_folder};
use crate::command::{TandemCommand, contains, texts};
use crate::machine::TempFolder;

#[test]
fn speakers_are_listed_one_on_each_line_and_as_a_document() {
    let list =
        |line: &str| TandemCommand::new(&format!("synthesize --list-speakers {line} --checkpoint")).arg(run_folder());
    let ran = list("").run();
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    let speakers: Vec<&str> = ran.out.lines().collect();
    assert!(speakers.len() > 1 && speakers.contains(&"ada"), "{ran:?}");
    let ran = list("--json").run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let document = ran.json();
    assert_eq!(texts(&document["speakers"]), speakers);
    assert!(document["checkpoint"].as_str().unwrap().contains("checkpoint-0000000"), "{document}");
    // Every listed speaker can be given.
    let folder = TempFolder::new();
    let out = folder.path("out.wav");
    let line = format!("--mode cpu --speaker {}", speakers[1]);
    let ran = command(&line, "hello", &out).arg("--checkpoint").arg(run_folder()).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &[&format!("Voice: {}", speakers[1])]);
}

#[test]
fn a_listing_needs_neither_text_nor_output_and_takes_none() {
    let ran = TandemCommand::new("synthesize --list-speakers --text hi -o a.wav").run();
    assert_eq!(ran.code, 2, "{ran:?}");
    contains(&ran.err, &["cannot be used with"]);
    let ran = TandemCommand::new("synthesize --list-speakers --checkpoint nowhere --json").run();
    assert_eq!(ran.code, 2, "{ran:?}");
    contains(ran.json()["error"].as_str().unwrap(), &["--checkpoint", "found nothing"]);
    let ran = TandemCommand::new("synthesize --text hi").run();
    assert_eq!(ran.code, 2, "{ran:?}");
    contains(&ran.err, &["--output"]);
}

#[test]
fn a_document_says_what_was_written() {
    let folder = TempFolder::new();
    let out = folder.path("out.wav");
    let ran = command("--mode cpu --json", "Good morning, 中文!", &out).arg("--checkpoint").arg(run_folder()).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let document = ran.json();
    let wav: Clip = clip(&fs::read(&out).unwrap());
    assert_eq!(document["file"], out.to_str().unwrap());
    assert!((document["seconds"].as_f64().unwrap() - wav.seconds()).abs() < 1e-9, "{document}");
    assert_eq!(document["rate_hz"], 22_050);
    assert_eq!(document["chunks"], 1);
    assert_eq!((&document["voice"], &document["speaker"]), (&"checkpoint".into(), &"ada".into()));
    assert_eq!(texts(&document["unknown_characters"]), ["中", "文"]);
    assert_eq!(document["device"], "the CPU");
    assert!(document["took_s"].as_f64().is_some_and(|took_s| took_s > 0.0), "{document}");
    assert_eq!(document["simulated"], false);
    contains(&ran.err, &["skipped characters the model does not know", "s of speech"]);

    let recording = folder.file("voice.wav", crate::speech::wav_of(&crate::speech::tone(22_050, 2.0)));
    let line = "--sim 1x24GiB --json --overwrite --reference";
    let by_reference = TandemCommand::new(&format!("synthesize {line}")).arg(recording).args(["--text", "hi", "-o"]);
    let document = by_reference.arg(&out).arg("--checkpoint").arg(run_folder()).run().json();
    assert_eq!((&document["voice"], &document["speaker"]), (&"reference".into(), &serde_json::Value::Null));
    assert_eq!(document["simulated"], true);

    let ran = TandemCommand::new("synthesize --text hi -o - --json").run();
    assert_eq!(ran.code, 2, "{ran:?}");
    contains(ran.json()["error"].as_str().unwrap(), &["--json and `-o -` both write", "-o speech.wav --json"]);
}
