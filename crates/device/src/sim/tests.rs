//! The simulator does everything a real card may do: run work late, out of order, and on uninitialised memory.

use tandem_events::Role;

use super::*;
use crate::arena::{Arena, ArenaError, ArenaSpec};
use crate::device::Device;
use crate::gemm::Gemm;
use crate::kernel::DType;
use crate::machine::Machine;
use crate::pinned::Pinned;
use crate::stream::Stream;

/// A card with an arena and two streams.
struct Bench {
    machine: Machine,
    device: Device,
    arena: Arena,
    writer: Stream,
    reader: Stream,
}

fn bench(spec: SimSpec) -> Bench {
    let machine = Machine::simulated(spec);
    let device = machine.open(0).unwrap();
    let arena_bytes = 64 * MIB;
    let spec = ArenaSpec::new(Role::Data, arena_bytes);
    let arena = Arena::reserve_as(&device, spec, false).unwrap();
    let (writer, reader) = (device.stream(false).unwrap(), device.stream(false).unwrap());
    Bench { machine, device, arena, writer, reader }
}

fn one_card(seed: u64) -> SimSpec {
    SimSpec::new(1, 4 << 30).with_seed(seed)
}

/// A seed with which no work runs before it is waited for.
fn lazy_seed() -> u64 {
    (0..100).find(|seed| Queues::new(*seed).eagerness == 0).unwrap()
}

/// One stream writes 7s, another reads; returns the value read.
fn write_then_read(seed: u64, wait: bool) -> u8 {
    let bench = bench(one_card(seed));
    let block = bench.arena.take("block", 64).unwrap();
    let written = bench.device.event().unwrap();
    bench.writer.fill(block.view(), 7).unwrap();
    bench.writer.record(&written).unwrap();
    if wait {
        bench.reader.wait(&written, "the reader waits for the writer").unwrap();
    }
    let mut out = bench.device.pinned(64).unwrap();
    bench.reader.download(block.view(), &mut out, 0..64).unwrap();
    bench.reader.drain().unwrap();
    out.bytes().unwrap()[0]
}

#[test]
fn an_event_orders_two_streams_under_every_seed() {
    for seed in 0..200 {
        assert_eq!(write_then_read(seed, true), 7, "seed {seed}");
    }
}

#[test]
fn without_the_event_some_seeds_read_poison_and_some_do_not() {
    let read: Vec<u8> = (0..200).map(|seed| write_then_read(seed, false)).collect();
    assert!(read.contains(&crate::host_memory::POISON) && read.contains(&7));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let bench = bench(one_card(seed));
        let block = bench.arena.take("block", 1 << 20).unwrap();
        (0..40).for_each(|i| bench.writer.fill(block.view(), i).unwrap());
        bench.writer.drain().unwrap();
        bench.machine.now_ns()
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6), "the clock has no jitter");
}

#[test]
fn a_thread_that_waits_for_a_card_does_not_delay_others() {
    let bench = bench(one_card(3));
    let block = bench.arena.take("block", 48 * MIB).unwrap();
    let mine = bench.device.timer().unwrap();
    let long_ns = std::thread::scope(|scope| {
        let waits = || {
            bench.writer.fill(block.view(), 1).unwrap();
            bench.writer.drain().unwrap();
            bench.machine.now_ns()
        };
        scope.spawn(waits).join().unwrap()
    });
    bench.reader.record(&mine).unwrap();
    bench.reader.drain().unwrap();
    let reached_ns = mine.reached_at_ns().unwrap();
    assert!(reached_ns < long_ns / 2, "{reached_ns} of {long_ns} ns: this thread made no call before");
}

#[test]
fn freed_memory_is_poisoned() {
    let bench = bench(one_card(0));
    let first = bench.arena.take("first", 64).unwrap();
    bench.writer.fill(first.view(), 7).unwrap();
    bench.writer.drain().unwrap();
    drop(first);
    let second = bench.arena.take("second", 64).unwrap();
    let mut out = bench.device.pinned(64).unwrap();
    bench.writer.download(second.view(), &mut out, 0..64).unwrap();
    bench.writer.drain().unwrap();
    assert_eq!(out.bytes().unwrap(), [crate::host_memory::POISON; 64]);
}

