//! The step loop.
//!
//! ```text
//! lease batches ─> accumulate (one run each) ─> update ─> fetch results ──┐ two steps later
//!      ^                                                                  v
//!      └────────────────────────── next step <── report, checkpoint, validate
//! ```
//!
//! The thread that queues steps waits for the device only for the results of two steps earlier, for checkpoints and for
//! validations.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use tandem_checkpoint::{Checkpoint, MelStatistics};
use tandem_device::{DType, DeviceKind, Fault, Pinned, Slow, Stream};
use tandem_engine::{Fetch, HostValue, ParameterSpan, Program, Results, Schedule, Session};
use tandem_feed::{DeviceBatch, Feed, FeedError, Replacements};
use tandem_model::{Programs, VoiceReferences, host};

use crate::cpu_time::cpu_ns;
use crate::error::TrainError;
use crate::exact_shapes::{CompileProgram, ExactShapes};
use crate::ranks::{Ranks, StepWishes};
use crate::report::{AlignmentReport, ReportedMetrics, StepReport, ValidationReport};
use crate::state::{SKIPPED_IN_A_ROW, StepLoopState, UpdateCounters};
use crate::step_clock::{StepClock, Timed};
use crate::step_inputs::{LossScales, Normalisation, StepCounts, StepKeys};
use crate::tensors::{CheckpointTensors, TensorNames};
use crate::validation_set::{ValidationBatch, ValidationSet};

/// Steps that are queued before the results of the first are read.
const RUN_AHEAD: usize = 2;
/// Results of a validation that are not metrics: for models that align text with speech, the frames of each token, as
/// aligned and as predicted.
const ALIGNMENT: &str = "alignment";
const LOG_DURATIONS: &str = "log_durations";
/// Steps in a row that may be skipped because of non-finite gradients.
const MAX_SKIPPED: u32 = 10;

/// The hyperparameters of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    /// The learning-rate schedule.
    pub schedule: Schedule,
    /// The decay of the EMA of the parameters; `None` without EMA.
    pub ema_decay: Option<f64>,
    /// Micro-batches of a step (gradient accumulation) on this rank.
    pub grad_accum: usize,
    /// The seed of all random numbers.
    pub seed: u64,
}

/// Everything a step loop needs.
pub struct StepLoopParts {
    /// The compiled programs and their memory.
    pub session: Session,
    /// Which program does what.
    pub programs: Programs,
    /// Where batches come from.
    pub feed: Feed,
    /// The validation set; may be empty.
    pub validation_set: ValidationSet,
    /// How spectrograms are normalised.
    pub statistics: MelStatistics,
    /// Reference voices that are saved with the weights; empty for a model without voices.
    pub voices: VoiceReferences,
    /// The hyperparameters.
    pub recipe: Recipe,
    /// Compiles programs of exact shapes; `None` to train on padded batches.
    pub exact: Option<CompileProgram>,
    /// The other ranks of a data-parallel run; `None` if it has one rank.
    pub ranks: Option<Ranks>,
}

/// A training run in progress.
pub struct StepLoop {
    // Before the session: sums that wait for another rank are aborted before their memory is freed.
    ranks: Option<Ranks>,
    session: Session,
    programs: Programs,
    losses: Arc<[String]>,
    metrics: Arc<[String]>,
    // After the session: its stream is drained before batches are returned.
    feed: Feed,
    validation_set: ValidationSet,
    statistics: MelStatistics,
    band_means: Vec<f32>,
    voices: VoiceReferences,
    recipe: Recipe,
    exact: Option<ExactShapes>,
    fault: Fault,
    duration_scale: Option<f64>,
    stream: Arc<Stream>,
    /// Pinned memory for one batch of the validation set.
    staging: Option<Pinned>,
    names: TensorNames,
    step: u64,
    pending: VecDeque<QueuedStep>,
    last_end: Instant,
    clock: StepClock,
}

/// A step whose gradients are being computed.
struct StartedStep {
    scales: LossScales,
    epoch: u64,
    buckets: Vec<usize>,
    wait_ns: u64,
    first_batch: u64,
    timed: Timed,
    rank_waits_ns: Vec<u64>,
    losses: Vec<Fetch>,
}

