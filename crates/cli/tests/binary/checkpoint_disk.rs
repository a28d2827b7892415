//! The plan shows what the checkpoints of a run take and what is free on the disk, and refuses what cannot fit.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tandem_test_support::skip;

use crate::command::{Ran, SMALL, TandemCommand, contains, texts};
use crate::machine::TempFolder;
use crate::speech::demo;

const NANO: &str = "--mode cpu --model-size nano --batch-size 2 --buffer-size 3 --num-workers 1";

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

fn bytes_in(folder: &Path) -> u64 {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

fn run(command: &str, folder: &TempFolder) -> Ran {
    TandemCommand::new(command).arg("--train-data").arg(demo()).inside(folder).run()
}

#[test]
fn a_plan_shows_the_bytes_of_its_checkpoints_and_what_is_free() {
    let folder = TempFolder::new();
    let plan = |flags: &str| {
        let ran = run(&format!("plan {NANO} --checkpoint-dir run --json {flags}"), &folder);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.json()["checkpoints"].clone()
    };
    let before = plan("");
    let each = number(&before["each_bytes"]);
    assert_eq!((number(&before["kept_bytes"]), number(&before["peak_bytes"])), (4 * each, 5 * each));
    assert_eq!((number(&before["present"]), number(&before["needed_bytes"])), (0, 5 * each + (32 << 20)));
    assert!(number(&before["free_bytes"]) > 0);
    let shown = run(&format!("plan {NANO} --checkpoint-dir run"), &folder).out;
    contains(&shown, &["Checkpoints: ", " MB each, the last 3 and the best are kept: ", " MB free: run\n"]);

    // The plan is what a run writes, and a little more for names.
    let ran = run(&format!("train {NANO} --checkpoint-dir run --max-steps 2 --checkpoint-every 1"), &folder);
    assert_eq!(ran.code, 0, "{ran:?}");
    let [first, last] = [1, 2].map(|step| bytes_in(&folder.path(&format!("run/checkpoint-0000000{step}"))));
    assert!(last <= each && each <= last + (2 << 20), "{last} {each}");
    // A resumed run replaces the checkpoints that are there; one from step 0, or from an earlier step, moves them aside.
    let check = |flags: &str, count: u64, bytes: u64| {
        let found = plan(flags);
        assert_eq!((number(&found["present"]), number(&found["present_bytes"])), (count, bytes), "{flags}");
        assert_eq!(number(&found["needed_bytes"]), 5 * each - bytes + (32 << 20), "{flags}");
    };
    check("", 2, first + last);
    check("--resume", 2, first + last);
    check("--resume run/checkpoint-00000001", 1, first);
    check("--reset-training", 0, 0);
}

/// Runs command lines one after the other in `folder`, whose `small/` is a disk of `size`. None, and a note, where mounting is
/// not permitted.
fn on_small_disk(folder: &TempFolder, size: &str, lines: &[String]) -> Option<Vec<Ran>> {
    let disk = folder.path("small");
    fs::create_dir_all(&disk).unwrap();
    let mut script = format!("mount -t tmpfs -o size={size} tmpfs small || exit 99\n");
    for (at, line) in lines.iter().enumerate() {
        script += &format!("\"$TANDEM\" {line} > out.{at} 2> err.{at}; echo $? > code.{at}\n");
    }
    let mounted = Command::new("unshare")
        .args(["-rm", "sh", "-c", &script])
        .current_dir(folder.path(""))
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("LANG", "C.UTF-8")
        .env("TANDEM", env!("CARGO_BIN_EXE_tandem"))
        .output();
    match mounted {
        Ok(output) if output.status.success() => {}
        other => {
            skip("TANDEM_REQUIRE_MOUNT", "checkpoints on a full disk", &format!("a disk cannot be mounted: {other:?}"));
            return None;
        }
    }
    let read = |name: &str, at: usize| fs::read_to_string(folder.path(&format!("{name}.{at}"))).unwrap();
    let ran =
        |at: usize| Ran { code: read("code", at).trim().parse().unwrap(), out: read("out", at), err: read("err", at) };
    Some((0..lines.len()).map(ran).collect())
}

#[test]
fn checkpoints_that_cannot_fit_are_refused_before_anything_is_written() {
    let folder = TempFolder::new();
    let run = format!("{NANO} --train-data {} --checkpoint-dir small/run", demo().display());
    let lines = [
        format!("plan {run} --json"),
        format!("plan {run}"),
        format!("train {run}"),
        "synthesize --checkpoint small/run --text hello -o out.wav".to_owned(),
        format!("train {run} --max-steps 1"),
        format!("train {run} --max-steps 2"),
        format!("train {run} --max-steps 50"),
        format!("plan {run} --sim 1x24GiB --json").replace("--mode cpu", ""),
        format!("validate --sim 1x24GiB {SMALL} --checkpoint-dir small/run"),
    ];
    let Some(ran) = on_small_disk(&folder, "100m", &lines) else { return };
    let refusal = ran[0].json();
    assert_eq!((ran[0].code, &refusal["reason"]), (2, &Value::from("disk")), "{refusal}");
    let message = [
        "❌ The checkpoints of this run do not fit on the disk of --checkpoint-dir",
        " MB each, the last 3 and the best are kept: ",
        " more are needed and 100 MB are free: small/run",
        " there, or give a folder on another disk: --checkpoint-dir FOLDER",
    ];
    contains(refusal["error"].as_str().unwrap(), &message);
    for ran in &ran[1..3] {
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{ran:?}");
        contains(&ran.err, &message);
    }
    // Nothing was written by the refused run.
    assert_eq!(ran[3].code, 2, "{:?}", ran[3]);
    contains(&ran[3].err, &["small/run"]);
    // A run that writes one checkpoint fits, and so does the next step, which knows what is there. Fifty do not.
    for ran in &ran[4..6] {
        assert_eq!(ran.code, 0, "{ran:?}");
    }
    assert_eq!(ran[6].code, 2, "{:?}", ran[6]);
    contains(&ran[6].err, &["of which 2 with "]);
    // A plan for a machine that is not here shows it with a warning; a command that writes no checkpoints ignores it.
    let notes = ran[7].json()["notes"].clone();
    assert!(texts(&notes).iter().any(|note| note.contains("do not fit on the disk of this machine")), "{notes}");
    assert_eq!(ran[8].code, 0, "{:?}", ran[8]);
}
