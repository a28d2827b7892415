//! The optimizer: one program that turns the sums of gradients into the next parameters.
//!
//! Three pieces of work over whole spans, in reading order: [`clip`] sums the squares of the gradients, [`decide`] turns
//! the sum into the few numbers of this update (or finds that there must be none), [`adamw`] makes one pass over
//! everything that is kept for a parameter. [`schedule`] says on the host which learning rate a step has.
//!
//! The guard is on the device: a gradient that is not finite leaves parameters, moments and average as they were, bit for
//! bit, and the host learns of it whenever it reads the counters. Nothing in the program depends on the step but the host
//! values, so that one program serves a whole run.

mod clip;
mod decide;
mod adamw;
mod schedule;

use std::sync::Arc;

use tandem_device::{DType, Source};

use crate::error::EngineError;
use crate::gradient::Earlier;
use crate::graph::{Graph, ParameterSpan};
use crate::parameters::Parameters;
use crate::tensor::TensorType;

pub use schedule::{AfterWarmUp, Schedule};

/// The kernels of an update, compiled together.
pub static SOURCE: Source = Source {
    file: "engine/update.cu",
    text: concat!(include_str!("clip.cu"), include_str!("decide.cu"), include_str!("adamw.cu")),
};

/// How parameters are updated.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateSpec {
    /// Share of the old mean of gradients that is kept.
    pub beta1: f64,
    /// Share of the old mean of squared gradients that is kept.
    pub beta2: f64,
    /// Keeps the quotient of the two finite.
    pub epsilon: f64,
    /// Pull towards zero per unit of learning rate, on parameters that decay.
    pub weight_decay: f64,
    /// Longest gradient, over all parameters; a longer one is shortened to it.
    pub clip: Option<f64>,
    /// Whether a moving average of the parameters is kept.
    pub average: bool,
    /// Whether the gradients are zeros afterwards: where batches are added to them. Not needed where the first batch of a step
    /// takes the place of what is there ([`crate::Earlier::Forgotten`]).
    pub clears: bool,
}

impl Default for UpdateSpec {
    fn default() -> UpdateSpec {
        UpdateSpec {
            beta1: 0.9,
            beta2: 0.98,
            epsilon: 1e-8,
            weight_decay: 0.01,
            clip: Some(1.0),
            average: true,
            clears: true,
        }
    }
}

impl UpdateSpec {
    /// What must be kept for every parameter: the spans to create a [`crate::ProgramSet`] with.
    pub fn spans(&self) -> Vec<ParameterSpan> {
        let mut spans = vec![ParameterSpan::Gradients, ParameterSpan::FirstMoment, ParameterSpan::SecondMoment];
        spans.extend(self.average.then_some(ParameterSpan::Average));
        spans
    }

    /// What batches do with the gradients that are there.
    pub fn earlier(&self) -> Earlier {
        if self.clears { Earlier::Kept } else { Earlier::Forgotten }
    }

    /// Settings are checked where they are read; what is wrong here is our own mistake.
    fn check(&self) {
        let UpdateSpec { beta1, beta2, epsilon, weight_decay, clip, .. } = *self;
        assert!([beta1, beta2].iter().all(|beta| (0.0..1.0).contains(beta)), "betas of {beta1} and {beta2}");
        assert!(epsilon > 0.0 && weight_decay >= 0.0, "epsilon {epsilon}, weight decay {weight_decay}");
        assert!(clip.is_none_or(|clip| clip > 0.0), "gradients clipped to {clip:?}");
    }
}

/// The program that updates `parameters` from the sums of their gradients, and clears the sums where they are to be added to.
///
/// - Host values, in the wide element type: `lr`, and `average_decay` where there is an average. A changed one takes
///   effect with the next run.
/// - States, `u32`: `updates` made, updates `skipped`, and `skipped_in_a_row`. Bias correction counts with `updates`, so
///   that a resumed run that brings the states and spans back goes on bit for bit.
/// - Results: `gradient_norm` (before clipping; not finite when the update was skipped), and the three states.
///
/// The average moves by `average_decay`, but never by more than `m / (10 + m)` after `m` updates: the first update copies
/// the parameters, so that the span needs no first value. In bf16 the copy that GEMMs read is written in the same pass.
///
/// Cost: the gradients are read once for their norm, then every span is read and written once. Panics on settings out of
/// range and on a model that learns nothing.
pub fn update_program(parameters: &Arc<Parameters>, precision: DType, spec: &UpdateSpec) -> Result<Graph, EngineError> {
    spec.check();
    assert!(parameters.elements() > 0, "an update of no parameters");
    let mut graph = Graph::new(parameters.clone(), precision);
    graph.scope("update", |graph| write_update(graph, spec))?;
    Ok(graph)
}

fn write_update(graph: &mut Graph, spec: &UpdateSpec) -> Result<(), EngineError> {
    let counter = TensorType::new(DType::U32, &[1]);
    let number = TensorType::new(graph.acc_dtype(), &[1]);
    let gradients = graph.span(ParameterSpan::Gradients);
    let squares = graph.squared_pieces(gradients)?;
    let lr = graph.host("lr", number)?;
    let average_decay = if spec.average { graph.host("average_decay", number)? } else { graph.number(0.0) };
    let mut counters = Vec::with_capacity(3);
    for name in ["updates", "skipped", "skipped_in_a_row"] {
        counters.push(graph.state(name, counter)?);
        graph.result(name, counters[counters.len() - 1])?;
    }
    let decided = graph.decide(spec, squares, [lr, average_decay], &counters)?;
    graph.result("gradient_norm", decided.norm)?;
    graph.adamw(decided.factors, spec.average)?;
    if spec.clears { graph.clear(gradients) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
