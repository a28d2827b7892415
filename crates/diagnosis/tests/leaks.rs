//! Planted leaks are named in time; memory that wobbles is left alone.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "in a test, a failed unwrap is a failed test"
)]

mod simulator;

use std::collections::BTreeMap;

use simulator::Random;
use tandem_diagnosis::{Leak, LeakKind, Leaks, MemoryOwner};
use tandem_events::{Record, Role, RunEvent, VERSION};

const MIB: f64 = (1 << 20) as f64;
const LIMIT: u64 = 8 << 30;
const STEP_NS: u64 = 20_000_000;

/// What a holder's memory does beside what it always holds, in MiB.
#[derive(Clone, Copy, Debug, Default)]
struct Course {
    /// Grows by so much in 100 steps, from this step on.
    leak: (f64, u64),
    /// Anywhere between nothing and so much.
    noise: f64,
    /// Up and down: from lowest to highest, steps to a turn, where it begins, and whether it falls at once.
    wave: (f64, f64, f64, bool),
    /// Once, at this step.
    step_up: (f64, u64),
    /// For one reading in so many steps: a checkpoint.
    peak: (f64, u64),
}

impl Course {
    fn at(&self, step: u64, random: &mut Random) -> f64 {
        let leaked = self.leak.0 * step.saturating_sub(self.leak.1) as f64 / 100.0;
        let (height, turn, begin, is_saw) = self.wave;
        let phase = (step as f64 / turn.max(1.0) + begin).fract();
        let wave = if is_saw { phase } else { 0.5 + 0.5 * (std::f64::consts::TAU * phase).sin() };
        let up = if step >= self.step_up.1 { self.step_up.0 } else { 0.0 };
        let peak = if self.peak.1 > 0 && step.is_multiple_of(self.peak.1) { self.peak.0 } else { 0.0 };
        peak + leaked + self.noise * random.unit() + height * wave + up
    }

    /// Bounded: some MiB of noise and waves, turns of up to 250 steps, and one step up.
    fn clean(random: &mut Random) -> Course {
        let wave = (random.between(0.0, 4.0), random.between(10.0, 250.0), random.unit(), random.below(2) == 0);
        let step_up = (random.between(0.0, 64.0), random.below(2500) as u64);
        let noise = [0.0, random.between(0.0, 6.0)][random.below(2)];
        let peak = (random.between(0.0, 100.0), [0, 100, 500][random.below(3)]);
        Course { leak: (0.0, 0), noise, wave, step_up, peak }
    }
}

/// The holders of a run: two owners of each role, and the host.
fn holders() -> [MemoryOwner; 5] {
    let owner = |role, name: &str| MemoryOwner::Owner(role, name.to_owned());
    [
        owner(Role::Data, "slots"),
        owner(Role::Data, "uploads"),
        owner(Role::Model, "activations"),
        owner(Role::Model, "parameters"),
        MemoryOwner::Host,
    ]
}

/// A run that tells of its memory every `every` steps.
fn run(courses: &[Course; 5], steps: u64, every: u64, with_owners: bool, random: &mut Random) -> Vec<Record> {
    let mut events = Vec::new();
    // Warm-up: memory comes up and is told of while no step has been made.
    events.extend((0..20).map(|i| (i, host(i as f64 * 50.0 * MIB))));
    for step in 1..=steps {
        let t_ns = step * STEP_NS;
        events.push((t_ns, RunEvent::Step { step, wall_ns: STEP_NS, wait_ns: 0 }));
        if step % every == 0 {
            let held: Vec<f64> = courses.iter().map(|course| MIB * (1000.0 + course.at(step, random))).collect();
            events.extend(told(&held, with_owners).into_iter().map(|event| (t_ns, event)));
        }
    }
    let record = |(seq, (t_ns, event))| Record { v: VERSION, seq: seq as u64, t_ns, dropped: 0, event };
    events.into_iter().enumerate().map(record).collect()
}

fn told(held: &[f64], with_owners: bool) -> Vec<RunEvent> {
    let mut events = Vec::new();
    for (role, names, bytes) in [
        (Role::Data, ["slots", "uploads"], [held[0], held[1]]),
        (Role::Model, ["activations", "parameters"], [held[2], held[3]]),
    ] {
        let used_bytes = bytes.iter().sum::<f64>() as u64;
        events.push(RunEvent::Memory { role, card: 0, used_bytes, limit_bytes: LIMIT, peak_bytes: LIMIT });
        let owners: BTreeMap<String, u64> = names.map(str::to_owned).into_iter().zip(bytes.map(|b| b as u64)).collect();
        events.extend(with_owners.then_some(RunEvent::MemoryOwners { role, owners }));
    }
    events.push(host(held[4]));
    events
}

fn host(bytes: f64) -> RunEvent {
    // What caches hold grows for a whole epoch, and is no leak.
    let accounted_bytes = 3 << 30;
    host_with(bytes as u64, accounted_bytes, 1 << 30)
}

fn host_with(rest_bytes: u64, accounted_bytes: u64, pinned_bytes: u64) -> RunEvent {
    RunEvent::HostMemory { bytes: rest_bytes + accounted_bytes, accounted_bytes, pinned_bytes, limit_bytes: LIMIT }
}