#[test]
fn the_host_cannot_access_bytes_it_did_not_wait_for() {
    let bench = bench(one_card(lazy_seed()));
    let block = bench.arena.take("block", 64).unwrap();
    let mut out = bench.device.pinned(64).unwrap();
    bench.writer.download(block.view(), &mut out, 0..64).unwrap();
    assert!(matches!(out.bytes(), Err(DeviceError::StillInUse { .. })));
    bench.writer.drain().unwrap();
    out.bytes().expect("the copy was waited for");
    bench.writer.upload(&out, 0..64, block.view()).unwrap();
    out.bytes().expect("the host may read while a copy reads");
    assert!(matches!(out.bytes_mut(), Err(DeviceError::StillInUse { .. })));
}

#[test]
fn split_memory_is_written_by_several_threads_and_rejoined() {
    let bench = bench(one_card(lazy_seed()));
    let block = bench.arena.take("block", 64).unwrap();
    let mut parts = bench.device.pinned(64).unwrap().split(&[16, 16, 40]).unwrap();
    assert_eq!(parts.iter_mut().map(|part| part.bytes_mut().len()).collect::<Vec<_>>(), [16, 0, 24, 24]);
    std::thread::scope(|threads| {
        for (number, part) in parts.iter_mut().enumerate() {
            threads.spawn(move || part.bytes_mut().fill(number as u8));
        }
    });
    let whole = Pinned::rejoin(parts);
    let expected = [vec![0; 16], vec![2; 24], vec![3; 24]].concat();
    assert_eq!(whole.bytes().unwrap(), expected);
    bench.writer.upload(&whole, 0..64, block.view()).unwrap();
    assert!(matches!(whole.split(&[]).err(), Some(DeviceError::StillInUse { .. })));
}

#[test]
#[should_panic(expected = "not all of the memory")]
fn missing_parts_panic() {
    let bench = bench(one_card(1));
    let mut parts = bench.device.pinned(64).unwrap().split(&[16]).unwrap();
    parts.pop();
    Pinned::rejoin(parts);
}

#[test]
fn the_clock_follows_the_link_speed_and_nothing_sleeps() {
    let bench = bench(one_card(3));
    let block = bench.arena.take("block", 48 * MIB).unwrap();
    let pinned = bench.device.pinned(48 * MIB).unwrap();
    let (start, end) = (bench.device.timer().unwrap(), bench.device.timer().unwrap());
    bench.writer.record(&start).unwrap();
    bench.writer.upload(&pinned, 0..48 * MIB, block.view()).unwrap();
    bench.writer.record(&end).unwrap();
    bench.writer.drain().unwrap();
    // 48 MiB at 24 GB/s take 2.1 ms.
    let ns = end.ns_since(&start).unwrap();
    assert!((1_950_000..2_250_000).contains(&ns), "{ns} ns");
    assert!(bench.machine.now_ns() >= ns);
    let [began_ns, ended_ns] = [start, end].map(|timer| timer.reached_at_ns().unwrap());
    assert_eq!(ended_ns - began_ns, ns);
    assert!(ended_ns <= bench.machine.now_ns());
}

#[test]
fn a_card_has_no_more_memory_than_its_spec() {
    let machine = Machine::simulated("1x1GiB,held=300MiB".parse().unwrap());
    let device = machine.open(0).unwrap();
    let free = device.free_bytes().unwrap();
    assert_eq!(free, (1024 - 300 - 522) * MIB);
    let spec = |arena_bytes| ArenaSpec::new(Role::Data, arena_bytes);
    let refused = Arena::reserve_as(&device, spec(free + 1), false);
    assert!(matches!(refused, Err(DeviceError::OutOfMemory { .. })));
    let arena = Arena::reserve_as(&device, spec(free), false).unwrap();
    assert_eq!(device.free_bytes().unwrap(), 0);
    assert_eq!(device.process_bytes().unwrap(), Some((1024 - 300) * MIB));
    drop(arena);
    assert_eq!(machine.read(0).unwrap().processes[0].bytes, 300 * MIB);
}

