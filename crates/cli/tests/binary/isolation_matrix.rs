//! Hard limits with every option that changes the memory of a step: the limits hold, and the steps are real.

use std::fs;

use serde_json::Value;

use crate::command::{TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::demo;

/// More than an epoch.
const STEPS: usize = 8;

/// A few steps inside hard limits on a simulated pair.
fn trains(variation: &str) {
    let folder = TempFolder::new();
    let line = format!(
        "train --sim 2x24GiB --data-gpu 0 --model-gpu 1 --enable-memory-isolation --data-gpu-memory 1024 \
         --model-gpu-memory 2048 --model-size nano --batch-size 4 --buffer-size 12 --max-steps {STEPS} {variation}"
    );
    let run = folder.path("run");
    let ran = TandemCommand::new(&line).arg("--train-data").arg(demo()).arg("--checkpoint-dir").arg(&run).run();
    assert_eq!(ran.code, 0, "{variation}: {ran:?}");
    contains(
        &ran.out,
        &["✅ GPU Memory Isolation configured successfully", &format!("Training finished: {STEPS} steps")],
    );
    let log = fs::read_to_string(run.join("run.jsonl")).unwrap();
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).collect::<Vec<_>>();
    assert_eq!(of("step_metrics").len(), STEPS, "{variation}");
    assert!(of("step_metrics").iter().all(|event| event["losses"]["loss"].is_f64()), "{variation}");
    assert!(of("limit_exceeded").is_empty() && of("refused").is_empty(), "{variation}");
    for (role, limit_mb) in [("data", 1024), ("model", 2048)] {
        let reserved = of("arena_reserved").into_iter().find(|event| event["role"] == role).unwrap();
        let number = |name: &str| reserved[name].as_u64().unwrap();
        assert_eq!(number("limit_bytes"), limit_mb << 20, "{variation}");
        assert!(number("bytes") + number("driver_bytes") <= limit_mb << 20, "{variation}");
    }
    // The sampler reads the memory of the process from the driver.
    assert!(
        of("process_memory").iter().all(|event| event["bytes"].as_u64() <= event["limit_bytes"].as_u64()),
        "{variation}"
    );
}

#[test]
fn with_gradients_of_four_batches() {
    trains("--grad-accum 4");
}

#[test]
fn with_mixed_precision_and_without() {
    trains("--mixed-precision");
    trains("--no-mixed-precision");
}

#[test]
fn with_each_optimization_level() {
    trains("--optimization-level basic");
    trains("--optimization-level enhanced");
}

#[test]
fn with_exact_shapes() {
    trains("--disable-static-shapes");
    trains("--disable-static-shapes --grad-accum 4");
}