#[test]
fn page_locked_memory_that_grows_is_named_as_such_and_the_cache_is_let_grow() {
    let mut leaks = Leaks::default();
    let mut seen = Vec::new();
    for step in 1..=500_u64 {
        let (pinned, cache) = ((64 << 20) + step * (1 << 20) / 100, step << 20);
        let told = [RunEvent::Step { step, wall_ns: STEP_NS, wait_ns: 0 }, host_with(1 << 30, pinned + cache, pinned)];
        for event in told.into_iter().take(if step % 10 == 0 { 2 } else { 1 }) {
            let record = Record { v: VERSION, seq: step, t_ns: step * STEP_NS, dropped: 0, event };
            seen.extend(leaks.observe(&record));
        }
    }
    let [leak] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(leak.holder, MemoryOwner::Pinned);
    // 8192 MB less what others hold: the pool of 68 MB, the gigabyte nobody accounts for, 400 MB of cache.
    let line =
        "memory of host process, page-locked grows: 1.00 MB in 100 steps, 4 MB since warm-up; the limit of 6768 MB";
    assert!(leak.to_string().starts_with(line), "{leak}");
}

#[test]
fn a_leak_of_a_mebibyte_in_a_hundred_steps_is_named_within_five_hundred() {
    for seed in 0..100_u64 {
        let random = &mut Random(seed);
        let (leaking, from) = ((seed % 5) as usize, [1, random.below(3000) as u64][random.below(2)]);
        let mut courses = [Course::default(); 5];
        courses.iter_mut().for_each(|course| course.noise = random.between(0.0, 1.0));
        courses[leaking].leak = (1.0, from);
        courses[4].peak = (random.between(0.0, 100.0), [0, 100, 500][random.below(3)]);
        let leaks = Leaks::of(&run(&courses, from + 1000, 10, true, random));
        let [leak] = leaks.as_slice() else { panic!("seed {seed}: {leaks:?}") };
        assert_eq!(leak.holder, holders()[leaking], "seed {seed}");
        assert!(leak.step > from && leak.step <= from + 500, "seed {seed}: from {from}, found at {}", leak.step);
        let rate = 100.0 * leak.bytes_per_step / MIB;
        assert!((rate - 1.0).abs() < 0.25, "seed {seed}: {rate}");
        assert_eq!(leak.kind, LeakKind::Slope);
    }
}

#[test]
fn behind_noise_of_some_mebibytes_it_takes_longer() {
    for seed in 0..50_u64 {
        let random = &mut Random(seed);
        let mut courses = [Course::default(); 5];
        courses[4] = Course { leak: (1.0, 1), noise: 6.0, ..Course::default() };
        let leaks = Leaks::of(&run(&courses, 2000, 10, true, random));
        assert_eq!(
            leaks.iter().map(|leak| leak.holder.clone()).collect::<Vec<_>>(),
            [MemoryOwner::Host],
            "seed {seed}"
        );
        assert!(leaks[0].step <= 1200, "seed {seed}: {}", leaks[0].step);
    }
}

#[test]
fn memory_that_wobbles_is_left_alone() {
    for seed in 0..150_u64 {
        let random = &mut Random(seed);
        let courses = [(); 5].map(|()| Course::clean(random));
        let leaks = Leaks::of(&run(&courses, 3000, 10, true, random));
        assert_eq!(leaks, [], "seed {seed}: {courses:#?}");
    }
}

#[test]
fn readings_as_rare_as_the_memory_line_are_enough_where_nothing_wobbles() {
    let mut courses = [Course::default(); 5];
    courses[1].leak = (1.0, 1);
    let leaks = Leaks::of(&run(&courses, 500, 100, true, &mut Random(0)));
    assert_eq!(leaks.iter().map(|leak| leak.holder.clone()).collect::<Vec<_>>(), [holders()[1].clone()]);
}

#[test]
fn without_owners_the_role_is_named() {
    let mut courses = [Course::default(); 5];
    courses[2].leak = (2.0, 1);
    let leaks = Leaks::of(&run(&courses, 500, 10, false, &mut Random(0)));
    assert_eq!(leaks.iter().map(|leak| leak.holder.clone()).collect::<Vec<_>>(), [MemoryOwner::Role(Role::Model)]);
}

/// A step up by so many MiB; whether it is over the threshold.
fn check_threshold(holder: usize, step_up: f64, expected: Option<LeakKind>) {
    let mut courses = [Course::default(); 5];
    courses[holder].step_up = (step_up, 300);
    let leaks = Leaks::of(&run(&courses, 400, 10, true, &mut Random(0)));
    let kinds: Vec<(MemoryOwner, LeakKind)> = leaks.into_iter().map(|leak| (leak.holder, leak.kind)).collect();
    assert_eq!(kinds, expected.map(|kind| (holders()[holder].clone(), kind)).into_iter().collect::<Vec<_>>());
}

#[test]
fn thresholds_are_200_and_500_mb() {
    check_threshold(0, 199.0, None);
    check_threshold(0, 201.0, Some(LeakKind::Threshold));
    check_threshold(3, 499.0, None);
    check_threshold(3, 501.0, Some(LeakKind::Threshold));
}

#[test]
fn a_leak_says_rate_owner_and_when_it_ends() {
    let mut courses = [Course::default(); 5];
    courses[0].leak = (1.0, 0);
    let leaks = Leaks::of(&run(&courses, 500, 10, true, &mut Random(0)));
    let said: Vec<String> = leaks.iter().map(Leak::to_string).collect();
    // 8192 - 1004 MB at 1 MB in 100 steps of 20 ms: 14 376 s.
    let line = "memory of data, slots grows: 1.00 MB in 100 steps, 4 MB since warm-up; the limit of 8192 MB is reached in 3 h 59 min";
    assert_eq!(said, [line]);
}
