//! Injected leaks are detected in time; memory that fluctuates raises no warning.

use std::collections::BTreeMap;

use tandem_diagnosis::{Leak, LeakKind, Leaks, MemoryOwner};
use tandem_events::{Record, Role, RunEvent, VERSION};

use crate::simulator::Random;

const MIB: f64 = (1 << 20) as f64;
const LIMIT: u64 = 8 << 30;
const STEP_NS: u64 = 20_000_000;

/// How the memory of an owner changes over a run, in MiB above a constant.
#[derive(Clone, Copy, Debug, Default)]
struct MemoryCourse {
    leak: LeakCourse,
    /// Uniform noise from 0 to this.
    noise: f64,
    wave: Wave,
    step_up: StepUp,
    peak: Peak,
}

/// Steady growth from a step on.
#[derive(Clone, Copy, Debug, Default)]
struct LeakCourse {
    per_100_steps: f64,
    from: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Wave {
    height: f64,
    period_steps: f64,
    phase: f64,
    /// Sawtooth instead of sine.
    is_sawtooth: bool,
}

/// A single increase.
#[derive(Clone, Copy, Debug, Default)]
struct StepUp {
    mb: f64,
    at: u64,
}

/// A peak in every reading at a multiple of `every` steps, like a checkpoint's. None if `every` is 0.
#[derive(Clone, Copy, Debug, Default)]
struct Peak {
    mb: f64,
    every: u64,
}

impl Peak {
    fn random(random: &mut Random) -> Peak {
        Peak { mb: random.between(0.0, 100.0), every: [0, 100, 500][random.below(3)] }
    }
}

impl MemoryCourse {
    fn at(&self, step: u64, random: &mut Random) -> f64 {
        let leaked = self.leak.per_100_steps * step.saturating_sub(self.leak.from) as f64 / 100.0;
        let Wave { height, period_steps, phase, is_sawtooth } = self.wave;
        let phase = (step as f64 / period_steps.max(1.0) + phase).fract();
        let wave = if is_sawtooth { phase } else { 0.5 + 0.5 * (std::f64::consts::TAU * phase).sin() };
        let up = if step >= self.step_up.at { self.step_up.mb } else { 0.0 };
        let is_peak = self.peak.every > 0 && step.is_multiple_of(self.peak.every);
        let peak = if is_peak { self.peak.mb } else { 0.0 };
        peak + leaked + self.noise * random.unit() + height * wave + up
    }

