//! From a plan to a run that is ready for its first step: the one way training is set up, whoever asks for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tandem_audio::AudioError;
use tandem_corpus::{Dataset, SampleIndex};
use tandem_device::{ArenaSpec, DType, DeviceError, Isolation, Machine};
use tandem_engine::{EngineError, ProgramSet, Schedule, Session};
use tandem_events::{Emitter, Event, Role};
use tandem_feed::{
    BucketPlan, CacheSpec, Feed, FeedError, FeedSpec, FromFiles, MELS, Material, NUM_BUCKETS, Recordings, Texts, Warm,
};
use tandem_model::{Acoustic, Programs};
use tandem_plan::{Moment, Plan, Precision, RolePlan, Transfer, speech, startup_lines};
use tandem_text::Harakat;
use tandem_train::{
    Calendar, Checkpoint, HeldOut, MelStatistics, Recipe, RunIdentity, SpanNames, TrainError, Trainer, TrainerParts,
    TrainerState, WriteProgram, gather_voices,
};

use crate::resolve::Resolved;

/// What is trained on, and what it is judged by.
#[derive(Clone)]
pub struct Corpora {
    /// What is trained on.
    pub train: Arc<Material>,
    /// Held-out utterances, and the corpus they are rows of.
    pub held_out: (Arc<Dataset>, Vec<SampleIndex>),
}

/// A run that is set up.
pub struct Launched {
    // Before the arenas its memory is from.
    /// The trainer.
    pub trainer: Trainer,
    /// The memory of both roles.
    pub roles: Isolation,
    /// When things are due.
    pub calendar: Calendar,
    /// What a checkpoint says of the model.
    pub model: Value,
    /// What is learnt.
    pub num_parameters: u64,
    /// Held-out utterances, and those that fit no row.
    pub held_out: (usize, usize),
}

impl Launched {
    /// Waits for the feed to be full, for as long as the plan says at most.
    pub fn wait_warm(&mut self, plan: &Plan) -> Result<Warm, LaunchError> {
        Ok(self.trainer.feed_mut().wait_warm(Duration::from_secs_f64(plan.start_delay_seconds))?)
    }
}

/// Why a run did not start.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Training, files, memory or the feed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// There is nothing to train on.
    #[error("the corpus has not one utterance that can be trained on: `tandem corpus check` says why")]
    Nothing,
}

impl LaunchError {
    /// What the device said, where that is what went wrong.
    pub fn device(&self) -> Option<&DeviceError> {
        let LaunchError::Train(error) = self else { return None };
        device_error(error)
    }
}

/// What the device said, where that is what went wrong.
pub(crate) fn device_error(error: &TrainError) -> Option<&DeviceError> {
    match error {
        TrainError::Device(error)
        | TrainError::Engine(EngineError::Device(error))
        | TrainError::Feed(FeedError::Device(error) | FeedError::Features(AudioError::Device(error))) => Some(error),
        _ => None,
    }
}

macro_rules! through_train_error {
    ($($source:ty),*) => { $(impl From<$source> for LaunchError {
        fn from(error: $source) -> LaunchError {
            LaunchError::Train(error.into())
        }
    })* };
}
through_train_error!(DeviceError, tandem_device::IsolationError, EngineError, FeedError);

/// Facts by which two runs are told apart.
pub fn identity(plan: &Plan, corpora: &Corpora) -> RunIdentity {
    let material = &corpora.train;
    let ids = material.rows().iter().filter_map(|(index, _)| material.dataset().get(*index));
    let mut data = tandem_train::Fingerprint::new();
    ids.for_each(|sample| data.take(&[sample.id, sample.text]));
    let mut symbols = tandem_train::Fingerprint::new();
    material.texts().iter().flat_map(|texts| texts.table().symbols()).for_each(|symbol| symbols.take(&[symbol]));
    let identity = RunIdentity::new();
    // Sums over other shapes are other bits. Runs of before there was a choice have no such fact.
    let identity = if plan.static_shapes { identity } else { identity.with("shapes", "exact") };
    identity
        .with("data", data.told())
        .with("utterances", material.rows().len())
        .with("symbols", symbols.told())
        .with("model", plan.model_size.name())
        .with("precision", if plan.precision == Precision::Mixed { "bf16" } else { "f32" })
        .with("batch", plan.batch_size)
        .with("grad_accum", plan.grad_accum)
        .with("optimization_level", plan.level.slug())
        .with("seed", plan.seed)
}

