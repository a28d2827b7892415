//! Rows of a table, picked by number.

use tandem_device::{DType, Element, Grid, HostArgs, Kernel, Param, Source};

use super::frames::{frames_of_a_piece, is_real, moved_at_once};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{LaunchArg, Lower};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::tensor::{TensorType, accumulator};
use crate::{for_real, named_for};

pub(super) static SOURCE: Source =
    Source { file: "engine/embedding.cu", text: concat!(include_str!("frames.cuh"), include_str!("embedding.cu")) };

/// Rows of the table whose gradient is one piece of work.
const ROWS_OF_A_PIECE: usize = 8;

/// Table and ids to the rows that were picked.
#[derive(Debug)]
struct Embedding;

/// Gradient and ids to the gradient of a table of so many rows, in the wide element type.
#[derive(Debug)]
struct OfTable(u32);

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
        Ok(vec![Some(at.graph.push(OfTable(rows), &[gradient, at.inputs[1]])?), None])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (table, ids, out) = (at.inputs[0], at.inputs[1], at.outputs[0]);
        let elements = out.ty.shape.elements();
        if elements == 0 {
            return Ok(());
        }
        let kernel = for_real!("embedding", out.ty.dtype, T => &Tables::<T>::PICK);
        let (rows, channels) = (table.ty.shape.rows(), table.ty.shape.last());
        let mut args = vec![table.read(), ids.read(), out.write()];
        args.extend([rows, channels, out.ty.shape.rows()].map(LaunchArg::U32));
        at.launch(kernel, Grid::cover(elements.div_ceil(8), 256), args);
        Ok(())
    }
}

impl Op for OfTable {
    fn name(&self) -> &'static str {
        "embedding gradient of table"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let gradient = inputs[0];
        Ok(vec![TensorType::new(accumulator(gradient.dtype), &[self.0, gradient.shape.last()])])
    }

    fn can_add(&self, _: usize) -> bool {
        true
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (gradient, ids, out) = (at.inputs[0], at.inputs[1], at.outputs[0]);
        if out.ty.shape.elements() == 0 {
            return Ok(());
        }
        let kernel = for_real!("embedding", gradient.ty.dtype, T => &Tables::<T>::OF_TABLE);
        let channels = gradient.ty.shape.last();
        let mut args = vec![gradient.read(), ids.read(), out.write()];
        args.extend([gradient.ty.shape.rows(), channels, self.0, u32::from(at.adds(0))].map(LaunchArg::U32));
        // A block looks through all ids for those of its own row, in order.
        let of_a_block = 32 * moved_at_once(gradient.ty.dtype, channels);
        let grid = Grid { blocks: [self.0, channels.div_ceil(of_a_block), 1], threads: 256, shared_bytes: 0 };
        at.launch(kernel, grid, args);
        Ok(())
    }
}

struct Tables<T>(std::marker::PhantomData<T>);

impl<T: Real> Tables<T> {
    const PICK: Kernel = Kernel {
        name: named_for!(T, "embedding"),
        source: on_cuda::<T>(&SOURCE),
        params: &[Param::In(T::DTYPE), Param::In(DType::I32), Param::Out(T::DTYPE), Param::U32, Param::U32, Param::U32],
        host: &pick::<T>,
    };

    const OF_TABLE: Kernel = Kernel {
        name: named_for!(T, "embedding_of_table"),
        source: on_cuda::<T>(&SOURCE),
        params: &[
            Param::In(T::DTYPE),
            Param::In(DType::I32),
            Param::Out(<T::Acc as Element>::DTYPE),
            Param::U32,
            Param::U32,
            Param::U32,
            Param::U32,
        ],
        host: &of_table::<T>,
    };
}

