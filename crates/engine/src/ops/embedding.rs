//! Embedding lookup: rows of a table by id.

use half::bf16;
use tandem_device::{DType, Grid, HostArgs, Kernel, Source, kernel_args};

use super::frames::{frames_per_chunk, is_real, vector_length};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::tensor::{TensorType, accumulator};
use crate::{for_real, named_for};

pub(super) static SOURCE: Source =
    Source { file: "engine/embedding.cu", text: concat!(include_str!("frames.cuh"), include_str!("embedding.cu")) };

/// Rows of the table per chunk of its gradient.
const ROWS_PER_CHUNK: usize = 8;

/// Inputs: table and ids.
#[derive(Debug)]
struct Embedding;

/// The gradient of a table of so many rows, in the accumulator type. Inputs: gradient and ids.
#[derive(Debug)]
struct TableGradient(u32);

impl Op for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let (table, ids) = (inputs[0], inputs[1]);
        match (table.shape.dims(), ids.shape.dims()) {
            (&[_, channels], &[rows]) if is_real(table.dtype) && ids.dtype == DType::I32 => {
                Ok(vec![TensorType::new(table.dtype, &[rows, channels])])
            }
            _ => refuse("embedding", "takes a table [ids, channels] and numbers I32[rows]", inputs),
        }
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first().filter(|_| at.wanted[0]) else { return Ok(vec![None; 2]) };
        let rows = at.graph.shape(at.inputs[0]).rows();
        Ok(vec![Some(at.graph.push(TableGradient(rows), &[gradient, at.inputs[1]])?), None])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (table, ids, out) = (at.inputs[0], at.inputs[1], at.outputs[0]);
        let elements = out.ty.shape.elements();
        if elements == 0 {
            return Ok(());
        }
        let kernel = for_real!("embedding", out.ty.dtype, T => &Tables::<T>::LOOKUP);
        let (rows, channels) = (table.ty.shape.rows(), table.ty.shape.last());
        let args = EmbeddingArgs { table, ids, out, rows, channels, count: out.ty.shape.rows() };
        at.launch(kernel, Grid::cover(elements.div_ceil(8), 256), args);
        Ok(())
    }
}

impl Op for TableGradient {
    fn name(&self) -> &'static str {
        "embedding gradient of table"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let gradient = inputs[0];
        Ok(vec![TensorType::new(accumulator(gradient.dtype), &[self.0, gradient.shape.last()])])
    }

    fn can_accumulate(&self, _: usize) -> bool {
        true
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (gradient, ids, out) = (at.inputs[0], at.inputs[1], at.outputs[0]);
        if out.ty.shape.elements() == 0 {
            return Ok(());
        }
        let kernel = for_real!("embedding", gradient.ty.dtype, T => &Tables::<T>::GRADIENT);
        let channels = gradient.ty.shape.last();
        let (count, accumulate) = (gradient.ty.shape.rows(), u32::from(at.accumulates(0)));
        let args = EmbeddingGradientArgs { gradient, ids, out, count, channels, rows: self.0, accumulate };
        // A block searches all ids for those of its row, in order.
        let block_channels = 32 * vector_length(gradient.ty.dtype, channels);
        let grid = Grid { blocks: [self.0, channels.div_ceil(block_channels), 1], threads: 256, shared_bytes: 0 };
        at.launch(kernel, grid, args);
        Ok(())
    }
}

kernel_args! {
    /// Arguments of `embedding`.
    struct EmbeddingArgs<T: Real> { table: in T, ids: in i32, out: out T, rows: u32, channels: u32, count: u32 }
}

kernel_args! {
    /// Arguments of `embedding_gradient`.
    struct EmbeddingGradientArgs<T: Real> {
        gradient: in T,
        ids: in i32,
        out: out T::Acc,
        count: u32,
        channels: u32,
        rows: u32,
        accumulate: u32,
    }
}

struct Tables<T>(std::marker::PhantomData<T>);

impl<T: Real> Tables<T> {
    const LOOKUP: Kernel = Kernel {
        name: named_for!(T, "embedding"),
        source: on_cuda::<T>(&SOURCE),
        params: EmbeddingArgs::params::<T>(),
        host: &lookup::<T>,
    };

