//! Group norm: the valid frames of a row get mean 0 and variance 1 over each group of channels, then a gain and a bias per
//! channel.
//!
//! Twins take one row per piece and go through it frame by frame with a sum per channel: memory is read in order, and
//! groups are only seen when the sums of their channels are added up.

use tandem_device::{DType, Element, Grid, HostArgs, Kernel, Param, Source};

use super::frames::{check_frames, check_lengths, cut, filled};
use super::norm::{combine, inverse_root, widened};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{LaunchArg, Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::{TensorType, accumulator};
use crate::{for_real, named_for};

pub(super) static SOURCE: Source =
    Source { file: "engine/group_norm.cu", text: concat!(include_str!("frames.cuh"), include_str!("group_norm.cu")) };

/// `(x, gain, bias, row starts, lengths)` to the result, and `[batch·groups, 2]`: mean and 1/√(variance + ε).
#[derive(Debug)]
struct GroupNorm {
    groups: u32,
    rows: Rows,
}

/// `(x, gain, row starts, lengths, what GroupNorm kept, gradient)` to the gradients of x, gain and bias.
#[derive(Debug)]
struct GroupNormBackward {
    groups: u32,
    rows: Rows,
}

impl Op for GroupNorm {
    fn name(&self) -> &'static str {
        "group_norm"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        check_frames("group_norm", &self.rows, inputs)?;
        check_lengths("group_norm", &self.rows, inputs, 4)?;
        let x = inputs[0];
        if self.groups == 0 || !x.shape.last().is_multiple_of(self.groups) {
            return refuse("group_norm", format!("takes channels in {} equal groups", self.groups), inputs);
        }
        let vector = TensorType::new(x.dtype, &[x.shape.last()]);
        if inputs[1] != vector || inputs[2] != vector {
            return refuse("group_norm", format!("takes a gain and a bias of {vector}"), inputs);
        }
        Ok(vec![x, TensorType::new(accumulator(x.dtype), &[self.rows.count() * self.groups, 2])])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(g) = at.first() else { return Ok(vec![None; 5]) };
        let &[x, gain, _, starts, lengths] = at.inputs else { unreachable!("checked when the node was written") };
        let op = GroupNormBackward { groups: self.groups, rows: self.rows.clone() };
        let found = at.graph.push_many(op, &[x, gain, starts, lengths, at.outputs[1], g])?;
        Ok(found.into_iter().map(Some).chain([None, None]).collect())
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let x = at.inputs[0].ty;
        let kernel = for_real!("group_norm", x.dtype, T => &Kernels::<T>::FORWARD);
        let mut args: Vec<LaunchArg> = at.inputs.iter().map(Tensor::read).collect();
        args.extend(at.outputs.iter().map(Tensor::write));
        args.extend([self.rows.count(), x.shape.last(), self.groups].map(LaunchArg::U32));
        let grid = Grid { blocks: [self.groups, self.rows.count(), 1], threads: 256, shared_bytes: 0 };
        at.launch(kernel, grid, args);
        Ok(())
    }
}

impl Op for GroupNormBackward {
    fn name(&self) -> &'static str {
        "group_norm gradient"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let wide = inputs[1].of(accumulator(inputs[1].dtype));
        Ok(vec![inputs[0], wide, wide])
    }

    /// The sums for gain and bias of each row.
    fn scratch(&self, _: &[TensorType], outputs: &[TensorType]) -> Vec<u64> {
        vec![u64::from(self.rows.count()) * 2 * outputs[1].bytes()]
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (x, batch) = (at.inputs[0].ty, self.rows.count());
        let columns = x.shape.last();
        let partial = TensorType::new(at.outputs[1].ty.dtype, &[batch, 2 * columns]);
        let partial = Tensor { ty: partial, ..at.scratch[0] };
        let kernel = for_real!("group_norm gradient", x.dtype, T => &Kernels::<T>::BACKWARD);
        let mut args: Vec<LaunchArg> = at.inputs.iter().map(Tensor::read).collect();
        args.extend([at.outputs[0].write(), partial.write()]);
        args.extend([batch, columns, self.groups].map(LaunchArg::U32));
        let grid = Grid { blocks: [self.groups, batch, 1], threads: 256, shared_bytes: 0 };
        at.launch(kernel, grid, args);
        let (of_gain, of_bias) = (at.outputs[1], at.outputs[2]);
        combine(at, partial, of_gain, [batch, 2 * columns, 0])?;
        combine(at, partial, of_bias, [batch, 2 * columns, columns])
    }
}

struct Kernels<T>(std::marker::PhantomData<T>);

impl<T: Real> Kernels<T> {
    const ACC: DType = <T::Acc as Element>::DTYPE;

