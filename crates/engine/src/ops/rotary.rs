//! Rotary position embedding, RoPE (Su et al. 2021): queries and keys are rotated by angles proportional to the position in
//! the row, so that their dot products depend on the distance between positions.
//!
//! Cosines and sines are a constant of the program: `[longest row, head_dim]`, per position the cosines, then the sines.

use half::bf16;
use tandem_device::{DType, HostArgs, Kernel, Source, Workers, kernel_args};

use super::frames::{RowTile, check_frames, row_grid, row_tiles, split_by_lengths};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::TensorType;
use crate::{for_real, named_for};

pub(super) static SOURCE: Source =
    Source { file: "engine/rotary.cu", text: concat!(include_str!("frames.cuh"), include_str!("rotary.cu")) };

/// Wavelengths range from 2π to 2π times this.
const BASE: f64 = 10_000.0;
/// Frames per unit of work of the host kernel: about 20 µs for 768 columns.
const FRAMES_PER_CHUNK: u32 = 64;

/// `(qkv, table of cosines and sines, row starts)`; `inverse` rotates the other way, for the gradient.
#[derive(Debug)]
struct Rotary {
    heads: u32,
    inverse: bool,
    rows: Rows,
}

impl Op for Rotary {
    fn name(&self) -> &'static str {
        "rotary"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        check_frames("rotary", &self.rows, &inputs[..1])?;
        Ok(vec![inputs[0]])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(dout) = at.first() else { return Ok(vec![None; 3]) };
        let op = Rotary { heads: self.heads, inverse: !self.inverse, rows: self.rows.clone() };
        let dqkv = at.graph.push(op, &[dout, at.inputs[1], at.inputs[2]])?;
        Ok(vec![Some(dqkv), None, None])
    }

    fn may_overwrite(&self) -> Vec<usize> {
        vec![0]
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (x, table, starts, out) = (at.inputs[0], at.inputs[1], at.inputs[2], at.outputs[0]);
        let (rows, columns) = (self.rows.count(), x.ty.shape.last());
        let (heads, inverse, grid) = (self.heads, u32::from(self.inverse), row_grid(&self.rows, columns));
        if at.in_place_input().is_some() {
            let kernel = for_real!("rotary", x.ty.dtype, T => &Kernels::<T>::IN_PLACE);
            at.launch(kernel, grid, RotaryInPlaceArgs { out, table, starts, rows, columns, heads, inverse });
        } else {
            let kernel = for_real!("rotary", x.ty.dtype, T => &Kernels::<T>::OUT_OF_PLACE);
            at.launch(kernel, grid, RotaryArgs { out, table, starts, rows, columns, heads, inverse, x });
        }
        Ok(())
    }
}

kernel_args! {
    /// Arguments of `rotary`.
    struct RotaryArgs<T: Real> {
        out: out T,
        table: in T::Acc,
        starts: in u32,
        rows: u32,
        columns: u32,
        heads: u32,
        inverse: u32,
        x: in T,
    }
}

kernel_args! {
    /// Arguments of `rotary_in_place`.
    struct RotaryInPlaceArgs<T: Real> {
        out: out T,
        table: in T::Acc,
        starts: in u32,
        rows: u32,
        columns: u32,
        heads: u32,
        inverse: u32,
    }
}

struct Kernels<T>(std::marker::PhantomData<T>);

impl<T: Real> Kernels<T> {
    const OUT_OF_PLACE: Kernel = Kernel {
        name: named_for!(T, "rotary"),
        source: on_cuda::<T>(&SOURCE),
        params: RotaryArgs::params::<T>(),
        host: &out_of_place::<T>,
    };

    const IN_PLACE: Kernel = Kernel {
        name: named_for!(T, "rotary_in_place"),
        source: on_cuda::<T>(&SOURCE),
        params: RotaryInPlaceArgs::params::<T>(),
        host: &in_place::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] = &[
    &Kernels::<f32>::OUT_OF_PLACE,
    &Kernels::<f32>::IN_PLACE,
    &Kernels::<bf16>::OUT_OF_PLACE,
    &Kernels::<bf16>::IN_PLACE,
];

/// The rotation of a batch: its cosines and sines, its rows, and the layout of a frame.
struct Rotation<'a, F> {
    table: &'a [F],
    starts: &'a [u32],
    columns: usize,
    heads: usize,
    inverse: bool,
}

