//! The step loop.
//!
//! ```text
//! lease batches ─> accumulate (one run each) ─> update ─> fetch results ──┐ two steps later
//!      ^                                                                  v
//!      └────────────────────────── next step <── report, checkpoint, validate
//! ```
//!
//! The thread that queues steps never waits for the device, but for results of the step before the last; checkpoints and
//! validations do.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tandem_device::{DType, DeviceKind, Fault, Pinned, Slow, Stream};
use tandem_engine::{Fetch, HostValue, ParameterSpan, Program, Results, Schedule, Session};
use tandem_feed::{DeviceBatch, Feed, FeedState, Utterance};
use tandem_model::{Programs, VoiceReferences, host};

use crate::checkpoint::Checkpoint;
use crate::cpu_time::cpu_ns;
use crate::error::TrainError;
use crate::exact_shapes::{ExactShapes, WriteProgram};
use crate::held_out::{HeldOut, HeldOutBatch};
use crate::mel_statistics::MelStatistics;
use crate::report::{AlignmentReport, Figures, StepReport, ValidationReport};
use crate::step_clock::{StepClock, Timed};
use crate::tensors::{SpanNames, TensorBytes};

/// Steps that are queued before the results of the first are looked at.
const RUN_AHEAD: usize = 2;
/// Results of a validation that are more than a figure: of models that align text with speech, frames of each token, as
/// aligned and as guessed.
const ALIGNMENT: &str = "alignment";
const LOG_DURATIONS: &str = "log_durations";
/// Steps in a row that may be left out because a gradient was no number.
const MAX_SKIPPED: u32 = 10;

/// How a run learns.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The learning rate of each step.
    pub schedule: Schedule,
    /// How much of the average is kept at each step; none without an average.
    pub average_decay: Option<f64>,
    /// Micro-batches of a step.
    pub grad_accum: usize,
    /// Where all randomness starts.
    pub seed: u64,
}

/// Everything a trainer is given.
pub struct StepLoopParts {
    /// The programs and their memory.
    pub session: Session,
    /// Which program does what.
    pub programs: Programs,
    /// Where batches come from.
    pub feed: Feed,
    /// What the model is judged by; empty without.
    pub held_out: HeldOut,
    /// What spectra look like.
    pub statistics: MelStatistics,
    /// Voices that checkpoints keep beside the weights: none where the model speaks with none.
    pub voices: VoiceReferences,
    /// How it learns.
    pub recipe: Recipe,
    /// What writes programs of exact shapes; none where batches are taken with their padding.
    pub exact: Option<WriteProgram>,
}

/// A run in progress.
pub struct StepLoop {
    session: Session,
    programs: Programs,
    losses: Arc<[String]>,
    figures: Arc<[String]>,
    // After the session: its stream is drained before batches go home.
    feed: Feed,
    held_out: HeldOut,
    statistics: MelStatistics,
    band_means: Vec<f32>,
    voices: VoiceReferences,
    recipe: Recipe,
    exact: Option<ExactShapes>,
    plant: Fault,
    duration_scale: Option<f64>,
    stream: Arc<Stream>,
    /// Page-locked memory for one batch of held-out data.
    staging: Option<Pinned>,
    names: SpanNames,
    step: u64,
    pending: VecDeque<Pending>,
    last_end: Instant,
    clock: StepClock,
}

/// A step whose gradients are being computed.
struct Begun {
    weights: Weights,
    epoch: u64,
    buckets: Vec<usize>,
    wait_ns: u64,
    first_batch: u64,
    timed: Timed,
    losses: Vec<Fetch>,
}

/// A step whose results are on their way.
struct Pending {
    step: u64,
    epoch: u64,
    buckets: Vec<usize>,
    lr: f64,
    wait_ns: u64,
    first_batch: u64,
    timed: Timed,
    losses: Vec<Fetch>,
    update: Fetch,
}

