//! Reports of bad samples, and their list.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use tandem_corpus::{Locator, Store, Subset};
use tandem_pipeline::Worker;

use super::*;
use crate::fixture::FeedFolder;

/// Reports sample number `index` in `epoch`.
fn report(bad: &BadSamples, epoch: u64, index: u32) -> Result<(), TooManyBad> {
    let (id, key) = (format!("s{index}"), format!("wavs/s{index}.wav"));
    let store = Store::Files { root: "corpus".into() };
    let sample = Sample {
        id: &id,
        text: "t",
        speaker: None,
        lang: None,
        audio: Locator { store: &store, key: &key, piece: None, range: None },
        duration_s: None,
        part: Subset::Train,
        file: Path::new("corpus/metadata.csv"),
        line: index + 1,
    };
    bad.report(&BadSample {
        cursor: Cursor { epoch, k: 7 },
        position: 3,
        sample: &sample,
        index: SampleIndex(index),
        reason: "no \"audio\"",
        replaced_by: Some("s99"),
    })
}

fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn a_sample_counts_once_in_every_epoch_and_is_listed_once() {
    let folder = FeedFolder::new("bad");
    let path = folder.path().join("bad_samples.jsonl");
    let bad = BadSamples::new(Some(path.clone()), 0.5, 100).unwrap();
    assert!(!path.exists(), "a run without bad samples has no list");
    for (epoch, index) in [(0, 4), (0, 4), (0, 2), (1, 4), (1, 5)] {
        report(&bad, epoch, index).unwrap();
    }
    assert_eq!((bad.count(0), bad.count(1), bad.count(2), bad.total()), (2, 2, 0, 3));
    assert_eq!(bad.known(), ["s4: no \"audio\"", "s2: no \"audio\"", "s5: no \"audio\""]);
    // Without dropping `bad`: a line is written as soon as it is reported.
    let listed = lines(&path);
    assert_eq!(listed.iter().map(|line| line["line"].as_u64().unwrap()).collect::<Vec<_>>(), [5, 3, 6]);
    let expected = serde_json::json!({
        "id": "s4", "file": "corpus/metadata.csv", "line": 5, "audio": "corpus/wavs/s4.wav",
        "reason": "no \"audio\"", "epoch": 0, "k": 7, "position": 3, "replaced_by": "s99",
    });
    assert_eq!(listed[0], expected);
    assert_eq!(bad.write_error(), None);
}

#[test]
fn a_resumed_run_appends_to_its_list() {
    let folder = FeedFolder::new("bad_resumed");
    let path = folder.path().join("bad_samples.jsonl");
    let open = || BadSamples::new(Some(path.clone()), 1.0, 100).unwrap();
    report(&open(), 0, 1).unwrap();
    let complete = fs::read_to_string(&path).unwrap();
    // The process was killed in the middle of a line.
    fs::write(&path, format!("{complete}{{\"id\":\"s2\",\"fi")).unwrap();
    let resumed = open();
    for index in [1, 2, 3] {
        report(&resumed, 0, index).unwrap();
    }
    assert_eq!((resumed.count(0), resumed.total()), (3, 3));
    let ids: Vec<_> = lines(&path).iter().map(|line| line["id"].clone()).collect();
    assert_eq!(ids, ["s1", "s2", "s3"]);
    assert!(fs::read_to_string(&path).unwrap().starts_with(&complete));
}

#[test]
fn more_than_the_allowed_share_is_an_error() {
    let check = |max_fraction: f64, samples_per_epoch: usize, allowed: u32| {
        let bad = BadSamples::new(None, max_fraction, samples_per_epoch).unwrap();
        for index in 0..allowed {
            report(&bad, 3, index).unwrap();
            report(&bad, 3, index).unwrap();
        }
        let error = report(&bad, 3, allowed).unwrap_err();
        assert_eq!((error.bad, error.of, error.epoch), (allowed as usize + 1, samples_per_epoch, 3));
        // It stays an error for this epoch; the next epoch starts at 0.
        assert!(report(&bad, 3, 0).is_err());
        assert_eq!(report(&bad, 4, 0).is_ok(), allowed > 0);
    };
    check(0.0, 100, 0);
    check(0.05, 100, 5);
    check(0.07, 100, 7);
    check(0.05, 99, 4);
    check(0.05, 10, 0);
    check(0.5, 100, 50);
}

