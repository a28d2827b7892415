//! Work that is recorded once and replayed: the same on every kind of device.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

mod support;

use support::{MIB, arena};
use tandem_device::kernels::{Checks, pattern_word};
use tandem_device::{Arena, Block, CapturedGraph, DType, Device, DeviceError, DeviceKind, Gemm, Machine, Stream};
use tandem_events::Role;

const WORDS: u64 = 4096;

/// A card with memory and a stream on it.
struct Bench {
    device: Device,
    arena: Arena,
    stream: Stream,
}

impl Bench {
    fn new(machine: &Machine) -> Bench {
        let device = machine.open(0).unwrap();
        let arena = arena(&device, Role::Model, 64);
        let stream = device.stream(true).unwrap();
        Bench { device, arena, stream }
    }

    fn floats(&self, values: &[f32]) -> Block {
        let block = self.arena.take("numbers", std::mem::size_of_val(values) as u64).unwrap();
        let mut pinned = self.device.pinned(block.len()).unwrap();
        pinned.bytes_mut().unwrap().copy_from_slice(bytemuck::cast_slice(values));
        self.stream.upload(&pinned, 0..block.len(), block.view()).unwrap();
        self.stream.drain().unwrap();
        block
    }

    fn read<T: bytemuck::Pod>(&self, block: &Block) -> Vec<T> {
        let mut pinned = self.device.pinned(block.len()).unwrap();
        self.stream.download(block.view(), &mut pinned, 0..block.len()).unwrap();
        self.stream.drain().unwrap();
        bytemuck::cast_slice(pinned.bytes().unwrap()).to_vec()
    }
}

/// `sum += a·b` of 8 by 8 ones: every replay adds 8 to each element.
fn counting(bench: &Bench) -> (CapturedGraph, Block, [Block; 3]) {
    let (a, b, sum) = (bench.floats(&[1.0; 64]), bench.floats(&[1.0; 64]), bench.floats(&[0.0; 64]));
    let space = bench.arena.take("workspace", MIB).unwrap();
    let add = || {
        let gemm = Gemm { accumulate: true, ..Gemm::dense(DType::F32, [8, 8, 8]) };
        bench.stream.gemm(&gemm, a.view(), b.view(), sum.view(), None, Some(space.view()))
    };
    // Once as it is: no code may be loaded while recording.
    add().unwrap();
    bench.stream.fill(sum.view(), 0).unwrap();
    let capture = bench.stream.begin_capture().unwrap();
    add().unwrap();
    (capture.end().unwrap(), sum, [a, b, space])
}

fn what_is_recorded_happens_once_per_replay_and_not_before(machine: &Machine) {
    let bench = Bench::new(machine);
    let (recorded, sum, _kept) = counting(&bench);
    assert_eq!(bench.read::<f32>(&sum), [0.0; 64]);
    for runs in 1..4 {
        bench.stream.replay(&recorded).unwrap();
        assert_eq!(bench.read::<f32>(&sum), [8.0 * runs as f32; 64]);
    }
}
on_every_device!(once_per_replay, what_is_recorded_happens_once_per_replay_and_not_before);

fn a_thousand_replays_take_nothing_from_the_driver(machine: &Machine) {
    let bench = Bench::new(machine);
    let (recorded, sum, _kept) = counting(&bench);
    bench.stream.replay(&recorded).unwrap();
    bench.stream.drain().unwrap();
    let counters = machine.counters(0);
    let held = machine.process_bytes(0).unwrap();
    for _ in 1..1000 {
        bench.stream.replay(&recorded).unwrap();
    }
    bench.stream.drain().unwrap();
    assert_eq!(machine.counters(0), counters);
    assert_eq!(machine.process_bytes(0).unwrap(), held);
    assert_eq!(bench.read::<f32>(&sum), [8000.0; 64]);
}
on_every_device!(a_thousand_replays, a_thousand_replays_take_nothing_from_the_driver);