/// What a checkpoint keeps beside the tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepLoopState {
    /// Steps done.
    pub step: u64,
    /// Where randomness starts.
    pub seed: u64,
    /// Counts kept on the device: updates, skipped steps, skipped in a row.
    pub counters: [u32; 3],
    /// Which batch comes next.
    pub feed: FeedState,
    /// What spectra look like.
    pub statistics: MelStatistics,
    /// What guessed durations are to be multiplied with, as the last validation found.
    #[serde(default)]
    pub duration_scale: Option<f64>,
}

/// The counters of the update program, in the order of [`StepLoopState::counters`].
const COUNTERS: [&str; 3] = ["updates", "skipped", "skipped_in_a_row"];

impl StepLoop {
    /// Fetches that are under way at once, for [`Session::create`].
    pub fn in_flight(grad_accum: usize) -> usize {
        (RUN_AHEAD + 1) * (grad_accum + 1)
    }

    /// A run that begins: parameters are as `seed` makes them.
    pub fn begin(parts: StepLoopParts) -> Result<StepLoop, TrainError> {
        let trainer = StepLoop::new(parts)?;
        let initial = trainer.session.set().parameters().initial(trainer.recipe.seed);
        let initial: Vec<f32> = initial.into_iter().map(|x| x as f32).collect();
        trainer.session.write_span(ParameterSpan::Parameters, &initial)?;
        if trainer.recipe.average_decay.is_some() {
            trainer.session.write_span(ParameterSpan::Average, &initial)?;
        }
        trainer.write_compute(&initial)?;
        Ok(trainer)
    }

    /// A run that goes on from `checkpoint`, exactly as if it had not stopped. The feed was started from its state.
    pub fn resume(
        parts: StepLoopParts,
        checkpoint: &Checkpoint,
        state: &StepLoopState,
    ) -> Result<StepLoop, TrainError> {
        let mut trainer = StepLoop::new(parts)?;
        for span in trainer.names.kept() {
            let values = trainer.names.read(checkpoint, span)?;
            trainer.session.write_span(span, &values)?;
            if span == ParameterSpan::Parameters {
                trainer.write_compute(&values)?;
            }
        }
        for (name, count) in COUNTERS.into_iter().zip(state.counters) {
            trainer.session.write_state(name, &[count])?;
        }
        trainer.step = state.step;
        trainer.duration_scale = state.duration_scale;
        Ok(trainer)
    }

    fn new(parts: StepLoopParts) -> Result<StepLoop, TrainError> {
        let StepLoopParts { session, programs, feed, held_out, statistics, voices, recipe, exact } = parts;
        let plant = Fault::from_env()?;
        let stream = session.stream().clone();
        let batch_bytes = held_out.batches.first().map(|batch| batch.bytes.len() as u64);
        let staging = batch_bytes.map(|bytes| stream.device().pinned(bytes)).transpose()?;
        let names = SpanNames::of(session.set());
        let band_means = statistics.normalised_bands();
        // Those that are queued, and the one whose results are being looked at.
        let clock = StepClock::new(&stream.device(), RUN_AHEAD + 1)?;
        let (losses, figures) = (programs.losses.as_slice().into(), programs.figures.as_slice().into());
        Ok(StepLoop {
            session,
            programs,
            losses,
            figures,
            feed,
            held_out,
            statistics,
            band_means,
            voices,
            recipe,
            exact: exact.map(ExactShapes::new),
            plant,
            duration_scale: None,
            stream,
            staging,
            names,
            step: 0,
            pending: VecDeque::new(),
            last_end: Instant::now(),
            clock,
        })
    }

    /// Steps queued so far.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// What there is to say since somebody asked last.
    pub fn take_notes(&mut self) -> Vec<String> {
        let own = self.exact.as_mut().and_then(ExactShapes::take_note);
        self.feed.take_notes().into_iter().chain(own).collect()
    }

    /// The feed, to read its figures.
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// The feed, before the first step.
    pub fn feed_mut(&mut self) -> &mut Feed {
        &mut self.feed
    }

    /// GEMM operations of one optimizer step on bucket `bucket`.
    pub fn gemm_flops(&self, bucket: usize) -> u64 {
        let flops = |id| Program::gemm_flops(self.session.program(id));
        flops(self.programs.accumulate[bucket]) * self.recipe.grad_accum as u64
    }