    const FORWARD: Kernel = Kernel {
        name: named_for!(T, "group_norm"),
        source: on_cuda::<T>(&SOURCE),
        params: &[
            Param::In(T::DTYPE),
            Param::In(T::DTYPE),
            Param::In(T::DTYPE),
            Param::In(DType::U32),
            Param::In(DType::I32),
            Param::Out(T::DTYPE),
            Param::Out(Self::ACC),
            Param::U32,
            Param::U32,
            Param::U32,
        ],
        host: &forward::<T>,
    };

    const BACKWARD: Kernel = Kernel {
        name: named_for!(T, "group_norm_gradient"),
        source: on_cuda::<T>(&SOURCE),
        params: &[
            Param::In(T::DTYPE),
            Param::In(T::DTYPE),
            Param::In(DType::U32),
            Param::In(DType::I32),
            Param::In(Self::ACC),
            Param::In(T::DTYPE),
            Param::Out(T::DTYPE),
            Param::Out(Self::ACC),
            Param::U32,
            Param::U32,
            Param::U32,
        ],
        host: &backward::<T>,
    };
}

fn forward<T: Real>(args: &mut HostArgs<'_>) {
    let [batch, columns, groups] = [7, 8, 9].map(|i| args.u32(i) as usize);
    let (x, starts, lengths) = (args.read::<T>(0), &args.read::<u32>(3)[..=batch], args.read::<i32>(4));
    let (gain, bias) = (widened(args.read::<T>(1)), widened(args.read::<T>(2)));
    let workers = args.workers();
    let out = cut(args.write::<T>(5), row_frames(starts).map(|frames| frames * columns));
    let kept = args.write::<T::Acc>(6).chunks_exact_mut(2 * groups);
    workers.each_part(out.into_iter().zip(kept).collect(), |row, (out, kept)| {
        let valid = filled(lengths[row], out.len() / columns) * columns;
        let (out, padding) = out.split_at_mut(valid);
        padding.fill(T::store(T::Acc::zero()));
        let x = &x[starts[row] as usize * columns..][..valid];
        normalize_row(x, (&gain, &bias), kept.as_chunks_mut().0, out);
    });
}

fn row_frames(starts: &[u32]) -> impl Iterator<Item = usize> {
    starts.windows(2).map(|ends| (ends[1] - ends[0]) as usize)
}

/// The valid frames of one row; `kept` has an entry per group.
fn normalize_row<T: Real>(x: &[T], (gain, bias): (&[T::Acc], &[T::Acc]), kept: &mut [[T::Acc; 2]], out: &mut [T]) {
    let (columns, of_a_group) = (gain.len(), gain.len() / kept.len());
    let share = T::Acc::of(1.0 / (x.len() / columns * of_a_group).max(1) as f64);
    let mut sums = vec![T::Acc::zero(); columns];
    for x in x.chunks_exact(columns) {
        sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x.load());
    }
    for (kept, sums) in kept.iter_mut().zip(sums.chunks_exact(of_a_group)) {
        kept[0] = sums.iter().copied().sum::<T::Acc>() * share;
    }
    let means = spread(kept, of_a_group, |kept| kept[0]);
    sums.fill(T::Acc::zero());
    for x in x.chunks_exact(columns) {
        for ((sum, x), &mean) in sums.iter_mut().zip(x).zip(&means) {
            let apart = x.load() - mean;
            *sum += apart * apart;
        }
    }
    for (kept, sums) in kept.iter_mut().zip(sums.chunks_exact(of_a_group)) {
        kept[1] = inverse_root(sums.iter().copied().sum::<T::Acc>() * share);
    }
    let mut slopes = spread(kept, of_a_group, |kept| kept[1]);
    slopes.iter_mut().zip(gain).for_each(|(slope, &gain)| *slope = *slope * gain);
    for (out, x) in out.chunks_exact_mut(columns).zip(x.chunks_exact(columns)) {
        let each = out.iter_mut().zip(x).zip(&means).zip(&slopes).zip(bias);
        each.for_each(|((((out, x), &mean), &slope), &bias)| *out = T::store((x.load() - mean) * slope + bias));
    }
}

/// A number of each group, at each of its channels.
fn spread<W: Float>(kept: &[[W; 2]], of_a_group: usize, pick: impl Fn(&[W; 2]) -> W) -> Vec<W> {
    kept.iter().flat_map(|kept| std::iter::repeat_n(pick(kept), of_a_group)).collect()
}

