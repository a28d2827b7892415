//! GEMMs: correct on every kind of device. On the CPU and on simulated cards the bits do not depend on the number of
//! threads; on a real card they are the same every time.

use crate::support::arena;
use half::bf16;
use tandem_device::{DType, Device, Element, Gemm, Machine, Operand, Stream, View};
use tandem_events::Role;

/// An element type of GEMMs, with its rounding error.
trait Real: Element + PartialEq + std::fmt::Debug {
    const EPSILON: f64;
    fn of(x: f64) -> Self;
    fn to_f64(self) -> f64;
}

macro_rules! real {
    ($($t:ty, $epsilon:expr, $of:expr);*) => { $(impl Real for $t {
        const EPSILON: f64 = $epsilon;
        fn of(x: f64) -> $t {
            $of(x)
        }
        fn to_f64(self) -> f64 {
            self.into()
        }
    })* };
}
real!(f32, 6e-8, |x| x as f32; f64, 1.2e-16, |x| x; bf16, 4e-3, bf16::from_f64);

/// Numbers between -1 and 1 that are exact in `T`.
fn noise<T: Real>(len: usize, seed: u64) -> Vec<T> {
    let number = |i| f64::from(tandem_device::kernels::pattern_word(seed, i) as i32) / f64::from(i32::MIN);
    (0..len as u64).map(|i| T::of(number(i))).collect()
}

/// The number of elements of each matrix.
fn lengths(p: &Gemm) -> [usize; 3] {
    let extent = |operand: &Operand, rows: u32, columns: u32| {
        let (rows, columns) = if operand.transposed { (columns, rows) } else { (rows, columns) };
        let one = u64::from(rows.max(1) - 1) * u64::from(operand.stride) + u64::from(columns);
        (operand.batch_stride * u64::from(p.batch.max(1) - 1) + one).max(1) as usize
    };
    [extent(&p.a, p.m, p.k), extent(&p.b, p.k, p.n), extent(&p.c, p.m, p.n)]
}

/// Three loops in f64.
fn reference<T: Real, O: Real>(p: &Gemm, [a, b]: [&[T]; 2], c: &[O], bias: Option<&[O]>) -> Vec<f64> {
    let at = |operand: &Operand, batch: u32, row: u32, column: u32| {
        let (row, column) = if operand.transposed { (column, row) } else { (row, column) };
        (u64::from(batch) * operand.batch_stride + u64::from(row) * u64::from(operand.stride) + u64::from(column))
            as usize
    };
    let mut out: Vec<f64> = c.iter().map(|c| c.to_f64()).collect();
    for batch in 0..p.batch {
        for i in 0..p.m {
            for j in 0..p.n {
                let term = |l| a[at(&p.a, batch, i, l)].to_f64() * b[at(&p.b, batch, l, j)].to_f64();
                let sum = p.alpha * (0..p.k).map(term).sum::<f64>();
                let c = &mut out[at(&p.c, batch, i, j)];
                *c = sum + if p.accumulate { *c } else { 0.0 } + bias.map_or(0.0, |bias| bias[j as usize].to_f64());
            }
        }
    }
    out
}

