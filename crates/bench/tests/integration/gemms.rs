//! The GEMM that keeps a card busy in benchmarks, against double precision, on every kind of device.

use half::bf16;
use tandem_bench::kernels::{GEMM_BF16, GemmArgs};
use tandem_device::kernels::pattern_word;
use tandem_device::{Arena, ArenaSpec, Grid, Machine, SimSpec};
use tandem_events::Role;

const ROWS: u32 = 37;
const WIDTH: u32 = 75;

/// `count` reals in [-1, 1).
fn reals(seed: u64, count: u32) -> Vec<bf16> {
    let real = |i: u64| bf16::from_f64(f64::from(pattern_word(seed, i) as i32) / 2f64.powi(31));
    (0..u64::from(count)).map(real).collect()
}

/// What the device makes of the GEMM, and what it is.
fn gemm(machine: &Machine) -> (Vec<f64>, Vec<f64>) {
    let device = machine.open(0).unwrap();
    let arena_bytes = 32 << 20;
    let spec = ArenaSpec::new(Role::Model, arena_bytes);
    let arena = Arena::reserve(&device, spec).unwrap();
    let stream = device.stream(true).unwrap();
    let gemm = device.load(&GEMM_BF16).unwrap();
    let load = |values: &[bf16]| {
        let mut host = device.pinned(values.len() as u64 * 2).unwrap();
        host.bytes_mut().unwrap().copy_from_slice(bytemuck::cast_slice(values));
        let block = arena.take("reals", host.len()).unwrap();
        stream.upload(&host, 0..host.len(), block.view()).unwrap();
        stream.drain().unwrap();
        block
    };
    let (exact_a, exact_b) = (reals(1, ROWS * WIDTH), reals(2, WIDTH * WIDTH));
    let (a, b) = (load(&exact_a), load(&exact_b));
    let out = arena.take("out", u64::from(ROWS * WIDTH) * 2).unwrap();
    stream.fill(out.view(), 0xFF).unwrap();
    let grid = Grid { blocks: [WIDTH.div_ceil(16), ROWS.div_ceil(16), 1], threads: 256, shared_bytes: 0 };
    let args = GemmArgs { x: a.view(), weights: b.view(), out: out.view(), rows: ROWS, width: WIDTH };
    stream.launch(&gemm, grid, args).unwrap();
    let mut host = device.pinned(out.len()).unwrap();
    stream.download(out.view(), &mut host, 0..out.len()).unwrap();
    stream.drain().unwrap();
    let got = bytemuck::pod_collect_to_vec::<u8, bf16>(host.bytes().unwrap());
    let (rows, width) = (ROWS as usize, WIDTH as usize);
    let term = |r: usize, c: usize, k: usize| exact_a[r * width + k].to_f64() * exact_b[k * width + c].to_f64();
    let dot = |i: usize| (0..width).map(|k| term(i / width, i % width, k)).sum();
    (got.into_iter().map(bf16::to_f64).collect(), (0..rows * width).map(dot).collect())
}

/// ‖got − want‖ / ‖want‖, NaN when anything was left unwritten.
fn error((got, want): (Vec<f64>, Vec<f64>)) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(&want).map(|(a, b)| a - b)) / norm(&mut want.iter().copied())
}

fn check(machine: &Machine) {
    let error = error(gemm(machine));
    println!("relative error: {error:.2e}");
    assert!((1e-5..3e-3).contains(&error), "{error}");
}

#[test]
fn simulated() {
    check(&Machine::simulated(SimSpec::new(1, 4 << 30)));
}

#[test]
fn cpu() {
    check(&Machine::cpu());
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn cuda() {
    check(&Machine::cuda().expect("the CUDA driver can be used").expect("this test needs an NVIDIA card"));
}