fn out_of_place<T: Real>(args: &mut HostArgs<'_>) {
    let RotaryArgs { out, table, starts, rows, columns, heads, inverse, x } = RotaryArgs::host::<T>(args);
    let (columns, heads, inverse) = (columns as usize, heads as usize, inverse != 0);
    Rotation { table, starts: &starts[..=rows as usize], columns, heads, inverse }.rows(args.workers(), Some(x), out);
}

fn in_place<T: Real>(args: &mut HostArgs<'_>) {
    let RotaryInPlaceArgs { out, table, starts, rows, columns, heads, inverse } = RotaryInPlaceArgs::host::<T>(args);
    let (columns, heads, inverse) = (columns as usize, heads as usize, inverse != 0);
    Rotation { table, starts: &starts[..=rows as usize], columns, heads, inverse }.rows(args.workers(), None, out);
}

impl<F: Float> Rotation<'_, F> {
    /// Rotates `x` into `out`, or `out` in place.
    fn rows<T: Real<Acc = F>>(&self, workers: &Workers, x: Option<&[T]>, out: &mut [T]) {
        let &Rotation { table, columns, inverse, .. } = self;
        let half = columns / (6 * self.heads);
        let tiles = row_tiles(self.starts, FRAMES_PER_CHUNK);
        let out = split_by_lengths(out, tiles.iter().map(|tile| tile.count * columns));
        workers.each_part(out, |chunk, out| {
            let tile: &RowTile = &tiles[chunk];
            if let Some(x) = x {
                out.copy_from_slice(tile.of(x, columns));
            }
            for (t, frame) in out.chunks_exact_mut(columns).enumerate() {
                let angles = &table[(tile.first + t) * 2 * half..][..2 * half];
                rotate(&mut frame[..columns / 3 * 2], angles, inverse);
            }
        });
    }
}

/// Rotates all heads of one frame. `angles` has the cosines, then the sines.
fn rotate<T: Real>(queries_and_keys: &mut [T], angles: &[T::Acc], inverse: bool) {
    let half = angles.len() / 2;
    let (cosines, sines) = angles.split_at(half);
    for head in queries_and_keys.chunks_exact_mut(2 * half) {
        let (first, second) = head.split_at_mut(half);
        let pairs = first.iter_mut().zip(second).zip(cosines.iter().zip(sines));
        if inverse {
            pairs.for_each(|((a, b), (&cos, &sin))| (*a, *b) = rotated(*a, *b, cos, -sin));
        } else {
            pairs.for_each(|((a, b), (&cos, &sin))| (*a, *b) = rotated(*a, *b, cos, sin));
        }
    }
}

#[inline(always)]
fn rotated<T: Real>(a: T, b: T, cos: T::Acc, sin: T::Acc) -> (T, T) {
    let (a, b) = (a.load(), b.load());
    (T::store(a * cos - b * sin), T::store(b * cos + a * sin))
}

/// The cosines of all angles of a position, then their sines, for each position.
fn angles(positions: u32, half: u32) -> impl Iterator<Item = f64> {
    let angle = move |t: u32, i: u32| f64::from(t) * BASE.powf(-f64::from(i) / f64::from(half));
    (0..positions)
        .flat_map(move |t| (0..half).map(move |i| angle(t, i).cos()).chain((0..half).map(move |i| angle(t, i).sin())))
}

