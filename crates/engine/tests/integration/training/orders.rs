//! A simulated card executes work in any order that its events allow; the results are bit-identical to the CPU's.

use std::collections::VecDeque;

use tandem_device::{DType, Machine, SimSpec};

use super::support::{TestTrainer, fields, number, ragged, valid_frames};

/// Six steps of two micro-batches, queued as far ahead of the device as possible: the bits of the losses and of the training
/// state.
fn train(machine: &Machine, precision: DType) -> (Vec<u64>, Vec<u64>) {
    let mut trainer = TestTrainer::new(machine, precision, 4);
    let utterances = ragged(8);
    let weight = 1.0 / valid_frames(&utterances);
    let batches = [trainer.load(&fields(&utterances[..4])), trainer.load(&fields(&utterances[4..]))];
    let (mut losses, mut in_flight) = (Vec::new(), VecDeque::new());
    for step in 0..6 {
        for batch in &batches {
            trainer.accumulate(batch, weight);
        }
        let id = trainer.accumulate;
        in_flight.push_back(trainer.session.fetch(id).unwrap());
        trainer.update(1e-2 / f64::from(step + 1));
        if in_flight.len() == 3 {
            let fetch = in_flight.pop_front().unwrap();
            losses.push(number(&trainer.session.finish(fetch).unwrap(), "loss"));
        }
    }
    for fetch in in_flight {
        losses.push(number(&trainer.session.finish(fetch).unwrap(), "loss"));
    }
    assert!(losses.is_sorted_by(|a, b| a > b), "{losses:?}");
    (losses.into_iter().map(f64::to_bits).collect(), trainer.bits())
}

#[test]
fn every_order_of_work_gives_the_bits_of_the_cpu() {
    for precision in [DType::F32, DType::BF16, DType::F64] {
        let expected = train(&Machine::cpu(), precision);
        for seed in 0..12 {
            let machine = Machine::simulated("1x1GiB".parse::<SimSpec>().unwrap().with_seed(seed));
            assert!(train(&machine, precision) == expected, "{precision:?}: different bits with seed {seed}");
        }
    }
}
