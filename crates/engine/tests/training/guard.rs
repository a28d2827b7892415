//! Data that is not finite costs one step, not the model.

use tandem_device::{DType, Machine, SimSpec};

use crate::support::{TestTrainer, fields, number, ragged, valid_frames};

#[test]
fn a_step_on_spoilt_data_is_skipped_and_the_next_goes_on() {
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
                let mut spoilt = data.clone();
                let frame = spoilt[2].iter().position(|mask| *mask == 1.0).unwrap();
                spoilt[0][frame * 6 + 2] = value;
                assert!(!trainer.step(&spoilt, weight, 1e-2).is_finite());
                assert!(trainer.bits() == before, "{value} has changed what is learnt");
                let update = trainer.update;
                let results = trainer.results(update);
                let counts = ["updates", "skipped", "skipped_in_a_row"].map(|n| results.get::<u32>(n).unwrap()[0]);
                assert_eq!(counts, [1, count, count]);
                assert!(!number(&results, "gradient_norm").is_finite());
            }
            for step in 0..20 {
                let (after, expected) = (trainer.step(&data, weight, 1e-2), clean.step(&data, weight, 1e-2));
                assert_eq!(after.to_bits(), expected.to_bits(), "step {step} is that of a run that never saw the data");
            }
            assert!(trainer.step(&data, weight, 1e-2) < 0.9 * first, "it learns on");
            let update = trainer.update;
            assert_eq!(trainer.results(update).get::<u32>("skipped_in_a_row").unwrap(), [0]);
        }
    }
}
