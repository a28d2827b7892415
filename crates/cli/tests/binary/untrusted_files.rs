//! Files that others may have put there: nothing hangs, nothing grows without bound, nothing of somebody else is written.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::command::{Ran, SMALL, TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::{copy_of_demo, demo, tone, wav_of};

fn mkfifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Runs with little address space: what reads without bound fails instead of taking the machine's memory.
fn bounded(command: TandemCommand) -> Ran {
    command.run_behind("ulimit -v 4000000; exec")
}

fn train(folder: &TempFolder) -> TandemCommand {
    let line = format!("train --mode cpu {SMALL} --max-steps 1");
    TandemCommand::new(&line).without_gpu().arg("--checkpoint-dir").arg(folder.path("run"))
}

#[test]
fn inputs_without_an_end_are_errors_at_once() {
    let folder = TempFolder::new();
    mkfifo(&folder.path("fifo"));
    File::create(folder.path("huge")).unwrap().set_len(10 << 30).unwrap();
    fs::create_dir(folder.path("folder")).unwrap();
    for input in ["/dev/zero".into(), folder.path("fifo"), folder.path("huge"), folder.path("folder")] {
        let synthesize = |flags: &str| {
            TandemCommand::new(&format!("synthesize --mode cpu {flags}"))
                .arg(&input)
                .arg("-o")
                .arg(folder.path("a.wav"))
        };
        let commands = [
            synthesize("--checkpoint /nonexistent --text-file"),
            synthesize("--text hello --reference"),
            train(&folder).arg("--train-data").arg(demo()).arg("--exclude-ids").arg(&input),
            train(&folder).arg("--config").arg(&input),
            TandemCommand::new("corpus features -o").arg(folder.path("mel.npy")).arg(&input),
        ];
        for command in commands {
            let ran = bounded(command);
            assert!(ran.code == 1 || ran.code == 2, "{}: {ran:?}", input.display());
            assert!(!ran.err.contains("panicked") && ran.err.contains("❌"), "{}: {ran:?}", input.display());
        }
        if input.is_dir() {
            continue;
        }
        let ran = bounded(train(&folder).arg("--train-data").arg(&input));
        assert!(ran.code == 2 && ran.err.contains("--train-data"), "{}: {ran:?}", input.display());
    }
}

#[test]
fn outputs_never_replace_what_tandem_did_not_write() {
    let (corpus, _) = copy_of_demo();
    let runs = TempFolder::new();
    let run = runs.path("run");
    let list = corpus.path("metadata.csv");
    let recording = fs::read_dir(corpus.path("wavs")).unwrap().next().unwrap().unwrap().path();
    let elsewhere = TempFolder::new();
    let notes = elsewhere.file("notes.txt", "my notes");
    let line = format!("train --mode cpu {SMALL} --max-steps 1");
    let command = |flag: &str, path: &Path| {
        let command = TandemCommand::new(&line).without_gpu().arg("--train-data").arg(corpus.path(""));
        command.arg("--checkpoint-dir").arg(&run).arg(flag).arg(path)
    };
    for (path, why) in [(&list, "corpus"), (&recording, "corpus"), (&notes, "the file exists and is not")] {
        let before = fs::read(path).unwrap();
        for flag in ["--run-log", "--trace"] {
            let ran = command(flag, path).run();
            assert_eq!(ran.code, 2, "{ran:?}");
            contains(&ran.err, &[flag, why, "--overwrite"]);
        }
        for words in ["validate", "profile --num-steps 2", "bench mel"] {
            let ran =
                TandemCommand::new(&format!("{words} --mode cpu {SMALL} --run-log")).arg(path).without_gpu().run();
            assert_eq!(ran.code, 2, "{words}: {ran:?}");
        }
        assert!(fs::read(path).unwrap() == before && !run.exists(), "{}", path.display());
    }
    // A file that Tandem wrote is replaced, and one that it did not if that is asked for by name.
    let log = elsewhere.path("log.jsonl");
    assert_eq!(command("--run-log", &log).run().code, 0);
    assert_eq!(command("--run-log", &log).run().code, 0);
    assert_eq!(command("--run-log", &notes).arg("--overwrite").run().code, 0);
    assert!(fs::read_to_string(&notes).unwrap().starts_with("{\"v\":"));
    let other = runs.path("other");
    fs::create_dir(&other).unwrap();
    fs::copy(run.join("run.json"), other.join("run.json")).unwrap();
    fs::copy(&log, other.join("run.jsonl")).unwrap();
    let ran = command("--run-log", &other.join("run.jsonl")).run();
    contains(&ran.err, &["belongs to the run in "]);
    let speak = |path: &Path| {
        let command = TandemCommand::new("synthesize --mode cpu --text hello --checkpoint").arg(&run);
        command.without_gpu().arg("-o").arg(path).run()
    };
    assert_eq!(speak(&recording).code, 2);
    assert_eq!(speak(&run.join("samples.wav")).code, 0, "a new file is no loss");
    assert_eq!(speak(&run.join("samples.wav")).code, 2);
    let mine = elsewhere.path("a.wav");
    assert_eq!((speak(&mine).code, speak(&mine).code), (0, 0));
}

