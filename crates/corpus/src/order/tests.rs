//! What the order promises: nothing twice, nothing forgotten, everything in a row that holds it.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// Lengths of 1 to 500 frames, spread by a hash, and texts that follow them loosely.
fn samples(count: u32) -> Vec<(SampleIndex, Extent)> {
    let extent = |i: u32| {
        let frames = 1 + keyed::below(9, u64::from(i), 500) as u32;
        Extent { frames, tokens: 1 + frames / 8 + keyed::below(10, u64::from(i), 9) as u32 }
    };
    (0..count).map(|i| (SampleIndex(i), extent(i))).collect()
}

fn parts(count: u32, num_shapes: usize, batch: u32) -> Arc<Parts> {
    Arc::new(Parts::cut(samples(count), num_shapes, batch).unwrap())
}

fn order(count: u32, num_shapes: usize, batch: u32) -> Order {
    Order::training(1234, parts(count, num_shapes, batch))
}

fn epoch(order: &Order, number: u64) -> Vec<Batch> {
    (0..order.num_batches()).map(|k| order.batch(number, k).expect("inside the epoch")).collect()
}

#[test]
fn batches_never_change() {
    let order = order(20, 2, 4);
    let stored: Vec<(usize, Vec<u32>)> = epoch(&order, 3)
        .into_iter()
        .map(|batch| (batch.bucket, batch.samples().map(|sample| sample.0).collect()))
        .collect();
    let expected = [
        (1, vec![0, 3, 15, 5]),
        (1, vec![9, 10, 1, 11]),
        (0, vec![12, 17, 6, 19]),
        (0, vec![4, 2, 16, 8]),
        (0, vec![18, 7, 13, 14]),
    ];
    assert_eq!(stored, expected);
    assert_eq!(order.replacement(3, 1, 2, 0), Some(SampleIndex(15)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn every_sample_once_in_a_row_of_its_part_and_every_batch_full(
        count in 1_u32..300, num_shapes in 1_usize..9, batch in 1_u32..40, seed: u64, first in 0_u64..1000,
    ) {
        let parts = parts(count, num_shapes, batch);
        let order = Order::training(seed, Arc::clone(&parts));
        prop_assert_eq!(order.num_batches() as usize, count as usize / parts.batch());
        for number in first..first + 2 {
            let mut seen = BTreeSet::new();
            for batch in epoch(&order, number) {
                prop_assert_eq!(batch.rows.len(), parts.batch());
                for (row, sample) in batch.rows.iter().enumerate() {
                    let sample = sample.expect("no row is empty in training");
                    prop_assert!(seen.insert(sample), "{:?} twice in epoch {}", sample, number);
                    let member = parts.members(batch.bucket, row).iter().find(|(member, _)| *member == sample);
                    let (_, extent) = member.expect("it is of the row's part");
                    prop_assert!(extent.fits(&parts.longest(batch.bucket, row)));
                }
            }
            let out: BTreeSet<_> = order.sitting_out(number).into_iter().collect();
            prop_assert_eq!(out.len(), count as usize % parts.batch());
            prop_assert!(out.is_disjoint(&seen));
            prop_assert_eq!(out.len() + seen.len(), count as usize);
            prop_assert_eq!(order.batch(number, order.num_batches()), None);
        }
    }

    #[test]
    fn evaluation_sees_every_sample_that_fits_once(
        count in 1_u32..200, num_shapes in 1_usize..5, batch in 1_u32..20, longest in 100_u32..600,
    ) {
        // Rows as training would have them, for samples of their own; the longest may be too long for all of them.
        let rows = parts(150, num_shapes, batch);
        let row = |shape, row| rows.longest(shape, row);
        let shapes: Vec<Vec<Extent>> =
            (0..rows.num_shapes()).map(|shape| (0..rows.batch()).map(|i| row(shape, i)).collect()).collect();
        let mut looked_at = samples(count);
        looked_at[0].1.frames = longest;
        let extents: BTreeMap<_, _> = looked_at.iter().copied().collect();
        let fits = |extent: &Extent| shapes.iter().flatten().any(|row| extent.fits(row));
        let Ok((order, too_long)) = Order::evaluation(shapes.clone(), looked_at.clone()) else {
            prop_assert!(!extents.values().any(fits));
            return Ok(());
        };
        let mut seen: BTreeSet<_> = too_long.iter().copied().collect();
        prop_assert!(too_long.iter().all(|sample| !fits(&extents[sample])));
        for batch in epoch(&order, 5) {
            prop_assert_eq!(batch.rows.len(), shapes[batch.bucket].len());
            prop_assert!(batch.samples().count() > 0);
            for (row, sample) in batch.rows.iter().enumerate().filter_map(|(row, sample)| Some((row, (*sample)?))) {
                prop_assert!(seen.insert(sample), "{:?} twice", sample);
                prop_assert!(extents[&sample].fits(&shapes[batch.bucket][row]));
            }
        }
        prop_assert_eq!(seen.len(), count as usize);
        prop_assert!(order.sitting_out(0).is_empty());
        let rows = |number| epoch(&order, number).into_iter().map(|batch| batch.rows).collect::<Vec<_>>();
        prop_assert_eq!(rows(0), rows(9));
    }
}

#[test]
fn nobody_sits_out_twice_in_a_row_and_all_of_a_part_as_often() {
    for (count, num_shapes, batch) in [(31, 1, 16), (100, 2, 7), (47, 1, 15), (101, 3, 6)] {
        let order = order(count, num_shapes, batch);
        let parts = parts(count, num_shapes, batch);
        let mut times = BTreeMap::new();
        let mut before = BTreeSet::new();
        for number in 0..2520 {
            let out: BTreeSet<_> = order.sitting_out(number).into_iter().collect();
            assert!(out.is_disjoint(&before));
            out.iter().for_each(|sample| *times.entry(*sample).or_insert(0) += 1);
            before = out;
        }
        for (shape, row) in (0..parts.num_shapes()).flat_map(|shape| (0..parts.batch()).map(move |row| (shape, row))) {
            let members = parts.members(shape, row);
            let often: BTreeSet<_> =
                members.iter().map(|(member, _)| times.get(member).copied().unwrap_or(0)).collect();
            assert!(often.len() == 1 || 2520 % members.len() != 0, "{often:?}");
        }
    }
}

#[test]
fn an_evaluation_of_what_training_has_needs_hardly_more_batches() {
    let (train, looked_at) = (parts(1000, 2, 16), samples(100));
    let shapes = (0..2).map(|shape| (0..16).map(|row| train.longest(shape, row)).collect()).collect();
    let (order, too_long) = Order::evaluation(shapes, looked_at).unwrap();
    assert_eq!((too_long.len(), order.num_samples()), (0, 100));
    // Seven would hold them if their lengths were those of the rows.
    assert!(order.num_batches() <= 10, "{}", order.num_batches());
}

#[test]
fn nothing_that_fits_is_an_error() {
    let row = Extent { frames: 100, tokens: 10 };
    let check = |samples: &[(u32, u32)], expected: Option<usize>| {
        let samples: Vec<_> = samples
            .iter()
            .enumerate()
            .map(|(i, (frames, tokens))| (SampleIndex(i as u32), Extent { frames: *frames, tokens: *tokens }))
            .collect();
        match Order::evaluation(vec![vec![row; 4]], samples) {
            Ok((_, too_long)) => assert_eq!(Some(too_long.len()), expected),
            Err(error) => assert!(matches!(error, CorpusError::NothingFits { .. }) && expected.is_none(), "{error}"),
        }
    };
    check(&[], None);
    check(&[(101, 1), (1, 11)], None);
    check(&[(101, 1), (100, 10), (1, 11)], Some(2));
}

#[test]
fn epochs_and_seeds_differ_and_shapes_are_mixed() {
    let order = order(400, 5, 8);
    let other = Order::training(1235, parts(400, 5, 8));
    assert_ne!(epoch(&order, 0), epoch(&order, 1));
    assert_ne!(epoch(&order, 0), epoch(&other, 0));
    let shapes: Vec<usize> = epoch(&order, 0).iter().map(|batch| batch.bucket).collect();
    let changes = shapes.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes > shapes.len() / 2, "{shapes:?}");
    // Who shares a batch with whom changes too, row by row.
    let batch = |number: u64| epoch(&order, number).into_iter().find(|batch| batch.rows[0] == Some(first(&order)));
    assert_ne!(batch(0).map(|batch| batch.rows), batch(1).map(|batch| batch.rows));
}

fn first(order: &Order) -> SampleIndex {
    order.batch(0, 0).and_then(|batch| batch.rows[0]).expect("a batch has a first row")
}

#[test]
fn a_replacement_is_of_the_same_part_and_then_shorter() {
    let (order, parts) = (order(100, 2, 8), parts(100, 2, 8));
    let extents: BTreeMap<_, _> = samples(100).into_iter().collect();
    for (k, position) in (0..order.num_batches()).flat_map(|k| [0, 3, 7].map(|position| (k, position))) {
        let batch = order.batch(2, k).unwrap();
        let bad = batch.rows[position].unwrap();
        let row = parts.longest(batch.bucket, position);
        let members = parts.members(batch.bucket, position);
        let tried: Vec<_> = (0..).map_while(|attempt| order.replacement(2, k, position, attempt)).collect();
        assert_eq!(tried.iter().collect::<BTreeSet<_>>().len(), tried.len());
        assert!(!tried.contains(&bad) && tried.iter().all(|sample| extents[sample].fits(&row)));
        let own: BTreeSet<_> = members.iter().map(|(member, _)| *member).filter(|member| *member != bad).collect();
        assert_eq!(tried[..own.len()].iter().copied().collect::<BTreeSet<_>>(), own);
        let shorter = parts.before(batch.bucket, position).iter().filter(|(_, extent)| extent.fits(&row)).count();
        assert_eq!(tried.len(), own.len() + shorter);
        let repeats = |sample: &SampleIndex| batch.rows.contains(&Some(*sample));
        let first_repeat = tried.iter().position(repeats).unwrap_or(tried.len());
        assert!(tried[first_repeat..].iter().all(repeats));
    }
    assert_eq!(order.replacement(2, 0, 8, 0), None);
    assert_eq!(order.replacement(2, 99, 0, 0), None);
}

#[test]
fn the_shards_of_all_ranks_are_the_whole_order() {
    let order = order(64, 3, 4);
    let whole: Vec<Batch> = order.batches_from(Cursor::START).take(240).collect();
    for world in [1, 2, 3, 4, 5] {
        let mut served: Vec<Batch> = Vec::new();
        let mut group = Cursor::START;
        while served.len() < whole.len() {
            served.extend((0..world).map(|rank| order.shard_batch(group, Shard { rank, world }).unwrap()));
            assert_eq!(group, whole[served.len() - world as usize].cursor);
            group = order.advance(group, u64::from(world));
        }
        assert_eq!(served[..whole.len()], whole, "{world} ranks");
    }
    assert_eq!(order.shard_batch(Cursor::START, Shard { rank: 5, world: 2 }), None);
}

#[test]
fn a_place_many_batches_ahead_is_found_without_walking_there() {
    let order = order(64, 3, 4);
    let walked = |count| (0..count).fold(Cursor { epoch: 1, k: 3 }, |cursor, _| order.after(cursor));
    for count in [0, 1, order.num_batches() - 4, order.num_batches(), 5 * order.num_batches() + 1] {
        assert_eq!(order.advance(Cursor { epoch: 1, k: 3 }, count), walked(count), "{count}");
    }
    // A cursor at the end of an epoch is the beginning of the next.
    assert_eq!(order.advance(Cursor { epoch: 0, k: order.num_batches() }, 0), Cursor { epoch: 1, k: 0 });
}

#[test]
fn a_sample_that_is_given_several_times_is_served_as_often() {
    // Forty samples, every third of them three times.
    let extent = |i: u32| Extent { frames: 100 + 7 * (i % 13), tokens: 9 };
    let times = |i: u32| if i.is_multiple_of(3) { 3 } else { 1 };
    let samples = (0..40).flat_map(|i| std::iter::repeat_n((SampleIndex(i), extent(i)), times(i)));
    let order = Order::training(7, Arc::new(Parts::cut(samples, 2, 4).unwrap()));
    for epoch in 0..20 {
        let mut counts = std::collections::BTreeMap::<SampleIndex, usize>::new();
        for k in 0..order.num_batches() {
            let batch = order.batch(epoch, k).unwrap();
            assert!(batch.rows.iter().all(Option::is_some));
            batch.samples().for_each(|sample| *counts.entry(sample).or_default() += 1);
        }
        order.sitting_out(epoch).into_iter().for_each(|sample| *counts.entry(sample).or_default() += 1);
        assert!((0..40).all(|i| counts[&SampleIndex(i)] == times(i)), "{counts:?}");
    }
}
