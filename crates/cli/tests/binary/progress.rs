//! Progress of a run: one live line on a terminal, above which events scroll; elsewhere a line every ten seconds at most.

use std::process::Command;
use std::time::Instant;

use crate::command::{TandemCommand, contains, in_order};
use crate::machine::TempFolder;
use crate::speech::eight_tones;
use crate::terminal::{TestTerminal, eventually};

const FAST: &str = "train --mode cpu --model-size nano --batch-size 1 --buffer-size 4 --num-workers 1";

/// The command line of a run, for a shell.
fn typed(flags: &str, corpus: &TempFolder) -> String {
    let (program, data) = (env!("CARGO_BIN_EXE_tandem"), corpus.path(""));
    let run = corpus.path("run");
    format!(
        "env LANG=C.UTF-8 NO_COLOR=1 '{program}' {FAST} {flags} --train-data '{}' --checkpoint-dir '{}'",
        data.display(),
        run.display()
    )
}

/// Lines of the live line: no other has a bar.
fn bars(screen: &str) -> Vec<&str> {
    screen.lines().filter(|line| line.contains(['█', '░'])).collect()
}

#[test]
fn on_a_terminal_progress_is_one_live_line_and_events_scroll_above_it() {
    let corpus = eight_tones();
    // A thread of the run log warns while the run continues.
    let flags = "--epochs 1000000 --max-steps 1000000 --checkpoint-every 60 --run-log /dev/full";
    let Some(terminal) = TestTerminal::run(&typed(flags, &corpus), (110, 50)) else { return };
    terminal.until(&["/1000000  loss ", " steps/s  stall ", " left"]);
    eventually(|| {
        let history = terminal.history();
        let is_there = ["Wrote checkpoint-00000180", "Validation after step ", "the run log is incomplete"]
            .iter()
            .all(|event| history.contains(event));
        is_there.then_some(()).ok_or(history)
    });
    // A snapshot may fall between a warning, which has a stream of its own, and the line below it.
    eventually(|| {
        let history = terminal.history();
        let bars = bars(&history);
        assert!(bars.len() <= 1, "redrawn in place: {history}");
        assert!(!history.lines().any(|line| line.starts_with("Step ") || line.starts_with("[Step ")), "{history}");
        let Some(bar) = bars.first().filter(|bar| history.lines().last() == Some(*bar)) else { return Err(history) };
        contains(bar, &["/1000000  loss ", " steps/s  stall ", " %  ", " left"]);
        assert!(bar.chars().count() < 110, "{history}");
        Ok(())
    });
    // A narrow terminal shows the same with a shorter bar.
    terminal.resize(80, 24);
    eventually(|| {
        let screen = terminal.screen();
        let is_whole = bars(&screen).last().is_some_and(|line| line.contains("  loss ") && line.ends_with(" left"));
        is_whole.then_some(()).ok_or(screen)
    });
    terminal.press("C-c");
    terminal.until(&["ended with 130"]);
    let history = terminal.history();
    in_order(&history, &["Step ", "/1000000  loss ", "Stopping: writing a checkpoint", "Stopped after step "]);
    // What a resize has wrapped stays where it was.
    let (_, end) = history.split_once("Stopping: writing a checkpoint").unwrap();
    assert!(bars(end).is_empty(), "the live line is erased: {history}");
}

#[test]
fn the_live_line_is_gone_when_the_run_ends() {
    let corpus = eight_tones();
    let Some(terminal) = TestTerminal::run(&typed("--max-steps 240 --checkpoint-every 60", &corpus), (100, 50)) else {
        return;
    };
    terminal.until(&["ended with 0"]);
    let history = terminal.history();
    assert!(bars(&history).is_empty(), "{history}");
    let steps: Vec<&str> = history.lines().filter(|line| line.starts_with("Step ")).collect();
    assert_eq!(steps.len(), 1, "{history}");
    contains(steps[0], &["Step 240/240  loss "]);
    assert_eq!(history.matches("Wrote checkpoint-").count(), 4, "{history}");
    assert!(!history.contains("[Step "), "{history}");
}

#[test]
fn a_quiet_run_has_no_live_line() {
    let corpus = eight_tones();
    let Some(terminal) = TestTerminal::run(&typed("--max-steps 120 -q", &corpus), (100, 50)) else { return };
    terminal.until(&["ended with 0"]);
    let history = terminal.history();
    assert!(bars(&history).is_empty() && !history.contains("Step "), "{history}");
}

#[test]
fn in_a_pipe_lines_of_progress_and_memory_are_ten_seconds_apart() {
    let corpus = eight_tones();
    let started = Instant::now();
    let command = TandemCommand::new(&format!("{FAST} --max-steps 450"));
    let ran = command.arg("--train-data").arg(corpus.path("")).arg("--checkpoint-dir").arg(corpus.path("run")).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    // The run took no longer than this.
    let most = 1 + started.elapsed().as_secs() as usize / 10;
    let count = |start: &str| ran.out.lines().filter(|line| line.starts_with(start)).count();
    assert!((1..=most).contains(&count("Step ")), "{most}: {ran:?}");
    assert!((1..=most).contains(&count("[Step ")), "{most}: {ran:?}");
    contains(&ran.out, &["Step 450/450  loss ", "[Step 100] Data CPU: "]);
    assert!(bars(&ran.out).is_empty() && !ran.both().contains('\r'), "{ran:?}");
}

#[test]
fn long_work_before_a_run_has_the_same_live_line() {
    let folder = TempFolder::new();
    let program = env!("CARGO_BIN_EXE_tandem");
    let line = |flags: &str| {
        let out = folder.path("speech");
        format!("env LANG=C.UTF-8 '{program}' corpus demo --minutes 600 -o '{}' {flags}", out.display())
    };
    let Some(terminal) = TestTerminal::run(&line(""), (80, 24)) else { return };
    let screen = terminal.until(&["Seconds of speech ", "/36000", " left"]);
    assert_eq!(bars(&screen).len(), 1, "{screen}");
    let stopped = Command::new("kill").arg(terminal.child()).status().unwrap();
    assert!(stopped.success());
}
