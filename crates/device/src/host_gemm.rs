//! A [`Gemm`](crate::Gemm) on host memory, cut into pieces that the compute pool shares.
//!
//! The cut depends on the shape alone and never goes through `k`: every element of C is one sum by one thread, in an
//! order that no number of threads changes.

use std::{ptr, slice};

use half::bf16;
use half::slice::HalfFloatSliceExt;

use crate::driver::Address;
use crate::gemm::{Gemm, Operand, RawGemm};
use crate::host::{GemmFloat, RawMatrix, multiply};
use crate::host_exec::pointer;
use crate::kernel::{DType, Element};
use crate::workers::Workers;

/// Computes the GEMM.
///
/// # Safety
/// Its memory must be live host memory that nothing else writes, and nothing reads where C lies, until this returns.
/// [`crate::gemm::check`] has seen to it that the shape stays inside it and that C overlaps nothing.
pub(crate) unsafe fn run_gemm(gemm: &RawGemm, workers: &Workers) {
    let shape = &gemm.shape;
    // SAFETY: by this function's contract; the types are those the memory was checked for.
    unsafe {
        match (shape.dtype, shape.out) {
            (DType::F32, _) => run_float::<f32>(gemm, workers),
            (DType::F64, _) => run_float::<f64>(gemm, workers),
            (_, DType::BF16) => run_bf16::<bf16>(gemm, workers),
            _ => run_bf16::<f32>(gemm, workers),
        }
    }
}

/// A rectangle of C of one matrix of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    batch: usize,
    row: usize,
    rows: usize,
    column: usize,
    columns: usize,
}

/// How each C is cut: into rectangles of at most `rows` by `columns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    m: usize,
    n: usize,
    rows: usize,
    columns: usize,
    batch: usize,
}

/// Rows and columns of a piece, at most.
const LARGEST: (usize, usize) = (256, 512);
/// Rows and columns of a piece, at least: every piece packs its part of A and B anew. On one thread the gradient of
/// square weights (`[192, 6400]·[6400, 192]`) ran at 137 GFLOP/s in one piece, at 121 in 4 of 96 by 96, at 112 in 8 of
/// 48 by 96 and at 88 in 16 of 24 by 96.
const SMALLEST: (usize, usize) = (96, 96);
/// Arithmetic that is worth a piece: about 30 µs of one core.
const SMALLEST_FLOPS: usize = 4_000_000;
/// Smaller pieces are made until there are so many.
const ENOUGH: usize = 4;

impl Cut {
    fn of(shape: &Gemm) -> Cut {
        let (m, n, batch) = (shape.m as usize, shape.n as usize, shape.batch as usize);
        let mut cut = Cut { m, n, rows: part(m, LARGEST.0, 8), columns: part(n, LARGEST.1, 16), batch };
        let worth = |cut: &Cut| cut.rows * cut.columns * shape.k as usize * 2 >= 2 * SMALLEST_FLOPS;
        while cut.count() < ENOUGH && worth(&cut) {
            if cut.rows > SMALLEST.0 && (cut.rows >= cut.columns || cut.columns <= SMALLEST.1) {
                cut.rows = part(m, cut.rows / 2, 8);
            } else if cut.columns > SMALLEST.1 {
                cut.columns = part(n, cut.columns / 2, 16);
            } else {
                break;
            }
        }
        cut
    }

    fn count(&self) -> usize {
        self.m.div_ceil(self.rows) * self.n.div_ceil(self.columns) * self.batch
    }

    fn piece(&self, i: usize) -> Piece {
        let (down, across) = (self.m.div_ceil(self.rows), self.n.div_ceil(self.columns));
        let (row, column) = (i / across % down * self.rows, i % across * self.columns);
        let (rows, columns) = (self.rows.min(self.m - row), self.columns.min(self.n - column));
        Piece { batch: i / (down * across), row, rows, column, columns }
    }
}

/// The length of even parts of `len`, of about `most` each, in whole steps.
fn part(len: usize, most: usize, step: usize) -> usize {
    len.div_ceil(len.div_ceil(most.max(step)).max(1)).next_multiple_of(step).max(step)
}

/// f32 and f64: multiplied where they lie.
///
/// # Safety
/// As [`run_gemm`], for elements of `T`.
unsafe fn run_float<T: GemmFloat>(gemm: &RawGemm, workers: &Workers) {
    let (shape, cut) = (gemm.shape, Cut::of(&gemm.shape));
    let memory = Memory::<T, T>::of(gemm, pointer(gemm.a.0).cast(), pointer(gemm.b.0).cast());
    let alpha = T::from_f64(shape.alpha);
    workers.each(cut.count(), &|i| {
        let piece = cut.piece(i);
        let (a, b) = memory.operands(&shape, piece);
        // SAFETY: the piece lies inside C and no other piece has its elements; A, B and the bias are only read. By this
        // function's contract all of it is live and nobody else's.
        unsafe {
            if let Some(bias) = memory.bias(piece) {
                let rows = (0..piece.rows).map(|i| &mut *memory.row(&shape, piece, i));
                rows.for_each(|row| add_bias(row, &*bias, shape.accumulate));
            }
            let c = (memory.corner(&shape, piece), shape.c.stride as usize);
            let accumulate = shape.accumulate || memory.bias.is_some();
            multiply([piece.rows, piece.columns, shape.k as usize], a, b, c, alpha, accumulate);
        }
    });
}

