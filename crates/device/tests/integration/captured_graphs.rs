//! Captured graphs: the same on every kind of device.

use crate::support::{MIB, arena};
use tandem_device::kernels::{Checks, pattern_word};
use tandem_device::{Arena, Block, CapturedGraph, DType, Device, DeviceError, DeviceKind, Gemm, Machine, Stream};
use tandem_events::Role;

on_every_device!(
    captured_work_runs_once_per_replay_and_not_before,
    a_thousand_replays_allocate_nothing,
    all_kinds_of_work_are_replayed_in_their_order,
    work_that_cannot_be_captured_is_refused_and_a_dropped_capture_leaves_nothing,
    a_capture_stays_valid_while_other_threads_open_and_close_the_card,
);

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
    // Run once first: no code may be loaded during a capture.
    add().unwrap();
    bench.stream.fill(sum.view(), 0).unwrap();
    let capture = bench.stream.begin_capture().unwrap();
    add().unwrap();
    (capture.end().unwrap(), sum, [a, b, space])
}

fn captured_work_runs_once_per_replay_and_not_before(machine: &Machine) {
    let bench = Bench::new(machine);
    let (graph, sum, _inputs) = counting(&bench);
    assert_eq!(bench.read::<f32>(&sum), [0.0; 64]);
    for runs in 1..4 {
        bench.stream.replay(&graph).unwrap();
        assert_eq!(bench.read::<f32>(&sum), [8.0 * runs as f32; 64]);
    }
}

fn a_thousand_replays_allocate_nothing(machine: &Machine) {
    let bench = Bench::new(machine);
    let (graph, sum, _inputs) = counting(&bench);
    bench.stream.replay(&graph).unwrap();
    bench.stream.drain().unwrap();
    let counters = machine.counters(0);
    let held = machine.process_bytes(0).unwrap();
    for _ in 1..1000 {
        bench.stream.replay(&graph).unwrap();
    }
    bench.stream.drain().unwrap();
    assert_eq!(machine.counters(0), counters);
    assert_eq!(machine.process_bytes(0).unwrap(), held);
    assert_eq!(bench.read::<f32>(&sum), [8000.0; 64]);
}

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
    let graph = capture.end().unwrap();
    [&from, &to, &after].into_iter().for_each(|block| bench.stream.fill(block.view(), 0).unwrap());
    bench.stream.replay(&graph).unwrap();
    let expected: Vec<u32> = (0..WORDS).map(|i| pattern_word(7, i)).collect();
    assert_eq!(bench.read::<u32>(&to), expected);
    assert_eq!(bench.read::<u32>(&after), vec![0x0909_0909; WORDS as usize]);
}

fn work_that_cannot_be_captured_is_refused_and_a_dropped_capture_leaves_nothing(machine: &Machine) {
    let bench = Bench::new(machine);
    let (graph, sum, _inputs) = counting(&bench);
    let (event, mut pinned) = (bench.device.event().unwrap(), bench.device.pinned(256).unwrap());
    let capture = bench.stream.begin_capture().unwrap();
    let check = |result: Result<(), DeviceError>, what: &str| {
        let error = result.expect_err(what).to_string();
        assert!(error.contains(what) && error.contains("captured graph"), "{error}");
    };
    check(bench.stream.record(&event), "an event");
    check(bench.stream.wait(&event, "test"), "an event");
    check(bench.stream.upload(&pinned, 0..256, sum.view()), "a copy from the host");
    check(bench.stream.download(sum.view(), &mut pinned, 0..256), "a copy to the host");
    check(bench.stream.replay(&graph), "a replay");
    check(bench.stream.begin_capture().map(drop), "another capture");
    bench.stream.fill(sum.view(), 1).unwrap();
    drop(capture);
    assert_eq!(bench.read::<f32>(&sum), [0.0; 64], "discarded work ran");
    bench.stream.replay(&graph).unwrap();
    assert_eq!(bench.read::<f32>(&sum), [8.0; 64]);
}

/// Opens the card, works on it, and releases everything, which synchronises the context.
fn open_work_and_close(machine: &Machine) {
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

fn a_capture_stays_valid_while_other_threads_open_and_close_the_card(machine: &Machine) {
    const ROUNDS: usize = 12;
    let bench = Bench::new(machine);
    std::thread::scope(|scope| {
        scope.spawn(|| (0..ROUNDS).for_each(|_| open_work_and_close(machine)));
        if machine.kind() == DeviceKind::Cuda {
            // Another machine opens the same primary context, and synchronises it when it closes.
            scope.spawn(|| (0..ROUNDS).for_each(|_| open_work_and_close(&crate::support::cuda())));
        }
        for _ in 0..ROUNDS {
            let (graph, sum, _inputs) = counting(&bench);
            bench.stream.replay(&graph).unwrap();
            bench.stream.replay(&graph).unwrap();
            assert_eq!(bench.read::<f32>(&sum), [16.0; 64]);
        }
    });
}

#[test]
fn on_the_host_a_replay_without_its_memory_is_an_error() {
    for machine in [Machine::cpu(), crate::support::simulated(1)] {
        let bench = Bench::new(&machine);
        let (graph, sum, inputs) = counting(&bench);
        let Bench { device, arena, stream } = bench;
        drop((sum, inputs, arena));
        let error = stream.replay(&graph).unwrap_err();
        assert!(matches!(error, DeviceError::Failed { .. }), "{error}");
        drop(device);
    }
}
