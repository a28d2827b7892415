//! `--mode auto` picks a mode within 3 % of the best one: ten machines and workloads, in virtual time.
//!
//! No wall clock is involved. The pipelines are the simulated ones of the diagnosis tests, which know neither timed runs nor
//! formulas: a timed run sees only when the steps end. The truth is a longer run of the same pipeline, with the full
//! buffers and other noise.

use crate::simulator::{Random, SimPipeline};
use tandem_bench::auto_mode::{AHEAD, Candidate, Contest, Run, TimingLength, candidates, measure_step_rate};
use tandem_device::{Machine, SimSpec};
use tandem_events::RunEvent;
use tandem_launch::inventory::Inventory;
use tandem_plan::{Mode, Settings};

/// How far from the best a choice may be.
const GOAL: f64 = 0.97;
/// Draws of each workload.
const DRAWS: u64 = 12;

/// A machine of two cards and what runs on it. Times are of a batch, in milliseconds.
struct Workload {
    name: &'static str,
    step: f64,
    features: f64,
    /// Of the second card, which makes the data in dual mode.
    features_there: f64,
    transfer: f64,
    /// Work of decoding, shared by four threads.
    load: f64,
    cv: f64,
    /// Every so many batches decoding takes so many times as long.
    burst: Option<(usize, f64)>,
    /// In the very first timed run, decoding takes this many times as long: the page cache is cold.
    cold: f64,
    /// The number of cards that must be taken, where there is no doubt.
    cards: Option<usize>,
}

const EASY: Workload = Workload {
    name: "",
    step: 10.0,
    features: 0.4,
    features_there: 0.4,
    transfer: 0.5,
    load: 8.0,
    cv: 0.05,
    burst: None,
    cold: 1.0,
    cards: None,
};

const WORKLOADS: [Workload; 10] = [
    Workload { name: "tiny data work", features: 0.05, features_there: 0.05, cards: Some(1), ..EASY },
    Workload { name: "a slow link", step: 4.0, transfer: 9.0, load: 4.0, cards: Some(1), ..EASY },
    Workload { name: "a link just too slow", transfer: 11.4, cards: Some(1), ..EASY },
    Workload { name: "heavy features", features: 8.0, features_there: 8.0, cards: Some(2), ..EASY },
    Workload {
        name: "features slower than the step",
        step: 5.0,
        features: 9.0,
        features_there: 9.0,
        load: 4.0,
        cards: Some(2),
        ..EASY
    },
    Workload { name: "a weak second card", step: 8.0, features: 2.0, features_there: 13.0, cards: Some(1), ..EASY },
    Workload { name: "a strong second card", features: 5.0, features_there: 1.0, cards: Some(2), ..EASY },
    Workload { name: "decoding is slow", load: 70.0, cards: Some(1), ..EASY },
    Workload {
        name: "much noise and bursts",
        features: 2.0,
        features_there: 2.0,
        cv: 0.3,
        burst: Some((20, 6.0)),
        cards: Some(2),
        ..EASY
    },
    Workload {
        name: "cold files for whoever comes first",
        features: 1.0,
        features_there: 1.0,
        transfer: 13.0,
        cold: 9.0,
        cards: Some(1),
        ..EASY
    },
];

impl Workload {
    /// The pipeline of a candidate, with times a tenth off.
    fn line(&self, mode: Mode, random: &mut Random) -> SimPipeline {
        let mut drawn = |ms: f64| ms * random.between(0.95, 1.05);
        let (step, features) = (drawn(self.step), drawn(self.features));
        let (there, transfer, load) = (drawn(self.features_there), drawn(self.transfer), drawn(self.load));
        let is_dual = mode == Mode::Multi;
        SimPipeline {
            load_ms: load,
            features_ms: if is_dual { there } else { features },
            transfer_ms: transfer,
            cv: self.cv,
            burst: self.burst,
            route: if is_dual { "peer" } else { "handover" },
            cards: if is_dual { [1, 0] } else { [0, 0] },
            is_step_first: true,
            ..SimPipeline::quick(step)
        }
    }
}

/// The ends of a pipeline's steps, one after the other.
struct Played {
    ends_ns: Vec<u64>,
    taken: usize,
}

impl Run for Played {
    type Error = String;

    fn step(&mut self) -> Result<(), String> {
        self.taken += 1;
        if self.taken < self.ends_ns.len() {
            Ok(())
        } else {
            Err("the timed run is longer than the simulated one".to_owned())
        }
    }

    fn now_ns(&self) -> u64 {
        self.ends_ns[self.taken]
    }
}

fn timed_run(line: &SimPipeline, seed: u64) -> Played {
    let records = SimPipeline { ahead: AHEAD as usize, ..line.clone() }.run(seed, 1500);
    let ends = records.iter().filter(|record| matches!(record.event, RunEvent::Step { .. })).map(|record| record.t_ns);
    Played { ends_ns: ends.collect(), taken: 0 }
}

/// The number of cards picked, the pick's step rate relative to the best mode's, and a description.
fn decide(workload: &Workload, seed: u64) -> (usize, f64, String) {
    let hardware = Inventory::of(Machine::simulated(SimSpec::new(2, 24 << 30))).unwrap().hardware;
    let set = candidates(&Settings::new().with(&[("mode", "auto")]).unwrap(), &hardware).unwrap();
    // The same draw for every mode: it is one machine.
    let line = |candidate: &Candidate| workload.line(candidate.mode, &mut Random::new(seed));
    let mut timed_runs = 0;
    let mut time = |candidate: &Candidate| {
        timed_runs += 1;
        let mut line = line(candidate);
        line.load_ms *= if timed_runs == 1 { workload.cold } else { 1.0 };
        // Batches are the same in every mode, and in every round.
        measure_step_rate(&mut timed_run(&line, seed), TimingLength::ON_CARDS)
    };
    let contest = Contest { time: &mut time, check: &mut |_| Ok(()), rounds: 2 }.decide(set.clone());
    let choice = contest.unwrap();
    let truth = |candidate: &Candidate| line(candidate).steps_per_s(seed + 7777);
    let best = set.others.iter().map(truth).fold(0.0, f64::max);
    let taken = &choice.taken().candidate;
    (taken.num_cards(), truth(taken) / best, format!("{:?} {:?}", taken.name(), choice.one_or_two()))
}

#[test]
fn the_mode_that_is_taken_is_within_three_percent_of_the_best() {
    for workload in &WORKLOADS {
        for seed in 0..DRAWS {
            let (cards, of_best, description) = decide(workload, seed);
            assert!(of_best >= GOAL, "{}, draw {seed}: {of_best:.3} of the best, {description}", workload.name);
            let is_right = workload.cards.is_none_or(|expected| expected == cards);
            assert!(is_right, "{}, draw {seed}: {cards} cards, {description}", workload.name);
        }
    }
}
