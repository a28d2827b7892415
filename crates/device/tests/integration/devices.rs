//! The promises of every kind of device: the same test bodies on simulated cards, on the CPU and on a real card.

use crate::support::{MIB, arena, spec};
use tandem_device::kernels::{CHECKSUM_BYTES, Checks, checksum_words, pattern_word, sum_of_parts};
use tandem_device::{
    Arena, ArenaError, DeviceError, DeviceKind, Isolation, IsolationError, Machine, Pinned, RoleSetup, Strength,
};
use tandem_events::Role;

on_every_device!(
    bytes_survive_the_round_trip,
    small_copies_arrive_and_change_nothing_else,
    check_kernels_match_the_host,
    a_byte_past_the_limit_is_refused,
    memory_is_given_back_and_reused,
    isolation_is_set_up_once_and_in_time,
    wrong_arguments_are_refused_before_anything_is_queued,
    split_arenas_keep_the_same_books,
    both_arenas_can_be_touched_in_full,
    timers_of_both_roles_lie_on_one_clock,
);

fn fill(pinned: &mut Pinned, seed: u64) {
    for (i, word) in pinned.bytes_mut().unwrap().chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&pattern_word(seed, i as u64).to_le_bytes());
    }
}

fn bytes_survive_the_round_trip(machine: &Machine) {
    let device = machine.open(0).unwrap();
    let arena = arena(&device, Role::Data, 64);
    let stream = device.stream(false).unwrap();
    let (a, b) = (arena.take("a", 100_000).unwrap(), arena.take("b", 100_000).unwrap());
    let mut up = device.pinned(100_000).unwrap();
    let mut down = device.pinned(100_000).unwrap();
    fill(&mut up, 3);
    let done = device.event().unwrap();
    stream.upload(&up, 0..100_000, a.view()).unwrap();
    stream.copy(a.view(), b.view()).unwrap();
    stream.download(b.view(), &mut down, 0..100_000).unwrap();
    stream.record(&done).unwrap();
    done.synchronize("the test waits for its copy").unwrap();
    assert_eq!(up.bytes().unwrap(), down.bytes().unwrap());
    assert_eq!(a.resident_card().unwrap(), 0);
}

/// Multiples of words or not, few bytes or many: the device chooses how to copy them.
fn small_copies_arrive_and_change_nothing_else(machine: &Machine) {
    let device = machine.open(0).unwrap();
    let arena = arena(&device, Role::Model, 64);
    let stream = device.stream(true).unwrap();
    let all = 200_000;
    let memory = arena.take("numbers", all).unwrap();
    let mut up = device.pinned(all).unwrap();
    fill(&mut up, 11);
    for (start, bytes) in [(0, 4), (8, 60), (4, 4096), (3, 64), (64, 7), (0, 0), (256, 64 << 10), (4, (64 << 10) + 4)] {
        let (mut down, mut around) = (device.pinned(all).unwrap(), device.pinned(all).unwrap());
        down.bytes_mut().unwrap().fill(0xEE);
        stream.fill(memory.view(), 0xEE).unwrap();
        stream.upload_small(&up, start..start + bytes, memory.part(start, bytes)).unwrap();
        stream.download_small(memory.part(start, bytes), &mut down, start..start + bytes).unwrap();
        stream.download(memory.view(), &mut around, 0..all).unwrap();
        stream.drain().unwrap();
        let mut expected = vec![0xEE; all as usize];
        let part = start as usize..(start + bytes) as usize;
        expected[part.clone()].copy_from_slice(&up.bytes().unwrap()[part]);
        assert!(around.bytes().unwrap() == expected, "{bytes} bytes from {start} on the device");
        assert!(down.bytes().unwrap() == expected, "{bytes} bytes from {start} on the host");
    }
}

fn check_kernels_match_the_host(machine: &Machine) {
    let device = machine.open(0).unwrap();
    let arena = arena(&device, Role::Data, 64);
    let stream = device.stream(false).unwrap();
    let checks = Checks::load(&device).unwrap();
    let words_in = 77_777;
    let data = arena.take("data", 4 * words_in).unwrap();
    let (sums, parts) = (arena.take("sums", 16).unwrap(), arena.take("parts", CHECKSUM_BYTES).unwrap());
    stream.fill(sums.view(), 0).unwrap();
    checks.fill_pattern(&stream, data.view(), 5).unwrap();
    checks.count_wrong(&stream, data.view(), sums.part(0, 8), 5).unwrap();
    checks.count_wrong(&stream, data.view(), sums.part(8, 8), 6).unwrap();
    checks.checksum(&stream, data.view(), parts.view()).unwrap();
    checks.delay(&stream, 10_000).unwrap();
    let mut out = device.pinned(16 + CHECKSUM_BYTES).unwrap();
    stream.download(sums.view(), &mut out, 0..16).unwrap();
    stream.download(parts.view(), &mut out, 16..16 + CHECKSUM_BYTES).unwrap();
    stream.drain().unwrap();
    let (counts, parts) = out.bytes().unwrap().split_at(16);
    let got: Vec<u64> = counts.chunks_exact(8).map(|n| u64::from_le_bytes(n.try_into().unwrap())).collect();
    let pattern: Vec<u32> = (0..words_in).map(|i| pattern_word(5, i)).collect();
    let differ = (0..words_in).filter(|&i| pattern_word(5, i) != pattern_word(6, i)).count() as u64;
    assert_eq!((got, sum_of_parts(parts)), (vec![0, differ], checksum_words(&pattern)));
}

