//! A discrete-event simulation of the pipeline: stages with service times, threads, bounded buffers and noise. It writes a log.
//!
//! Independent of the flow model that it checks: it simulates every batch and uses no formula.

#![allow(dead_code, reason = "each test binary uses a part")]

use tandem_diagnosis::SettingChange;
use tandem_events::{Record, Role, RunEvent, VERSION};
use tandem_random::SplitMix;

/// Rows of a batch, shared by the decode threads.
const ROWS: usize = 8;
/// Pinned host buffers for decoded batches.
const HOST_SLOTS: usize = 4;
/// Relative length of the batches of each bucket; all service times scale with it.
pub(crate) const BUCKETS: [f64; 3] = [0.7, 1.0, 1.3];

/// Random numbers in the distributions of service times.
#[derive(Clone)]
pub(crate) struct Random(SplitMix);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(SplitMix::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// From 0 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Log-normal with mean 1 and standard deviation `cv`.
    pub(crate) fn noise(&mut self, cv: f64) -> f64 {
        let sigma = (1.0 + cv * cv).ln().sqrt();
        let normal = (-2.0 * self.unit().max(1e-300).ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
        (sigma * normal - sigma * sigma / 2.0).exp()
    }
}

/// A pipeline. Times are for a batch of mean length.
#[derive(Clone, Debug)]
pub(crate) struct SimPipeline {
    /// Decoding work, over all threads.
    pub(crate) load_ms: f64,
    pub(crate) threads: usize,
    pub(crate) cores: usize,
    pub(crate) upload_ms: f64,
    pub(crate) features_ms: f64,
    pub(crate) transfer_ms: f64,
    pub(crate) train_ms: f64,
    /// Coefficient of variation of all times.
    pub(crate) cv: f64,
    /// Every n-th batch takes this many times as long to decode.
    pub(crate) burst: Option<(usize, f64)>,
    pub(crate) ahead: usize,
    pub(crate) slots: usize,
    pub(crate) route: &'static str,
    pub(crate) cards: [usize; 2],
    /// On one card: a step that is ready runs before features, however long they have waited; otherwise first come, first served.
    /// A real card is in between: the step's stream has priority, and waiting kernels run between its kernels.
    pub(crate) is_step_first: bool,
    /// Write only the events of the first log version.
    pub(crate) is_old_log: bool,
}

impl SimPipeline {
    /// A pipeline without slow stages.
    pub(crate) fn quick(train_ms: f64) -> SimPipeline {
        SimPipeline {
            load_ms: train_ms,
            threads: 4,
            cores: 16,
            upload_ms: 0.05 * train_ms,
            features_ms: 0.2 * train_ms,
            transfer_ms: 0.1 * train_ms,
            train_ms,
            cv: 0.0,
            burst: None,
            ahead: 12,
            slots: 3,
            route: "peer",
            cards: [0, 1],
            is_step_first: false,
            is_old_log: false,
        }
    }

    pub(crate) fn is_one_card(&self) -> bool {
        self.cards[0] == self.cards[1]
    }

    /// Simulates `steps` steps and returns the log.
    pub(crate) fn run(&self, seed: u64, steps: usize) -> Vec<Record> {
        Simulation::new(self, seed, steps).finished().records()
    }

    /// Steps per second once the prefetched batches are used up.
    pub(crate) fn steps_per_s(&self, seed: u64) -> f64 {
        let steps = 1200;
        let simulation = Simulation::new(self, seed, steps).finished();
        let from = self.ahead + self.slots + 100;
        1000.0 * (steps - 1 - from) as f64 / (simulation.step.done[steps - 1] - simulation.step.done[from])
    }

    /// Moves the data role to another card, over a fast link if batches were handed over before.
    fn move_data_from(&mut self, card: usize) {
        if self.route == "handover" {
            (self.route, self.transfer_ms) = ("peer", 0.1 * self.train_ms);
        }
        self.cards = [card + 1, self.cards[1]];
    }

    /// The same pipeline with a changed setting.
    pub(crate) fn with(&self, change: SettingChange) -> SimPipeline {
        let mut line = self.clone();
        match change {
            SettingChange::NumWorkers(threads) => line.threads = threads as usize,
            SettingChange::CacheMemory => line.load_ms *= 0.02,
            SettingChange::TransferHandover => line.route = "handover",
            SettingChange::TransferPeer => (line.route, line.transfer_ms) = ("peer", 0.5 * line.transfer_ms),
            SettingChange::ShareGpu(card) => (line.cards, line.route) = ([card; 2], "handover"),
            SettingChange::SecondCard(card) => line.move_data_from(card),
            // An infinitely fast card.
            SettingChange::OtherDataCard(card) => {
                line.move_data_from(card);
                (line.upload_ms, line.features_ms) = (0.01, 0.01);
            }
            // As in a plan: two cards use half.
            SettingChange::BufferSize(typed) => line.ahead = if line.is_one_card() { typed } else { typed / 2 },
        }
        line
    }
}

#[derive(Default)]
struct Times {
    begin: Vec<f64>,
    done: Vec<f64>,
}

impl Times {
    /// Serves the next batch as soon as it is ready and the server is free.
    fn serve(&mut self, ready: f64, takes: f64) -> f64 {
        let begin = ready.max(self.last());
        self.begin.push(begin);
        self.done.push(begin + takes);
        begin + takes
    }

    fn last(&self) -> f64 {
        self.done.last().copied().unwrap_or(0.0)
    }

    fn len(&self) -> usize {
        self.done.len()
    }

    /// When batch `at - back` was done: 0 before the first batch, `None` if it is not simulated yet.
    fn known(&self, at: usize, back: usize) -> Option<f64> {
        match at.checked_sub(back) {
            None => Some(0.0),
            Some(at) => self.done.get(at).copied(),
        }
    }
}

struct Simulation<'a> {
    line: &'a SimPipeline,
    random: Random,
    steps: usize,
    lengths: Vec<usize>,
    free: Vec<f64>,
    load: Times,
    load_busy: Vec<f64>,
    upload: Times,
    features: Times,
    transfer: Times,
    step: Times,
    waits: Vec<f64>,
    card_free: f64,
}

