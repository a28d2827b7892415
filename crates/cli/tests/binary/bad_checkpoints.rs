//! Checkpoints that cannot be written or read: existing ones stay usable, and the message says what to do.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::command::{Ran, TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::demo;

const SHORT: &str = "train --model-size nano --batch-size 2 --mode cpu --buffer-size 4 --max-mel-frames 300";

fn command(flags: &str, run: &Path) -> TandemCommand {
    TandemCommand::new(&format!("{SHORT} {flags}")).arg("--train-data").arg(demo()).arg("--checkpoint-dir").arg(run)
}

#[track_caller]
fn trained(flags: &str, run: &Path) -> Ran {
    let ran = command(flags, run).run();
    assert_eq!(ran.code, 0, "{flags}: {ran:?}");
    ran
}

#[track_caller]
fn refused(ran: &Ran, parts: &[&str]) {
    assert_eq!(ran.code, 2, "{ran:?}");
    contains(&ran.err, parts);
    assert!(!ran.out.contains("✅"), "{ran:?}");
}

/// Runs with a file size limit of `kib`, which fails writes as a full disk does.
fn with_file_size_limit(command: TandemCommand, kib: u32) -> Ran {
    let inner = command.into_std();
    let mut shell = Command::new("bash");
    // The shell counts in KiB.
    shell.arg("-c").arg(format!("ulimit -f {kib}; exec \"$0\" \"$@\"")).arg(inner.get_program()).args(inner.get_args());
    let output = shell.env("LANG", "C.UTF-8").stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
}

fn checkpoints(run: &Path) -> Vec<String> {
    let names = fs::read_dir(run).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.contains("checkpoint-")).collect();
    names.sort_unstable();
    names
}

fn speak(checkpoint: impl AsRef<OsStr>, folder: &TempFolder) -> Ran {
    TandemCommand::new("synthesize --mode cpu --text hello --checkpoint")
        .arg(checkpoint)
        .arg("-o")
        .arg(folder.path("out.wav"))
        .run()
}

#[test]
fn on_a_full_disk_the_previous_checkpoint_stays_usable() {
    let folder = TempFolder::new();
    let run = folder.path("run");
    trained("--max-steps 2", &run);
    // A file of tensors takes 15 MB.
    let ran = with_file_size_limit(command("--max-steps 4", &run), 4096);
    assert_eq!(ran.code, 1, "{ran:?}");
    contains(&ran.err, &["no room for a checkpoint: ", " needed, ", "earlier checkpoints are untouched", "run"]);
    assert_eq!(checkpoints(&run), ["checkpoint-00000002"], "no part of the failed one is left");
    let spoken = speak(&run, &folder);
    assert_eq!(spoken.code, 0, "{spoken:?}");
    contains(&spoken.out, &["checkpoint-00000002"]);

    contains(&trained("--max-steps 4", &run).out, &["Resuming from step 2", "✅ Training finished: 4 steps"]);
    let spoken = with_file_size_limit(
        TandemCommand::new("synthesize --mode cpu --text hello -o out.wav --checkpoint").arg(&run),
        4,
    );
    assert_eq!(spoken.code, 1, "{spoken:?}");
    contains(&spoken.err, &["File too large"]);
    assert!(!Path::new("out.wav").exists());
}

#[test]
fn a_checkpoint_of_another_size_is_named_by_its_size() {
    let folder = TempFolder::new();
    let (run, other) = (folder.path("run"), folder.path("other"));
    trained("--max-steps 1", &run);
    let again = || command("--max-steps 2", &other).arg("--resume").arg(run.join("checkpoint-00000001"));
    let larger = again().into_std();
    let args = larger.get_args().map(|arg| if arg == "nano" { OsStr::new("tiny") } else { arg });
    refused(
        &TandemCommand::new("").args(args).run(),
        &["it holds a nano model, this run trains tiny: use --model-size nano", "--model-size nano"],
    );
    // With that size it resumes, in the same folder after a reset.
    let ran = again().arg("--reset-training").run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["Resuming from step 1", "✅ Training finished: 2 steps"]);
}

