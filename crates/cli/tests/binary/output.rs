//! Output: ASCII instead of emoji, the prefix of simulated runs, one JSON document.

use std::io::pipe;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::command::{Ran, SMALL, TandemCommand, contains, tandem};
use crate::machine::TempFolder;

const TWO: &str = "--sim 2x24GiB --data-gpu 0 --model-gpu 1";

/// Command lines with every kind of output: a plan, a table, a validation that passes and one that fails, refusals.
fn lines() -> Vec<String> {
    vec![
        format!("plan {TWO} --prefetch-buffer-size 2"),
        "plan --sim 2x24GiB".to_owned(),
        "plan --recommend".to_owned(),
        format!("plan {TWO} --enable-memory-isolation --batch-size 64 --model-gpu-memory 2048"),
        "plan --sim 1x24GiB --data-gpu 0 --model-gpu 1".to_owned(),
        "plan --batch-size 0".to_owned(),
        format!("validate {TWO} --enable-memory-isolation {SMALL}"),
        format!("validate --sim 1x24GiB,fail-copy=1 --share-gpu {SMALL}"),
    ]
}

#[test]
fn a_terminal_without_utf8_gets_ascii() {
    let plain: [fn(TandemCommand) -> TandemCommand; 3] = [
        |command| command.env("LANG", "C"),
        |command| command.without_env("LANG"),
        |command| command.env("LC_ALL", "POSIX"),
    ];
    for setting in plain {
        for line in lines() {
            let ran = setting(TandemCommand::new(&line)).run();
            let odd: String = ran.both().chars().filter(|c| !c.is_ascii()).collect();
            assert!(odd.is_empty(), "{line} shows {odd:?}: {ran:?}");
        }
    }
    let good = TandemCommand::new(&format!("validate {TWO} {SMALL}")).env("LANG", "C").run();
    contains(&good.out, &["[ok] GPU indices valid", "[ok] All validation checks passed!"]);
    let bad = TandemCommand::new(&format!("validate --sim 2x24GiB,fail-copy=1 {SMALL}")).env("LANG", "C").run();
    contains(&bad.out, &["[!!] "]);
    let refusal = TandemCommand::new("plan --sim 2x24GiB --data-gpu 0 --model-gpu 9").env("LANG", "C").run();
    contains(&refusal.err, &["[!!] Invalid model_gpu=9, must be 0-1"]);
}

#[test]
fn a_terminal_with_utf8_gets_emoji() {
    for (name, locale) in [("LANG", "en_GB.UTF-8"), ("LC_ALL", "C.utf8"), ("LC_CTYPE", "de_DE.UTF-8")] {
        let command = |line: &str| TandemCommand::new(line).without_env("LANG").env(name, locale).run();
        contains(&command(&format!("validate {TWO} {SMALL}")).out, &["✅ GPU indices valid", "🎉 All validation"]);
        contains(&command("plan --sim 2x24GiB --data-gpu 0").err, &["❌ "]);
    }
}

#[test]
fn colours_are_never_forced_on_a_pipe() {
    for line in lines().iter().map(String::as_str).chain(["--help", "plan --help", "plan --frobnicate"]) {
        assert!(!tandem(line).both().contains('\u{1b}'), "{line}");
    }
}

#[test]
fn every_simulated_line_has_the_prefix() {
    for line in lines().iter().filter(|line| line.contains("--sim")) {
        let ran = tandem(line);
        assert!(ran.out.lines().chain(ran.err.lines()).count() > 0, "{line}");
        for printed in ran.out.lines().chain(ran.err.lines()) {
            assert!(printed.starts_with("[simulated] "), "{line}: {printed:?}");
        }
    }
    let lost = tandem(&format!("validate --sim 2x24GiB,lose-card=0 {SMALL}"));
    assert!(lost.err.starts_with("[simulated] "), "{lost:?}");
    assert!(!TandemCommand::new("plan").without_gpu().run().both().contains("[simulated]"));
}

#[test]
fn json_is_one_document_and_nothing_else() {
    for line in lines() {
        let (text, json) = (tandem(&line), tandem(&format!("{line} --json")));
        // Panics unless all of standard output is one document.
        let document = json.json();
        assert_eq!(json.code, text.code, "{line}");
        assert!(document.is_object(), "{line}: {document}");
    }
}

#[test]
fn the_document_of_a_simulated_run_is_marked() {
    for command in ["plan", "validate"] {
        let document = tandem(&format!("{command} {TWO} {SMALL} --json")).json();
        assert_eq!(document["simulated"], json!(true), "{command}");
    }
    let document = TandemCommand::new(&format!("validate {SMALL} --json")).without_gpu().run().json();
    assert_eq!((&document["simulated"], &document["passed"]), (&json!(false), &json!(true)));
}

