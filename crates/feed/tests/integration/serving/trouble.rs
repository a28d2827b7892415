//! Errors while a corpus is served: reported, survived, and without changing good rows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tandem_audio::{AudioError, Clip};
use tandem_corpus::{Dataset, OpenOptions, Sample};
use tandem_device::sim::{SimCounts, SimFault};
use tandem_device::{Machine, Route};
use tandem_feed::{
    COUNTED_ROWS, CacheSpec, EXACT_ROWS, FeedError, FromFiles, Recordings, Replacement, TrainingSet, TrainingSetOptions,
};

use super::support::{Bytes, Corpus, Generated, PATIENCE, Serving, clip, two_cards};

fn list(path: &Path) -> BTreeMap<String, serde_json::Value> {
    let lines = std::fs::read_to_string(path).unwrap();
    let parse = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    lines.lines().map(parse).map(|entry| (entry["id"].as_str().unwrap().to_owned(), entry)).collect()
}

/// Asserts that `found` equals `clean` in all rows that never held one of `bad`.
fn assert_good_rows_unchanged(corpus: &Corpus, clean: &[Bytes], found: &[Bytes], bad: &BTreeSet<String>) {
    for (clean, found) in clean.iter().zip(found) {
        assert_eq!(clean.cursor, found.cursor);
        let shapes = |batch: &Bytes| batch.fields.iter().map(|(_, shape, _)| shape.clone()).collect::<Vec<_>>();
        assert_eq!(shapes(clean), shapes(found));
        for (before, now) in clean.samples.iter().zip(&found.samples) {
            let was_bad = bad.contains(&corpus.id(tandem_corpus::SampleIndex(*before)));
            assert_eq!(before == now, !was_bad, "{:?}", found.cursor);
            assert!(!bad.contains(&corpus.id(tandem_corpus::SampleIndex(*now))), "{:?}", found.cursor);
        }
    }
}

#[test]
fn corrupt_files_are_listed_and_replaced_and_other_rows_stay() {
    let corpus = Corpus::new(11, 60);
    let clean = Serving::cpu().batches(&corpus.training_set, 20).unwrap();
    let bad: BTreeSet<String> = [7, 23, 41].map(|number| format!("u{number:03}")).into();
    std::fs::write(corpus.wav(7), "no sound at all").unwrap();
    std::fs::write(corpus.wav(23), &std::fs::read(corpus.wav(23)).unwrap()[..30]).unwrap();
    std::fs::remove_file(corpus.wav(41)).unwrap();
    let path = corpus.folder.path().join("bad_samples.jsonl");
    for (workers, resumed) in [(1, false), (4, true)] {
        let serving = Serving { bad_samples: Some(path.clone()), max_bad_fraction: 0.1, ..Serving::cpu() };
        let found = serving.workers(workers).batches(&corpus.training_set, 20).unwrap();
        assert_good_rows_unchanged(&corpus, &clean, &found, &bad);
        let listed = list(&path);
        assert_eq!(listed.keys().cloned().collect::<BTreeSet<_>>(), bad, "resumed: {resumed}");
        assert!(listed.values().all(|entry| entry["reason"].as_str().is_some_and(|why| why.len() > 10)));
    }
}

#[test]
fn a_replacement_stays_after_a_resume_even_if_the_bad_file_is_repaired() {
    let corpus = Corpus::new(12, 40);
    let mut serving = Serving { max_bad_fraction: 0.1, ..Serving::cpu() };
    // One of the batches made before the gate opens.
    let broken = serving.batches(&corpus.training_set, 3).unwrap()[2].samples[1];
    let intact = std::fs::read(corpus.wav(broken.into())).unwrap();
    std::fs::write(corpus.wav(broken.into()), "gone bad").unwrap();
    let made_before = serving.slots.iter().sum::<u64>() as usize;
    let never_stopped = serving.batches(&corpus.training_set, made_before).unwrap();
    assert!(!never_stopped.iter().any(|batch| batch.samples.contains(&broken)));
    let state = serving.serve(&corpus.training_set, |feed, _| {
        // All prefetched batches are made, and none is leased.
        feed.wait_warm(PATIENCE)?;
        Ok(feed.state())
    });
    serving.from = state.unwrap();
    assert!(!serving.from.replacements.is_empty());
    std::fs::write(corpus.wav(broken.into()), intact).unwrap();
    let resumed = serving.batches(&corpus.training_set, made_before).unwrap();
    assert!(resumed == never_stopped);
    // And after another stop, before and after the batches are made again.
    for is_warm in [false, true] {
        let again = serving.serve(&corpus.training_set, |feed, _| {
            feed.wait_warm(if is_warm { PATIENCE } else { Duration::ZERO })?;
            Ok(feed.state())
        });
        let again = again.unwrap();
        let is_saved = |one: &Replacement| again.replacements.get(one.epoch, one.k, one.position) == Some(*one);
        assert!(serving.from.replacements.iter().all(|one| is_saved(&one)), "{again:?}");
    }
}

