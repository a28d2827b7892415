//! How fast matrix products are on this machine's CPU, at the sizes of a small model and beside the best square one:
//! `cargo run --release -p tandem-device --example product`.
#![allow(clippy::print_stdout, reason = "it prints what it measures")]

use std::time::Instant;

use tandem_device::{Arena, ArenaSpec, DType, DeviceError, Machine, Operand, Product};
use tandem_events::Role;

fn main() -> Result<(), DeviceError> {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        for threads in [1, 2] {
            let mut best = 0f64;
            for n in [512, 1024, 2048] {
                best = best.max(rate(threads, &square(dtype, n))?);
            }
            println!("{dtype:?}, {threads} threads: {best:.1} GFLOP/s at the best of 512³, 1024³ and 2048³");
            for (name, product) in products(dtype) {
                let found = rate(threads, &product)?;
                println!("  {name:<44} {found:>7.1} GFLOP/s  {:>4.0} %", 100.0 * found / best);
            }
        }
    }
    Ok(())
}

fn square(dtype: DType, n: u32) -> Product {
    Product::dense(dtype, [n, n, n])
}

/// A linear layer with its two gradients, and what attention does.
fn products(dtype: DType) -> Vec<(&'static str, Product)> {
    let dense = |m, n, k| Product::dense(dtype, [m, n, k]);
    // Sixteen heads of 64, side by side in rows of 1024.
    let heads = Operand::rows(1024).every(64);
    let scores = Product {
        batch: 16,
        a: heads,
        b: heads.transposed(),
        c: Operand::rows(400).every(160_000),
        ..dense(400, 400, 64)
    };
    let mixed = Product { batch: 16, a: Operand::rows(400).every(160_000), b: heads, c: heads, ..dense(400, 64, 400) };
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

/// The best of some runs, in GFLOP/s.
fn rate(threads: usize, product: &Product) -> Result<f64, DeviceError> {
    let machine = Machine::cpu();
    machine.set_compute_threads(threads);
    let device = machine.open(0)?;
    let arena_bytes = 256 << 20;
    let spec = ArenaSpec { role: Role::Model, limit_bytes: arena_bytes, driver_bytes: 0, arena_bytes, capped: false };
    let arena = Arena::reserve(&device, spec)?;
    let stream = device.stream(true)?;
    let [a, b, c] = [arena.take("a", 64 << 20)?, arena.take("b", 64 << 20)?, arena.take("c", 64 << 20)?];
    // Small numbers in every type, and no zeros.
    [&a, &b].into_iter().try_for_each(|block| stream.fill(block.view(), 0x3C))?;
    let mut best = f64::INFINITY;
    let mut spent = 0.0;
    while spent < 0.5 {
        let start = Instant::now();
        stream.product(product, a.view(), b.view(), c.view(), None)?;
        let seconds = start.elapsed().as_secs_f64();
        best = best.min(seconds);
        spent += seconds;
    }
    Ok(product.flops() / best / 1e9)
}