#[test]
fn a_rank_may_have_its_part_of_the_bad_samples_and_at_least_one_if_any_are_allowed() {
    let check = |ranks: u32, allowed: u32| {
        let bad = BadSamples::new(None, 0.05, 150).unwrap().of_ranks(ranks);
        (0..allowed).for_each(|index| report(&bad, 0, index).unwrap());
        let error = report(&bad, 0, allowed).unwrap_err();
        assert_eq!(error.of, 150_usize.div_ceil(ranks as usize), "{ranks} ranks");
    };
    check(1, 7);
    check(2, 4);
    check(8, 1);
}

#[test]
fn the_message_has_the_count_the_samples_and_the_list() {
    let folder = FeedFolder::new("bad_message");
    let path = folder.path().join("bad_samples.jsonl");
    let bad = BadSamples::new(Some(path.clone()), 0.25, 100).unwrap();
    // An earlier epoch has one that this epoch does not.
    report(&bad, 0, 77).unwrap();
    let error = (0..26).find_map(|index| report(&bad, 1, index).err()).unwrap();
    assert_eq!(error.list.len(), MAX_SHOWN);
    let shown = FeedError::from(error).to_string();
    let shown: Vec<&str> = shown.lines().collect();
    assert_eq!(
        shown[0],
        "26 of the 100 samples of epoch 1 cannot be used, and only 25 % may be bad (data.max_bad_fraction: 0.25); \
         repair them, exclude them, or allow more:"
    );
    assert_eq!((shown[1], shown[20], shown[21]), ("  s0: no \"audio\"", "  s19: no \"audio\"", "  and 6 more"));
    assert_eq!(shown[22], format!("all of them, with file and line: {}", path.display()));
}

#[test]
fn a_list_that_cannot_be_written_is_reported_and_fails_nothing() {
    let folder = FeedFolder::new("bad_unwritable");
    let path = folder.path().join("gone/bad_samples.jsonl");
    let bad = BadSamples::new(Some(path.clone()), 1.0, 100).unwrap();
    report(&bad, 0, 1).unwrap();
    assert!(bad.write_error().unwrap().ends_with("gone/bad_samples.jsonl"));
    // Once it can be written, the next report is listed.
    fs::create_dir(path.parent().unwrap()).unwrap();
    report(&bad, 1, 1).unwrap();
    report(&bad, 1, 2).unwrap();
    assert_eq!(lines(&path).len(), 2);
    assert!(bad.write_error().is_some());
    let strict = BadSamples::new(Some(folder.path().join("lost/bad_samples.jsonl")), 0.0, 100).unwrap();
    assert_eq!(report(&strict, 0, 1).unwrap_err().path, None, "the message names no incomplete list");
    // A device may be endless to read; its write error is reported.
    let device = BadSamples::new(Some("/dev/full".into()), 1.0, 100).unwrap();
    report(&device, 0, 1).unwrap();
    assert!(device.write_error().is_some());
    // A folder in place of the list is an error before the run.
    let folder_as_list = BadSamples::new(Some(folder.path().to_owned()), 1.0, 100);
    assert!(matches!(folder_as_list, Err(FeedError::Unusable { .. })));
}

#[test]
fn reports_of_many_threads_are_all_listed() {
    let folder = FeedFolder::new("bad_threads");
    let path = folder.path().join("bad_samples.jsonl");
    let bad = Arc::new(BadSamples::new(Some(path.clone()), 1.0, 100).unwrap());
    let reporter = |first: u32| {
        let bad = Arc::clone(&bad);
        // Two neighbouring threads report half of each other's samples.
        let work = move |_: &_| (first * 10..first * 10 + 20).for_each(|index| report(&bad, 0, index).unwrap());
        Worker::spawn(format!("decode-{first}"), work).unwrap()
    };
    let workers: Vec<Worker> = (0..4).map(reporter).collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    assert_eq!((bad.count(0), bad.total(), lines(&path).len()), (50, 50, 50));
}

#[test]
fn counts_of_old_epochs_are_dropped_and_their_samples_are_not() {
    let bad = BadSamples::new(None, 1.0, 100).unwrap();
    (0..10).for_each(|epoch| report(&bad, epoch, epoch as u32).unwrap());
    assert_eq!((bad.count(5), bad.count(6), bad.count(9), bad.total()), (0, 1, 1, 10));
}
