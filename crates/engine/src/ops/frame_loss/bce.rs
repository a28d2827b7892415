//! Binary cross-entropy with logits, for voicing and stop decisions.

use tandem_device::Source;

use super::{Term, kernels_of, source_of};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::real::Float;
use crate::rows::Rows;

pub(in crate::ops) static SOURCE: Source = source_of!("bce");

#[derive(Debug)]
pub(super) struct Bce;

impl Term for Bce {
    const NAME: &'static str = "bce_loss";
    const BACKWARD: &'static str = "bce_loss_backward";
    const SOURCE: &'static Source = &SOURCE;
    const KERNELS: [[&'static str; 2]; 3] = kernels_of!("bce_loss");
    const SYMMETRIC: bool = false;

    /// -t·ln σ(z) - (1 - t)·ln(1 - σ(z)) in its numerically stable form, max(z, 0) - z·t + ln(1 + e^-|z|).
    #[inline(always)]
    fn value<F: Float>(prediction: F, target: F) -> F {
        let positive = if prediction < F::zero() { F::zero() } else { prediction };
        positive - prediction * target + (-prediction.abs()).exp().ln_1p()
    }

    /// σ(z) - t.
    #[inline(always)]
    fn derivative<F: Float>(prediction: F, target: F) -> F {
        F::of(1.0) / (F::of(1.0) + (-prediction).exp()) - target
    }
}

impl Graph {
    /// `weight · Σ` of the binary cross-entropy of `logits` against `targets` (0 to 1) over the valid frames; otherwise as
    /// [`Graph::l1_loss`]. Targets get no gradient.
    pub fn bce_loss(
        &mut self,
        logits: Value,
        targets: Value,
        rows: &Rows,
        lengths: Value,
        weight: Value,
    ) -> Result<Value, EngineError> {
        self.frame_loss::<Bce>([logits, targets], rows, lengths, weight)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::check_loss;
    use super::*;
    use crate::testing::{GradientCheck, check_no_subnormals};

    #[test]
    fn values_and_gradients() {
        let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
        let check = GradientCheck::new().input(&[240, 5]).data(&[240, 5]);
        check_loss(check, Graph::bce_loss, |z, t| -t * sigmoid(z).ln() - (1.0 - t) * (1.0 - sigmoid(z)).ln());
    }

    #[test]
    fn a_confident_correct_logit_gets_no_gradient() {
        let logits: Vec<f64> = (0..400).map(|i| -0.3 * f64::from(i)).collect();
        let check = GradientCheck::new().given(&[1, 400], &logits).given(&[1, 400], &[0.0; 400]).integers(&[1], &[1]);
        check_no_subnormals(check, |g, x| {
            let weight = g.number(1.0);
            g.bce_loss(x[0], x[1], &Rows::new(&[1]), x[2], weight)
        });
    }

    #[test]
    fn the_loss_of_a_confident_logit_is_its_error() {
        assert_eq!((Bce::value(800.0, 0.0), Bce::value(800.0, 1.0), Bce::value(-800.0, 1.0)), (800.0, 0.0, 800.0));
        assert_eq!((Bce::derivative(800.0, 0.0), Bce::derivative(-800.0, 0.0)), (1.0, 0.0));
    }
}
