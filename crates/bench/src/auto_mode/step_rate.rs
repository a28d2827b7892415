//! The step rate of a run, measured over a few steps.

use crate::benchmarks::Spread;

/// A run that can be stepped, and the clock it is timed by.
pub trait Run {
    /// What can go wrong.
    type Error;

    /// Takes a step.
    fn step(&mut self) -> Result<(), Self::Error>;

    /// The time after the last step, on any clock.
    fn now_ns(&self) -> u64;
}

/// How long a run is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimingLength {
    /// Steps that are never timed: they consume prefetched batches.
    pub least_settling: usize,
    /// More of them until this time is over, up to `most_settling`: a buffer drains slowly.
    pub settling_ns: u64,
    /// See above.
    pub most_settling: usize,
    /// Steps that are timed together.
    pub chunk: usize,
    /// At least this many chunks.
    pub least_chunks: usize,
    /// More chunks until they took this long.
    pub enough_ns: u64,
}

impl TimingLength {
    /// On cards. Timed runs prefetch few batches, which the first steps consume; a slowly draining buffer has until the time
    /// is over.
    pub const ON_CARDS: TimingLength = TimingLength {
        least_settling: 12,
        settling_ns: 1_000_000_000,
        most_settling: 200,
        chunk: 4,
        least_chunks: 4,
        enough_ns: 2_000_000_000,
    };
    /// On the CPU a step is long, and it does not wait for data.
    pub const ON_THE_CPU: TimingLength =
        TimingLength { least_settling: 3, settling_ns: 0, most_settling: 3, chunk: 2, least_chunks: 3, enough_ns: 0 };
}

/// Steps in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepRate {
    /// Over all timed steps.
    pub steps_per_s: f64,
    /// Lower end of the middle half of the chunks.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// How many steps were timed.
    pub steps: usize,
}

/// Steps `run` until its buffers are drained, then times it.
pub fn measure_step_rate<R: Run>(run: &mut R, length: TimingLength) -> Result<StepRate, R::Error> {
    let begun = run.now_ns();
    for number in 0..length.most_settling {
        run.step()?;
        if number + 1 >= length.least_settling && run.now_ns() - begun >= length.settling_ns {
            break;
        }
    }
    let begun = run.now_ns();
    let (mut before, mut rates, mut steps) = (begun, Vec::new(), 0);
    while rates.len() < length.least_chunks || before - begun < length.enough_ns {
        for _ in 0..length.chunk {
            run.step()?;
        }
        let now = run.now_ns();
        rates.push(rate(length.chunk, now - before));
        (before, steps) = (now, steps + length.chunk);
    }
    let Spread { low, high, .. } = Spread::of(rates);
    Ok(StepRate { steps_per_s: rate(steps, before - begun), low, high, steps })
}

fn rate(steps: usize, ns: u64) -> f64 {
    steps as f64 * 1e9 / ns.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Its first steps find batches that were made ahead.
    struct Draining {
        left: usize,
        quick_ns: u64,
        slow_ns: u64,
        now_ns: u64,
        steps: usize,
    }

    impl Run for Draining {
        type Error = ();

        fn step(&mut self) -> Result<(), ()> {
            self.now_ns += if self.left > 0 { self.quick_ns } else { self.slow_ns };
            self.left = self.left.saturating_sub(1);
            self.steps += 1;
            Ok(())
        }

        fn now_ns(&self) -> u64 {
            self.now_ns
        }
    }

    const LENGTH: TimingLength = TimingLength {
        least_settling: 8,
        settling_ns: 1_000_000,
        most_settling: 40,
        chunk: 4,
        least_chunks: 2,
        enough_ns: 2_000_000,
    };

    #[test]
    fn steps_that_live_on_what_was_made_ahead_do_not_count() {
        let mut run = Draining { left: 30, quick_ns: 10_000, slow_ns: 100_000, now_ns: 7, steps: 0 };
        let pace = measure_step_rate(&mut run, LENGTH).unwrap();
        assert_eq!((pace.steps_per_s, pace.low, pace.high), (1e4, 1e4, 1e4));
        assert_eq!(run.steps, pace.steps + 37);
    }

    #[test]
    fn slow_runs_are_timed_by_few_steps_and_quick_ones_by_many() {
        let steps = |ns| {
            let mut run = Draining { left: 0, quick_ns: ns, slow_ns: ns, now_ns: 0, steps: 0 };
            (measure_step_rate(&mut run, LENGTH).unwrap().steps, run.steps)
        };
        assert_eq!(steps(1_000_000), (8, 16));
        assert_eq!(steps(10_000), (200, 240));
    }
}