/// Sets everything up and waits for the feed, in the order of the start-up lines: `say` is given each once it is true. With
/// a checkpoint the run goes on from it. Also says how full the feed is.
pub fn launch(
    resolved: &Resolved,
    corpora: &Corpora,
    checkpoint: Option<&Checkpoint>,
    bad_samples: PathBuf,
    emitter: &Emitter,
    say: &mut dyn FnMut(&str),
) -> Result<(Launched, Warm), LaunchError> {
    let plan = &resolved.plan;
    let mut moment = |moment| startup_lines(plan, moment).iter().for_each(|line| say(line));
    moment(Moment::Configuring);
    let setup = Setup::new(resolved, corpora, checkpoint, Some(bad_samples), emitter)?;
    let roles = setup.reserve(&mut moment)?;
    let feed = setup.start_feed(&roles)?;
    moment(Moment::PipelineReady);
    moment(Moment::ModelPlaced);
    moment(Moment::CreatingModel);
    let model = setup.create_model(&roles, setup.programs()?)?;
    let mut launched = setup.join(roles, feed, model)?;
    // What the driver took for kernels, libraries and recordings is read now, and must be inside what was planned for it.
    launched.roles.settle()?;
    moment(Moment::Waiting);
    let warm = launched.wait_warm(plan)?;
    Ok((launched, warm))
}

/// A run before anything is taken for it. Its methods are the pieces of [`launch`], in their order, for whoever has
/// something to look at in between.
pub struct Setup<'a> {
    machine: &'a Machine,
    plan: Plan,
    corpora: &'a Corpora,
    /// Where it goes on from, if anywhere.
    from: Option<(&'a Checkpoint, TrainerState)>,
    recordings: Arc<dyn Recordings>,
    /// Where bad recordings are listed, if anywhere.
    bad_samples: Option<PathBuf>,
    emitter: &'a Emitter,
}

/// Every program of a run, and the shapes they are for.
pub struct RunPrograms {
    programs: Programs,
    buckets: Vec<tandem_model::Bucket>,
}

impl RunPrograms {
    /// What a session of them takes.
    pub fn set(&self) -> &ProgramSet {
        &self.programs.set
    }
}

/// The model with its memory.
pub struct CreatedModel {
    session: Session,
    programs: RunPrograms,
}

