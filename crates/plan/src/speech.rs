//! The speech model as the plan sees it, and any other: every byte, from its own memory plans.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tandem_device::{DType, DeviceKind};
use tandem_engine::{
    EngineError, MemoryKind, NamedLayout, ProgramSet, Recomputed, Rows, UpdateSpec, WORKSPACE_BYTES, update_program,
};
use tandem_feed::{Bucket, FeedPlan, MELS, SPEECH};
use tandem_model::{Acoustic, BatchShape, Model, Programs, ProgramsSpec, REFERENCE_FRAMES};

use crate::corpus::CorpusFacts;
use crate::own_model::Models;
use crate::placement::Precision;
use crate::plan::Plan;
use crate::workload::{ModelChoice, ModelSize, PlanLine, ProgramKind, Workload, Workloads};

/// A model of this size for texts of `symbols` different symbols.
pub fn acoustic(size: ModelSize, symbols: u32) -> Result<Acoustic, EngineError> {
    Acoustic::new(size.sizes(), symbols.max(1), MELS as u32)
}

/// What GEMMs compute in.
pub fn precision(precision: Precision) -> DType {
    match precision {
        Precision::Full => DType::F32,
        Precision::Mixed => DType::BF16,
    }
}

/// The optimizer.
fn update(clip: Option<f64>, average: bool) -> UpdateSpec {
    UpdateSpec { clip, average, ..UpdateSpec::default() }
}

/// The optimizer of a run of `plan`.
fn update_of(plan: &Plan) -> UpdateSpec {
    let average = plan.training.average_decay.is_some();
    UpdateSpec { clears: plan.grad_accum > 1, ..update(plan.training.clip, average) }
}

/// Every program of a run of `plan`.
pub fn programs(
    plan: &Plan,
    model: &dyn Model,
    buckets: &[tandem_model::ProgramBucket],
) -> Result<Programs, EngineError> {
    let update = update_of(plan);
    let late_places = if plan.static_shapes { 0 } else { LATE_PLACES };
    let precision = precision(plan.precision);
    Programs::build(model, &ProgramsSpec { precision, buckets, update, working_limit: None, late_places })
}

/// Programs of exact shapes that are kept. Shapes of a small corpus come back now and then, those of a large one never.
const LATE_PLACES: usize = 8;

/// The program of a step on a batch of just this shape, for a session of `set`.
pub fn exact_program(
    plan: &Plan,
    model: &dyn Model,
    set: &ProgramSet,
    shape: &Bucket,
) -> Result<tandem_engine::Program, EngineError> {
    let bucket = bucket(shape);
    let earlier = update_of(plan).earlier();
    let graph = model.accumulate(precision(plan.precision), &bucket.shape, earlier, &Recomputed::new())?;
    set.compile_late(&graph, &bucket.layout)
}

/// The shapes of a feed, as the model's programs take them.
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

/// Where the fields of a batch lie, in the engine's words.
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

/// Speech models for texts of so many different symbols. What a shape was found to need is kept, so that many attempts on
/// the same shapes cost as much as one.
#[derive(Clone, Debug)]
pub struct SpeechModels {
    symbols: u32,
    known: ProgramSizeCache,
}

impl SpeechModels {
    /// Symbols of a run whose corpus nobody has named yet: those of English phonemes.
    pub const USUAL_SYMBOLS: u32 = 83;

    /// Models for texts of `symbols` different symbols.
    pub fn new(symbols: u32) -> SpeechModels {
        SpeechModels { symbols, known: Arc::default() }
    }

    /// Models for the texts of `corpus`; without one, for [`SpeechModels::USUAL_SYMBOLS`].
    pub fn of(corpus: Option<&CorpusFacts>) -> SpeechModels {
        SpeechModels::new(corpus.map_or(SpeechModels::USUAL_SYMBOLS, |corpus| corpus.symbols))
    }
}

impl Workloads for SpeechModels {
    fn build(&self, choice: ModelChoice, place: DeviceKind) -> Box<dyn Workload> {
        let model = match acoustic(choice.size, self.symbols) {
            Ok(model) => model,
            Err(error) => unreachable!("a preset's shapes go together: {error}"),
        };
        Box::new(PlannedModel::new(Arc::new(model), choice, place, &self.known))
    }
}