    /// The clock of steps starts anew: what came before was no step.
    pub fn start_clock(&mut self) {
        self.last_end = Instant::now();
        self.clock.restart();
    }

    /// Queues one step, and reports one that has ended, as soon as there are enough of them.
    pub fn advance(&mut self) -> Result<Option<StepReport>, TrainError> {
        let stream = self.stream.clone();
        let timed = self.clock.ask(&stream)?;
        let mut batches: Vec<DeviceBatch<'_>> = Vec::with_capacity(self.recipe.grad_accum);
        for _ in 0..self.recipe.grad_accum {
            batches.push(self.feed.lease(&stream)?);
        }
        let wait_ns = batches.iter().map(DeviceBatch::wait_ns).sum();
        let mut begun = self.begin_step(&batches.iter().collect::<Vec<_>>(), wait_ns, timed)?;
        for batch in batches {
            begun.losses.push(self.accumulate(batch, &begun.weights)?);
        }
        self.end_step(begun)
    }

    /// Steps on batches that are there already, of the shapes that `steps` had: what they take without a feed. One batch of
    /// each shape is waited for, kept, and learnt from again and again: this is for measuring.
    pub fn model_only(&mut self, steps: &[Vec<usize>]) -> Result<Vec<StepReport>, TrainError> {
        assert!(self.pending.is_empty(), "settle first: these steps are measured by themselves");
        let stream = self.stream.clone();
        let mut held: BTreeMap<usize, DeviceBatch<'_>> = BTreeMap::new();
        let wanted: BTreeSet<usize> = steps.iter().flatten().copied().collect();
        while !wanted.iter().all(|shape| held.contains_key(shape)) {
            let batch = self.feed.lease(&stream)?;
            held.entry(batch.info().bucket_index).or_insert(batch);
        }
        self.stream.drain()?;
        self.start_clock();
        let mut reports = Vec::with_capacity(steps.len());
        for shapes in steps {
            let batches: Vec<&DeviceBatch<'_>> = shapes.iter().map(|shape| &held[shape]).collect();
            let timed = self.clock.ask(&stream)?;
            let mut begun = self.begin_step(&batches, 0, timed)?;
            for batch in batches {
                begun.losses.push(self.accumulate(batch, &begun.weights)?);
            }
            reports.extend(self.end_step(begun)?);
        }
        reports.extend(self.settle()?);
        Ok(reports)
    }

    /// What the GEMMs of a step on a batch of this shape take by themselves, in microseconds. What is learnt is
    /// lost: this is for measuring, last.
    pub fn time_gemms(&self, bucket: usize) -> Result<f64, TrainError> {
        let us = self.session.time_gemms(self.programs.accumulate[bucket])?;
        Ok(us * self.recipe.grad_accum as f64)
    }

