//! Sums: over rows (the gradient of a bias), over columns, over everything; and their gradient, which spreads.

use tandem_device::{DType, Grid, HostArgs, Kernel, Param, Source};

use super::pointwise::{Function, Indexing, broadcast, same_function};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{LaunchArg, Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::tensor::{Shape, TensorType, accumulator};
use crate::{for_real, named_for};

/// Its kernels.
pub(super) static SOURCE: Source =
    Source { file: "engine/reduce.cu", text: concat!(include_str!("pieces.cuh"), include_str!("reduce.cu")) };

/// Rows that are summed before the sums are, at least and at most. On a card 128 are one round of reads of a block.
const ROWS_OF_A_PIECE: [u32; 2] = [128, 512];
/// Blocks that rows are cut into pieces for, where pieces do not get too small: a multiprocessor has room for four, and
/// an H200 has 132 of those. With a few blocks more, all of it would wait for those few.
const BLOCKS: u32 = 528;
/// Rows of at least as many columns are summed by a block each, shorter ones by a warp.
const LONG_ROW: u32 = 4096;

/// The sum over every row of `[rows, columns]`, in the wide element type.
#[derive(Debug)]
struct SumRows;

/// The sum of each row of `[rows, columns]`, in the wide element type.
#[derive(Debug)]
struct SumColumns;

/// One tensor spread over a larger shape.
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
        vec![u64::from(Pieces::of(inputs[0]).count) * outputs[0].bytes()]
    }

    fn can_add(&self, _: usize) -> bool {
        true
    }

    fn runs_beside(&self) -> bool {
        true
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (x, sums) = (at.inputs[0], at.outputs[0]);
        let (rows, columns) = (x.ty.shape.rows(), x.ty.shape.last());
        let pieces = Pieces::of(x.ty);
        let partial = TensorType::new(sums.ty.dtype, &[pieces.count, columns]);
        let partial = Tensor { ty: partial, ..at.scratch[0] };
        // A block strides over pieces where there are more than a grid takes.
        let blocks = [pieces.tiles, pieces.count.min(u32::from(u16::MAX)), 1];
        let grid = Grid { blocks, threads: 256, shared_bytes: 0 };
        let kernel = for_real!("sum_rows", x.ty.dtype, T => &Sums::<T>::PARTIAL_ROWS);
        let numbers = [rows, columns, pieces.rows].map(LaunchArg::U32);
        at.launch(kernel, grid, [x.read(), partial.write()].into_iter().chain(numbers).collect());
        let kernel = for_real!("sum_rows", sums.ty.dtype, T => &Sums::<T>::COMBINE);
        let numbers = [pieces.count, columns, at.adds(0).into()].map(LaunchArg::U32);
        at.launch(kernel, combining(columns), [partial.read(), sums.write()].into_iter().chain(numbers).collect());
        Ok(())
    }
}

/// The grid of [`Sums::COMBINE`].
pub(super) fn combining(columns: u32) -> Grid {
    Grid { blocks: [columns.div_ceil(32).max(1), 1, 1], threads: 1024, shared_bytes: 0 }
}

/// How a tensor is cut for sums over its rows. That depends on its type alone, so the order of additions does too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pieces {
    /// Of a row. A block reads 16 times 16 bytes of it at a time.
    tiles: u32,
    /// Rows of a piece.
    rows: u32,
    count: u32,
}

impl Pieces {
    fn of(x: TensorType) -> Pieces {
        let tile = 16 * if x.dtype == DType::BF16 { 8 } else { 4 };
        let tiles = x.shape.last().div_ceil(tile).max(1);
        let [least, most] = ROWS_OF_A_PIECE;
        let rows = x.shape.rows().div_ceil((BLOCKS / tiles).max(1)).clamp(least, most);
        Pieces { tiles, rows, count: x.shape.rows().div_ceil(rows).max(1) }
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
        let args = vec![x.read(), sums.write(), LaunchArg::U32(rows), LaunchArg::U32(columns)];
        let of_a_row = if columns < LONG_ROW { 32 } else { 256 };
        at.launch(kernel, Grid::cover(u64::from(rows) * of_a_row, 256), args);
        Ok(())
    }
}