#[test]
fn when_every_checkpoint_is_damaged_a_run_starts_over_with_a_warning() {
    let folder = TempFolder::new();
    let run = folder.path("run");
    trained("--max-steps 2 --checkpoint-every 1", &run);
    for step in 1..=2 {
        fs::write(run.join(format!("checkpoint-0000000{step}/weights.safetensors")), b"x").unwrap();
    }
    let spoken = speak(&run, &folder);
    assert_ne!(spoken.code, 0, "{spoken:?}");
    contains(&spoken.err, &["skipping a damaged checkpoint", "checkpoint-00000001", "checkpoint-00000002"]);

    let ran = trained("--max-steps 3", &run);
    contains(
        &ran.err,
        &[
            "skipping a damaged checkpoint",
            "checkpoint-00000001",
            "checkpoint-00000002",
            "no intact checkpoint found: starting from step 0",
        ],
    );
    assert!(!ran.out.contains("Resuming from"), "{ran:?}");
    assert_eq!(speak(&run, &folder).code, 0);
}

#[test]
fn checkpoints_of_other_programs_are_recognised_wherever_they_are_given() {
    let folder = TempFolder::new();
    let names = ["checkpoint", "ckpt-1.index", "ckpt-1.data-00000-of-00001"];
    for name in names {
        folder.file(&format!("tf/{name}"), b"x");
    }
    folder.file("torch/model.pt", b"x");
    let tensorflow = "is a checkpoint of TensorFlow";
    let pytorch = "is a checkpoint of PyTorch";
    for (name, file, program) in [
        ("tf", "`checkpoint`", tensorflow),
        ("tf/ckpt-1", "`ckpt-1.index`", tensorflow),
        ("torch", "`model.pt`", pytorch),
        ("torch/model.pt", "`model.pt`", pytorch),
    ] {
        let path = folder.path(name);
        refused(&speak(&path, &folder), &["--checkpoint: ", file, program]);
        let resumed = command("--max-steps 1", &folder.path("fresh")).arg("--resume").arg(&path).run();
        refused(&resumed, &["--resume: ", file, program]);
        if path.is_dir() {
            refused(&command("--max-steps 1", &path).run(), &["--checkpoint-dir: ", file, program, "--reset-training"]);
        }
    }
    for name in names.map(|name| format!("tf/{name}")).into_iter().chain(["torch/model.pt".to_owned()]) {
        assert_eq!(fs::read(folder.path(&name)).unwrap(), b"x", "{name} is unchanged");
    }
}

#[test]
fn a_second_run_in_the_same_folder_is_refused() {
    let folder = TempFolder::new();
    let run = folder.path("run");
    let mut first = command("--max-steps 100000", &run).into_std().stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(first.stdout.take().unwrap()).lines().map_while(Result::ok);
    let started = lines.any(|line| line.contains("Model training starting now"));
    let second = command("--max-steps 1", &run).run();
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(started);
    let owner = format!("another training run has this folder open (process {}", first.id());
    refused(&second, &["--checkpoint-dir: ", &owner, "give another folder"]);
}

/// Two hours of speech. Chunks are written as they are synthesised, so this fails at the size limit, in the first minute and a
/// half. An incomplete file gets no name.
#[test]
fn a_text_of_a_hundred_thousand_characters_is_synthesised_chunk_by_chunk() {
    let folder = TempFolder::new();
    let run = folder.path("run");
    trained("--max-steps 1", &run);
    let sentence = "The quick brown fox jumps over the lazy dog, and that is that. ";
    let text: String = sentence.chars().cycle().take(100_000).collect();
    let file = folder.file("spoken/long.txt", text);
    let out = folder.path("spoken/out.wav");
    let long = TandemCommand::new("synthesize --mode cpu --text-file").arg(file).arg("--checkpoint").arg(&run);
    let ran = with_file_size_limit(long.arg("-o").arg(&out), 4096);
    assert_eq!(ran.code, 1, "{ran:?}");
    contains(&ran.err, &["the speech could not be written: File too large"]);
    contains(&ran.out, &["Synthesising on the CPU"]);
    assert_eq!(fs::read_dir(folder.path("spoken")).unwrap().count(), 1, "only the text");
}
