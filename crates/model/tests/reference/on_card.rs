//! Training on a card: losses match PyTorch, two runs are bit-identical, and memory does not grow.
//!
//! `tools/reference/engine/steps.py FILE` trains the same model with PyTorch on the same card; an environment variable names
//! the file. The test bodies also run on the CPU, with a small model.

use serde_json::Value as Json;
use tandem_device::{DType, Machine};
use tandem_engine::UpdateSpec;
use tandem_model::TransformerSizes;
use tandem_test_support::largest;

use crate::cuda;
use crate::training::{Case, Training};

/// The environment variable that names the file of `steps.py`.
const REFERENCE: &str = "TANDEM_TORCH_REFERENCE";

/// The small model of `tandem bench step`. The formula's fractions are halved, to the scale of PyTorch's initialisation of
/// matrices with 256 columns.
const SMALL: Case = Case {
    sizes: TransformerSizes { width: 256, layers: 4, heads: 4, vocabulary: 1024 },
    batch: 32,
    length: 400,
    scale: 0.5,
    lr: 1e-4,
};
/// A small model for the CPU.
const TINY: Case = Case {
    sizes: TransformerSizes { width: 32, layers: 1, heads: 2, vocabulary: 40 },
    batch: 2,
    length: 24,
    scale: 0.5,
    lr: 1e-3,
};

const STEPS: usize = 200;
/// Steps whose mean loss is compared: five runs are too few for the range of a single step.
const WINDOW: usize = 20;

fn train(machine: &Machine, case: Case, precision: DType) -> Training {
    Training::new(machine, case, precision, &UpdateSpec { clip: None, clears: false, ..UpdateSpec::default() })
}

/// The mean loss of a window of steps: ours and PyTorch's.
#[derive(Debug, PartialEq)]
struct WindowLoss {
    first: usize,
    ours: f64,
    /// Minimum and maximum of PyTorch's bf16 runs.
    range: [f64; 2],
    /// PyTorch's run in f32.
    exact: f64,
}

impl WindowLoss {
    /// The allowed distance from the range: the width of the range, or the distance of the bf16 runs from the f32 run, whichever
    /// is larger. Runs whose weights differ by one ulp mostly round to the same bf16 weights and then to the same sums, so
    /// their range shows how training diverges, not the effect of a different rounding.
    fn allowance(&self) -> f64 {
        let [low, high] = self.range;
        (high - low).max((high - self.exact).abs()).max((low - self.exact).abs())
    }

    /// The distance of our loss from the range.
    fn outside(&self) -> f64 {
        let [low, high] = self.range;
        (low - self.ours).max(self.ours - high).max(0.0)
    }
}

/// Compares `ours` with the bf16 `runs` and the f32 run `exact`, window by window.
fn compare(ours: &[f64], runs: &[Vec<f64>], exact: &[f64]) -> Vec<WindowLoss> {
    assert!(runs.iter().all(|run| run.len() == ours.len()) && exact.len() == ours.len());
    let mean = |losses: &[f64], first: usize| losses[first..first + WINDOW].iter().sum::<f64>() / WINDOW as f64;
    let window = |first: usize| {
        let means = || runs.iter().map(|run| mean(run, first));
        let range = [means().fold(f64::INFINITY, f64::min), means().fold(f64::NEG_INFINITY, f64::max)];
        WindowLoss { first, ours: mean(ours, first), range, exact: mean(exact, first) }
    };
    (0..ours.len()).step_by(WINDOW).map(window).collect()
}