/// The gradient of a sum, at every element that went into it.
fn spread_back(at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
    let Some(gradient) = at.first() else { return Ok(vec![None]) };
    let ty = at.graph.ty(at.inputs[0]);
    let spread = at.graph.spread(gradient, ty.shape)?;
    Ok(vec![Some(at.graph.cast(spread, ty.dtype)?)])
}

impl Op for Spread {
    fn name(&self) -> &'static str {
        "spread"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        match inputs {
            [ty] if broadcast(ty.shape, self.0).is_some() => Ok(vec![TensorType { shape: self.0, ..*ty }]),
            _ => refuse("spread", format!("cannot be spread over {}", self.0), inputs),
        }
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first() else { return Ok(vec![None]) };
        let like = at.graph.shape(at.inputs[0]);
        Ok(vec![Some(at.graph.sum_to(gradient, like)?)])
    }

    fn pointwise(&self) -> Option<&'static Function> {
        Some(same_function())
    }

    fn lower(&self, _: &mut Lower<'_>) -> Result<(), EngineError> {
        unreachable!("a spread is lowered as part of a chain")
    }
}

pub(super) struct Sums<T>(std::marker::PhantomData<T>);

impl<T: Real> Sums<T> {
    const PARTIAL_ROWS: Kernel = Kernel {
        name: named_for!(T, "sum_rows_partial"),
        source: on_cuda::<T>(&SOURCE),
        params: &[
            Param::In(T::DTYPE),
            Param::Out(<T::Acc as tandem_device::Element>::DTYPE),
            Param::U32,
            Param::U32,
            Param::U32,
        ],
        host: &partial_rows::<T>,
    };

    /// `pieces` rows of `columns` sums, added in order.
    pub(super) const COMBINE: Kernel = Kernel {
        name: named_for!(T, "sum_rows_combine"),
        source: on_cuda::<T>(&SOURCE),
        params: &[Param::In(T::DTYPE), Param::Out(T::DTYPE), Param::U32, Param::U32, Param::U32],
        host: &combine::<T>,
    };

    const COLUMNS: Kernel = Kernel {
        name: named_for!(T, "sum_columns"),
        source: on_cuda::<T>(&SOURCE),
        params: &[Param::In(T::DTYPE), Param::Out(<T::Acc as tandem_device::Element>::DTYPE), Param::U32, Param::U32],
        host: &columns::<T>,
    };
}

fn partial_rows<T: Real>(args: &mut HostArgs<'_>) {
    let [rows, columns, of_a_piece] = [2, 3, 4].map(|i| args.u32(i) as usize);
    let x = &args.read::<T>(0)[..rows * columns];
    let workers = args.workers();
    let partial = args.write::<T::Acc>(1);
    workers.each_chunk(partial, columns.max(1), |piece, sums| {
        sums.fill(T::Acc::zero());
        for row in piece * of_a_piece..rows.min((piece + 1) * of_a_piece) {
            let row = &x[row * columns..(row + 1) * columns];
            sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += x.load());
        }
    });
}

fn combine<T: Real>(args: &mut HostArgs<'_>) {
    let (pieces, columns, adds) = (args.u32(2) as usize, args.u32(3) as usize, args.u32(4) != 0);
    let partial = args.read::<T>(0);
    let sums = &mut args.write::<T>(1)[..columns];
    for (column, sum) in sums.iter_mut().enumerate() {
        let mut total = T::Acc::zero();
        for piece in 0..pieces {
            total += partial[piece * columns + column].load();
        }
        *sum = T::store(if adds { sum.load() + total } else { total });
    }
}

