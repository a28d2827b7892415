//! From a plan to a run that is ready for its first step. Every command and the library set up training here.

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tandem_audio::Arithmetic;
use tandem_checkpoint::{
    Architecture, Checkpoint, CheckpointError, ComputeDtype, Fingerprint, MelStatistics, ModelContract, ModelText,
    RunIdentity, Vocoder,
};
use tandem_corpus::{Dataset, SampleIndex, Shard};
use tandem_device::{
    ArenaSpec, Communicator, CommunicatorId, DType, DeviceError, DeviceKind, Isolation, Machine, RoleSetup,
};
use tandem_engine::{EngineError, ProgramSet, Schedule, Session};
use tandem_events::{Emitter, Role, RunEvent};
use tandem_feed::{
    BucketPlan, CacheSpec, Feed, FeedError, FeedSpec, FromFiles, MELS, NUM_BUCKETS, Recordings, Tokenizer, TrainingSet,
    Warm,
};
use tandem_model::{Acoustic, Model, ModelDims, Programs, VoiceReferences};
use tandem_pipeline::CoreSet;
use tandem_plan::{Plan, Precision, RolePlan, StartupPhase, TransferPlan, speech, startup_lines, vocabulary};
use tandem_ranks::Group;
use tandem_text::{Harakat, LanguageRules, Lexicon, Phonemizer};
use tandem_train::{
    CompileProgram, InitReport, InitSource, Ranks, Recipe, RunSchedule, StepLoop, StepLoopParts, StepLoopState,
    TensorNames, TrainError, ValidationRows, ValidationSet, gather_voices, measure_mel_statistics, random_weights,
    weights_from,
};

use crate::inventory::Resolved;
use crate::sampler::SamplerError;

/// Training and validation data.
#[derive(Clone)]
pub struct Corpora {
    /// The training set.
    pub train: Arc<TrainingSet>,
    /// What validation reads.
    pub validation: ValidationUtterances,
}

impl Corpora {
    /// The same with features in `arithmetic`. Cost: a copy of the rows if it differs.
    fn with_arithmetic(&self, arithmetic: Arithmetic) -> Corpora {
        let train = match self.train.features().arithmetic == arithmetic {
            true => Arc::clone(&self.train),
            false => Arc::new(self.train.with_arithmetic(arithmetic)),
        };
        Corpora { train, validation: self.validation.clone() }
    }
}

/// The utterances of the validation set, as rows of their corpus.
#[derive(Clone)]
pub struct ValidationUtterances {
    /// Their corpus; the training corpus if it was split.
    pub dataset: Arc<Dataset>,
    /// Which of its rows.
    pub rows: Vec<SampleIndex>,
}

/// How much of the validation set is used.
#[derive(Clone, Copy, Debug)]
pub struct ValidationCounts {
    /// Utterances that are validated on.
    pub count: usize,
    /// Utterances that fit no bucket.
    pub too_long: usize,
}

/// A run that is ready for its first step.
pub struct Launched {
    // Dropped before the arenas that own its memory.
    /// The step loop.
    pub trainer: StepLoop,
    /// The memory of both roles.
    pub roles: Isolation,
    /// When validation and checkpoints are due.
    pub schedule: RunSchedule,
    /// The model contract of its checkpoints.
    pub model: ModelContract,
    /// Number of trained parameters.
    pub num_parameters: u64,
    /// The size of the validation set.
    pub validation: ValidationCounts,
    /// What was taken from the checkpoint of [`Setup::with_initial_weights`].
    pub init: Option<InitReport>,
}

impl Launched {
    /// Waits until the data buffer is full, at most as long as the plan says, and emits which of the two it was.
    pub fn wait_warm(&mut self, plan: &Plan, emitter: &Emitter) -> Result<Warm, LaunchError> {
        let warm = self.trainer.feed_mut().wait_warm(Duration::from_secs_f64(plan.start_delay_seconds))?;
        let Warm { ready, of, waited } = warm;
        emitter.emit(RunEvent::BufferWait {
            ready: ready as u64,
            of: of as u64,
            ns: waited.as_nanos() as u64,
            cached_from_epoch: self.cached_from_epoch(plan),
        });
        Ok(warm)
    }

