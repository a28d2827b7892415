//! Checkpoints that cannot be written or read: what is there stays usable, and what is said names the way on.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::call::{Ran, TandemCall, contains};
use crate::machine::TempFolder;
use crate::speech::demo;

const SHORT: &str = "train --model-size nano --batch-size 2 --mode cpu --buffer-size 4 --max-mel-frames 300";

fn call(flags: &str, run: &Path) -> TandemCall {
    TandemCall::new(&format!("{SHORT} {flags}")).arg("--train-data").arg(demo()).arg("--checkpoint-dir").arg(run)
}

#[track_caller]
fn trained(flags: &str, run: &Path) -> Ran {
    let ran = call(flags, run).run();
    assert_eq!(ran.code, 0, "{flags}: {ran:?}");
    ran
}

#[track_caller]
fn refused(ran: &Ran, said: &[&str]) {
    assert_eq!(ran.code, 2, "{ran:?}");
    contains(&ran.err, said);
    assert!(!ran.out.contains("✅"), "{ran:?}");
}

/// The same call with no file past `kib`: what a full disk is to a writer, without one.
fn with_little_room(call: TandemCall, kib: u32) -> Ran {
    let inner = call.into_command();
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
    TandemCall::new("synthesize --mode cpu --text hello --checkpoint")
        .arg(checkpoint)
        .arg("-o")
        .arg(folder.path("out.wav"))
        .run()
}

#[test]
fn where_there_is_no_room_the_checkpoint_before_stays_and_speaks() {
    let folder = TempFolder::new();
    let run = folder.path("run");
    trained("--max-steps 2", &run);
    // A file of tensors takes 15 MB.
    let ran = with_little_room(call("--max-steps 4", &run), 4096);
    assert_eq!(ran.code, 1, "{ran:?}");
    contains(&ran.err, &["no room for a checkpoint: ", " needed, ", "earlier checkpoints are untouched", "run"]);
    assert_eq!(checkpoints(&run), ["checkpoint-00000002"], "nothing is left of the one that was begun");
    let spoken = speak(&run, &folder);
    assert_eq!(spoken.code, 0, "{spoken:?}");
    contains(&spoken.out, &["checkpoint-00000002"]);

    contains(&trained("--max-steps 4", &run).out, &["Going on from step 2", "✅ Trained to step 4"]);
    let spoken =
        with_little_room(TandemCall::new("synthesize --mode cpu --text hello -o out.wav --checkpoint").arg(&run), 4);
    assert_eq!(spoken.code, 1, "{spoken:?}");
    contains(&spoken.err, &["File too large"]);
    assert!(!Path::new("out.wav").exists());
}

#[test]
fn a_checkpoint_of_another_size_is_named_by_its_size() {
    let folder = TempFolder::new();
    let (run, other) = (folder.path("run"), folder.path("other"));
    trained("--max-steps 1", &run);
    let again = || call("--max-steps 2", &other).arg("--resume").arg(run.join("checkpoint-00000001"));
    let larger = again().into_command();
    let args = larger.get_args().map(|arg| if arg == "nano" { OsStr::new("tiny") } else { arg });
    refused(&TandemCall::new("").args(args).run(), &["it is of a nano model, this run is tiny", "--model-size nano"]);
    // With the size it names it goes on, in the same folder once what was begun there is moved aside.
    let ran = again().arg("--reset-training").run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["Going on from step 1", "✅ Trained to step 2"]);
}

#[test]
fn when_every_checkpoint_is_damaged_that_is_said_before_it_begins_anew() {
    let folder = TempFolder::new();
    let run = folder.path("run");
    trained("--max-steps 2 --checkpoint-every 1", &run);
    for step in 1..=2 {
        fs::write(run.join(format!("checkpoint-0000000{step}/weights.safetensors")), b"x").unwrap();
    }
    let spoken = speak(&run, &folder);
    assert_ne!(spoken.code, 0, "{spoken:?}");
    contains(&spoken.err, &["passed over", "checkpoint-00000001", "checkpoint-00000002"]);

    let ran = trained("--max-steps 3", &run);
    contains(&ran.err, &["passed over", "checkpoint-00000001", "checkpoint-00000002", "begins anew"]);
    assert!(!ran.out.contains("Going on from"), "{ran:?}");
    assert_eq!(speak(&run, &folder).code, 0);
}

#[test]
fn checkpoints_of_other_programs_are_known_wherever_they_are_given() {
    let folder = TempFolder::new();
    let names = ["checkpoint", "ckpt-1.index", "ckpt-1.data-00000-of-00001"];
    for name in names {
        folder.file(&format!("tf/{name}"), b"x");
    }
    folder.file("torch/model.pt", b"x");
    let tensorflow = "is a checkpoint of TensorFlow, which cannot be read here";
    let pytorch = "is a checkpoint of PyTorch, which cannot be read here";
    for (name, file, said) in [
        ("tf", "`checkpoint`", tensorflow),
        ("tf/ckpt-1", "`ckpt-1.index`", tensorflow),
        ("torch", "`model.pt`", pytorch),
        ("torch/model.pt", "`model.pt`", pytorch),
    ] {
        let path = folder.path(name);
        refused(&speak(&path, &folder), &["--checkpoint: ", file, said]);
        let resumed = call("--max-steps 1", &folder.path("fresh")).arg("--resume").arg(&path).run();
        refused(&resumed, &["--resume: ", file, said]);
        if path.is_dir() {
            refused(&call("--max-steps 1", &path).run(), &["--checkpoint-dir: ", file, said, "--reset-training"]);
        }
    }
    for name in names.map(|name| format!("tf/{name}")).into_iter().chain(["torch/model.pt".to_owned()]) {
        assert_eq!(fs::read(folder.path(&name)).unwrap(), b"x", "{name} is as it was");
    }
}

#[test]
fn a_second_run_is_kept_out_of_the_folder_of_the_first() {
    let folder = TempFolder::new();
    let run = folder.path("run");
    let mut first = call("--max-steps 100000", &run).into_command().stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(first.stdout.take().unwrap()).lines().map_while(Result::ok);
    let started = lines.any(|line| line.contains("Model training starting now"));
    let second = call("--max-steps 1", &run).run();
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(started);
    let holder = format!("another training run has this folder open (process {}", first.id());
    refused(&second, &["--checkpoint-dir: ", &holder, "give another folder"]);
}

/// Two hours of speech: pieces go to the file as they are made, so that this one ends where the room does, in its first
/// minute and a half. What cannot be written in whole gets no name.
#[test]
fn a_hundred_thousand_characters_are_said_piece_by_piece() {
    let folder = TempFolder::new();
    let run = folder.path("run");
    trained("--max-steps 1", &run);
    let sentence = "The quick brown fox jumps over the lazy dog, and that is that. ";
    let text: String = sentence.chars().cycle().take(100_000).collect();
    let file = folder.file("spoken/long.txt", text);
    let out = folder.path("spoken/out.wav");
    let long = TandemCall::new("synthesize --mode cpu --text-file").arg(file).arg("--checkpoint").arg(&run);
    let ran = with_little_room(long.arg("-o").arg(&out), 4096);
    assert_eq!(ran.code, 1, "{ran:?}");
    contains(&ran.err, &["the speech could not be written: File too large"]);
    contains(&ran.out, &["Speaking on the CPU"]);
    assert_eq!(fs::read_dir(folder.path("spoken")).unwrap().count(), 1, "the text alone");
}
