//! `-q` prints only the result, warnings and errors, in every command that has it.

use crate::command::{Ran, SMALL, TandemCommand, contains, tandem};
use crate::machine::TempFolder;
use crate::speech::{copy_of_demo, demo, tone, wav_of};

/// Standard output has a line for each of `starts`, and standard error is empty.
#[track_caller]
fn check(ran: &Ran, code: i32, starts: &[&str]) {
    assert_eq!((ran.code, ran.err.as_str()), (code, ""), "{ran:?}");
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), starts.len(), "{ran:?}");
    for (line, start) in lines.iter().zip(starts) {
        assert!(line.starts_with(start), "{line:?} does not start with {start:?}");
    }
}

#[test]
fn a_quiet_run_prints_its_result_alone() {
    let folder = TempFolder::new();
    let train = |flags: &str, run: &str| {
        let line = format!("train -q --model-size nano --batch-size 4 --buffer-size 6 --max-steps 3 {flags}");
        let command = TandemCommand::new(&line).arg("--train-data").arg(demo()).without_gpu();
        command.arg("--checkpoint-dir").arg(folder.path(run)).run()
    };
    let result = ["✅ Training finished: 3 steps, saved in ", "   Validation: mel L1 "];
    check(&train("--prometheus 127.0.0.1:0", "run"), 0, &result);
    check(&train("", "run"), 0, &result[..1]);
    check(&train("--reset-training", "run"), 0, &result);
    let simulated = result.map(|line| format!("[simulated] {line}"));
    let simulated: Vec<&str> = simulated.iter().map(String::as_str).collect();
    check(&train("--sim 1x24GiB --mode auto", "auto"), 0, &simulated);
    // What the user may not expect is a warning.
    let skipped = train("--max-mel-frames 250", "skipped");
    assert_eq!((skipped.code, skipped.out.lines().count()), (0, 2), "{skipped:?}");
    contains(&skipped.err, &["⚠️ Not trained on: ", " over 250 frames"]);
    assert_eq!(skipped.err.lines().count(), 1, "{skipped:?}");
    let failed = train("--resume nowhere", "run");
    assert_eq!((failed.code, failed.out.as_str()), (2, ""), "{failed:?}");
    contains(&failed.err, &["❌ --resume"]);
}

#[test]
fn quiet_plans_checks_and_profiles_print_one_result() {
    check(&tandem("plan -q --sim 2x24GiB"), 0, &["[simulated] Plan: data "]);
    let raised = tandem("plan -q --sim 2x24GiB --prefetch-buffer-size 2");
    assert_eq!((raised.code, raised.out.lines().count()), (0, 1), "{raised:?}");
    contains(&raised.err, &["[simulated] ⚠️ --prefetch-buffer-size 2 raised to 3"]);
    let pair = "--sim 2x24GiB --data-gpu 0 --model-gpu 1";
    check(&tandem(&format!("validate -q {pair} {SMALL}")), 0, &["[simulated] 🎉 All validation checks passed!"]);
    let profile = tandem(&format!("profile -q --num-steps 8 {pair} {SMALL}"));
    assert_eq!((profile.code, profile.err.as_str()), (0, ""), "{profile:?}");
    let lines: Vec<&str> = profile.out.lines().collect();
    contains(lines[0], &["[simulated] ", " steps/s over 8 steps; model-only throughput "]);
    assert!(lines.iter().any(|line| line.starts_with("[simulated] Tier: ")), "{profile:?}");
    for part in ["mean", "Profiling", "Each stage alone", "Busy", "Plan:"] {
        assert!(!profile.out.contains(part), "{part}: {profile:?}");
    }
}

#[test]
fn a_quiet_benchmark_prints_its_table_alone() {
    let loud = tandem("bench handoff --steps 4 --mode cpu");
    assert_eq!(loud.code, 0, "{loud:?}");
    contains(&loud.out, &["Benchmark:   handoff on "]);
    let quiet = tandem("bench handoff --steps 4 --mode cpu -q");
    assert_eq!((quiet.code, quiet.err.as_str()), (0, ""), "{quiet:?}");
    assert!(!quiet.out.contains("Benchmark:") && quiet.out.contains("p99"), "{quiet:?}");
    // Only the heading is missing.
    assert_eq!(quiet.out.lines().count() + 1, loud.out.lines().count(), "{quiet:?} {loud:?}");
}

#[test]
fn quiet_commands_about_a_corpus_print_one_line() {
    let folder = TempFolder::new();
    let inside = |line: &str| TandemCommand::new(line).inside(&folder).env("HOME", folder.path("home")).run();
    check(&inside("corpus demo -q --minutes 0.2 -o demo"), 0, &["✅ "]);
    check(&inside("corpus check -q demo"), 0, &["✅ No problem in "]);
    folder.file("me.wav", wav_of(&tone(22_050, 1.0)));
    check(&inside("corpus features -q me.wav -o mel.npy"), 0, &["✅ "]);
    let (corpus, lines) = copy_of_demo();
    for line in &lines[..3] {
        corpus.file(&format!("wavs/{}.wav", line.split('|').next().unwrap()), "no recording");
    }
    let bad = TandemCommand::new("corpus check -q").arg(corpus.path("")).env("HOME", folder.path("home")).run();
    check(&bad, 1, &["❌ 3 problems in "]);
    // Untagged Persian: the hint is a warning.
    corpus.file(
        "metadata.csv",
        lines.iter().map(|line| format!("{}|سلام|سلام\n", line.split('|').next().unwrap())).collect::<String>(),
    );
    let hinted = TandemCommand::new("corpus check -q").arg(corpus.path("")).env("HOME", folder.path("home")).run();
    assert_eq!((hinted.code, hinted.out.lines().count()), (1, 1), "{hinted:?}");
    contains(&hinted.err, &["⚠️ ", "--lang fa"]);
}

#[test]
fn quiet_speech_and_a_quiet_doctor_print_their_result() {
    let folder = TempFolder::new();
    let line =
        "train -q --model-size nano --batch-size 4 --buffer-size 6 --max-steps 2 --mode cpu --checkpoint-dir run";
    let trained = TandemCommand::new(line).arg("--train-data").arg(demo()).inside(&folder).run();
    assert_eq!(trained.code, 0, "{trained:?}");
    let line = "synthesize -q --checkpoint run --text Hello --mode cpu -o out.wav";
    check(&TandemCommand::new(line).inside(&folder).run(), 0, &["✅ "]);
    let line = "doctor -q --mode cpu --model-size nano --batch-size 2 --buffer-size 4 --max-mel-frames 200";
    let doctor = TandemCommand::new(line).inside(&folder).without_gpu().env("PATH", "/usr/bin:/bin").run();
    let lines: Vec<&str> = doctor.out.lines().collect();
    let [.., conclusion, file] = lines.as_slice() else { panic!("{doctor:?}") };
    assert!(conclusion.contains("problem") && file.contains("tandem-doctor.txt"), "{doctor:?}");
    assert!(!doctor.out.contains("✅") && !doctor.out.contains("1. Computer"), "{doctor:?}");
}
