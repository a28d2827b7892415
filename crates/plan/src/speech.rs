//! The speech model as the plan sees it: every byte, from its own memory plans.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tandem_device::DType;
use tandem_engine::{EngineError, Holding, NamedLayout, ProgramSet, Recomputed, Rows, UpdateSpec, update_program};
use tandem_feed::{Bucket, FeedPlan, MELS, SPEECH};
use tandem_model::{Acoustic, BatchShape, Preset};

use crate::placement::Precision;
use crate::workload::{Line, ModelChoice, ModelSize, Program, Workload, Workloads};

/// The preset behind a size.
pub fn preset(size: ModelSize) -> Preset {
    match size {
        ModelSize::Nano => Preset::Nano,
        ModelSize::Tiny => Preset::Tiny,
        ModelSize::Small => Preset::Small,
        ModelSize::Normal => Preset::Normal,
        ModelSize::Big => Preset::Big,
    }
}

/// A model of this size for texts of `symbols` different symbols.
pub fn acoustic(size: ModelSize, symbols: u32) -> Result<Acoustic, EngineError> {
    Acoustic::new(preset(size).sizes(), symbols.max(1), MELS as u32)
}

/// What products compute in.
pub fn precision(precision: Precision) -> DType {
    match precision {
        Precision::Full => DType::F32,
        Precision::Mixed => DType::BF16,
    }
}

/// The optimizer.
pub fn update(clip: Option<f64>, average: bool) -> UpdateSpec {
    UpdateSpec { clip, average, ..UpdateSpec::default() }
}

/// The shapes of a feed, as the model's programs take them.
pub fn buckets(feed: &FeedPlan) -> Vec<tandem_model::Bucket> {
    feed.buckets.iter().map(bucket).collect()
}

fn bucket(bucket: &Bucket) -> tandem_model::Bucket {
    let rows = |length: fn(&tandem_feed::RowShape) -> u64| {
        Rows::new(&bucket.rows().iter().map(|row| length(row) as u32).collect::<Vec<_>>())
    };
    let shape = BatchShape::new(rows(|row| row.tokens), rows(|row| row.frames));
    tandem_model::Bucket { shape, layout: layout(bucket) }
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

/// Speech models for texts of so many different symbols.
#[derive(Clone, Copy, Debug)]
pub struct Speech {
    /// Symbols of the corpus's texts.
    pub symbols: u32,
}

impl Workloads for Speech {
    fn build(&self, choice: ModelChoice) -> Box<dyn Workload> {
        let model = match acoustic(choice.size, self.symbols) {
            Ok(model) => model,
            Err(error) => unreachable!("a preset's shapes go together: {error}"),
        };
        let (precision, update) = (precision(choice.precision), update(Some(1.0), choice.ema));
        Box::new(SpeechModel { model, precision, update, size: choice.size, known: Mutex::default() })
    }
}

/// Frames and tokens of every row of a shape.
type RowLengths = Vec<(u64, u64)>;

struct SpeechModel {
    model: Acoustic,
    precision: DType,
    update: UpdateSpec,
    size: ModelSize,
    /// What was compiled before: a plan asks for the same shapes again and again.
    known: Mutex<HashMap<(Program, RowLengths), Sizes>>,
}

/// What a program needs: while it runs, and for as long as it is there.
#[derive(Clone, Copy, Default)]
struct Sizes {
    working: u64,
    tables: u64,
}

impl SpeechModel {
    fn sizes(&self, program: Program, shape: &Bucket) -> Sizes {
        // The optimizer does not see the shape.
        let of_shape = match program {
            Program::Update => Vec::new(),
            _ => shape.rows().iter().map(|row| (row.frames, row.tokens)).collect(),
        };
        let key = (program, of_shape);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(key).or_insert_with(|| match self.compiled(program, shape) {
            Ok(set) => sizes_of(&set),
            Err(error) => unreachable!("a preset's programs can be written for every shape: {error}"),
        })
    }

    fn compiled(&self, program: Program, shape: &Bucket) -> Result<ProgramSet, EngineError> {
        let bucket = bucket(shape);
        let mut set = self.set();
        let (precision, averages) = (self.precision, self.update.average);
        match program {
            Program::Accumulate => {
                let graph = self.model.accumulate(precision, &bucket.shape, &Recomputed::new())?;
                set.add("accumulate", &graph, &bucket.layout)?;
            }
            Program::Validate => {
                set.add("validate", &self.model.validate(precision, &bucket.shape, averages)?, &bucket.layout)?;
            }
            Program::Update => {
                let graph = update_program(self.model.parameters(), precision, &self.update)?;
                set.add("update", &graph, &NamedLayout::default())?;
            }
            // Sampling comes with synthesis.
            Program::Sample => {}
        }
        Ok(set)
    }

    fn set(&self) -> ProgramSet {
        ProgramSet::new(self.model.parameters().clone(), self.precision, &self.update.spans())
    }
}

fn sizes_of(set: &ProgramSet) -> Sizes {
    let bytes = |holder| set.lines().iter().filter(|line| line.holder == holder).map(|line| line.bytes).sum();
    Sizes { working: bytes(Holding::Working), tables: bytes(Holding::Constants) }
}

impl Workload for SpeechModel {
    fn name(&self) -> String {
        let millions = self.model.parameters().count() as f64 / 1e6;
        format!("{}: {millions:.1} million parameters", self.size.name())
    }

    fn lasting(&self) -> Vec<Line> {
        let states =
            |set: &ProgramSet| set.lines().iter().filter(|l| l.holder == Holding::States).map(|l| l.bytes).sum();
        let update = self.compiled(Program::Update, &Bucket::even(1, 1, 1));
        let states = update.as_ref().map_or(0, states);
        let spans = self.set().lines().into_iter().filter(|line| matches!(line.holder, Holding::Span(_)));
        spans.map(|line| Line::new(line.name, line.bytes)).chain([Line::new("states", states)]).collect()
    }

    fn tables(&self, buckets: &[Bucket]) -> u64 {
        let of = |program, bucket| self.sizes(program, bucket).tables;
        let trained: u64 = buckets.iter().map(|bucket| of(Program::Accumulate, bucket)).sum();
        let once = buckets.first().map_or(0, |first| of(Program::Validate, first) + of(Program::Update, first));
        trained + once
    }

    fn bytes(&self, program: Program, bucket: &Bucket) -> u64 {
        self.sizes(program, bucket).working
    }
}
