//! A card that breaks while it works: the error says so, whatever is asked next, and everything goes home.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "in a test, a failed unwrap is a failed test; its other process talks through its output"
)]

mod support;

use std::process::Command;

use support::{MIB, arena, cuda, simulated};
use tandem_device::kernels::Checks;
use tandem_device::sim::Alive;
use tandem_device::{DeviceError, Machine};
use tandem_events::Role;

fn lost<T>(result: Result<T, DeviceError>, call: &str) {
    match result {
        Err(DeviceError::Lost { card: 0, what, .. }) => assert!(!what.is_empty(), "{call}"),
        Err(error) => panic!("{call}: {error}"),
        Ok(_) => panic!("{call}: the card still works"),
    }
}

/// Queued work may be taken in before the card has come to the trap; it never fails otherwise.
fn taken_or_lost<T>(result: Result<T, DeviceError>, call: &str) {
    if result.is_err() {
        lost(result, call);
    }
}

/// Breaks card 0 with everything in use on it, and lets go of everything.
fn break_in_use(machine: &Machine) {
    let device = machine.open(0).unwrap();
    let memory = arena(&device, Role::Model, 64);
    let (stream, other) = (device.stream(true).unwrap(), device.stream(false).unwrap());
    let (block, mut pinned) = (memory.take("block", MIB).unwrap(), device.pinned(MIB).unwrap());
    let (checks, mark) = (Checks::load(&device).unwrap(), device.event().unwrap());
    let queue = || checks.fill_pattern(&stream, block.view(), 7);
    queue().unwrap();
    let capture = stream.begin_capture().unwrap();
    assert!(stream.trap().is_err(), "nothing can replay a trap");
    queue().unwrap();
    let recorded = capture.end().unwrap();
    stream.replay(&recorded).unwrap();
    stream.drain().unwrap();

    stream.trap().unwrap();
    taken_or_lost(stream.replay(&recorded), "a replay behind the trap");
    let copy = stream.download(block.view(), &mut pinned, 0..MIB);
    let copied = copy.is_ok();
    taken_or_lost(copy, "a copy behind the trap");
    taken_or_lost(stream.record(&mark), "an event behind the trap");
    lost(stream.drain(), "waiting");
    lost(mark.synchronize("an event behind the trap"), "waiting for an event");
    lost(stream.replay(&recorded), "a replay");
    lost(queue(), "a launch");
    lost(stream.fill(block.view(), 0), "a fill");
    lost(other.fill(block.view(), 0), "another stream");
    lost(other.drain(), "waiting for another stream");
    if copied {
        lost(pinned.bytes(), "what was to be copied down");
    }
    taken_or_lost(device.pinned(64), "page-locked memory");
}

fn nothing_is_held(machine: &Machine) {
    let counters = machine.counters(0);
    assert_eq!((counters.live_bytes, counters.live_pinned_bytes, machine.is_open(0)), (0, 0, false));
}

#[test]
fn a_simulated_card_that_traps_is_lost_and_leaves_nothing() {
    for seed in 0..20 {
        let machine = simulated(seed);
        break_in_use(&machine);
        nothing_is_held(&machine);
        assert_eq!(machine.sim().unwrap().alive(), Alive::default(), "seed {seed}");
    }
}

#[test]
fn the_other_card_works_on() {
    for seed in 0..20 {
        let machine = support::simulated_pair(tandem_device::sim::Link::Nvlink, seed);
        let (broken, whole) = (machine.open(0).unwrap(), machine.open(1).unwrap());
        let (stream, other) = (broken.stream(false).unwrap(), whole.stream(false).unwrap());
        stream.trap().unwrap();
        lost(stream.drain(), "waiting");
        let memory = arena(&whole, Role::Data, 32);
        let block = memory.take("block", 64).unwrap();
        let mut pinned = whole.pinned(64).unwrap();
        other.fill(block.view(), 9).unwrap();
        other.download(block.view(), &mut pinned, 0..64).unwrap();
        other.drain().unwrap();
        assert_eq!(pinned.bytes().unwrap(), [9; 64], "seed {seed}");
    }
}

#[test]
fn the_cpu_is_not_broken() {
    let stream = Machine::cpu().open(0).unwrap().stream(false).unwrap();
    let error = stream.trap().unwrap_err().to_string();
    assert!(error.contains("real or simulated"), "{error}");
    stream.drain().unwrap();
}

const BREAKS: &str = "TANDEM_TEST_BREAKS_THE_CARD";

/// A process whose card broke cannot use it again, so that another one breaks it: this very test, started once more.
#[test]
#[ignore = "needs an NVIDIA card"]
fn a_real_card_that_traps_is_lost_to_its_process_and_whole_for_others() {
    if std::env::var_os(BREAKS).is_some() {
        let machine = cuda();
        break_in_use(&machine);
        nothing_is_held(&machine);
        println!("held by the process that lost the card, all handles dropped: {:?}", machine.process_bytes(0));
        return;
    }
    let before = cuda().read(0).unwrap().free_bytes;
    let this = "a_real_card_that_traps_is_lost_to_its_process_and_whole_for_others";
    let mut again = Command::new(std::env::current_exe().unwrap());
    let ended = again.args(["--exact", this, "--ignored", "--nocapture"]).env(BREAKS, "1").output().unwrap();
    let said = [ended.stdout, ended.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(ended.status.success() && said.contains("1 passed"), "{said}");
    println!("{said}");

    let machine = cuda();
    let after = machine.read(0).unwrap().free_bytes;
    assert!(after + 32 * MIB > before, "{before} bytes were free, {after} are");
    let device = machine.open(0).unwrap();
    let (memory, stream) = (arena(&device, Role::Data, 32), device.stream(false).unwrap());
    stream.fill(memory.take("block", 64).unwrap().view(), 9).unwrap();
    stream.drain().unwrap();
}
