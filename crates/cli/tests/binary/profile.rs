//! `tandem profile`: the bottleneck, the flag to type, and whether the predicted gain is real. On simulated cards, whose clock
//! is simulated; the speed of this computer is not tested.

use serde_json::Value;

use crate::command::{Ran, SMALL, TandemCommand, contains, in_order, tandem};
use crate::machine::TempFolder;
use crate::speech::demo;

const PAIR: &str = "--sim 2x24GiB --data-gpu 0 --model-gpu 1";

fn command(line: &str) -> TandemCommand {
    TandemCommand::new(&format!("profile {line} {SMALL}")).arg("--train-data").arg(demo())
}

#[track_caller]
fn document(ran: &Ran) -> Value {
    assert_eq!(ran.code, 0, "{ran:?}");
    ran.json()
}

#[test]
fn a_good_pipeline_is_reported_with_every_stage() {
    let ran = command(&format!("{PAIR} --num-steps 8")).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    in_order(
        &ran.out,
        &[
            "Profiling 8 steps after 5 warm-up steps",
            " steps/s over 8 steps; model-only throughput ",
            "mean      std      min      max      p95    share",
            "load ",
            "upload ",
            "features ",
            "transfer ",
            "train ",
            "Each stage alone, ms per step",
            "step ",
            "Busy (device events): data role ",
            "✅ NO MAJOR BOTTLENECKS DETECTED",
            "Tier: ",
            "never waited for",
        ],
    );
}

#[test]
fn the_document_has_all_of_it_also_on_the_cpu() {
    let ran = command("--mode cpu --num-steps 3 --json").run();
    let found = document(&ran);
    assert_eq!((&found["simulated"], &found["mode"], &found["steps"]), (&false.into(), &"cpu".into(), &3.into()));
    assert!(found["steps_per_s"].as_f64().unwrap() > 0.0 && found["model_only_steps_per_s"].as_f64().unwrap() > 0.0);
    let names = |list: &str| {
        let rows = found[list].as_array().unwrap();
        rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("stages"), ["load", "upload", "features", "train"]);
    assert_eq!(names("alone"), ["load", "upload", "features", "feed", "step"]);
    for row in found["stages"].as_array().unwrap().iter().chain(found["alone"].as_array().unwrap()) {
        assert!(["mean_ms", "std_ms", "min_ms", "max_ms", "p95_ms"].iter().all(|name| row[name].is_number()), "{row}");
    }
    assert!(found["tier"]["tier"].is_string() && found["verdicts"].is_array(), "{found}");
}

#[test]
fn a_slow_transfer_is_named_with_a_setting_that_gives_the_predicted_gain() {
    check_slow_transfer("2x24GiB");
}

/// The cards' clocks run at rates of their own, and are some seconds off.
#[test]
fn a_slow_transfer_is_named_whatever_the_clocks_of_the_cards_show() {
    check_slow_transfer("2x24GiB,skew=100");
}

#[track_caller]
fn check_slow_transfer(cards: &str) {
    let flags = format!("--sim {cards} --data-gpu 0 --model-gpu 1 --num-steps 20 --confirm --json");
    let ran = command(&flags).env("TANDEM_FAULT", "slow:transfer:300").run();
    let found = document(&ran);
    let verdict = &found["verdicts"][0];
    assert_eq!((&verdict["kind"], &verdict["stage"]), (&"GPU_TRANSFER".into(), &"transfer".into()), "{found}");
    assert_eq!(verdict["change"], "--share-gpu --gpu 1");
    contains(verdict["text"].as_str().unwrap(), &["of the step waits for transfer. Try --share-gpu --gpu 1: "]);
    // Both by the simulated clock.
    let [predicted, measured] =
        ["predicted_steps_per_s", "measured_steps_per_s"].map(|name| verdict[name].as_f64().unwrap());
    assert!((measured / predicted - 1.0).abs() < 0.15, "{predicted} {measured}");
    assert!(predicted > 2.0 * found["steps_per_s"].as_f64().unwrap());
}

#[test]
fn an_earlier_log_is_diagnosed_without_running_anything() {
    let folder = TempFolder::new();
    let dir = folder.path("run");
    let train = TandemCommand::new(&format!("train --mode cpu --max-steps 12 --checkpoint-every 100 {SMALL}"));
    let trained = train.arg("--train-data").arg(demo()).arg("--checkpoint-dir").arg(&dir).run();
    assert_eq!(trained.code, 0, "{trained:?}");
    // By folder and by file.
    for path in [dir.clone(), dir.join("run.jsonl")] {
        let ran = TandemCommand::new("profile --log").arg(&path).run();
        assert_eq!(ran.code, 0, "{ran:?}");
        in_order(&ran.out, &[" steps/s over ", "load ", "train ", "Tier: "]);
    }
    let ran = TandemCommand::new("profile --json --log").arg(&dir).run();
    assert!(document(&ran)["steps_per_s"].as_f64().unwrap() > 0.0);
    // A log without steps has no timing.
    let empty = folder.file("empty.jsonl", "");
    let ran = TandemCommand::new("profile --log").arg(&empty).run();
    assert_eq!(ran.code, 1, "{ran:?}");
    contains(&ran.err, &["no timing was collected"]);
    let ran = TandemCommand::new("profile --log").arg(folder.path("nothing.jsonl")).run();
    assert_eq!(ran.code, 2, "{ran:?}");
    contains(&ran.err, &["❌ --log: ", "nothing.jsonl"]);
}

#[test]
fn zero_steps_fail_and_invalid_flags_are_wrong_usage() {
    let ran = tandem("profile --num-steps 0");
    assert_eq!(ran.code, 1, "{ran:?}");
    contains(&ran.err, &["❌ no timing was collected: --num-steps 0 times nothing; for example --num-steps 100"]);
    let ran = tandem("profile --num-steps 0 --json");
    assert_eq!((ran.code, &ran.json()["code"]), (1, &1.into()), "{ran:?}");
    for line in [
        "profile --num-steps many",
        "profile --num-steps -1",
        "profile --log x --confirm",
        "profile --gpu 7 --sim 1x24GiB",
    ] {
        assert_eq!(tandem(line).code, 2, "{line}");
    }
}

#[test]
fn an_unknown_fault_is_refused() {
    let ran = command("--mode cpu --num-steps 1").env("TANDEM_FAULT", "slow:everything:2").run();
    assert_eq!(ran.code, 1, "{ran:?}");
    contains(&ran.err, &["TANDEM_FAULT=slow:everything:2: expected", "slow:WORK:TIMES"]);
}
