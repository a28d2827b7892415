//! From a plan to a run that is ready for its first step: the one way training is set up, whoever asks for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tandem_corpus::{Dataset, SampleIndex};
use tandem_device::{DType, Isolation, Kind};
use tandem_engine::{Schedule, Session, UpdateSpec};
use tandem_events::{Emitter, Event, Role};
use tandem_feed::{CacheSpec, Feed, FeedSpec, FeedState, FromFiles, MELS, Material, NUM_BUCKETS, Recordings, Warm};
use tandem_model::{Acoustic, Programs, ProgramsSpec};
use tandem_plan::{Moment, Plan, Precision, speech, startup_lines};
use tandem_train::{
    Calendar, Checkpoint, HeldOut, MelStatistics, Recipe, RunIdentity, SpanNames, TrainError, Trainer, TrainerParts,
    TrainerState,
};

use crate::resolve::Resolved;
use crate::validate::{arena_of, card_of};

/// What is trained on, and what it is judged by.
#[derive(Clone)]
pub struct Corpora {
    /// What is trained on.
    pub train: Arc<Material>,
    /// Held-out utterances, and the corpus they are rows of.
    pub held_out: (Arc<Dataset>, Vec<SampleIndex>),
}

/// A run that is ready for its first step.
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
    /// How full the feed was.
    pub warm: Warm,
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
    /// The engine runs on the CPU and on simulated cards so far.
    #[error(
        "training on NVIDIA cards is not built yet; --mode cpu trains on the CPU, --sim 1x24GiB on a simulated card"
    )]
    NotOnCuda,
}

macro_rules! through_train_error {
    ($($source:ty),*) => { $(impl From<$source> for LaunchError {
        fn from(error: $source) -> LaunchError {
            LaunchError::Train(error.into())
        }
    })* };
}
through_train_error!(
    tandem_device::DeviceError,
    tandem_device::IsolationError,
    tandem_engine::EngineError,
    tandem_feed::FeedError
);

