//! The tuner against a simulated feed, in virtual time.

use super::simulation::{Burst, SimulatedLoad, SimulatedOutcome, run};
use super::tuner::*;

/// Enough seeds that no test passes by luck.
const SEEDS: std::ops::Range<u64> = 1..21;
const WINDOWS: usize = 400;

const LIMITS: TuningLimits = TuningLimits {
    min_threads: 1,
    max_threads: 16,
    threads_fixed: false,
    min_depth: 2,
    max_depth: 32,
    depth_fixed: false,
};
const START: TuningState = TuningState { threads: 2, depth: 4 };

/// What two threads can just do: 16 clips of 1.2 ms in a step of 10 ms.
const EASY: SimulatedLoad =
    SimulatedLoad { clips_per_batch: 16, step_ns: 10_000_000, clip_ns: 1_200_000, cores: 64, burst: None };

/// One run per seed. Each must reach its last change in the first half.
fn check(limits: TuningLimits, start: TuningState, load: SimulatedLoad, expected: impl Fn(&SimulatedOutcome)) {
    for seed in SEEDS {
        let outcome = run(&mut Tuner::new(limits, start), seed, WINDOWS, |_| load);
        let changes = outcome.changes();
        let last = changes.last().map_or(0, |(window, _)| *window);
        assert!(last < WINDOWS / 2, "seed {seed}: {changes:#?}");
        expected(&outcome);
    }
}

fn slower(times: u64) -> SimulatedLoad {
    SimulatedLoad { clip_ns: times * EASY.clip_ns, ..EASY }
}

#[test]
fn without_stalls_nothing_changes() {
    check(LIMITS, START, EASY, |outcome| {
        assert_eq!(outcome.changes(), []);
        assert_eq!(outcome.setting, START);
    });
}

#[test]
fn a_decoder_four_times_slower_gets_the_threads_it_needs() {
    check(LIMITS, START, slower(4), |outcome| {
        assert!(outcome.last_stall() < 0.02, "{} {:#?}", outcome.last_stall(), outcome.changes());
        // Eight can do it; one growth by half beyond that is allowed.
        assert!((8..=12).contains(&outcome.setting.threads), "{:#?}", outcome.changes());
        assert!(outcome.changes()[0].1.starts_with("decode threads 2 → 3 (training waited for decoding "));
    });
}

#[test]
fn a_number_given_by_hand_stays() {
    let threads_fixed = TuningLimits { threads_fixed: true, ..LIMITS };
    check(threads_fixed, START, slower(4), |outcome| {
        assert_eq!(outcome.setting.threads, 2);
        assert!(outcome.last_stall() > 0.5);
    });
    let depth_fixed = TuningLimits { depth_fixed: true, ..LIMITS };
    check(depth_fixed, START, BURSTS, |outcome| assert_eq!(outcome.setting.depth, START.depth));
    let both = TuningLimits { threads_fixed: true, depth_fixed: true, ..LIMITS };
    // A number given by hand may be outside the limits.
    let odd = TuningState { threads: 40, depth: 1 };
    check(both, odd, slower(4), |outcome| assert_eq!((outcome.changes(), outcome.setting), (vec![], odd)));
}

#[test]
fn threads_beyond_the_cores_are_removed_again() {
    let two_cores = SimulatedLoad { cores: 2, ..slower(2) };
    for threads in [1, 2] {
        check(LIMITS, TuningState { threads, ..START }, two_cores, |outcome| {
            assert!((2..=3).contains(&outcome.setting.threads), "{:#?}", outcome.changes());
            let changes = outcome.changes();
            assert!(changes.iter().any(|(_, why)| why.contains("the disk or the CPU is the limit")), "{changes:#?}");
        });
    }
}

/// Every 32nd batch takes 12 times as long; on average threads are busy for two thirds of the time.
const BURSTS: SimulatedLoad = SimulatedLoad { burst: Some(Burst { every: 32, times: 12 }), clip_ns: 600_000, ..EASY };

#[test]
fn bursts_increase_the_depth() {
    check(LIMITS, START, BURSTS, |outcome| {
        assert!(outcome.setting.depth > START.depth, "{:#?}", outcome.changes());
        assert!(outcome.last_stall() < 0.02, "{} {:#?}", outcome.last_stall(), outcome.changes());
        assert!(outcome.changes()[0].1.contains("although decoding keeps up on average"));
    });
}

#[test]
fn a_limit_is_a_limit() {
    let limits = TuningLimits { max_threads: 5, max_depth: 6, ..LIMITS };
    check(limits, START, slower(8), |outcome| assert_eq!(outcome.setting.threads, 5));
    check(limits, START, BURSTS, |outcome| assert!(outcome.setting.depth <= 6 && outcome.setting.threads <= 5));
    assert_eq!(
        Tuner::new(limits, TuningState { threads: 9, depth: 1 }).setting(),
        TuningState { threads: 5, depth: 2 }
    );
}

#[test]
fn idle_threads_are_removed_slowly() {
    check(LIMITS, TuningState { threads: 12, depth: 8 }, EASY, |outcome| {
        // The work of 1.92 threads: four at 60 % load.
        assert_eq!(outcome.setting.threads, 4, "{:#?}", outcome.changes());
        assert!(outcome.last_stall() < 0.001);
        assert!(outcome.changes().windows(2).all(|pair| pair[1].0 > pair[0].0 + LONG));
    });
}

