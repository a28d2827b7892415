//! Every program of a model over one set of parameters, planned and lowered.

use std::sync::Arc;

use tandem_device::DType;
use tandem_engine::{
    EngineError, Graph, NamedLayout, Program, ProgramId, ProgramSet, Recomputed, UpdateSpec, fit, update_program,
};

use crate::batch_shape::BatchShape;
use crate::model::{Model, one_number};

/// A shape batches come in, and where their fields lie.
#[derive(Clone, Debug)]
pub struct ProgramBucket {
    /// Where utterances begin.
    pub shape: BatchShape,
    /// Where fields lie in a slot.
    pub layout: NamedLayout,
}

/// How a model is trained.
#[derive(Clone, Debug)]
pub struct ProgramsSpec<'a> {
    /// What it computes in.
    pub precision: DType,
    /// The shapes it is trained on. Held-out data has the first.
    pub buckets: &'a [ProgramBucket],
    /// The optimizer.
    pub update: UpdateSpec,
    /// The most that a program may need while it runs; blocks are computed again where that makes it fit.
    pub working_limit: Option<u64>,
    /// Programs of other shapes that may come while it is trained, at once.
    pub late_places: usize,
}

/// The programs of a training run.
#[derive(Clone, Debug)]
pub struct Programs {
    /// All of them.
    pub set: Arc<ProgramSet>,
    /// Forward, backward and sum, for each bucket.
    pub accumulate: Vec<ProgramId>,
    /// Held-out data, in the shape of the first bucket.
    pub validate: ProgramId,
    /// The optimizer.
    pub update: ProgramId,
    /// What a training step reports, by name; the first is minimised.
    pub losses: Vec<String>,
    /// What a validation reports, by name; the first is the score.
    pub figures: Vec<String>,
}

impl Programs {
    /// Plans and lowers everything. A pure function: what it says of memory is what a session will take.
    pub fn build(model: &dyn Model, spec: &ProgramsSpec<'_>) -> Result<Programs, EngineError> {
        let spans = spec.update.spans();
        let mut set = ProgramSet::new(Arc::clone(model.parameters()), spec.precision, &spans);
        set.leave_room(spec.late_places);
        let mut accumulate = Vec::with_capacity(spec.buckets.len());
        for (number, bucket) in spec.buckets.iter().enumerate() {
            let graph = fitting(model, spec, bucket)?;
            accumulate.push(set.add(format!("accumulate, bucket {number}"), &graph, &bucket.layout)?);
        }
        let Some(first) = spec.buckets.first() else { panic!("a model is trained on at least one shape") };
        let graph = model.validate(spec.precision, &first.shape, spec.update.average)?;
        let validate = set.add("validate", &graph, &first.layout)?;
        let graph = update_program(model.parameters(), spec.precision, &spec.update)?;
        let update = set.add("update", &graph, &NamedLayout::default())?;
        let (losses, figures) = (reported(&set, accumulate[0]), reported(&set, validate));
        Ok(Programs { set: Arc::new(set), accumulate, validate, update, losses, figures })
    }

    /// Whether validations leave a result of this name.
    pub fn judges(&self, name: &str) -> bool {
        self.set.program(self.validate).results().fields.iter().any(|field| field.name == name)
    }
}

/// The results of a program that are one number.
fn reported(set: &ProgramSet, id: ProgramId) -> Vec<String> {
    let results = &set.program(id).results().fields;
    results.iter().filter(|field| field.ty == one_number(DType::F32)).map(|field| field.name.clone()).collect()
}

/// The graph of one bucket, with as much computed again as the limit asks for.
fn fitting(model: &dyn Model, spec: &ProgramsSpec<'_>, bucket: &ProgramBucket) -> Result<Graph, EngineError> {
    let graph =
        |recomputed: &Recomputed| model.accumulate(spec.precision, &bucket.shape, spec.update.earlier(), recomputed);
    let Some(limit) = spec.working_limit else { return graph(&Recomputed::new()) };
    let blocks = graph(&Recomputed::new())?.num_blocks();
    let compile =
        |recomputed: &Recomputed| Program::compile(&graph(recomputed)?, &bucket.layout, &mut NamedLayout::default());
    let (_, recomputed) = fit("accumulate", Some(limit), blocks, compile)?;
    graph(&recomputed)
}
