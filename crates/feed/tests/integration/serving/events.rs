//! What a feed reports to its log: its settings, and the times of every batch in every stage by the devices' clocks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use tandem_device::Route;
use tandem_events::{Emitter, RunEvent, Sink};

use super::support::{Corpus, Generated, Serving};

#[derive(Default)]
struct EventBuffer(Mutex<Vec<RunEvent>>);

impl Sink for EventBuffer {
    fn emit(&self, event: RunEvent) {
        self.0.lock().unwrap().push(event);
    }
}

/// Steps queued before the first has ended, as a trainer does.
const AHEAD: usize = 2;

/// All events while `count` batches are leased.
fn events(serving: Serving, corpus: &Corpus, count: usize) -> Vec<RunEvent> {
    let buffer = Arc::new(EventBuffer::default());
    let serving = Serving { emitter: Emitter::to(buffer.clone()), ..serving };
    let served = serving.serve(&corpus.training_set, |feed, roles| {
        let stream = roles.model.device.stream(true)?;
        let mut in_flight = VecDeque::new();
        for _ in 0..count {
            feed.lease(&stream)?;
            let done = roles.model.device.event()?;
            stream.record(&done)?;
            in_flight.push_back(done);
            if in_flight.len() > AHEAD {
                in_flight.pop_front().unwrap().synchronize("the test waits for a step")?;
            }
        }
        Ok(())
    });
    served.unwrap();
    std::mem::take(&mut buffer.0.lock().unwrap())
}

#[test]
fn every_batch_is_timed_in_every_stage_even_on_a_slow_device() {
    let corpus = Corpus::new(31, 30);
    let on_card = ["features", "load", "upload"];
    let with_transfer = ["features", "load", "transfer", "upload"];
    for seed in 0..6 {
        for (serving, stages) in [
            (Serving::cpu(), &on_card[..]),
            (Serving::single(seed), &on_card),
            (Serving::pair(seed, Route::Peer), &with_transfer),
            (Serving::pair(seed, Route::Bounce), &with_transfer),
        ] {
            let route = serving.route;
            let mut batches: BTreeMap<String, Vec<u64>> = BTreeMap::new();
            for event in events(serving, &corpus, 60) {
                let RunEvent::Stage { stage, batch, ns, busy_ns, .. } = event else { continue };
                assert!(ns > 0 && busy_ns > 0, "{stage} of batch {batch}, {route:?}");
                // A bounce has two legs; decoding has two threads.
                let legs = if stage == "transfer" && route == Route::Bounce { 2 } else { 1 };
                assert!(stage == "load" || (legs * ns >= busy_ns && busy_ns >= ns), "{stage}: {ns} {busy_ns}");
                batches.entry(stage).or_default().push(batch);
            }
            assert_eq!(batches.keys().collect::<Vec<_>>(), stages, "{route:?}");
            for (stage, batches) in batches {
                // Batches in flight at the end are not reported: at most as many as there are slots.
                assert!(batches.len() >= 40, "{stage}, {route:?}: {batches:?}");
                assert!(batches.iter().copied().eq(0..batches.len() as u64), "{stage}, {route:?}: {batches:?}");
            }
        }
    }
}

#[test]
fn the_setting_is_reported_first_and_with_every_change() {
    let corpus = Corpus::new(32, 40);
    let recordings = Arc::new(Generated { pause: std::time::Duration::from_millis(5) });
    let serving = Serving { recordings, threads: 1, max_threads: 4, ..Serving::cpu() };
    let events = events(serving, &corpus, 100);
    let setting = |event: &RunEvent| match event {
        RunEvent::FeedSetting { threads, buffer_size, prefetch, route, cores } => {
            assert!(*cores > 0);
            Some((*threads, *buffer_size, *prefetch, route.clone()))
        }
        _ => None,
    };
    assert_eq!(setting(&events[0]), Some((1, 6, 3, "handover".to_owned())));
    let at = 1 + events[1..].iter().position(|event| setting(event).is_some()).unwrap();
    let RunEvent::Note { text } = &events[at + 1] else { panic!("{:?}", events[at + 1]) };
    let threads = setting(&events[at]).unwrap().0;
    assert!(text.starts_with(&format!("decode threads 1 → {threads} (")), "{text}");
}