#[test]
fn a_changed_load_gets_a_new_steady_setting() {
    for seed in SEEDS {
        // As if the second epoch came from a cache, and the third did not.
        let load_at = |window: usize| if (200..400).contains(&window) { EASY } else { slower(4) };
        let outcome = run(&mut Tuner::new(LIMITS, START), seed, 600, load_at);
        let changes = outcome.changes();
        assert!((8..=12).contains(&outcome.setting.threads) && outcome.last_stall() < 0.02, "{seed} {changes:#?}");
        let quiet = |from, to| !changes.iter().any(|(window, _)| (from..to).contains(window));
        assert!(quiet(100, 200) && quiet(330, 400) && quiet(500, 600), "{seed} {changes:#?}");
    }
}

#[test]
fn failed_growth_is_tried_again_when_the_rate_has_moved() {
    for seed in SEEDS {
        // Another program uses all cores but two, then ends.
        let load_at = |window: usize| SimulatedLoad { cores: if window < 200 { 2 } else { 64 }, ..slower(4) };
        let mut tuner = Tuner::new(LIMITS, TuningState { threads: 4, ..START });
        let outcome = run(&mut tuner, seed, WINDOWS, load_at);
        let changes = outcome.changes();
        assert!(outcome.setting.threads >= 8 && outcome.last_stall() < 0.02, "{seed} {changes:#?}");
        assert!(!changes.iter().any(|(window, _)| (100..200).contains(window)), "{seed} {changes:#?}");
    }
}

#[test]
fn one_hiccup_and_empty_windows_change_nothing() {
    let calm = TuningWindow { batches: 16, wall_ns: 1000, load_busy_ns: 1500, ready_low: 2, ..TuningWindow::default() };
    let hiccup = TuningWindow { stall_ns: 400, load_wait_ns: 400, ready_low: 0, ..calm };
    let mut tuner = Tuner::new(LIMITS, START);
    for number in 0..100 {
        let window = if number % LONG == 0 { hiccup } else { calm };
        assert_eq!(tuner.observe(&window), None);
        assert_eq!(tuner.observe(&TuningWindow { batches: 0, ..hiccup }), None);
        assert_eq!(tuner.observe(&TuningWindow { wall_ns: 0, ..hiccup }), None);
    }
}

#[test]
fn a_stall_after_decoding_adds_no_threads() {
    let window = TuningWindow {
        batches: 16,
        wall_ns: 1000,
        stall_ns: 300,
        load_wait_ns: 10,
        load_busy_ns: 2000,
        ..TuningWindow::default()
    };
    let mut tuner = Tuner::new(LIMITS, START);
    let changes: Vec<TuningChange> = (0..50).filter_map(|_| tuner.observe(&window)).collect();
    assert_eq!(tuner.setting(), TuningState { threads: START.threads, depth: LIMITS.max_depth });
    assert_eq!(changes.len(), 3);
    assert_eq!(
        changes[0].why,
        "prefetch depth 4 → 8 (training waited 30.0 % of the last 32 batches, not for decoding)"
    );
}

/// A window of 16 batches in 1 s: `load` threads busy, `spare` of `threads` without room, the step waiting `stall` of the time.
fn window(threads: usize, load: f64, spare: f64, stall: f64) -> TuningWindow {
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    TuningWindow {
        batches: 16,
        wall_ns: ns(1.0),
        stall_ns: ns(stall),
        load_wait_ns: ns(stall),
        slot_wait_ns: ns(spare * threads as f64),
        load_busy_ns: ns(load),
        ready_low: if stall > 0.0 { 0 } else { 2 },
    }
}

/// The number of threads after the same window has led to a change.
fn until_changed(tuner: &mut Tuner, window: &TuningWindow) -> usize {
    (0..20).find_map(|_| tuner.observe(window)).map_or(0, |change| change.setting.threads)
}

/// The number of threads after 100 windows without stalls.
fn idle(tuner: &mut Tuner, load: f64) -> usize {
    (0..100).for_each(|_| drop(tuner.observe(&window(tuner.setting().threads, load, 0.6, 0.0))));
    tuner.setting().threads
}

#[test]
fn a_number_that_was_grown_back_to_is_not_left_again() {
    let mut tuner = Tuner::new(LIMITS, TuningState { threads: 8, depth: 4 });
    assert_eq!(until_changed(&mut tuner, &window(8, 3.0, 0.6, 0.0)), 7);
    assert_eq!(until_changed(&mut tuner, &window(7, 3.0, 0.0, 0.05)), 10);
    assert_eq!(idle(&mut tuner, 3.0), 8);
    // Unless the work halves.
    assert_eq!(idle(&mut tuner, 1.4), 3);
}

#[test]
fn threads_added_for_slow_phases_stay_in_fast_ones() {
    let limits = TuningLimits { depth_fixed: true, ..LIMITS };
    let mut tuner = Tuner::new(limits, START);
    assert_eq!(until_changed(&mut tuner, &window(2, 1.0, 0.4, 0.05)), 3);
    assert_eq!(idle(&mut tuner, 1.0), 3);
    assert_eq!(idle(&mut tuner, 0.4), 1);
}