fn backward<T: Real>(args: &mut HostArgs<'_>) {
    let [batch, columns, groups] = [8, 9, 10].map(|i| args.u32(i) as usize);
    let (x, gradient) = (args.read::<T>(0), args.read::<T>(5));
    let (starts, lengths) = (&args.read::<u32>(2)[..=batch], args.read::<i32>(3));
    let gain = widened(args.read::<T>(1));
    let kept = args.read::<T::Acc>(4).as_chunks::<2>().0;
    let workers = args.workers();
    let out = cut(args.write::<T>(6), row_frames(starts).map(|frames| frames * columns));
    let sums = args.write::<T::Acc>(7).chunks_exact_mut(2 * columns);
    workers.each_part(out.into_iter().zip(sums).collect(), |row, (out, sums)| {
        let valid = filled(lengths[row], out.len() / columns) * columns;
        let (out, padding) = out.split_at_mut(valid);
        padding.fill(T::store(T::Acc::zero()));
        let first = starts[row] as usize * columns;
        let kept = &kept[row * groups..(row + 1) * groups];
        row_gradient((&x[first..][..valid], &gradient[first..][..valid]), &gain, kept, sums, out);
    });
}

/// The gradient of [`normalize_row`]; `sums` gets what the row adds to the gradients of gain and bias.
fn row_gradient<T: Real>(
    (x, gradient): (&[T], &[T]),
    gain: &[T::Acc],
    kept: &[[T::Acc; 2]],
    sums: &mut [T::Acc],
    out: &mut [T],
) {
    let (columns, of_a_group) = (gain.len(), gain.len() / kept.len());
    let means = spread(kept, of_a_group, |kept| kept[0]);
    let scales = spread(kept, of_a_group, |kept| kept[1]);
    sums.fill(T::Acc::zero());
    let (of_gain, of_bias) = sums.split_at_mut(columns);
    for (x, g) in x.chunks_exact(columns).zip(gradient.chunks_exact(columns)) {
        for ((of_gain, (x, g)), &mean) in of_gain.iter_mut().zip(x.iter().zip(g)).zip(&means) {
            *of_gain += g.load() * (x.load() - mean);
        }
        of_bias.iter_mut().zip(g).for_each(|(of_bias, g)| *of_bias += g.load());
    }
    of_gain.iter_mut().zip(&scales).for_each(|(of_gain, &scale)| *of_gain = *of_gain * scale);
    let share = T::Acc::of(1.0 / (x.len() / columns * of_a_group).max(1) as f64);
    let weighted = |sums: &[T::Acc]| -> Vec<T::Acc> {
        let groups = sums.chunks_exact(of_a_group).zip(gain.chunks_exact(of_a_group));
        let total = |(sums, gain): (&[T::Acc], &[T::Acc])| {
            sums.iter().zip(gain).map(|(&sum, &gain)| sum * gain).sum::<T::Acc>() * share
        };
        groups.map(total).flat_map(|total| std::iter::repeat_n(total, of_a_group)).collect()
    };
    // d = slope·g - level - tilt·(x - mean), with everything that a channel keeps taken out of the loop.
    let (mut levels, mut tilts) = (weighted(of_bias), weighted(of_gain));
    let slopes: Vec<T::Acc> = gain.iter().zip(&scales).map(|(&gain, &scale)| gain * scale).collect();
    levels.iter_mut().zip(&scales).for_each(|(level, &scale)| *level = *level * scale);
    tilts.iter_mut().zip(&scales).for_each(|(tilt, &scale)| *tilt = *tilt * scale * scale);
    for ((out, x), g) in out.chunks_exact_mut(columns).zip(x.chunks_exact(columns)).zip(gradient.chunks_exact(columns))
    {
        let channels = slopes.iter().zip(&levels).zip(&tilts).zip(&means);
        for (((out, x), g), (((&slope, &level), &tilt), &mean)) in out.iter_mut().zip(x).zip(g).zip(channels) {
            *out = T::store(slope * g.load() - level - tilt * (x.load() - mean));
        }
    }
}

impl Graph {
    /// Normalises the valid frames of each row of `x` `[frames, channels]` over each of `groups` equal groups of channels:
    /// `(x - mean) / √(variance + 1e-5) · gain + bias`, with `gain` and `bias` `[channels]` and `lengths` `I32[batch]`.
    ///
    /// Frames past the length are 0, add nothing to the statistics, and get and give no gradient.
    pub fn group_norm(
        &mut self,
        x: Value,
        gain: Value,
        bias: Value,
        groups: u32,
        rows: &Rows,
        lengths: Value,
    ) -> Result<Value, EngineError> {
        let starts = self.row_starts(rows);
        Ok(self.push_many(GroupNorm { groups, rows: rows.clone() }, &[x, gain, bias, starts, lengths])?[0])
    }
}

#[cfg(test)]
mod tests;