#[test]
fn every_call_on_a_lost_card_fails_and_everything_is_released() {
    let script = |machine: &Machine| -> Result<SimCounts, DeviceError> {
        let device = machine.open(0)?;
        let arena_bytes = 4 * MIB;
        let spec = ArenaSpec::new(Role::Data, arena_bytes);
        let arena = Arena::reserve_as(&device, spec, false)?;
        let stream = device.stream(false)?;
        let block = arena.take("block", 64)?;
        let mut pinned = device.pinned(64)?;
        stream.fill(block.view(), 1)?;
        stream.download(block.view(), &mut pinned, 0..64)?;
        stream.drain()?;
        // Counted before the drops: a card may be lost during them.
        pinned.bytes().map(|_| machine.sim().unwrap().counts())
    };
    let clean = Machine::simulated(one_card(0));
    let SimCounts { calls, allocations, .. } = script(&clean).unwrap();
    assert!(calls > 10 && allocations == 2);
    for call in 0..calls {
        let machine = Machine::simulated(one_card(0).with_fault(SimFault::LoseCard(call)));
        let error = script(&machine).expect_err("the card is lost");
        assert!(matches!(error, DeviceError::Lost { card: 0, .. }), "call {call}: {error}");
        assert_eq!(machine.sim().unwrap().alive(), Alive::default(), "call {call}");
    }
    for allocation in 0..allocations {
        let machine = Machine::simulated(one_card(0).with_fault(SimFault::RefuseAllocation(allocation)));
        let error = script(&machine).expect_err("an allocation was refused");
        assert!(matches!(error, DeviceError::OutOfMemory { .. } | DeviceError::OutOfPinned { .. }), "{error}");
        assert_eq!(machine.sim().unwrap().alive(), Alive::default());
    }
}

/// As in CUDA, an event can be waited for on any card, but recorded only on its own.
#[test]
fn an_event_is_recorded_on_its_own_card_only() {
    let machine = Machine::simulated(SimSpec::new(2, 4 << 30));
    let (here, there) = (machine.open(0).unwrap(), machine.open(1).unwrap());
    let (stream, event) = (here.stream(false).unwrap(), there.event().unwrap());
    assert!(matches!(stream.record(&event), Err(DeviceError::Failed { during: "recording an event", .. })));
    stream.wait(&event, "a wait across cards").expect("a stream may wait for another card's event");
}

#[test]
fn two_streams_cannot_use_the_same_host_bytes_at_once() {
    let bench = bench(one_card(lazy_seed()));
    let block = bench.arena.take("block", 64).unwrap();
    let pinned = bench.device.pinned(64).unwrap();
    bench.writer.upload(&pinned, 0..64, block.view()).unwrap();
    bench.writer.upload(&pinned, 0..64, block.view()).expect("the same stream may use them again");
    let second = bench.reader.upload(&pinned, 0..64, block.view());
    assert!(matches!(second, Err(DeviceError::StillInUse { .. })), "{second:?}");
    bench.writer.drain().unwrap();
    bench.reader.upload(&pinned, 0..64, block.view()).expect("the first use is over");
}

#[test]
fn host_bytes_outlive_the_copies_queued_from_them() {
    let bench = bench(one_card(lazy_seed()));
    let block = bench.arena.take("block", 64).unwrap();
    let mut pinned = bench.device.pinned(64).unwrap();
    pinned.bytes_mut().unwrap().fill(9);
    bench.writer.upload(&pinned, 0..64, block.view()).unwrap();
    let copies = bench.machine.sim().unwrap().counts().copies;
    drop(pinned);
    assert_eq!(bench.machine.sim().unwrap().counts().copies, copies + 1, "the memory was freed before the copy ran");
}

#[test]
fn a_split_block_that_the_driver_refuses_leaves_the_arena_as_it_was() {
    let machine = Machine::simulated(one_card(0).with_fault(SimFault::RefuseAllocation(0)));
    let device = machine.open(0).unwrap();
    let arena_bytes = 64 * MIB;
    let spec = ArenaSpec::new(Role::Data, arena_bytes);
    let arena = Arena::reserve_as(&device, spec, true).unwrap();
    assert!(matches!(arena.take("refused", 1024), Err(DeviceError::OutOfMemory { .. })));
    arena.take("all of it", arena_bytes).expect("the refused block uses no memory");
}