fn columns<T: Real>(args: &mut HostArgs<'_>) {
    let (rows, columns) = (args.u32(2) as usize, args.u32(3) as usize);
    let x = &args.read::<T>(0)[..rows * columns];
    let workers = args.workers();
    let sums = &mut args.write::<T::Acc>(1)[..rows];
    const ROWS: usize = 64;
    workers.each_chunk(sums, ROWS, |piece, sums| {
        for (i, sum) in sums.iter_mut().enumerate() {
            let row = (piece * ROWS + i) * columns;
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
    /// Sums `[rows, columns]` over its rows: `[columns]`, in the wide element type.
    pub fn sum_rows(&mut self, x: Value) -> Result<Value, EngineError> {
        self.push(SumRows, &[x])
    }

    /// Sums each row of `[rows, columns]`: `[rows, 1]`, in the wide element type.
    pub fn sum_columns(&mut self, x: Value) -> Result<Value, EngineError> {
        self.push(SumColumns, &[x])
    }

    /// The sum of everything, one number in the wide element type.
    pub fn sum_all(&mut self, x: Value) -> Result<Value, EngineError> {
        let shape = self.shape(x);
        let flat = self.reshape(x, &[shape.rows(), shape.last()])?;
        let sums = self.sum_rows(flat)?;
        let last = self.shape(sums).last();
        let line = self.reshape(sums, &[1, last])?;
        let sum = self.sum_columns(line)?;
        self.reshape(sum, &[1])
    }

    /// Sums `x` down to the shape it was spread from.
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
            None => return refuse("sum_to", format!("was not spread from {like}"), &[TensorType { shape, dtype }]),
        };
        self.reshape(sums, like.dims())
    }

    /// Spreads `x` over a larger shape, as element-wise functions do by themselves.
    pub fn spread(&mut self, x: Value, shape: Shape) -> Result<Value, EngineError> {
        if self.shape(x) == shape { Ok(x) } else { self.push(Spread(shape), &[x]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GradientCheck, check_gradients, run};

    /// Rows of a piece, and blocks.
    fn cut(dtype: DType, rows: u32, columns: u32) -> (u32, u32) {
        let x = TensorType::new(dtype, &[rows, columns]);
        let pieces = Pieces::of(x);
        assert!(pieces.count * pieces.rows >= rows && (pieces.count - 1) * pieces.rows < rows.max(1), "{pieces:?}");
        (pieces.rows, pieces.tiles * pieces.count)
    }

    #[test]
    fn large_sums_are_cut_into_blocks_that_all_run_at_once() {
        let found = [(12_800, 1024), (8192, 2304), (8192, 3072), (4096, 4096)].map(|(r, c)| cut(DType::BF16, r, c));
        assert_eq!(found, [(194, 528), (283, 522), (373, 528), (256, 512)]);
        // Few columns: pieces of few rows would be more blocks, and more sums to add.
        let found = [(12_800, 256), (8192, 768), (1, 1), (0, 8)].map(|(r, c)| cut(DType::BF16, r, c));
        assert_eq!(found, [(128, 200), (128, 384), (128, 1), (128, 1)]);
        // Many rows, or columns: blocks stay short enough to be shared out.
        let found = [(1_000_000, 8), (4096, 100_000)].map(|(r, c)| cut(DType::F32, r, c));
        assert_eq!(found, [(512, 1954), (512, 12_504)]);
    }

    #[test]
    fn gradients() {
        for dims in [[1, 1], [3, 5], [300, 7], [2, 64], [129, 264], [140, 72], [1300, 8]] {
            check_gradients(GradientCheck::new().input(&dims), |g, x| g.sum_rows(x[0]));
            check_gradients(GradientCheck::new().input(&dims), |g, x| g.sum_columns(x[0]));
            check_gradients(GradientCheck::new().input(&dims), |g, x| g.sum_all(x[0]));
        }
        check_gradients(GradientCheck::new().input(&[5]), |g, x| g.spread(x[0], Shape::new(&[3, 5])));
        check_gradients(GradientCheck::new().input(&[3, 1]), |g, x| g.spread(x[0], Shape::new(&[3, 5])));
    }

    #[test]
    fn sums_are_sums() {
        let x: Vec<f64> = (0..600).map(f64::from).collect();
        let sums = run(GradientCheck::new().given(&[300, 2], &x), |g, x| g.sum_rows(x[0]));
        assert_eq!(sums, [89_700.0, 90_000.0]);
        let sums = run(GradientCheck::new().given(&[2, 300], &x), |g, x| g.sum_columns(x[0]));
        assert_eq!(sums, [44_850.0, 134_850.0]);
        // So wide that a piece has more rows than the fewest.
        let (rows, columns) = (130, 17_000);
        let x: Vec<f64> = (0..rows * columns).map(|i| f64::from(i / columns)).collect();
        let sums = run(GradientCheck::new().given(&[rows, columns], &x), |g, x| g.sum_rows(x[0]));
        assert_eq!(sums, vec![8385.0; columns as usize]);
    }
}
