//! A [`Gemm`](crate::Gemm) on host memory, in tiles that the worker pool shares.
//!
//! The tiling depends on the shape alone and never splits `k`: one thread sums every element of C, in an order that does
//! not depend on the number of threads.

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
/// Its memory must be live host memory. Until this returns, nothing else may write it, or read C. [`crate::gemm::check`]
/// ensures that the shape stays inside it and that C overlaps nothing.
pub(crate) unsafe fn run_gemm(gemm: &RawGemm, workers: &Workers) {
    let shape = &gemm.shape;
    // SAFETY: by this function's contract; the memory was checked for these types.
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
struct Tile {
    batch: usize,
    row: usize,
    rows: usize,
    column: usize,
    columns: usize,
}

/// The tiling of each C: rectangles of at most `rows` by `columns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tiling {
    m: usize,
    n: usize,
    rows: usize,
    columns: usize,
    batch: usize,
}

/// The largest tile: rows and columns.
const MAX_TILE: (usize, usize) = (256, 512);
/// The smallest tile: rows and columns. Every tile packs its part of A and B again. On one thread the gradient of square
/// weights (`[192, 6400]·[6400, 192]`) ran at 137 GFLOP/s in one tile, at 121 in 4 of 96 by 96, at 112 in 8 of 48 by 96
/// and at 88 in 16 of 24 by 96.
const MIN_TILE: (usize, usize) = (96, 96);
/// The least arithmetic per tile: about 30 µs of one core.
const MIN_TILE_FLOPS: usize = 4_000_000;
/// Tiles are made smaller until there are this many.
const MIN_TILES: usize = 4;

impl Tiling {
    fn of(shape: &Gemm) -> Tiling {
        let (m, n, batch) = (shape.m as usize, shape.n as usize, shape.batch as usize);
        let mut tiling = Tiling { m, n, rows: part(m, MAX_TILE.0, 8), columns: part(n, MAX_TILE.1, 16), batch };
        let worth = |tiling: &Tiling| tiling.rows * tiling.columns * shape.k as usize * 2 >= 2 * MIN_TILE_FLOPS;
        while tiling.count() < MIN_TILES && worth(&tiling) {
            if tiling.rows > MIN_TILE.0 && (tiling.rows >= tiling.columns || tiling.columns <= MIN_TILE.1) {
                tiling.rows = part(m, tiling.rows / 2, 8);
            } else if tiling.columns > MIN_TILE.1 {
                tiling.columns = part(n, tiling.columns / 2, 16);
            } else {
                break;
            }
        }
        tiling
    }

    fn count(&self) -> usize {
        self.m.div_ceil(self.rows) * self.n.div_ceil(self.columns) * self.batch
    }

    fn tile(&self, i: usize) -> Tile {
        let (down, across) = (self.m.div_ceil(self.rows), self.n.div_ceil(self.columns));
        let (row, column) = (i / across % down * self.rows, i % across * self.columns);
        let (rows, columns) = (self.rows.min(self.m - row), self.columns.min(self.n - column));
        Tile { batch: i / (down * across), row, rows, column, columns }
    }
}

/// The length of even parts of `len`, of about `most` each, rounded up to a multiple of `step`.
fn part(len: usize, most: usize, step: usize) -> usize {
    len.div_ceil(len.div_ceil(most.max(step)).max(1)).next_multiple_of(step).max(step)
}

