//! How long ranks take to sum their gradients: a model, for predictions.
//!
//! A ring sends 2 (n − 1) ÷ n of the bytes through every link, in 2 (n − 1) steps that each cost a latency. Backward passes
//! and sums do not overlap yet, so a step takes its own time plus this.

/// The latency of a step of the ring: a launch and a signal between two cards.
const STEP_NS: f64 = 10_000.0;
/// Bytes of a gradient.
const GRADIENT_BYTES: u64 = size_of::<f32>() as u64;

/// What the sum of a step's gradients depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientSum {
    /// Parameters of the model.
    pub num_parameters: u64,
    /// Ranks that sum.
    pub ranks: usize,
    /// Bandwidth of the slowest link between two neighbours, in one direction.
    pub gb_per_s: f64,
}

impl GradientSum {
    /// Bytes of all gradients of one rank.
    pub fn bytes(&self) -> u64 {
        self.num_parameters * GRADIENT_BYTES
    }

    /// The predicted time in nanoseconds.
    pub fn predicted_ns(&self) -> f64 {
        let others = self.ranks.saturating_sub(1) as f64;
        let sent = 2.0 * others / self.ranks.max(1) as f64 * self.bytes() as f64;
        sent / self.gb_per_s.max(f64::MIN_POSITIVE) + 2.0 * others * STEP_NS
    }

    /// Steps per second of a run whose ranks take `steps_per_s` alone.
    pub fn with_sum(&self, steps_per_s: f64) -> f64 {
        1.0 / (1.0 / steps_per_s + self.predicted_ns() / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_sends_almost_twice_the_bytes_and_one_rank_sends_none() {
        let sum = |ranks| GradientSum { num_parameters: 250_000_000, ranks, gb_per_s: 100.0 };
        assert_eq!(sum(1).predicted_ns(), 0.0);
        // A gigabyte at 100 GB/s takes 10 ms.
        assert!((sum(2).predicted_ns() - 10_020_000.0).abs() < 1.0);
        assert!((sum(8).predicted_ns() - (17_500_000.0 + 140_000.0)).abs() < 1.0);
        assert_eq!(sum(1).with_sum(50.0), 50.0);
        assert!((sum(2).with_sum(50.0) - 1.0 / 0.030_02).abs() < 1e-6);
    }
}
