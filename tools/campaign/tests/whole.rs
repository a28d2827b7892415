//! A whole campaign against a fake program: it ends in time, reports, and its exit code says whether anything failed.
#![expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Instant;

use serde_json::Value;

/// Runs a campaign against a shell script.
fn campaign(folder: &Path, script: &str, words: &str) -> Output {
    let fake = folder.join("fake");
    fs::write(&fake, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem-campaign"));
    command.args(words.split_whitespace()).arg("--tandem").arg(&fake).arg("--json").arg(folder.join("report.json"));
    command.arg("--failures").arg(folder.join("failures")).output().unwrap()
}

/// Enough of the program for the fixtures: a corpus, and a run with a checkpoint.
const FIXTURES: &str = r#"
case "$*" in
  --version) echo "fake 1"; exit 0;;
  "corpus demo"*) mkdir -p corpus/wavs; echo "a|Hi." > corpus/metadata.csv; exit 0;;
  train*) if ! [ -d run/checkpoint-00000020 ]; then
      rm -rf run/partial; mkdir -p run/partial
      for name in weights.safetensors optimizer.safetensors model.json state.json; do echo x > run/partial/$name; done
      mv run/partial run/checkpoint-00000020
    fi
    echo '{}' > run/run.jsonl; exit 0;;
esac
"#;

fn report(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("report.json")).unwrap()).unwrap()
}

#[test]
fn a_program_that_panics_fails_the_campaign_and_its_inputs_are_saved() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("{FIXTURES}\necho \"thread 'main' panicked at src/x.rs:1:1:\" >&2; exit 101");
    let started = Instant::now();
    let output = campaign(folder.path(), &script, "--minutes 0.5 --seed 3 --only recordings:5");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(started.elapsed().as_secs() < 45);
    let report = report(folder.path());
    assert_eq!((&report["passed"], &report["seed"], &report["version"]), (&false.into(), &3.into(), &"fake 1".into()));
    let failure = &report["failures"][0];
    assert_eq!(
        (&failure["case"], failure["repeat"].as_str()),
        (&"recordings:5".into(), Some("cargo run --release -p tandem-campaign -- --seed 3 --only recordings:5"))
    );
    assert!(failure["reasons"][0].as_str().unwrap().starts_with("panic: exit code 101"), "{failure}");
    let saved = Path::new(failure["folder"].as_str().unwrap());
    assert!(saved.join("corpus/wavs").is_dir());
    let commands = fs::read_to_string(saved.join("commands.txt")).unwrap();
    assert!(commands.contains("corpus check corpus --json") && commands.contains("# FAILED: panic"), "{commands}");
}

#[test]
fn a_program_that_changes_its_inputs_fails_the_campaign() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("{FIXTURES}\necho changed >> corpus/metadata.csv; echo no >&2; exit 1");
    let output = campaign(folder.path(), &script, "--minutes 0.5 --seed 3 --only recordings:0");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(report(folder.path()).to_string().contains("inputs in corpus were changed: metadata.csv differs"));
}

#[test]
fn a_program_that_trains_to_the_same_bytes_passes_and_one_that_does_not_fails() {
    let folder = tempfile::tempdir().unwrap();
    let output = campaign(folder.path(), FIXTURES, "--minutes 0.5 --seed 3 --only signals:1");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let report_of_good = report(folder.path());
    assert_eq!((&report_of_good["passed"], &report_of_good["kinds"]["signals"]["cases"]), (&true.into(), &1.into()));
    // Other bytes every time.
    let script = FIXTURES.replace("echo x >", "date +%N >");
    let output = campaign(folder.path(), &script, "--minutes 0.5 --seed 3 --only signals:1");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(report(folder.path()).to_string().contains("differs from that of an undisturbed run"));
}

#[test]
fn a_program_that_cannot_start_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = campaign(folder.path(), "exit 1", "--minutes 0.2 --seed 3");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(report(folder.path())["errors"][0].as_str().unwrap().contains("an undisturbed command fails"));
}
