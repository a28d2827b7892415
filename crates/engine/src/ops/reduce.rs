//! Reductions: sums over rows (the gradient of a bias), over columns, over all elements; and their gradient, a broadcast.

use half::bf16;
use tandem_device::{DType, Grid, HostArgs, Kernel, Source, kernel_args};

use super::pointwise::{Function, Indexing, broadcast, identity_function};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::tensor::{Shape, TensorType, accumulator};
use crate::{for_real, named_for};

/// The CUDA source of the sums.
pub(super) static SOURCE: Source =
    Source { file: "engine/reduce.cu", text: concat!(include_str!("partial_sums.cuh"), include_str!("reduce.cu")) };

/// Rows per chunk, least and most. On a card, a thread block reads 128 rows per iteration.
const ROWS_PER_CHUNK: [u32; 2] = [128, 512];
/// The number of thread blocks to aim for, unless chunks get too small: a multiprocessor holds four, and an H200 has 132
/// multiprocessors. A few blocks more would take a second wave.
const BLOCKS: u32 = 528;
/// Rows of at least as many columns are summed by a thread block each, shorter ones by a warp.
const LONG_ROW: u32 = 4096;

/// The sum over every row of `[rows, columns]`, in the accumulator type.
#[derive(Debug)]
struct SumRows;

/// The sum of each row of `[rows, columns]`, in the accumulator type.
#[derive(Debug)]
struct SumColumns;

/// A tensor broadcast to a larger shape.
#[derive(Debug)]
struct Spread(Shape);

impl Op for SumRows {
    fn name(&self) -> &'static str {
        "sum_rows"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        match inputs {
            [ty] if ty.shape.rank() == 2 => Ok(vec![TensorType::new(accumulator(ty.dtype), &[ty.shape.last()])]),
            _ => refuse("sum_rows", "takes [rows, columns]", inputs),
        }
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        spread_back(at)
    }

    fn scratch(&self, inputs: &[TensorType], outputs: &[TensorType]) -> Vec<u64> {
        vec![u64::from(RowChunks::of(inputs[0]).count) * outputs[0].bytes()]
    }

    fn can_accumulate(&self, _: usize) -> bool {
        true
    }

    fn runs_on_side_stream(&self) -> bool {
        true
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (x, sums) = (at.inputs[0], at.outputs[0]);
        let (rows, columns) = (x.ty.shape.rows(), x.ty.shape.last());
        let chunks = RowChunks::of(x.ty);
        let partial = TensorType::new(sums.ty.dtype, &[chunks.count, columns]);
        let partial = Tensor { ty: partial, ..at.scratch[0] };
        // A thread block strides over chunks if there are more than a grid allows.
        let blocks = [chunks.tiles, chunks.count.min(u32::from(u16::MAX)), 1];
        let grid = Grid { blocks, threads: 256, shared_bytes: 0 };
        let kernel = for_real!("sum_rows", x.ty.dtype, T => &Sums::<T>::PARTIAL_ROWS);
        at.launch(kernel, grid, SumRowsPartialArgs { x, partial, rows, columns, rows_per_chunk: chunks.rows });
        combine(at, partial, sums, at.accumulates(0))
    }
}

/// Adds the rows of `partial` `[chunks, columns]` in order, and stores the sums or adds them to `sums`.
pub(super) fn combine(at: &mut Lower<'_>, partial: Tensor, sums: Tensor, accumulate: bool) -> Result<(), EngineError> {
    let (chunks, columns) = (partial.ty.shape.rows(), partial.ty.shape.last());
    let kernel = for_real!("sum_rows", sums.ty.dtype, T => &Sums::<T>::COMBINE);
    let grid = Grid { blocks: [columns.div_ceil(32).max(1), 1, 1], threads: 1024, shared_bytes: 0 };
    at.launch(kernel, grid, SumRowsCombineArgs { partial, sums, chunks, columns, accumulate: accumulate.into() });
    Ok(())
}

/// How a tensor is divided into chunks of rows. That depends on its type alone, so the order of additions does too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowChunks {
    /// Tiles of a row: a thread block reads 16 times 16 bytes of a row at a time.
    tiles: u32,
    /// Rows per chunk.
    rows: u32,
    count: u32,
}

