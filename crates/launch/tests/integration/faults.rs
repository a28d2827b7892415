//! Whatever is refused, fails or is lost while a run is set up, trains and ends: a typed error comes of it, nobody hangs,
//! and nothing stays behind.

use crate::support::Speeches;
use tandem_device::sim::{Alive, Link, SimCounts, SimFault};
use tandem_device::{Machine, SimSpec};
use tandem_launch::inventory::Resolved;
use tandem_launch::launch::{Corpora, LaunchError};

const STEPS: u64 = 2;
/// Points at which each kind of fault is injected on each way, spread evenly over a clean run; every point, where there are
/// fewer. A run takes a fifth of a second.
const POINTS: u64 = 12;

const SMALL: [(&str, &str); 3] = [("batch-size", "1"), ("max-mel-frames", "200"), ("buffer-size", "2")];
const PAIR: [(&str, &str); 2] = [("data-gpu", "0"), ("model-gpu", "1")];

fn cards(count: usize) -> SimSpec {
    SimSpec::new(count, 4 << 30).with_link(Link::Nvlink).with_seed(3)
}

/// Sets a run up, trains a little, validates, takes a snapshot, and ends it. Returns the bytes of all saved tensors.
fn whole_run(speeches: &Speeches, resolved: &Resolved, corpora: &Corpora) -> Result<Vec<Vec<u8>>, LaunchError> {
    let mut launched = speeches.launch(resolved, corpora)?;
    for _ in 0..STEPS {
        launched.trainer.advance()?;
    }
    launched.trainer.drain()?;
    launched.trainer.validate()?;
    let (_, tensors) = launched.trainer.snapshot()?;
    launched.trainer.stop()?;
    Ok([tensors.weights(), tensors.optimizer()].concat().iter().map(|tensor| tensor.bytes.to_vec()).collect())
}

/// Injects `fault` at points of a run that goes a way, all over it. How many of how many were noticed.
fn noticed(
    (count, flags): (usize, &[(&str, &str)]),
    points: fn(SimCounts) -> u64,
    fault: fn(u64) -> SimFault,
) -> (u64, u64) {
    let speeches = Speeches::new(0.7);
    let (clean, corpora) = speeches.resolve(Some(&cards(count)), &[&SMALL, flags].concat());
    // The plan is made once: what happens while it is made is not a run's.
    let on = |machine: Machine| Resolved {
        machine,
        hardware: clean.hardware.clone(),
        plan: clean.plan.clone(),
        prover: None,
    };
    let sound = on(Machine::simulated(cards(count)));
    let expected = whole_run(&speeches, &sound, &corpora).expect("a clean run");
    let all = points(sound.machine.sim().expect("simulated").counts());
    let (mut failed, injected) = (0, all.min(POINTS));
    for point in 0..injected {
        let at = (2 * point + 1) * all / (2 * injected);
        let faulty = on(Machine::simulated(cards(count).with_fault(fault(at))));
        match whole_run(&speeches, &faulty, &corpora) {
            Ok(trained) => assert!(trained == expected, "{flags:?} at {at} of {all}: other weights, and no error"),
            Err(error) => {
                assert!(error.device().is_some(), "{flags:?} at {at} of {all}: not an error of the device: {error}");
                failed += 1;
            }
        }
        assert_eq!(faulty.machine.sim().map(|sim| sim.alive()), Some(Alive::default()), "{flags:?} at {at} of {all}");
    }
    (failed, injected)
}

/// The ways a batch can cross.
fn ways() -> [(usize, Vec<(&'static str, &'static str)>); 3] {
    [(1, vec![("gpu", "0")]), (2, PAIR.to_vec()), (2, [&PAIR[..], &[("transfer", "bounce")]].concat())]
}

#[test]
fn every_refused_allocation_is_survived() {
    for (count, flags) in ways() {
        let (failed, of) = noticed((count, &flags), |counts| counts.allocations, SimFault::RefuseAllocation);
        // Memory is taken when a run is set up, in the same order every time.
        assert_eq!(failed, of, "{flags:?}");
    }
}

#[test]
fn every_failed_copy_is_survived() {
    for (count, flags) in ways() {
        let (failed, of) = noticed((count, &flags), |counts| counts.copies, SimFault::FailCopy);
        assert!(2 * failed > of, "{flags:?}: {failed} of {of} were noticed");
    }
}

#[test]
fn a_card_lost_at_any_call_is_survived() {
    for (count, flags) in ways() {
        let (failed, of) = noticed((count, &flags), |counts| counts.calls, SimFault::LoseCard);
        // How far the feed runs ahead differs from run to run, so the last calls may never come.
        assert!(2 * failed > of, "{flags:?}: {failed} of {of} were noticed");
    }
}

/// The waits of the feed have tests of their own; this is the one between the device and whoever reads what it computed.
#[test]
fn results_that_nobody_waited_for_are_not_read() {
    let speeches = Speeches::new(0.7);
    let (clean, corpora) = speeches.resolve(Some(&cards(1)), &[&SMALL[..], &[("gpu", "0")]].concat());
    let unnoticed = (0..8).all(|seed| {
        let machine = Machine::simulated(cards(1).with_seed(seed));
        machine.faults().skip_wait("session: results");
        let resolved = Resolved { machine, hardware: clean.hardware.clone(), plan: clean.plan.clone(), prover: None };
        whole_run(&speeches, &resolved, &corpora).is_ok()
    });
    assert!(!unnoticed, "the wait for results was taken away and nothing noticed");
}
