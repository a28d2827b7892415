//! The data role's card is lost: the model, on another card, is saved, and the run resumes as if nothing had happened.

use std::fs;
use std::path::Path;

use crate::command::{Ran, TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::demo;

const LOST_AT: u64 = 12;
/// More than are prefetched when the card is lost.
const STEPS: u64 = 40;

fn train(cards: &str, dir: &Path, fault: Option<String>) -> Ran {
    let line = format!("train {cards} --model-size nano --batch-size 2 --buffer-size 4 --max-steps {STEPS}");
    let command = TandemCommand::new(&line).without_gpu().arg("--train-data").arg(demo());
    let command = command.arg("--checkpoint-dir").arg(dir);
    match fault {
        Some(fault) => command.env("TANDEM_FAULT", &fault).run(),
        None => command.run(),
    }
}

fn weights(dir: &Path) -> Vec<u8> {
    fs::read(dir.join(format!("checkpoint-{STEPS:08}/weights.safetensors"))).unwrap()
}

/// The steps of the checkpoints in a run folder.
fn saved_steps(dir: &Path) -> Vec<u64> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_prefix("checkpoint-")?.parse().ok()).collect()
}

#[test]
fn losing_the_data_card_saves_the_model_and_the_run_resumes_to_the_same_bytes() {
    let folder = TempFolder::new();
    let whole = folder.path("whole");
    let pair = "--sim 2x24GiB --data-gpu 0 --model-gpu 1";
    assert_eq!(train(pair, &whole, None).code, 0);
    for (number, link) in ["", ",nvlink"].into_iter().enumerate() {
        let cards = format!("--sim 2x24GiB{link} --data-gpu 0 --model-gpu 1");
        let dir = folder.path(&format!("lost-{number}"));
        let lost = train(&cards, &dir, Some(format!("trap-data@step:{LOST_AT}")));
        assert_eq!(lost.code, 1, "{lost:?}");
        let saved = saved_steps(&dir);
        let [step] = saved.as_slice() else { panic!("{saved:?}: {lost:?}") };
        assert!((LOST_AT - 1..STEPS).contains(step), "{step}: {lost:?}");
        let parts = ["GPU 0 was lost", &format!("Step {step} is saved: "), "If GPU 0 does not come back: --data-gpu"];
        contains(&lost.err, &parts);
        // On the cards of before, or on the one that is left.
        let again = if number == 0 { cards } else { "--sim 2x24GiB --gpu 1".to_owned() };
        let resumed = train(&again, &dir, None);
        assert_eq!(resumed.code, 0, "{resumed:?}");
        contains(&resumed.out, &[&format!("Resuming from step {step}")]);
        assert_eq!(weights(&dir), weights(&whole));
    }
}

#[test]
fn losing_the_models_card_writes_nothing() {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    let lost = train("--sim 2x24GiB --data-gpu 0 --model-gpu 1", &dir, Some(format!("trap@step:{LOST_AT}")));
    assert_eq!(lost.code, 1, "{lost:?}");
    contains(&lost.err, &["GPU 1 was lost"]);
    assert!(saved_steps(&dir).is_empty());
}
