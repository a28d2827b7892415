//! Fine-tuning starts a new run from the weights of another; resuming continues the same run and nothing else.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::command::{Ran, SMALL, TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::{copy_of_demo, demo};

fn command(data: &Path, run: &Path, more: &str) -> TandemCommand {
    let command = TandemCommand::new(&format!("train --mode cpu {more}")).without_gpu();
    command.arg("--train-data").arg(data).arg("--checkpoint-dir").arg(run)
}

fn train(data: &Path, run: &Path, more: &str) -> Ran {
    let ran = command(data, run, &format!("{SMALL} {more}")).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    ran
}

/// The losses of all steps.
fn losses(run: &Path) -> Vec<f64> {
    let log = fs::read_to_string(run.join("run.jsonl")).unwrap();
    let events = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let steps = events.filter(|event| event["event"] == "step_metrics");
    steps.map(|event| event["losses"]["loss"].as_f64().unwrap()).collect()
}

/// The demo corpus with the language `lang` and other texts.
fn other_language(lang: &str, text: &str) -> TempFolder {
    let (corpus, lines) = copy_of_demo();
    let row = |line: &String| format!("{}|{text}|{text}|bea|{lang}", line.split('|').next().unwrap());
    corpus.file("metadata.csv", lines.iter().map(row).collect::<Vec<_>>().join("\n"));
    corpus
}

#[test]
pub(crate) fn a_new_run_starts_from_the_weights_of_another() {
    let folder = TempFolder::new();
    let [first, tuned, scratch, again] = ["first", "tuned", "scratch", "again"].map(|name| folder.path(name));
    train(demo(), &first, "--max-steps 40");
    let french = other_language("fr", "Cinq chats.");
    let data = french.path("");
    // A run folder stands for its best checkpoint.
    let line = format!("--max-steps 3 --init-from {}", first.display());
    let ran = train(&data, &tuned, &line);
    contains(&ran.out, &["Starting from the weights of step ", "new languages: fr", "normalised as that model does"]);
    train(&data, &scratch, "--max-steps 3");
    let [tuned_losses, scratch_losses] = [&tuned, &scratch].map(|run| losses(run));
    assert_eq!(tuned_losses.len(), 3, "from step 0");
    assert!(tuned_losses[0] < 0.8 * scratch_losses[0], "{tuned_losses:?} {scratch_losses:?}");

    // Typed again: the run resumes, whether its source still exists or not.
    let resumed = train(&data, &tuned, &line.replace("--max-steps 3", "--max-steps 4"));
    contains(&resumed.out, &["Resuming from step 3"]);
    let measured = train(&data, &again, &format!("{line} --init-mel-statistics measure"));
    contains(&measured.out, &["normalised by the new data"]);
}

#[test]
fn english_becomes_persian() {
    let folder = TempFolder::new();
    let [first, tuned] = ["first", "tuned"].map(|name| folder.path(name));
    train(demo(), &first, "--max-steps 2");
    let persian = other_language("fa", "سلام ۲۵.");
    let checkpoint = first.join("checkpoint-00000002");
    let ran = train(&persian.path(""), &tuned, &format!("--max-steps 2 --init-from {}", checkpoint.display()));
    contains(&ran.out, &["new languages: fa", " new: "]);
    let out = folder.path("out.wav");
    let line = "synthesize --mode cpu --text سلام -o";
    let spoken = TandemCommand::new(line).without_gpu().arg(&out).arg("--checkpoint").arg(&tuned).run();
    assert_eq!(spoken.code, 0, "{spoken:?}");
    assert!(!spoken.both().contains("skipped"), "{spoken:?}");
}

#[test]
fn weights_that_do_not_fit_are_refused_and_nothing_is_created() {
    let folder = TempFolder::new();
    let [first, second] = ["first", "second"].map(|name| folder.path(name));
    train(demo(), &first, "--max-steps 1");
    let check = |more: &str, parts: &[&str]| {
        let refused = command(demo(), &second, &format!("--max-mel-frames 200 --max-steps 1 {more}")).run();
        assert_eq!(refused.code, 2, "{refused:?}");
        contains(&refused.err, parts);
        assert!(!second.join("checkpoint-00000001").exists());
    };
    let init = format!("--init-from {}", first.display());
    check(&format!("--model-size tiny --batch-size 2 {init}"), &["--init-from", "nano", "tiny", "--model-size nano"]);
    check(&format!("--model-size nano {init} --resume {}", first.display()), &["--init-from", "--resume"]);
    check("--model-size nano --init-from nowhere", &["--init-from", "nowhere"]);
}

#[test]
fn a_run_resumes_on_its_own_data_only() {
    let folder = TempFolder::new();
    let [first, second] = ["first", "second"].map(|name| folder.path(name));
    train(demo(), &first, "--max-steps 2");
    let french = other_language("fr", "Cinq chats.");
    let checkpoint = first.join("checkpoint-00000002");
    let resume = |data: &Path, more: &str| {
        let more = format!("{SMALL} --resume {} {more}", checkpoint.display());
        command(data, &second, &more).run()
    };
    let refused = resume(&french.path(""), "--max-steps 4");
    assert_eq!(refused.code, 2, "{refused:?}");
    contains(&refused.err, &["--resume", "another run", "data: expected", "--init-from"]);
    assert!(!second.exists());
    // The same from a copy that has no run around it.
    let copy = folder.path("copy");
    fs::create_dir(&copy).unwrap();
    for file in fs::read_dir(&checkpoint).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    let refused =
        command(&french.path(""), &second, &format!("{SMALL} --max-steps 4 --resume {}", copy.display())).run();
    assert_eq!(refused.code, 2, "{refused:?}");
    contains(&refused.err, &["another run", "--init-from"]);

    let resumed = resume(demo(), "--max-steps 3");
    assert_eq!(resumed.code, 0, "{resumed:?}");
    contains(&resumed.out, &["Resuming from step 2"]);
}

#[test]
fn a_run_without_steps_left_says_so_and_its_next_command_works() {
    let folder = TempFolder::new();
    let [first, second] = ["first", "second"].map(|name| folder.path(name));
    let ran = train(demo(), &first, "--max-steps 2");
    let checkpoint = first.join("checkpoint-00000002");
    let more = format!("{SMALL} --max-steps 2 --resume {}", checkpoint.display());
    let refused = command(demo(), &second, &more).run();
    assert_eq!(refused.code, 2, "{refused:?}");
    contains(&refused.err, &["nothing to train", "at step 2", "--max-steps 4", "tandem synthesize --checkpoint"]);
    assert!(!second.exists());
    let same = command(demo(), &first, &more).run();
    assert_eq!(same.code, 0, "{same:?}");
    contains(&same.out, &["Nothing to train: the run ends at step 2"]);
    assert!(checkpoint.is_dir() && !first.join("previous-1").exists());

    let next = ran.out.lines().find_map(|line| line.trim().strip_prefix("tandem train ")).unwrap();
    let ran = TandemCommand::new(&format!("train {next}")).without_gpu().run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["Resuming from step 2", "Training finished: 4 steps"]);
}