/// Facts by which two runs are told apart.
pub fn identity(plan: &Plan, corpora: &Corpora) -> RunIdentity {
    let material = &corpora.train;
    let ids = material.rows().iter().filter_map(|(index, _)| material.dataset().get(*index));
    let mut data = tandem_train::Fingerprint::new();
    ids.for_each(|sample| data.take(&[sample.id, sample.text]));
    let mut symbols = tandem_train::Fingerprint::new();
    material.texts().iter().flat_map(|texts| texts.table().symbols()).for_each(|symbol| symbols.take(&[symbol]));
    RunIdentity::new()
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

/// Sets everything up, in the order of the start-up lines: `say` is given each once it is true. With a checkpoint the run
/// goes on from it.
pub fn launch(
    resolved: &Resolved,
    corpora: &Corpora,
    checkpoint: Option<&Checkpoint>,
    bad_samples: PathBuf,
    emitter: &Emitter,
    say: &mut dyn FnMut(&str),
) -> Result<Launched, LaunchError> {
    let Resolved { machine, plan, .. } = resolved;
    if machine.kind() == Kind::Cuda {
        return Err(LaunchError::NotOnCuda);
    }
    let mut moment = |moment| startup_lines(plan, moment).iter().for_each(|line| say(line));
    moment(Moment::Configuring);
    let roles = reserve(resolved, emitter, &mut moment)?;
    let recordings: Arc<dyn Recordings> = Arc::new(FromFiles);
    let state = checkpoint.map(|checkpoint| state_of(checkpoint, plan)).transpose()?;
    let from = state.as_ref().map(|state| state.feed.clone()).unwrap_or_default();
    let buckets = corpora.train.bucket_plan(NUM_BUCKETS, micro_batch(plan)).ok_or(LaunchError::Nothing)?;
    let feed = Feed::start(&roles, feed_spec(plan, corpora, &recordings, from, bad_samples, emitter, buckets))?;
    let batches = feed.batches_per_epoch();
    moment(Moment::PipelineReady);
    moment(Moment::ModelPlaced);
    moment(Moment::CreatingModel);
    let statistics = match &state {
        Some(state) => state.statistics.clone(),
        None => MelStatistics::measure(&corpora.train, recordings.as_ref())?,
    };
    let symbols = corpora.train.texts().map_or(0, |texts| texts.table().len() as u32);
    let model = speech::acoustic(plan.model_size, symbols)?;
    let calendar = calendar(plan, batches);
    let programs = programs(plan, &model)?;
    let under_way = Trainer::under_way(plan.grad_accum as usize);
    let stream = Arc::new(roles.model.device.stream(true)?);
    let session = Session::create(programs.set.clone(), &roles.model.arena, stream, under_way)?;
    let buckets = speech::buckets(&plan.feed);
    let (dataset, rows) = &corpora.held_out;
    let held_out =
        HeldOut::prepare((dataset, rows), &corpora.train, recordings.as_ref(), &buckets[0].shape, &buckets[0].layout)?;
    let counts = (held_out.count, held_out.left_out);
    let model_json = model_json(plan, corpora, &statistics);
    let num_parameters = model.parameters().count();
    let recipe = recipe(plan, &calendar);
    let parts = TrainerParts { session, programs, feed, held_out, statistics, recipe };
    let mut trainer = match (checkpoint, &state) {
        (Some(checkpoint), Some(state)) => {
            SpanNames::of(parts.session.set()).expect(checkpoint)?;
            Trainer::resume(parts, checkpoint, state)?
        }
        _ => Trainer::begin(parts)?,
    };
    moment(Moment::Waiting);
    let warm = trainer.feed_mut().wait_warm(Duration::from_secs_f64(plan.start_delay_seconds))?;
    Ok(Launched { trainer, roles, calendar, model: model_json, num_parameters, held_out: counts, warm })
}

fn reserve(resolved: &Resolved, emitter: &Emitter, moment: &mut dyn FnMut(Moment)) -> Result<Isolation, LaunchError> {
    let Resolved { machine, plan, .. } = resolved;
    let cards = [card_of(&plan.data), card_of(&plan.model)];
    machine.restrict(&cards);
    moment(Moment::DevicesRestricted);
    moment(Moment::Reserving);
    let roles =
        Isolation::set_up(machine, (cards[0], arena_of(plan, &plan.data)), (cards[1], arena_of(plan, &plan.model)))?;
    for role in Role::BOTH {
        let spec = roles.partition(role).arena.spec();
        let (bytes, limit_bytes, driver_bytes) = (spec.arena_bytes, spec.limit_bytes, spec.driver_bytes);
        let card = roles.partition(role).device.index();
        emitter.emit(Event::ArenaReserved { role, card, bytes, limit_bytes, driver_bytes });
        moment(Moment::Reserved(role));
    }
    moment(Moment::Configured);
    Ok(roles)
}

fn feed_spec(
    plan: &Plan,
    corpora: &Corpora,
    recordings: &Arc<dyn Recordings>,
    from: FeedState,
    bad_samples: PathBuf,
    emitter: &Emitter,
    buckets: tandem_feed::BucketPlan,
) -> FeedSpec {
    FeedSpec {
        material: Arc::clone(&corpora.train),
        buckets,
        plan: plan.feed.clone(),
        route_why: plan.transfer.why.clone(),
        seed: plan.seed,
        evaluates: false,
        from,
        recordings: Arc::clone(recordings),
        threads: plan.threads as usize,
        max_threads: plan.max_threads as usize,
        depth_fixed: false,
        cache: CacheSpec { kind: plan.cache.kind, budget_bytes: plan.cache.budget_bytes, folder: None },
        max_bad_fraction: plan.max_bad_fraction,
        bad_samples: Some(bad_samples),
        emitter: emitter.clone(),
        delay_ns: 0,
    }
}

fn micro_batch(plan: &Plan) -> u32 {
    u32::try_from(plan.batch_size / plan.grad_accum).unwrap_or(u32::MAX)
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

fn programs(plan: &Plan, model: &Acoustic) -> Result<Programs, LaunchError> {
    let buckets = speech::buckets(&plan.feed);
    let spec = ProgramsSpec {
        precision: speech::precision(plan.precision),
        buckets: &buckets,
        update: update_spec(plan),
        working_limit: None,
    };
    Ok(Programs::build(model, &spec)?)
}

fn update_spec(plan: &Plan) -> UpdateSpec {
    speech::update(plan.training.clip, plan.training.average_decay.is_some())
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
    json!({
        "format": 1,
        "preset": plan.model_size.name(),
        "sizes": speech::preset(plan.model_size).sizes(),
        "symbols": corpora.train.texts().map(|texts| texts.table().symbols().to_vec()),
        "features": {
            "rate_hz": features.rate_hz,
            "n_fft": features.n_fft,
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
