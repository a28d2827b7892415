//! Non-finite data skips one step and leaves the model unchanged.

use tandem_device::{DType, Machine, SimSpec};

use super::support::{TestTrainer, fields, number, ragged, valid_frames};

#[test]
fn a_step_on_non_finite_data_is_skipped_and_training_continues() {
    for machine in [Machine::cpu(), Machine::simulated("1x1GiB".parse::<SimSpec>().unwrap())] {
        for precision in [DType::F32, DType::BF16] {
            let mut trainer = TestTrainer::new(&machine, precision, 8);
            let mut clean = TestTrainer::new(&machine, precision, 8);
            let utterances = ragged(8);
            let (data, weight) = (fields(&utterances), 1.0 / valid_frames(&utterances));
            let first = trainer.step(&data, weight, 1e-2);
            clean.step(&data, weight, 1e-2);
            let before = trainer.bits();
            for (count, value) in (1..).zip([f64::NAN, f64::INFINITY, f64::NEG_INFINITY]) {
                let mut bad = data.clone();
                let frame = bad.mask.iter().position(|mask| *mask == 1.0).unwrap();
                bad.x[frame * 6 + 2] = value;
                assert!(!trainer.step(&bad, weight, 1e-2).is_finite());
                assert!(trainer.bits() == before, "{value} has changed the weights or the optimizer state");
                let update = trainer.update;
                let results = trainer.results(update);
                let counts = ["updates", "skipped", "skipped_in_a_row"].map(|n| results.get::<u32>(n).unwrap()[0]);
                assert_eq!(counts, [1, count, count]);
                assert!(!number(&results, "gradient_norm").is_finite());
            }
            for step in 0..20 {
                let (after, expected) = (trainer.step(&data, weight, 1e-2), clean.step(&data, weight, 1e-2));
                assert_eq!(
                    after.to_bits(),
                    expected.to_bits(),
                    "step {step} equals that of a run without the bad data"
                );
            }
            assert!(trainer.step(&data, weight, 1e-2) < 0.9 * first, "the loss still decreases");
            let update = trainer.update;
            assert_eq!(trainer.results(update).get::<u32>("skipped_in_a_row").unwrap(), [0]);
        }
    }
}
