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
    let spec = ArenaSpec { role: Role::Data, limit_bytes: arena_bytes, driver_bytes: 0, arena_bytes, capped: false };
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
    let spec = |arena_bytes| ArenaSpec {
        role: Role::Data,
        limit_bytes: arena_bytes,
        driver_bytes: 0,
        arena_bytes,
        capped: false,
    };
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
        let spec =
            ArenaSpec { role: Role::Data, limit_bytes: arena_bytes, driver_bytes: 0, arena_bytes, capped: false };
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
    let spec = ArenaSpec { role: Role::Data, limit_bytes: arena_bytes, driver_bytes: 0, arena_bytes, capped: false };
    let arena = Arena::reserve_as(&device, spec, true).unwrap();
    assert!(matches!(arena.take("refused", 1024), Err(DeviceError::OutOfMemory { .. })));
    arena.take("all of it", arena_bytes).expect("the refused block uses no memory");
}

#[test]
fn peer_access_includes_split_blocks_that_were_allocated_before() {
    let machine = Machine::simulated(SimSpec::new(2, 4 << 30).with_link(Link::Nvlink));
    let (here, there) = (machine.open(0).unwrap(), machine.open(1).unwrap());
    let arena_bytes = 64 * MIB;
    let spec = |role| ArenaSpec { role, limit_bytes: arena_bytes, driver_bytes: 0, arena_bytes, capped: false };
    let from = Arena::reserve_as(&here, spec(Role::Data), true).unwrap();
    let to = Arena::reserve_as(&there, spec(Role::Model), true).unwrap();
    let (a, b) = (from.take("a", 64).unwrap(), to.take("b", 64).unwrap());
    from.allow_peer(&there).unwrap();
    to.allow_peer(&here).unwrap();
    here.stream(false)
        .unwrap()
        .copy_peer(a.view(), b.view(), PeerCall::Unified)
        .expect("peer access is enabled on both sides");
}

#[test]
fn impossible_arena_specs_are_refused_by_name() {
    let device = Machine::simulated(one_card(0)).open(0).unwrap();
    let spec = |limit_bytes, driver_bytes, arena_bytes| ArenaSpec {
        role: Role::Data,
        limit_bytes,
        driver_bytes,
        arena_bytes,
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