/// A queued step whose results are being copied to the host.
struct QueuedStep {
    step: u64,
    epoch: u64,
    buckets: Vec<usize>,
    lr: f64,
    wait_ns: u64,
    first_batch: u64,
    timed: Timed,
    rank_waits_ns: Vec<u64>,
    losses: Vec<Fetch>,
    update: Fetch,
}

impl StepLoop {
    /// The most fetches in flight at once, for [`Session::create`].
    pub fn in_flight(grad_accum: usize) -> usize {
        (RUN_AHEAD + 1) * (grad_accum + 1)
    }

    /// Starts a run with these weights: [`random_weights`](crate::random_weights), or those of another model.
    pub fn begin(parts: StepLoopParts, initial: &[f32]) -> Result<StepLoop, TrainError> {
        let step_loop = StepLoop::new(parts)?;
        step_loop.session.write_span(ParameterSpan::Parameters, initial)?;
        if step_loop.recipe.ema_decay.is_some() {
            step_loop.session.write_span(ParameterSpan::Average, initial)?;
        }
        step_loop.write_compute(initial)?;
        Ok(step_loop)
    }

    /// Resumes from `checkpoint`, exactly as if the run had not stopped. The feed was started from its state.
    pub fn resume(
        parts: StepLoopParts,
        checkpoint: &Checkpoint,
        state: &StepLoopState,
    ) -> Result<StepLoop, TrainError> {
        let mut step_loop = StepLoop::new(parts)?;
        for span in step_loop.names.spans() {
            let values = step_loop.names.read(checkpoint, span)?;
            step_loop.session.write_span(span, &values)?;
            if span == ParameterSpan::Parameters {
                step_loop.write_compute(&values)?;
            }
        }
        state.counters.write(&step_loop.session)?;
        step_loop.step = state.step;
        step_loop.duration_scale = state.duration_scale;
        Ok(step_loop)
    }

