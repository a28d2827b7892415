//! Peer, bounce and hand-over: requirements, refusals, and intact data.

use crate::support::{MIB, arena, peer_arena, simulated_pair};
use tandem_device::kernels::{Checks, checksum_words, pattern_word};
use tandem_device::sim::{DriverCall, Link, SimFault};
use tandem_device::transfer::{Checksums, CopyCheck};
use tandem_device::{DeviceError, Machine, Route, SimSpec, Transfer};
use tandem_events::Role;

fn proven(machine: &Machine, route: Route, cards: (usize, usize)) -> Result<(String, f64), DeviceError> {
    let (from, to) = (machine.open(cards.0)?, machine.open(cards.1)?);
    let (data, model) = (peer_arena(&from, Role::Data), peer_arena(&to, Role::Model));
    let mut transfer = Transfer::open(route, "a test", &data, &model, 7 * MIB)?;
    let (source, target) = (data.take_for_peer("batch", 7 * MIB)?, model.take_for_peer("slot", 7 * MIB)?);
    let measured = transfer.prove(&[source.view()], &[target.view()])?;
    Ok((transfer.describe(), measured.gb_per_s()))
}

#[test]
fn simulated_routes_deliver_at_the_speed_of_their_link() {
    let check = |link, route, slowest: f64, fastest: f64| {
        for seed in 0..10 {
            let (_, gb_per_s) = proven(&simulated_pair(link, seed), route, (0, 1)).unwrap();
            assert!((slowest..fastest).contains(&gb_per_s), "{link:?} {route:?}: {gb_per_s} GB/s");
        }
    };
    check(Link::Nvlink, Route::Peer, 150.0, 211.0);
    check(Link::Nvlink, Route::PeerCopy, 150.0, 211.0);
    check(Link::Nvlink, Route::Staged, 15.0, 21.0);
    check(Link::Pcie4, Route::Staged, 8.0, 11.0);
    check(Link::Pcie4, Route::Bounce, 10.0, 13.0);
    check(Link::Pcie3, Route::Bounce, 5.0, 7.0);
}

#[test]
fn a_copy_is_timed_leg_by_leg_and_without_its_waits() {
    // 7 MiB at 24 GB/s (bounce, each leg) and at 200 GB/s (peer), plus the start-up cost; 5 % off at most.
    for (link, route, leg_ns, legs) in
        [(Link::Pcie4, Route::Bounce, 290_000..330_000, 2), (Link::Nvlink, Route::Peer, 36_000..44_000, 1)]
    {
        let machine = simulated_pair(link, 3);
        let (from, to) = (machine.open(0).unwrap(), machine.open(1).unwrap());
        let (data, model) = (peer_arena(&from, Role::Data), peer_arena(&to, Role::Model));
        let mut transfer = Transfer::open(route, "a test", &data, &model, 7 * MIB).unwrap();
        let (source, target) =
            (data.take_for_peer("batch", 7 * MIB).unwrap(), model.take_for_peer("slot", 7 * MIB).unwrap());
        let (writer, written) = (from.stream(false).unwrap(), from.event().unwrap());
        let timers = transfer.timers().unwrap();
        // 28 fills of 7 MiB: the copy waits for longer than it takes.
        (0..28).for_each(|value| writer.fill(source.view(), value).unwrap());
        writer.record(&written).unwrap();
        transfer.after_written(&written).unwrap();
        transfer.copy_timed(source.view(), target.view(), &timers, None).unwrap();
        transfer.drain().unwrap();
        let times = timers.read().unwrap().unwrap();
        assert!(leg_ns.contains(&times.longest_ns()), "{route:?}: {times:?}");
        assert!((legs * leg_ns.start..legs * leg_ns.end).contains(&times.busy_ns()), "{route:?}: {times:?}");
    }
}

