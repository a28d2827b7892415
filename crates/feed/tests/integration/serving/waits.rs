//! Every wait is necessary: without it, some order of work gives a wrong batch.

use std::collections::BTreeSet;

use tandem_device::Route;
use tandem_feed::{FeedError, waits};

use super::support::{Bytes, Corpus, Serving};

/// Orders of work to try before a wait counts as unnecessary.
const SEEDS: u64 = 40;
const COUNT: usize = 14;

fn servings() -> [fn(u64) -> Serving; 5] {
    [
        Serving::single,
        |seed| Serving::pair(seed, Route::Peer),
        |seed| Serving::pair(seed, Route::Bounce),
        |seed| Serving { shares: true, ..Serving::single(seed) },
        |seed| Serving { shares: true, ..Serving::pair(seed, Route::Peer) },
    ]
}

fn served(corpus: &Corpus, serving: &Serving) -> Result<Vec<Bytes>, FeedError> {
    serving.batches(&corpus.training_set, COUNT)
}

#[test]
fn removing_any_one_wait_gives_a_wrong_batch_under_some_order_of_work() {
    let corpus = Corpus::new(4, 30);
    for serving_with in servings() {
        let clean = serving_with(0);
        let expected = served(&corpus, &clean).unwrap();
        for seed in 0..SEEDS / 4 {
            assert!(served(&corpus, &serving_with(seed)).unwrap() == expected, "clean, seed {seed}");
        }
        for wait in clean.machine.faults().waits_seen() {
            if wait.starts_with("the ") {
                // Waits of the tests, and of the verification before the first batch.
                continue;
            }
            let noticed = (0..SEEDS).any(|seed| {
                let serving = serving_with(seed);
                serving.machine.faults().skip_wait(wait);
                // A wrong batch, or an error of the driver.
                served(&corpus, &serving).map_or(true, |batches| batches != expected)
            });
            assert!(noticed, "{}: `{wait}` is not needed", clean.route.name());
        }
    }
}

#[test]
fn a_batch_released_to_another_stream_waits_for_that_stream() {
    let corpus = Corpus::new(6, 30);
    let expected = served(&corpus, &Serving::single(0)).unwrap();
    // Shared batches name their readers one by one.
    for serving_with in servings().into_iter().take(3) {
        for seed in 0..8 {
            let serving = Serving { reads_elsewhere: true, ..serving_with(seed) };
            assert!(served(&corpus, &serving).unwrap() == expected, "{}, seed {seed}", serving.route.name());
        }
    }
}

#[test]
fn every_named_wait_is_done() {
    let corpus = Corpus::new(5, 20);
    let mut seen = BTreeSet::new();
    for serving_with in servings() {
        let serving = serving_with(1);
        served(&corpus, &serving).unwrap();
        seen.extend(serving.machine.faults().waits_seen());
    }
    use tandem_device::transfer;
    let named = [
        waits::COPIED,
        waits::CONSUMED,
        waits::UPLOADED,
        waits::SENT,
        waits::RELEASED,
        waits::ARRIVED,
        waits::READ,
        transfer::waits::WRITTEN,
        transfer::waits::SLOT_FREE,
        transfer::waits::CROSSED,
        transfer::waits::STAGING_FREE,
        transfer::waits::STAGED,
    ];
    for wait in named {
        assert!(seen.contains(wait), "never waited: {wait}");
    }
}