fn all_kinds_of_work_are_replayed_in_their_order(machine: &Machine) {
    let bench = Bench::new(machine);
    let [from, to, after] = [0; 3].map(|_| bench.arena.take("words", 4 * WORDS).unwrap());
    let checks = Checks::load(&bench.device).unwrap();
    let queue = || {
        checks.fill_pattern(&bench.stream, from.view(), 7).unwrap();
        bench.stream.copy(from.view(), to.view()).unwrap();
        bench.stream.fill(from.view(), 9).unwrap();
        bench.stream.copy(from.view(), after.view()).unwrap();
    };
    queue();
    bench.stream.drain().unwrap();
    let capture = bench.stream.begin_capture().unwrap();
    queue();
    let recorded = capture.end().unwrap();
    [&from, &to, &after].into_iter().for_each(|block| bench.stream.fill(block.view(), 0).unwrap());
    bench.stream.replay(&recorded).unwrap();
    let expected: Vec<u32> = (0..WORDS).map(|i| pattern_word(7, i)).collect();
    assert_eq!(bench.read::<u32>(&to), expected);
    assert_eq!(bench.read::<u32>(&after), vec![0x0909_0909; WORDS as usize]);
}
on_every_device!(in_order, all_kinds_of_work_are_replayed_in_their_order);

fn what_cannot_be_recorded_is_refused_and_a_recording_given_up_leaves_nothing(machine: &Machine) {
    let bench = Bench::new(machine);
    let (recorded, sum, _kept) = counting(&bench);
    let (event, mut pinned) = (bench.device.event().unwrap(), bench.device.pinned(256).unwrap());
    let capture = bench.stream.begin_capture().unwrap();
    let check = |result: Result<(), DeviceError>, what: &str| {
        let error = result.expect_err(what).to_string();
        assert!(error.contains(what) && error.contains("recording"), "{error}");
    };
    check(bench.stream.record(&event), "an event");
    check(bench.stream.wait(&event, "test"), "an event");
    check(bench.stream.upload(&pinned, 0..256, sum.view()), "a copy from the host");
    check(bench.stream.download(sum.view(), &mut pinned, 0..256), "a copy to the host");
    check(bench.stream.replay(&recorded), "a replay");
    check(bench.stream.begin_capture().map(drop), "another recording");
    bench.stream.fill(sum.view(), 1).unwrap();
    drop(capture);
    assert_eq!(bench.read::<f32>(&sum), [0.0; 64], "what was given up was done");
    bench.stream.replay(&recorded).unwrap();
    assert_eq!(bench.read::<f32>(&sum), [8.0; 64]);
}
on_every_device!(refused, what_cannot_be_recorded_is_refused_and_a_recording_given_up_leaves_nothing);

/// Opens the card, works on it, and gives everything back: waits for all work of the card are among it.
fn come_and_go(machine: &Machine) {
    let device = machine.open(0).unwrap();
    let (memory, stream) = (arena(&device, Role::Data, 32), device.stream(false).unwrap());
    let block = memory.take("block", MIB).unwrap();
    let mut pinned = device.pinned(MIB).unwrap();
    let checks = Checks::load(&device).unwrap();
    checks.fill_pattern(&stream, block.view(), 3).unwrap();
    stream.download(block.view(), &mut pinned, 0..MIB).unwrap();
    stream.drain().unwrap();
    let words: &[u32] = bytemuck::cast_slice(pinned.bytes().unwrap());
    assert!((0..).zip(words).all(|(i, word)| *word == pattern_word(3, i)));
}

fn a_recording_holds_while_other_threads_come_and_go(machine: &Machine) {
    const ROUNDS: usize = 12;
    let bench = Bench::new(machine);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..ROUNDS).for_each(|_| come_and_go(machine)));
        if machine.kind() == DeviceKind::Cuda {
            // Another machine is another opening of the same context, which it waits for when it closes it.
            scope.spawn(|| (0..ROUNDS).for_each(|_| come_and_go(&support::cuda())));
        }
        for _ in 0..ROUNDS {
            let (recorded, sum, _kept) = counting(&bench);
            bench.stream.replay(&recorded).unwrap();
            bench.stream.replay(&recorded).unwrap();
            assert_eq!(bench.read::<f32>(&sum), [16.0; 64]);
        }
    });
}
on_every_device!(beside_others, a_recording_holds_while_other_threads_come_and_go);

#[test]
fn on_the_host_a_replay_without_its_memory_is_an_error() {
    for machine in [Machine::cpu(), support::simulated(1)] {
        let bench = Bench::new(&machine);
        let (recorded, sum, kept) = counting(&bench);
        let Bench { device, arena, stream } = bench;
        drop((sum, kept, arena));
        let error = stream.replay(&recorded).unwrap_err();
        assert!(matches!(error, DeviceError::Failed { .. }), "{error}");
        drop(device);
    }
}
