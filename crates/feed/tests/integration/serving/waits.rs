//! Every wait is there for a reason: take any one away, and under some order of work a batch is wrong.

use std::collections::BTreeSet;

use tandem_device::Route;
use tandem_feed::{FeedError, waits};

use super::support::{Bytes, Corpus, Serving};

/// Orders of work that are tried before a wait counts as unnecessary.
const SEEDS: u64 = 40;
const COUNT: usize = 14;

fn ways() -> [fn(u64) -> Serving; 3] {
    [Serving::single, |seed| Serving::pair(seed, Route::Peer), |seed| Serving::pair(seed, Route::Bounce)]
}

fn served(corpus: &Corpus, serving: &Serving) -> Result<Vec<Bytes>, FeedError> {
    serving.batches(&corpus.material, COUNT)
}

#[test]
fn taking_any_one_away_is_noticed_under_some_order_of_work() {
    let corpus = Corpus::new(4, 30);
    for way in ways() {
        let clean = way(0);
        let expected = served(&corpus, &clean).unwrap();
        for seed in 0..SEEDS / 4 {
            assert!(served(&corpus, &way(seed)).unwrap() == expected, "clean, seed {seed}");
        }
        for site in clean.machine.faults().waits_seen() {
            if site.starts_with("the ") {
                // The tests' own, and those of the proof before the first batch.
                continue;
            }
            let noticed = (0..SEEDS).any(|seed| {
                let serving = way(seed);
                serving.machine.faults().skip_wait(site);
                // A wrong batch, or a driver that says why not.
                served(&corpus, &serving).map_or(true, |batches| batches != expected)
            });
            assert!(noticed, "{}: nobody misses `{site}`", clean.route.name());
        }
    }
}

#[test]
fn a_batch_that_is_read_on_another_stream_is_kept_for_that_stream() {
    let corpus = Corpus::new(6, 30);
    let expected = served(&corpus, &Serving::single(0)).unwrap();
    for way in ways() {
        for seed in 0..8 {
            let serving = Serving { reads_elsewhere: true, ..way(seed) };
            assert!(served(&corpus, &serving).unwrap() == expected, "{}, seed {seed}", serving.route.name());
        }
    }
}

#[test]
fn every_wait_the_code_names_is_done_somewhere() {
    let corpus = Corpus::new(5, 20);
    let mut seen = BTreeSet::new();
    for way in ways() {
        let serving = way(1);
        served(&corpus, &serving).unwrap();
        seen.extend(serving.machine.faults().waits_seen());
    }
    use tandem_device::transfer::waits as crossing;
    let named = [
        waits::COPIED,
        waits::CONSUMED,
        waits::UPLOADED,
        waits::SENT,
        waits::RELEASED,
        waits::ARRIVED,
        crossing::WRITTEN,
        crossing::SLOT_FREE,
        crossing::CROSSED,
        crossing::STAGING_FREE,
        crossing::STAGED,
    ];
    for site in named {
        assert!(seen.contains(site), "never waited: {site}");
    }
}
