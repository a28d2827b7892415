//! Bad input: what was expected, what was found, what works.

use std::ops::ControlFlow;

use serde_json::json;
use tandem_loader::{Loader, LoaderError, LoaderOptions, Next};

use crate::support::{PATIENCE, open, options, take};

fn refused(changes: serde_json::Value) -> LoaderError {
    open(changes).err().unwrap()
}

#[test]
fn a_corpus_that_is_not_there_is_an_error_of_the_caller() {
    let error = refused(json!({ "source": "no/such/corpus" }));
    assert!(error.is_usage() && error.to_string().contains("no/such/corpus"), "{error}");
}

#[test]
fn a_device_that_is_not_there_is_refused_by_name() {
    let message = |changes| refused(changes).to_string();
    assert!(message(json!({ "sim": "2x4GiB", "device": "cuda:2" })).contains("there is no cuda:2"));
    assert!(message(json!({ "device": "tpu" })).contains("found \"tpu\""));
    assert!(message(json!({ "device": "cpu", "data_device": "cuda:0" })).contains("leave data_device out"));
    assert!(message(json!({ "device": "cuda:0", "data_device": "cpu" })).contains("data_device"));
    assert!(message(json!({ "sim": "2xGiB" })).starts_with("sim: "));
    assert!(message(json!({ "sim": "2x4GiB", "device": "cpu" })).contains("simulated cards are \"cuda:N\""));
    assert!(message(json!({ "limits": { "data_mb": u64::MAX } })).contains("limits: data_mb: expected 0 to"));
    assert!(message(json!({ "cache_dir": "x" })).contains("cache_dir"));
}

#[test]
fn a_limit_that_is_too_small_names_the_memory_and_what_fits() {
    let changes = json!({ "limits": { "data_mb": 33 }, "prefetch": 64, "fields": ["mel", "waveform"] });
    let error = refused(changes);
    let message = error.to_string();
    assert!(matches!(error, LoaderError::DoesNotFit(_)));
    assert!(message.contains("data_mb=33 is too small") && message.contains("prefetched batches"), "{message}");
    // What is suggested is accepted.
    let prefetch: u64 = message.split("prefetch=").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    let fits = json!({ "limits": { "data_mb": 33 }, "prefetch": prefetch, "fields": ["mel", "waveform"] });
    let mut loader = open(fits).unwrap();
    take(&mut loader, 4);
    let memory = &loader.stats().unwrap()["memory"]["data"];
    assert!(memory["peak_bytes"].as_u64().unwrap() <= 33 << 20, "{memory}");
}

#[test]
fn a_limit_on_two_cards_is_suggested_so_that_it_fits() {
    let pair = json!({ "sim": "2x4GiB,nvlink", "device": "cuda:1", "data_device": "cuda:0", "prefetch": 64,
        "fields": ["mel", "waveform"], "limits": { "data_mb": 40 } });
    let message = refused(pair.clone()).to_string();
    let prefetch: u64 = message.split("prefetch=").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
    let mut fits = pair;
    fits["prefetch"] = json!(prefetch);
    take(&mut open(fits).unwrap(), 3);
}

#[test]
fn options_without_effect_are_named() {
    let idle = json!({ "verify_transfers": 3, "limits": { "model_mb": 64 } });
    let messages = open(idle).unwrap().take_messages().join("\n");
    assert!(messages.contains("verify_transfers has no effect") && messages.contains("model_mb has no effect"));
}

#[test]
fn memory_is_what_the_plan_says_to_the_byte() {
    for changes in [json!({}), json!({ "sim": "2x4GiB", "device": "cuda:1", "data_device": "cuda:0" })] {
        let mut loader = open(changes).unwrap();
        take(&mut loader, 6);
        let (plan, stats) = (loader.plan(), loader.stats().unwrap());
        for role in ["data", "model"] {
            let lines = plan["memory"][role]["lines"].as_array().unwrap();
            let planned: u64 = lines.iter().map(|line| line["bytes"].as_u64().unwrap()).sum();
            assert_eq!(stats["memory"][role]["peak_bytes"], planned, "{role}");
        }
    }
}

#[test]
fn a_closed_loader_says_so_and_closing_twice_is_nothing() {
    let mut loader = open(json!({})).unwrap();
    loader.close().unwrap();
    loader.close().unwrap();
    assert!(matches!(loader.next_batch(PATIENCE), Err(LoaderError::Closed)));
    assert!(matches!(loader.state(), Err(LoaderError::Closed)));
}

#[test]
fn a_plan_takes_no_memory_and_names_what_was_skipped() {
    let options = LoaderOptions::from_json(&options(json!({ "max_frames": 150 }))).unwrap();
    let plan = tandem_loader::plan(&options).unwrap();
    assert!(plan["skipped"]["too_long"].as_u64().unwrap() > 0, "{plan}");
    assert!(plan["notes"].to_string().contains("skipped"), "{}", plan["notes"]);
    assert_eq!(plan["transfer"], "handover");
}

#[test]
fn opening_can_be_stopped_while_recordings_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    // A corpus that nobody has measured yet.
    let source = tandem_loader::write_demo(&folder.path().join("new"), 0.5).unwrap();
    let options = LoaderOptions::from_json(&options(json!({ "source": source }))).unwrap();
    let mut asked = 0;
    let stopped = Loader::open_watched(options, &mut || {
        asked += 1;
        if asked < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert!(matches!(stopped, Err(LoaderError::Stopped)));
    assert!(asked >= 3);
}

#[test]
fn a_corpus_smaller_than_a_batch_makes_smaller_batches_and_says_so() {
    let mut loader = open(json!({ "batch_size": 5000 })).unwrap();
    assert!(loader.take_messages().iter().any(|line| line.starts_with("batch_size 5000 → ")));
    let Next::Batch(batch) = loader.next_batch(PATIENCE).unwrap() else { panic!("there is a batch") };
    assert_eq!(batch.tensors()[0].shape[0] as u64, loader.plan()["batch_size"].as_u64().unwrap());
}

#[test]
fn an_empty_name_of_a_corpus_and_an_unknown_option_are_named() {
    let error = Loader::open(LoaderOptions::from_json(&options(json!({ "source": "" }))).unwrap()).err().unwrap();
    assert!(error.is_usage(), "{error}");
    let unknown = LoaderOptions::from_json(&options(json!({ "prefech": 1 }))).err().unwrap().to_string();
    assert!(unknown.contains("did you mean \"prefetch\"?"), "{unknown}");
}