#[test]
fn a_corpus_of_only_bad_files_ends_with_the_list() {
    let corpus = Corpus::new(13, 40);
    (0..40).for_each(|number| std::fs::write(corpus.wav(number), "noise").unwrap());
    for workers in [1, 3] {
        let path = corpus.folder.path().join(format!("bad-{workers}.jsonl"));
        let serving = Serving { bad_samples: Some(path.clone()), ..Serving::pair(1, Route::Bounce).workers(workers) };
        let error = serving.batches(&corpus.training_set, 1).unwrap_err();
        assert!(matches!(error, FeedError::TooManyBad { .. }), "{error}");
        let message = error.to_string();
        assert!(
            message.contains("max_bad_fraction") && message.contains("bad-") && message.contains("u0"),
            "{message}"
        );
        assert!(list(&path).len() >= 3);
    }
}

/// Calls a function with the id before each recording is read: it may panic, or damage files.
struct FaultyRecordings<F>(F);

impl<F: Fn(&str) + Send + Sync> Recordings for FaultyRecordings<F> {
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        (self.0)(sample.id);
        FromFiles.load_into(sample, clip)
    }
}

#[test]
fn a_decoder_that_panics_is_a_bad_file() {
    let corpus = Corpus::new(14, 40);
    let clean = Serving::cpu().batches(&corpus.training_set, 12).unwrap();
    let recordings = Arc::new(FaultyRecordings(|id: &str| assert_ne!(id, "u017", "injected")));
    let path = corpus.folder.path().join("bad.jsonl");
    let serving = Serving { recordings, bad_samples: Some(path.clone()), ..Serving::cpu() };
    let found = serving.batches(&corpus.training_set, 12).unwrap();
    assert_good_rows_unchanged(&corpus, &clean, &found, &["u017".to_owned()].into());
    assert!(list(&path)["u017"]["reason"].as_str().unwrap().contains("injected"));
}

#[test]
fn a_file_deleted_in_mid_epoch_is_a_bad_file_from_then_on() {
    let corpus = Corpus::new(15, 40);
    let (read, broken) = (AtomicUsize::new(0), corpus.wav(3));
    let delete = move |_: &str| {
        if read.fetch_add(1, Ordering::Relaxed) == 5 {
            let _ = std::fs::remove_file(&broken);
        }
    };
    let clean = Serving::cpu().batches(&corpus.training_set, 30).unwrap();
    let cache = CacheSpec::Memory { budget_bytes: 1 << 30 };
    let serving = Serving { recordings: Arc::new(FaultyRecordings(delete)), cache, ..Serving::cpu() };
    let found = serving.batches(&corpus.training_set, 30).unwrap();
    let three = |batches: &[Bytes]| batches.iter().filter(|batch| batch.samples.contains(&3)).count();
    assert!(three(&found) <= 1 && three(&clean) >= 2, "{} of {}", three(&found), three(&clean));
    for (clean, found) in clean.iter().zip(&found) {
        let pairs = clean.samples.iter().zip(&found.samples);
        assert!(pairs.clone().all(|(before, now)| before == now || *before == 3));
    }
}

#[test]
fn a_recording_that_became_shorter_than_its_text_is_a_bad_file() {
    let corpus = Corpus::new(18, 40);
    let clean = Serving::cpu().batches(&corpus.training_set, 12).unwrap();
    // Five words in a tenth of a second.
    let mut file = Vec::new();
    let short = Clip { samples: vec![100; 2205], rate_hz: 22_050 };
    tandem_audio::wav::write(&short, &mut file).unwrap();
    std::fs::write(corpus.wav(14), file).unwrap();
    let path = corpus.folder.path().join("bad.jsonl");
    let serving = Serving { bad_samples: Some(path.clone()), ..Serving::cpu() };
    let found = serving.batches(&corpus.training_set, 12).unwrap();
    assert_good_rows_unchanged(&corpus, &clean, &found, &["u014".to_owned()].into());
    assert!(list(&path)["u014"]["reason"].as_str().unwrap().contains("tokens"));
}

