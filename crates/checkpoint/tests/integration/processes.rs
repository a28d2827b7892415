//! Promises between processes, and after a kill. Each test starts itself again as the other process, which reports
//! through its output.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tandem_checkpoint::{
    Checkpoint, CheckpointError, Dtype, NewCheckpoint, OpenMode, RunFolder, RunIdentity, TensorRef, latest_intact,
};

use crate::support::custom_model;

const FOLDER: &str = "TANDEM_TEST_RUN_FOLDER";

/// The folder to work on, if this process is the other process of a test.
fn folder_to_work_on() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// The test `test` again, as another process that works on `dir`. `prepare` is shell code that runs before it.
fn again(test: &str, dir: &Path, prepare: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{prepare} exec \"$0\" \"$@\"")]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", &format!("processes::{test}"), "--nocapture"]).env(FOLDER, dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn open(dir: &Path, mode: OpenMode) -> Result<RunFolder, CheckpointError> {
    RunFolder::open(dir, &RunIdentity::new().with("model", "nano"), mode)
}

/// The bytes of a step's weights.
fn pattern(step: u64, num_bytes: usize) -> Vec<u8> {
    (0..num_bytes as u64).map(|index| (index * 7 + step * 13) as u8).collect()
}

fn save(folder: &RunFolder, step: u64, num_bytes: usize) -> Result<(), CheckpointError> {
    let bytes = pattern(step, num_bytes);
    let tensor = TensorRef { name: "w", dtype: Dtype::F32, shape: &[num_bytes / 4], bytes: &bytes };
    let (weights, optimizer) = (&[tensor], &[tensor]);
    let (state, model) = (json!({ "cursor": step }), &custom_model("processes"));
    // The scores fall and rise, so that the best is sometimes old.
    let score = Some((step % 7) as f64);
    folder.write(&NewCheckpoint { step, weights, optimizer, state, model, score }).map(|_| ())
}

fn assert_intact(checkpoint: &Checkpoint) {
    let bytes = checkpoint.weights.read("w").unwrap();
    assert!(bytes == pattern(checkpoint.step, bytes.len()), "{} has the weights of another step", checkpoint.step);
    assert_eq!(checkpoint.optimizer.read("w").unwrap(), bytes);
    assert_eq!(checkpoint.state["cursor"], checkpoint.step);
}

