//! A feed that runs: memory that stands still, a gate that tells the truth, threads that follow the waiting.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tandem_audio::Clip;
use tandem_corpus::Sample;
use tandem_device::Route;
use tandem_feed::{FeedError, FromFiles, Recordings, Warm};

use super::support::{Corpus, PATIENCE, Planted, Serving};

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
fn a_full_feed_has_no_room_left_anywhere() {
    let corpus = Corpus::new(23, 40);
    for serving in [Serving::cpu(), Serving::single(3), Serving::pair(3, Route::Bounce)] {
        let rings = serving.serve(&corpus.material, |feed, _| {
            feed.wait_full(PATIENCE)?;
            Ok(feed.stats().rings)
        });
        for ring in rings.unwrap() {
            assert_eq!(ring.ready, ring.depth.min(ring.slots), "{}: {ring:?}", serving.route.name());
        }
    }
}

/// The first line about decode threads, and how many there are in the end.
fn threads_after(serving: &Serving, corpus: &Corpus, is_hungry: bool) -> (Option<String>, usize) {
    let found = serving.serve(&corpus.material, |feed, roles| {
        let stream = roles.model.device.stream(true)?;
        for _ in 0..400 {
            if !is_hungry {
                // Full rings: everybody waits for this consumer, and it for nobody.
                feed.wait_warm(PATIENCE)?;
            }
            feed.lease(&stream)?;
            let notes = feed.take_notes();
            if let Some(note) = notes.into_iter().find(|note| note.starts_with("decode threads")) {
                return Ok((Some(note), feed.stats().threads));
            }
        }
        Ok((None, feed.stats().threads))
    });
    found.unwrap()
}

#[test]
fn decode_threads_follow_the_waiting_unless_they_were_given() {
    let corpus = Corpus::new(25, 40);
    let check = |[threads, max_threads]: [usize; 2], pause_ms: u64, expected: Option<&str>, after: usize| {
        let recordings = Arc::new(Planted { pause: Duration::from_millis(pause_ms) });
        let serving = Serving { recordings, threads, max_threads, ..Serving::cpu() };
        let (note, found) = threads_after(&serving, &corpus, pause_ms > 0);
        let said = note.as_ref().and_then(|note| note.split(':').next());
        assert_eq!((said, found), (expected, after), "{note:?}");
    };
    check([1, 4], 5, Some("decode threads 1 -> 2"), 2);
    // None of the four has anything to do. They wait one behind the other, and all of it counts.
    check([4, 5], 0, Some("decode threads 4 -> 3"), 3);
    check([4, 4], 0, None, 4);
}

#[test]
fn a_producer_that_dies_at_the_gate_says_why() {
    let corpus = Corpus::new(23, 20);
    (0..20).for_each(|number| std::fs::write(corpus.wav(number), "noise").unwrap());
    // By the gate itself: stopping would say so as well.
    let gate = Serving::cpu().serve(&corpus.material, |feed, _| Ok(feed.wait_warm(PATIENCE)));
    let error = gate.unwrap().unwrap_err();
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
