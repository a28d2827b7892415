//! The memory of the speech model and of custom models, taken from the memory plans of their programs.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tandem_device::{DType, DeviceKind};
use tandem_engine::{
    EngineError, MemoryKind, NamedLayout, ProgramSet, Recomputed, Rows, UpdateSpec, WORKSPACE_BYTES, update_program,
};
use tandem_feed::{Bucket, FeedPlan, MELS, SPEECH};
use tandem_model::{Acoustic, BatchShape, Model, Preset, Programs, ProgramsSpec, REFERENCE_FRAMES, Vocabulary};

use crate::corpus::CorpusFacts;
use crate::custom_model::Models;
use crate::model_memory::{ModelCatalog, ModelChoice, ModelMemory, PlanLine, ProgramKind};
use crate::placement::Precision;
use crate::plan::Plan;

/// The speech model of this preset for texts of `vocabulary`.
pub fn acoustic(preset: Preset, vocabulary: Vocabulary) -> Result<Acoustic, EngineError> {
    Acoustic::new(preset.sizes(), vocabulary, MELS as u32)
}

/// A number of parameters in millions: `1.9`, `104`.
pub fn millions(count: u64) -> String {
    let millions = count as f64 / 1e6;
    if millions < 100.0 { format!("{millions:.1}") } else { format!("{millions:.0}") }
}

/// Every preset with its parameters in millions, counted in the model itself: `nano 1.9, tiny 10.8, …`.
pub(crate) fn preset_sizes() -> String {
    let sized = Preset::ALL.into_iter().filter_map(|preset| {
        let model = acoustic(preset, SpeechModels::DEFAULT_VOCABULARY).ok()?;
        Some(format!("{} {}", preset.name(), millions(model.parameters().count())))
    });
    sized.collect::<Vec<_>>().join(", ")
}

/// The data type of GEMM inputs.
pub fn precision(precision: Precision) -> DType {
    match precision {
        Precision::Full => DType::F32,
        Precision::Mixed => DType::BF16,
    }
}

/// The optimizer's specification.
fn update(clip: Option<f64>, average: bool) -> UpdateSpec {
    UpdateSpec { clip, average, ..UpdateSpec::default() }
}

/// The optimizer's specification for a run of `plan`.
fn update_of(plan: &Plan) -> UpdateSpec {
    let average = plan.training.ema_decay.is_some();
    UpdateSpec { clears: plan.grad_accum > 1, ..update(plan.training.clip, average) }
}

/// All programs of a run of `plan`.
pub fn programs(
    plan: &Plan,
    model: &dyn Model,
    buckets: &[tandem_model::ProgramBucket],
) -> Result<Programs, EngineError> {
    let update = update_of(plan);
    let late_slots = if plan.static_shapes { 0 } else { MAX_LATE_PROGRAMS };
    let precision = precision(plan.precision);
    Programs::build(model, &ProgramsSpec { precision, buckets, update, working_limit: None, late_slots })
}

/// Cached programs of exact shapes. Shapes of a small corpus recur now and then, those of a large one never.
const MAX_LATE_PROGRAMS: usize = 8;

/// The program of a step on a batch of exactly this shape, for a session of `set`.
pub fn exact_program(
    plan: &Plan,
    model: &dyn Model,
    set: &ProgramSet,
    shape: &Bucket,
) -> Result<tandem_engine::Program, EngineError> {
    let bucket = bucket(shape);
    let gradient_mode = update_of(plan).gradient_mode();
    let graph = model.accumulate(precision(plan.precision), &bucket.shape, gradient_mode, &Recomputed::new())?;
    set.compile_late(&graph, &bucket.layout)
}

/// The buckets of a feed in the form the model's programs need.
pub fn buckets(feed: &FeedPlan) -> Vec<tandem_model::ProgramBucket> {
    feed.buckets.iter().map(bucket).collect()
}

fn bucket(bucket: &Bucket) -> tandem_model::ProgramBucket {
    let rows = |length: fn(&tandem_feed::RowShape) -> u64| {
        Rows::new(&bucket.rows().iter().map(|row| length(row) as u32).collect::<Vec<_>>())
    };
    let shape = BatchShape::new(rows(|row| row.tokens), rows(|row| row.frames));
    tandem_model::ProgramBucket { shape, layout: layout(bucket) }
}

