//! The transformer compared with PyTorch: the losses of 20 steps, and every parameter's gradient in the first.
//!
//! `tools/reference/engine/make.py` wrote `tests/data/reference_transformer.json`; it has the same formula for weights and
//! tokens and the same list of parameters. [`on_card`] has the tests that need an NVIDIA card.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "in a test, a failed unwrap is a failed test"
)]

mod on_card;
mod training;

use serde_json::Value as Json;
use tandem_device::{DType, Machine};
use tandem_engine::UpdateSpec;
use tandem_model::TransformerSizes;

use crate::training::{Case, Training};

const CASE: Case = Case {
    sizes: TransformerSizes { width: 48, layers: 2, heads: 3, vocabulary: 50 },
    batch: 3,
    length: 17,
    scale: 1.0,
    lr: 1e-3,
};

const REFERENCE: &str = include_str!("../data/reference_transformer.json");

/// If this environment variable is set, the comparison runs on the first NVIDIA card as well.
const ON_CUDA: &str = "TANDEM_TEST_CUDA";

/// The first NVIDIA card's machine.
fn cuda() -> Machine {
    Machine::cuda().expect("the CUDA driver can be used").expect("this test needs an NVIDIA card")
}

/// Compares norm and stored entries of every parameter's gradient. An entry may be zero by symmetry (the keys' bias is), so
/// errors are relative to a typical entry.
fn compare_gradients(training: &Training, reference: &Json, bound: f64) {
    let (span, parameters) = (training.gradients(), training.parameters());
    let expected = reference["gradients"].as_array().unwrap();
    assert_eq!(expected.len(), parameters.iter().count());
    for (gradient, (_, parameter)) in expected.iter().zip(parameters.iter()) {
        let name = &parameter.name;
        assert_eq!(gradient["name"], *name);
        let found = &span[parameter.offset as usize..][..parameter.shape.elements() as usize];
        let (norm, expected) = (found.iter().map(|x| x * x).sum::<f64>().sqrt(), gradient["norm"].as_f64().unwrap());
        assert!((norm / expected - 1.0).abs() <= bound, "{name}: norm {norm}, PyTorch has {expected}");
        let typical = expected / (found.len() as f64).sqrt();
        for entry in gradient["entries"].as_array().unwrap() {
            let (at, expected) = (entry["at"].as_u64().unwrap() as usize, entry["value"].as_f64().unwrap());
            let error = (found[at] - expected).abs() / expected.abs().max(typical);
            assert!(error <= bound, "{name}[{at}]: {}, PyTorch has {expected}", found[at]);
        }
    }
}

/// Allowed relative errors.
#[derive(Clone, Copy)]
struct Bounds {
    gradients: f64,
    losses: f64,
}

const F32_BOUNDS: Bounds = Bounds { gradients: 1e-4, losses: 1e-4 };
/// When it clips, PyTorch divides by the norm plus 1e-6, which changes losses in about their tenth digit.
const F64_BOUNDS: Bounds = Bounds { gradients: 1e-9, losses: 1e-7 };

fn check(machine: &Machine, precision: DType, name: &str, bounds: Bounds) {
    let reference: Json = serde_json::from_str(REFERENCE).unwrap();
    let losses = reference[name]["losses"].as_array().unwrap();
    assert_eq!(losses.len(), 20);
    let mut training = Training::new(machine, CASE, precision, &UpdateSpec::default());
    for (step, expected) in losses.iter().enumerate() {
        let (found, expected) = (training.loss(), expected.as_f64().unwrap());
        let error = (found / expected - 1.0).abs();
        assert!(error <= bounds.losses, "{name}, step {step}: loss {found}, PyTorch has {expected}");
        if step == 0 {
            compare_gradients(&training, &reference[name], bounds.gradients);
        }
        training.update();
    }
}

#[test]
fn twenty_steps_in_f32_match_pytorch() {
    check(&Machine::cpu(), DType::F32, "f32", F32_BOUNDS);
    if std::env::var_os(ON_CUDA).is_some() {
        check(&cuda(), DType::F32, "f32", F32_BOUNDS);
    }
}

#[test]
fn twenty_steps_in_f64_match_pytorch() {
    check(&Machine::cpu(), DType::F64, "f64", F64_BOUNDS);
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn cuda_twenty_steps_in_f32_match_pytorch() {
    check(&cuda(), DType::F32, "f32", F32_BOUNDS);
}