    const GRADIENT: Kernel = Kernel {
        name: named_for!(T, "embedding_gradient"),
        source: on_cuda::<T>(&SOURCE),
        params: EmbeddingGradientArgs::params::<T>(),
        host: &table_gradient::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] =
    &[&Tables::<f32>::LOOKUP, &Tables::<bf16>::LOOKUP, &Tables::<f32>::GRADIENT, &Tables::<bf16>::GRADIENT];

fn lookup<T: Real>(args: &mut HostArgs<'_>) {
    let EmbeddingArgs { table, ids, out, rows, channels, .. } = EmbeddingArgs::host::<T>(args);
    let (rows, channels) = (rows as usize, channels as usize);
    let chunk_rows = frames_per_chunk(channels);
    args.workers().each_chunk(out, chunk_rows * channels, |chunk, out| {
        for (out, &id) in out.chunks_exact_mut(channels).zip(&ids[chunk * chunk_rows..]) {
            match usize::try_from(id) {
                Ok(id) if id < rows => out.copy_from_slice(&table[id * channels..][..channels]),
                _ => out.fill(T::store(T::Acc::zero())),
            }
        }
    });
}

fn table_gradient<T: Real>(args: &mut HostArgs<'_>) {
    let EmbeddingGradientArgs { gradient, ids, out, channels, rows, accumulate, .. } =
        EmbeddingGradientArgs::host::<T>(args);
    let (channels, rows) = (channels as usize, rows as usize);
    let (first, positions) = positions_by_id(ids, rows);
    args.workers().each_chunk(out, ROWS_PER_CHUNK * channels, |chunk, out| {
        let mut sum = vec![T::Acc::zero(); channels];
        for (row, out) in (chunk * ROWS_PER_CHUNK..).zip(out.chunks_exact_mut(channels)) {
            sum.fill(T::Acc::zero());
            for &position in &positions[first[row] as usize..first[row + 1] as usize] {
                let part = &gradient[position as usize * channels..][..channels];
                sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part.load());
            }
            match accumulate != 0 {
                true => out.iter_mut().zip(&sum).for_each(|(out, &sum)| *out += sum),
                false => out.copy_from_slice(&sum),
            }
        }
    });
}

/// The positions of each id, in order (a counting sort): those of id `i` are `positions[first[i]..first[i + 1]]`.
fn positions_by_id(ids: &[i32], rows: usize) -> (Vec<u32>, Vec<u32>) {
    let known = |id: &i32| usize::try_from(*id).ok().filter(|&id| id < rows);
    let mut first = vec![0_u32; rows + 1];
    ids.iter().filter_map(known).for_each(|id| first[id + 1] += 1);
    for row in 0..rows {
        first[row + 1] += first[row];
    }
    let mut next = first.clone();
    let mut positions = vec![0_u32; first[rows] as usize];
    for (position, id) in ids.iter().enumerate().filter_map(|(position, id)| Some((position, known(id)?))) {
        positions[next[id] as usize] = position as u32;
        next[id] += 1;
    }
    (first, positions)
}

impl Graph {
    /// The rows of `table` `[ids, channels]` at `ids` `[rows]`, as `[rows, channels]`. An id outside the table gives a row
    /// of zeros.
    ///
    /// The gradient of the table is in the accumulator type. Its cost is one pass over the rows and one over the table.
    pub fn embedding(&mut self, table: Value, ids: Value) -> Result<Value, EngineError> {
        self.push(Embedding, &[table, ids])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GradientCheck, accumulated, check_gradients, run};

    #[test]
    fn gradients() {
        let check = GradientCheck::new().input(&[5, 3]);
        check_gradients(check.integers(&[9], &[4, 0, 0, -1, 2, 5, 4, 0, i32::MIN]), |g, x| g.embedding(x[0], x[1]));
        // More rows than a chunk has, and ids that are far apart.
        let ids: Vec<i32> = (0..4000).map(|i| i * 37 % 101 - 1).collect();
        for channels in [9, 40] {
            let check = GradientCheck::new().input(&[97, channels]).integers(&[4000], &ids);
            check_gradients(check, |g, x| g.embedding(x[0], x[1]));
        }
    }

    #[test]
    fn rows_are_looked_up() {
        let table: Vec<f64> = (0..6).map(f64::from).collect();
        let check = GradientCheck::new().given(&[3, 2], &table).integers(&[5], &[2, 0, 3, -1, 2]);
        let found = run(check, |g, x| g.embedding(x[0], x[1]));
        assert_eq!(found, [4.0, 5.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 4.0, 5.0]);
    }

    #[test]
    fn gradients_of_a_table_add_up() {
        let counts = |runs| {
            accumulated(runs, &[4, 2], |g, table| {
                let ids = g.constant(&[6], &[3, 0, 3, -1, 3, 9]);
                let picked = g.embedding(table, ids)?;
                g.sum_all(picked)
            })
        };
        assert_eq!(counts(1), [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 3.0, 3.0]);
        assert_eq!(counts(3), [3.0, 3.0, 0.0, 0.0, 0.0, 0.0, 9.0, 9.0]);
    }

    #[test]
    fn positions_keep_their_order() {
        let (first, positions) = positions_by_id(&[2, 0, 7, 2, -3, 0], 3);
        assert_eq!((first, positions), (vec![0, 2, 2, 4], vec![1, 5, 0, 3]));
    }

    #[test]
    fn ids_are_integers() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let table = g.input("table", TensorType::new(DType::F32, &[4, 3])).unwrap();
        let ids = g.input("ids", TensorType::new(DType::F32, &[7])).unwrap();
        let error = g.embedding(table, ids).unwrap_err().to_string();
        assert_eq!(
            error,
            "embedding: takes a table [ids, channels] and numbers I32[rows]; the operands are F32[4, 3] and F32[7]"
        );
    }
}