#[test]
fn peer_and_bounce_forced_on_one_card_are_described_so() {
    let machine = crate::support::simulated(1);
    assert_eq!(proven(&machine, Route::Peer, (0, 0)).unwrap().0, "peer (same device): a test");
    assert_eq!(proven(&machine, Route::Bounce, (0, 0)).unwrap().0, "bounce (same device): a test");
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn forced_on_one_real_card_peer_and_bounce_deliver() {
    let machine = crate::support::cuda();
    for route in Route::LADDER {
        let (name, gb_per_s) = proven(&machine, route, (0, 0)).unwrap();
        println!("{name}: {gb_per_s:.1} GB/s");
        assert!(gb_per_s > 0.0);
    }
}

#[test]
fn routes_that_cannot_work_are_refused() {
    let peer = proven(&simulated_pair(Link::Pcie4, 0), Route::Peer, (0, 1)).unwrap_err();
    assert!(matches!(peer, DeviceError::NoRoute { route: "peer", .. }), "{peer}");
    let handover = proven(&simulated_pair(Link::Nvlink, 0), Route::Handover, (0, 1)).unwrap_err();
    assert!(matches!(handover, DeviceError::NoRoute { route: "handover", .. }), "{handover}");
}

fn faulty_pair(fault: SimFault) -> Machine {
    Machine::simulated(SimSpec::new(2, 24 << 30).with_link(Link::Nvlink).with_fault(fault))
}

#[test]
fn a_route_that_delivers_nothing_is_noticed_and_the_others_work() {
    for broken in [Route::Peer, Route::PeerCopy, Route::Staged] {
        for route in Route::LADDER {
            match proven(&faulty_pair(SimFault::CorruptRoute(broken)), route, (0, 1)) {
                Ok(_) => assert_ne!(route, broken),
                Err(error) => {
                    let text = error.to_string();
                    assert!(route == broken && error.is_about_route() && text.starts_with(route.name()), "{text}");
                }
            }
        }
    }
}

/// Nothing waits for the copy after that: neither the proof, nor what frees its memory.
#[test]
fn a_copy_that_never_ends_is_given_up() {
    for route in [Route::Peer, Route::PeerCopy, Route::Staged] {
        let machine = faulty_pair(SimFault::StuckRoute(route));
        let error = proven(&machine, route, (0, 1)).unwrap_err();
        assert!(matches!(error, DeviceError::TimedOut { card: 0, .. }) && !error.is_about_route(), "{error}");
    }
}

/// As a peer copy behind an IOMMU may do: no other route can be tried in this process.
#[test]
fn a_route_that_traps_loses_both_cards() {
    for route in [Route::Peer, Route::PeerCopy, Route::Staged] {
        let machine = faulty_pair(SimFault::TrapOnRoute(route));
        let error = proven(&machine, route, (0, 1)).unwrap_err();
        assert!(matches!(error, DeviceError::Lost { .. }) && !error.is_about_route(), "{error}");
        assert!([0, 1].iter().all(|card| machine.open(*card).is_err()), "{route:?}: a card works");
        assert_eq!(machine.sim().unwrap().alive(), Default::default());
    }
}

#[test]
fn refused_peer_access_is_about_the_route() {
    for (route, works) in Route::LADDER.into_iter().zip([false, false, true, true]) {
        match proven(&faulty_pair(SimFault::RefusePeerAccess), route, (0, 1)) {
            Ok(_) => assert!(works, "{route:?}"),
            Err(error) => assert!(!works && error.is_about_route(), "{route:?}: {error}"),
        }
    }
}

/// A pattern through one copy with a check, after a proof; what both sides computed, and what the source held.
fn checked(machine: &Machine, route: Route, cards: (usize, usize)) -> (Checksums, u64) {
    let (from, to) = (machine.open(cards.0).unwrap(), machine.open(cards.1).unwrap());
    let (data, model) = (peer_arena(&from, Role::Data), peer_arena(&to, Role::Model));
    let mut transfer = Transfer::open(route, "a test", &data, &model, MIB).unwrap();
    let (source, target) = (data.take_for_peer("batch", MIB).unwrap(), model.take_for_peer("slot", MIB).unwrap());
    transfer.prove(&[source.view()], &[target.view()]).unwrap();
    let mut check = CopyCheck::take("checks", &data, &model).unwrap();
    let (writer, written) = (from.stream(false).unwrap(), from.event().unwrap());
    Checks::load(&from).unwrap().fill_pattern(&writer, source.view(), 5).unwrap();
    writer.record(&written).unwrap();
    transfer.after_written(&written).unwrap();
    transfer.copy_timed(source.view(), target.view(), &transfer.timers().unwrap(), Some(&mut check)).unwrap();
    let arrived = to.event().unwrap();
    transfer.record_arrived(&arrived).unwrap();
    arrived.synchronize("a test").unwrap();
    let words: Vec<u32> = (0..MIB / 4).map(|i| pattern_word(5, i)).collect();
    (check.read().unwrap(), checksum_words(&words))
}

#[test]
fn both_sides_of_an_intact_copy_have_the_same_checksum_when_it_has_arrived() {
    for seed in 0..10 {
        for route in Route::LADDER {
            let (Checksums { sent, arrived }, expected) = checked(&simulated_pair(Link::Nvlink, seed), route, (0, 1));
            assert_eq!((sent, arrived), (expected, expected), "{route:?}, seed {seed}");
        }
        let (Checksums { sent, arrived }, expected) = checked(&crate::support::simulated(1), Route::Bounce, (0, 0));
        assert_eq!((sent, arrived), (expected, expected), "one card");
    }
}

#[test]
fn a_bit_that_flips_after_the_proof_changes_the_checksum_of_what_arrived() {
    // One copy is compared, five are timed: the seventh is the first after the proof.
    let machine = || faulty_pair(SimFault::CorruptCopies(6));
    for route in [Route::Peer, Route::PeerCopy, Route::Staged] {
        let (Checksums { sent, arrived }, expected) = checked(&machine(), route, (0, 1));
        assert!(sent == expected && arrived != expected, "{route:?}");
    }
    // The host is not between the cards of this fault.
    let (Checksums { sent, arrived }, _) = checked(&machine(), Route::Bounce, (0, 1));
    assert_eq!(sent, arrived);
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn on_one_real_card_both_sides_have_the_checksum_of_the_host() {
    let machine = crate::support::cuda();
    for route in Route::LADDER {
        let (Checksums { sent, arrived }, expected) = checked(&machine, route, (0, 0));
        assert_eq!((sent, arrived), (expected, expected), "{route:?}");
    }
}

#[test]
fn every_slot_of_both_sides_is_proven() {
    let machine = simulated_pair(Link::Nvlink, 0);
    let (from, to) = (machine.open(0).unwrap(), machine.open(1).unwrap());
    let (data, model) = (peer_arena(&from, Role::Data), peer_arena(&to, Role::Model));
    let mut transfer = Transfer::open(Route::Peer, "a test", &data, &model, MIB).unwrap();
    let sources: Vec<_> = (0..5).map(|_| data.take_for_peer("batch", MIB).unwrap()).collect();
    let targets: Vec<_> = (0..3).map(|_| model.take_for_peer("slot", MIB).unwrap()).collect();
    let (from_views, to_views): (Vec<_>, Vec<_>) =
        (sources.iter().map(|block| block.view()).collect(), targets.iter().map(|block| block.view()).collect());
    transfer.prove(&from_views, &to_views).unwrap();
    // The pattern of the proof is everywhere.
    for (device, blocks) in [(&from, &sources), (&to, &targets)] {
        let (stream, mut bytes) = (device.stream(false).unwrap(), device.pinned(MIB).unwrap());
        let mut found = Vec::new();
        for block in blocks {
            stream.download(block.view(), &mut bytes, 0..MIB).unwrap();
            stream.drain().unwrap();
            found.push(bytes.bytes().unwrap().to_vec());
        }
        assert!(found.windows(2).all(|pair| pair[0] == pair[1]) && found[0].iter().any(|byte| *byte != found[0][0]));
    }
}

/// The test machines have one card: the order of driver calls is asserted on the simulator, which logs them.
#[test]
fn peer_access_is_queried_then_enabled_both_ways_then_used() {
    let machine = simulated_pair(Link::Nvlink, 0);
    proven(&machine, Route::Peer, (0, 1)).unwrap();
    let trace = machine.sim().unwrap().trace();
    let expected = [
        DriverCall::CanAccessPeer { reader: 1, owner: 0 },
        DriverCall::CanAccessPeer { reader: 0, owner: 1 },
        DriverCall::AllowPeer { reader: 1, owner: 0 },
        DriverCall::AllowPeer { reader: 0, owner: 1 },
        DriverCall::CopyPeer { from: 0, to: 1 },
    ];
    assert_eq!(trace[..5], expected);
    assert!(trace[5..].iter().all(|call| *call == DriverCall::CopyPeer { from: 0, to: 1 }), "{trace:?}");
}

#[test]
fn work_on_another_cards_memory_is_refused() {
    let machine = simulated_pair(Link::Nvlink, 0);
    let (here, there) = (machine.open(0).unwrap(), machine.open(1).unwrap());
    let arena = arena(&there, Role::Model, 64);
    let block = arena.take("block", 64).unwrap();
    let (stream, checks) = (here.stream(false).unwrap(), Checks::load(&here).unwrap());
    let other_memory = checks.fill_pattern(&stream, block.view(), 1).unwrap_err().to_string();
    assert!(other_memory.contains("on GPU 1"), "{other_memory}");
    let other_kernel = checks.fill_pattern(&there.stream(false).unwrap(), block.view(), 1).unwrap_err().to_string();
    assert!(other_kernel.contains("loaded on GPU 0"), "{other_kernel}");
}

#[test]
fn a_failed_copy_is_reported_and_nothing_is_left() {
    for copy in 0..4 {
        let spec = SimSpec::new(2, 8 << 30).with_fault(SimFault::FailCopy(copy));
        let machine = Machine::simulated(spec);
        let error = proven(&machine, Route::Bounce, (0, 1)).unwrap_err();
        assert!(matches!(error, DeviceError::Failed { during: "copy", .. }), "{error}");
        assert_eq!(machine.sim().unwrap().alive(), Default::default());
    }
}
