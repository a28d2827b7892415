//! The optimizer: one program that updates the parameters from the accumulated gradients.
//!
//! Three kernels over all parameters, in reading order: [`gradient_norm`] sums the squares of the gradients,
//! [`update_factors`] computes the factors of this update (or that it is skipped), [`adamw`] makes one pass over the
//! optimizer state. [`schedule`] computes the learning rate of a step on the host.
//!
//! The guard is on the device: a non-finite gradient leaves parameters, moments and moving average unchanged, bit for bit,
//! and the host sees it when it reads the counters. Only the host values depend on the step, so that one program serves a
//! whole run.

mod gradient_norm;
mod update_factors;
mod adamw;
mod schedule;

use std::sync::Arc;

use tandem_device::{DType, Kernel, Source};

use crate::error::EngineError;
use crate::graph::{Graph, ParameterSpan};
use crate::op::WriteMode;
use crate::parameters::Parameters;
use crate::tensor::TensorType;

pub use schedule::{AfterWarmUp, Schedule};

/// The kernels of an update, compiled together.
pub static SOURCE: Source = Source {
    file: "engine/update.cu",
    text: concat!(include_str!("gradient_norm.cu"), include_str!("update_factors.cu"), include_str!("adamw.cu")),
};

/// The kernels of [`SOURCE`].
pub static KERNELS: &[&[&Kernel]] = &[gradient_norm::KERNELS, update_factors::KERNELS, adamw::KERNELS];

/// The settings of the update: AdamW with gradient clipping and a moving average of the parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateSpec {
    /// Decay rate of the first moment.
    pub beta1: f64,
    /// Decay rate of the second moment.
    pub beta2: f64,
    /// Added to the denominator for numerical stability.
    pub epsilon: f64,
    /// Decoupled weight decay, on parameters that decay.
    pub weight_decay: f64,
    /// The largest global gradient norm; larger gradients are clipped to it.
    pub clip: Option<f64>,
    /// Whether to compute an exponential moving average of the parameters.
    pub average: bool,
    /// Whether to clear the gradients afterwards, for batches that accumulate into them. Not needed if the first batch of a
    /// step overwrites them ([`crate::WriteMode::Overwrite`]).
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
    /// The optimizer state of every parameter: the spans to create a [`crate::ProgramSet`] with.
    pub fn spans(&self) -> Vec<ParameterSpan> {
        let mut spans = vec![ParameterSpan::Gradients, ParameterSpan::FirstMoment, ParameterSpan::SecondMoment];
        spans.extend(self.average.then_some(ParameterSpan::Average));
        spans
    }

    /// Whether the first batch of a step accumulates into the gradients or overwrites them.
    pub fn gradient_mode(&self) -> WriteMode {
        if self.clears { WriteMode::Accumulate } else { WriteMode::Overwrite }
    }

    /// Settings are validated where they are read; an invalid one here is a bug.
    fn check(&self) {
        let UpdateSpec { beta1, beta2, epsilon, weight_decay, clip, .. } = *self;
        assert!([beta1, beta2].iter().all(|beta| (0.0..1.0).contains(beta)), "betas of {beta1} and {beta2}");
        assert!(epsilon > 0.0 && weight_decay >= 0.0, "epsilon {epsilon}, weight decay {weight_decay}");
        assert!(clip.is_none_or(|clip| clip > 0.0), "gradients clipped to {clip:?}");
    }
}

/// The program that updates `parameters` from their accumulated gradients, and clears the gradients if
/// [`UpdateSpec::clears`].
///
/// - Host values, in the accumulator type: `lr`, and `ema_decay` if there is a moving average. A changed value takes
///   effect in the next run.
/// - States, `u32`: `updates` made, updates `skipped`, and `skipped_in_a_row`. Bias correction depends on `updates`, so that
///   a run resumed with the states and spans continues bit for bit.
/// - Results: `gradient_norm` (before clipping; not finite if the update was skipped), and the three states.
///
/// The decay of the moving average is `ema_decay`, but at most `m / (10 + m)` after `m` updates: the first update copies
/// the parameters, so that the span needs no initial value. In bf16 the copy that GEMMs read is written in the same pass.
///
/// Cost: the gradients are read once for their norm, then every span is read and written once. Panics on settings out of
/// range and on a model without trainable parameters.
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
    let squares = graph.sum_of_squares(gradients)?;
    let lr = graph.host("lr", number)?;
    let ema_decay = if spec.average { graph.host("ema_decay", number)? } else { graph.number(0.0) };
    let mut counters = Vec::with_capacity(3);
    for name in ["updates", "skipped", "skipped_in_a_row"] {
        counters.push(graph.state(name, counter)?);
        graph.result(name, counters[counters.len() - 1])?;
    }
    let update = graph.update_factors(spec, squares, [lr, ema_decay], &counters)?;
    graph.result("gradient_norm", update.norm)?;
    graph.adamw(update.factors, spec.average)?;
    if spec.clears { graph.clear(gradients) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