impl RowChunks {
    fn of(x: TensorType) -> RowChunks {
        let tile = 16 * if x.dtype == DType::BF16 { 8 } else { 4 };
        let tiles = x.shape.last().div_ceil(tile).max(1);
        let [least, most] = ROWS_PER_CHUNK;
        let rows = x.shape.rows().div_ceil((BLOCKS / tiles).max(1)).clamp(least, most);
        RowChunks { tiles, rows, count: x.shape.rows().div_ceil(rows).max(1) }
    }
}

impl Op for SumColumns {
    fn name(&self) -> &'static str {
        "sum_columns"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        match inputs {
            [ty] if ty.shape.rank() == 2 => Ok(vec![TensorType::new(accumulator(ty.dtype), &[ty.shape.rows(), 1])]),
            _ => refuse("sum_columns", "takes [rows, columns]", inputs),
        }
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        spread_back(at)
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (x, sums) = (at.inputs[0], at.outputs[0]);
        let (rows, columns) = (x.ty.shape.rows(), x.ty.shape.last());
        let kernel = for_real!("sum_columns", x.ty.dtype, T => &Sums::<T>::COLUMNS);
        let threads_per_row = if columns < LONG_ROW { 32 } else { 256 };
        let grid = Grid::cover(u64::from(rows) * threads_per_row, 256);
        at.launch(kernel, grid, SumColumnsArgs { x, sums, rows, columns });
        Ok(())
    }
}

/// The gradient of a sum: broadcast to every summand.
fn spread_back(at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
    let Some(gradient) = at.first() else { return Ok(vec![None]) };
    let ty = at.graph.ty(at.inputs[0]);
    let spread = at.graph.broadcast_to(gradient, ty.shape)?;
    Ok(vec![Some(at.graph.cast(spread, ty.dtype)?)])
}

impl Op for Spread {
    fn name(&self) -> &'static str {
        "spread"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        match inputs {
            [ty] if broadcast(ty.shape, self.0).is_some() => Ok(vec![TensorType { shape: self.0, ..*ty }]),
            _ => refuse("spread", format!("cannot be broadcast to {}", self.0), inputs),
        }
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first() else { return Ok(vec![None]) };
        let like = at.graph.shape(at.inputs[0]);
        Ok(vec![Some(at.graph.sum_to(gradient, like)?)])
    }

    fn pointwise(&self) -> Option<&'static Function> {
        Some(identity_function())
    }

    fn lower(&self, _: &mut Lower<'_>) -> Result<(), EngineError> {
        unreachable!("a broadcast is lowered as part of a chain")
    }
}

kernel_args! {
    /// Arguments of `sum_rows_partial`.
    struct SumRowsPartialArgs<T: Real> { x: in T, partial: out T::Acc, rows: u32, columns: u32, rows_per_chunk: u32 }
}

kernel_args! {
    /// Arguments of `sum_rows_combine`.
    struct SumRowsCombineArgs<T: Real> { partial: in T, sums: out T, chunks: u32, columns: u32, accumulate: u32 }
}

kernel_args! {
    /// Arguments of `sum_columns`.
    struct SumColumnsArgs<T: Real> { x: in T, sums: out T::Acc, rows: u32, columns: u32 }
}

struct Sums<T>(std::marker::PhantomData<T>);

impl<T: Real> Sums<T> {
    const PARTIAL_ROWS: Kernel = Kernel {
        name: named_for!(T, "sum_rows_partial"),
        source: on_cuda::<T>(&SOURCE),
        params: SumRowsPartialArgs::params::<T>(),
        host: &partial_rows::<T>,
    };

    const COMBINE: Kernel = Kernel {
        name: named_for!(T, "sum_rows_combine"),
        source: on_cuda::<T>(&SOURCE),
        params: SumRowsCombineArgs::params::<T>(),
        host: &combine_rows::<T>,
    };