#[test]
fn peer_access_includes_split_blocks_that_were_allocated_before() {
    let machine = Machine::simulated(SimSpec::new(2, 4 << 30).with_link(Link::Nvlink));
    let (here, there) = (machine.open(0).unwrap(), machine.open(1).unwrap());
    let arena_bytes = 64 * MIB;
    let peer_bytes = 32 * MIB;
    let spec = |role| ArenaSpec { peer_bytes, ..ArenaSpec::new(role, arena_bytes) };
    let from = Arena::reserve_as(&here, spec(Role::Data), true).unwrap();
    let to = Arena::reserve_as(&there, spec(Role::Model), true).unwrap();
    let (a, b) = (from.take_for_peer("a", 64).unwrap(), to.take_for_peer("b", 64).unwrap());
    from.allow_peer(&there).unwrap();
    to.allow_peer(&here).unwrap();
    here.stream(false)
        .unwrap()
        .copy_peer(a.view(), b.view(), PeerCall::Unified)
        .expect("peer access is enabled on both sides");
}

#[test]
fn peer_access_opens_the_slots_and_no_other_memory() {
    for split in [false, true] {
        let machine = Machine::simulated(SimSpec::new(2, 4 << 30).with_link(Link::Nvlink));
        let (here, there) = (machine.open(0).unwrap(), machine.open(1).unwrap());
        let (arena_bytes, peer_bytes) = (64 * MIB, 32 * MIB);
        let spec = |role| ArenaSpec { peer_bytes, capped: true, ..ArenaSpec::new(role, arena_bytes) };
        let from = Arena::reserve_as(&here, spec(Role::Data), split).unwrap();
        let to = Arena::reserve_as(&there, spec(Role::Model), split).unwrap();
        from.allow_peer(&there).unwrap();
        to.allow_peer(&here).unwrap();
        let (slot, weights) = (to.take_for_peer("slot", 64).unwrap(), to.take("weights", 64).unwrap());
        let (batch, stream) = (from.take_for_peer("batch", 64).unwrap(), here.stream(false).unwrap());
        stream.copy_peer(batch.view(), slot.view(), PeerCall::Unified).unwrap();
        let refused = stream.copy_peer(batch.view(), weights.view(), PeerCall::Unified).unwrap_err();
        assert!(refused.to_string().contains("peer"), "{refused}");
        // The parts do not borrow from each other.
        assert!(to.take_for_peer("too much", 33 * MIB).is_err() && to.take("too much", 33 * MIB).is_err());
        assert_eq!(to.memory().used_bytes, 512);
    }
}

#[test]
fn impossible_arena_specs_are_refused_by_name() {
    let device = Machine::simulated(one_card(0)).open(0).unwrap();
    let spec = |limit_bytes, driver_bytes, arena_bytes| ArenaSpec {
        role: Role::Data,
        limit_bytes,
        driver_bytes,
        arena_bytes,
        peer_bytes: 0,
        capped: true,
    };
    let over = Arena::reserve_as(&device, spec(64 * MIB, 1, 64 * MIB), false).err();
    assert!(matches!(over, Some(DeviceError::Arena(ArenaError::NeverFits { .. }))), "{over:?}");
    let odd = Arena::reserve_as(&device, spec(64 * MIB, 0, 33 * MIB), false).err();
    assert!(matches!(odd, Some(DeviceError::Arena(ArenaError::NotWholeGranules { .. }))), "{odd:?}");
    let huge = Arena::reserve_as(&device, spec(u64::MAX, u64::MAX, 32 * MIB), false).err();
    assert!(matches!(huge, Some(DeviceError::Arena(ArenaError::NeverFits { .. }))), "{huge:?}");
}

#[test]
fn a_run_restricted_to_some_cards_cannot_open_others() {
    let machine = Machine::simulated(SimSpec::new(4, 4 << 30));
    machine.restrict(&[2, 3]);
    machine.restrict(&[0, 2, 3]);
    assert!(machine.open(2).is_ok());
    let refused = machine.open(0).unwrap_err();
    assert!(matches!(refused, DeviceError::OutsideRun { index: 0, .. }), "{refused}");
    assert_eq!(machine.counters(0).contexts, 0);
    assert!(matches!(machine.open(4), Err(DeviceError::NoSuchCard { index: 4, found: 4 })));
}

