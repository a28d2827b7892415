//! A running feed: constant memory, the start gate, self-tuning, stopping.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tandem_audio::Clip;
use tandem_corpus::Sample;
use tandem_device::Route;
use tandem_feed::{FeedError, FromFiles, Recordings};

use super::support::{Corpus, Generated, PATIENCE, Serving};

#[test]
fn after_warm_up_nothing_is_allocated() {
    let corpus = Corpus::new(21, 30);
    let verified = Serving { verify_every: Some(1), ..Serving::pair(1, Route::Peer) };
    for serving in [Serving::single(1), Serving::pair(1, Route::Peer), Serving::pair(1, Route::Bounce), verified] {
        let counted = serving.serve(&corpus.training_set, |feed, roles| {
            let stream = roles.model.device.stream(true)?;
            feed.wait_warm(PATIENCE)?;
            let counters = || serving.cards.map(|card| serving.machine.counters(card));
            let counts = |counters: [tandem_device::CardCounters; 2]| {
                counters.map(|counter| (counter.allocations, counter.pinned_allocations, counter.live_bytes))
            };
            let before = counts(counters());
            for _ in 0..60 {
                feed.lease(&stream)?;
            }
            Ok((before, counts(counters())))
        });
        let (before, after) = counted.unwrap();
        assert_eq!(before, after, "{}", serving.route.name());
    }
}

/// Recordings that load only while a door is open.
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
fn the_gate_reports_how_many_batches_are_ready() {
    let corpus = Corpus::new(22, 40);
    for (serving, of) in [(Serving::cpu(), 6), (Serving::pair(2, Route::Bounce), 3)] {
        let door = Arc::new(Door::default());
        let serving = Serving { recordings: door.clone(), ..serving };
        let gates = serving.serve(&corpus.training_set, |feed, _| {
            let nothing = feed.wait_warm(Duration::ZERO)?;
            // Two batches of four rows, and two rows of a third.
            door.let_through(10);
            let mut some = nothing;
            while some.ready < 2 {
                some = feed.wait_warm(Duration::from_millis(1))?;
            }
            door.let_through(1_000_000);
            Ok([nothing, some, feed.wait_warm(PATIENCE)?])
        });
        let counts = gates.unwrap().map(|warm| (warm.ready, warm.of));
        assert_eq!(counts, [0, 2, of].map(|ready| (ready, of)), "{}", serving.route.name());
    }
}

#[test]
fn in_a_full_feed_every_ring_is_full() {
    let corpus = Corpus::new(23, 40);
    for serving in [Serving::cpu(), Serving::single(3), Serving::pair(3, Route::Bounce)] {
        let rings = serving.serve(&corpus.training_set, |feed, _| {
            feed.wait_full(PATIENCE)?;
            Ok(feed.stats().rings)
        });
        for ring in rings.unwrap() {
            // The data thread may hold a loaded batch that came before its turn.
            let full = ring.ready + ring.leased;
            assert_eq!(full, ring.depth.min(ring.slots), "{}: {ring:?}", serving.route.name());
        }
    }
}

/// The first message about decode threads, and their final number.
fn threads_after(serving: &Serving, corpus: &Corpus, is_hungry: bool) -> (Option<String>, usize) {
    let found = serving.serve(&corpus.training_set, |feed, roles| {
        let stream = roles.model.device.stream(true)?;
        for _ in 0..400 {
            if !is_hungry {
                // Full rings: every thread waits for this consumer, which never waits.
                feed.wait_warm(PATIENCE)?;
            }
            feed.lease(&stream)?;
            let messages = feed.take_messages();
            if let Some(message) = messages.into_iter().find(|message| message.starts_with("decode threads")) {
                return Ok((Some(message), feed.stats().threads));
            }
        }
        Ok((None, feed.stats().threads))
    });
    found.unwrap()
}

#[test]
fn decode_threads_follow_the_waits_unless_given_by_hand() {
    let corpus = Corpus::new(25, 40);
    let check = |threads: usize, max_threads: usize, pause_ms: u64, expected: Option<&str>, after: usize| {
        let recordings = Arc::new(Generated { pause: Duration::from_millis(pause_ms) });
        let serving = Serving { recordings, threads, max_threads, ..Serving::cpu() };
        let (message, found) = threads_after(&serving, &corpus, pause_ms > 0);
        let change = message.as_ref().and_then(|message| message.split(" (").next());
        assert_eq!((change, found), (expected, after), "{message:?}");
    };
    check(1, 4, 5, Some("decode threads 1 → 2"), 2);
    // All four are idle. They wait for one lock, and the waits of all of them count.
    check(4, 5, 0, Some("decode threads 4 → 3"), 3);
    check(4, 4, 0, None, 4);
}

#[test]
fn an_error_before_the_first_batch_is_returned_by_the_gate() {
    let corpus = Corpus::new(23, 20);
    (0..20).for_each(|number| std::fs::write(corpus.wav(number), "noise").unwrap());
    // By the gate itself: stopping would return it as well.
    let gate = Serving::cpu().serve(&corpus.training_set, |feed, _| Ok(feed.wait_warm(PATIENCE)));
    let error = gate.unwrap().unwrap_err();
    assert!(matches!(error, FeedError::TooManyBad { .. }), "{error}");
}

#[test]
fn stopping_joins_every_thread_in_any_state() {
    let corpus = Corpus::new(24, 30);
    for leased in 0..8 {
        for serving in [Serving::cpu(), Serving::single(leased), Serving::pair(leased, Route::Bounce)] {
            let stopped = serving.serve(&corpus.training_set, |feed, roles| {
                let stream = roles.model.device.stream(true)?;
                (0..leased).try_for_each(|_| feed.lease(&stream).map(drop))
            });
            stopped.unwrap();
        }
    }
}