    const COLUMNS: Kernel = Kernel {
        name: named_for!(T, "sum_columns"),
        source: on_cuda::<T>(&SOURCE),
        params: SumColumnsArgs::params::<T>(),
        host: &columns::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] = &[
    &Sums::<f32>::PARTIAL_ROWS,
    &Sums::<bf16>::PARTIAL_ROWS,
    &Sums::<f32>::COMBINE,
    &Sums::<f32>::COLUMNS,
    &Sums::<bf16>::COLUMNS,
];

fn partial_rows<T: Real>(args: &mut HostArgs<'_>) {
    let SumRowsPartialArgs { x, partial, rows, columns, rows_per_chunk } = SumRowsPartialArgs::host::<T>(args);
    let [rows, columns, rows_per_chunk] = [rows, columns, rows_per_chunk].map(|n| n as usize);
    let x = &x[..rows * columns];
    args.workers().each_chunk(partial, columns.max(1), |chunk, sums| {
        sums.fill(T::Acc::zero());
        for row in chunk * rows_per_chunk..rows.min((chunk + 1) * rows_per_chunk) {
            let row = &x[row * columns..(row + 1) * columns];
            sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += x.load());
        }
    });
}

fn combine_rows<T: Real>(args: &mut HostArgs<'_>) {
    let SumRowsCombineArgs { partial, sums, chunks, columns, accumulate } = SumRowsCombineArgs::host::<T>(args);
    let (chunks, columns) = (chunks as usize, columns as usize);
    for (column, sum) in sums[..columns].iter_mut().enumerate() {
        let mut total = T::Acc::zero();
        for chunk in 0..chunks {
            total += partial[chunk * columns + column].load();
        }
        *sum = T::store(if accumulate != 0 { sum.load() + total } else { total });
    }
}

fn columns<T: Real>(args: &mut HostArgs<'_>) {
    let SumColumnsArgs { x, sums, rows, columns } = SumColumnsArgs::host::<T>(args);
    let (rows, columns) = (rows as usize, columns as usize);
    let (x, sums) = (&x[..rows * columns], &mut sums[..rows]);
    const ROWS: usize = 64;
    args.workers().each_chunk(sums, ROWS, |chunk, sums| {
        for (i, sum) in sums.iter_mut().enumerate() {
            let row = (chunk * ROWS + i) * columns;
            *sum = sum_of(&x[row..row + columns]);
        }
    });
}

/// The sum of a slice, in eight lanes that are added in order.
pub(crate) fn sum_of<T: Real>(x: &[T]) -> T::Acc {
    let mut lanes = [T::Acc::zero(); 8];
    let blocks = x.chunks_exact(8);
    let rest: T::Acc = blocks.remainder().iter().map(|x| x.load()).sum();
    for block in blocks {
        lanes.iter_mut().zip(block).for_each(|(lane, x)| *lane += x.load());
    }
    lanes.into_iter().sum::<T::Acc>() + rest
}

impl Graph {
    /// Sums `[rows, columns]` over its rows: `[columns]`, in the accumulator type.
    pub fn sum_rows(&mut self, x: Value) -> Result<Value, EngineError> {
        self.push(SumRows, &[x])
    }

    /// Sums each row of `[rows, columns]`: `[rows, 1]`, in the accumulator type.
    pub fn sum_columns(&mut self, x: Value) -> Result<Value, EngineError> {
        self.push(SumColumns, &[x])
    }

    /// The sum of everything, one number in the accumulator type.
    pub fn sum_all(&mut self, x: Value) -> Result<Value, EngineError> {
        let shape = self.shape(x);
        let flat = self.reshape(x, &[shape.rows(), shape.last()])?;
        let sums = self.sum_rows(flat)?;
        let last = self.shape(sums).last();
        let line = self.reshape(sums, &[1, last])?;
        let sum = self.sum_columns(line)?;
        self.reshape(sum, &[1])
    }