/// One stream fills both matrices with 1 and multiplies them, another reads; returns the value read.
fn multiply_then_read(seed: u64, wait: bool) -> f32 {
    let bench = bench(one_card(seed));
    let [a, b, c] = ["a", "b", "c"].map(|name| bench.arena.take(name, 4 * 64).unwrap());
    let mut up = bench.device.pinned(4 * 64).unwrap();
    up.bytes_mut().unwrap().copy_from_slice(bytemuck::cast_slice(&[1f32; 64]));
    let multiplied = bench.device.event().unwrap();
    [&a, &b].into_iter().for_each(|block| bench.writer.upload(&up, 0..256, block.view()).unwrap());
    let gemm = Gemm::dense(DType::F32, [8, 8, 8]);
    bench.writer.gemm(&gemm, a.view(), b.view(), c.view(), None, None).unwrap();
    bench.writer.record(&multiplied).unwrap();
    if wait {
        bench.reader.wait(&multiplied, "the reader waits for the GEMM").unwrap();
    }
    let mut out = bench.device.pinned(256).unwrap();
    bench.reader.download(c.view(), &mut out, 0..256).unwrap();
    bench.reader.drain().unwrap();
    bytemuck::cast_slice::<u8, f32>(out.bytes().unwrap())[0]
}

#[test]
fn a_gemm_is_deferred_and_its_result_is_poison_until_it_runs() {
    assert!((0..50).all(|seed| multiply_then_read(seed, true) == 8.0));
    let read: Vec<f32> = (0..200).map(|seed| multiply_then_read(seed, false)).collect();
    assert!(read.iter().any(|x| x.is_nan()) && read.contains(&8.0));
}

#[test]
fn a_gemm_takes_the_time_of_its_arithmetic() {
    let took_ns = |k: u32, dtype: DType| {
        let bench = bench(one_card(3));
        let [a, b, c] = ["a", "b", "c"].map(|name| bench.arena.take(name, 8 << 20).unwrap());
        bench.writer.gemm(&Gemm::dense(dtype, [512, 512, k]), a.view(), b.view(), c.view(), None, None).unwrap();
        bench.writer.drain().unwrap();
        bench.machine.now_ns()
    };
    let (short, long) = (took_ns(128, DType::F32), took_ns(1024, DType::F32));
    assert!(long > short + 15_000, "{short} {long}: 0.5 GFLOP at 20 TFLOP/s are 27 µs");
    assert!(took_ns(1024, DType::F64) > 10 * long, "f64 is slow on cards");
}

/// Two open cards with an arena and a stream each.
struct Pair {
    machine: Machine,
    devices: [Device; 2],
    arenas: [Arena; 2],
    streams: [Stream; 2],
}

const PAIR_ARENA: u64 = 256 * MIB;

fn pair_arena(device: &Device, role: Role) -> Arena {
    let spec = ArenaSpec { peer_bytes: PAIR_ARENA, capped: true, ..ArenaSpec::new(role, PAIR_ARENA) };
    Arena::reserve_as(device, spec, false).unwrap()
}

fn pair(spec: SimSpec) -> Pair {
    let machine = Machine::simulated(spec);
    let devices = [0, 1].map(|card| machine.open(card).unwrap());
    let arenas = [pair_arena(&devices[0], Role::Data), pair_arena(&devices[1], Role::Model)];
    let streams = [0, 1].map(|card: usize| devices[card].stream(false).unwrap());
    Pair { machine, devices, arenas, streams }
}

#[track_caller]
fn waits_for_card_0<T: std::fmt::Debug>(result: Result<T, DeviceError>) {
    assert!(matches!(result, Err(DeviceError::Lost { card: 0, .. })), "{result:?}");
}