    /// The first epoch in which every recording is already in the cache: the one after the first whole epoch. `None` without
    /// a cache.
    pub fn cached_from_epoch(&self, plan: &Plan) -> Option<u64> {
        let next = self.trainer.feed().state().next;
        // Each of several ranks reads another part of an epoch: none of them has met every recording after one.
        let is_cached = plan.cache.spec != CacheSpec::None && plan.world.size == 1;
        is_cached.then(|| next.epoch + 1 + u64::from(next.k > 0))
    }
}

/// Why a run did not start.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// Training, files, memory or the feed.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// The plan was made for another model.
    #[error(
        "the plan is for {planned}, the model to train is {given}; plan again with `CustomModel::new` of that model"
    )]
    OtherModel {
        /// What the plan is for.
        planned: String,
        /// What was to be trained.
        given: String,
    },
    /// A whole run writes checkpoints and has no folder for them.
    #[error("no run folder for checkpoints: call `folder` of the builder, or step with `advance`")]
    NoFolder,
    /// The memory sampler failed.
    #[error(transparent)]
    Watching(SamplerError),
    /// The training set is empty.
    #[error("no utterance of the corpus can be trained on: `tandem corpus check` says why")]
    Nothing,
}

impl LaunchError {
    /// The device error, if it is one.
    pub fn device(&self) -> Option<&DeviceError> {
        let LaunchError::Train(error) = self else { return None };
        device_error(error)
    }
}