impl<'a> Setup<'a> {
    /// Fails where the checkpoint is none that a run of this plan can go on from.
    pub fn new(
        resolved: &'a Resolved,
        corpora: &'a Corpora,
        checkpoint: Option<&'a Checkpoint>,
        bad_samples: Option<PathBuf>,
        emitter: &'a Emitter,
    ) -> Result<Setup<'a>, LaunchError> {
        let Resolved { machine, plan, .. } = resolved;
        let from = checkpoint.map(|checkpoint| state_of(checkpoint, plan).map(|state| (checkpoint, state)));
        let (plan, from, recordings) = (plan.clone(), from.transpose()?, Arc::new(FromFiles));
        Ok(Setup { machine, plan, corpora, from, recordings, bad_samples, emitter })
    }

    /// Batches cross another way: the planned one was tried, and does not deliver.
    pub fn reroute(&mut self, other: Transfer) {
        self.plan.reroute(other);
    }

    /// Opens the plan's cards and takes the memory of both roles.
    pub fn reserve(&self, moment: &mut dyn FnMut(Moment)) -> Result<Isolation, LaunchError> {
        let plan = &self.plan;
        let cards = [card_of(&plan.data), card_of(&plan.model)];
        self.machine.restrict(&cards);
        moment(Moment::DevicesRestricted);
        moment(Moment::Reserving);
        let [data, model] = [&plan.data, &plan.model].map(|role| arena_of(plan, role));
        let roles = Isolation::set_up(self.machine, (cards[0], data), (cards[1], model))?;
        if roles.model.arena.is_split() {
            // Blocks are taken one by one: nothing is reserved, and nobody says so.
            return Ok(roles);
        }
        for role in Role::BOTH {
            let spec = roles.partition(role).arena.spec();
            let (bytes, limit_bytes, driver_bytes) = (spec.arena_bytes, spec.limit_bytes, spec.driver_bytes);
            let card = roles.partition(role).device.index();
            self.emitter.emit(Event::ArenaReserved { role, card, bytes, limit_bytes, driver_bytes });
            moment(Moment::Reserved(role));
        }
        moment(Moment::Configured);
        Ok(roles)
    }

    /// Takes the feed's memory, proves the way across, and starts to fill it.
    pub fn start_feed(&self, roles: &Isolation) -> Result<Feed, LaunchError> {
        let plan = &self.plan;
        let buckets = self.corpora.train.bucket_plan(NUM_BUCKETS, plan.micro_batch()).ok_or(LaunchError::Nothing)?;
        Ok(Feed::start(roles, self.feed_spec(buckets))?)
    }

    /// Plans and lowers every program of the run.
    pub fn programs(&self) -> Result<RunPrograms, LaunchError> {
        let model = acoustic(&self.plan, self.corpora)?;
        let buckets = speech::buckets(&self.plan.feed);
        let programs = speech::programs(&self.plan, &model, &buckets)?;
        Ok(RunPrograms { programs, buckets })
    }

    /// Takes the model's memory and prepares every program of it.
    pub fn create_model(&self, roles: &Isolation, programs: RunPrograms) -> Result<CreatedModel, LaunchError> {
        let under_way = Trainer::under_way(self.plan.grad_accum as usize);
        let stream = Arc::new(roles.model.device.stream(true)?);
        let set = Arc::clone(&programs.programs.set);
        let session = Session::create(set, &roles.model.arena, stream, under_way)?;
        Ok(CreatedModel { session, programs })
    }

    /// Puts it all together: parameters are as the seed makes them, or those of the checkpoint.
    pub fn join(self, roles: Isolation, feed: Feed, model: CreatedModel) -> Result<Launched, LaunchError> {
        let Setup { plan, corpora, from, recordings, .. } = self;
        let CreatedModel { session, programs: RunPrograms { programs, buckets } } = model;
        let calendar = calendar(&plan, feed.batches_per_epoch());
        let statistics = match &from {
            Some((_, state)) => state.statistics.clone(),
            None => MelStatistics::measure(&corpora.train, recordings.as_ref())?,
        };
        let model = model_json(&plan, corpora, &statistics);
        let num_parameters = session.set().parameters().count();
        let held_out = held_out(corpora, recordings.as_ref(), &buckets[0])?;
        let counts = (held_out.count, held_out.left_out);
        let recipe = recipe(&plan, &calendar);
        let voices = gather_voices(&corpora.train, recordings.as_ref())?;
        let exact = exact_shapes(&plan, corpora)?;
        let parts = TrainerParts { session, programs, feed, held_out, statistics, voices, recipe, exact };
        let trainer = match &from {
            Some((checkpoint, state)) => {
                SpanNames::of(parts.session.set()).expect(checkpoint)?;
                Trainer::resume(parts, checkpoint, state)?
            }
            None => Trainer::begin(parts)?,
        };
        Ok(Launched { trainer, roles, calendar, model, num_parameters, held_out: counts })
    }

    fn feed_spec(&self, buckets: BucketPlan) -> FeedSpec {
        let plan = &self.plan;
        FeedSpec {
            material: Arc::clone(&self.corpora.train),
            buckets,
            plan: plan.feed.clone(),
            route_why: plan.transfer.why.clone(),
            seed: plan.seed,
            evaluates: false,
            from: self.from.as_ref().map(|(_, state)| state.feed.clone()).unwrap_or_default(),
            recordings: Arc::clone(&self.recordings),
            threads: plan.threads as usize,
            max_threads: plan.max_threads as usize,
            depth_fixed: plan.buffer_size_given,
            cache: CacheSpec { kind: plan.cache.kind, budget_bytes: plan.cache.budget_bytes, folder: None },
            max_bad_fraction: plan.max_bad_fraction,
            bad_samples: self.bad_samples.clone(),
            emitter: self.emitter.clone(),
            delay_ns: 0,
        }
    }
}

/// The model of a run.
fn acoustic(plan: &Plan, corpora: &Corpora) -> Result<Acoustic, EngineError> {
    let symbols = corpora.train.texts().map_or(0, |texts| texts.table().len() as u32);
    speech::acoustic(plan.model_size, symbols)
}

