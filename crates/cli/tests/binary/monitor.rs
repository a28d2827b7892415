//! `tandem monitor`: shows a live run and a finished one, in a terminal and as text, without affecting it.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use crate::command::{Ran, TandemCommand, contains, in_order};
use crate::machine::TempFolder;
use crate::speech::demo;
use crate::terminal::{TestTerminal, eventually};

const RUN: &str = "--model-size nano --batch-size 4 --mode cpu --buffer-size 6 --num-workers 2";
/// A run that does not finish during a test.
const LONG: &str = "--max-steps 1000000 --checkpoint-every 1000000";

fn train(line: &str, dir: &Path) -> TandemCommand {
    TandemCommand::new(&format!("train {RUN} {line}")).arg("--train-data").arg(demo()).arg("--checkpoint-dir").arg(dir)
}

#[track_caller]
fn trained(line: &str, dir: &Path) {
    let ran = train(line, dir).run();
    assert_eq!(ran.code, 0, "{ran:?}");
}

/// A run that has done its first steps.
fn stepping(line: &str, dir: &Path) -> Child {
    let mut child = train(line, dir).into_std().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    eventually(|| {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before its first step");
        if steps_in(dir) < 2 { Err("no step yet".to_owned()) } else { Ok(()) }
    });
    child
}

/// Steps in the log, which may not exist yet.
fn steps_in(dir: &Path) -> usize {
    let log = fs::read(dir.join("run.jsonl")).unwrap_or_default();
    String::from_utf8_lossy(&log).matches("\"event\":\"step\"").count()
}

fn once(run: &Path) -> Ran {
    TandemCommand::new("monitor --once").arg(run).run()
}

/// The command line of a monitor, for a shell.
fn monitor(run: &Path) -> String {
    format!("LANG=C.UTF-8 '{}' monitor '{}'", env!("CARGO_BIN_EXE_tandem"), run.display())
}

#[test]
fn a_finished_run_is_printed_in_80_columns() {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    trained("--max-steps 8 --checkpoint-every 4", &dir);
    trained("--max-steps 12 --checkpoint-every 4", &dir);
    // A relative path: a long one would wrap the line.
    let ran = TandemCommand::new("monitor --once run").inside(&folder).run();
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    in_order(
        &ran.out,
        &[
            "Run:        run/run.jsonl (train, cpu, nano, batch 4)\n",
            "State:      ended: done\n",
            "Step:       12 of 12, epoch ",
            "Speed:      ",
            " steps/s, stall ",
            "Loss:       loss ",
            "Data:       on the CPU: ",
            " MB",
            "busy ",
            "power —",
            "Model:      on the CPU: ",
            "Stages:     ms",
            "features ",
            "train ",
            "Slots:      ",
            "decode threads, handover",
            "Validation: step 12, ",
            "mel L1 0.",
            "Saved:      checkpoint of step 12",
            "Alarms:     none",
        ],
    );
    let long: Vec<&str> = ran.out.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(long.is_empty(), "{long:?}");

    contains(&once(&dir.join("run-1.jsonl")).out, &["Step:       8 of 8,", "State:      ended: done\n"]);
    let plain = TandemCommand::new("monitor --once").env("LANG", "C").arg(&dir).run();
    assert!(plain.code == 0 && plain.out.is_ascii(), "{plain:?}");
    let usual = TandemCommand::new("monitor --once").inside(&folder).run();
    contains(&usual.err, &["does not exist: checkpoints"]);
}

#[test]
fn a_live_run_and_a_killed_one_are_distinguished() {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    let mut child = stepping(LONG, &dir);
    let running = once(&dir);
    child.kill().unwrap();
    child.wait().unwrap();
    contains(&running.out, &["State:      running"]);
    contains(&once(&dir).out, &["State:      killed (no end in the log)"]);
    // A log outside the folder of a run has no lock to look at.
    let copy = folder.file("copy.jsonl", fs::read(dir.join("run.jsonl")).unwrap());
    contains(&once(&copy).out, &["State:      unknown, no end in the log"]);
}

