//! Pooling over the valid frames of each row (sum or mean), and its adjoint, which broadcasts a vector to the frames of a row.

use half::bf16;
use tandem_device::{Grid, HostArgs, Kernel, Source, kernel_args};

use super::frames::{
    frames_per_chunk, is_lengths, is_real, is_sequence, row_grid, row_parts, row_range, valid_frames, vector_length,
};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::TensorType;
use crate::{for_real, named_for};

pub(super) static SOURCE: Source =
    Source { file: "engine/row_pool.cu", text: concat!(include_str!("frames.cuh"), include_str!("row_pool.cu")) };

/// `(x, row starts, lengths)` to the sum of each row's valid frames, or to their mean.
#[derive(Clone, Debug)]
struct RowSum {
    rows: Rows,
    mean: bool,
}

/// The adjoint of [`RowSum`]: one vector per row to each of its valid frames, divided by their number for a mean. Other frames
/// are zero.
#[derive(Clone, Debug)]
struct RowBroadcast {
    rows: Rows,
    mean: bool,
}

impl Op for RowSum {
    fn name(&self) -> &'static str {
        if self.mean { "row_mean" } else { "row_sum" }
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let (x, lengths, rows) = (inputs[0], inputs[2], &self.rows);
        if !is_sequence(&x, rows) || !is_lengths(&lengths, rows) {
            let problem = format!("takes frames [{}, channels] and lengths I32[{}]", rows.total(), rows.count());
            return refuse(self.name(), problem, &[x, lengths]);
        }
        Ok(vec![TensorType::new(x.dtype, &[rows.count(), x.shape.last()])])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first() else { return Ok(vec![None; 3]) };
        let op = RowBroadcast { rows: self.rows.clone(), mean: self.mean };
        Ok(vec![Some(at.graph.push(op, &[gradient, at.inputs[1], at.inputs[2]])?), None, None])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let out = at.outputs[0];
        if out.ty.shape.elements() == 0 {
            return Ok(());
        }
        let kernel = for_real!("row_mean", out.ty.dtype, T => &Pools::<T>::SUM);
        let channels = out.ty.shape.last();
        let block_channels = 8 * vector_length(out.ty.dtype, channels);
        let grid =
            Grid { blocks: [channels.div_ceil(block_channels), self.rows.count(), 1], threads: 256, shared_bytes: 0 };
        at.launch(kernel, grid, args(at, channels, self.mean));
        Ok(())
    }
}

impl Op for RowBroadcast {
    fn name(&self) -> &'static str {
        "row_broadcast"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let (x, rows) = (inputs[0], &self.rows);
        match *x.shape.dims() {
            [count, channels] if count == rows.count() && is_real(x.dtype) => {
                Ok(vec![TensorType::new(x.dtype, &[rows.total(), channels])])
            }
            _ => refuse("row_broadcast", format!("takes one vector for each row, [{}, channels]", rows.count()), &[x]),
        }
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first() else { return Ok(vec![None; 3]) };
        let op = RowSum { rows: self.rows.clone(), mean: self.mean };
        Ok(vec![Some(at.graph.push(op, &[gradient, at.inputs[1], at.inputs[2]])?), None, None])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let out = at.outputs[0];
        if out.ty.shape.elements() == 0 {
            return Ok(());
        }
        let kernel = for_real!("row_broadcast", out.ty.dtype, T => &Pools::<T>::BROADCAST);
        let channels = out.ty.shape.last();
        at.launch(kernel, row_grid(&self.rows, channels), args(at, channels, self.mean));
        Ok(())
    }
}

fn args(at: &Lower<'_>, channels: u32, mean: bool) -> RowPoolArgs<Tensor, Tensor, Tensor, Tensor> {
    let [x, starts, lengths] = [at.inputs[0], at.inputs[1], at.inputs[2]];
    RowPoolArgs { x, starts, lengths, out: at.outputs[0], channels, mean: mean.into() }
}

kernel_args! {
    /// Arguments of `row_sum` and `row_broadcast`.
    struct RowPoolArgs<T: Real> { x: in T, starts: in u32, lengths: in i32, out: out T, channels: u32, mean: u32 }
}

struct Pools<T>(std::marker::PhantomData<T>);

impl<T: Real> Pools<T> {
    const SUM: Kernel = Kernel {
        name: named_for!(T, "row_sum"),
        source: on_cuda::<T>(&SOURCE),
        params: RowPoolArgs::params::<T>(),
        host: &sum::<T>,
    };