fn pick<T: Real>(args: &mut HostArgs<'_>) {
    let (table, ids) = (args.read::<T>(0), args.read::<i32>(1));
    let (rows, channels) = (args.u32(3) as usize, args.u32(4) as usize);
    let of_a_piece = frames_of_a_piece(channels);
    let workers = args.workers();
    workers.each_chunk(args.write::<T>(2), of_a_piece * channels, |piece, out| {
        for (out, &id) in out.chunks_exact_mut(channels).zip(&ids[piece * of_a_piece..]) {
            match usize::try_from(id) {
                Ok(id) if id < rows => out.copy_from_slice(&table[id * channels..][..channels]),
                _ => out.fill(T::store(T::Acc::zero())),
            }
        }
    });
}

fn of_table<T: Real>(args: &mut HostArgs<'_>) {
    let (gradient, ids) = (args.read::<T>(0), args.read::<i32>(1));
    let (channels, rows, adds) = (args.u32(4) as usize, args.u32(5) as usize, args.u32(6) != 0);
    let (first, places) = places_by_id(ids, rows);
    let workers = args.workers();
    workers.each_chunk(args.write::<T::Acc>(2), ROWS_OF_A_PIECE * channels, |piece, out| {
        let mut sum = vec![T::Acc::zero(); channels];
        for (row, out) in (piece * ROWS_OF_A_PIECE..).zip(out.chunks_exact_mut(channels)) {
            sum.fill(T::Acc::zero());
            for &place in &places[first[row] as usize..first[row + 1] as usize] {
                let part = &gradient[place as usize * channels..][..channels];
                sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part.load());
            }
            match adds {
                true => out.iter_mut().zip(&sum).for_each(|(out, &sum)| *out += sum),
                false => out.copy_from_slice(&sum),
            }
        }
    });
}

/// Where each id is found, in order: the places of id `i` are `places[first[i]..first[i + 1]]`.
fn places_by_id(ids: &[i32], rows: usize) -> (Vec<u32>, Vec<u32>) {
    let known = |id: &i32| usize::try_from(*id).ok().filter(|&id| id < rows);
    let mut first = vec![0_u32; rows + 1];
    ids.iter().filter_map(known).for_each(|id| first[id + 1] += 1);
    for row in 0..rows {
        first[row + 1] += first[row];
    }
    let mut next = first.clone();
    let mut places = vec![0_u32; first[rows] as usize];
    for (place, id) in ids.iter().enumerate().filter_map(|(place, id)| Some((place, known(id)?))) {
        places[next[id] as usize] = place as u32;
        next[id] += 1;
    }
    (first, places)
}

impl Graph {
    /// The rows of `table` `[ids, channels]` that `ids` `[rows]` names, as `[rows, channels]`. An id that the table does not
    /// have is a row of zeros.
    ///
    /// The gradient of the table is in the wide element type. Its cost is one pass over the rows and one over the table.
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
        check_gradients(check.whole(&[9], &[4, 0, 0, -1, 2, 5, 4, 0, i32::MIN]), |g, x| g.embedding(x[0], x[1]));
        // More rows than a piece has, and ids that are far apart.
        let ids: Vec<i32> = (0..4000).map(|i| i * 37 % 101 - 1).collect();
        for channels in [9, 40] {
            let check = GradientCheck::new().input(&[97, channels]).whole(&[4000], &ids);
            check_gradients(check, |g, x| g.embedding(x[0], x[1]));
        }
    }

    #[test]
    fn rows_are_picked() {
        let table: Vec<f64> = (0..6).map(f64::from).collect();
        let check = GradientCheck::new().given(&[3, 2], &table).whole(&[5], &[2, 0, 3, -1, 2]);
        let picked = run(check, |g, x| g.embedding(x[0], x[1]));
        assert_eq!(picked, [4.0, 5.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 4.0, 5.0]);
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
    fn places_keep_their_order() {
        let (first, places) = places_by_id(&[2, 0, 7, 2, -3, 0], 3);
        assert_eq!((first, places), (vec![0, 2, 2, 4], vec![1, 5, 0, 3]));
    }

    #[test]
    fn ids_are_whole_numbers() {
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
