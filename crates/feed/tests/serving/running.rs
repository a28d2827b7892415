//! A feed that runs: memory that stands still, a gate that tells the truth, threads that follow the waiting.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tandem_audio::Clip;
use tandem_corpus::Sample;
use tandem_device::Route;
use tandem_feed::{FeedError, FromFiles, Recordings, Warm};

use crate::support::{Corpus, PATIENCE, Serving};

#[test]
fn after_warm_up_nothing_is_allocated() {
    let corpus = Corpus::new(21, 30);
    for serving in [Serving::single(1), Serving::pair(1, Route::Peer), Serving::pair(1, Route::Bounce)] {
        let counted = serving.serve(&corpus.material, |feed, roles| {
            let stream = roles.model.device.stream(true)?;
            feed.wait_warm(PATIENCE)?;
            let counters = || serving.cards.map(|card| serving.machine.counters(card));
            let made = |counters: [tandem_device::CardCounters; 2]| {
                counters.map(|counter| (counter.allocations, counter.pinned_allocations, counter.live_bytes))
            };
            let before = made(counters());
            for _ in 0..60 {
                feed.lease(&stream)?;
            }
            Ok((before, made(counters())))
        });
        let (before, after) = counted.unwrap();
        assert_eq!(before, after, "{}", serving.route.name());
    }
}

/// Recordings that come only while a door is open.
#[derive(Default)]
struct Door {
    open: Mutex<usize>,
    opened: Condvar,
}

impl Door {
    /// Lets `count` more recordings through.
    fn let_through(&self, count: usize) {
        *self.open.lock().unwrap() += count;
        self.opened.notify_all();
    }
}

impl Recordings for Door {
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        let closed = |open: &mut usize| *open == 0;
        *self.opened.wait_while(self.open.lock().unwrap(), closed).unwrap() -= 1;
        FromFiles.load_into(sample, clip)
    }
}

#[test]
fn the_gate_says_how_many_batches_are_ready() {
    let corpus = Corpus::new(22, 40);
    for (serving, of) in [(Serving::cpu(), 6), (Serving::pair(2, Route::Bounce), 3)] {
        let door = Arc::new(Door::default());
        let serving = Serving { recordings: door.clone(), ..serving };
        let gates = serving.serve(&corpus.material, |feed, _| {
            let nothing = feed.wait_warm(Duration::ZERO)?;
            // Two batches of four, and two rows of a third.
            door.let_through(10);
            let mut some = Warm { ready: 0, of };
            while some.ready < 2 {
                some = feed.wait_warm(Duration::from_millis(1))?;
            }
            door.let_through(1_000_000);
            Ok([nothing, some, feed.wait_warm(PATIENCE)?])
        });
        assert_eq!(gates.unwrap(), [0, 2, of].map(|ready| Warm { ready, of }), "{}", serving.route.name());
    }
}

#[test]
fn a_producer_that_dies_at_the_gate_says_why() {
    let corpus = Corpus::new(23, 20);
    (0..20).for_each(|number| std::fs::write(corpus.wav(number), "noise").unwrap());
    let error = Serving::cpu().serve(&corpus.material, |feed, _| feed.wait_warm(PATIENCE)).unwrap_err();
    assert!(matches!(error, FeedError::TooManyBad { .. }), "{error}");
}

#[test]
fn stopping_joins_every_thread_in_whatever_state_it_is() {
    let corpus = Corpus::new(24, 30);
    for leased in 0..8 {
        for serving in [Serving::cpu(), Serving::single(leased), Serving::pair(leased, Route::Bounce)] {
            let stopped = serving.serve(&corpus.material, |feed, roles| {
                let stream = roles.model.device.stream(true)?;
                (0..leased).try_for_each(|_| feed.lease(&stream).map(drop))
            });
            stopped.unwrap();
        }
    }
}

/// A decoder that is slower than whoever takes its batches.
struct Slow;

impl Recordings for Slow {
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        tandem_pipeline::StopFlag::new().wait_timeout(Duration::from_millis(30));
        FromFiles.load_into(sample, clip)
    }
}

#[test]
fn threads_follow_a_slow_decoder_and_stay_where_they_were_told_to() {
    let corpus = Corpus::new(25, 40);
    let served = |max_threads: usize| {
        let serving = Serving { recordings: Arc::new(Slow), threads: 2, max_threads, ..Serving::cpu() };
        let outcome = serving.serve(&corpus.material, |feed, roles| {
            let stream = roles.model.device.stream(true)?;
            // Nothing but taking batches, and four rows of 30 ms each: the decoder is what is waited for.
            (0..56).try_for_each(|_| feed.lease(&stream).map(drop))?;
            Ok((feed.stats().threads, feed.take_notes()))
        });
        outcome.unwrap()
    };
    let (threads, notes) = served(12);
    assert!(threads > 2 && threads <= 12, "{threads}: {notes:?}");
    assert!(notes[0].starts_with("decode threads 2 -> 3: "), "{notes:?}");
    assert_eq!(served(2), (2, Vec::new()));
}
