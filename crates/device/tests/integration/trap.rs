//! A card that faults: every later call returns the error, and everything is released.

use std::process::Command;

use crate::support::{MIB, arena, cuda, simulated};
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

/// Work may be queued before the card has reached the trap; otherwise it fails as lost.
fn queued_or_lost<T>(result: Result<T, DeviceError>, call: &str) {
    if result.is_err() {
        lost(result, call);
    }
}

/// Makes card 0 fault with everything in use on it, and drops everything.
fn fault_in_use(machine: &Machine) {
    let device = machine.open(0).unwrap();
    let memory = arena(&device, Role::Model, 64);
    let (stream, other) = (device.stream(true).unwrap(), device.stream(false).unwrap());
    let (block, mut pinned) = (memory.take("block", MIB).unwrap(), device.pinned(MIB).unwrap());
    let (checks, mark) = (Checks::load(&device).unwrap(), device.event().unwrap());
    let queue = || checks.fill_pattern(&stream, block.view(), 7);
    queue().unwrap();
    let capture = stream.begin_capture().unwrap();
    assert!(stream.trap().is_err(), "a trap cannot be captured");
    queue().unwrap();
    let graph = capture.end().unwrap();
    stream.replay(&graph).unwrap();
    stream.drain().unwrap();

    stream.trap().unwrap();
    queued_or_lost(stream.replay(&graph), "a replay behind the trap");
    let copy = stream.download(block.view(), &mut pinned, 0..MIB);
    let copied = copy.is_ok();
    queued_or_lost(copy, "a copy behind the trap");
    queued_or_lost(stream.record(&mark), "an event behind the trap");
    lost(stream.drain(), "waiting");
    lost(mark.synchronize("an event behind the trap"), "waiting for an event");
    lost(stream.replay(&graph), "a replay");
    lost(queue(), "a launch");
    lost(stream.fill(block.view(), 0), "a fill");
    lost(other.fill(block.view(), 0), "another stream");
    lost(other.drain(), "waiting for another stream");
    if copied {
        lost(pinned.bytes(), "the target of the copy");
    }
    queued_or_lost(device.pinned(64), "pinned memory");
}

fn assert_all_released(machine: &Machine) {
    let counters = machine.counters(0);
    assert_eq!((counters.live_bytes, counters.live_pinned_bytes, machine.is_open(0)), (0, 0, false));
}

#[test]
fn a_simulated_card_that_traps_is_lost_and_leaves_nothing() {
    for seed in 0..20 {
        let machine = simulated(seed);
        fault_in_use(&machine);
        assert_all_released(&machine);
        assert_eq!(machine.sim().unwrap().alive(), Alive::default(), "seed {seed}");
    }
}

#[test]
fn the_other_card_still_works() {
    for seed in 0..20 {
        let machine = crate::support::simulated_pair(tandem_device::sim::Link::Nvlink, seed);
        let (lost_card, working) = (machine.open(0).unwrap(), machine.open(1).unwrap());
        let (stream, other) = (lost_card.stream(false).unwrap(), working.stream(false).unwrap());
        stream.trap().unwrap();
        lost(stream.drain(), "waiting");
        let memory = arena(&working, Role::Data, 32);
        let block = memory.take("block", 64).unwrap();
        let mut pinned = working.pinned(64).unwrap();
        other.fill(block.view(), 9).unwrap();
        other.download(block.view(), &mut pinned, 0..64).unwrap();
        other.drain().unwrap();
        assert_eq!(pinned.bytes().unwrap(), [9; 64], "seed {seed}");
    }
}

#[test]
fn a_trap_on_the_cpu_is_refused() {
    let stream = Machine::cpu().open(0).unwrap().stream(false).unwrap();
    let error = stream.trap().unwrap_err().to_string();
    assert!(error.contains("real or simulated"), "{error}");
    stream.drain().unwrap();
}

const FAULTS: &str = "TANDEM_TEST_FAULTS_THE_CARD";

/// A process cannot use its card again after a fault, so another process causes it: this test, started once more.
#[test]
#[ignore = "needs an NVIDIA card"]
fn a_real_card_that_traps_is_lost_to_its_process_and_works_for_others() {
    if std::env::var_os(FAULTS).is_some() {
        let machine = cuda();
        fault_in_use(&machine);
        assert_all_released(&machine);
        println!("memory of the process that lost the card, all handles dropped: {:?}", machine.process_bytes(0));
        return;
    }
    let before = cuda().read(0).unwrap().free_bytes;
    let this = "trap::a_real_card_that_traps_is_lost_to_its_process_and_works_for_others";
    let mut again = Command::new(std::env::current_exe().unwrap());
    let ended = again.args(["--exact", this, "--ignored", "--nocapture"]).env(FAULTS, "1").output().unwrap();
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