#[test]
fn other_logs_are_shown_too() {
    let folder = TempFolder::new();
    let log = folder.path("validated.jsonl");
    let line = "validate --sim 1x24GiB --model-size nano --batch-size 2 --buffer-size 4 --max-mel-frames 200 --run-log";
    assert_eq!(TandemCommand::new(line).arg(&log).run().code, 0);
    // A relative path: a long one would wrap the line.
    let ran = TandemCommand::new("monitor --once validated.jsonl").inside(&folder).run();
    contains(
        &ran.out,
        &[
            "Run:        validated.jsonl (validate, single, simulated, nano, batch 2)\n",
            "ended: all checks passed",
            "Checks:     ",
            " passed, 0 failed",
            "Alarms:     none",
        ],
    );
}

/// A log of 200 steps, 100 an epoch: in the first one every second step waits for decoding.
fn log_with_slow_first_epoch(cached_from_epoch: Value) -> String {
    let (mut t_ns, mut lines) = (0, Vec::new());
    let mut record = |t_ns: u64, mut event: Value| {
        let header = json!({ "v": 2, "seq": lines.len(), "t_ns": t_ns, "dropped": 0 });
        event.as_object_mut().unwrap().extend(header.as_object().unwrap().clone());
        lines.push(event.to_string());
    };
    record(0, json!({ "event": "buffer_wait", "ready": 4, "of": 4, "ns": 1, "cached_from_epoch": cached_from_epoch }));
    for step in 1..=200_u64 {
        let wait_ns = if step <= 100 && step.is_multiple_of(2) { 20_000_000 } else { 0 };
        t_ns += 10_000_000 + wait_ns;
        record(t_ns, json!({ "event": "step", "step": step, "wall_ns": 10_000_000 + wait_ns, "wait_ns": wait_ns }));
        let losses = json!({ "loss": 1.0 });
        record(
            t_ns,
            json!({ "event": "step_metrics", "step": step, "epoch": (step - 1) / 100, "losses": losses,
                "gradient_norm": 1.0, "lr": 1e-3, "skipped": false }),
        );
    }
    lines.join("\n") + "\n"
}

#[test]
fn waiting_for_a_cache_that_fills_is_no_alarm() {
    let folder = TempFolder::new();
    let alarms = |cached_from_epoch: Value| {
        let log = folder.file("run.jsonl", log_with_slow_first_epoch(cached_from_epoch));
        let document = TandemCommand::new("monitor --json").arg(log).run().json();
        assert_eq!(document["step"], 200, "{document}");
        document["alarms"].as_array().unwrap().clone()
    };
    assert_eq!(alarms(json!(1)), [] as [Value; 0]);
    let without_cache = alarms(Value::Null);
    assert!(without_cache[0]["text"].as_str().unwrap().starts_with("step time varies by "), "{without_cache:?}");
}

#[test]
fn other_files_are_refused_with_what_to_type() {
    let folder = TempFolder::new();
    let refused = |run: &Path, code: i32, parts: &[&str]| {
        let ran = once(run);
        assert_eq!((ran.code, ran.out.as_str()), (code, ""), "{ran:?}");
        contains(&ran.err, &["❌ "]);
        contains(&ran.err, parts);
    };
    refused(&folder.path("nowhere"), 2, &["--checkpoint-dir", "does not exist", "nowhere"]);
    refused(&folder.path(""), 2, &["no run log (run.jsonl) in this folder", "tandem monitor FILE"]);
    refused(&folder.file("text", "no log\n"), 2, &["not a run log", "line 1 is not a record", "text"]);
    refused(&folder.file("bytes", [0, 255, 10, 7]), 2, &["not a run log"]);
    let newer = r#"{"v":9,"seq":0,"t_ns":5,"dropped":0,"event":"run_started"}"#;
    refused(&folder.file("newer", format!("{newer}\n")), 1, &["written by a newer tandem", "format is 9"]);
    let empty = once(&folder.file("empty", ""));
    assert_eq!(empty.code, 0, "{empty:?}");
    contains(&empty.out, &["State:      no records yet"]);
}

