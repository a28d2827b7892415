//! What a feed tells its log: how it is set, and what every batch took in every stage, by devices' own clocks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use tandem_device::Route;
use tandem_events::{Emitter, RunEvent, Sink};

use super::support::{Corpus, Planted, Serving};

#[derive(Default)]
struct Heard(Mutex<Vec<RunEvent>>);

impl Sink for Heard {
    fn emit(&self, event: RunEvent) {
        self.0.lock().unwrap().push(event);
    }
}

/// Steps that are queued before the first has ended, as a trainer does.
const AHEAD: usize = 2;

/// Everything that is told while `count` batches are leased.
fn told(serving: Serving, corpus: &Corpus, count: usize) -> Vec<RunEvent> {
    let heard = Arc::new(Heard::default());
    let serving = Serving { emitter: Emitter::to(heard.clone()), ..serving };
    let served = serving.serve(&corpus.material, |feed, roles| {
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
    std::mem::take(&mut heard.0.lock().unwrap())
}

#[test]
fn every_batch_is_timed_in_every_stage_however_far_the_device_is_behind() {
    let corpus = Corpus::new(31, 30);
    let on_card = ["features", "load", "upload"];
    let across = ["features", "load", "transfer", "upload"];
    for seed in 0..6 {
        for (serving, stages) in [
            (Serving::cpu(), &on_card[..]),
            (Serving::single(seed), &on_card),
            (Serving::pair(seed, Route::Peer), &across),
            (Serving::pair(seed, Route::Bounce), &across),
        ] {
            let route = serving.route;
            let mut batches: BTreeMap<String, Vec<u64>> = BTreeMap::new();
            for event in told(serving, &corpus, 60) {
                let RunEvent::Stage { stage, batch, ns, busy_ns, .. } = event else { continue };
                assert!(ns > 0 && busy_ns > 0, "{stage} of batch {batch}, {route:?}");
                // A bounce goes down and up; decoding is done by two threads.
                let legs = if stage == "transfer" && route == Route::Bounce { 2 } else { 1 };
                assert!(stage == "load" || (legs * ns >= busy_ns && busy_ns >= ns), "{stage}: {ns} {busy_ns}");
                batches.entry(stage).or_default().push(batch);
            }
            assert_eq!(batches.keys().collect::<Vec<_>>(), stages, "{route:?}");
            for (stage, batches) in batches {
                // Those under way at the end are not told of: at most as many as there is memory for.
                assert!(batches.len() >= 40, "{stage}, {route:?}: {batches:?}");
                assert!(batches.iter().copied().eq(0..batches.len() as u64), "{stage}, {route:?}: {batches:?}");
            }
        }
    }
}

#[test]
fn the_setting_is_told_first_and_with_every_change() {
    let corpus = Corpus::new(32, 40);
    let recordings = Arc::new(Planted { pause: std::time::Duration::from_millis(5) });
    let serving = Serving { recordings, threads: 1, max_threads: 4, ..Serving::cpu() };
    let told = told(serving, &corpus, 100);
    let setting = |event: &RunEvent| match event {
        RunEvent::FeedSetting { threads, ahead, slots, route, cores } => {
            assert!(*cores > 0);
            Some((*threads, *ahead, *slots, route.clone()))
        }
        _ => None,
    };
    assert_eq!(setting(&told[0]), Some((1, 6, 3, "handover".to_owned())));
    let at = 1 + told[1..].iter().position(|event| setting(event).is_some()).unwrap();
    let RunEvent::Note { text } = &told[at + 1] else { panic!("{:?}", told[at + 1]) };
    let threads = setting(&told[at]).unwrap().0;
    assert!(text.starts_with(&format!("decode threads 1 -> {threads}:")), "{text}");
}
