//! What the order promises: nothing twice, nothing forgotten, everything in a shape that holds it.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Lengths of 1 to 500 frames, spread by a hash.
fn lengths(count: u32) -> Vec<(SampleIndex, u32)> {
    (0..count).map(|i| (SampleIndex(i), 1 + random::below(9, u64::from(i), 500) as u32)).collect()
}

fn order(count: u32, edges: &[u32], batch: u32, tail: Tail) -> Order {
    Order::new(1234, BucketTable::new(edges.to_vec(), batch).unwrap(), tail, lengths(count)).unwrap()
}

fn epoch(order: &Order, number: u64) -> Vec<Batch> {
    (0..order.num_batches()).map(|k| order.batch(number, k).expect("inside the epoch")).collect()
}

#[test]
fn batches_never_change() {
    let order = order(20, &[100, 300, 500], 4, Tail::LeaveOut);
    let stored: Vec<(usize, Vec<u32>)> = epoch(&order, 3)
        .into_iter()
        .map(|batch| (batch.bucket, batch.samples.iter().map(|sample| sample.0).collect()))
        .collect();
    let expected = [
        (2, vec![1, 0, 15, 13]),
        (2, vec![14, 8, 6, 5]),
        (1, vec![18, 4, 10, 12]),
        (2, vec![11, 19, 2, 7]),
        (1, vec![17, 9, 16, 3]),
    ];
    assert_eq!(stored, expected);
    assert_eq!(order.replacement(3, 1, 2, 0), Some(SampleIndex(15)));
}

#[test]
fn every_sample_once_and_every_batch_full() {
    for (count, edges, batch) in [
        (16, &[500][..], 16),
        (31, &[500], 16),
        (100, &[50, 100, 200, 300, 400, 500], 7),
        (100, &[1, 2, 3, 500], 33),
        (1000, &[100, 101, 102, 499, 500, 9000], 16),
    ] {
        let order = order(count, edges, batch, Tail::LeaveOut);
        let lengths: BTreeMap<_, _> = lengths(count).into_iter().collect();
        for number in 0..4 {
            let mut seen = BTreeSet::new();
            for batch in epoch(&order, number) {
                assert_eq!(batch.samples.len(), order.table().batch() as usize);
                for sample in &batch.samples {
                    assert!(seen.insert(*sample), "{sample:?} twice in epoch {number}");
                    assert!(lengths[sample] <= edges[batch.bucket]);
                }
            }
            let out: BTreeSet<_> = order.sitting_out(number).into_iter().collect();
            assert_eq!(out.len(), count as usize % batch as usize);
            assert!(out.is_disjoint(&seen));
            assert_eq!(out.len() + seen.len(), count as usize);
            assert_eq!(order.batch(number, order.num_batches()), None);
        }
    }
}

#[test]
fn nobody_sits_out_twice_in_a_row_and_all_as_often() {
    for (count, batch) in [(31, 16), (100, 7), (47, 24)] {
        let order = order(count, &[100, 500], batch, Tail::LeaveOut);
        let mut times = BTreeMap::new();
        let mut before = BTreeSet::new();
        for number in 0..u64::from(count) {
            let out: BTreeSet<_> = order.sitting_out(number).into_iter().collect();
            assert!(out.is_disjoint(&before));
            out.iter().for_each(|sample| *times.entry(*sample).or_insert(0) += 1);
            before = out;
        }
        assert!(times.len() == count as usize && times.values().all(|time| *time == count % batch), "{times:?}");
    }
}

#[test]
fn evaluation_sees_every_sample_and_one_short_batch() {
    for (count, batch) in [(1, 16), (5, 16), (100, 7), (64, 16)] {
        let order = order(count, &[100, 200, 500, 9000], batch, Tail::Short);
        let batches = epoch(&order, 0);
        let seen: BTreeSet<_> = batches.iter().flat_map(|batch| &batch.samples).collect();
        assert_eq!(seen.len(), count as usize);
        let short = batches.iter().filter(|b| b.samples.len() < batch as usize).count();
        assert_eq!(short, usize::from(count % batch != 0));
        assert!(batches.iter().all(|batch| !batch.samples.is_empty() && batch.bucket < 3));
        assert!(order.sitting_out(0).is_empty());
    }
}