#[test]
fn without_a_terminal_the_plain_text_flag_is_suggested() {
    let folder = TempFolder::new();
    folder.file("a run/run.jsonl", "");
    let ran = TandemCommand::new("monitor").arg(folder.path("a run")).run();
    assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{ran:?}");
    let typed = format!("for plain text: tandem monitor '{}' --once", folder.path("a run").display());
    contains(&ran.err, &["❌ ", "monitor needs a terminal", &typed]);
}

/// The step on the screen.
fn step_on(screen: &str) -> u64 {
    let after = screen.split(" Step ").nth(1).unwrap();
    after.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_run_is_shown_live_in_a_terminal_and_continues_without_it() {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    let mut child = stepping(LONG, &dir);
    let Some(terminal) = TestTerminal::run(&monitor(&dir), (120, 40)) else {
        child.kill().unwrap();
        child.wait().unwrap();
        return;
    };
    let all = ["tandem monitor", "● running", " of 1000000", "Data on the CPU", "Stages", "Slots", "loss ", "q quits"];
    let first = step_on(&terminal.until(&all));
    // Live: the step advances.
    eventually(|| match step_on(&terminal.until(&all)) {
        step if step < first + 2 => Err(format!("still at step {step}")),
        _ => Ok(()),
    });
    for (width, height) in [(80, 24), (40, 10), (80, 24)] {
        terminal.resize(width, height);
        let frames =
            if height > 20 { "┌ Stages ───────────────" } else { "steps/s, stall" };
        let screen = terminal.until(&["running", "q quits", frames]);
        let lines: Vec<&str> = screen.lines().collect();
        assert!(lines.len() <= usize::from(height), "{screen}");
        assert!(lines.iter().all(|line| line.chars().count() <= usize::from(width)), "{screen}");
    }
    terminal.press("q");
    terminal.until(&["ended with 0", "icanon"]);
    terminal.is_restored();
    let steps = steps_in(&dir);
    eventually(|| {
        assert!(child.try_wait().unwrap().is_none(), "the run ended with the monitor");
        if steps_in(&dir) < steps + 2 { Err("no more steps".to_owned()) } else { Ok(()) }
    });
    let pid = child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130), "a clean stop");
    contains(&once(&dir).out, &["State:      ended: stopped (exit code 130)\n"]);
}

#[test]
fn a_restarted_run_is_followed() {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    trained("--max-steps 2", &dir);
    let Some(terminal) = TestTerminal::run(&monitor(&dir), (80, 24)) else { return };
    terminal.until(&["Step 2 of 2,", "ended: done"]);
    trained("--max-steps 5", &dir);
    terminal.until(&["Step 5 of 5,", "ended: done"]);
    terminal.press("Escape");
    terminal.until(&["ended with 0", "icanon"]);
    terminal.is_restored();
}

#[test]
fn signals_and_ctrl_c_restore_the_terminal() {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    trained("--max-steps 1", &dir);
    for (signal, code) in [("-TERM", 143), ("-INT", 130)] {
        let Some(terminal) = TestTerminal::run(&monitor(&dir), (80, 24)) else { return };
        terminal.until(&["ended: done", "q quits"]);
        let killed = std::process::Command::new("kill").args([signal, &terminal.child()]).status().unwrap();
        assert!(killed.success());
        terminal.until(&[&format!("ended with {code}"), "icanon"]);
        terminal.is_restored();
    }
    // A hangup: the process ends.
    let Some(terminal) = TestTerminal::run(&monitor(&dir), (80, 24)) else { return };
    terminal.until(&["ended: done", "q quits"]);
    let process = Path::new("/proc").join(terminal.child());
    drop(terminal);
    eventually(|| if process.exists() { Err(format!("{} still runs", process.display())) } else { Ok(()) });
    let Some(terminal) = TestTerminal::run(&monitor(&dir), (80, 24)) else { return };
    terminal.until(&["ended: done", "q quits"]);
    terminal.press("C-c");
    terminal.until(&["ended with 0", "icanon"]);
    terminal.is_restored();
}