#[test]
fn recordings_slightly_longer_than_listed_are_cut_and_much_longer_ones_are_bad() {
    let corpus = Corpus::new(20, 40);
    let longer = |number: u64, seconds: f64| {
        let mut clip = clip(20, number);
        clip.samples.resize(clip.samples.len() + (seconds * f64::from(clip.rate_hz)) as usize, 99);
        let mut file = Vec::new();
        tandem_audio::wav::write(&clip, &mut file).unwrap();
        std::fs::write(corpus.wav(number), file).unwrap();
    };
    let clean = Serving::cpu().batches(&corpus.training_set, 12).unwrap();
    (0..40).for_each(|number| longer(number, 0.09));
    let found = Serving { max_bad_fraction: 0.0, ..Serving::cpu() }.batches(&corpus.training_set, 12).unwrap();
    assert_good_rows_unchanged(&corpus, &clean, &found, &BTreeSet::new());
    longer(8, 3.0);
    let path = corpus.folder.path().join("bad.jsonl");
    let serving = Serving { bad_samples: Some(path.clone()), ..Serving::cpu() };
    let found = serving.batches(&corpus.training_set, 12).unwrap();
    assert_good_rows_unchanged(&corpus, &clean, &found, &["u008".to_owned()].into());
    assert!(list(&path)["u008"]["reason"].as_str().unwrap().contains("longer than"));
}

#[test]
fn a_replacement_may_be_bad_as_well() {
    let corpus = Corpus::new(26, 40);
    let clean = Serving::cpu().batches(&corpus.training_set, 12).unwrap();
    let bad: BTreeSet<String> = (0..40).step_by(2).map(|number| format!("u{number:03}")).collect();
    (0..40).step_by(2).for_each(|number| std::fs::write(corpus.wav(number), "noise").unwrap());
    let served = [1, 3].map(|workers| {
        let serving = Serving { max_bad_fraction: 1.0, ..Serving::cpu() }.workers(workers);
        serving.batches(&corpus.training_set, 12).unwrap()
    });
    assert_good_rows_unchanged(&corpus, &clean, &served[0], &bad);
    assert!(served[0] == served[1]);
}

#[test]
fn in_a_large_corpus_a_text_that_was_not_counted_and_is_too_long_is_replaced() {
    let (folder, num_rows) = (tempfile::tempdir().unwrap(), EXACT_ROWS + 1);
    let counted: BTreeSet<usize> = (0..COUNTED_ROWS).map(|i| i * num_rows / COUNTED_ROWS).collect();
    let is_long = |number: usize| number.is_multiple_of(2) && !counted.contains(&number);
    let row = |number: usize| {
        let text = if is_long(number) { "not counted" } else { "short" };
        format!("{{\"audio_filepath\":\"{number}.wav\",\"text\":\"{text}\",\"duration\":0.272}}\n")
    };
    let path = folder.path().join("list.jsonl");
    std::fs::write(&path, (0..num_rows).map(row).collect::<String>()).unwrap();
    let dataset = Arc::new(Dataset::open(&path, &OpenOptions::default()).unwrap());
    let options = TrainingSetOptions { with_text: true, ..TrainingSetOptions::default() };
    let training_set = TrainingSet::survey(Arc::clone(&dataset), &dataset.train_rows(), &options).unwrap();
    assert!(!training_set.counts_all());
    let recordings = Arc::new(Generated { pause: Duration::ZERO });
    let serving = Serving { recordings, max_bad_fraction: 1.0, ..Serving::cpu() };
    let batches = serving.batches(&training_set, 12).unwrap();
    let samples: Vec<usize> = batches.iter().flat_map(|batch| &batch.samples).map(|sample| *sample as usize).collect();
    assert!(samples.len() == 48 && !samples.into_iter().any(is_long));
}

