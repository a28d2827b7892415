//! The rehearsal finds every wrong byte, and survives every planted fault with nothing left behind.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "in a test, a failed unwrap is a failed test"
)]

mod support;

use std::collections::BTreeSet;

use support::{rehearsal, rehearse, small};
use tandem_device::sim::{Alive, Link, SimFault};
use tandem_device::{Machine, Route, SimSpec, transfer};
use tandem_feed::Bucket;
use tandem_trial::rehearsal::{RehearsalError, RehearsalSpec, waits};

const GIB: u64 = 1 << 30;
const STEPS: u64 = 12;

fn pair(seed: u64) -> SimSpec {
    SimSpec::new(2, 4 * GIB).with_link(Link::Nvlink).with_seed(seed)
}

/// The ways a batch can cross, with the cards they cross between.
const WAYS: [(Route, (usize, usize)); 5] = [
    (Route::Peer, (0, 1)),
    (Route::Bounce, (0, 1)),
    (Route::Peer, (0, 0)),
    (Route::Bounce, (0, 0)),
    (Route::Handover, (0, 0)),
];

#[test]
fn a_clean_rehearsal_passes_on_every_way_under_every_order_of_work() {
    for (route, cards) in WAYS {
        for seed in 0..40 {
            let machine = Machine::simulated(pair(seed));
            rehearse(&machine, cards, small(route, seed), STEPS).unwrap_or_else(|e| panic!("{route:?} {seed}: {e}"));
            assert_eq!(machine.sim().map(|sim| sim.alive()), Some(Alive::default()));
        }
    }
    rehearse(&Machine::cpu(), (0, 0), small(Route::Handover, 1), STEPS).expect("the CPU carries batches too");
}

#[test]
fn bf16_models_rehearse_too() {
    let mut spec = small(Route::Handover, 1);
    spec.model.choice.precision = tandem_plan::Precision::Mixed;
    rehearse(&Machine::simulated(pair(0)), (0, 0), spec, STEPS).expect("a clean rehearsal");
}

/// The waits of one way, as a clean run shows them.
fn waits_of(machine: &Machine, way: (Route, (usize, usize)), spec: RehearsalSpec) -> Vec<&'static str> {
    rehearse(machine, way.1, spec, STEPS).expect("a clean rehearsal");
    let mut sites = machine.faults().waits_seen();
    // The proof of the transfer waits for itself only.
    sites.retain(|site| !site.starts_with("the proof"));
    sites
}

#[test]
fn taking_any_one_wait_away_is_noticed_under_some_order_of_work() {
    for way in WAYS {
        for site in waits_of(&Machine::simulated(pair(0)), way, small(way.0, 1)) {
            let noticed = (0..60).find(|seed| {
                let machine = Machine::simulated(pair(*seed));
                machine.faults().skip_wait(site);
                rehearse(&machine, way.1, small(way.0, *seed), STEPS).is_err()
            });
            assert!(noticed.is_some(), "{way:?}: '{site}' was taken away and nothing noticed");
        }
    }
}

#[test]
fn every_wait_the_code_names_is_done_somewhere() {
    let seen: BTreeSet<_> =
        WAYS.iter().flat_map(|way| waits_of(&Machine::simulated(pair(0)), *way, small(way.0, 1))).collect();
    let named = [
        waits::UPLOADED,
        waits::SENT,
        waits::RELEASED,
        waits::ARRIVED,
        waits::RESULTS,
        waits::FILLED,
        transfer::waits::CROSSED,
        transfer::waits::WRITTEN,
        transfer::waits::SLOT_FREE,
        transfer::waits::STAGING_FREE,
        transfer::waits::STAGED,
    ];
    assert_eq!(seen, BTreeSet::from(named));
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn taking_any_one_wait_away_is_noticed_on_a_real_card() {
    let card = || Machine::cuda().expect("the CUDA driver can be used").expect("this test needs an NVIDIA card");
    // Large enough for copies and kernels to take longer than their launches; the delays outlast the host's share of
    // several batches.
    let slowed = |route| {
        let mut spec = rehearsal(route, 1, Bucket::even(300, 50, 4));
        spec.delay_ns = 20_000_000;
        spec
    };
    for way in [(Route::Peer, (0, 0)), (Route::Bounce, (0, 0)), (Route::Handover, (0, 0))] {
        for site in waits_of(&card(), way, slowed(way.0)) {
            let machine = card();
            machine.faults().skip_wait(site);
            let outcome = rehearse(&machine, way.1, slowed(way.0), 2 * STEPS);
            println!(
                "{:?}: without '{site}': {}",
                way.0,
                outcome.as_ref().err().map_or("UNNOTICED".into(), |e| e.to_string())
            );
            assert!(outcome.is_err(), "{way:?}: '{site}' was taken away and nothing noticed");
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn a_clean_rehearsal_passes_on_a_real_card() {
    for route in [Route::Peer, Route::Bounce, Route::Handover] {
        let machine = Machine::cuda().expect("the CUDA driver can be used").expect("this test needs an NVIDIA card");
        rehearse(&machine, (0, 0), small(route, 1), 200).unwrap_or_else(|e| panic!("{route:?}: {e}"));
        assert_eq!(machine.counters(0).live_bytes, 0);
    }
}

/// Plants `fault` at every point a clean run passes; each time a typed error, nothing alive, no hang, no panic.
fn survives(point: fn((u64, u64, u64)) -> u64, fault: fn(u64) -> SimFault) {
    for (route, cards) in WAYS {
        let clean = Machine::simulated(pair(3));
        rehearse(&clean, cards, small(route, 3), 4).expect("a clean rehearsal");
        let points = point(clean.sim().expect("simulated").counted());
        let mut failed = 0;
        for at in 0..points {
            let machine = Machine::simulated(pair(3).with_fault(fault(at)));
            match rehearse(&machine, cards, small(route, 3), 4) {
                Ok(()) => {}
                Err(RehearsalError::Device(_)) => failed += 1,
                Err(wrong @ RehearsalError::WrongBatch { .. }) => {
                    panic!("{route:?} at {at}: a fault was read as data: {wrong}")
                }
            }
            assert_eq!(machine.sim().map(|sim| sim.alive()), Some(Alive::default()), "{route:?} at {at}");
        }
        // A card lost while everything is already going home fails nobody.
        assert!(failed * 10 >= points * 8, "{route:?}: {failed} of {points} planted faults were noticed");
    }
}

#[test]
fn every_refused_allocation_is_survived() {
    survives(|(_, allocations, _)| allocations, SimFault::RefuseAllocation);
}

#[test]
fn every_failed_copy_is_survived() {
    survives(|(_, _, copies)| copies, SimFault::FailCopy);
}

#[test]
fn a_card_lost_at_any_call_is_survived() {
    survives(|(calls, _, _)| calls, SimFault::LoseCard);
}