    /// Bounded: some MiB of noise and waves with periods of up to 250 steps, and one step up.
    fn clean(random: &mut Random) -> MemoryCourse {
        let wave = Wave {
            height: random.between(0.0, 4.0),
            period_steps: random.between(10.0, 250.0),
            phase: random.unit(),
            is_sawtooth: random.below(2) == 0,
        };
        let step_up = StepUp { mb: random.between(0.0, 64.0), at: random.below(2500) as u64 };
        let noise = [0.0, random.between(0.0, 6.0)][random.below(2)];
        MemoryCourse { leak: LeakCourse::default(), noise, wave, step_up, peak: Peak::random(random) }
    }
}

/// The memory owners of a run: two of each role, and the host.
fn owners() -> [MemoryOwner; 5] {
    let owner = |role, name: &str| MemoryOwner::Arena(role, name.to_owned());
    [
        owner(Role::Data, "slots"),
        owner(Role::Data, "uploads"),
        owner(Role::Model, "activations"),
        owner(Role::Model, "parameters"),
        MemoryOwner::Host,
    ]
}

/// A run that logs its memory every `every` steps.
fn run(courses: &[MemoryCourse; 5], steps: u64, every: u64, with_owners: bool, random: &mut Random) -> Vec<Record> {
    let mut events = Vec::new();
    // Warm-up: memory grows and is logged before the first step.
    events.extend((0..20).map(|i| (i, host(i as f64 * 50.0 * MIB))));
    for step in 1..=steps {
        let t_ns = step * STEP_NS;
        events.push((t_ns, RunEvent::Step { step, wall_ns: STEP_NS, wait_ns: 0 }));
        if step % every == 0 {
            let used: Vec<f64> = courses.iter().map(|course| MIB * (1000.0 + course.at(step, random))).collect();
            events.extend(memory_events(&used, with_owners).into_iter().map(|event| (t_ns, event)));
        }
    }
    let record = |(seq, (t_ns, event))| Record { v: VERSION, seq: seq as u64, t_ns, dropped: 0, event };
    events.into_iter().enumerate().map(record).collect()
}

fn memory_events(used: &[f64], with_owners: bool) -> Vec<RunEvent> {
    let mut events = Vec::new();
    for (role, names, bytes) in [
        (Role::Data, ["slots", "uploads"], [used[0], used[1]]),
        (Role::Model, ["activations", "parameters"], [used[2], used[3]]),
    ] {
        let used_bytes = bytes.iter().sum::<f64>() as u64;
        events.push(RunEvent::Memory { role, card: 0, used_bytes, limit_bytes: LIMIT, peak_bytes: LIMIT });
        let owners: BTreeMap<String, u64> = names.map(str::to_owned).into_iter().zip(bytes.map(|b| b as u64)).collect();
        events.extend(with_owners.then_some(RunEvent::MemoryOwners { role, owners }));
    }
    events.push(host(used[4]));
    events
}

fn host(bytes: f64) -> RunEvent {
    // Caches grow for a whole epoch, which is not a leak.
    let accounted_bytes = 3 << 30;
    host_with(bytes as u64, accounted_bytes, 1 << 30)
}

fn host_with(rest_bytes: u64, accounted_bytes: u64, pinned_bytes: u64) -> RunEvent {
    RunEvent::HostMemory { bytes: rest_bytes + accounted_bytes, accounted_bytes, pinned_bytes, limit_bytes: LIMIT }
}

#[test]
fn a_leak_of_pinned_memory_is_named_and_a_growing_cache_is_no_leak() {
    let mut leaks = Leaks::default();
    let mut seen = Vec::new();
    for step in 1..=500_u64 {
        let (pinned, cache) = ((64 << 20) + step * (1 << 20) / 100, step << 20);
        let events =
            [RunEvent::Step { step, wall_ns: STEP_NS, wait_ns: 0 }, host_with(1 << 30, pinned + cache, pinned)];
        for event in events.into_iter().take(if step % 10 == 0 { 2 } else { 1 }) {
            let record = Record { v: VERSION, seq: step, t_ns: step * STEP_NS, dropped: 0, event };
            seen.extend(leaks.observe(&record));
        }
    }
    let [leak] = seen.as_slice() else { panic!("{seen:?}") };
    assert_eq!(leak.owner, MemoryOwner::Pinned);
    // 8192 MB minus the pool of 68 MB, 1 GB that is not accounted for, and 400 MB of cache.
    let line = "memory leak in host process (pinned memory): 1.00 MB per 100 steps, 4 MB since warm-up; reaches the limit of 6768 MB";
    assert!(leak.to_string().starts_with(line), "{leak}");
}

#[test]
fn a_leak_of_a_mebibyte_per_hundred_steps_is_detected_within_five_hundred() {
    for seed in 0..100_u64 {
        let random = &mut Random::new(seed);
        let (leaking, from) = ((seed % 5) as usize, [1, random.below(3000) as u64][random.below(2)]);
        let mut courses = [MemoryCourse::default(); 5];
        courses.iter_mut().for_each(|course| course.noise = random.between(0.0, 1.0));
        courses[leaking].leak = LeakCourse { per_100_steps: 1.0, from };
        courses[4].peak = Peak::random(random);
        let leaks = Leaks::of(&run(&courses, from + 1000, 10, true, random));
        let [leak] = leaks.as_slice() else { panic!("seed {seed}: {leaks:?}") };
        assert_eq!(leak.owner, owners()[leaking], "seed {seed}");
        assert!(leak.step > from && leak.step <= from + 500, "seed {seed}: from {from}, detected at {}", leak.step);
        let rate = 100.0 * leak.bytes_per_step / MIB;
        assert!((rate - 1.0).abs() < 0.25, "seed {seed}: {rate}");
        assert_eq!(leak.kind, LeakKind::Slope);
    }
}

#[test]
fn with_noise_of_some_mebibytes_detection_takes_longer() {
    for seed in 0..50_u64 {
        let random = &mut Random::new(seed);
        let mut courses = [MemoryCourse::default(); 5];
        let leak = LeakCourse { per_100_steps: 1.0, from: 1 };
        courses[4] = MemoryCourse { leak, noise: 6.0, ..MemoryCourse::default() };
        let leaks = Leaks::of(&run(&courses, 2000, 10, true, random));
        assert_eq!(leaks.iter().map(|leak| leak.owner.clone()).collect::<Vec<_>>(), [MemoryOwner::Host], "seed {seed}");
        assert!(leaks[0].step <= 1200, "seed {seed}: {}", leaks[0].step);
    }
}

#[test]
fn memory_that_fluctuates_raises_no_warning() {
    for seed in 0..150_u64 {
        let random = &mut Random::new(seed);
        let courses = [(); 5].map(|()| MemoryCourse::clean(random));
        let leaks = Leaks::of(&run(&courses, 3000, 10, true, random));
        assert_eq!(leaks, [], "seed {seed}: {courses:#?}");
    }
}

#[test]
fn a_reading_every_100_steps_is_enough_without_fluctuation() {
    let mut courses = [MemoryCourse::default(); 5];
    courses[1].leak = LeakCourse { per_100_steps: 1.0, from: 1 };
    let leaks = Leaks::of(&run(&courses, 500, 100, true, &mut Random::new(0)));
    assert_eq!(leaks.iter().map(|leak| leak.owner.clone()).collect::<Vec<_>>(), [owners()[1].clone()]);
}

#[test]
fn without_owners_the_role_is_named() {
    let mut courses = [MemoryCourse::default(); 5];
    courses[2].leak = LeakCourse { per_100_steps: 2.0, from: 1 };
    let leaks = Leaks::of(&run(&courses, 500, 10, false, &mut Random::new(0)));
    assert_eq!(leaks.iter().map(|leak| leak.owner.clone()).collect::<Vec<_>>(), [MemoryOwner::Role(Role::Model)]);
}

/// Checks whether a step up of `mb` MiB exceeds the threshold of an owner.
fn check_threshold(owner: usize, mb: f64, expected: Option<LeakKind>) {
    let mut courses = [MemoryCourse::default(); 5];
    courses[owner].step_up = StepUp { mb, at: 300 };
    let leaks = Leaks::of(&run(&courses, 400, 10, true, &mut Random::new(0)));
    let kinds: Vec<(MemoryOwner, LeakKind)> = leaks.into_iter().map(|leak| (leak.owner, leak.kind)).collect();
    assert_eq!(kinds, expected.map(|kind| (owners()[owner].clone(), kind)).into_iter().collect::<Vec<_>>());
}

#[test]
fn thresholds_are_200_and_500_mb() {
    check_threshold(0, 199.0, None);
    check_threshold(0, 201.0, Some(LeakKind::Threshold));
    check_threshold(3, 499.0, None);
    check_threshold(3, 501.0, Some(LeakKind::Threshold));
}

#[test]
fn a_leak_message_has_owner_rate_and_time_to_the_limit() {
    let mut courses = [MemoryCourse::default(); 5];
    courses[0].leak = LeakCourse { per_100_steps: 1.0, from: 0 };
    let leaks = Leaks::of(&run(&courses, 500, 10, true, &mut Random::new(0)));
    let messages: Vec<String> = leaks.iter().map(Leak::to_string).collect();
    // 8192 - 1004 MB at 1 MB per 100 steps of 20 ms: 14 376 s.
    let message = "memory leak in data role (slots): 1.00 MB per 100 steps, 4 MB since warm-up; reaches the limit of 8192 MB in 3 h 59 min";
    assert_eq!(messages, [message]);
}