#[test]
fn a_list_that_cannot_be_written_is_reported_once_and_fails_nothing() {
    let corpus = Corpus::new(19, 40);
    std::fs::write(corpus.wav(3), "noise").unwrap();
    let path = corpus.folder.path().join("not there/bad_samples.jsonl");
    let serving = Serving { bad_samples: Some(path), ..Serving::cpu() };
    let messages = serving.serve(&corpus.training_set, |feed, roles| {
        let stream = roles.model.device.stream(true)?;
        let mut messages = Vec::new();
        for _ in 0..30 {
            feed.lease(&stream)?;
            messages.extend(feed.take_messages());
        }
        Ok(messages)
    });
    let messages = messages.unwrap();
    assert_eq!(messages.iter().filter(|line| line.contains("list of bad samples")).count(), 1, "{messages:?}");
}

#[test]
fn a_cache_that_cannot_be_written_is_reported_once_and_fails_nothing() {
    let corpus = Corpus::new(16, 24);
    let expected = Serving::cpu().batches(&corpus.training_set, 8).unwrap();
    let folder = corpus.folder.path().join("cache");
    // A file takes the place of the cache folder.
    let replaced = folder.clone();
    let breaks = Arc::new(FaultyRecordings(move |_: &str| {
        let _ = std::fs::remove_dir_all(&replaced);
        let _ = std::fs::write(&replaced, "no folder");
    }));
    let cache = CacheSpec::Disk { budget_bytes: 1 << 30, folder };
    let serving = Serving { recordings: breaks, cache, ..Serving::cpu() };
    assert!(serving.batches(&corpus.training_set, 8).unwrap() == expected);
    let messages = serving.serve(&corpus.training_set, |feed, roles| {
        let stream = roles.model.device.stream(true)?;
        for _ in 0..20 {
            feed.lease(&stream)?;
        }
        Ok(feed.take_messages())
    });
    // The folder is a file by now: either opening fails, or writing does, once.
    match messages {
        Ok(messages) => assert_eq!(messages.iter().filter(|line| line.contains("cache")).count(), 1, "{messages:?}"),
        Err(error) => assert!(error.to_string().contains("cache"), "{error}"),
    }
}

#[test]
fn every_failed_copy_and_lost_card_is_an_error_that_leaves_nothing_behind() {
    let corpus = Corpus::new(17, 20);
    let serving = |fault: Option<SimFault>, route: Route| {
        let mut spec = two_cards(3);
        spec.fault = fault;
        // Over one of the two routes some batches are verified.
        let verify_every = (route == Route::Peer).then_some(2);
        Serving { verify_every, ..Serving::on(Machine::simulated(spec), [0, 1], route) }
    };
    for route in [Route::Peer, Route::Bounce] {
        let clean = serving(None, route);
        let expected = clean.batches(&corpus.training_set, 6).unwrap();
        let SimCounts { calls, copies, .. } = clean.machine.sim().unwrap().counts();
        let faults = (0..copies.min(40)).map(SimFault::FailCopy);
        let lost = (0..calls).step_by(1 + calls as usize / 60).map(SimFault::LoseCard);
        for fault in faults.chain(lost) {
            let broken = serving(Some(fault), route);
            // Threads race for the driver: the fault may come after the last batch that is read. Then nothing may differ.
            match broken.batches(&corpus.training_set, 6) {
                Ok(batches) => assert!(batches == expected, "{fault:?} {route:?} changed a batch without an error"),
                Err(FeedError::Device(_) | FeedError::Features(AudioError::Device(_))) => {}
                Err(error) => panic!("{fault:?} {route:?}: {error:?}"),
            }
            let alive = broken.machine.sim().unwrap().alive();
            assert_eq!(alive, Default::default(), "{fault:?} {route:?}");
        }
    }
}

#[test]
fn a_checkpoint_of_another_corpus_is_refused() {
    let corpus = Corpus::new(18, 20);
    let mut serving = Serving::cpu();
    let state =
        r#"{"next":{"epoch":0,"k":0},"replacements":[{"epoch":0,"k":0,"position":0,"sample":999,"attempt":0}]}"#;
    serving.from = serde_json::from_str(state).unwrap();
    let refused = serving.batches(&corpus.training_set, 1).unwrap_err();
    assert!(matches!(refused, FeedError::ForeignState { sample: 999, num_samples: 20 }), "{refused}");
}