/// What writes programs of exact shapes, where those were asked for.
fn exact_shapes(plan: &Plan, corpora: &Corpora) -> Result<Option<WriteProgram>, EngineError> {
    if plan.static_shapes {
        return Ok(None);
    }
    let (plan, model) = (plan.clone(), acoustic(plan, corpora)?);
    Ok(Some(Box::new(move |set, shape| speech::exact_program(&plan, &model, set, shape))))
}

fn held_out(
    corpora: &Corpora,
    recordings: &dyn Recordings,
    first: &tandem_model::Bucket,
) -> Result<HeldOut, TrainError> {
    let (dataset, rows) = &corpora.held_out;
    HeldOut::prepare((dataset, rows), &corpora.train, recordings, &first.shape, &first.layout)
}

/// What a checkpoint keeps beside its tensors, if a run of this plan can go on from it.
fn state_of(checkpoint: &Checkpoint, plan: &Plan) -> Result<TrainerState, TrainError> {
    let foreign = |reason: String| TrainError::foreign_state(checkpoint, reason);
    let state: TrainerState =
        serde_json::from_value(checkpoint.state.clone()).map_err(|error| foreign(error.to_string()))?;
    let MelStatistics { mean, deviation, bands } = &state.statistics;
    if state.step != checkpoint.step {
        return Err(foreign(format!("it is of step {}, the checkpoint of step {}", state.step, checkpoint.step)));
    }
    if state.seed != plan.seed {
        return Err(foreign(format!("it was trained with --seed {}, this run has {}", state.seed, plan.seed)));
    }
    if bands.len() as u64 != MELS || !(mean.is_finite() && *deviation > 0.0 && deviation.is_finite()) {
        return Err(foreign(format!("spectra of {} bands, mean {mean}, deviation {deviation}", bands.len())));
    }
    Ok(state)
}

fn calendar(plan: &Plan, batches: u64) -> Calendar {
    let steps_of_epoch = (batches / plan.grad_accum).max(1);
    Calendar {
        total_steps: plan.training.total_steps(steps_of_epoch),
        steps_of_epoch,
        checkpoint_every: plan.training.checkpoint_every,
    }
}

fn recipe(plan: &Plan, calendar: &Calendar) -> Recipe {
    let training = &plan.training;
    let (peak, total) = (training.peak_lr, calendar.total_steps);
    let warm_up = training.warm_up_steps(total);
    let schedule = match training.cosine {
        true => Schedule::cosine(peak, warm_up, total, peak * LAST_SHARE),
        false => Schedule::constant(peak, warm_up),
    };
    Recipe { schedule, average_decay: training.average_decay, grad_accum: plan.grad_accum as usize, seed: plan.seed }
}

/// Of the highest learning rate, what is left at the end of a cosine.
const LAST_SHARE: f64 = 0.05;

/// Enough to run the model elsewhere.
fn model_json(plan: &Plan, corpora: &Corpora, statistics: &MelStatistics) -> Value {
    let features = corpora.train.features();
    let text = corpora.train.texts().map(Texts::options).unwrap_or_default();
    json!({
        "format": 1,
        "preset": plan.model_size.name(),
        "sizes": plan.model_size.sizes(),
        "symbols": corpora.train.texts().map(|texts| texts.table().symbols().to_vec()),
        "text": {
            "language": plan.sources.lang,
            "blanks": text.blanks,
            "keeps_harakat": text.harakat == Harakat::Keep,
            "longest_tokens": corpora.train.max_tokens(),
        },
        "features": {
            "rate_hz": features.rate_hz,
            "n_fft": features.n_fft,
            "win_samples": features.win_samples,
            "hop_samples": features.hop_samples,
            "n_mels": features.n_mels,
            "fmin_hz": features.fmin_hz,
            "fmax_hz": features.fmax_hz,
            "floor": features.floor,
        },
        "statistics": statistics,
        "compute": if speech::precision(plan.precision) == DType::BF16 { "bf16" } else { "f32" },
    })
}

/// The CPU is its own card 0.
pub(crate) fn card_of(role: &RolePlan) -> usize {
    role.card.unwrap_or(0)
}

fn arena_of(plan: &Plan, role: &RolePlan) -> ArenaSpec {
    ArenaSpec {
        role: role.role,
        limit_bytes: role.limit_bytes,
        driver_bytes: role.driver_bytes,
        arena_bytes: role.arena_bytes,
        capped: plan.isolated,
    }
}