impl<'a> Simulation<'a> {
    fn new(line: &'a SimPipeline, seed: u64, steps: usize) -> Simulation<'a> {
        let mut random = Random::new(seed);
        let batches = steps + line.ahead + line.slots + HOST_SLOTS;
        let lengths = (0..batches).map(|_| random.below(BUCKETS.len())).collect();
        let free = vec![0.0; line.threads];
        let (load, upload, features, transfer, step) = Default::default();
        let (load_busy, waits, card_free) = (Vec::new(), Vec::new(), 0.0);
        Simulation {
            line,
            random,
            steps,
            lengths,
            free,
            load,
            load_busy,
            upload,
            features,
            transfer,
            step,
            waits,
            card_free,
        }
    }

    fn takes(&mut self, ms: f64, batch: usize) -> f64 {
        ms * BUCKETS[self.lengths[batch]] * self.random.noise(self.line.cv)
    }

    fn finished(mut self) -> Self {
        while self.step.len() < self.steps {
            self.transfer_ready();
            match (self.features_ready(), self.step_ready()) {
                (Some(features), Some(step)) => match self.line.is_one_card() {
                    true if step <= self.first_turn(features) => self.train(step),
                    true => self.featurize(features),
                    false => {
                        self.featurize(features);
                        self.train(step);
                    }
                },
                (Some(features), None) => self.featurize(features),
                (None, Some(step)) => self.train(step),
                (None, None) => unreachable!("a stage can always make progress"),
            }
        }
        self
    }

    /// A step that is ready by this time runs before features that are ready at `features`.
    fn first_turn(&self, features: f64) -> f64 {
        if self.line.is_step_first { features.max(self.card_free) } else { features }
    }

    /// Transfers all batches that are ready.
    fn transfer_ready(&mut self) {
        while self.line.route != "handover" {
            let at = self.transfer.len();
            let (Some(made), Some(freed)) = (self.features.known(at, 0), self.step.known(at, self.line.slots)) else {
                return;
            };
            let takes = self.takes(self.line.transfer_ms, at);
            self.transfer.serve(made.max(freed), takes);
        }
    }

    fn features_ready(&mut self) -> Option<f64> {
        let at = self.features.len();
        if at == self.lengths.len() {
            return None;
        }
        let readers = if self.line.route == "handover" { &self.step } else { &self.transfer };
        let freed = readers.known(at, self.line.ahead)?;
        if self.upload.len() == at {
            let loaded = self.loaded(at);
            let takes = self.takes(self.line.upload_ms, at);
            // Two upload buffers take turns.
            let buffer = self.features.known(at, 2).unwrap();
            self.upload.serve(loaded.max(buffer), takes);
        }
        Some(self.upload.done[at].max(freed).max(self.features.last()))
    }

    fn loaded(&mut self, at: usize) -> f64 {
        let slot = self.upload.known(at, HOST_SLOTS).unwrap();
        let crowded = (self.line.threads as f64 / self.line.cores as f64).max(1.0);
        let burst = self.line.burst.filter(|(every, _)| at % every == every - 1).map_or(1.0, |(_, times)| times);
        let (mut begin, mut done, mut busy) = (f64::MAX, 0.0_f64, 0.0);
        for _ in 0..ROWS {
            let takes = crowded * burst * self.takes(self.line.load_ms, at) / ROWS as f64;
            let free = self.free.iter_mut().min_by(|a, b| a.total_cmp(b)).unwrap();
            let from = free.max(slot);
            *free = from + takes;
            (begin, done, busy) = (begin.min(from), done.max(*free), busy + takes);
        }
        self.load.begin.push(begin);
        self.load.done.push(done);
        self.load_busy.push(busy);
        done
    }

    fn featurize(&mut self, ready: f64) {
        let takes = self.takes(self.line.features_ms, self.features.len());
        let ready = if self.line.is_one_card() { ready.max(self.card_free) } else { ready };
        self.card_free = self.features.serve(ready, takes).max(self.card_free);
    }

    fn step_ready(&self) -> Option<f64> {
        let arrived = if self.line.route == "handover" { &self.features } else { &self.transfer };
        Some(arrived.known(self.step.len(), 0)?.max(self.step.last()))
    }

    fn train(&mut self, ready: f64) {
        self.waits.push(ready - self.step.last());
        let takes = self.takes(self.line.train_ms, self.step.len());
        let ready = if self.line.is_one_card() { ready.max(self.card_free) } else { ready };
        self.card_free = self.step.serve(ready, takes).max(self.card_free);
    }

    /// The log, sorted by time.
    fn records(&self) -> Vec<Record> {
        let mut events: Vec<(f64, RunEvent)> = Vec::new();
        if !self.line.is_old_log {
            events.push((0.0, self.setting()));
            let model_only = |(bucket, length): (usize, &f64)| (0.0, model_only(bucket, length * self.line.train_ms));
            events.extend(BUCKETS.iter().enumerate().map(model_only));
        }
        events.extend(Role::BOTH.map(|role| (0.0, self.arena(role))));
        let one = |(name, times): (&'static str, &Times)| {
            let event =
                move |(batch, (begin, done)): (usize, (f64, f64))| (done, stage(name, batch, done - begin, 0.0));
            times.begin.clone().into_iter().zip(times.done.clone()).enumerate().map(event).collect::<Vec<_>>()
        };
        let stages = [("upload", &self.upload), ("features", &self.features), ("transfer", &self.transfer)];
        events.extend(stages.into_iter().flat_map(one));
        for batch in 0..self.load.len() {
            let (begin, done) = (self.load.begin[batch], self.load.done[batch]);
            let idle = batch.checked_sub(1).map_or(done, |before| (done - self.upload.done[before]).max(0.0));
            let RunEvent::Stage { stage, batch, ns, wait_ns, .. } = stage("load", batch, done - begin, idle) else {
                unreachable!()
            };
            events.push((
                done,
                RunEvent::Stage {
                    stage,
                    batch,
                    ns,
                    busy_ns: ns_of(self.load_busy[batch as usize]),
                    wait_ns,
                    spans: Vec::new(),
                },
            ));
        }
        (0..self.step.len()).for_each(|step| self.log_step(step, &mut events));
        events.sort_by(|a, b| a.0.total_cmp(&b.0));
        let record = |(seq, (ms, event))| Record { v: VERSION, seq: seq as u64, t_ns: ns_of(ms), dropped: 0, event };
        events.into_iter().enumerate().map(record).collect()
    }

    fn log_step(&self, at: usize, events: &mut Vec<(f64, RunEvent)>) {
        let (begin, done) = (self.step.begin[at], self.step.done[at]);
        let before = at.checked_sub(1).map_or(0.0, |before| self.step.done[before]);
        let (step, wall_ns, wait_ns) = (at as u64 + 1, ns_of(done - before), ns_of(self.waits[at]));
        events.push((done, RunEvent::Step { step, wall_ns, wait_ns }));
        if !self.line.is_old_log {
            let (bucket, busy_ns) = (self.lengths[at] as u32, ns_of(done - begin));
            events.push((
                done,
                RunEvent::StepWork { step, batch: at as u64, batches: 1, bucket, busy_ns, wait_ns, began_ns: None },
            ));
        }
    }

    fn setting(&self) -> RunEvent {
        let [threads, cores, buffer_size, prefetch] =
            [self.line.threads, self.line.cores, self.line.ahead, self.line.slots].map(|n| n as u32);
        RunEvent::FeedSetting { threads, cores, buffer_size, prefetch, route: self.line.route.to_owned() }
    }

    fn arena(&self, role: Role) -> RunEvent {
        let card = self.line.cards[usize::from(role == Role::Model)];
        RunEvent::ArenaReserved { role, card, bytes: 1, limit_bytes: 2, driver_bytes: 1 }
    }
}

fn model_only(bucket: usize, ms: f64) -> RunEvent {
    RunEvent::ModelOnly { bucket: bucket as u32, ns: ns_of(ms) }
}

fn stage(name: &str, batch: usize, ms: f64, wait_ms: f64) -> RunEvent {
    let ns = ns_of(ms);
    RunEvent::Stage {
        stage: name.to_owned(),
        batch: batch as u64,
        ns,
        busy_ns: ns,
        wait_ns: ns_of(wait_ms),
        spans: Vec::new(),
    }
}

fn ns_of(ms: f64) -> u64 {
    (ms * 1e6) as u64
}
