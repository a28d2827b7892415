//! A batch in pieces is the batch.

use tandem_device::{DType, Machine};
use tandem_engine::ParameterSpan;

use crate::support::{TestRow, TestTrainer, distance, fields, ragged, valid_frames};

/// Gradients of `utterances` in pieces of `rows`, then parameters after an update.
fn in_pieces(precision: DType, utterances: &[TestRow], rows: u32, weight: impl Fn(&[TestRow]) -> f64) -> [Vec<f64>; 2] {
    let mut trainer = TestTrainer::new(&Machine::cpu(), precision, rows);
    for piece in utterances.chunks(rows as usize) {
        let batch = trainer.load(&fields(piece));
        trainer.accumulate(&batch, weight(piece));
        trainer.session.stream().drain().unwrap();
    }
    let gradients = trainer.span(ParameterSpan::Gradients);
    trainer.update(1e-2);
    [gradients, trainer.span(ParameterSpan::Parameters)]
}

#[test]
fn four_times_eight_is_thirty_two_with_ragged_rows() {
    let utterances = ragged(32);
    let frames = valid_frames(&utterances);
    assert!(utterances.iter().any(|utterance| utterance.valid == 0), "an empty row is among them");
    for (precision, bound) in [(DType::F64, 1e-14), (DType::F32, 2e-6)] {
        let [whole, whole_after] = in_pieces(precision, &utterances, 32, |_| 1.0 / frames);
        let [parts, parts_after] = in_pieces(precision, &utterances, 8, |_| 1.0 / frames);
        let error = distance(&parts, &whole);
        assert!(error <= bound, "{precision:?}: gradients off by {error:.2e}");
        // Adam divides by the size of a gradient: an entry of rounding size alone would move by a whole step.
        let error = distance(&parts_after, &whole_after);
        assert!(error <= 10.0 * bound, "{precision:?}: parameters off by {error:.2e}");
        // A mean of each piece's own mean is something else: the test would notice.
        let [means, _] = in_pieces(precision, &utterances, 8, |piece| 0.25 / valid_frames(piece));
        assert!(distance(&means, &whole) > 1e-3);
    }
}

#[test]
fn padding_is_nobodys_gradient() {
    let utterances = ragged(8);
    let weight = 1.0 / valid_frames(&utterances);
    let run = |spoil: f64| {
        let mut trainer = TestTrainer::new(&Machine::cpu(), DType::F32, 8);
        let mut fields = fields(&utterances);
        let [x, y, mask] = &mut fields;
        for (frame, _) in mask.iter().enumerate().filter(|(_, mask)| **mask == 0.0) {
            let (inputs, outputs) = (x.len() / mask.len(), y.len() / mask.len());
            x[frame * inputs..][..inputs].fill(spoil);
            y[frame * outputs..][..outputs].fill(-spoil);
        }
        let batch = trainer.load(&fields);
        trainer.accumulate(&batch, weight);
        trainer.span(ParameterSpan::Gradients)
    };
    assert!(run(0.0) == run(300.0), "what lies behind a row's end changes gradients");
}
