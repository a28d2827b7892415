use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn rows(frames: &[u32]) -> Vec<(SampleIndex, Extent)> {
    let extent = |frames: u32| Extent { frames, tokens: frames / 7 + frames % 5 };
    frames.iter().enumerate().map(|(i, frames)| (SampleIndex(i as u32 * 3), extent(*frames))).collect()
}

/// Real and padded frames and symbols of the first epoch, counted batch by batch.
fn counted(plan: &BucketPlan, seed: u64, rows: &[(SampleIndex, Extent)]) -> Padding {
    let extents: HashMap<SampleIndex, Extent> = rows.iter().copied().collect();
    let (order, mut counted) = (plan.order(seed), Padding::default());
    for batch in (0..order.num_batches()).filter_map(|k| order.batch(0, k)) {
        counted.batches += 1;
        for (sample, room) in batch.samples().zip(plan.buckets()[batch.bucket].rows()) {
            counted.add(&extents[&sample], room);
        }
    }
    counted
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]
    #[test]
    fn a_plan_holds_every_row(
        frames in prop::collection::vec(1_u32..5000, 1..300),
        num_buckets in 0_usize..20,
        batch in 0_u32..40,
        seed: u64,
        padded: bool,
    ) {
        let rows = rows(&frames);
        let solve = if padded { BucketPlan::padded } else { BucketPlan::solve };
        let plan = solve(&rows, num_buckets, batch).unwrap();
        let buckets = plan.buckets();
        prop_assert!(!buckets.is_empty() && buckets.len() <= num_buckets.clamp(1, MAX_BUCKETS));
        for bucket in buckets {
            prop_assert_eq!(bucket.batch(), u64::from(plan.batch()));
            prop_assert!(bucket.rows().windows(2).all(|w| w[0].frames <= w[1].frames));
            prop_assert!(!padded || bucket.rows().windows(2).all(|w| w[0] == w[1]));
            prop_assert!(bucket.rows().iter().all(|row| row.frames.is_multiple_of(FRAME_STEP.into())));
        }
        let longest = frames.iter().max().unwrap();
        let reached = buckets.iter().map(Bucket::longest_frames).max();
        prop_assert_eq!(reached, Some(u64::from(longest.next_multiple_of(FRAME_STEP))));
        prop_assert!(plan.batch() >= 1 && plan.batch() as usize <= frames.len());

        let padding = plan.padding(seed);
        prop_assert_eq!(padding.batches, rows.len() as u64 / u64::from(plan.batch()));
        // A row too small for its utterance would overflow here.
        prop_assert_eq!(padding, counted(&plan, seed, &rows));
        prop_assert!((0.0..1.0).contains(&padding.frame_waste()) && (0.0..1.0).contains(&padding.token_waste()));
    }

    #[test]
    fn shapes_are_nearly_equal_in_size(
        shape in 1.0_f64..3.0, num_buckets in 2_usize..9, count in 600_u32..2000,
    ) {
        // Lengths of 1 to 10 seconds, crowded towards the short ones.
        let frames: Vec<u32> =
            (0..count).map(|i| 86 + (774.0 * (f64::from(i) / f64::from(count)).powf(shape)) as u32).collect();
        let plan = BucketPlan::solve(&rows(&frames), num_buckets, 16).unwrap();
        let sums: Vec<u64> = plan.buckets().iter().map(Bucket::frames).collect();
        let (least, most) = (*sums.iter().min().unwrap(), *sums.iter().max().unwrap());
        prop_assert!((most - least) as f64 <= 0.04 * least as f64, "{:?}", sums);
    }
}

#[test]
fn equal_lengths_pad_nothing_but_rounding() {
    let check = |frames: u32, expected: f64| {
        let rows: Vec<_> = (0..100).map(|i| (SampleIndex(i), Extent { frames, tokens: 9 })).collect();
        let padding = BucketPlan::solve(&rows, 2, 16).unwrap().padding(7);
        assert_eq!((padding.frame_waste(), padding.token_waste()), (expected, 0.0));
    };
    check(104, 0.0);
    check(100, 4.0 / 104.0);
    assert_eq!(BucketPlan::solve(&[], 2, 16), None);
}

#[test]
fn rows_without_a_corpus_grow_to_the_longest() {
    for (frames, tokens, batch) in [(1000, 200, 16), (8, 1, 4), (9, 200, 3), (64, 3, 1), (100_000, 10_000, 64)] {
        let buckets = even_buckets(frames, tokens, batch);
        assert_eq!(buckets.len(), NUM_BUCKETS);
        for bucket in &buckets {
            assert_eq!(bucket.batch(), batch);
            let rows = bucket.rows();
            assert!(rows.windows(2).all(|w| w[0].frames <= w[1].frames && w[0].tokens <= w[1].tokens));
            assert!(rows.iter().all(|row| row.frames.is_multiple_of(8) && row.frames > 0 && row.tokens > 0));
        }
        let longest = |of: fn(&Bucket) -> u64| buckets.iter().map(of).max().unwrap();
        assert_eq!(longest(Bucket::longest_frames), frames.next_multiple_of(8));
        assert_eq!(longest(Bucket::longest_tokens), tokens);
    }
}

#[test]
fn the_default_shapes_without_a_corpus() {
    let sums: Vec<(u64, u64)> = even_buckets(1000, 200, 16).iter().map(|b| (b.frames(), b.tokens())).collect();
    assert_eq!(sums, [(8312, 1656), (8312, 1656)]);
}