/// The device error inside `error`, if there is one.
pub fn device_error(error: &TrainError) -> Option<&DeviceError> {
    match error {
        TrainError::Device(error) | TrainError::Engine(EngineError::Device(error)) => Some(error),
        TrainError::Feed(error) => error.device_error(),
        TrainError::DataFailed { error, .. } | TrainError::CorruptBatch { error, .. } => error.device_error(),
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
through_train_error!(CheckpointError, DeviceError, tandem_device::IsolationError, EngineError, FeedError);

/// The facts that identify a run: two runs with the same facts may share checkpoints.
pub fn identity(plan: &Plan, corpora: &Corpora) -> RunIdentity {
    let train = &corpora.train;
    let samples = train.rows().iter().filter_map(|(index, _)| train.dataset().get(*index));
    let mut data = Fingerprint::new();
    samples.for_each(|sample| data.take(&[sample.id, sample.text]));
    let mut symbols = Fingerprint::new();
    train
        .tokenizer()
        .iter()
        .flat_map(|tokenizer| tokenizer.table().symbols())
        .for_each(|symbol| symbols.take(&[symbol]));
    let identity = RunIdentity::new();
    // Sums over other shapes give other bits. Runs from before this option have no such fact.
    let identity = if plan.static_shapes { identity } else { identity.with("shapes", "exact") };
    let facts = text_facts(train).into_iter().chain(repeats_of(train).map(|hash| ("mixture_weights", hash)));
    facts
        .fold(identity, |identity, (name, value)| identity.with(name, value))
        // The order of batches follows from them, and formats round durations in different ways.
        .with_newer("recording_lengths", lengths_of(train))
        .with("data", data.hex())
        .with("utterances", train.rows().len())
        .with("symbols", symbols.hex())
        .with("model", plan.model_title())
        .with("precision", if plan.precision == Precision::Mixed { "bf16" } else { "f32" })
        .with("batch", plan.batch_size)
        .with("grad_accum", plan.grad_accum)
        .with("optimization_level", plan.level.slug())
        .with("seed", plan.seed)
}

/// How often each row is trained on in an epoch, as a hash. None for a corpus without repeats: runs from before mixtures have no
/// such fact.
fn repeats_of(train: &TrainingSet) -> Option<String> {
    let dataset = train.dataset();
    let repeats = train.rows().iter().map(|(index, _)| dataset.repeats(*index));
    dataset.has_repeats().then(|| hash_of(repeats))
}

/// The frames of each row, as a hash.
fn lengths_of(train: &TrainingSet) -> String {
    hash_of(train.rows().iter().map(|(_, extent)| extent.frames))
}

fn hash_of(numbers: impl Iterator<Item = u32>) -> String {
    let mut fingerprint = Fingerprint::new();
    numbers.for_each(|number| fingerprint.take_bytes(&number.to_le_bytes()));
    fingerprint.hex()
}

/// How texts become tokens, as far as it is not the default: runs from before these options have no such facts.
fn text_facts(train: &TrainingSet) -> Vec<(&'static str, String)> {
    let Some(tokenizer) = train.tokenizer() else { return Vec::new() };
    let rules = tokenizer.languages();
    let is_default = |rules: &LanguageRules| rules.phonemizer == Phonemizer::default_for(&rules.tag);
    let mut facts = Vec::new();
    if rules.len() > 1 || !rules.iter().all(is_default) {
        let shown: Vec<String> = rules.iter().map(|rules| format!("{} ({})", rules.tag, rules.phonemizer)).collect();
        facts.push(("languages", shown.join(", ")));
    }
    if tokenizer.options().harakat == Harakat::Keep {
        facts.push(("harakat", "keep".to_owned()));
    }
    if let Some(lexicon) = tokenizer.lexicon() {
        let mut fingerprint = Fingerprint::new();
        fingerprint.take(&[&lexicon.to_text()]);
        facts.push(("lexicon", fingerprint.hex()));
    }
    facts
}

/// Progress of setting up a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaunchProgress<'a> {
    /// A start-up line, once it is true.
    Line(&'a str),
    /// Programs that are compiled and captured so far.
    WarmUp {
        /// How many.
        ready: usize,
        /// Of how many.
        of: usize,
    },
}

/// Sets up a run of the speech model for the commands: [`Setup::launch`]. Resumes from `checkpoint` if given; lists bad
/// recordings in `bad_samples`. Libraries use [`Trainer::builder`](crate::Trainer::builder).
pub fn launch(
    resolved: &Resolved,
    corpora: &Corpora,
    checkpoint: Option<&Checkpoint>,
    bad_samples: PathBuf,
    emitter: &Emitter,
    say: &mut dyn FnMut(LaunchProgress<'_>),
) -> Result<(Launched, Warm), LaunchError> {
    Setup::new(resolved, corpora, checkpoint, Some(bad_samples), emitter)?.launch(say)
}

/// A run before any memory is reserved. Its methods are the stages of [`Setup::launch`] in order; `validate` calls them one
/// by one.
pub struct Setup<'a> {
    machine: &'a Machine,
    plan: Plan,
    /// With features in the arithmetic of the plan.
    corpora: Corpora,
    /// The custom model, if it is not the speech model.
    custom_model: Option<Arc<dyn Model>>,
    /// The checkpoint to resume from, if any.
    from: Option<(&'a Checkpoint, StepLoopState)>,
    /// The checkpoint whose weights a new run starts from, if any.
    init: Option<&'a Checkpoint>,
    recordings: Arc<dyn Recordings>,
    /// The other ranks of the run, if there are any.
    ranks: Option<Arc<Group>>,
    /// The list of bad recordings, if any.
    bad_samples: Option<PathBuf>,
    emitter: &'a Emitter,
}

/// Every program of a run, and their buckets.
pub struct RunPrograms {
    programs: Programs,
    buckets: Vec<tandem_model::ProgramBucket>,
}

impl RunPrograms {
    /// The program set, with its memory.
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
    /// Features are in the arithmetic of the checkpoint, or else of the plan. Fails if a run of this plan cannot resume from
    /// the checkpoint.
    pub fn new(
        resolved: &'a Resolved,
        corpora: &Corpora,
        checkpoint: Option<&'a Checkpoint>,
        bad_samples: Option<PathBuf>,
        emitter: &'a Emitter,
    ) -> Result<Setup<'a>, LaunchError> {
        let Resolved { machine, plan, .. } = resolved;
        let from = checkpoint.map(|checkpoint| state_of(checkpoint, plan).map(|state| (checkpoint, state)));
        let (mut plan, from, recordings) = (plan.clone(), from.transpose()?, Arc::new(FromFiles));
        if let Some(checkpoint) = checkpoint {
            plan.arithmetic = plan.arithmetic.kept(checkpoint.model.features.arithmetic);
        }
        let corpora = corpora.with_arithmetic(plan.arithmetic.arithmetic);
        Ok(Setup {
            machine,
            plan,
            corpora,
            custom_model: None,
            from,
            init: None,
            recordings,
            ranks: None,
            bad_samples,
            emitter,
        })
    }

    /// Starts a new run from the weights of `checkpoint` (fine-tuning), not from random ones. A run that resumes has its own
    /// weights and ignores it.
    ///
    /// Fails with [`TrainError::ForeignInit`] if it holds a model of another size.
    pub fn with_initial_weights(mut self, checkpoint: &'a Checkpoint) -> Result<Setup<'a>, LaunchError> {
        let refused = |reason| TrainError::ForeignInit { different: vec![reason], path: checkpoint.path.clone() };
        check_architecture(&checkpoint.model.architecture, &self.plan).map_err(refused)?;
        self.init = Some(checkpoint).filter(|_| self.from.is_none());
        Ok(self)
    }

    /// Takes recordings from another source than the files of the corpus.
    pub fn with_recordings(self, recordings: Arc<dyn Recordings>) -> Setup<'a> {
        Setup { recordings, ..self }
    }

    /// Trains together with the other ranks of `group`, which the plan is for.
    pub fn with_ranks(self, group: Option<Arc<Group>>) -> Setup<'a> {
        Setup { ranks: group.filter(|group| group.world().size > 1), ..self }
    }

    /// Trains `model`. Fails if the plan is for another.
    pub fn with_model(mut self, model: Arc<dyn Model>) -> Result<Setup<'a>, LaunchError> {
        if self.plan.custom_model.as_deref() != Some(model.name()) {
            return Err(other_model(&self.plan, model.as_ref()));
        }
        self.custom_model = Some(model);
        Ok(self)
    }

    /// Runs all stages and waits for the feed. Calls `say` with each start-up line once it is true, and with the progress of
    /// the warm-up. Also returns how full the feed is.
    pub fn launch(mut self, say: &mut dyn FnMut(LaunchProgress<'_>)) -> Result<(Launched, Warm), LaunchError> {
        let (plan, emitter) = (self.plan.clone(), self.emitter);
        // Two closures below use it, never at the same time.
        let say = RefCell::new(say);
        let mut phase =
            |phase| startup_lines(&plan, phase).iter().for_each(|line| (say.borrow_mut())(LaunchProgress::Line(line)));
        if let Some(group) = &self.ranks {
            agree(group, &self.plan, &self.corpora)?;
        }
        phase(StartupPhase::Configuring);
        let roles = self.reserve(&mut phase)?;
        let feed = self.start_feed(&roles)?;
        if self.plan.transfer.route != plan.transfer.route {
            let line = format!("   ⚠️ {}", self.plan.transfer.describe());
            (say.borrow_mut())(LaunchProgress::Line(&line));
        }
        phase(StartupPhase::PipelineReady);
        phase(StartupPhase::ModelPlaced);
        phase(StartupPhase::CreatingModel);
        let mut warming = |ready, of| (say.borrow_mut())(LaunchProgress::WarmUp { ready, of });
        let model = self.create_model(&roles, self.programs()?, &mut warming)?;
        let mut launched = self.join(roles, feed, model)?;
        launched.trainer.compare_ranks()?;
        // The driver's memory for kernels, libraries and captured graphs is read now and must be within the plan.
        launched.roles.check_driver_memory()?;
        phase(StartupPhase::Waiting);
        let warm = launched.wait_warm(&plan, emitter)?;
        Ok((launched, warm))
    }

    /// Opens the plan's cards and reserves the memory of both roles.
    pub fn reserve(&self, phase: &mut dyn FnMut(StartupPhase)) -> Result<Isolation, LaunchError> {
        let plan = &self.plan;
        let cards = [card_of(&plan.data), card_of(&plan.model)];
        self.machine.restrict(&cards);
        phase(StartupPhase::DevicesRestricted);
        phase(StartupPhase::Reserving);
        let [data, model] = [&plan.data, &plan.model].map(|role| arena_of(plan, role));
        let roles = Isolation::set_up(
            self.machine,
            RoleSetup { card: cards[0], arena: data },
            RoleSetup { card: cards[1], arena: model },
        )?;
        let devices = self.machine.kind().name().to_owned();
        self.emitter.emit(RunEvent::DeviceClock { now_ns: self.machine.now_ns(), devices });
        if roles.model.arena.is_split() {
            // Blocks are allocated one by one: nothing is reserved, so no line claims it.
            return Ok(roles);
        }
        for role in Role::BOTH {
            self.emitter.emit(roles.partition(role).reserved_event());
            phase(StartupPhase::Reserved(role));
        }
        phase(StartupPhase::Configured);
        Ok(roles)
    }

    /// Reserves the feed's memory, proves the transfer on it, and starts to prefetch. A route that does not work there is
    /// replaced by the next one; [`Setup::transfer`] is the one in use.
    pub fn start_feed(&mut self, roles: &Isolation) -> Result<Feed, LaunchError> {
        loop {
            let micro_batch = self.plan.micro_batch();
            let buckets = self.corpora.train.bucket_plan(NUM_BUCKETS, micro_batch).ok_or(LaunchError::Nothing)?;
            let error = match Feed::start(roles, self.feed_spec(buckets)) {
                Ok(feed) => return Ok(feed),
                Err(error) => error,
            };
            let problem = error.device_error().filter(|error| error.is_about_route());
            match problem.and_then(|problem| self.plan.transfer.instead(problem)) {
                Some(other) => {
                    self.emitter.emit(RunEvent::Note { text: other.describe() });
                    self.plan.reroute(other);
                }
                None => return Err(error.into()),
            }
        }
    }

    /// The transfer in use: that of the plan, or the one that replaced it.
    pub fn transfer(&self) -> &TransferPlan {
        &self.plan.transfer
    }

    /// Plans and lowers every program of the run. Fails if they need more than planned: the plan is for another model.
    pub fn programs(&self) -> Result<RunPrograms, LaunchError> {
        let plan = &self.plan;
        let model = self.model()?;
        let buckets = speech::buckets(&plan.feed);
        let programs = speech::programs(plan, model.as_ref(), &buckets)?;
        let slots: u64 = plan.feed.model_lines().iter().map(|(_, bytes)| bytes).sum();
        let planned = plan.model.planned_bytes - plan.model.driver_bytes - slots;
        if programs.set.bytes(self.machine.kind()) > planned {
            return Err(other_model(plan, model.as_ref()));
        }
        Ok(RunPrograms { programs, buckets })
    }

    /// The model to train.
    fn model(&self) -> Result<Arc<dyn Model>, LaunchError> {
        match (&self.custom_model, &self.plan.custom_model) {
            (Some(model), _) => Ok(Arc::clone(model)),
            (None, Some(planned)) => {
                let (planned, given) = (planned.clone(), "the speech model".to_owned());
                Err(LaunchError::OtherModel { planned, given })
            }
            (None, None) => Ok(Arc::new(Acoustic::new(self.dims(), vocabulary(&self.corpora.train), MELS as u32)?)),
        }
    }

    /// The dims of the speech model: those of the checkpoint, so that it can be resumed even if the preset changed since.
    fn dims(&self) -> ModelDims {
        match self.from.as_ref().map(|(checkpoint, _)| &checkpoint.model.architecture) {
            Some(Architecture::Preset { dims, .. }) => *dims,
            _ => self.plan.model_size.sizes(),
        }
    }

    /// Allocates the model's memory and compiles its programs; calls `on_progress` with how many are ready, of how many.
    pub fn create_model(
        &self,
        roles: &Isolation,
        programs: RunPrograms,
        on_progress: &mut dyn FnMut(usize, usize),
    ) -> Result<CreatedModel, LaunchError> {
        let in_flight = StepLoop::in_flight(self.plan.local_micro_batches());
        let stream = Arc::new(roles.model.device.stream(true)?);
        let set = Arc::clone(&programs.programs.set);
        let session = Session::create_with_progress(set, &roles.model.arena, stream, in_flight, on_progress)?;
        Ok(CreatedModel { session, programs })
    }

    /// Joins all parts: parameters are initialised from the seed, or loaded from the checkpoint.
    pub fn join(self, roles: Isolation, feed: Feed, model: CreatedModel) -> Result<Launched, LaunchError> {
        let exact = exact_shapes(&self.plan, self.model()?);
        let dims = self.dims();
        let Setup { plan, corpora, custom_model, from, init, recordings, ranks, .. } = self;
        let CreatedModel { session, programs: RunPrograms { programs, buckets } } = model;
        let schedule = schedule(&plan, feed.batches_per_epoch());
        let kept = init.filter(|_| plan.training.keeps_mel_statistics);
        let statistics = match (&from, kept) {
            (Some((_, state)), _) => state.mel_statistics.clone(),
            (None, Some(init)) => init.model.mel_statistics.clone(),
            (None, None) => measure_mel_statistics(&corpora.train, recordings.as_ref())?,
        };
        let model = model_contract(&plan, dims, &corpora, &statistics);
        let num_parameters = session.set().parameters().count();
        let validation_set = validation_set(&corpora, recordings.as_ref(), &buckets[0])?;
        let validation = ValidationCounts { count: validation_set.count, too_long: validation_set.left_out };
        let recipe = recipe(&plan, &schedule);
        // Only the speech model has voices.
        let voices = match custom_model {
            Some(_) => VoiceReferences::default(),
            None => gather_voices(&corpora.train, recordings.as_ref())?,
        };
        let ranks = match ranks {
            Some(group) => Some(Ranks::new(Arc::clone(&group), join_communicator(&group, &roles)?)),
            None => None,
        };
        let parts = StepLoopParts { session, programs, feed, validation_set, statistics, voices, recipe, exact, ranks };
        let parameters = Arc::clone(parts.session.set().parameters());
        let (trainer, init) = match (&from, init) {
            (Some((checkpoint, state)), _) => {
                TensorNames::of(parts.session.set()).expect(checkpoint)?;
                (StepLoop::resume(parts, checkpoint, state)?, None)
            }
            (None, Some(checkpoint)) => {
                let source = InitSource { checkpoint, text: model.text.as_ref() };
                let (weights, report) = weights_from(source, &parameters, plan.seed)?;
                (StepLoop::begin(parts, &weights)?, Some(report))
            }
            (None, None) => (StepLoop::begin(parts, &random_weights(&parameters, plan.seed))?, None),
        };
        Ok(Launched { trainer, roles, schedule, model, num_parameters, validation, init })
    }

    fn feed_spec(&self, buckets: BucketPlan) -> FeedSpec {
        let plan = &self.plan;
        FeedSpec {
            training_set: Arc::clone(&self.corpora.train),
            buckets,
            plan: plan.feed.clone(),
            route_why: plan.transfer.why.clone(),
            seed: plan.seed,
            evaluates: false,
            shard: Shard { rank: plan.world.rank, world: plan.world.size },
            from: self.from.as_ref().map(|(_, state)| state.feed.clone()).unwrap_or_default(),
            recordings: Arc::clone(&self.recordings),
            threads: plan.threads as usize,
            max_threads: plan.max_threads as usize,
            depth_fixed: plan.buffer_size_given,
            cache: plan.cache.spec.clone(),
            read_ahead_bytes: plan.read_ahead_bytes,
            max_bad_fraction: plan.max_bad_fraction,
            bad_samples: self.bad_samples.clone(),
            cores: feed_cores(plan),
            emitter: self.emitter.clone(),
        }
    }
}

/// Compares what decides the result of a run with the other ranks. Every rank gets the same error, with the first difference.
pub fn agree(group: &Group, plan: &Plan, corpora: &Corpora) -> Result<(), LaunchError> {
    let identity = identity(plan, corpora);
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut facts: Vec<(String, String)> =
        identity.facts().map(|(name, value)| (name.to_owned(), text(value))).collect();
    let mut add = |name: &str, value: String| facts.push((name.to_owned(), value));
    add("feature arithmetic", plan.arithmetic.arithmetic.name().to_owned());
    add("learning rate", plan.training.peak_lr.to_string());
    add("validation set", corpora.validation.rows.len().to_string());
    if let Some(schedule) = schedule_of(plan, corpora) {
        add("steps", schedule.total_steps.to_string());
        add("steps between checkpoints", schedule.checkpoint_every.map_or("the default".to_owned(), |n| n.to_string()));
    }
    group.agree("settings", &facts).map_err(|error| LaunchError::Train(error.into()))
}

/// The longest wait for all ranks to join a communicator: they have just compared their settings.
const LONGEST_JOIN: Duration = Duration::from_secs(120);

/// The communicator that sums gradients on NVIDIA cards; `None` on the CPU and on simulated cards, where the host sums them.
fn join_communicator(group: &Group, roles: &Isolation) -> Result<Option<Communicator>, LaunchError> {
    let (device, world) = (&roles.model.device, group.world());
    if device.machine().kind() != DeviceKind::Cuda {
        return Ok(None);
    }
    let mine = match world.rank {
        0 => Communicator::new_id(device.machine())?.to_bytes().to_vec(),
        _ => Vec::new(),
    };
    let id = group.broadcast("communicator", mine).map_err(TrainError::from)?;
    let id = id.try_into().map_err(|_| TrainError::RankNotice("a communicator id of another length".to_owned()))?;
    let id = CommunicatorId::from_bytes(id);
    Ok(Some(Communicator::join(device, &id, world.rank, world.size, LONGEST_JOIN)?))
}

/// The cores of the feed's threads: those of the data card's NUMA node, if it is known.
pub fn feed_cores(plan: &Plan) -> Option<CoreSet> {
    plan.data.numa.as_ref().and_then(|numa| CoreSet::new(&numa.cores))
}

/// What writes programs of exact shapes, where those were asked for.
fn exact_shapes(plan: &Plan, model: Arc<dyn Model>) -> Option<CompileProgram> {
    if plan.static_shapes {
        return None;
    }
    let plan = plan.clone();
    Some(Box::new(move |set, shape| speech::exact_program(&plan, model.as_ref(), set, shape)))
}

fn other_model(plan: &Plan, model: &dyn Model) -> LaunchError {
    let planned = format!("{} ({})", plan.model_title(), plan.model_name);
    LaunchError::OtherModel { planned, given: format!("{} ({} parameters)", model.name(), model.parameters().count()) }
}

fn validation_set(
    corpora: &Corpora,
    recordings: &dyn Recordings,
    first: &tandem_model::ProgramBucket,
) -> Result<ValidationSet, TrainError> {
    let ValidationUtterances { dataset, rows } = &corpora.validation;
    ValidationSet::prepare(ValidationRows { dataset, rows }, &corpora.train, recordings, &first.shape, &first.layout)
}

/// Fails if a run of this plan cannot resume from the checkpoint: it holds another model, or was trained with another seed.
pub fn check_state(checkpoint: &Checkpoint, plan: &Plan) -> Result<(), TrainError> {
    state_of(checkpoint, plan).map(drop)
}

/// The training state of a checkpoint, if a run of this plan can resume from it.
fn state_of(checkpoint: &Checkpoint, plan: &Plan) -> Result<StepLoopState, TrainError> {
    let foreign = |reason: String| TrainError::foreign_state(checkpoint, reason);
    check_architecture(&checkpoint.model.architecture, plan).map_err(foreign)?;
    let state: StepLoopState =
        serde_json::from_value(checkpoint.state.clone()).map_err(|error| foreign(error.to_string()))?;
    let MelStatistics { mean, std, band_means } = &state.mel_statistics;
    if state.step != checkpoint.step {
        let (found, expected) = (state.step, checkpoint.step);
        return Err(foreign(format!("its state is of step {found}, the checkpoint of step {expected}")));
    }
    let stored = checkpoint.model.features.arithmetic;
    if plan.arithmetic.is_forced() && stored != plan.arithmetic.arithmetic {
        let (found, expected) = (stored.name(), plan.arithmetic.arithmetic.name());
        return Err(foreign(format!("its features are in {found}, this run has --feature-arithmetic {expected}")));
    }
    if state.seed != plan.seed {
        let (found, expected) = (state.seed, plan.seed);
        return Err(foreign(format!("it was trained with --seed {found}, this run has --seed {expected}")));
    }
    if band_means.len() as u64 != MELS || !(mean.is_finite() && *std > 0.0 && std.is_finite()) {
        let found = format!("found {} bands, mean {mean}, standard deviation {std}", band_means.len());
        return Err(foreign(format!("expected finite mel statistics of {MELS} bands, {found}")));
    }
    Ok(state)
}

/// Fails with the reason if the checkpoint holds another model than this plan trains.
fn check_architecture(found: &Architecture, plan: &Plan) -> Result<(), String> {
    let size = plan.model_size.name();
    match (found, &plan.custom_model) {
        (Architecture::Preset { name, .. }, None) if *name != plan.model_size => {
            let name = name.name();
            Err(format!("it holds a {name} model, this run trains {size}: use --model-size {name}"))
        }
        (Architecture::Preset { name, .. }, Some(custom)) => {
            Err(format!("it holds a {} speech model, this run trains the custom model `{custom}`", name.name()))
        }
        (Architecture::Custom { name }, None) => {
            Err(format!("it holds the custom model `{name}`, this run trains a {size} speech model"))
        }
        (Architecture::Custom { name }, Some(custom)) if name != custom => {
            Err(format!("it holds the custom model `{name}`, this run trains `{custom}`"))
        }
        _ => Ok(()),
    }
}

/// The length of a run, before anything of it is set up. None without usable utterances.
pub fn schedule_of(plan: &Plan, corpora: &Corpora) -> Option<RunSchedule> {
    let buckets = corpora.train.bucket_plan(NUM_BUCKETS, plan.micro_batch())?;
    Some(schedule(plan, buckets.order(plan.seed).num_batches()))
}

fn schedule(plan: &Plan, batches: u64) -> RunSchedule {
    let steps_per_epoch = (batches / plan.grad_accum).max(1);
    RunSchedule {
        total_steps: plan.training.total_steps(steps_per_epoch),
        steps_per_epoch,
        checkpoint_every: plan.training.checkpoint_every,
    }
}

fn recipe(plan: &Plan, schedule: &RunSchedule) -> Recipe {
    let training = &plan.training;
    let (peak, total) = (training.peak_lr, schedule.total_steps);
    let warm_up = training.warm_up_steps(total);
    let schedule = match training.cosine {
        true => Schedule::cosine(peak, warm_up, total, peak * LAST_SHARE),
        false => Schedule::constant(peak, warm_up),
    };
    Recipe { schedule, ema_decay: training.ema_decay, grad_accum: plan.local_micro_batches(), seed: plan.seed }
}

/// Final learning rate of the cosine schedule, relative to its peak.
const LAST_SHARE: f64 = 0.05;

/// The contract of a model that is trained from this plan.
fn model_contract(plan: &Plan, dims: ModelDims, corpora: &Corpora, statistics: &MelStatistics) -> ModelContract {
    let text = |texts: &Tokenizer| {
        let options = texts.options();
        ModelText {
            languages: texts.languages().to_vec(),
            language_embedding: texts.languages().len() > 1,
            symbols: texts.table().symbols().to_vec(),
            blanks: options.blanks,
            keep_harakat: options.harakat == Harakat::Keep,
            longest_tokens: Some(corpora.train.max_tokens() as usize),
            espeak_version: texts.espeak_version().map(str::to_owned),
            lexicon: texts.lexicon().map(Lexicon::to_text),
        }
    };
    ModelContract {
        architecture: match &plan.custom_model {
            Some(name) => Architecture::Custom { name: name.clone() },
            None => Architecture::Preset { name: plan.model_size, dims },
        },
        text: corpora.train.tokenizer().map(text),
        features: corpora.train.features().clone(),
        mel_statistics: statistics.clone(),
        compute_dtype: match speech::precision(plan.precision) {
            DType::BF16 => ComputeDtype::Bf16,
            _ => ComputeDtype::F32,
        },
        vocoder: Vocoder::GriffinLim,
        duration_scale: None,
    }
}

/// The CPU is its own card 0.
pub fn card_of(role: &RolePlan) -> usize {
    role.card.unwrap_or(0)
}

fn arena_of(plan: &Plan, role: &RolePlan) -> ArenaSpec {
    ArenaSpec {
        role: role.role,
        limit_bytes: role.limit_bytes,
        driver_bytes: role.driver_bytes,
        arena_bytes: role.arena_bytes,
        peer_bytes: role.peer_bytes,
        capped: plan.isolated,
    }
}