    fn new(parts: StepLoopParts) -> Result<StepLoop, TrainError> {
        let StepLoopParts { session, programs, feed, validation_set, statistics, voices, recipe, exact, ranks } = parts;
        let fault = Fault::from_env()?;
        let stream = session.stream().clone();
        let batch_bytes = validation_set.batches.first().map(|batch| batch.bytes.len() as u64);
        let staging = batch_bytes.map(|bytes| stream.device().pinned(bytes)).transpose()?;
        let names = TensorNames::of(session.set());
        let band_means = statistics.normalised_band_means();
        // The queued ones, and the one whose results are being read.
        let clock = StepClock::new(&stream.device(), RUN_AHEAD + 1)?;
        let (losses, metrics) = (programs.losses.as_slice().into(), programs.metrics.as_slice().into());
        Ok(StepLoop {
            session,
            programs,
            losses,
            metrics,
            feed,
            validation_set,
            statistics,
            band_means,
            voices,
            recipe,
            exact: exact.map(ExactShapes::new),
            ranks,
            fault,
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

    /// The card of the model.
    fn model_card(&self) -> usize {
        self.stream.device().index()
    }

    /// Whether the model can be saved after `error`: no device failed, or only another card than the model's, and all it was
    /// trained on is good.
    pub(crate) fn is_model_intact(&self, error: &FeedError) -> bool {
        if matches!(error, FeedError::CorruptBatch { .. }) {
            return false;
        }
        match error.device_error() {
            None => true,
            Some(error) => error.failed_card().is_some_and(|card| card != self.model_card()),
        }
    }

    /// Messages for the user since the last call.
    pub fn take_messages(&mut self) -> Vec<String> {
        let own = self.exact.as_mut().and_then(ExactShapes::take_warning);
        self.feed.take_messages().into_iter().chain(own).collect()
    }

    /// The feed, to read its counters.
    pub fn feed(&self) -> &Feed {
        &self.feed
    }

    /// The feed, mutably; for the time before the first step.
    pub fn feed_mut(&mut self) -> &mut Feed {
        &mut self.feed
    }

    /// FLOPs of the GEMMs of one optimizer step on bucket `bucket`.
    pub fn gemm_flops(&self, bucket: usize) -> u64 {
        let flops = |id| Program::gemm_flops(self.session.program(id));
        flops(self.programs.accumulate[bucket]) * self.recipe.grad_accum as u64
    }

    /// Restarts the step clock: what came before was not a step.
    pub fn start_clock(&mut self) {
        self.last_end = Instant::now();
        self.clock.restart();
    }

    /// What all ranks do after the step that was queued last; `None` if this is the only rank.
    pub fn agreed_wishes(&self) -> Option<StepWishes> {
        self.ranks.as_ref().map(Ranks::agreed)
    }

    /// Waits until all ranks have ended their work. Nothing to wait for with one rank.
    pub(crate) fn meet_at_end(&mut self) -> Result<(), TrainError> {
        self.ranks.as_mut().map_or(Ok(()), Ranks::meet_at_end)
    }

    /// Queues one step. Returns the report of an earlier one once enough steps are queued.
    pub fn advance(&mut self) -> Result<Option<StepReport>, TrainError> {
        self.advance_with(StepWishes::default())
    }

    /// The same; tells the other ranks of `wishes`, for [`agreed_wishes`](StepLoop::agreed_wishes) of all of them.
    pub fn advance_with(&mut self, wishes: StepWishes) -> Result<Option<StepReport>, TrainError> {
        let stream = self.stream.clone();
        if self.fault.traps_data_at(self.step + 1) {
            self.feed.trap_data_card()?;
        }
        let timed = self.clock.ask(&stream)?;
        let mut batches: Vec<DeviceBatch<'_>> = Vec::with_capacity(self.recipe.grad_accum);
        for _ in 0..self.recipe.grad_accum {
            match self.feed.lease(&stream) {
                Ok(batch) => batches.push(batch),
                Err(error) => {
                    // A step trains on all of its batches or on none: a checkpoint made now serves these again.
                    if let Some(first) = batches.first() {
                        self.feed.rewind(first.info());
                    }
                    drop(batches);
                    self.tell_ranks_of(&error)?;
                    return Err(error.into());
                }
            }
        }
        let wait_ns = batches.iter().map(DeviceBatch::wait_ns).sum();
        let mut counts = StepCounts::of(batches.iter().flat_map(|batch| batch.info().utterances.iter().flatten()));
        if let Some(ranks) = &mut self.ranks {
            counts = ranks.begin_step(self.step + 1, counts, wishes)?;
            if let (Some(rank), Some(first)) = (ranks.failed(), batches.first()) {
                self.feed.rewind(first.info());
                return Err(TrainError::RankFailed { rank, saved: Err("the run has not ended".to_owned()) });
            }
        }
        let mut started = self.start_step(&batches.iter().collect::<Vec<_>>(), counts, wait_ns, timed)?;
        for batch in batches {
            started.losses.push(self.accumulate(batch, &started.scales)?);
        }
        self.end_step(started)
    }

    /// Tells the other ranks that this one has no batches for the next step, so that all of them save the steps until now.
    fn tell_ranks_of(&mut self, error: &FeedError) -> Result<(), TrainError> {
        let (step, is_intact) = (self.step + 1, self.is_model_intact(error));
        match &mut self.ranks {
            Some(ranks) if is_intact => ranks.fail_step(step),
            _ => Ok(()),
        }
    }

    /// Measures model-only throughput: steps with the buckets of `steps`, on batches that are already on the device. One
    /// batch per bucket is leased and used again and again, so what the model learns is lost.
    pub fn model_only(&mut self, steps: &[Vec<usize>]) -> Result<Vec<StepReport>, TrainError> {
        assert!(self.pending.is_empty(), "drain first: these steps are measured alone");
        let stream = self.stream.clone();
        let mut held: BTreeMap<usize, DeviceBatch<'_>> = BTreeMap::new();
        let wanted: BTreeSet<usize> = steps.iter().flatten().copied().collect();
        while !wanted.iter().all(|bucket| held.contains_key(bucket)) {
            let batch = self.feed.lease(&stream)?;
            held.entry(batch.info().bucket_index).or_insert(batch);
        }
        self.stream.drain()?;
        self.start_clock();
        let mut reports = Vec::with_capacity(steps.len());
        for buckets in steps {
            let batches: Vec<&DeviceBatch<'_>> = buckets.iter().map(|bucket| &held[bucket]).collect();
            let timed = self.clock.ask(&stream)?;
            let counts = StepCounts::of(batches.iter().flat_map(|batch| batch.info().utterances.iter().flatten()));
            let mut started = self.start_step(&batches, counts, 0, timed)?;
            for batch in batches {
                started.losses.push(self.accumulate(batch, &started.scales)?);
            }
            reports.extend(self.end_step(started)?);
        }
        reports.extend(self.drain()?);
        Ok(reports)
    }

    /// Microseconds that the GEMMs of a step on this bucket take alone. They overwrite the model's memory, so this is the
    /// last measurement of a session.
    pub fn time_gemms(&self, bucket: usize) -> Result<f64, TrainError> {
        let us = self.session.time_gemms(self.programs.accumulate[bucket])?;
        Ok(us * self.recipe.grad_accum as f64)
    }

    fn start_step(
        &mut self,
        batches: &[&DeviceBatch<'_>],
        counts: StepCounts,
        wait_ns: u64,
        timed: Timed,
    ) -> Result<StartedStep, TrainError> {
        self.step += 1;
        self.clock.begin(timed, &self.stream)?;
        let infos = || batches.iter().map(|batch| batch.info());
        Ok(StartedStep {
            scales: LossScales::new(counts, self.band_means.len()),
            epoch: infos().next_back().map_or(0, |info| info.cursor.epoch),
            buckets: infos().map(|info| info.bucket_index).collect(),
            wait_ns,
            first_batch: infos().next().map_or(0, |info| info.sequence),
            timed,
            rank_waits_ns: self.ranks.as_ref().map(|ranks| ranks.waits_ns().to_vec()).unwrap_or_default(),
            losses: Vec::with_capacity(batches.len()),
        })
    }

    /// Queues the update of a step whose gradients are queued.
    fn end_step(&mut self, started: StartedStep) -> Result<Option<StepReport>, TrainError> {
        let StartedStep { epoch, buckets, wait_ns, first_batch, timed, rank_waits_ns, losses, .. } = started;
        if self.fault.traps_model_at(self.step) {
            self.stream.trap()?;
        }
        if let Some(ranks) = &mut self.ranks {
            ranks.reduce_gradients(&self.session)?;
        }
        // Learning-rate schedules count from 0.
        let lr = self.recipe.schedule.lr(self.step - 1);
        let (lr_value, decay) = ([lr as f32], [self.recipe.ema_decay.unwrap_or(0.0) as f32]);
        let host = [("lr", HostValue::F32(&lr_value)), ("ema_decay", HostValue::F32(&decay))];
        self.session.run(self.programs.update, None, &host)?;
        self.clock.end(timed, &self.stream)?;
        if self.fault.drifts_at(self.step) {
            self.change_a_weight()?;
        }
        let update = self.session.fetch(self.programs.update)?;
        let step = self.step;
        self.pending.push_back(QueuedStep {
            step,
            epoch,
            buckets,
            lr,
            wait_ns,
            first_batch,
            timed,
            rank_waits_ns,
            losses,
            update,
        });
        if self.pending.len() > RUN_AHEAD { self.report() } else { Ok(None) }
    }

    /// Fault injection: a weight changes on its own.
    fn change_a_weight(&self) -> Result<(), TrainError> {
        let mut weights = self.weights()?;
        weights[0] += 1.0;
        Ok(self.session.write_span(ParameterSpan::Parameters, &weights)?)
    }

    /// Waits for all queued steps and returns their reports.
    pub fn drain(&mut self) -> Result<Vec<StepReport>, TrainError> {
        let mut reports = Vec::with_capacity(self.pending.len());
        while let Some(report) = self.report()? {
            reports.push(report);
        }
        Ok(reports)
    }

    /// Runs a validation; `None` without a validation set. Waits for the device.
    pub fn validate(&mut self) -> Result<Option<ValidationReport>, TrainError> {
        assert!(self.pending.is_empty(), "drain first: results of steps must be read before those of a validation");
        if self.validation_set.batches.is_empty() {
            return Ok(None);
        }
        let all = |count: fn(&ValidationBatch) -> &Vec<u32>| {
            self.validation_set.batches.iter().flat_map(count).map(|&n| u64::from(n)).sum::<u64>()
        };
        let frames = all(|batch| &batch.frames);
        let counts = StepCounts { frames, tokens: all(|batch| &batch.tokens) };
        let scales = LossScales::new(counts, self.band_means.len());
        let names = Arc::clone(&self.metrics);
        let mut sums = vec![0.0_f64; names.len()];
        let mut alignment = self.programs.has_validation_result(ALIGNMENT).then(AlignmentReport::default);
        let mut predicted_frames = self.programs.has_validation_result(LOG_DURATIONS).then_some(0.0);
        for number in 0..self.validation_set.batches.len() {
            let results = self.validate_batch(number, &scales)?;
            for (sum, name) in sums.iter_mut().zip(names.iter()) {
                *sum += f64::from(one(&results, name)?);
            }
            if let Some(report) = &mut alignment {
                self.check_alignment(number, &results.get::<i32>(ALIGNMENT)?, report);
            }
            if let Some(predicted) = &mut predicted_frames {
                *predicted += self.predicted_frames(number, &results.get::<f32>(LOG_DURATIONS)?);
            }
        }
        let duration_scale = predicted_frames.map(|predicted| frames as f64 / predicted.max(1.0));
        self.duration_scale = duration_scale;
        self.start_clock();
        let (step, utterances, metrics) = (self.step, self.validation_set.count, ReportedMetrics::new(names, sums));
        Ok(Some(ValidationReport { step, utterances, metrics, duration_scale, alignment }))
    }

    fn validate_batch(&mut self, number: usize, scales: &LossScales) -> Result<Results, TrainError> {
        let batch = &self.validation_set.batches[number];
        let Some(staging) = &mut self.staging else { unreachable!("allocated if there is a batch") };
        staging.bytes_mut()?.copy_from_slice(&batch.bytes);
        let normalisation = Normalisation::of(&self.statistics);
        let mut host = scales.host_values(&normalisation);
        host.push((host::BAND_MEAN, HostValue::F32(&self.band_means)));
        let id = self.programs.validate;
        self.session.run_from(id, staging, &host)?;
        let fetch = self.session.fetch(id)?;
        Ok(self.session.finish(fetch)?)
    }

    fn check_alignment(&self, number: usize, durations: &[i32], report: &mut AlignmentReport) {
        let batch = &self.validation_set.batches[number];
        let starts = &self.validation_set.token_starts;
        for (row, (&frames, &tokens)) in batch.frames.iter().zip(&batch.tokens).enumerate() {
            let first = starts[row] as usize;
            report.add(&durations[first..first + tokens as usize], frames);
        }
    }

    /// Frames that the model predicts for the texts of a batch.
    fn predicted_frames(&self, number: usize, log_durations: &[f32]) -> f64 {
        let batch = &self.validation_set.batches[number];
        let starts = self.validation_set.token_starts.iter().map(|&start| start as usize);
        let tokens =
            starts.zip(&batch.tokens).flat_map(|(first, &count)| &log_durations[first..first + count as usize]);
        tokens.map(|&log| (f64::from(log).exp() - 1.0).max(1.0)).sum()
    }

    /// A copy of the weights. Waits for the device.
    pub fn weights(&self) -> Result<Vec<f32>, TrainError> {
        Ok(self.session.read_span(ParameterSpan::Parameters)?)
    }

    /// Connects the ranks, and checks that all of them hold the same weights and optimizer state. Nothing to check with one rank. Waits for the device.
    pub fn compare_ranks(&mut self) -> Result<(), TrainError> {
        let Some(ranks) = &mut self.ranks else { return Ok(()) };
        ranks.connect(&self.session)?;
        let hash = self.names.copy(&self.session)?.hash();
        ranks.meet_at_checkpoint(self.step, hash, Replacements::new()).map(drop)
    }

    /// State and tensors for a checkpoint. Waits for the device, and for the other ranks, which must hold the same weights.
    pub fn snapshot(&mut self) -> Result<(StepLoopState, CheckpointTensors), TrainError> {
        assert!(self.pending.is_empty(), "drain first: a checkpoint contains only steps that have ended");
        let mut state = StepLoopState {
            step: self.step,
            seed: self.recipe.seed,
            counters: UpdateCounters::read(&self.session)?,
            feed: self.feed.state(),
            mel_statistics: self.statistics.clone(),
            duration_scale: self.duration_scale,
        };
        let mut tensors = self.names.copy(&self.session)?;
        tensors.add_voices(&self.voices, self.statistics.band_means.len());
        if let Some(ranks) = &mut self.ranks {
            let own = std::mem::take(&mut state.feed.replacements);
            state.feed.replacements = ranks.meet_at_checkpoint(self.step, tensors.hash(), own)?;
        }
        self.start_clock();
        Ok((state, tensors))
    }

    /// Ends the run: finishes every queued step, joins every thread, returns all memory.
    pub fn stop(self) -> Result<(), TrainError> {
        self.stream.drain()?;
        let StepLoop { ranks, feed, session, .. } = self;
        drop(ranks);
        feed.stop()?;
        drop(session);
        Ok(())
    }

    /// Forward and backward of one micro-batch. An owned batch is released as soon as its data is in the program's inputs:
    /// the next batch transfers while this one trains, instead of after the step, when the step's results use the same
    /// link.
    fn accumulate<'s>(
        &mut self,
        batch: impl Borrow<DeviceBatch<'s>>,
        scales: &LossScales,
    ) -> Result<Fetch, TrainError> {
        let info = Arc::clone(batch.borrow().info());
        let normalisation = Normalisation::of(&self.statistics);
        let mut host = scales.host_values(&normalisation);
        let keys = StepKeys::of(self.recipe.seed, self.step, &info.utterances);
        host.push(("seed", HostValue::U32(&keys.seed)));
        host.push(("step", HostValue::U32(&keys.step)));
        host.push(("utterances", HostValue::U32(&keys.utterances)));
        let exact = match &mut self.exact {
            Some(exact) => exact.stage_inputs(&mut self.session, batch.borrow(), &host)?,
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
        // More than once only with the injected fault of slow steps.
        for _ in 0..self.fault.times(Slow::Step) {
            self.session.replay(id)?;
        }
        Ok(self.session.fetch(id)?)
    }

    /// Waits for the oldest queued step and returns its report.
    fn report(&mut self) -> Result<Option<StepReport>, TrainError> {
        let Some(pending) = self.pending.pop_front() else { return Ok(None) };
        if let Some(ranks) = &self.ranks {
            ranks.wait_for(|longest| Ok(pending.update.arrives_within(longest)?))?;
        }
        let mut sums = vec![0.0_f32; self.losses.len()];
        for fetch in pending.losses {
            let results = self.session.finish(fetch)?;
            for (sum, name) in sums.iter_mut().zip(self.losses.iter()) {
                *sum += one(&results, name)?;
            }
        }
        if let Some(ranks) = &mut self.ranks {
            ranks.reduce_losses(&mut sums)?;
        }
        let update = self.session.finish(pending.update)?;
        let in_a_row = update.get::<u32>(SKIPPED_IN_A_ROW)?[0];
        if in_a_row >= MAX_SKIPPED {
            return Err(TrainError::NotFinite { step: pending.step, in_a_row, checkpoint: None });
        }
        // Its end precedes the results that were just waited for.
        let on_device = self.clock.read(pending.timed, pending.first_batch)?;
        let wall_ns = self.last_end.elapsed().as_nanos() as u64;
        self.last_end = Instant::now();
        let losses = sums.into_iter().map(f64::from).collect();
        Ok(Some(StepReport {
            step: pending.step,
            epoch: pending.epoch,
            buckets: pending.buckets,
            losses: ReportedMetrics::new(Arc::clone(&self.losses), losses),
            gradient_norm: one(&update, "gradient_norm")?,
            lr: pending.lr,
            skipped: in_a_row > 0,
            wall_ns,
            wait_ns: pending.wait_ns,
            on_device,
            rank_waits_ns: pending.rank_waits_ns,
            cpu_ns: (self.stream.device().machine().kind() != DeviceKind::Simulated).then(cpu_ns),
        }))
    }

    /// Writes the parameters in the element type of the GEMMs, if that is not f32.
    fn write_compute(&self, parameters: &[f32]) -> Result<(), TrainError> {
        if self.session.set().precision() == DType::BF16 {
            let rounded: Vec<half::bf16> = parameters.iter().map(|&x| half::bf16::from_f32(x)).collect();
            self.session.write_span(ParameterSpan::Compute, &rounded)?;
        }
        Ok(())
    }
}

fn one(results: &Results, name: &str) -> Result<f32, TrainError> {
    Ok(results.get::<f32>(name)?[0])
}