    fn begin_step(&mut self, batches: &[&DeviceBatch<'_>], wait_ns: u64, timed: Timed) -> Result<Begun, TrainError> {
        self.step += 1;
        self.clock.begin(timed, &self.stream)?;
        let infos = || batches.iter().map(|batch| batch.info());
        Ok(Begun {
            weights: Weights::of(infos().flat_map(|info| info.utterances.iter().flatten())),
            epoch: infos().next_back().map_or(0, |info| info.cursor.epoch),
            buckets: infos().map(|info| info.bucket_index).collect(),
            wait_ns,
            first_batch: infos().next().map_or(0, |info| info.sequence),
            timed,
            losses: Vec::with_capacity(batches.len()),
        })
    }

    /// The update of a step whose gradients are there.
    fn end_step(&mut self, begun: Begun) -> Result<Option<StepReport>, TrainError> {
        let Begun { epoch, buckets, wait_ns, first_batch, timed, losses, .. } = begun;
        if self.plant.traps_at(self.step) {
            self.stream.trap()?;
        }
        // Schedules count from 0.
        let lr = self.recipe.schedule.lr(self.step - 1);
        let (lr_value, decay) = ([lr as f32], [self.recipe.average_decay.unwrap_or(0.0) as f32]);
        let host = [("lr", HostValue::F32(&lr_value)), ("average_decay", HostValue::F32(&decay))];
        self.session.run(self.programs.update, None, &host)?;
        self.clock.end(timed, &self.stream)?;
        let update = self.session.fetch(self.programs.update)?;
        let step = self.step;
        self.pending.push_back(Pending { step, epoch, buckets, lr, wait_ns, first_batch, timed, losses, update });
        if self.pending.len() > RUN_AHEAD { self.report() } else { Ok(None) }
    }

    /// Reports of all steps that were queued. Waits for them.
    pub fn settle(&mut self) -> Result<Vec<StepReport>, TrainError> {
        let mut reports = Vec::with_capacity(self.pending.len());
        while let Some(report) = self.report()? {
            reports.push(report);
        }
        Ok(reports)
    }

    /// Looks at the held-out data; none when there is none. Waits for the device.
    pub fn validate(&mut self) -> Result<Option<ValidationReport>, TrainError> {
        assert!(self.pending.is_empty(), "settle first: results of steps would be overtaken");
        if self.held_out.batches.is_empty() {
            return Ok(None);
        }
        let all = |count: fn(&HeldOutBatch) -> &Vec<u32>| {
            self.held_out.batches.iter().flat_map(count).map(|&n| u64::from(n)).sum::<u64>()
        };
        let frames = all(|batch| &batch.frames);
        let weights = Weights::new(frames, all(|batch| &batch.tokens), self.band_means.len());
        let names = Arc::clone(&self.figures);
        let mut sums = vec![0.0_f64; names.len()];
        let mut alignment = self.programs.judges(ALIGNMENT).then(AlignmentReport::default);
        let mut guessed_frames = self.programs.judges(LOG_DURATIONS).then_some(0.0);
        for number in 0..self.held_out.batches.len() {
            let results = self.validate_batch(number, &weights)?;
            for (sum, name) in sums.iter_mut().zip(names.iter()) {
                *sum += f64::from(one(&results, name)?);
            }
            if let Some(report) = &mut alignment {
                self.judge_alignment(number, &results.get::<i32>(ALIGNMENT)?, report);
            }
            if let Some(guessed) = &mut guessed_frames {
                *guessed += self.guessed_frames(number, &results.get::<f32>(LOG_DURATIONS)?);
            }
        }
        let duration_scale = guessed_frames.map(|guessed| frames as f64 / guessed.max(1.0));
        self.duration_scale = duration_scale;
        self.start_clock();
        let (step, utterances, figures) = (self.step, self.held_out.count, Figures::new(names, sums));
        Ok(Some(ValidationReport { step, utterances, figures, duration_scale, alignment }))
    }

    fn validate_batch(&mut self, number: usize, weights: &Weights) -> Result<Results, TrainError> {
        let batch = &self.held_out.batches[number];
        let Some(staging) = &mut self.staging else { unreachable!("made with the first batch") };
        staging.bytes_mut()?.copy_from_slice(&batch.bytes);
        let statistics = self.statistics.host_values();
        let mut host = weights.host_values(&statistics);
        host.push((host::BAND_MEAN, HostValue::F32(&self.band_means)));
        let id = self.programs.validate;
        self.session.run_from(id, staging, &host)?;
        let fetch = self.session.fetch(id)?;
        Ok(self.session.finish(fetch)?)
    }

    fn judge_alignment(&self, number: usize, durations: &[i32], report: &mut AlignmentReport) {
        let batch = &self.held_out.batches[number];
        let starts = &self.held_out.token_starts;
        for (row, (&frames, &tokens)) in batch.frames.iter().zip(&batch.tokens).enumerate() {
            let first = starts[row] as usize;
            report.add(&durations[first..first + tokens as usize], frames);
        }
    }

    /// Frames that would be spoken for the texts of a batch.
    fn guessed_frames(&self, number: usize, log_durations: &[f32]) -> f64 {
        let batch = &self.held_out.batches[number];
        let starts = self.held_out.token_starts.iter().map(|&start| start as usize);
        let tokens =
            starts.zip(&batch.tokens).flat_map(|(first, &count)| &log_durations[first..first + count as usize]);
        tokens.map(|&log| (f64::from(log).exp() - 1.0).max(1.0)).sum()
    }

    /// What a checkpoint of now keeps. Waits for the device.
    pub fn snapshot(&mut self) -> Result<(StepLoopState, TensorBytes), TrainError> {
        assert!(self.pending.is_empty(), "settle first: a checkpoint is of steps that have ended");
        let mut counters = [0; 3];
        for (count, name) in counters.iter_mut().zip(COUNTERS) {
            *count = self.session.read_state::<u32>(name)?[0];
        }
        let state = StepLoopState {
            step: self.step,
            seed: self.recipe.seed,
            counters,
            feed: self.feed.state(),
            statistics: self.statistics.clone(),
            duration_scale: self.duration_scale,
        };
        let mut tensors = self.names.copy(&self.session)?;
        tensors.add_voices(&self.voices, self.statistics.bands.len());
        self.start_clock();
        Ok((state, tensors))
    }

    /// Ends the run: every queued step is done, every thread joined, all memory goes home.
    pub fn stop(self) -> Result<(), TrainError> {
        self.stream.drain()?;
        let StepLoop { feed, session, .. } = self;
        feed.stop()?;
        drop(session);
        Ok(())
    }

    /// Forward and backward of one micro-batch. One that is not only lent is given back as soon as it has been brought to
    /// the program: the next is on its way while this one is learnt from, and not only at the step's end, where what a
    /// step leaves goes the same way.
    fn accumulate<'s>(&mut self, batch: impl Borrow<DeviceBatch<'s>>, weights: &Weights) -> Result<Fetch, TrainError> {
        let info = Arc::clone(batch.borrow().info());
        let statistics = self.statistics.host_values();
        let mut host = weights.host_values(&statistics);
        let keys = Keys::of(self.recipe.seed, self.step, &info.utterances);
        host.push(("seed", HostValue::U32(&keys.seed)));
        host.push(("step", HostValue::U32(&keys.step)));
        host.push(("utterances", HostValue::U32(&keys.utterances)));
        let exact = match &mut self.exact {
            Some(exact) => exact.bring(&mut self.session, batch.borrow(), &host)?,
            None => None,
        };
        let id = match exact {
            Some(exact) => exact,
            None => {
                let padded = self.programs.accumulate[info.bucket_index];
                self.session.stage_inputs(padded, Some(batch.borrow().memory()), &host)?;
                padded
            }
        };
        drop(batch);
        // More than once only where slow steps are planted.
        for _ in 0..self.plant.times(Slow::Step) {
            self.session.replay(id)?;
        }
        Ok(self.session.fetch(id)?)
    }