/// The GEMM as a machine computes it.
fn run<T: Real, O: Real>(machine: &Machine, p: &Gemm, [a, b]: [&[T]; 2], c: &[O], bias: Option<&[O]>) -> Vec<O> {
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
    let space = arena.take("workspace", Gemm::WORKSPACE_BYTES).unwrap();
    let space = Some(space.view());
    stream.gemm(p, blocks[0].view(), blocks[1].view(), blocks[2].view(), bias, space).unwrap();
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

/// The devices that GEMMs are tested on.
enum Devices {
    /// The CPU with several numbers of threads, and simulated cards.
    Host,
    /// A real card, kept open.
    Card(Machine, #[expect(dead_code, reason = "keeps the card open")] Device),
}

/// A GEMM with its inputs.
struct Case<T, O> {
    p: Gemm,
    a: Vec<T>,
    b: Vec<T>,
    c: Vec<O>,
    bias: Option<Vec<O>>,
}

impl<T: Real, O: Real> Case<T, O> {
    fn run(&self, machine: &Machine) -> Vec<O> {
        run(machine, &self.p, [&self.a, &self.b], &self.c, self.bias.as_deref())
    }

    /// Compares with three loops in f64, allowing for this many roundings of the result and of the added terms.
    fn compare(&self, found: &[O], (roundings, of_added): (f64, f64)) {
        let p = &self.p;
        // Sums of bf16 are made in f32 and rounded once to the type of C.
        let sum_epsilon = T::EPSILON.min(6e-8);
        let sum_bound = (f64::from(p.k) + 4.0) * p.alpha.abs().max(1.0) * sum_epsilon * 4.0;
        let expected = reference(p, [&self.a, &self.b], &self.c, self.bias.as_deref());
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let bound = sum_bound + O::EPSILON * (roundings * expected.abs() + of_added);
            assert!((found.to_f64() - expected).abs() <= bound, "{p}: element {i} is {found:?}, not {expected}");
        }
    }
}

impl Devices {
    fn card() -> Devices {
        let machine = crate::support::cuda();
        let device = machine.open(0).unwrap();
        Devices::Card(machine, device)
    }

    fn check<T: Real, O: Real>(&self, p: Gemm, with_bias: bool) {
        let p = Gemm { dtype: T::DTYPE, out: O::DTYPE, ..p };
        let [a, b, c] = lengths(&p);
        let (a, b, c) = (noise::<T>(a, 1), noise::<T>(b, 2), noise::<O>(c, 3));
        let case = Case { p, a, b, c, bias: with_bias.then(|| noise::<O>(p.n as usize, 4)) };
        match self {
            Devices::Host => check_on_host(&case),
            Devices::Card(..) if p.dtype == DType::F64 => {}
            Devices::Card(machine, _) => {
                let found = case.run(machine);
                // If the bias epilogue is not available, the bias is added to C first and rounded there; and cuBLASLt's
                // kernels for odd sizes round the GEMM once before they add (seen on an H200: 1.5 steps of bf16 off).
                case.compare(&found, if with_bias { (2.0, 2.0) } else { (1.0, 0.0) });
                assert!(case.run(machine) == found, "{p}: a second time gives other bits");
            }
        }
    }
}

/// Correct on one thread, and the same bits on more threads and on simulated cards.
fn check_on_host<T: Real, O: Real>(case: &Case<T, O>) {
    let on = |machine: Machine, threads| {
        machine.set_compute_threads(threads);
        case.run(&machine)
    };
    let (p, one) = (&case.p, on(Machine::cpu(), 1));
    case.compare(&one, (1.0, 0.0));
    for threads in [2, 3, 7] {
        assert!(on(Machine::cpu(), threads) == one, "{p}: {threads} threads give other bits");
    }
    assert!(on(crate::support::simulated(u64::from(p.m)), 2) == one, "{p}: a simulated card gives other bits");
}

/// One test body, on the host and on a real card.
macro_rules! on_host_and_card {
    ($($body:ident),*) => {
        mod host {
            $(#[test] fn $body() { super::$body(&super::Devices::Host); })*
        }

        mod cuda {
            $(#[test] #[ignore = "needs an NVIDIA card"] fn $body() { super::$body(&super::Devices::card()); })*
        }
    };
}

on_host_and_card!(
    odd_sizes_in_f32,
    odd_sizes_in_f64,
    odd_sizes_in_bf16,
    sizes_that_are_cut_into_pieces,
    nothing_to_multiply_leaves_zeros_or_what_is_added,
    batches_behind_each_other_beside_each_other_and_shared
);

/// Every layout, with added terms and without.
fn check_layouts<T: Real, O: Real>(on: &Devices, [m, n, k]: [u32; 3]) {
    for layout in 0..4 {
        let dense = Gemm::dense(DType::F32, [m, n, k]);
        let dense = if layout & 1 == 0 { dense } else { dense.with_a_transposed() };
        let dense = if layout & 2 == 0 { dense } else { dense.with_b_transposed() };
        on.check::<T, O>(dense, false);
        let wider = |operand: Operand, by| Operand { stride: operand.stride + by, ..operand };
        let apart = Gemm { a: wider(dense.a, 3), b: wider(dense.b, 1), c: wider(dense.c, 5), ..dense };
        on.check::<T, O>(Gemm { accumulate: true, alpha: -0.5, ..apart }, false);
        on.check::<T, O>(Gemm { alpha: 2.0, ..apart }, true);
        on.check::<T, O>(Gemm { accumulate: true, ..apart }, true);
    }
}

fn odd_sizes_in_f32(on: &Devices) {
    [[1, 1, 1], [7, 13, 5], [1, 300, 17], [300, 1, 17], [33, 65, 129]]
        .into_iter()
        .for_each(|shape| check_layouts::<f32, f32>(on, shape));
}

fn odd_sizes_in_f64(on: &Devices) {
    [[1, 1, 1], [7, 13, 5], [1, 300, 17], [300, 1, 17], [33, 65, 129]]
        .into_iter()
        .for_each(|shape| check_layouts::<f64, f64>(on, shape));
}

fn odd_sizes_in_bf16(on: &Devices) {
    [[1, 1, 1], [7, 13, 5], [33, 65, 129]].into_iter().for_each(|shape| check_layouts::<bf16, bf16>(on, shape));
    [[1, 1, 1], [7, 13, 5], [33, 65, 129]].into_iter().for_each(|shape| check_layouts::<bf16, f32>(on, shape));
}

fn sizes_that_are_cut_into_pieces(on: &Devices) {
    for shape in [[531, 259, 67], [97, 193, 901], [3, 1300, 1100], [1300, 3, 1100]] {
        let gemm = Gemm { accumulate: true, alpha: 0.5, ..Gemm::dense(DType::F32, shape) };
        on.check::<f32, f32>(gemm, true);
        on.check::<f32, f32>(gemm.with_a_transposed().with_b_transposed(), false);
        on.check::<f64, f64>(gemm.with_a_transposed(), true);
        on.check::<bf16, bf16>(gemm.with_b_transposed(), true);
    }
}

fn nothing_to_multiply_leaves_zeros_or_what_is_added(on: &Devices) {
    for [m, n, k] in [[3, 4, 0], [0, 4, 5], [3, 0, 5]] {
        for (accumulate, bias) in [(false, false), (true, false), (false, true), (true, true)] {
            let gemm = Gemm { accumulate, ..Gemm::dense(DType::F32, [m, n, k]) };
            on.check::<f32, f32>(gemm, bias);
            on.check::<f64, f64>(gemm, bias);
            on.check::<bf16, bf16>(gemm, bias);
        }
    }
    on.check::<f32, f32>(Gemm { batch: 0, ..Gemm::dense(DType::F32, [3, 4, 5]) }, false);
}

fn batches_behind_each_other_beside_each_other_and_shared(on: &Devices) {
    let dense = Gemm { batch: 5, ..Gemm::dense(DType::F32, [37, 19, 11]) };
    let behind = Gemm { a: dense.a.every(37 * 11), b: dense.b.every(11 * 19 + 7), c: dense.c.every(37 * 19), ..dense };
    let shared = Gemm { b: dense.b, ..behind };
    // Heads side by side, as in attention; C in a larger matrix.
    let beside = Gemm { a: Operand::rows(5 * 11).every(11), c: Operand::rows(5 * 19 + 2).every(19), ..behind };
    let scores = Gemm { b: Operand::rows(5 * 11).every(11).transposed(), a: Operand::rows(5 * 11).every(11), ..behind };
    for gemm in [behind, shared, beside, scores] {
        for accumulate in [false, true] {
            let gemm = Gemm { accumulate, ..gemm };
            on.check::<f32, f32>(gemm, accumulate);
            on.check::<f64, f64>(gemm, !accumulate);
            on.check::<bf16, bf16>(gemm, accumulate);
        }
    }
}