    /// Sums `x` to the shape it was broadcast from.
    pub fn sum_to(&mut self, x: Value, like: Shape) -> Result<Value, EngineError> {
        let TensorType { shape, dtype } = self.ty(x);
        let sums = match broadcast(like, shape) {
            Some(Indexing::Full) => return Ok(x),
            Some(Indexing::Periodic(1)) => self.sum_all(x)?,
            Some(Indexing::Periodic(period)) => {
                let flat = self.reshape(x, &[(shape.elements() / u64::from(period)) as u32, period])?;
                self.sum_rows(flat)?
            }
            Some(Indexing::Repeated(run)) => {
                let flat = self.reshape(x, &[(shape.elements() / u64::from(run)) as u32, run])?;
                self.sum_columns(flat)?
            }
            None => return refuse("sum_to", format!("was not broadcast from {like}"), &[TensorType { shape, dtype }]),
        };
        self.reshape(sums, like.dims())
    }

    /// Broadcasts `x` to a larger shape, as element-wise ops do implicitly.
    pub fn broadcast_to(&mut self, x: Value, shape: Shape) -> Result<Value, EngineError> {
        if self.shape(x) == shape { Ok(x) } else { self.push(Spread(shape), &[x]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GradientCheck, check_gradients, run};

    /// Rows per chunk, and thread blocks.
    fn chunks_and_blocks(dtype: DType, rows: u32, columns: u32) -> (u32, u32) {
        let x = TensorType::new(dtype, &[rows, columns]);
        let chunks = RowChunks::of(x);
        assert!(chunks.count * chunks.rows >= rows && (chunks.count - 1) * chunks.rows < rows.max(1), "{chunks:?}");
        (chunks.rows, chunks.tiles * chunks.count)
    }

    #[test]
    fn large_sums_have_one_wave_of_thread_blocks() {
        let found = [(12_800, 1024), (8192, 2304), (8192, 3072), (4096, 4096)]
            .map(|(r, c)| chunks_and_blocks(DType::BF16, r, c));
        assert_eq!(found, [(194, 528), (283, 522), (373, 528), (256, 512)]);
        // Few columns: smaller chunks would be more blocks, and more partial sums to add.
        let found = [(12_800, 256), (8192, 768), (1, 1), (0, 8)].map(|(r, c)| chunks_and_blocks(DType::BF16, r, c));
        assert_eq!(found, [(128, 200), (128, 384), (128, 1), (128, 1)]);
        // Many rows or columns: blocks stay short enough for an even load.
        let found = [(1_000_000, 8), (4096, 100_000)].map(|(r, c)| chunks_and_blocks(DType::F32, r, c));
        assert_eq!(found, [(512, 1954), (512, 12_504)]);
    }

    #[test]
    fn gradients() {
        for dims in [[1, 1], [3, 5], [300, 7], [2, 64], [129, 264], [140, 72], [1300, 8]] {
            check_gradients(GradientCheck::new().input(&dims), |g, x| g.sum_rows(x[0]));
            check_gradients(GradientCheck::new().input(&dims), |g, x| g.sum_columns(x[0]));
            check_gradients(GradientCheck::new().input(&dims), |g, x| g.sum_all(x[0]));
        }
        check_gradients(GradientCheck::new().input(&[5]), |g, x| g.broadcast_to(x[0], Shape::new(&[3, 5])));
        check_gradients(GradientCheck::new().input(&[3, 1]), |g, x| g.broadcast_to(x[0], Shape::new(&[3, 5])));
    }

    #[test]
    fn sums_are_sums() {
        let x: Vec<f64> = (0..600).map(f64::from).collect();
        let sums = run(GradientCheck::new().given(&[300, 2], &x), |g, x| g.sum_rows(x[0]));
        assert_eq!(sums, [89_700.0, 90_000.0]);
        let sums = run(GradientCheck::new().given(&[2, 300], &x), |g, x| g.sum_columns(x[0]));
        assert_eq!(sums, [44_850.0, 134_850.0]);
        // So many columns that a chunk has more rows than the least.
        let (rows, columns) = (130, 17_000);
        let x: Vec<f64> = (0..rows * columns).map(|i| f64::from(i / columns)).collect();
        let sums = run(GradientCheck::new().given(&[rows, columns], &x), |g, x| g.sum_rows(x[0]));
        assert_eq!(sums, vec![8385.0; columns as usize]);
    }
}
