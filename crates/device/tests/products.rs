//! Matrix products on the CPU and on simulated cards: the right numbers, and the same bits for any number of threads.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

mod support;

use half::bf16;
use support::arena;
use tandem_device::{DType, Element, Machine, Operand, Product, Stream, View};
use tandem_events::Role;

/// A type products are made of, and how far a sum of `k` products of numbers under 1 may be off.
trait Real: Element + PartialEq + std::fmt::Debug {
    const EPSILON: f64;
    fn of(x: f64) -> Self;
    fn wide(self) -> f64;
}

macro_rules! real {
    ($($t:ty, $epsilon:expr, $of:expr);*) => { $(impl Real for $t {
        const EPSILON: f64 = $epsilon;
        fn of(x: f64) -> $t {
            $of(x)
        }
        fn wide(self) -> f64 {
            self.into()
        }
    })* };
}
real!(f32, 6e-8, |x| x as f32; f64, 1.2e-16, |x| x; bf16, 4e-3, bf16::from_f64);

/// Numbers between -1 and 1 that `T` has exactly.
fn noise<T: Real>(len: usize, seed: u64) -> Vec<T> {
    let number = |i| f64::from(tandem_device::kernels::pattern_word(seed, i) as i32) / f64::from(i32::MIN);
    (0..len as u64).map(|i| T::of(number(i))).collect()
}

/// Elements each matrix takes, from the shape.
fn lengths(p: &Product) -> [usize; 3] {
    let extent = |operand: &Operand, rows: u32, columns: u32| {
        let (rows, columns) = if operand.transposed { (columns, rows) } else { (rows, columns) };
        let one = u64::from(rows.max(1) - 1) * u64::from(operand.stride) + u64::from(columns);
        (operand.batch_stride * u64::from(p.batch.max(1) - 1) + one).max(1) as usize
    };
    [extent(&p.a, p.m, p.k), extent(&p.b, p.k, p.n), extent(&p.c, p.m, p.n)]
}

/// Three loops in f64.
fn reference<T: Real, O: Real>(p: &Product, [a, b]: [&[T]; 2], c: &[O], bias: Option<&[O]>) -> Vec<f64> {
    let at = |operand: &Operand, batch: u32, row: u32, column: u32| {
        let (row, column) = if operand.transposed { (column, row) } else { (row, column) };
        (u64::from(batch) * operand.batch_stride + u64::from(row) * u64::from(operand.stride) + u64::from(column))
            as usize
    };
    let mut out: Vec<f64> = c.iter().map(|c| c.wide()).collect();
    for batch in 0..p.batch {
        for i in 0..p.m {
            for j in 0..p.n {
                let term = |l| a[at(&p.a, batch, i, l)].wide() * b[at(&p.b, batch, l, j)].wide();
                let sum = p.alpha * (0..p.k).map(term).sum::<f64>();
                let c = &mut out[at(&p.c, batch, i, j)];
                *c = sum + if p.accumulate { *c } else { 0.0 } + bias.map_or(0.0, |bias| bias[j as usize].wide());
            }
        }
    }
    out
}

/// The product as a machine with so many threads computes it.
fn run<T: Real, O: Real>(machine: &Machine, p: &Product, [a, b]: [&[T]; 2], c: &[O], bias: Option<&[O]>) -> Vec<O> {
    let device = machine.open(0).unwrap();
    let arena = arena(&device, Role::Model, 64);
    let stream = device.stream(true).unwrap();
    let block = |values: &[u8]| arena.take("matrix", values.len().max(8) as u64).unwrap();
    let [a, b, c] = [bytemuck::cast_slice(a), bytemuck::cast_slice(b), bytemuck::cast_slice(c)];
    let bias = bias.map(|bias| bytemuck::cast_slice::<O, u8>(bias));
    let blocks = [block(a), block(b), block(c), block(bias.unwrap_or_default())];
    for (values, block) in [a, b, c, bias.unwrap_or_default()].into_iter().zip(&blocks) {
        put(&stream, values, block.part(0, values.len() as u64));
    }
    let bias = bias.map(|_| blocks[3].view());
    stream.product(p, blocks[0].view(), blocks[1].view(), blocks[2].view(), bias).unwrap();
    let mut out = device.pinned(c.len() as u64).unwrap();
    stream.download(blocks[2].part(0, c.len() as u64), &mut out, 0..c.len() as u64).unwrap();
    stream.drain().unwrap();
    bytemuck::cast_slice(out.bytes().unwrap()).to_vec()
}

fn put(stream: &Stream, values: &[u8], to: View<'_>) {
    if !values.is_empty() {
        let mut pinned = stream.device().pinned(values.len() as u64).unwrap();
        pinned.bytes_mut().unwrap().copy_from_slice(values);
        stream.upload(&pinned, 0..values.len() as u64, to).unwrap();
        stream.drain().unwrap();
    }
}