/// Reads up to the line that contains `word`, and returns the number after it. `None` at the end.
fn wait_for(lines: &mut impl BufRead, word: &str) -> Option<u64> {
    let mut line = String::new();
    while lines.read_line(&mut line).unwrap() > 0 {
        // The line may start with output of the test harness.
        if let Some((_, number)) = line.split_once(word) {
            return number.trim().parse().ok();
        }
        line.clear();
    }
    None
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_second_process_is_refused_with_the_number_of_the_first() {
    if let Some(dir) = folder_to_work_on() {
        let _folder = open(&dir, OpenMode::Resume).unwrap();
        println!("open 1");
        // Until it is killed.
        let _ = std::io::stdin().read(&mut [0]);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let test = "a_second_process_is_refused_with_the_number_of_the_first";
    let mut child = again(test, dir.path(), "").spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    assert_eq!(wait_for(&mut lines, "open"), Some(1));
    let error = open(dir.path(), OpenMode::Resume).unwrap_err().to_string();
    let number = format!("(process {} on ", child.id());
    assert!(error.contains(&number) && error.contains("--checkpoint-dir"), "{error}");
    kill(child);
    drop(open(dir.path(), OpenMode::Resume).unwrap());
}

/// Writes checkpoints until it is killed: every step twice, so that some are replaced.
fn write_until_killed(dir: &Path) {
    println!("started 0");
    let folder = open(dir, OpenMode::Resume).unwrap();
    let newest = latest_intact(dir).unwrap();
    let first = newest.checkpoint.map_or(0, |checkpoint| checkpoint.step);
    for step in first.. {
        for _ in 0..2 {
            save(&folder, step, 64 << 10).unwrap();
            println!("written {step}");
        }
    }
}

#[test]
fn a_writer_killed_at_any_time_leaves_only_intact_checkpoints() {
    if let Some(dir) = folder_to_work_on() {
        return write_until_killed(&dir);
    }
    let test = "a_writer_killed_at_any_time_leaves_only_intact_checkpoints";
    let dir = tempfile::tempdir().unwrap();
    let (mut random, mut interrupted) = (0x9e37_79b9_7f4a_7c15_u64, 0);
    for round in 0..40 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let mut child = again(test, dir.path(), "").spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut written = None;
        assert_eq!(wait_for(&mut lines, "started"), Some(0));
        for _ in 0..(random >> 60) {
            written = Some(wait_for(&mut lines, "written").unwrap());
        }
        // Any time will do: this spreads the kills over what the writer does next.
        let until = Instant::now() + Duration::from_micros((random >> 32) % 12_000);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        kill(child);
        interrupted += usize::from(names(dir.path()).iter().any(|name| name.starts_with(".tmp-")));
        let newest = check_all(dir.path());
        assert!(newest >= written, "round {round}: {written:?} was written, {newest:?} was found");
    }
    // Not a matter of luck: the writer does nothing else, and has already written up to 15 times.
    println!("{interrupted} of 40 kills left something unfinished");
    assert!(interrupted > 0, "no kill interrupted a write");
}

fn names(dir: &Path) -> Vec<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Checks that every checkpoint is intact and that there are not too many. Returns the newest step.
fn check_all(dir: &Path) -> Option<u64> {
    let paths: Vec<_> = names(dir).iter().filter(|n| n.starts_with("checkpoint-")).map(|n| dir.join(n)).collect();
    assert!(paths.len() <= 5, "{paths:?}");
    paths.iter().for_each(|path| assert_intact(&Checkpoint::open(path).unwrap()));
    let newest = latest_intact(dir).unwrap();
    assert!(newest.skipped.is_empty(), "{:?}", newest.skipped);
    newest.checkpoint.map(|checkpoint| checkpoint.step)
}

#[test]
fn a_reset_killed_at_any_time_loses_nothing() {
    if let Some(dir) = folder_to_work_on() {
        for step in 1.. {
            let folder = open(&dir, OpenMode::Reset).unwrap();
            save(&folder, step, 1024).unwrap();
            println!("written {step}");
        }
    }
    let test = "a_reset_killed_at_any_time_loses_nothing";
    for round in 0..12_u64 {
        let dir = tempfile::tempdir().unwrap();
        let mut child = again(test, dir.path(), "").spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        for step in 1..=1 + round % 4 {
            assert_eq!(wait_for(&mut lines, "written"), Some(step));
        }
        let until = Instant::now() + Duration::from_micros(round * 311);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        kill(child);
        let resumed = open(dir.path(), OpenMode::Resume);
        assert!(matches!(resumed, Ok(_) | Err(CheckpointError::InTheWay { .. })), "{resumed:?}");
        drop(resumed);
        drop(open(dir.path(), OpenMode::Reset).unwrap());
        let previous = names(dir.path()).into_iter().filter(|name| name.starts_with("previous-"));
        let mut found: Vec<_> = previous.filter_map(|name| check_all(&dir.path().join(name))).collect();
        found.sort_unstable();
        let at_least: Vec<_> = (1..=1 + round % 4).collect();
        assert!(found.starts_with(&at_least), "{found:?}, {at_least:?}");
    }
}

#[test]
fn a_disk_full_half_way_leaves_the_previous_checkpoint_intact() {
    const LARGE_BYTES: usize = 4 << 20;
    if let Some(dir) = folder_to_work_on() {
        let folder = open(&dir, OpenMode::Resume).unwrap();
        save(&folder, 1, 1024).unwrap();
        let error = save(&folder, 2, LARGE_BYTES).unwrap_err();
        println!("{error}");
        let CheckpointError::NoRoom { needed_bytes, free_bytes, .. } = error else { panic!("{error:?}") };
        assert!(needed_bytes > 2 * LARGE_BYTES as u64 && free_bytes.is_some_and(|free| free > 0));
        assert!(!names(&dir).iter().any(|name| name.starts_with(".tmp-")), "{:?}", names(&dir));
        save(&folder, 3, 1024).unwrap();
        println!("done 1");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let test = "a_disk_full_half_way_leaves_the_previous_checkpoint_intact";
    // No file past 256 KiB (or 512, by the shell), and the error in place of the signal that ends a process for it.
    let child = again(test, dir.path(), "ulimit -f 512; trap '' XFSZ;").spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    let [out, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success() && out.contains("done 1"), "{out}{errors}");
    assert!(out.contains("no room for a checkpoint: "), "{out}");
    assert_eq!(check_all(dir.path()), Some(3));
    assert!(dir.path().join("checkpoint-00000001").is_dir());
}