    /// The oldest step that is under way, once it has ended.
    fn report(&mut self) -> Result<Option<StepReport>, TrainError> {
        let Some(pending) = self.pending.pop_front() else { return Ok(None) };
        let mut sums = vec![0.0_f32; self.losses.len()];
        for fetch in pending.losses {
            let results = self.session.finish(fetch)?;
            for (sum, name) in sums.iter_mut().zip(self.losses.iter()) {
                *sum += one(&results, name)?;
            }
        }
        let update = self.session.finish(pending.update)?;
        let in_a_row = update.get::<u32>("skipped_in_a_row")?[0];
        if in_a_row >= MAX_SKIPPED {
            return Err(TrainError::NotFinite { step: pending.step, in_a_row, checkpoint: None });
        }
        // Its end lies before the results that were just waited for.
        let on_device = self.clock.read(pending.timed, pending.first_batch)?;
        let wall_ns = self.last_end.elapsed().as_nanos() as u64;
        self.last_end = Instant::now();
        let losses = sums.into_iter().map(f64::from).collect();
        Ok(Some(StepReport {
            step: pending.step,
            epoch: pending.epoch,
            buckets: pending.buckets,
            losses: Figures::new(Arc::clone(&self.losses), losses),
            gradient_norm: one(&update, "gradient_norm")?,
            lr: pending.lr,
            skipped: in_a_row > 0,
            wall_ns,
            wait_ns: pending.wait_ns,
            on_device,
            cpu_ns: (self.stream.device().machine().kind() != DeviceKind::Simulated).then(cpu_ns),
        }))
    }