#[test]
fn a_lock_that_is_a_link_is_refused_and_its_target_stays() {
    let folder = TempFolder::new();
    let precious = folder.file("precious", "do not touch");
    fs::create_dir(folder.path("run")).unwrap();
    symlink(&precious, folder.path("run/.tandem.lock")).unwrap();
    let ran = train(&folder).arg("--train-data").arg(demo()).run();
    assert!(ran.code == 1 || ran.code == 2, "{ran:?}");
    contains(&ran.err, &[".tandem.lock"]);
    assert_eq!(fs::read_to_string(&precious).unwrap(), "do not touch");
}

#[test]
fn a_temporary_folder_of_somebody_else_holds_nobody_up() {
    let temporary = TempFolder::new();
    let foreign = temporary.path("tandem-scratch-x");
    fs::create_dir(&foreign).unwrap();
    fs::set_permissions(&foreign, fs::Permissions::from_mode(0o777)).unwrap();
    mkfifo(&foreign.join("owned"));
    let line = format!("validate --mode cpu {SMALL}");
    let ran = TandemCommand::new(&line).without_gpu().env("TMPDIR", temporary.path("")).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(foreign.exists(), "it is not ours to remove");
}

#[test]
fn json_documents_have_no_raw_control_characters() {
    let corpus = TempFolder::new();
    corpus.file("wavs/a.wav", wav_of(&tone(22_050, 0.5)));
    // DEL, and the character that begins escape sequences in a single one.
    corpus.file("metadata.csv", "a|text|text|\u{7f}\u{9b}31m\n");
    let ran = TandemCommand::new("corpus check --json").arg(corpus.path("")).run();
    assert!(!ran.out.contains(|c: char| c.is_control() && c != '\n'), "{ran:?}");
    contains(&ran.json().to_string(), &["\u{7f}\u{9b}31m"]);
}

#[test]
fn a_run_log_with_absurd_numbers_is_shown() {
    let folder = TempFolder::new();
    let run = folder.path("run");
    assert_eq!(train(&folder).arg("--train-data").arg(demo()).run().code, 0);
    let log = fs::read_to_string(run.join("run.jsonl")).unwrap();
    let absurd = log.lines().map(|line| {
        let mut record: serde_json::Value = serde_json::from_str(line).unwrap();
        for name in ["batch", "batches", "step", "wall_ns", "busy_ns", "wait_ns", "ns", "bytes"] {
            if let Some(value) = record.get_mut(name) {
                *value = u64::from(u32::MAX).into();
            }
        }
        if let Some(batch) = record.get_mut("batch") {
            *batch = u64::MAX.into();
        }
        format!("{record}\n")
    });
    let log = folder.file("absurd.jsonl", absurd.collect::<String>());
    for command in ["monitor --once", "profile --log"] {
        let ran = TandemCommand::new(command).arg(&log).run();
        assert!([0, 1, 2].contains(&ran.code), "{ran:?}");
    }
}