fn numbers(list: &Json) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn reference() -> Json {
    let Some(path) = std::env::var_os(REFERENCE) else {
        panic!("{REFERENCE} must name a file that tools/reference/engine/steps.py wrote on this machine")
    };
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
#[ignore = "needs an NVIDIA card, and TANDEM_TORCH_REFERENCE: the file that tools/reference/engine/steps.py writes"]
fn cuda_small_against_pytorch() {
    let reference = reference();
    let exact = numbers(&reference["f32"]);
    let runs: Vec<Vec<f64>> = reference["autocast"].as_array().unwrap().iter().map(numbers).collect();
    assert_eq!((exact.len(), runs.len()), (STEPS, 5));
    let machine = cuda();

    println!("against PyTorch {} on {}", reference["torch"], reference["device"]);
    let full = train(&machine, SMALL, DType::F32).losses(STEPS);
    let errors: Vec<f64> = full.iter().zip(&exact).map(|(found, expected)| (found / expected - 1.0).abs()).collect();
    let worst = |errors: &[f64]| largest(errors.iter().copied());
    println!("f32: largest relative distance of the first 20 losses {:.2e}", worst(&errors[..20]));
    println!("f32: largest of all {:.2e}; at step {STEPS} {:.2e}", worst(&errors), errors[STEPS - 1]);

    let mixed = train(&machine, SMALL, DType::BF16).losses(STEPS);
    let windows = compare(&mixed, &runs, &exact);
    println!("bf16, mean losses of {WINDOW} steps:");
    println!("   from        ours   PyTorch, five runs      PyTorch f32   outside   allowed");
    for row in &windows {
        let ([low, high], outside, allowed) = (row.range, row.outside(), row.allowance());
        let (first, ours, exact) = (row.first, row.ours, row.exact);
        println!("  {first:5}  {ours:.7}  {low:.7}..{high:.7}  {exact:.7}  {outside:.1e}  {allowed:.1e}");
    }

    assert!(full[STEPS - 1] < 0.99 * full[0], "the loss does not decrease: {} to {}", full[0], full[STEPS - 1]);
    assert!(worst(&errors[..20]) <= 1e-4, "f32, the first 20 steps");
    assert!(errors[STEPS - 1] <= 1e-2, "f32, step {STEPS}");
    for row in &windows {
        assert!(row.outside() <= row.allowance(), "bf16: {row:?}");
    }
}

/// Two runs of `steps` steps have bit-identical losses and training states.
fn check_reproducible(machine: &Machine, case: Case, precision: DType, steps: usize) {
    let run = || {
        let mut training = train(machine, case, precision);
        let losses: Vec<u64> = training.losses(steps).into_iter().map(f64::to_bits).collect();
        (losses, training.bits())
    };
    let (first, second) = (run(), run());
    let differs = first.0.iter().zip(&second.0).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{precision:?}: the first step whose loss differs");
    let differing = first.1.iter().zip(&second.1).filter(|(a, b)| a != b).count();
    assert_eq!((differing, first.1.len()), (0, second.1.len()), "{precision:?}: values that differ");
    let last = first.0.last().map(|bits| f64::from_bits(*bits));
    println!("{precision:?}: {steps} steps twice, {} values identical, last loss {last:?}", first.1.len());
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn cuda_two_runs_of_500_steps_give_the_same_bits() {
    let machine = cuda();
    check_reproducible(&machine, SMALL, DType::F32, 500);
    check_reproducible(&machine, SMALL, DType::BF16, 500);
}

#[test]
fn two_runs_give_the_same_bits() {
    for precision in [DType::F32, DType::BF16] {
        check_reproducible(&Machine::cpu(), TINY, precision, 5);
    }
}

/// After a few steps, `steps` more change neither the driver's free memory nor our counters.
fn check_no_growth(machine: &Machine, case: Case, steps: usize) {
    let mut training = train(machine, case, DType::BF16);
    let mut run = |steps: usize| {
        for _ in 0..steps {
            training.accumulate();
            training.update();
        }
        training.session().stream().drain().unwrap();
        let counters = machine.counters(0);
        let ours = [counters.allocations, counters.pinned_allocations, counters.live_bytes];
        (machine.read(0).unwrap().free_bytes, ours)
    };
    let (before, after) = (run(10), run(steps));
    println!("{steps} steps: free memory {} then {} bytes, our counters {:?}", before.0, after.0, after.1);
    assert_eq!(before, after);
    assert!(training.loss().is_finite());
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn cuda_ten_thousand_replays_do_not_change_free_memory() {
    check_no_growth(&cuda(), SMALL, 10_000);
}

#[test]
fn replays_do_not_change_the_free_memory_of_a_simulated_card() {
    check_no_growth(&Machine::simulated("1x1GiB".parse().unwrap()), TINY, 20);
}

#[test]
fn a_window_is_compared_with_the_range_and_the_distance_to_f32() {
    let check = |ours: f64, outside: f64, holds: bool| {
        let runs = vec![vec![5.0; 40], vec![5.25; 40]];
        let windows = compare(&[ours; 40], &runs, &[5.5; 40]);
        assert_eq!((windows.len(), windows[1].first, windows[1].range), (2, 20, [5.0, 5.25]));
        assert_eq!((windows[1].outside(), windows[1].allowance()), (outside, 0.5));
        assert_eq!(windows.iter().all(|row| row.outside() <= row.allowance()), holds);
    };
    check(5.125, 0.0, true);
    check(5.5, 0.25, true);
    check(4.5, 0.5, true);
    check(6.0, 0.75, false);
}