/// f32 and f64: multiplied in place.
///
/// # Safety
/// As [`run_gemm`], for elements of `T`.
unsafe fn run_float<T: GemmFloat>(gemm: &RawGemm, workers: &Workers) {
    let (shape, tiling) = (gemm.shape, Tiling::of(&gemm.shape));
    let operands = Operands::<T, T>::of(gemm, pointer(gemm.a.0).cast(), pointer(gemm.b.0).cast());
    let alpha = T::from_f64(shape.alpha);
    workers.each(tiling.count(), &|i| {
        let tile = tiling.tile(i);
        let (a, b) = operands.matrices(&shape, tile);
        // SAFETY: the tile is inside C and overlaps no other tile; A, B and the bias are only read. By this function's
        // contract all of it is live and not accessed by others.
        unsafe {
            if let Some(bias) = operands.bias(tile) {
                let rows = (0..tile.rows).map(|i| &mut *operands.row(&shape, tile, i));
                rows.for_each(|row| add_bias(row, &*bias, shape.accumulate));
            }
            let c = (operands.corner(&shape, tile), shape.c.stride as usize);
            let accumulate = shape.accumulate || operands.bias.is_some();
            multiply([tile.rows, tile.columns, shape.k as usize], a, b, c, alpha, accumulate);
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

/// bf16: converted to f32, multiplied there, and rounded once.
///
/// # Safety
/// As [`run_gemm`], for A and B of bf16 and C of `O`.
unsafe fn run_bf16<O: Rounded>(gemm: &RawGemm, workers: &Workers) {
    let (shape, tiling) = (gemm.shape, Tiling::of(&gemm.shape));
    // SAFETY: live and not written, by this function's contract.
    let (a, b) = unsafe { (to_f32(gemm.a, workers), to_f32(gemm.b, workers)) };
    let operands = Operands::<f32, O>::of(gemm, a.as_ptr(), b.as_ptr());
    workers.each(tiling.count(), &|i| {
        let tile = tiling.tile(i);
        let (a, b) = operands.matrices(&shape, tile);
        let mut sums = vec![0f32; tile.rows * tile.columns];
        // SAFETY: as in `run_float`; the sums are local.
        unsafe {
            for (i, sums) in sums.chunks_exact_mut(tile.columns).enumerate() {
                if shape.accumulate {
                    sums.iter_mut().zip(&*operands.row(&shape, tile, i)).for_each(|(sum, c)| *sum = c.to_f32());
                }
                if let Some(bias) = operands.bias(tile) {
                    sums.iter_mut().zip(&*bias).for_each(|(sum, bias)| *sum += bias.to_f32());
                }
            }
            let c = (sums.as_mut_ptr(), tile.columns);
            multiply([tile.rows, tile.columns, shape.k as usize], a, b, c, shape.alpha as f32, true);
            for (i, sums) in sums.chunks_exact(tile.columns).enumerate() {
                let row = &mut *operands.row(&shape, tile, i);
                row.iter_mut().zip(sums).for_each(|(c, sum)| *c = O::round(*sum));
            }
        }
    });
}

/// The bf16 values of `bytes` bytes at `at`, as f32.
///
/// # Safety
/// Live memory of bf16 that nothing writes until this returns.
unsafe fn to_f32((at, bytes): (Address, u64), workers: &Workers) -> Vec<f32> {
    // SAFETY: by this function's contract.
    let source = unsafe { slice::from_raw_parts(pointer(at).cast::<bf16>(), (bytes / DType::BF16.bytes()) as usize) };
    let mut converted = vec![0f32; source.len()];
    workers.each_chunk(&mut converted, CONVERT_CHUNK, |i, chunk| {
        source[i * CONVERT_CHUNK..][..chunk.len()].convert_to_f32_slice(chunk);
    });
    converted
}

/// Values converted per chunk.
const CONVERT_CHUNK: usize = 1 << 15;

/// The type that f32 sums are stored as.
trait Rounded: Element {
    fn round(sum: f32) -> Self;
    fn to_f32(self) -> f32;
}

impl Rounded for f32 {
    fn round(sum: f32) -> f32 {
        sum
    }
    fn to_f32(self) -> f32 {
        self
    }
}

impl Rounded for bf16 {
    fn round(sum: f32) -> bf16 {
        bf16::from_f32(sum)
    }
    fn to_f32(self) -> f32 {
        self.to_f32()
    }
}

/// Pointers to a GEMM's matrices: A and B of `T`, C and the bias of `O`.
struct Operands<T, O> {
    a: *const T,
    b: *const T,
    c: *mut O,
    bias: Option<*const O>,
}

// SAFETY: plain addresses; every use of them has its own safety argument.
unsafe impl<T: Sync, O: Send> Sync for Operands<T, O> {}

impl<T, O> Operands<T, O> {
    fn of(gemm: &RawGemm, a: *const T, b: *const T) -> Operands<T, O> {
        let bias = gemm.bias.map(|(at, _)| pointer(at).cast_const().cast());
        Operands { a, b, c: pointer(gemm.c.0).cast(), bias }
    }

    /// The rows of op(A) and the columns of op(B) for a tile.
    fn matrices(&self, shape: &Gemm, tile: Tile) -> (RawMatrix<T>, RawMatrix<T>) {
        let at = |from: *const T, operand: &Operand, (row, column): (usize, usize)| {
            let (row, column) = if operand.transposed { (column, row) } else { (row, column) };
            let stride = operand.stride as usize;
            let offset = tile.batch * operand.batch_stride as usize + row * stride + column;
            // Wrapping: with k = 0 the address may be out of bounds, and nothing is read.
            RawMatrix { at: from.wrapping_add(offset), stride, transposed: operand.transposed }
        };
        (at(self.a, &shape.a, (tile.row, 0)), at(self.b, &shape.b, (0, tile.column)))
    }

    /// The first element of a tile.
    fn corner(&self, shape: &Gemm, tile: Tile) -> *mut O {
        let batch = tile.batch * shape.c.batch_stride as usize;
        self.c.wrapping_add(batch + tile.row * shape.c.stride as usize + tile.column)
    }

    /// Row `i` of a tile.
    fn row(&self, shape: &Gemm, tile: Tile, i: usize) -> *mut [O] {
        let at = self.corner(shape, tile).wrapping_add(i * shape.c.stride as usize);
        ptr::slice_from_raw_parts_mut(at, tile.columns)
    }

    /// The part of the bias for a tile.
    fn bias(&self, tile: Tile) -> Option<*const [O]> {
        self.bias.map(|bias| ptr::slice_from_raw_parts(bias.wrapping_add(tile.column), tile.columns))
    }
}

#[cfg(test)]
mod tests;