/// The memory layout of a batch in the engine's form.
fn layout(bucket: &Bucket) -> NamedLayout {
    let placed = SPEECH.layout(bucket);
    let named = |field: &tandem_feed::Placed| {
        let dims: Vec<u32> = field.shape.iter().map(|&dim| dim as u32).collect();
        tandem_engine::Named {
            name: field.field.name.to_owned(),
            ty: tandem_engine::TensorType::new(field.field.dtype, &dims),
            offset: field.offset,
        }
    };
    NamedLayout { fields: placed.fields.iter().map(named).collect(), bytes: placed.bytes }
}

/// The presets of the speech model, for a given vocabulary. The sizes of programs are cached, so that many attempts
/// with the same shapes cost as much as one.
#[derive(Clone, Debug)]
pub struct SpeechModels {
    vocabulary: Vocabulary,
    sizes: ProgramSizeCache,
}

impl SpeechModels {
    /// The vocabulary without a corpus: English phonemes.
    pub const DEFAULT_VOCABULARY: Vocabulary = Vocabulary::of_one_language(83);

    /// Models for texts of `vocabulary`.
    pub fn new(vocabulary: Vocabulary) -> SpeechModels {
        SpeechModels { vocabulary, sizes: Arc::default() }
    }

    /// Models for the texts of `corpus`, or for [`SpeechModels::DEFAULT_VOCABULARY`] without one.
    pub fn of(corpus: Option<&CorpusFacts>) -> SpeechModels {
        SpeechModels::new(corpus.map_or(SpeechModels::DEFAULT_VOCABULARY, |corpus| corpus.vocabulary))
    }
}

impl ModelCatalog for SpeechModels {
    fn memory_of(&self, choice: ModelChoice, device: DeviceKind) -> Box<dyn ModelMemory> {
        let model = match acoustic(choice.preset, self.vocabulary) {
            Ok(model) => model,
            Err(error) => unreachable!("the dimensions of a preset are consistent: {error}"),
        };
        Box::new(PlannedModel::new(Arc::new(model), choice, device, &self.sizes))
    }
}

impl Models for SpeechModels {
    fn model(&self, preset: Preset) -> Result<Arc<dyn Model>, EngineError> {
        Ok(Arc::new(acoustic(preset, self.vocabulary)?))
    }
}

/// A program of a model on a shape.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProgramKey {
    choice: ModelChoice,
    program: ProgramKind,
    /// Frames and tokens of each row; empty for the optimizer, which does not depend on the shape.
    rows: Vec<(u64, u64)>,
}

/// Sizes of programs, or why a program could not be built.
pub(crate) type ProgramSizeCache = Arc<Mutex<HashMap<ProgramKey, Result<ProgramBytes, String>>>>;

/// A model whose memory is taken from the memory plans of its programs.
pub(crate) struct PlannedModel {
    model: Arc<dyn Model>,
    choice: ModelChoice,
    update: UpdateSpec,
    device: DeviceKind,
    sizes: ProgramSizeCache,
    /// Not a preset: the plan shows the model's own name.
    is_custom: bool,
    build_error: RefCell<Option<String>>,
}

/// Bytes of a program: `working` while it runs, the others for the whole run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramBytes {
    working: u64,
    tables: u64,
    states: u64,
}

/// A shape of more frames than this is not built: no device has the memory for its activations. An hour of audio has 310 000
/// frames, and each needs about 25 KB in the smallest model.
const MAX_FRAMES: u64 = 1 << 24;

impl PlannedModel {
    /// The chosen model. `sizes` is the cache of program sizes.
    pub(crate) fn new(
        model: Arc<dyn Model>,
        choice: ModelChoice,
        device: DeviceKind,
        sizes: &ProgramSizeCache,
    ) -> PlannedModel {
        let update = UpdateSpec { clears: choice.accumulates, ..update(Some(1.0), choice.ema) };
        let (sizes, build_error) = (Arc::clone(sizes), RefCell::new(None));
        PlannedModel { model, choice, update, device, sizes, is_custom: false, build_error }
    }

