//! A state continues with exactly the batches that would have come.

use serde_json::{Value, json};
use tandem_loader::LoaderError;

use crate::support::{Copied, next, open, take};

const FIELDS: [&str; 4] = ["text", "text_lengths", "mel", "mel_lengths"];

#[test]
fn batches_after_a_restore_are_byte_identical_anywhere_in_any_epoch() {
    let mut straight = open(json!({ "fields": FIELDS })).unwrap();
    let per_epoch = straight.batches_per_epoch() as usize;
    let expected = take(&mut straight, 3 * per_epoch);
    for stop in [0, 1, per_epoch - 1, per_epoch, per_epoch + 2, 2 * per_epoch + 1] {
        let mut first = open(json!({ "fields": FIELDS })).unwrap();
        take(&mut first, stop);
        // As a checkpoint stores it.
        let state: Value = serde_json::from_str(&first.state().unwrap().to_string()).unwrap();
        let mut resumed = open(json!({ "fields": FIELDS, "workers": 3 })).unwrap();
        take(&mut resumed, 2);
        resumed.restore(&state).unwrap();
        assert_eq!(resumed.epoch() as usize, stop / per_epoch);
        assert!(take(&mut resumed, 5) == expected[stop..stop + 5], "{stop}");
    }
}

#[test]
fn ranks_serve_the_same_global_batches_and_any_number_continues() {
    let all = take(&mut open(json!({ "fields": FIELDS })).unwrap(), 24);
    let rank = |rank: usize, world: usize, state: Option<&Value>, count: usize| -> (Vec<Copied>, Value) {
        let mut loader = open(json!({ "fields": FIELDS, "rank": rank, "world_size": world })).unwrap();
        if let Some(state) = state {
            loader.restore(state).unwrap();
        }
        let batches = take(&mut loader, count);
        (batches, loader.state().unwrap())
    };
    let (one, state) = rank(0, 1, None, 6);
    assert!(one == all[..6]);
    // Two ranks continue a run of one, and three a run of two: batch j of the order goes to rank j mod world.
    let two = [0, 1].map(|number| rank(number, 2, Some(&state), 3));
    assert_eq!(two[0].1, two[1].1, "ranks are at the same place");
    for (j, expected) in all[6..12].iter().enumerate() {
        assert!(two[j % 2].0[j / 2] == *expected, "{j}");
    }
    for number in 0..3 {
        let (three, _) = rank(number, 3, Some(&two[0].1), 2);
        assert!(three[0] == all[12 + number] && three[1] == all[15 + number], "{number}");
    }
}

#[test]
fn every_rank_has_the_same_number_of_batches_in_an_epoch() {
    for world in [1, 2, 3, 5] {
        let counts: Vec<Vec<u64>> = (0..world).map(|rank| counts_of_epochs(rank, world)).collect();
        assert!(counts.iter().all(|other| *other == counts[0]), "{counts:?}");
        let all: u64 = counts[0].iter().sum::<u64>() * world;
        let per_epoch = open(json!({})).unwrap().batches_per_epoch();
        assert!(all.abs_diff(4 * per_epoch) < world, "nothing is skipped: {counts:?}");
    }
}

/// The batches of four epochs, each as many as was said before and while they were served.
fn counts_of_epochs(rank: u64, world: u64) -> Vec<u64> {
    let mut loader = open(json!({ "fields": ["mel_lengths"], "rank": rank, "world_size": world })).unwrap();
    let count_epoch = |epoch: u64| {
        let expected = loader.batches_per_epoch();
        let mut count = 0;
        while next(&mut loader).is_some() {
            assert_eq!((loader.batches_per_epoch(), loader.epoch()), (expected, epoch));
            count += 1;
        }
        assert_eq!(count, expected);
        count
    };
    (0..4).map(count_epoch).collect()
}

#[test]
fn a_state_of_another_corpus_or_other_options_is_refused_with_the_difference() {
    let state = open(json!({ "fields": FIELDS })).unwrap().state().unwrap();
    let refused = |changes: Value, state: &Value| {
        let error = open(changes).unwrap().restore(state).unwrap_err();
        assert!(matches!(error, LoaderError::ForeignState(_)));
        error.to_string()
    };
    assert!(refused(json!({ "seed": 3 }), &state).contains("made with seed 1234, this feed has 3"));
    assert!(refused(json!({ "batch_size": 2 }), &state).contains("batch_size 4"));
    assert!(refused(json!({ "buckets": 2 }), &state).contains("buckets 3"));
    assert!(refused(json!({ "split": "train" }), &state).contains("usable utterances"));
    assert!(refused(json!({ "fields": FIELDS }), &json!({ "epoch": 3 })).contains("not the state of a feed"));
    let mut newer = state.clone();
    newer["version"] = json!(9);
    assert!(refused(json!({ "fields": FIELDS }), &newer).contains("version 9"));
}

#[test]
fn a_loader_whose_batches_are_held_does_not_restore() {
    let mut loader = open(json!({ "fields": FIELDS })).unwrap();
    let state = loader.state().unwrap();
    let batch = next(&mut loader).unwrap();
    assert!(matches!(loader.restore(&state), Err(LoaderError::InUse { held: 1 })));
    drop(batch);
    loader.restore(&state).unwrap();
    assert_eq!(next(&mut loader).unwrap().index(), 0);
}