impl Models for SpeechModels {
    fn model(&self, size: ModelSize) -> Result<Arc<dyn Model>, EngineError> {
        Ok(Arc::new(acoustic(size, self.symbols)?))
    }
}

/// Which program of which model, on a shape of rows of these frames and tokens.
pub(crate) type Asked = (ModelChoice, ProgramKind, Vec<(u64, u64)>);

/// What shapes were found to need. What could not be written has the reason.
pub(crate) type ProgramSizeCache = Arc<Mutex<HashMap<Asked, Result<ProgramBytes, String>>>>;

/// A model as the plan sees it.
pub(crate) struct PlannedModel {
    model: Arc<dyn Model>,
    choice: ModelChoice,
    update: UpdateSpec,
    place: DeviceKind,
    known: ProgramSizeCache,
    /// Whether it goes by a name of its own.
    by_name: bool,
    trouble: RefCell<Option<String>>,
}

/// What a program needs: while it runs, and for as long as it is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProgramBytes {
    working: u64,
    tables: u64,
    states: u64,
}

/// A shape of more frames than this is not written out: no device holds what its activations need (an hour of audio has
/// 310 000 frames, and each takes some 25 KB of the smallest model).
const MOST_FRAMES: u64 = 1 << 24;

impl PlannedModel {
    /// The model that was chosen. What is `known` of its shapes already is not asked for again.
    pub(crate) fn new(
        model: Arc<dyn Model>,
        choice: ModelChoice,
        place: DeviceKind,
        known: &ProgramSizeCache,
    ) -> PlannedModel {
        let update = UpdateSpec { clears: choice.adds_up, ..update(Some(1.0), choice.ema) };
        let (known, trouble) = (Arc::clone(known), RefCell::new(None));
        PlannedModel { model, choice, update, place, known, by_name: false, trouble }
    }

    /// It is no preset, and goes by its own name.
    pub(crate) fn by_name(self) -> PlannedModel {
        PlannedModel { by_name: true, ..self }
    }

    fn sizes(&self, program: ProgramKind, shape: &Bucket) -> ProgramBytes {
        // The optimizer does not see the shape.
        let of_shape = match program {
            ProgramKind::Update => Vec::new(),
            _ => shape.rows().iter().map(|row| (row.frames, row.tokens)).collect(),
        };
        let asked = (self.choice, program, of_shape);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let sizes = known.entry(asked).or_insert_with(|| self.find_sizes(program, shape));
        sizes.clone().unwrap_or_else(|reason| {
            // No sum comes of it: the plan asks for the trouble before it is one.
            self.trouble.borrow_mut().get_or_insert(reason);
            ProgramBytes::default()
        })
    }

    fn find_sizes(&self, program: ProgramKind, shape: &Bucket) -> Result<ProgramBytes, String> {
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
                    self.model.accumulate(precision, &bucket.shape, self.update.earlier(), &Recomputed::new())?;
                set.add("accumulate", &graph, &bucket.layout)?;
            }
            ProgramKind::Validate => {
                set.add("validate", &self.model.validate(precision, &bucket.shape, averages)?, &bucket.layout)?;
            }
            ProgramKind::Update => {
                let graph = update_program(self.model.parameters(), precision, &self.update)?;
                set.add("update", &graph, &NamedLayout::default())?;
            }
            // Sampling comes with synthesis.
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

/// Into how many parts a shape is cut so that one of them can be written out: 1 for any that a device could hold.
fn shape_parts(shape: &Bucket) -> u64 {
    let references = shape.batch() * u64::from(REFERENCE_FRAMES);
    let most = shape.frames().max(shape.tokens()).max(references);
    most.div_ceil(MOST_FRAMES).clamp(1, shape.batch().max(1))
}

/// The longest rows of a shape, one of `parts` equal parts: what all of it needs is not less than so many times theirs.
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

impl Workload for PlannedModel {
    fn name(&self) -> String {
        let count = self.model.parameters().count();
        // A model of one's own may be a small one.
        if count < 100_000 {
            format!("{count} parameters")
        } else {
            format!("{:.1} million parameters", count as f64 / 1e6)
        }
    }

