//! The learning rate schedule: a pure function of the step, so that a resumed run needs only the step number.

/// Linear warm-up, then constant or cosine decay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The highest learning rate.
    pub peak_lr: f64,
    /// Steps of the warm-up. The first step has `peak_lr / warm_up_steps`, not zero.
    pub warm_up_steps: u64,
    /// The schedule after the warm-up.
    pub then: AfterWarmUp,
}

/// The learning rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AfterWarmUp {
    /// Constant.
    Constant,
    /// Cosine decay to a floor.
    Cosine {
        /// The step at which the floor is reached, counted from the start of the run.
        total_steps: u64,
        /// The lowest learning rate.
        floor_lr: f64,
    },
}

impl Schedule {
    /// Linear warm-up over `warm_up_steps`, then constant.
    pub fn constant(peak_lr: f64, warm_up_steps: u64) -> Schedule {
        Schedule { peak_lr, warm_up_steps, then: AfterWarmUp::Constant }
    }

    /// Linear warm-up over `warm_up_steps`, then cosine decay to `floor_lr` at `total_steps`.
    pub fn cosine(peak_lr: f64, warm_up_steps: u64, total_steps: u64, floor_lr: f64) -> Schedule {
        Schedule { peak_lr, warm_up_steps, then: AfterWarmUp::Cosine { total_steps, floor_lr } }
    }

    /// The learning rate of a step, counted from 0.
    pub fn lr(&self, step: u64) -> f64 {
        if step < self.warm_up_steps {
            return self.peak_lr * (step + 1) as f64 / self.warm_up_steps as f64;
        }
        match self.then {
            AfterWarmUp::Constant => self.peak_lr,
            AfterWarmUp::Cosine { total_steps, floor_lr } => {
                let (done, all) = (step - self.warm_up_steps, total_steps.saturating_sub(self.warm_up_steps));
                let progress = if done >= all { 1.0 } else { done as f64 / all as f64 };
                let cosine = 0.5 * (1.0 + (std::f64::consts::PI * progress).cos());
                floor_lr + (self.peak_lr - floor_lr) * cosine
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(schedule: Schedule, expected: &[(u64, f64)]) {
        for &(step, lr) in expected {
            let found = schedule.lr(step);
            assert!((found - lr).abs() <= 1e-12, "{schedule:?} at {step}: {found}, not {lr}");
        }
    }

    #[test]
    fn warm_up_is_linear_and_then_constant() {
        let schedule = Schedule::constant(1e-3, 4);
        check(schedule, &[(0, 2.5e-4), (1, 5e-4), (2, 7.5e-4), (3, 1e-3), (4, 1e-3), (1_000_000, 1e-3)]);
        check(Schedule::constant(1e-3, 0), &[(0, 1e-3), (7, 1e-3)]);
    }

    #[test]
    fn cosine_decay_ends_at_the_floor() {
        let schedule = Schedule::cosine(1.0, 2, 10, 0.2);
        // A quarter of the decay.
        let quarter = 0.2 + 0.8 * 0.5 * (1.0 + std::f64::consts::FRAC_1_SQRT_2);
        check(schedule, &[(0, 0.5), (1, 1.0), (2, 1.0), (4, quarter), (6, 0.6), (10, 0.2), (11, 0.2), (u64::MAX, 0.2)]);
    }

    #[test]
    fn it_never_rises_after_the_peak() {
        let schedule = Schedule::cosine(5e-4, 30, 500, 1e-5);
        let rates: Vec<f64> = (0..600).map(|step| schedule.lr(step)).collect();
        assert!(rates[..30].is_sorted() && rates[30..].is_sorted_by(|a, b| a >= b));
        assert!(rates.iter().all(|lr| (1e-5..=5e-4).contains(lr)));
    }

    #[test]
    fn a_run_shorter_than_its_warm_up_is_at_the_floor_after_it() {
        check(Schedule::cosine(1.0, 10, 5, 0.1), &[(4, 0.5), (9, 1.0), (10, 0.1)]);
        check(Schedule::cosine(1.0, 10, 10, 0.1), &[(9, 1.0), (10, 0.1)]);
    }
}
