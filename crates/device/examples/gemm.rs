//! GEMM throughput: on the CPU at the sizes of a small model, on an NVIDIA card at the sizes of three transformers, queued
//! one by one and replayed as a captured graph.
//!
//! `cargo run --release -p tandem-device --example gemm [cuda]`
#![allow(clippy::print_stdout, reason = "it prints what it measures")]

use std::time::Instant;

use tandem_device::{Arena, ArenaSpec, Block, DType, Device, DeviceError, Gemm, Machine, Operand, Stream};
use tandem_events::Role;

fn main() -> Result<(), DeviceError> {
    if std::env::args().nth(1).as_deref() == Some("cuda") { on_a_card() } else { on_the_cpu() }
}

fn on_the_cpu() -> Result<(), DeviceError> {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for threads in [1, 2] {
            let mut best = 0f64;
            for n in [512, 1024, 2048] {
                best = best.max(rate(threads, &square(dtype, n))?);
            }
            println!("{dtype:?}, {threads} threads: {best:.1} GFLOP/s at the best of 512³, 1024³ and 2048³");
            for (name, gemm) in gemms(dtype) {
                let found = rate(threads, &gemm)?;
                println!("  {name:<44} {found:>7.1} GFLOP/s  {:>4.0} %", 100.0 * found / best);
            }
        }
    }
    Ok(())
}

fn square(dtype: DType, n: u32) -> Gemm {
    Gemm::dense(dtype, [n, n, n])
}

/// The GEMMs of a linear layer with its two gradients, and of attention.
fn gemms(dtype: DType) -> Vec<(&'static str, Gemm)> {
    let dense = |m, n, k| Gemm::dense(dtype, [m, n, k]);
    // Sixteen heads of 64, side by side in rows of 1024.
    let heads = Operand::rows(1024).every(64);
    let scores = Gemm {
        batch: 16,
        a: heads,
        b: heads.transposed(),
        c: Operand::rows(400).every(160_000),
        ..dense(400, 400, 64)
    };
    let mixed = Gemm { batch: 16, a: Operand::rows(400).every(160_000), b: heads, c: heads, ..dense(400, 64, 400) };
    vec![
        ("[6400,192]·[192,768]", dense(6400, 768, 192)),
        ("[6400,768]·[192,768]ᵀ (to its input)", dense(6400, 192, 768).with_b_transposed()),
        ("[6400,192]ᵀ·[6400,768] (to its weights)", dense(192, 768, 6400).with_a_transposed()),
        ("[6400,768]·[768,192]", dense(6400, 192, 768)),
        ("[6400,192]ᵀ·[6400,192] (to square weights)", dense(192, 192, 6400).with_a_transposed()),
        ("[6400,192]·[192,80]", dense(6400, 80, 192)),
        ("1024³", square(dtype, 1024)),
        ("16 x [400,64]·[400,64]ᵀ (scores)", scores),
        ("16 x [400,400]·[400,64] (values)", mixed),
    ]
}

/// Memory for any GEMM here, and a stream.
struct Bench {
    stream: Stream,
    a: Block,
    b: Block,
    c: Block,
    bias: Block,
    space: Block,
}

impl Bench {
    fn new(device: &Device, each_bytes: u64) -> Result<Bench, DeviceError> {
        let arena_bytes = 4 * each_bytes + Gemm::WORKSPACE_BYTES;
        let spec = ArenaSpec::new(Role::Model, arena_bytes);
        let arena = Arena::reserve(device, spec)?;
        let stream = device.stream(true)?;
        let [a, b, c, bias] = ["a", "b", "c", "bias"].map(|name| arena.take(name, each_bytes));
        let (a, b, c, bias) = (a?, b?, c?, bias?);
        // Small numbers in every type, and no zeros.
        [&a, &b, &bias].into_iter().try_for_each(|block| stream.fill(block.view(), 0x3C))?;
        let space = arena.take("workspace", Gemm::WORKSPACE_BYTES)?;
        Ok(Bench { stream, a, b, c, bias, space })
    }

    fn queue(&self, gemm: &Gemm, with_bias: bool) -> Result<(), DeviceError> {
        let (a, b, c) = (self.a.view(), self.b.view(), self.c.view());
        self.stream.gemm(gemm, a, b, c, with_bias.then(|| self.bias.view()), Some(self.space.view()))
    }
}