    /// The same for a model that is not a preset.
    pub(crate) fn custom(self) -> PlannedModel {
        PlannedModel { is_custom: true, ..self }
    }

    fn program_bytes(&self, program: ProgramKind, shape: &Bucket) -> ProgramBytes {
        let rows = match program {
            ProgramKind::Update => Vec::new(),
            _ => shape.rows().iter().map(|row| (row.frames, row.tokens)).collect(),
        };
        let key = ProgramKey { choice: self.choice, program, rows };
        let mut sizes = self.sizes.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = sizes.entry(key).or_insert_with(|| self.compute_bytes(program, shape));
        bytes.clone().unwrap_or_else(|reason| {
            // The plan checks `build_error` before it uses any sum.
            self.build_error.borrow_mut().get_or_insert(reason);
            ProgramBytes::default()
        })
    }

    fn compute_bytes(&self, program: ProgramKind, shape: &Bucket) -> Result<ProgramBytes, String> {
        let parts = shape_parts(shape);
        let first = if parts == 1 { shape.clone() } else { first_part(shape, parts) };
        let set = self.compiled(program, &first).map_err(|error| error.to_string())?;
        Ok(sizes_of(&set).times(parts))
    }

    fn compiled(&self, program: ProgramKind, shape: &Bucket) -> Result<ProgramSet, EngineError> {
        let bucket = bucket(shape);
        let mut set = self.set();
        let (precision, averages) = (self.precision(), self.update.average);
        match program {
            ProgramKind::Accumulate => {
                let graph =
                    self.model.accumulate(precision, &bucket.shape, self.update.gradient_mode(), &Recomputed::new())?;
                set.add("accumulate", &graph, &bucket.layout)?;
            }
            ProgramKind::Validate => {
                set.add("validate", &self.model.validate(precision, &bucket.shape, averages)?, &bucket.layout)?;
            }
            ProgramKind::Update => {
                let graph = update_program(self.model.parameters(), precision, &self.update)?;
                set.add("update", &graph, &NamedLayout::default())?;
            }
            // Audio samples run in synthesis, outside these programs.
            ProgramKind::Sample => {}
        }
        Ok(set)
    }

    fn set(&self) -> ProgramSet {
        ProgramSet::new(Arc::clone(self.model.parameters()), self.precision(), &self.update.spans())
    }

    fn precision(&self) -> DType {
        precision(self.choice.precision)
    }
}

/// Into how many parts a shape is split so that one part can be built: 1 for any shape that fits on a device.
fn shape_parts(shape: &Bucket) -> u64 {
    let references = shape.batch() * u64::from(REFERENCE_FRAMES);
    let frames = shape.frames().max(shape.tokens()).max(references);
    frames.div_ceil(MAX_FRAMES).clamp(1, shape.batch().max(1))
}

/// The longest rows of a shape, one of `parts` equal parts. `parts` times their bytes are at least the bytes of the shape.
fn first_part(shape: &Bucket, parts: u64) -> Bucket {
    let rows = shape.batch().div_ceil(parts) as usize;
    Bucket::new(shape.rows().iter().rev().take(rows).rev().copied())
}

impl ProgramBytes {
    fn times(self, parts: u64) -> ProgramBytes {
        ProgramBytes { working: self.working * parts, tables: self.tables * parts, states: self.states }
    }
}

fn sizes_of(set: &ProgramSet) -> ProgramBytes {
    let bytes = |kind| set.lines(DeviceKind::Cpu).iter().filter(|line| line.kind == kind).map(|line| line.bytes).sum();
    ProgramBytes {
        working: bytes(MemoryKind::Working),
        tables: bytes(MemoryKind::Constants),
        states: bytes(MemoryKind::States),
    }
}

impl ModelMemory for PlannedModel {
    fn describe(&self) -> String {
        let count = self.model.parameters().count();
        // Custom models may be small.
        if count < 100_000 { format!("{count} parameters") } else { format!("{} million parameters", millions(count)) }
    }

    fn custom_name(&self) -> Option<String> {
        self.is_custom.then(|| self.model.name().to_owned())
    }