    /// The parameters as GEMMs read them, where that is another element type.
    fn write_compute(&self, parameters: &[f32]) -> Result<(), TrainError> {
        if self.session.set().precision() == DType::BF16 {
            let narrow: Vec<half::bf16> = parameters.iter().map(|&x| half::bf16::from_f32(x)).collect();
            self.session.write_span(ParameterSpan::Compute, &narrow)?;
        }
        Ok(())
    }
}

fn one(results: &Results, name: &str) -> Result<f32, TrainError> {
    Ok(results.get::<f32>(name)?[0])
}

/// What the random numbers of a batch depend on, beside the op that draws: an utterance draws the same in whatever batch
/// and row it comes, and something else in the next step.
#[derive(Debug, PartialEq)]
struct Keys {
    seed: [u32; 2],
    step: [u32; 1],
    utterances: Vec<u32>,
}

impl Keys {
    fn of(seed: u64, step: u64, utterances: &[Option<Utterance>]) -> Keys {
        let key = |utterance: &Option<Utterance>| utterance.map_or(0, |utterance| utterance.sample.0);
        Keys {
            seed: [seed as u32, (seed >> 32) as u32],
            step: [step as u32],
            utterances: utterances.iter().map(key).collect(),
        }
    }
}

/// One over what losses are sums of, in the whole optimizer step.
struct Weights {
    per_number: [f32; 1],
    per_token: [f32; 1],
}

impl Weights {
    fn of<'u>(utterances: impl Iterator<Item = &'u Utterance>) -> Weights {
        let (mut frames, mut tokens) = (0, 0);
        for utterance in utterances {
            frames += u64::from(utterance.frames);
            tokens += u64::from(utterance.tokens);
        }
        Weights::new(frames, tokens, tandem_feed::MELS as usize)
    }

    fn new(frames: u64, tokens: u64, bands: usize) -> Weights {
        let share = |count: u64| [(1.0 / count.max(1) as f64) as f32];
        Weights { per_number: share(frames * bands as u64), per_token: share(tokens) }
    }

    fn host_values<'a>(&'a self, statistics: &'a [[f32; 1]; 2]) -> Vec<(&'static str, HostValue<'a>)> {
        vec![
            (host::PER_NUMBER, HostValue::F32(&self.per_number)),
            (host::PER_TOKEN, HostValue::F32(&self.per_token)),
            (host::MEL_MEAN, HostValue::F32(&statistics[0])),
            (host::MEL_SCALE, HostValue::F32(&statistics[1])),
        ]
    }
}

impl MelStatistics {
    /// Mean and one over the deviation, as the programs take them.
    fn host_values(&self) -> [[f32; 1]; 2] {
        [[self.mean], [1.0 / self.deviation]]
    }
}

#[cfg(test)]
mod tests {
    use tandem_corpus::SampleIndex;

    use super::*;

    fn utterances() -> Vec<Option<Utterance>> {
        let utterance = |sample, frames, tokens| Some(Utterance { sample: SampleIndex(sample), frames, tokens });
        vec![utterance(9, 30, 4), None, utterance(3, 10, 1)]
    }

    #[test]
    fn what_is_drawn_depends_on_seed_step_and_utterance() {
        let expected = Keys { seed: [5, 3], step: [7], utterances: vec![9, 0, 3] };
        assert_eq!(Keys::of((3 << 32) | 5, 7, &utterances()), expected);
    }

    #[test]
    fn losses_are_means_over_the_numbers_and_the_tokens_of_all() {
        let weights = Weights::of(utterances().iter().flatten());
        assert_eq!((weights.per_number, weights.per_token), ([1.0 / 3200.0], [1.0 / 5.0]));
        // Nothing to learn from is no division by nothing.
        let nothing = Weights::of([].into_iter());
        assert_eq!((nothing.per_number, nothing.per_token), ([1.0], [1.0]));
    }
}
