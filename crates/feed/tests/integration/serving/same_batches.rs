//! Batch k has the same bytes with any number of threads, on any device, over any route, and after a resume.

use std::sync::Arc;

use proptest::prelude::*;
use tandem_audio::Clip;
use tandem_corpus::{Sample, Shard};
use tandem_device::Route;
use tandem_feed::{CacheKind, CacheSpec, FeedError, FeedState, FromFiles, Recordings};

use super::support::{Bytes, Corpus, Serving};

fn served(corpus: &Corpus, serving: &Serving, count: usize) -> Vec<Bytes> {
    serving.batches(&corpus.training_set, count).unwrap()
}

fn cached(mut serving: Serving, kind: CacheKind, corpus: &Corpus) -> Serving {
    let budget_bytes = 64 << 20;
    serving.cache = match kind {
        CacheKind::None => CacheSpec::None,
        CacheKind::Memory => CacheSpec::Memory { budget_bytes },
        CacheKind::Disk => CacheSpec::Disk { budget_bytes, folder: corpus.folder.path().join("cache") },
    };
    // Some have cached pitch: batches have rows with and without.
    serving.cached_pitches = 14;
    serving
}

/// More than an epoch of the corpora below: caches are written and read.
const COUNT: usize = 9;

#[test]
fn with_any_number_of_threads_over_any_route() {
    let corpus = Corpus::new(1, 26);
    let expected = served(&corpus, &Serving::cpu().workers(1), COUNT);
    assert!(expected.windows(2).all(|pair| pair[0].fields != pair[1].fields), "batches are different");
    assert!(expected.iter().any(|batch| batch.cursor.epoch == 1), "the corpus is served more than once");
    for workers in [1, 2, 7] {
        let on_two = |route| Serving::pair(workers as u64, route);
        for serving in [Serving::cpu(), Serving::single(3), on_two(Route::Peer), on_two(Route::Bounce)] {
            let serving = serving.workers(workers);
            let what = format!("{workers} workers, {} on {:?}", serving.route.name(), serving.machine.kind());
            assert!(served(&corpus, &serving, COUNT) == expected, "{what}");
        }
    }
}

#[test]
fn with_a_cache_and_without() {
    let corpus = Corpus::new(2, 22);
    let expected = served(&corpus, &Serving::cpu(), 12);
    for kind in [CacheKind::Memory, CacheKind::Disk] {
        for workers in [1, 3] {
            let serving = cached(Serving::pair(5, Route::Bounce), kind, &corpus).workers(workers);
            assert!(served(&corpus, &serving, 12) == expected, "{kind:?}, {workers} workers");
        }
    }
    // From a disk cache that an earlier run filled.
    let serving = cached(Serving::cpu(), CacheKind::Disk, &corpus);
    let hits = serving.serve(&corpus.training_set, |feed, roles| {
        let stream = roles.model.device.stream(true)?;
        for _ in 0..5 {
            feed.lease(&stream)?;
        }
        Ok(feed.stats().cache.hits)
    });
    assert!(hits.unwrap() >= 20);
}

/// Files with other audio of the same length, after each has been read once.
#[derive(Default)]
struct Changing(std::sync::Mutex<std::collections::HashSet<String>>);

impl Recordings for Changing {
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        FromFiles.load_into(sample, clip)?;
        if !self.0.lock().unwrap().insert(sample.id.to_owned()) {
            let hum = |i: usize| (8000.0 * (i as f64 * 0.05).sin()) as i16;
            clip.samples.iter_mut().enumerate().for_each(|(i, sample)| *sample = hum(i));
        }
        Ok(())
    }
}

#[test]
fn cached_pitch_belongs_to_the_decoded_audio() {
    let corpus = Corpus::new(3, 12);
    // One thread, so that the first read of a recording is that of the first epoch.
    let changing = |cached_pitches| {
        let recordings = Arc::new(Changing::default());
        Serving { recordings, cached_pitches, threads: 1, max_threads: 1, ..Serving::cpu() }
    };
    let expected = served(&corpus, &changing(0), COUNT);
    assert!(served(&corpus, &changing(12), COUNT) == expected);
    // They did change: unchanged files give other batches.
    assert!(served(&corpus, &Serving::cpu(), COUNT) != expected);
}

/// The first `count` batches of a run with `world` ranks, in the order of the corpus.
fn served_by_ranks(corpus: &Corpus, serving: &Serving, world: u32, count: usize) -> Vec<Bytes> {
    let of_rank = |rank| {
        let serving = Serving { shard: Shard { rank, world }, ..serving.clone() };
        served(corpus, &serving, count.div_ceil(world as usize)).into_iter()
    };
    let mut ranks: Vec<_> = (0..world).map(of_rank).collect();
    (0..count).map(|number| ranks[number % world as usize].next().unwrap()).collect()
}

#[test]
fn with_any_number_of_ranks() {
    let corpus = Corpus::new(4, 26);
    let expected = served(&corpus, &Serving::cpu(), 2 * COUNT);
    for world in [1, 2, 3, 4] {
        assert!(served_by_ranks(&corpus, &Serving::cpu(), world, 2 * COUNT) == expected, "{world} ranks");
    }
}

#[test]
fn after_a_resume_with_another_number_of_ranks() {
    let corpus = Corpus::new(5, 26);
    let expected = served(&corpus, &Serving::cpu(), 2 * COUNT);
    for rank in [0, 1] {
        // Two ranks have trained on three batches each: six of the whole order.
        let serving = Serving { shard: Shard { rank, world: 2 }, ..Serving::cpu() };
        let from = serving.serve(&corpus.training_set, |feed, roles| {
            let stream = roles.model.device.stream(true)?;
            (0..3).try_for_each(|_| feed.lease(&stream).map(drop))?;
            Ok(feed.state())
        });
        let resumed = Serving { from: from.unwrap(), ..Serving::cpu() };
        for world in [1, 3] {
            let rest = served_by_ranks(&corpus, &resumed, world, 2 * COUNT - 6);
            assert!(rest == expected[6..], "the state of rank {rank}, resumed with {world} ranks");
        }
    }
}

proptest! {
    // Each case serves a corpus three times.
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn after_a_stop_at_any_point(
        corpus_seed in 0_u64..1000, seed in any::<u64>(), count in 14_u64..30, at in 0_usize..14,
        workers in 1_usize..5, dual in any::<bool>(),
    ) {
        let corpus = Corpus::new(corpus_seed, count);
        let mut serving = if dual { Serving::pair(seed, Route::Peer) } else { Serving::cpu() };
        serving.seed = seed;
        let uninterrupted = served(&corpus, &serving, 14);
        // Stopped without a shutdown, as by a kill: only the checkpoint is left.
        let checkpoint = serving.clone().workers(workers).serve(&corpus.training_set, |feed, roles| {
            let stream = roles.model.device.stream(true)?;
            for _ in 0..at {
                feed.lease(&stream)?;
            }
            Ok(serde_json::to_string(&feed.state()).unwrap())
        }).unwrap();
        serving.from = serde_json::from_str::<FeedState>(&checkpoint).unwrap();
        let rest = served(&corpus, &serving.workers(workers), 14 - at);
        prop_assert!(rest == uninterrupted[at..], "resumed from {checkpoint}");
    }
}