#[test]
fn quiet_leaves_only_the_conclusion() {
    let good = tandem(&format!("validate {TWO} {SMALL} -q"));
    assert!(good.out.starts_with("[simulated] 🎉 All validation checks passed!\n"), "{good:?}");
    for part in ["1. ", "✅", "Configuring", "Testing"] {
        assert!(!good.out.contains(part), "{good:?}");
    }
    assert_eq!((good.code, good.err.as_str()), (0, ""));
    let bad = tandem(&format!("validate --sim 2x24GiB,fail-copy=1 {SMALL} -q"));
    assert_eq!(bad.code, 1, "{bad:?}");
    assert!(bad.out.starts_with("[simulated] ❌ "), "{bad:?}");
    contains(&bad.out, &["copy failed"]);
}

/// Runs with a closed standard output.
fn closed_stdout(line: &str) -> Ran {
    let (reader, writer) = pipe().unwrap();
    drop(reader);
    let child = TandemCommand::new(line).into_std().stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    Ran { code: output.status.code().unwrap_or(-1), out: String::new(), err }
}

#[test]
fn a_closed_standard_output_does_not_crash_or_change_the_exit_code() {
    let check = |line: &str, code: i32| {
        let ran = closed_stdout(line);
        assert_eq!(ran.code, code, "{line}: {ran:?}");
        assert!(!ran.err.contains("panicked"), "{line}: {ran:?}");
    };
    check("", 0);
    check("--help", 0);
    check("plan --sim 2x24GiB", 0);
    check("plan --sim 2x24GiB --json", 0);
    check("plan --recommend", 0);
    check("plan --sim 2x24GiB --data-gpu 0 --json", 2);
    check("plan --sim 2x24GiB --data-gpu 0", 2);
    check(&format!("validate {TWO} {SMALL}"), 0);
    check(&format!("validate {TWO} {SMALL} --json"), 0);
    check(&format!("validate --sim 2x24GiB,fail-copy=1 {SMALL} -q"), 1);
    check(&format!("validate --sim 2x24GiB,fail-copy=1 {SMALL}"), 1);
    check(&format!("validate --sim 2x24GiB,fail-copy=1 {SMALL} --json"), 1);
}

#[test]
fn a_full_disk_under_standard_output_is_a_failure() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = TandemCommand::new("plan --sim 2x24GiB").into_std();
    let output = command.stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{err}");
    contains(&err, &["cannot write to standard output"]);
}

/// A plan without its explanations: a printed config names cards and routes that the flags left open.
fn without_explanations(mut plan: Value) -> Value {
    for key in ["why", "transfer_why", "hints", "notes", "advice"] {
        plan[key].take();
    }
    // Other programs write to the disk meanwhile.
    plan["checkpoints"]["free_bytes"].take();
    // On the CPU this depends on the free memory.
    if plan["mode"] == "cpu" {
        plan["roles"]["model"]["limit_mb"].take();
        plan["roles"]["model"]["limit_bytes"].take();
    }
    plan
}

#[test]
fn a_printed_config_gives_the_same_plan() {
    let folder = TempFolder::new();
    for (machine, flags) in [
        ("--sim 1x24GiB", ""),
        ("--sim 1x2GiB", "--model-size small"),
        ("--sim 1x24GiB", "--mode cpu --num-workers 3"),
        ("--sim 2x24GiB", "--gpu 1 --no-mixed-precision --seed 9223372036854775807"),
        ("--sim 2x24GiB", "--data-gpu 1 --model-gpu 0 --buffer-size 9 --prefetch-buffer-size 2"),
        ("--sim 2x24GiB,nvlink", "--data-gpu 0 --model-gpu 1 --batch-size 12 --grad-accum 3"),
        ("--sim 2x24GiB", "--data-gpu 0 --model-gpu 1 --enable-memory-isolation --data-gpu-memory auto"),
        ("--sim 1x24GiB", "--share-gpu --enable-memory-isolation --transfer peer --model-start-delay 0.25"),
        ("--sim 1x24GiB,held=3GiB", "--share-gpu --optimization-level basic --max-mel-frames 700"),
    ] {
        let printed = tandem(&format!("plan {machine} {flags} --print-config"));
        assert_eq!((printed.code, printed.err.as_str()), (0, ""), "{printed:?}");
        let file = folder.file("printed.yaml", &printed.out);
        let again = TandemCommand::new(&format!("plan {machine} --json")).config(&file).run();
        assert_eq!((again.code, again.err.as_str()), (0, ""), "{flags}: {again:?}");
        let plan = tandem(&format!("plan {machine} {flags} --json")).json();
        assert_eq!(
            without_explanations(again.json()),
            without_explanations(plan),
            "{machine} {flags}\n{}",
            printed.out
        );
    }
}

#[test]
fn the_document_of_a_simulated_refusal_is_marked() {
    for (line, simulated) in [("plan --sim 1x24GiB --data-gpu 0 --model-gpu 1", true), ("plan --batch-size 0", false)] {
        assert_eq!(tandem(&format!("{line} --json")).json()["simulated"], simulated, "{line}");
    }
}