    fn own_name(&self) -> Option<String> {
        self.by_name.then(|| self.model.name().to_owned())
    }

    fn trouble(&self) -> Option<String> {
        self.trouble.borrow().clone()
    }

    fn lasting(&self) -> Vec<PlanLine> {
        let states = self.sizes(ProgramKind::Update, &Bucket::even(1, 1, 1)).states;
        let spans = self
            .set()
            .lines(DeviceKind::Cpu)
            .into_iter()
            .filter(|line| matches!(line.kind, MemoryKind::ParameterSpan(_)));
        let workspace = (self.place != DeviceKind::Cpu).then(|| PlanLine::new("workspace", WORKSPACE_BYTES));
        let spans = spans.map(|line| PlanLine::new(line.name, line.bytes));
        spans.chain([PlanLine::new("states", states)]).chain(workspace).collect()
    }

    fn tables(&self, buckets: &[Bucket]) -> u64 {
        let of = |program, bucket| self.sizes(program, bucket).tables;
        let trained: u64 = buckets.iter().map(|bucket| of(ProgramKind::Accumulate, bucket)).sum();
        let once = buckets.first().map_or(0, |first| of(ProgramKind::Validate, first) + of(ProgramKind::Update, first));
        let of_first =
            buckets.first().map_or(0, |first| of(ProgramKind::Validate, first).max(of(ProgramKind::Update, first)));
        let largest = buckets.iter().map(|bucket| of(ProgramKind::Accumulate, bucket)).max().unwrap_or(0).max(of_first);
        let late = if self.choice.exact_shapes { LATE_PLACES as u64 * largest } else { 0 };
        trained + once + late
    }

    fn bytes(&self, program: ProgramKind, bucket: &Bucket) -> u64 {
        self.sizes(program, bucket).working
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{gpus, settings};

    fn choice(size: ModelSize) -> ModelChoice {
        ModelChoice { size, precision: Precision::Mixed, ema: true, adds_up: false, exact_shapes: false }
    }

    /// A shape is asked for many times while a plan is solved: by every attempt, and by every program.
    #[test]
    fn a_shape_is_written_out_once_for_all_attempts() {
        let models = SpeechModels::of(None);
        let solve = |line: &str| Plan::solve(&settings(line), &gpus(1, 24), &models, None).map(drop);
        solve("--model-size nano --batch-size 2").unwrap();
        let known = |models: &SpeechModels| models.known.lock().unwrap().len();
        let first = known(&models);
        solve("--model-size nano --batch-size 2 --buffer-size 7").unwrap();
        assert_eq!(known(&models), first);
        solve("--model-size nano --batch-size 3").unwrap();
        assert!(known(&models) > first);
    }

    #[test]
    fn symbols_are_learnt_too() {
        let parameters = |symbols| {
            let lines = SpeechModels::new(symbols).build(choice(ModelSize::Nano), DeviceKind::Cpu).lasting();
            lines.iter().find(|line| line.name == "parameters").unwrap().bytes
        };
        assert!(parameters(100) > parameters(SpeechModels::USUAL_SYMBOLS));
        let mut corpus = CorpusFacts::new("any", Vec::new());
        corpus.symbols = 100;
        assert_eq!(
            (SpeechModels::of(Some(&corpus)).symbols, SpeechModels::of(None).symbols),
            (100, SpeechModels::USUAL_SYMBOLS)
        );
    }

    /// Nobody can hold such a batch, and nobody waits for a plan that says so.
    #[test]
    fn a_batch_beyond_any_device_is_a_number_and_no_accident() {
        let model = SpeechModels::of(None).build(choice(ModelSize::Nano), DeviceKind::Simulated);
        let batch = |rows| Bucket::even(100_000, 10_000, rows);
        let [small, large] = [1, 65_536].map(|rows| model.bytes(ProgramKind::Accumulate, &batch(rows)));
        assert!(large > 1 << 47 && large / 65_536 < 2 * small, "{small} {large}");
    }
}