#[test]
fn work_that_waits_for_a_lost_card_never_ends_and_neither_does_anything_behind_it() {
    let pair = pair(SimSpec::new(2, 4 << 30).with_seed(lazy_seed()));
    let [lost, alive] = &pair.devices;
    let (never, behind, later) = (lost.event().unwrap(), alive.event().unwrap(), alive.event().unwrap());
    pair.streams[0].trap().unwrap();
    pair.streams[0].record(&never).unwrap();
    let block = pair.arenas[1].take_for_peer("block", 64).unwrap();
    let stuck = alive.stream(false).unwrap();
    let mut out = alive.pinned(64).unwrap();
    stuck.wait(&never, "a wait for a card that is lost").unwrap();
    stuck.download(block.view(), &mut out, 0..64).unwrap();
    stuck.record(&behind).unwrap();
    waits_for_card_0(behind.synchronize("a wait that fails"));
    assert!(pair.machine.now_ns() >= clock::LOSS_GRACE_NS, "the host waits for a while first");
    // A released reservation ends nothing, on a card that waits for nothing.
    drop(pair_arena(alive, Role::Model));
    stuck.fill(block.view(), 1).unwrap();
    stuck.record(&later).unwrap();
    for event in [&behind, &later] {
        assert!(!event.reached().unwrap());
        waits_for_card_0(event.synchronize("a wait that fails"));
    }
    assert!(matches!(out.bytes(), Err(DeviceError::StillInUse { .. })));
    // Work that does not depend on the lost card goes on.
    pair.streams[1].fill(block.view(), 2).unwrap();
    pair.streams[1].drain().unwrap();
    let machine = pair.machine.clone();
    drop((never, behind, later, block, stuck, out, pair));
    assert_eq!(machine.sim().unwrap().alive(), Alive::default(), "teardown does not wait for it");
}

/// Copies to a card that is lost before or after the copy is queued; whether the copy ends.
fn copy_to_lost_card(seed: u64, is_queued_before: bool) -> bool {
    let pair = pair(SimSpec::new(2, 4 << 30).with_link(Link::Nvlink).with_seed(seed));
    let [from, to] = [1, 0].map(|card: usize| pair.arenas[card].take_for_peer("block", 64).unwrap());
    pair.arenas[0].allow_peer(&pair.devices[1]).unwrap();
    pair.arenas[1].allow_peer(&pair.devices[0]).unwrap();
    let copy = || pair.streams[1].copy_peer(from.view(), to.view(), PeerCall::Unified).unwrap();
    if is_queued_before {
        copy();
    }
    pair.streams[0].trap().unwrap();
    waits_for_card_0(pair.streams[0].drain());
    if !is_queued_before {
        copy();
    }
    let copied = pair.streams[1].drain();
    copied.map_err(|error| assert!(matches!(error, DeviceError::Lost { card: 0, .. }), "{error}")).is_ok()
}

#[test]
fn a_copy_to_a_lost_card_never_ends() {
    assert!((0..20).all(|seed| !copy_to_lost_card(seed, false)));
    assert!((0..20).any(|seed| !copy_to_lost_card(seed, true)), "it ran before the card was lost in every order");
}

/// 100 ppm and some seconds between the clocks of two cards, as `skew=100` sets them.
#[test]
fn clocks_of_two_cards_differ_and_their_times_agree_on_the_hosts_clock() {
    let pair = pair(SimSpec::new(2, 4 << 30).with_skew(100).with_seed(3));
    let clocks = [0, 1].map(|card| SimClock::new(card, 100));
    assert!(clocks[1].shows_ns(0) - clocks[0].shows_ns(0) >= 5_000_000_000);
    let rate = |clock: SimClock| clock.shows_ns(1_000_000_000) - clock.shows_ns(0);
    assert_eq!(clocks.map(rate), [1_000_100_000, 999_900_000]);
    // One card works, then the other.
    let timers = [0, 1].map(|card: usize| [(); 2].map(|()| pair.devices[card].timer().unwrap()));
    for card in [0, 1] {
        let block = pair.arenas[card].take_for_peer("block", 48 * MIB).unwrap();
        let stream = &pair.streams[card];
        if card == 1 {
            stream.wait(&timers[0][1], "the second card waits for the first").unwrap();
        }
        stream.record(&timers[card][0]).unwrap();
        (0..20).for_each(|_| stream.fill(block.view(), 1).unwrap());
        stream.record(&timers[card][1]).unwrap();
        stream.drain().unwrap();
    }
    let spans = [0, 1].map(|card: usize| timers[card][1].span_since(&timers[card][0]).unwrap());
    // 20 × 48 MiB at 900 GB/s: 1.2 ms, of which 100 ppm are 120 ns.
    assert!(spans.iter().all(|span| (1_000_000..1_400_000).contains(&span.ns)), "{spans:?}");
    let first_ended_ns = spans[0].began_ns + spans[0].ns;
    assert!(spans[1].began_ns + 2_000 >= first_ended_ns, "{spans:?}");
    assert!(spans[1].began_ns + spans[1].ns <= pair.machine.now_ns() + 2_000, "{spans:?}");
    let across = timers[1][0].ns_since(&timers[0][0]);
    assert!(matches!(across, Err(DeviceError::Failed { during: "reading a timer", .. })), "{across:?}");
}