    const BROADCAST: Kernel = Kernel {
        name: named_for!(T, "row_broadcast"),
        source: on_cuda::<T>(&SOURCE),
        params: RowPoolArgs::params::<T>(),
        host: &broadcast::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] =
    &[&Pools::<f32>::SUM, &Pools::<f32>::BROADCAST, &Pools::<bf16>::SUM, &Pools::<bf16>::BROADCAST];

/// The weight of a frame: 1 in a sum, 1 / frames in a mean.
fn frame_weight<F: Float>(frames: usize, mean: bool) -> F {
    F::of(if mean { 1.0 / frames.max(1) as f64 } else { 1.0 })
}

fn sum<T: Real>(args: &mut HostArgs<'_>) {
    let RowPoolArgs { x, starts, lengths, out, channels, mean } = RowPoolArgs::host::<T>(args);
    let (channels, mean) = (channels as usize, mean != 0);
    args.workers().each_chunk(out, channels, |row, out| {
        let frames = valid_frames(starts, lengths, row);
        let x = &x[row_range(starts, row).start * channels..][..frames * channels];
        let mut total = vec![T::Acc::zero(); channels];
        for frame in x.chunks_exact(channels) {
            total.iter_mut().zip(frame).for_each(|(total, x)| *total += x.load());
        }
        let weight = frame_weight(frames, mean);
        out.iter_mut().zip(&total).for_each(|(out, &total)| *out = T::store(total * weight));
    });
}

fn broadcast<T: Real>(args: &mut HostArgs<'_>) {
    let RowPoolArgs { x, starts, lengths, out, channels, mean } = RowPoolArgs::host::<T>(args);
    let (channels, mean) = (channels as usize, mean != 0);
    let frames_per_chunk = frames_per_chunk(channels);
    args.workers().each_chunk(out, frames_per_chunk * channels, |chunk, out| {
        let mut out = out.chunks_exact_mut(channels);
        for run in row_parts(starts, chunk * frames_per_chunk..chunk * frames_per_chunk + out.len()) {
            let frames = valid_frames(starts, lengths, run.row);
            let weight: T::Acc = frame_weight(frames, mean);
            let x = &x[run.row * channels..][..channels];
            for (frame, out) in run.in_row().zip(&mut out) {
                match frame < frames {
                    true => out.iter_mut().zip(x).for_each(|(out, x)| *out = T::store(x.load() * weight)),
                    false => out.fill(T::store(T::Acc::zero())),
                }
            }
        }
    });
}

impl Graph {
    /// The mean of each row's valid frames: `x` `[frames, channels]` to `[rows, channels]`; zero for an empty row.
    pub fn row_mean(&mut self, x: Value, rows: &Rows, lengths: Value) -> Result<Value, EngineError> {
        let starts = self.row_starts(rows);
        self.push(RowSum { rows: rows.clone(), mean: true }, &[x, starts, lengths])
    }

    /// Broadcasts one vector per row to every frame of the row, padding too: `x` `[rows, channels]` to `[frames, channels]`.
    pub fn row_broadcast(&mut self, x: Value, rows: &Rows) -> Result<Value, EngineError> {
        let starts = self.row_starts(rows);
        let lengths: Vec<i32> = (0..rows.count()).map(|row| rows.length(row) as i32).collect();
        let lengths = self.constant(&[rows.count()], &lengths);
        self.push(RowBroadcast { rows: rows.clone(), mean: false }, &[x, starts, lengths])
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::DType;

    use super::*;
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        let rows = Rows::new(&[5, 0, 3, 4]);
        for channels in [3, 72] {
            let check = GradientCheck::new().input(&[12, channels]).integers(&[4], &[4, 0, 3, 0]);
            check_gradients(check, |g, x| g.row_mean(x[0], &rows, x[1]));
            check_gradients(GradientCheck::new().input(&[4, channels]), |g, x| g.row_broadcast(x[0], &rows));
        }
        // More than one chunk.
        let rows = Rows::new(&[6000, 5500]);
        check_gradients(GradientCheck::new().input(&[11_500, 3]).integers(&[2], &[5999, 12]), |g, x| {
            let means = g.row_mean(x[0], &rows, x[1])?;
            g.row_broadcast(means, &rows)
        });
    }

    #[test]
    fn padding_is_not_part_of_the_mean() {
        let rows = Rows::new(&[3, 0, 2]);
        let x = [1.0, 10.0, 3.0, 30.0, 999.0, 999.0, 5.0, 50.0, 6.0, 60.0];
        let means = run(GradientCheck::new().given(&[5, 2], &x).integers(&[3], &[2, 0, 2]), |g, x| {
            g.row_mean(x[0], &rows, x[1])
        });
        assert_eq!(means, [2.0, 20.0, 0.0, 0.0, 5.5, 55.0]);
        let means = run(GradientCheck::new().given(&[5, 2], &x).integers(&[3], &[0, 0, 1]), |g, x| {
            g.row_mean(x[0], &rows, x[1])
        });
        assert_eq!(means, [0.0, 0.0, 0.0, 0.0, 5.0, 50.0]);
    }

    #[test]
    fn a_broadcast_reaches_every_frame() {
        let rows = Rows::new(&[2, 0, 1]);
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let broadcast = run(GradientCheck::new().given(&[3, 2], &x), |g, x| g.row_broadcast(x[0], &rows));
        assert_eq!(broadcast, [1.0, 2.0, 1.0, 2.0, 5.0, 6.0]);
    }

    #[test]
    fn shapes_that_do_not_match_the_rows_are_refused() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let x = g.input("x", TensorType::new(DType::F32, &[5, 2])).unwrap();
        let lengths = g.input("lengths", TensorType::new(DType::I32, &[2])).unwrap();
        let rows = Rows::new(&[3, 0, 2]);
        let error = g.row_mean(x, &rows, lengths).unwrap_err().to_string();
        let expected = "row_mean: takes frames [5, channels] and lengths I32[3]; the operands are F32[5, 2] and I32[2]";
        assert_eq!(error, expected);
        let error = g.row_broadcast(x, &rows).unwrap_err().to_string();
        assert_eq!(error, "row_broadcast: takes one vector for each row, [3, channels]; the operands are F32[5, 2]");
    }
}
