//! All programs of a training run over one set of parameters, compiled.

use std::sync::Arc;

use tandem_device::DType;
use tandem_engine::{
    EngineError, Graph, NamedLayout, Program, ProgramId, ProgramSet, Recomputed, UpdateSpec, fit, update_program,
};

use crate::batch_shape::BatchShape;
use crate::model::{Model, loss_type};

/// A bucket: the shape of a batch, and its layout.
#[derive(Clone, Debug)]
pub struct ProgramBucket {
    /// The row offsets of its batches.
    pub shape: BatchShape,
    /// The layout of a batch in a slot.
    pub layout: NamedLayout,
}

/// What the programs of a training run are compiled for.
#[derive(Clone, Debug)]
pub struct ProgramsSpec<'a> {
    /// The element type of the computation.
    pub precision: DType,
    /// The buckets of the training data. Validation batches have the shape of the first.
    pub buckets: &'a [ProgramBucket],
    /// The optimizer.
    pub update: UpdateSpec,
    /// Limit of a program's activation memory; blocks are recomputed (gradient checkpointing) as far as it requires.
    pub working_limit: Option<u64>,
    /// Number of late programs (for other shapes, compiled during training) that have room at once.
    pub late_slots: usize,
}

/// The programs of a training run.
#[derive(Clone, Debug)]
pub struct Programs {
    /// All programs.
    pub set: Arc<ProgramSet>,
    /// Forward and backward pass with gradient accumulation, one per bucket.
    pub accumulate: Vec<ProgramId>,
    /// Validation, in the shape of the first bucket.
    pub validate: ProgramId,
    /// The optimizer step.
    pub update: ProgramId,
    /// Names of the training losses; the first is minimised.
    pub losses: Vec<String>,
    /// Names of the validation losses; the first is the score.
    pub metrics: Vec<String>,
}

impl Programs {
    /// Compiles all programs. A pure function: a session allocates exactly the memory that the set states.
    pub fn build(model: &dyn Model, spec: &ProgramsSpec<'_>) -> Result<Programs, EngineError> {
        let spans = spec.update.spans();
        let mut set = ProgramSet::new(Arc::clone(model.parameters()), spec.precision, &spans);
        set.reserve_late_slots(spec.late_slots);
        let mut accumulate = Vec::with_capacity(spec.buckets.len());
        for (number, bucket) in spec.buckets.iter().enumerate() {
            let graph = fitted_graph(model, spec, bucket)?;
            accumulate.push(set.add(format!("accumulate, bucket {number}"), &graph, &bucket.layout)?);
        }
        let Some(first) = spec.buckets.first() else { panic!("training needs at least one bucket") };
        let graph = model.validate(spec.precision, &first.shape, spec.update.average)?;
        let validate = set.add("validate", &graph, &first.layout)?;
        let graph = update_program(model.parameters(), spec.precision, &spec.update)?;
        let update = set.add("update", &graph, &NamedLayout::default())?;
        let (losses, metrics) = (loss_names(&set, accumulate[0]), loss_names(&set, validate));
        Ok(Programs { set: Arc::new(set), accumulate, validate, update, losses, metrics })
    }

    /// Whether the validation program has a result of this name.
    pub fn has_validation_result(&self, name: &str) -> bool {
        self.set.program(self.validate).results().fields.iter().any(|field| field.name == name)
    }
}

/// The names of the scalar results of a program.
fn loss_names(set: &ProgramSet, id: ProgramId) -> Vec<String> {
    let results = &set.program(id).results().fields;
    results.iter().filter(|field| field.ty == loss_type(DType::F32)).map(|field| field.name.clone()).collect()
}

/// The graph of one bucket, with as many blocks recomputed as the memory limit requires.
fn fitted_graph(model: &dyn Model, spec: &ProgramsSpec<'_>, bucket: &ProgramBucket) -> Result<Graph, EngineError> {
    let graph = |recomputed: &Recomputed| {
        model.accumulate(spec.precision, &bucket.shape, spec.update.gradient_mode(), recomputed)
    };
    let Some(limit) = spec.working_limit else { return graph(&Recomputed::new()) };
    let blocks = graph(&Recomputed::new())?.num_blocks();
    let compile =
        |recomputed: &Recomputed| Program::compile(&graph(recomputed)?, &bucket.layout, &mut NamedLayout::default());
    let (_, recomputed) = fit("accumulate", Some(limit), blocks, compile)?;
    graph(&recomputed)
}
