//! Batches that the program keeps: the loader waits, says so, and never overwrites them.

use std::time::Duration;

use serde_json::json;
use tandem_loader::Next;

use crate::support::{PATIENCE, copied, next, open, take};

#[test]
fn a_loader_without_a_free_slot_waits_names_what_is_held_and_overwrites_nothing() {
    let expected = take(&mut open(json!({ "fields": ["mel", "mel_lengths"] })).unwrap(), 6);
    let mut loader = open(json!({ "fields": ["mel", "mel_lengths"], "prefetch": 1, "held": 2 })).unwrap();
    let mut kept: Vec<_> = (0..3).map(|_| next(&mut loader).unwrap()).collect();
    for (batch, expected) in kept.iter().zip(&expected) {
        assert!(copied(batch) == *expected);
    }
    let mut messages = Vec::new();
    while messages.is_empty() {
        assert!(matches!(loader.next_batch(Duration::from_millis(200)).unwrap(), Next::NotReady));
        messages.extend(loader.take_messages().into_iter().filter(|line| line.contains("every slot is in use")));
    }
    assert!(messages[0].contains("3 of 3 are held") && messages[0].contains("epoch 0, batch 0 (mel, mel_lengths)"));
    for (batch, expected) in kept.iter().zip(&expected) {
        assert!(copied(batch) == *expected, "a kept batch was overwritten");
    }
    drop(kept.remove(0));
    assert!(copied(&next(&mut loader).unwrap()) == expected[3]);
    assert!(matches!(loader.next_batch(PATIENCE).unwrap(), Next::Batch(batch) if copied(&batch) == expected[4]));
}

#[test]
fn a_clone_keeps_the_batch_and_any_thread_may_drop_the_last() {
    let mut loader = open(json!({ "fields": ["mel"], "prefetch": 1, "held": 2, "endless": true })).unwrap();
    for _ in 0..12 {
        let batch = next(&mut loader).unwrap();
        let clone = batch.clone();
        drop(batch);
        assert_eq!(loader.stats().unwrap()["held"], 1);
        std::thread::scope(|scope| {
            scope.spawn(move || drop(clone));
        });
        assert_eq!(loader.stats().unwrap()["held"], 0);
    }
}