/// The product is right on one thread, and the same bits on more and on simulated cards.
fn check<T: Real, O: Real>(p: Product, with_bias: bool) {
    let p = Product { dtype: T::DTYPE, out: O::DTYPE, ..p };
    let [a, b, c] = lengths(&p);
    let (a, b, c) = (noise::<T>(a, 1), noise::<T>(b, 2), noise::<O>(c, 3));
    let bias = noise::<O>(p.n as usize, 4);
    let bias = with_bias.then_some(&bias[..]);
    let expected = reference(&p, [&a, &b], &c, bias);
    let on = |machine: Machine, threads| {
        machine.set_compute_threads(threads);
        run(&machine, &p, [&a, &b], &c, bias)
    };
    let one = on(Machine::cpu(), 1);
    // Sums of bf16 are made in f32 and rounded once to the type of C.
    let sum_epsilon = T::EPSILON.min(6e-8);
    for (i, (found, expected)) in one.iter().zip(&expected).enumerate() {
        let bound = (f64::from(p.k) + 4.0) * p.alpha.abs().max(1.0) * sum_epsilon * 4.0 + O::EPSILON * expected.abs();
        assert!((found.wide() - expected).abs() <= bound, "{p}: element {i} is {found:?}, not {expected}");
    }
    for threads in [2, 3, 7] {
        assert!(on(Machine::cpu(), threads) == one, "{p}: {threads} threads give other bits");
    }
    assert!(on(support::simulated(u64::from(p.m)), 2) == one, "{p}: a simulated card gives other bits");
}

/// Every way of lying in memory, with what is added to it and without.
fn check_layouts<T: Real, O: Real>([m, n, k]: [u32; 3]) {
    for layout in 0..4 {
        let dense = Product::dense(DType::F32, [m, n, k]);
        let dense = if layout & 1 == 0 { dense } else { dense.with_a_transposed() };
        let dense = if layout & 2 == 0 { dense } else { dense.with_b_transposed() };
        check::<T, O>(dense, false);
        let wider = |operand: Operand, by| Operand { stride: operand.stride + by, ..operand };
        let apart = Product { a: wider(dense.a, 3), b: wider(dense.b, 1), c: wider(dense.c, 5), ..dense };
        check::<T, O>(Product { accumulate: true, alpha: -0.5, ..apart }, false);
        check::<T, O>(Product { alpha: 2.0, ..apart }, true);
        check::<T, O>(Product { accumulate: true, ..apart }, true);
    }
}

#[test]
fn odd_sizes_in_f32() {
    [[1, 1, 1], [7, 13, 5], [1, 300, 17], [300, 1, 17], [33, 65, 129]].into_iter().for_each(check_layouts::<f32, f32>);
}

#[test]
fn odd_sizes_in_f64() {
    [[1, 1, 1], [7, 13, 5], [1, 300, 17], [300, 1, 17], [33, 65, 129]].into_iter().for_each(check_layouts::<f64, f64>);
}

#[test]
fn odd_sizes_in_bf16() {
    [[1, 1, 1], [7, 13, 5], [33, 65, 129]].into_iter().for_each(check_layouts::<bf16, bf16>);
    [[1, 1, 1], [7, 13, 5], [33, 65, 129]].into_iter().for_each(check_layouts::<bf16, f32>);
}

#[test]
fn sizes_that_are_cut_into_pieces() {
    for shape in [[531, 259, 67], [97, 193, 901], [3, 1300, 1100], [1300, 3, 1100]] {
        let product = Product { accumulate: true, alpha: 0.5, ..Product::dense(DType::F32, shape) };
        check::<f32, f32>(product, true);
        check::<f32, f32>(product.with_a_transposed().with_b_transposed(), false);
        check::<f64, f64>(product.with_a_transposed(), true);
        check::<bf16, bf16>(product.with_b_transposed(), true);
    }
}

#[test]
fn nothing_to_multiply_leaves_zeros_or_what_is_added() {
    for [m, n, k] in [[3, 4, 0], [0, 4, 5], [3, 0, 5]] {
        for (accumulate, bias) in [(false, false), (true, false), (false, true), (true, true)] {
            let product = Product { accumulate, ..Product::dense(DType::F32, [m, n, k]) };
            check::<f32, f32>(product, bias);
            check::<f64, f64>(product, bias);
            check::<bf16, bf16>(product, bias);
        }
    }
    check::<f32, f32>(Product { batch: 0, ..Product::dense(DType::F32, [3, 4, 5]) }, false);
}

#[test]
fn batches_behind_each_other_beside_each_other_and_shared() {
    let dense = Product { batch: 5, ..Product::dense(DType::F32, [37, 19, 11]) };
    let behind =
        Product { a: dense.a.every(37 * 11), b: dense.b.every(11 * 19 + 7), c: dense.c.every(37 * 19), ..dense };
    let shared = Product { b: dense.b, ..behind };
    // Heads side by side, as attention has them; C in a wider matrix.
    let beside = Product { a: Operand::rows(5 * 11).every(11), c: Operand::rows(5 * 19 + 2).every(19), ..behind };
    let scores =
        Product { b: Operand::rows(5 * 11).every(11).transposed(), a: Operand::rows(5 * 11).every(11), ..behind };
    for product in [behind, shared, beside, scores] {
        for accumulate in [false, true] {
            let product = Product { accumulate, ..product };
            check::<f32, f32>(product, accumulate);
            check::<f64, f64>(product, !accumulate);
            check::<bf16, bf16>(product, accumulate);
        }
    }
}