fn a_byte_past_the_limit_is_refused(machine: &Machine) {
    let device = machine.open(0).unwrap();
    // Never split: the driver's pool is asked too.
    let data = Arena::reserve_as(&device, spec(Role::Data, 64), false).unwrap();
    let model = arena(&device, Role::Model, 32);
    let held = data.take("slots", 40 * MIB).unwrap();
    let rest = data.take("upload", 24 * MIB).unwrap();
    let refused = data.take("one byte more", 1);
    let Err(DeviceError::Arena(ArenaError::Full { role, owner, asked, limit, in_use, largest })) = refused else {
        panic!("a byte past the limit was not refused: {refused:?}");
    };
    assert_eq!((role, owner, asked, limit, in_use), (Role::Data, "one byte more", 256, 128 * MIB, 128 * MIB));
    assert_eq!(largest, [("driver", 64 * MIB), ("slots", 40 * MIB), ("upload", 24 * MIB)]);
    for bytes in [65 * MIB, u64::MAX - 100, u64::MAX] {
        let never = data.take("too large", bytes);
        assert!(matches!(never, Err(DeviceError::Arena(ArenaError::NeverFits { .. }))), "{bytes}: {never:?}");
    }
    if machine.kind() == DeviceKind::Cpu {
        assert_eq!(data.strength(), Strength::Planned);
    } else {
        assert_eq!(data.strength(), Strength::DriverPoolCap);
        assert_eq!(data.driver_refuses_more().unwrap(), Some(true), "the driver itself gave a byte more");
    }
    // The other role is not affected.
    let stream = device.stream(true).unwrap();
    let block = model.take("work", 32 * MIB).unwrap();
    stream.fill(block.view(), 1).unwrap();
    stream.drain().unwrap();
    drop((held, rest));
    data.take("slots", 64 * MIB).expect("freed memory can be allocated again");
}

fn memory_is_given_back_and_reused(machine: &Machine) {
    let before = machine.counters(0);
    let device = machine.open(0).unwrap();
    // Never split: that mode allocates every block from the driver.
    let arena = Arena::reserve_as(&device, spec(Role::Model, 64), false).unwrap();
    let stream = device.stream(false).unwrap();
    let mut pinned = device.pinned(1000).unwrap();
    let warm = machine.counters(0);
    assert!(warm.allocations > before.allocations && warm.pinned_allocations > before.pinned_allocations);
    for _ in 0..50 {
        let block = arena.take("block", 10 * MIB).unwrap();
        stream.upload(&pinned, 0..1000, block.part(0, 1000)).unwrap();
        stream.download(block.part(0, 1000), &mut pinned, 0..1000).unwrap();
    }
    stream.drain().unwrap();
    let after = machine.counters(0);
    assert_eq!(
        (after.allocations, after.pinned_allocations, after.live_bytes),
        (warm.allocations, warm.pinned_allocations, warm.live_bytes),
        "work after warm-up allocated memory from the driver"
    );
    assert_eq!(arena.memory().peak_bytes, 74 * MIB);
    drop((pinned, stream, arena, device));
    let end = machine.counters(0);
    assert_eq!((end.live_bytes, end.live_pinned_bytes), (before.live_bytes, before.live_pinned_bytes));
    if let Some(sim) = machine.sim() {
        assert_eq!(sim.alive(), Default::default());
    }
    assert!(!machine.is_open(0));
}

fn isolation_is_set_up_once_and_in_time(machine: &Machine) {
    let set_up = || set_up_roles(machine);
    let device = machine.open(0).unwrap();
    let late = set_up().expect_err("set up on a card that is open");
    assert!(matches!(late, DeviceError::Isolation(IsolationError::TooLate { card: 0 })), "{late}");
    drop(device);
    let first = set_up().expect("the card is not open any more");
    let twice = set_up().expect_err("set up twice");
    assert!(matches!(twice, DeviceError::Isolation(IsolationError::AlreadySetUp)), "{twice}");
    let [data, model] = first.memory_stats();
    assert_eq!((data.limit_bytes, model.limit_bytes), (128 * MIB, 160 * MIB));
    let place = if machine.kind() == DeviceKind::Cpu { "CPU" } else { "GPU 0" };
    assert_eq!(data.to_string(), format!("Data {place}: 64/128MB (50.0%)"));
    drop(first);
    set_up().expect("dropping the first made room for another");
}