#[test]
fn leftovers_move_up_no_further_than_they_must() {
    let order = order(1000, &[100, 200, 300, 400, 500], 16, Tail::LeaveOut);
    let home: BTreeMap<_, _> =
        lengths(1000).into_iter().map(|(i, n)| (i, order.table().bucket_of(n).unwrap())).collect();
    for batch in epoch(&order, 1) {
        let moved = batch.samples.iter().filter(|sample| home[sample] != batch.bucket);
        assert!(moved.clone().all(|sample| home[sample] + 1 == batch.bucket));
    }
}

#[test]
fn epochs_and_seeds_differ_and_buckets_are_mixed() {
    let order = order(400, &[100, 200, 300, 400, 500], 8, Tail::LeaveOut);
    let other = Order::new(1235, order.table().clone(), Tail::LeaveOut, lengths(400)).unwrap();
    assert_ne!(epoch(&order, 0), epoch(&order, 1));
    assert_ne!(epoch(&order, 0), epoch(&other, 0));
    let buckets: Vec<usize> = epoch(&order, 0).iter().map(|batch| batch.bucket).collect();
    let changes = buckets.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes > buckets.len() / 2, "{buckets:?}");
}

#[test]
fn a_replacement_fits_and_every_candidate_comes_up_once() {
    let order = order(100, &[100, 200, 500], 8, Tail::LeaveOut);
    let lengths: BTreeMap<_, _> = lengths(100).into_iter().collect();
    for k in 0..order.num_batches() {
        let batch = order.batch(2, k).unwrap();
        let edge = order.table().max_frames()[batch.bucket];
        let tried: Vec<_> = (0..).map_while(|attempt| order.replacement(2, k, 3, attempt)).collect();
        let fitting = lengths.values().filter(|frames| **frames <= edge).count();
        assert_eq!(tried.len(), fitting - 1, "all but the bad one");
        assert_eq!(tried.iter().collect::<BTreeSet<_>>().len(), tried.len());
        assert!(!tried.contains(&batch.samples[3]) && tried.iter().all(|sample| lengths[sample] <= edge));
        let first_repeat = tried.iter().position(|sample| batch.samples.contains(sample)).unwrap();
        assert!(tried[first_repeat..].iter().all(|sample| batch.samples.contains(sample)));
        let own_bucket = |sample: &SampleIndex| order.table().bucket_of(lengths[sample]) == Some(batch.bucket);
        assert!(order.members[batch.bucket].len() <= 8 || own_bucket(&tried[0]));
        assert_ne!(order.replacement(2, k, 3, 0), order.replacement(2, k, 4, 0).filter(|_| fitting > 40));
    }
    assert_eq!(order.replacement(2, 0, 8, 0), None);
    assert_eq!(order.replacement(2, 99, 0, 0), None);
}

#[test]
fn shards_are_equal_parts() {
    let batch = order(64, &[500], 12, Tail::LeaveOut).batch(0, 0).unwrap();
    assert_eq!(batch.shard(Shard::WHOLE), batch.samples);
    for world in [2, 3, 4, 6, 12] {
        let parts: Vec<&[SampleIndex]> = (0..world).map(|rank| batch.shard(Shard { rank, world })).collect();
        assert_eq!(parts.concat(), batch.samples);
        assert!(parts.iter().all(|part| part.len() == 12 / world as usize));
    }
    assert!(batch.shard(Shard { rank: 5, world: 2 }).is_empty());
}

#[test]
fn what_makes_no_batch_is_refused() {
    let refused = |edges: &[u32], batch: u32| BucketTable::new(edges.to_vec(), batch).is_err();
    assert!(refused(&[], 4) && refused(&[0, 5], 4) && refused(&[5, 5], 4) && refused(&[9, 5], 4) && refused(&[5], 0));
    let table = BucketTable::new(vec![100], 4).unwrap();
    let new = |tail, count| Order::new(0, table.clone(), tail, (0..count).map(|i| (SampleIndex(i), 90 + 2 * i)));
    assert!(matches!(new(Tail::LeaveOut, 3), Err(CorpusError::TooFewSamples { usable: 3, batch: 4 })));
    assert!(matches!(new(Tail::Short, 0), Err(CorpusError::TooFewSamples { usable: 0, .. })));
    let order = new(Tail::LeaveOut, 10).unwrap();
    assert_eq!((order.num_usable(), order.too_long().len(), order.num_batches()), (6, 4, 1));
}
