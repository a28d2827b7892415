//! The rehearsal's matrix products against double precision, on every kind of device.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "in a test, a failed unwrap is a failed test"
)]

use half::bf16;
use tandem_device::kernels::pattern_word;
use tandem_device::{Arena, ArenaSpec, Arg, Grid, Kernel, Machine, SimSpec, View};
use tandem_events::Role;
use tandem_trial::kernels::{PRODUCT_BF16, PRODUCT_F32, ROWS_BF16, ROWS_F32};

const ROWS: u32 = 37;
const WIDTH: u32 = 75;

/// `count` reals in [-1, 1), as the kernel that reads rows makes them, and their bytes on the device.
fn reals(seed: u64, count: u32) -> Vec<u32> {
    (0..u64::from(count)).map(|i| pattern_word(seed, i)).collect()
}

fn arg(half_precision: bool, view: View<'_>, out: bool) -> Arg<'_> {
    match (half_precision, out) {
        (true, true) => Arg::write::<bf16>(view),
        (true, false) => Arg::read::<bf16>(view),
        (false, true) => Arg::write::<f32>(view),
        (false, false) => Arg::read::<f32>(view),
    }
}

fn product(machine: &Machine, half_precision: bool) -> (Vec<f64>, Vec<f64>) {
    let size = if half_precision { 2 } else { 4 };
    let (rows_kernel, product_kernel): (&'static Kernel, &'static Kernel) =
        if half_precision { (&ROWS_BF16, &PRODUCT_BF16) } else { (&ROWS_F32, &PRODUCT_F32) };
    let device = machine.open(0).unwrap();
    let arena_bytes = 32 << 20;
    let spec = ArenaSpec { role: Role::Model, limit_bytes: arena_bytes, driver_bytes: 0, arena_bytes, capped: false };
    let arena = Arena::reserve(&device, spec).unwrap();
    let stream = device.stream(true).unwrap();
    let (rows, product) = (device.load(rows_kernel).unwrap(), device.load(product_kernel).unwrap());
    let load = |seed: u64, count: u32| {
        let words = reals(seed, count);
        let mut host = device.pinned(u64::from(count) * 4).unwrap();
        host.bytes_mut().unwrap().copy_from_slice(&words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>());
        let raw = arena.take("raw", u64::from(count) * 4).unwrap();
        let real = arena.take("real", u64::from(count) * size).unwrap();
        stream.upload(&host, 0..host.len(), raw.view()).unwrap();
        let args = [Arg::read::<u32>(raw.view()), arg(half_precision, real.view(), true), Arg::U64(u64::from(count))];
        stream.launch(&rows, Grid::cover(u64::from(count), 256), &args).unwrap();
        stream.drain().unwrap();
        let exact: Vec<f64> = words.iter().map(|w| f64::from(*w as i32) / 2f64.powi(31)).collect();
        (real, exact)
    };
    let (a, exact_a) = load(1, ROWS * WIDTH);
    let (b, exact_b) = load(2, WIDTH * WIDTH);
    let out = arena.take("out", u64::from(ROWS * WIDTH) * size).unwrap();
    stream.fill(out.view(), 0xFF).unwrap();
    let grid = Grid { blocks: [WIDTH.div_ceil(16), ROWS.div_ceil(16), 1], threads: 256, shared_bytes: 0 };
    let args = [
        arg(half_precision, a.view(), false),
        arg(half_precision, b.view(), false),
        arg(half_precision, out.view(), true),
        Arg::U32(ROWS),
        Arg::U32(WIDTH),
    ];
    stream.launch(&product, grid, &args).unwrap();
    let mut host = device.pinned(out.len()).unwrap();
    stream.download(out.view(), &mut host, 0..out.len()).unwrap();
    stream.drain().unwrap();
    let got = match half_precision {
        true => host.bytes().unwrap().chunks(2).map(|b| f64::from(bf16::from_le_bytes([b[0], b[1]]))).collect(),
        false => {
            host.bytes().unwrap().chunks(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect()
        }
    };
    let (rows, width) = (ROWS as usize, WIDTH as usize);
    let dot = |r: usize, c: usize| (0..width).map(|k| exact_a[r * width + k] * exact_b[k * width + c]).sum();
    let want = (0..rows * width).map(|i| dot(i / width, i % width)).collect();
    (got, want)
}

/// ‖got − want‖ / ‖want‖, NaN when anything was left unwritten.
fn error((got, want): (Vec<f64>, Vec<f64>)) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut got.iter().zip(&want).map(|(a, b)| a - b)) / norm(&mut want.iter().copied())
}

fn check(machine: &Machine) {
    let (single, half_precision) = (error(product(machine, false)), error(product(machine, true)));
    println!("relative error: f32 {single:.2e}, bf16 {half_precision:.2e}");
    assert!(single < 1e-6, "f32: {single}");
    assert!((1e-4..1e-2).contains(&half_precision), "bf16: {half_precision}");
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