/// `row + bias` with `accumulate`, else the bias.
fn add_bias<T: GemmFloat>(row: &mut [T], bias: &[T], accumulate: bool) {
    match accumulate {
        true => row.iter_mut().zip(bias).for_each(|(c, bias)| *c = *c + *bias),
        false => row.copy_from_slice(bias),
    }
}

/// bf16: made f32 on the side, multiplied there, and rounded once.
///
/// # Safety
/// As [`run_gemm`], for A and B of bf16 and C of `O`.
unsafe fn run_bf16<O: Rounded>(gemm: &RawGemm, workers: &Workers) {
    let (shape, cut) = (gemm.shape, Cut::of(&gemm.shape));
    // SAFETY: live and not written, by this function's contract.
    let (a, b) = unsafe { (widened(gemm.a, workers), widened(gemm.b, workers)) };
    let memory = Memory::<f32, O>::of(gemm, a.as_ptr(), b.as_ptr());
    workers.each(cut.count(), &|i| {
        let piece = cut.piece(i);
        let (a, b) = memory.operands(&shape, piece);
        let mut sums = vec![0f32; piece.rows * piece.columns];
        // SAFETY: as in `run_float`; the sums are our own.
        unsafe {
            for (i, sums) in sums.chunks_exact_mut(piece.columns).enumerate() {
                if shape.accumulate {
                    sums.iter_mut().zip(&*memory.row(&shape, piece, i)).for_each(|(sum, c)| *sum = c.wide());
                }
                if let Some(bias) = memory.bias(piece) {
                    sums.iter_mut().zip(&*bias).for_each(|(sum, bias)| *sum += bias.wide());
                }
            }
            let c = (sums.as_mut_ptr(), piece.columns);
            multiply([piece.rows, piece.columns, shape.k as usize], a, b, c, shape.alpha as f32, true);
            for (i, sums) in sums.chunks_exact(piece.columns).enumerate() {
                let row = &mut *memory.row(&shape, piece, i);
                row.iter_mut().zip(sums).for_each(|(c, sum)| *c = O::round(*sum));
            }
        }
    });
}

/// The bf16 values of `bytes` bytes at `at`, as f32.
///
/// # Safety
/// Live memory of bf16 that nothing writes until this returns.
unsafe fn widened((at, bytes): (Address, u64), workers: &Workers) -> Vec<f32> {
    // SAFETY: by this function's contract.
    let narrow = unsafe { slice::from_raw_parts(pointer(at).cast::<bf16>(), (bytes / DType::BF16.bytes()) as usize) };
    let mut wide = vec![0f32; narrow.len()];
    workers.each_chunk(&mut wide, WIDEN, |i, wide| narrow[i * WIDEN..][..wide.len()].convert_to_f32_slice(wide));
    wide
}

/// Values that are widened at a time.
const WIDEN: usize = 1 << 15;

/// What sums in f32 are stored as.
trait Rounded: Element {
    fn round(sum: f32) -> Self;
    fn wide(self) -> f32;
}

impl Rounded for f32 {
    fn round(sum: f32) -> f32 {
        sum
    }
    fn wide(self) -> f32 {
        self
    }
}

impl Rounded for bf16 {
    fn round(sum: f32) -> bf16 {
        bf16::from_f32(sum)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
}

/// Where a GEMM's matrices begin: A and B of `T`, C and the bias of `O`.
struct Memory<T, O> {
    a: *const T,
    b: *const T,
    c: *mut O,
    bias: Option<*const O>,
}

// SAFETY: addresses; who may touch what is behind them is said where they are used.
unsafe impl<T: Sync, O: Send> Sync for Memory<T, O> {}

impl<T, O> Memory<T, O> {
    fn of(gemm: &RawGemm, a: *const T, b: *const T) -> Memory<T, O> {
        let bias = gemm.bias.map(|(at, _)| pointer(at).cast_const().cast());
        Memory { a, b, c: pointer(gemm.c.0).cast(), bias }
    }

    /// The rows of op(A) and the columns of op(B) that a piece is made of.
    fn operands(&self, shape: &Gemm, piece: Piece) -> (RawMatrix<T>, RawMatrix<T>) {
        let at = |from: *const T, operand: &Operand, (row, column): (usize, usize)| {
            let (row, column) = if operand.transposed { (column, row) } else { (row, column) };
            let stride = operand.stride as usize;
            let offset = piece.batch * operand.batch_stride as usize + row * stride + column;
            // Wrapping: with k = 0 nothing lies there, and nothing is read.
            RawMatrix { at: from.wrapping_add(offset), stride, transposed: operand.transposed }
        };
        (at(self.a, &shape.a, (piece.row, 0)), at(self.b, &shape.b, (0, piece.column)))
    }

    /// The first element of a piece.
    fn corner(&self, shape: &Gemm, piece: Piece) -> *mut O {
        let batch = piece.batch * shape.c.batch_stride as usize;
        self.c.wrapping_add(batch + piece.row * shape.c.stride as usize + piece.column)
    }

    /// Row `i` of a piece.
    fn row(&self, shape: &Gemm, piece: Piece, i: usize) -> *mut [O] {
        let at = self.corner(shape, piece).wrapping_add(i * shape.c.stride as usize);
        ptr::slice_from_raw_parts_mut(at, piece.columns)
    }

    /// What is added to every row of a piece.
    fn bias(&self, piece: Piece) -> Option<*const [O]> {
        self.bias.map(|bias| ptr::slice_from_raw_parts(bias.wrapping_add(piece.column), piece.columns))
    }
}

#[cfg(test)]
mod tests;
