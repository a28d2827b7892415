//! The stream of batches is one and the same, however many ask for it and wherever one begins again.

use std::sync::Arc;

use proptest::prelude::*;
use tandem_corpus::{Batch, Cursor, Extent, Order, Parts, SampleIndex};

fn order(seed: u64, lengths: &[u32], batch: u32) -> Order {
    let extents = lengths.iter().map(|frames| Extent { frames: *frames, tokens: frames / 7 });
    let samples = extents.enumerate().map(|(i, extent)| (SampleIndex(i as u32), extent));
    Order::training(seed, Arc::new(Parts::cut(samples, 3, batch).unwrap()))
}

/// One run from `cursor` for `count` batches with `workers` who take turns, finish in an order of their own, and hand
/// in by place. Returns the batches and the cursor to write down.
fn run(order: &Order, cursor: Cursor, count: usize, workers: usize, mut haste: u64) -> (Vec<Batch>, Cursor) {
    let mut places = vec![cursor];
    for _ in 0..count {
        places.push(order.after(*places.last().unwrap()));
    }
    let mut queues: Vec<Vec<usize>> = (0..workers).map(|w| (w..count).step_by(workers).rev().collect()).collect();
    let mut done: Vec<Option<Batch>> = vec![None; count];
    while queues.iter().any(|queue| !queue.is_empty()) {
        haste = haste.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        if let Some(place) = queues[(haste >> 33) as usize % workers].pop() {
            done[place] = order.batch(places[place].epoch, places[place].k);
        }
    }
    (done.into_iter().map(Option::unwrap).collect(), places[count])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]
    #[test]
    fn any_workers_and_any_resumes_give_the_same_stream(
        seed in any::<u64>(),
        lengths in prop::collection::vec(1u32..450, 40..120),
        batch in 1u32..9,
        legs in prop::collection::vec((0usize..40, 1usize..9, any::<u64>()), 1..6),
    ) {
        let total: usize = legs.iter().map(|(count, ..)| count).sum();
        let straight: Vec<Batch> = order(seed, &lengths, batch).batches_from(Cursor::START).take(total).collect();
        let mut resumed = Vec::new();
        let mut saved = serde_json::to_string(&Cursor::START).unwrap();
        for (count, workers, haste) in legs {
            // Each leg is a new process: nothing but the cursor's text is carried over.
            let order = order(seed, &lengths, batch);
            let (batches, cursor) = run(&order, serde_json::from_str(&saved).unwrap(), count, workers, haste);
            resumed.extend(batches);
            saved = serde_json::to_string(&cursor).unwrap();
        }
        prop_assert_eq!(straight, resumed);
    }

    #[test]
    fn replacements_do_not_depend_on_who_asks_first(
        seed in any::<u64>(),
        lengths in prop::collection::vec(1u32..400, 20..60),
        asked in prop::collection::vec((0u64..3, 0u64..8, 0usize..4, 0usize..30), 1..20),
    ) {
        let shared = order(seed, &lengths, 4);
        for (epoch, k, position, attempt) in asked {
            let alone = order(seed, &lengths, 4).replacement(epoch, k, position, attempt);
            prop_assert_eq!(shared.replacement(epoch, k, position, attempt), alone);
        }
    }
}