#[test]
fn peer_access_is_independent_of_the_link_and_has_its_bandwidth() {
    let gb_per_s = |spec: &str| {
        let pair = pair(spec.parse().unwrap());
        if !pair.machine.can_access_peer(0, 1).unwrap() {
            assert!(pair.arenas[0].allow_peer(&pair.devices[1]).is_err());
            return None;
        }
        pair.arenas[0].allow_peer(&pair.devices[1]).unwrap();
        pair.arenas[1].allow_peer(&pair.devices[0]).unwrap();
        let [from, to] = [0, 1].map(|card: usize| pair.arenas[card].take_for_peer("block", 200 * MIB).unwrap());
        let [began, ended] = [(); 2].map(|()| pair.devices[0].timer().unwrap());
        pair.streams[0].record(&began).unwrap();
        pair.streams[0].copy_peer(from.view(), to.view(), PeerCall::Unified).unwrap();
        pair.streams[0].record(&ended).unwrap();
        pair.streams[0].drain().unwrap();
        Some(((200 * MIB) as f64 / ended.ns_since(&began).unwrap() as f64).round() as u64)
    };
    let check = |spec: &str, expected: std::ops::RangeInclusive<u64>| {
        let found = gb_per_s(spec);
        assert!(found.is_some_and(|gb_per_s| expected.contains(&gb_per_s)), "{spec}: {found:?}");
    };
    check("2x4GiB,pcie3,peers", 11..=13);
    check("2x4GiB,pcie4,peers", 22..=26);
    check("2x4GiB,pcie5,peers", 47..=53);
    check("2x4GiB,nvlink", 185..=215);
    assert_eq!(["2x4GiB,pcie4", "2x4GiB,nvlink,no-peers"].map(gb_per_s), [None, None]);
}

#[test]
fn peer_access_takes_memory_on_both_cards() {
    let pair = pair(SimSpec::new(2, 4 << 30).with_link(Link::Nvlink));
    let held = || [0, 1].map(|card: usize| pair.devices[card].process_bytes().unwrap().unwrap());
    let before = held();
    pair.arenas[0].allow_peer(&pair.devices[1]).unwrap();
    assert_eq!(held(), before.map(|bytes| bytes + DriverCost::SIMULATED_PEER_BYTES));
    pair.arenas[1].allow_peer(&pair.devices[0]).unwrap();
    assert_eq!(held(), before.map(|bytes| bytes + DriverCost::SIMULATED_PEER_BYTES), "once for each card");
}

#[test]
fn a_desktop_changes_the_free_memory_and_not_that_of_the_process() {
    let bench = bench(one_card(0).with_desktop(1 << 30));
    let block = bench.arena.take_for_peer("block", 64).unwrap();
    let own = bench.device.process_bytes().unwrap();
    let mut free = std::collections::BTreeSet::new();
    for _ in 0..200 {
        bench.writer.fill(block.view(), 1).unwrap();
        free.insert(bench.device.free_bytes().unwrap());
        assert_eq!(bench.device.process_bytes().unwrap(), own);
    }
    assert!(free.len() > 5, "{free:?}");
    assert!(free.last().unwrap() - free.first().unwrap() <= 1 << 30);
}
