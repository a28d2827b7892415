//! L2 loss (squared error): (prediction - target)².

use tandem_device::Source;

use super::{Term, kernels_of, source_of};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::real::Float;
use crate::rows::Rows;

pub(in crate::ops) static SOURCE: Source = source_of!("l2");

#[derive(Debug)]
pub(super) struct L2;

impl Term for L2 {
    const NAME: &'static str = "l2_loss";
    const BACKWARD: &'static str = "l2_loss_backward";
    const SOURCE: &'static Source = &SOURCE;
    const KERNELS: [[&'static str; 2]; 3] = kernels_of!("l2_loss");
    const SYMMETRIC: bool = true;

    #[inline(always)]
    fn value<F: Float>(prediction: F, target: F) -> F {
        (prediction - target) * (prediction - target)
    }

    #[inline(always)]
    fn derivative<F: Float>(prediction: F, target: F) -> F {
        F::of(2.0) * (prediction - target)
    }
}

impl Graph {
    /// `weight · Σ (prediction - target)²` over the valid frames; otherwise as [`Graph::l1_loss`].
    pub fn l2_loss(
        &mut self,
        prediction: Value,
        target: Value,
        rows: &Rows,
        lengths: Value,
        weight: Value,
    ) -> Result<Value, EngineError> {
        self.frame_loss::<L2>([prediction, target], rows, lengths, weight)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::check_loss;
    use super::*;
    use crate::testing::GradientCheck;

    #[test]
    fn values_and_gradients() {
        let check = GradientCheck::new().input(&[240, 5]).input(&[240, 5]);
        check_loss(check, Graph::l2_loss, |a, b| (a - b).powi(2));
    }
}