impl Graph {
    /// Rotates the queries and keys of `qkv` `[frames, 3·heads·head_dim]` (queries, keys, values; heads inside each) by their
    /// position in the row: elements `i` and `i + head_dim/2` of a head by the angle `position · 10000^(-2i/head_dim)`. Values
    /// are unchanged. Every frame is rotated, padding too.
    ///
    /// Works in place if no later op reads `qkv`. Saves nothing for the backward pass.
    pub fn rotary(&mut self, qkv: Value, heads: u32, rows: &Rows) -> Result<Value, EngineError> {
        let ty = self.ty(qkv);
        if heads == 0 || !ty.shape.last().is_multiple_of(6 * heads) {
            return refuse("rotary", format!("takes queries, keys and values of {heads} heads of even size"), &[ty]);
        }
        let (longest, half) = (rows.longest(), ty.shape.last() / (6 * heads));
        // Equal constants are one leaf of the graph: all layers of a program share the table.
        let dims = [longest.max(1), 2 * half];
        let table = match self.acc_dtype() {
            DType::F64 => self.constant(&dims, &angles(dims[0], half).collect::<Vec<f64>>()),
            _ => self.constant(&dims, &angles(dims[0], half).map(|x| x as f32).collect::<Vec<f32>>()),
        };
        let starts = self.row_starts(rows);
        self.push(Rotary { heads, inverse: false, rows: rows.clone() }, &[qkv, table, starts])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        for (lengths, heads, head_dim) in [(&[3, 0, 5][..], 2, 6), (&[1], 1, 2), (&[70, 2], 3, 4), (&[9, 0, 20], 2, 32)]
        {
            let rows = Rows::new(lengths);
            let check = GradientCheck::new().input(&[rows.total(), 3 * heads * head_dim]);
            check_gradients(check.clone(), |g, x| g.rotary(x[0], heads, &rows));
            // No other op reads its input here, so it works in place.
            check_gradients(check, |g, x| {
                let twice = g.scale(x[0], 2.0)?;
                let rotated = g.rotary(twice, heads, &rows)?;
                g.mul(rotated, rotated)
            });
        }
    }

    #[test]
    fn pairs_are_rotated_by_their_position_in_the_row() {
        let rows = Rows::new(&[2, 3]);
        let x: Vec<f64> = (0..5 * 24).map(|i| f64::from(i % 13) - 4.0).collect();
        let found = run(GradientCheck::new().given(&[5, 24], &x), |g, x| g.rotary(x[0], 2, &rows));
        for (frame, position) in [(0, 0), (1, 1), (2, 0), (3, 1), (4, 2)] {
            for column in 0..24 {
                let (head, i) = (column / 4, column % 4);
                let angle = f64::from(position) * [1.0, 0.01][i % 2];
                let pair = |i: usize| x[frame * 24 + head * 4 + i];
                let expected = match (head, i) {
                    (4.., _) => pair(i),
                    (_, ..2) => pair(i) * angle.cos() - pair(i + 2) * angle.sin(),
                    _ => pair(i) * angle.cos() + pair(i - 2) * angle.sin(),
                };
                assert!((found[frame * 24 + column] - expected).abs() < 1e-12, "frame {frame}, column {column}");
            }
        }
    }

    #[test]
    fn an_input_that_no_other_op_reads_is_rotated_in_place() {
        use crate::{Launch, NamedLayout, ProgramSet};
        let kernels = |only_reader: bool| {
            let mut g = Graph::new(Default::default(), DType::F32);
            let (ty, rows) = (TensorType::new(DType::F32, &[4, 12]), Rows::even(2, 2));
            let mut inputs = NamedLayout::default();
            inputs.place("x", ty).unwrap();
            let x = g.input("x", ty).unwrap();
            let twice = g.scale(x, 2.0).unwrap();
            let rotated = g.rotary(twice, 2, &rows).unwrap();
            let result = if only_reader { rotated } else { g.add(rotated, twice).unwrap() };
            g.result("result", result).unwrap();
            let mut set = ProgramSet::new(Default::default(), DType::F32, &[]);
            let id = set.add("op", &g, &inputs).unwrap();
            let name = |step: &Launch| match step {
                Launch::Kernel { kernel, .. } => Some(kernel.name),
                _ => None,
            };
            set.program(id).launches().iter().filter_map(name).collect::<Vec<_>>()
        };
        assert_eq!(kernels(true), ["chain", "rotary_in_place_f32"]);
        assert_eq!(kernels(false), ["chain", "rotary_f32", "chain"]);
    }

    #[test]
    fn heads_of_odd_size_are_refused() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let x = g.input("x", TensorType::new(DType::F32, &[4, 18])).unwrap();
        let error = g.rotary(x, 2, &Rows::even(1, 4)).unwrap_err().to_string();
        let expected = "rotary: takes queries, keys and values of 2 heads of even size; the operands are F32[4, 18]";
        assert_eq!(error, expected);
        let error = g.rotary(x, 3, &Rows::even(1, 5)).unwrap_err().to_string();
        assert!(error.starts_with("rotary: takes [5, channels]"), "{error}");
    }
}
