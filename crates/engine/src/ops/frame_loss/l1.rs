//! The sum of distances: |found - target|.

use tandem_device::Source;

use super::{Term, kernels_of, source_of};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::real::Float;
use crate::rows::Rows;

/// Its kernels.
pub(in crate::ops) static SOURCE: Source = source_of!("l1");

#[derive(Debug)]
struct L1;

impl Term for L1 {
    const NAME: &'static str = "l1_loss";
    const BACKWARD: &'static str = "l1_loss_backward";
    const SOURCE: &'static Source = &SOURCE;
    const KERNELS: [[&'static str; 2]; 3] = kernels_of!("l1_loss");
    const SYMMETRIC: bool = true;

    #[inline(always)]
    fn value<F: Float>(found: F, target: F) -> F {
        (found - target).abs()
    }

    /// The sign of the difference; 0 where there is none.
    #[inline(always)]
    fn slope<F: Float>(found: F, target: F) -> F {
        let above = if found > target { F::of(1.0) } else { F::zero() };
        if found < target { F::of(-1.0) } else { above }
    }
}

impl Graph {
    /// `weight · Σ |found - target|` over the filled frames, one number in the wide element type. `found` and `target` are
    /// `[frames, columns]` of any floating element types, `lengths` I32 `[rows]`, `weight` one wide number.
    ///
    /// Padding adds nothing and gets no gradient, whatever is in it. Costs one pass over both, and one more backwards.
    pub fn l1_loss(
        &mut self,
        found: Value,
        target: Value,
        rows: &Rows,
        lengths: Value,
        weight: Value,
    ) -> Result<Value, EngineError> {
        self.frame_loss::<L1>([found, target], rows, lengths, weight)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::check_loss;
    use super::*;
    use crate::testing::GradientCheck;

    #[test]
    fn values_and_gradients() {
        // A difference must not change its sign within the step of the check.
        let target: Vec<f64> = (0..240 * 5).map(|i| f64::from(i % 7) - 20.0).collect();
        let check = GradientCheck::new().input(&[240, 5]).given(&[240, 5], &target);
        check_loss(check, Graph::l1_loss, |a, b| (a - b).abs());
    }

    #[test]
    fn equal_numbers_have_no_slope() {
        assert_eq!((L1::slope(1.0, 1.0), L1::slope(2.0, 1.0), L1::slope(0.0, 1.0)), (0.0, 1.0, -1.0));
    }
}