    fn build_error(&self) -> Option<String> {
        self.build_error.borrow().clone()
    }

    fn persistent(&self) -> Vec<PlanLine> {
        let states = self.program_bytes(ProgramKind::Update, &Bucket::even(1, 1, 1)).states;
        let spans = self
            .set()
            .lines(DeviceKind::Cpu)
            .into_iter()
            .filter(|line| matches!(line.kind, MemoryKind::ParameterSpan(_)));
        let workspace = (self.device != DeviceKind::Cpu).then(|| PlanLine::new("workspace", WORKSPACE_BYTES));
        let spans = spans.map(|line| PlanLine::new(line.name, line.bytes));
        spans.chain([PlanLine::new("states", states)]).chain(workspace).collect()
    }

    fn tables(&self, buckets: &[Bucket]) -> u64 {
        let of = |program, bucket| self.program_bytes(program, bucket).tables;
        let trained: u64 = buckets.iter().map(|bucket| of(ProgramKind::Accumulate, bucket)).sum();
        let once = buckets.first().map_or(0, |first| of(ProgramKind::Validate, first) + of(ProgramKind::Update, first));
        let of_first =
            buckets.first().map_or(0, |first| of(ProgramKind::Validate, first).max(of(ProgramKind::Update, first)));
        let largest = buckets.iter().map(|bucket| of(ProgramKind::Accumulate, bucket)).max().unwrap_or(0).max(of_first);
        let late = if self.choice.exact_shapes { MAX_LATE_PROGRAMS as u64 * largest } else { 0 };
        trained + once + late
    }

    fn bytes(&self, program: ProgramKind, bucket: &Bucket) -> u64 {
        self.program_bytes(program, bucket).working
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{gpus, settings};

    fn choice(preset: Preset) -> ModelChoice {
        ModelChoice { preset, precision: Precision::Mixed, ema: true, accumulates: false, exact_shapes: false }
    }

    /// Solving a plan asks for the same shape many times: in every attempt and for every program.
    #[test]
    fn a_shape_is_built_once_for_all_attempts() {
        let models = SpeechModels::of(None);
        let solve = |line: &str| Plan::solve(&settings(line), &gpus(1, 24), &models, None).map(drop);
        solve("--model-size nano --batch-size 2").unwrap();
        let cached = |models: &SpeechModels| models.sizes.lock().unwrap().len();
        let first = cached(&models);
        solve("--model-size nano --batch-size 2 --buffer-size 7").unwrap();
        assert_eq!(cached(&models), first);
        solve("--model-size nano --batch-size 3").unwrap();
        assert!(cached(&models) > first);
    }

    #[test]
    fn more_symbols_and_languages_need_more_parameters() {
        let parameters = |vocabulary| {
            let lines = SpeechModels::new(vocabulary).memory_of(choice(Preset::Nano), DeviceKind::Cpu).persistent();
            lines.iter().find(|line| line.name == "parameters").unwrap().bytes
        };
        let [one, two] = [1, 2].map(|languages| Vocabulary { symbols: 100, languages });
        assert!(parameters(one) > parameters(SpeechModels::DEFAULT_VOCABULARY) && parameters(two) > parameters(one));
        let mut corpus = CorpusFacts::new("any", Vec::new());
        corpus.vocabulary = two;
        assert_eq!(
            (SpeechModels::of(Some(&corpus)).vocabulary, SpeechModels::of(None).vocabulary),
            (two, SpeechModels::DEFAULT_VOCABULARY)
        );
    }

    /// No device can hold such a batch. Planning it must neither overflow nor take long.
    #[test]
    fn a_batch_too_large_for_any_device_has_a_size_without_overflow() {
        let model = SpeechModels::of(None).memory_of(choice(Preset::Nano), DeviceKind::Simulated);
        let batch = |rows| Bucket::even(100_000, 10_000, rows);
        let [small, large] = [1, 65_536].map(|rows| model.bytes(ProgramKind::Accumulate, &batch(rows)));
        assert!(large > 1 << 47 && large / 65_536 < 2 * small, "{small} {large}");
    }
}
