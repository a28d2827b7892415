//! L1 loss: |prediction - target|.

use tandem_device::Source;

use super::{Term, kernels_of, source_of};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::real::Float;
use crate::rows::Rows;

pub(in crate::ops) static SOURCE: Source = source_of!("l1");

#[derive(Debug)]
pub(super) struct L1;

impl Term for L1 {
    const NAME: &'static str = "l1_loss";
    const BACKWARD: &'static str = "l1_loss_backward";
    const SOURCE: &'static Source = &SOURCE;
    const KERNELS: [[&'static str; 2]; 3] = kernels_of!("l1_loss");
    const SYMMETRIC: bool = true;

    #[inline(always)]
    fn value<F: Float>(prediction: F, target: F) -> F {
        (prediction - target).abs()
    }

    /// The sign of the difference, and 0 at 0 (a subgradient).
    #[inline(always)]
    fn derivative<F: Float>(prediction: F, target: F) -> F {
        let above = if prediction > target { F::of(1.0) } else { F::zero() };
        if prediction < target { F::of(-1.0) } else { above }
    }
}

impl Graph {
    /// `weight · Σ |prediction - target|` over the valid frames, one number in the accumulator type. `prediction` and
    /// `target` are `[frames, columns]` of any floating element types, `lengths` I32 `[rows]`, `weight` one number in
    /// the accumulator type.
    ///
    /// Padding adds nothing and gets no gradient, even if it holds NaNs. Cost: one pass over both, and one more in the
    /// backward pass.
    pub fn l1_loss(
        &mut self,
        prediction: Value,
        target: Value,
        rows: &Rows,
        lengths: Value,
        weight: Value,
    ) -> Result<Value, EngineError> {
        self.frame_loss::<L1>([prediction, target], rows, lengths, weight)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::check_loss;
    use super::*;
    use crate::testing::GradientCheck;

    #[test]
    fn values_and_gradients() {
        // A difference must not change its sign within the step of the gradient check.
        let target: Vec<f64> = (0..240 * 5).map(|i| f64::from(i % 7) - 20.0).collect();
        let check = GradientCheck::new().input(&[240, 5]).given(&[240, 5], &target);
        check_loss(check, Graph::l1_loss, |a, b| (a - b).abs());
    }

    #[test]
    fn equal_numbers_have_a_derivative_of_zero() {
        assert_eq!((L1::derivative(1.0, 1.0), L1::derivative(2.0, 1.0), L1::derivative(0.0, 1.0)), (0.0, 1.0, -1.0));
    }
}
