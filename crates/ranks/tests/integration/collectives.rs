//! What collectives return.

use std::sync::{Condvar, Mutex};

use proptest::prelude::*;
use tandem_ranks::RankError;

use crate::support::with_ranks;

/// The values of an all-reduce that go over the wire at a time.
const CHUNK: usize = 256 << 10;

/// Lets threads pass in a given order.
#[derive(Default)]
struct Turns {
    passed: Mutex<usize>,
    changed: Condvar,
}

impl Turns {
    fn pass(&self, turn: usize) {
        let mut passed = self.changed.wait_while(self.passed.lock().unwrap(), |passed| *passed != turn).unwrap();
        *passed += 1;
        self.changed.notify_all();
    }
}

/// Values whose sum depends on the order of the terms.
fn values(rank: usize, count: usize) -> Vec<f32> {
    let value = |index: usize| {
        let hash =
            (index as u32 ^ (rank as u32) << 27).wrapping_mul(0x9E37_79B9).rotate_left(13).wrapping_mul(0x85EB_CA6B);
        (hash as f32 / 2e9 - 1.0) * [1.0, 1e4, 1e-4][hash as usize % 3]
    };
    (0..count).map(value).collect()
}

fn ordered_sum(ranks: impl Iterator<Item = usize>, count: usize) -> Vec<u32> {
    let add = |mut sum: Vec<f32>, values: Vec<f32>| {
        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        sum
    };
    let sum = ranks.map(|rank| values(rank, count)).reduce(add).unwrap();
    sum.into_iter().map(f32::to_bits).collect()
}

/// Sums on `order.len()` ranks, which begin in this order.
fn check_sum(order: &[usize], count: usize) {
    let turns = Turns::default();
    let sums = with_ranks(order.len() as u32, |group| {
        let rank = group.world().rank as usize;
        let mut values = values(rank, count);
        turns.pass(order.iter().position(|&other| other == rank).unwrap());
        group.all_reduce("gradients", &mut values).unwrap();
        values
    });
    let expected = ordered_sum(0..order.len(), count);
    for (rank, sum) in sums.into_iter().enumerate() {
        let sum: Vec<u32> = sum.into_iter().map(f32::to_bits).collect();
        assert!(sum == expected, "rank {rank} of {order:?}, {count} values");
    }
}

#[test]
fn an_all_reduce_is_the_sum_in_rank_order_for_every_world_and_length() {
    // The test sees the order: another one gives other bits.
    assert_ne!(ordered_sum(0..3, 100), ordered_sum((0..3).rev(), 100));
    for size in [1, 2, 3, 4, 7] {
        for count in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK] {
            let reversed: Vec<usize> = (0..size).rev().collect();
            check_sum(&reversed, count);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn an_all_reduce_has_the_same_bits_for_any_order_of_arrival(
        order in prop::sample::select(vec![2usize, 3, 4, 7]).prop_flat_map(|size| Just((0..size).collect::<Vec<_>>()).prop_shuffle()),
        count in prop::sample::select(vec![1, 100, CHUNK + 1]),
    ) {
        check_sum(&order, count);
    }
}

#[test]
fn every_rank_gathers_everybodys_bytes_in_rank_order() {
    for size in [1, 2, 5] {
        let gathered = with_ranks(size, |group| {
            let rank = group.world().rank;
            let mine = vec![rank as u8; 1000 * rank as usize];
            [group.all_gather("losses", &mine).unwrap(), group.all_gather("losses", b"x").unwrap()]
        });
        let expected: Vec<Vec<u8>> = (0..size).map(|rank| vec![rank as u8; 1000 * rank as usize]).collect();
        for [first, second] in gathered {
            assert_eq!((first, second), (expected.clone(), vec![b"x".to_vec(); size as usize]));
        }
    }
}

#[test]
fn a_large_part_reaches_every_rank() {
    let large: Vec<u8> = (0..5u32 << 20).map(|index| (index * 7) as u8).collect();
    let gathered = with_ranks(3, |group| group.all_gather("states", &large).unwrap());
    assert!(gathered.iter().all(|parts| parts.iter().all(|part| *part == large)));
}

#[test]
fn every_rank_gets_the_bytes_of_rank_0() {
    for size in [1, 3] {
        let results = with_ranks(size, |group| {
            let mine = format!("plan of rank {}", group.world().rank).into_bytes();
            group.broadcast("plan", mine).unwrap()
        });
        assert!(results.iter().all(|result| result == b"plan of rank 0"), "{results:?}");
    }
}

#[test]
fn nobody_passes_a_barrier_before_everybody_is_there() {
    let arrived = Mutex::new(0);
    let seen = with_ranks(4, |group| {
        *arrived.lock().unwrap() += 1;
        group.barrier("epoch").unwrap();
        *arrived.lock().unwrap()
    });
    assert_eq!(seen, [4; 4]);
}

#[test]
fn every_rank_learns_which_fact_differs_and_the_group_goes_on() {
    let errors = with_ranks(3, |group| {
        let seed = if group.world().rank == 2 { "8" } else { "7" };
        let facts = [("model", "nano"), ("seed", seed)].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let same = group.agree("settings", &facts[..1]);
        let error = group.agree("settings", &facts).unwrap_err();
        assert_eq!((same, group.failure(), group.barrier("after")), (Ok(()), None, Ok(())));
        error
    });
    let (what, fact) = ("settings".to_owned(), "seed".to_owned());
    let expected = RankError::Different { what, rank: 2, fact, expected: "7".into(), found: "8".into() };
    assert_eq!(errors, [expected.clone(), expected.clone(), expected]);
}

#[test]
fn a_rank_in_another_collective_is_an_error_that_names_both() {
    let check = |reason: &str, call: &(dyn Fn(&tandem_ranks::Group) -> RankError + Sync)| {
        for error in with_ranks(3, |group| call(&group)) {
            assert_eq!(error, RankError::Protocol { rank: 2, reason: reason.to_owned() });
        }
    };
    check("it is in barrier \"validation\", and rank 0 is in barrier \"step\"", &|group| {
        let what = if group.world().rank == 2 { "validation" } else { "step" };
        group.barrier(what).unwrap_err()
    });
    check("it is in all_reduce \"step\", and rank 0 is in all_gather \"step\"", &|group| match group.world().rank {
        2 => group.all_reduce("step", &mut [1.0]).unwrap_err(),
        _ => group.all_gather("step", b"").unwrap_err(),
    });
    check("it has 5 values in all_reduce \"step\", and rank 0 has 4", &|group| {
        let count = if group.world().rank == 2 { 5 } else { 4 };
        group.all_reduce("step", &mut vec![0.0; count]).unwrap_err()
    });
}

#[test]
fn many_small_collectives_stay_in_order() {
    let sums = with_ranks(4, |group| {
        let mut sum = 0u64;
        for step in 0..200u64 {
            let mine = (step * u64::from(group.world().rank)).to_le_bytes();
            let parts = group.all_gather("step", &mine).unwrap();
            sum += parts.iter().map(|part| u64::from_le_bytes(part[..].try_into().unwrap())).sum::<u64>();
        }
        sum
    });
    assert_eq!(sums, [(0..200).sum::<u64>() * 6; 4]);
}