/// The best of several runs on the CPU, in GFLOP/s.
fn rate(threads: usize, gemm: &Gemm) -> Result<f64, DeviceError> {
    let machine = Machine::cpu();
    machine.set_compute_threads(threads);
    let bench = Bench::new(&machine.open(0)?, 64 << 20)?;
    let mut best = f64::INFINITY;
    let mut spent = 0.0;
    while spent < 0.5 {
        let start = Instant::now();
        bench.queue(gemm, false)?;
        let seconds = start.elapsed().as_secs_f64();
        best = best.min(seconds);
        spent += seconds;
    }
    Ok(gemm.flops() / best / 1e9)
}

/// A transformer: its name, width, layers and frames of a step.
const MODELS: [(&str, u32, u32, u32); 3] =
    [("small", 256, 4, 32 * 400), ("middle", 768, 12, 16 * 512), ("large", 1024, 30, 8 * 512)];
/// Classes of the last layer.
const CLASSES: u32 = 1024;
/// The number of timed rounds.
const ROUNDS: usize = 20;

fn on_a_card() -> Result<(), DeviceError> {
    let Some(machine) = Machine::cuda()? else {
        println!("there is no NVIDIA card");
        return Ok(());
    };
    let device = machine.open(0)?;
    let before = device.process_bytes()?;
    device.prepare_gemms()?;
    machine
        .libraries()
        .iter()
        .for_each(|found| println!("{} {:?} at {}", found.name, found.version, found.path.display()));
    let bench = Bench::new(&device, 128 << 20)?;
    for (name, width, layers, frames) in MODELS {
        println!("{name}: width {width}, {layers} layers, {frames} frames");
        let mut all = Vec::new();
        for [inner, outer] in [[width, 3 * width], [width, width], [width, 4 * width], [4 * width, width]] {
            layer(&device, &bench, [frames, inner, outer], layers, &mut all)?;
        }
        layer(&device, &bench, [frames, width, CLASSES], 1, &mut all)?;
        let flops: f64 = all.iter().map(|(gemm, _)| gemm.flops()).sum();
        let ms = replayed_ms(&device, &bench, &all)?;
        println!("  all {} of a step, replayed: {ms:.3} ms, {:.0} TFLOP/s", all.len(), flops / ms / 1e9);
    }
    let held = |bytes: Option<u64>| bytes.map_or("?".to_owned(), |bytes| format!("{} MB", bytes >> 20));
    println!("memory on the card: {} before, {} now", held(before), held(device.process_bytes()?));
    Ok(())
}

/// A linear layer and its two gradients; the weight gradient is f32.
fn layer(
    device: &Device,
    bench: &Bench,
    [frames, inner, outer]: [u32; 3],
    times: u32,
    all: &mut Vec<(Gemm, bool)>,
) -> Result<(), DeviceError> {
    let bf16 = |m, n, k| Gemm::dense(DType::BF16, [m, n, k]);
    let weights = Gemm { out: DType::F32, accumulate: true, ..bf16(outer, inner, frames).with_a_transposed() };
    let three = [
        ("forward, with bias", bf16(frames, outer, inner).with_b_transposed(), true),
        ("to its input", bf16(frames, inner, outer), false),
        ("to its weights", weights, false),
    ];
    for (name, gemm, bias) in three {
        let ms = replayed_ms(device, bench, &[(gemm, bias); 10])? / 10.0;
        println!("  {:<48} {ms:>8.4} ms {:>5.0} TFLOP/s  {name}", gemm.to_string(), gemm.flops() / ms / 1e9);
        all.extend((0..times).map(|_| (gemm, bias)));
    }
    Ok(())
}

/// The median time of one replay of `work`, by the card's clock.
fn replayed_ms(device: &Device, bench: &Bench, work: &[(Gemm, bool)]) -> Result<f64, DeviceError> {
    let queue = || work.iter().try_for_each(|(gemm, bias)| bench.queue(gemm, *bias));
    queue()?;
    let capture = bench.stream.begin_capture()?;
    queue()?;
    let graph = capture.end()?;
    let (start, end) = (device.timer()?, device.timer()?);
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        bench.stream.record(&start)?;
        bench.stream.replay(&graph)?;
        bench.stream.record(&end)?;
        bench.stream.drain()?;
        times.push(end.ns_since(&start)? as f64 / 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}