fn set_up_roles(machine: &Machine) -> Result<Isolation, DeviceError> {
    let role = |role, arena_mib| RoleSetup { card: 0, arena: spec(role, arena_mib) };
    Isolation::set_up(machine, role(Role::Data, 64), role(Role::Model, 96))
}

fn wrong_arguments_are_refused_before_anything_is_queued(machine: &Machine) {
    let device = machine.open(0).unwrap();
    let arena = arena(&device, Role::Data, 32);
    let stream = device.stream(false).unwrap();
    let checks = Checks::load(&device).unwrap();
    let block = arena.take("block", 512).unwrap();
    let cases = [
        ("overlap", checks.count_wrong(&stream, block.part(0, 32), block.part(8, 8), 0)),
        ("whole, aligned elements", checks.fill_pattern(&stream, block.part(2, 8), 0)),
        ("whole, aligned elements", checks.checksum(&stream, block.part(0, 32), block.part(36, CHECKSUM_BYTES))),
    ];
    for (problem, result) in cases {
        let error = result.expect_err(problem).to_string();
        assert!(error.contains(problem), "{error}");
    }
}

fn split_arenas_keep_the_same_books(machine: &Machine) {
    let device = machine.open(0).unwrap();
    let split = Arena::reserve_as(&device, spec(Role::Data, 64), true).unwrap();
    let before = machine.counters(0).live_bytes;
    let a = split.take("a", 1000).unwrap();
    assert_eq!(machine.counters(0).live_bytes, before + 1000, "a split block is a separate driver allocation");
    let b = split.take("b", 60 * MIB).unwrap();
    assert!(split.take("c", 4 * MIB).is_err(), "split mode must enforce the limit");
    assert_eq!(split.memory().used_bytes, 124 * MIB + 1024);
    drop((a, b));
    assert_eq!(machine.counters(0).live_bytes, before);
    assert_eq!(split.memory().used_bytes, 64 * MIB);
}

fn both_arenas_can_be_touched_in_full(machine: &Machine) {
    let both = set_up_roles(machine).expect("both roles fit");
    for role in Role::BOTH {
        let place = both.partition(role);
        let checks = Checks::load(&place.device).unwrap();
        let stream = place.device.stream(false).unwrap();
        let wrong = place.arena.take("count", 8).unwrap();
        let all = place.arena.take("everything", place.arena.spec().arena_bytes - 256).unwrap();
        let mut out = place.device.pinned(8).unwrap();
        stream.fill(wrong.view(), 0).unwrap();
        checks.fill_pattern(&stream, all.view(), 1).unwrap();
        checks.count_wrong(&stream, all.view(), wrong.view(), 1).unwrap();
        stream.download(wrong.view(), &mut out, 0..8).unwrap();
        stream.drain().unwrap();
        assert_eq!(out.bytes().unwrap(), [0; 8], "{role}: memory does not contain what was written");
    }
}

fn timers_of_both_roles_lie_on_one_clock(machine: &Machine) {
    // A real card's clock is accurate to some microseconds; its first use is slower.
    const OFF_NS: u64 = 200_000;
    let before_ns = machine.now_ns();
    let [first, second] = [(); 2].map(|()| machine.open(0).unwrap());
    let arena = arena(&first, Role::Data, 32);
    let block = arena.take("filled", 16 * MIB).unwrap();
    let [mine, theirs] = [first.stream(false).unwrap(), second.stream(true).unwrap()];
    let [began, ended, after] = [first.timer().unwrap(), first.timer().unwrap(), second.timer().unwrap()];
    mine.record(&began).unwrap();
    mine.fill(block.view(), 1).unwrap();
    mine.record(&ended).unwrap();
    theirs.wait(&ended, "the test waits for the other role").unwrap();
    theirs.record(&after).unwrap();
    theirs.drain().unwrap();
    let [began_ns, ended_ns, after_ns] = [&began, &ended, &after].map(|timer| timer.reached_at_ns().unwrap());
    let now_ns = machine.now_ns();
    assert!(
        before_ns <= began_ns + OFF_NS && after_ns <= now_ns + OFF_NS,
        "{before_ns} {began_ns} {after_ns} {now_ns}"
    );
    assert!(began_ns <= ended_ns && ended_ns <= after_ns + 2_000, "{began_ns} {ended_ns} {after_ns}");
    assert!((ended_ns - began_ns).abs_diff(ended.ns_since(&began).unwrap()) < 2_000);
}
