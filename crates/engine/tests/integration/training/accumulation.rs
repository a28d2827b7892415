//! Gradient accumulation over micro-batches equals the full batch.

use tandem_device::{DType, Machine};
use tandem_engine::ParameterSpan;

use super::support::{TestBatch, TestRow, TestTrainer, distance, fields, ragged, valid_frames};

/// What a step over micro-batches computes.
struct Accumulated {
    gradients: Vec<f64>,
    /// After an update.
    parameters: Vec<f64>,
}

/// A step over `utterances` in micro-batches of `rows`.
fn accumulate(precision: DType, utterances: &[TestRow], rows: u32, weight: impl Fn(&[TestRow]) -> f64) -> Accumulated {
    let mut trainer = TestTrainer::new(&Machine::cpu(), precision, rows);
    for micro_batch in utterances.chunks(rows as usize) {
        let batch = trainer.load(&fields(micro_batch));
        trainer.accumulate(&batch, weight(micro_batch));
        trainer.session.stream().drain().unwrap();
    }
    let gradients = trainer.span(ParameterSpan::Gradients);
    trainer.update(1e-2);
    Accumulated { gradients, parameters: trainer.span(ParameterSpan::Parameters) }
}

#[test]
fn four_micro_batches_of_8_equal_one_batch_of_32_with_ragged_rows() {
    let utterances = ragged(32);
    let frames = valid_frames(&utterances);
    assert!(utterances.iter().any(|utterance| utterance.valid == 0), "an empty row is among them");
    for (precision, bound) in [(DType::F64, 1e-14), (DType::F32, 2e-6)] {
        let full = accumulate(precision, &utterances, 32, |_| 1.0 / frames);
        let micro = accumulate(precision, &utterances, 8, |_| 1.0 / frames);
        let error = distance(&micro.gradients, &full.gradients);
        assert!(error <= bound, "{precision:?}: gradients off by {error:.2e}");
        // Adam divides by the magnitude of a gradient, so a gradient of pure rounding error would move by a full step.
        let error = distance(&micro.parameters, &full.parameters);
        assert!(error <= 10.0 * bound, "{precision:?}: parameters off by {error:.2e}");
        // The mean of the micro-batches' means is different: the test would detect it.
        let means = accumulate(precision, &utterances, 8, |micro_batch| 0.25 / valid_frames(micro_batch));
        assert!(distance(&means.gradients, &full.gradients) > 1e-3);
    }
}

#[test]
fn padding_contributes_to_no_gradient() {
    let utterances = ragged(8);
    let weight = 1.0 / valid_frames(&utterances);
    let run = |padding: f64| {
        let mut trainer = TestTrainer::new(&Machine::cpu(), DType::F32, 8);
        let mut fields = fields(&utterances);
        let TestBatch { x, y, mask } = &mut fields;
        for (frame, _) in mask.iter().enumerate().filter(|(_, mask)| **mask == 0.0) {
            let (inputs, outputs) = (x.len() / mask.len(), y.len() / mask.len());
            x[frame * inputs..][..inputs].fill(padding);
            y[frame * outputs..][..outputs].fill(-padding);
        }
        let batch = trainer.load(&fields);
        trainer.accumulate(&batch, weight);
        trainer.span(ParameterSpan::Gradients)
    };
    assert!(run(0.0) == run(300.0), "padding changes gradients");
}
