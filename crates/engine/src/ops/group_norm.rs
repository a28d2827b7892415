//! Group norm (Wu & He 2018): the valid frames of a row get mean 0 and variance 1 over each group of channels, then a gain and
//! a bias per channel.
//!
//! Host kernels process one row per unit of work, frame by frame with a sum per channel: memory is read in order, and the sums
//! of a group's channels are added at the end.

use half::bf16;
use tandem_device::{Grid, HostArgs, Kernel, Source, kernel_args};

use super::frames::{check_frames, check_lengths, clamp_length, split_by_lengths};
use super::norm::{PartialSums, combine, rstd_of, to_acc};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::{TensorType, accumulator};
use crate::{for_real, named_for};

pub(super) static SOURCE: Source =
    Source { file: "engine/group_norm.cu", text: concat!(include_str!("frames.cuh"), include_str!("group_norm.cu")) };

/// `(x, gain, bias, row starts, lengths)` to the result, and `[batch·groups, 2]`: mean and rstd, saved for the backward pass.
#[derive(Debug)]
struct GroupNorm {
    groups: u32,
    rows: Rows,
}

/// `(x, gain, row starts, lengths, saved, dy)` to `(dx, dgain, dbias)`.
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
        let Some(dy) = at.first() else { return Ok(vec![None; 5]) };
        let &[x, gain, _, starts, lengths] = at.inputs else { unreachable!("checked when the node was written") };
        let op = GroupNormBackward { groups: self.groups, rows: self.rows.clone() };
        let gradients = at.graph.push_many(op, &[x, gain, starts, lengths, at.outputs[1], dy])?;
        Ok(gradients.into_iter().map(Some).chain([None, None]).collect())
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let &[x, gain, bias, starts, lengths] = at.inputs else { unreachable!("group_norm takes five inputs") };
        let (out, saved) = (at.outputs[0], at.outputs[1]);
        let (rows, columns, groups) = (self.rows.count(), x.ty.shape.last(), self.groups);
        let kernel = for_real!("group_norm", x.ty.dtype, T => &Kernels::<T>::FORWARD);
        let grid = Grid { blocks: [groups, rows, 1], threads: 256, shared_bytes: 0 };
        let args = GroupNormArgs { x, gain, bias, starts, lengths, out, saved, rows, columns, groups };
        at.launch(kernel, grid, args);
        Ok(())
    }
}

impl Op for GroupNormBackward {
    fn name(&self) -> &'static str {
        "group_norm gradient"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let gradient = inputs[1].of(accumulator(inputs[1].dtype));
        Ok(vec![inputs[0], gradient, gradient])
    }

    /// The partial sums of dgain and dbias, one per row.
    fn scratch(&self, _: &[TensorType], outputs: &[TensorType]) -> Vec<u64> {
        vec![u64::from(self.rows.count()) * 2 * outputs[1].bytes()]
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let &[x, gain, starts, lengths, saved, dy] = at.inputs else {
            unreachable!("group_norm gradient takes six inputs")
        };
        let &[dx, dgain, dbias] = at.outputs else { unreachable!("group_norm gradient has three outputs") };
        let (rows, columns, groups) = (self.rows.count(), x.ty.shape.last(), self.groups);
        let partial = TensorType::new(dgain.ty.dtype, &[rows, 2 * columns]);
        let partial = Tensor { ty: partial, ..at.scratch[0] };
        let kernel = for_real!("group_norm gradient", x.ty.dtype, T => &Kernels::<T>::BACKWARD);
        let grid = Grid { blocks: [groups, rows, 1], threads: 256, shared_bytes: 0 };
        let args = GroupNormGradientArgs { x, gain, starts, lengths, saved, dy, dx, partial, rows, columns, groups };
        at.launch(kernel, grid, args);
        let sums = PartialSums { partial, chunks: rows, stride: 2 * columns, first: 0 };
        combine(at, sums, dgain)?;
        combine(at, PartialSums { first: columns, ..sums }, dbias)
    }
}

kernel_args! {
    /// Arguments of `group_norm`.
    struct GroupNormArgs<T: Real> {
        x: in T,
        gain: in T,
        bias: in T,
        starts: in u32,
        lengths: in i32,
        out: out T,
        saved: out T::Acc,
        rows: u32,
        columns: u32,
        groups: u32,
    }
}

kernel_args! {
    /// Arguments of `group_norm_gradient`.
    struct GroupNormGradientArgs<T: Real> {
        x: in T,
        gain: in T,
        starts: in u32,
        lengths: in i32,
        saved: in T::Acc,
        dy: in T,
        dx: out T,
        partial: out T::Acc,
        rows: u32,
        columns: u32,
        groups: u32,
    }
}

struct Kernels<T>(std::marker::PhantomData<T>);

impl<T: Real> Kernels<T> {
    const FORWARD: Kernel = Kernel {
        name: named_for!(T, "group_norm"),
        source: on_cuda::<T>(&SOURCE),
        params: GroupNormArgs::params::<T>(),
        host: &forward::<T>,
    };

    const BACKWARD: Kernel = Kernel {
        name: named_for!(T, "group_norm_gradient"),
        source: on_cuda::<T>(&SOURCE),
        params: GroupNormGradientArgs::params::<T>(),
        host: &backward::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] =
    &[&Kernels::<f32>::FORWARD, &Kernels::<f32>::BACKWARD, &Kernels::<bf16>::FORWARD, &Kernels::<bf16>::BACKWARD];

fn forward<T: Real>(args: &mut HostArgs<'_>) {
    let GroupNormArgs { x, gain, bias, starts, lengths, out, saved, rows, columns, groups } =
        GroupNormArgs::host::<T>(args);
    let (columns, groups) = (columns as usize, groups as usize);
    let (gain, bias) = (to_acc(gain), to_acc(bias));
    let out = split_by_lengths(out, row_frames(&starts[..=rows as usize]).map(|frames| frames * columns));
    let saved = saved.chunks_exact_mut(2 * groups);
    args.workers().each_part(out.into_iter().zip(saved).collect(), |row, (out, saved)| {
        let valid = clamp_length(lengths[row], out.len() / columns) * columns;
        let (out, padding) = out.split_at_mut(valid);
        padding.fill(T::store(T::Acc::zero()));
        let x = &x[starts[row] as usize * columns..][..valid];
        normalize_row(x, (&gain, &bias), saved.as_chunks_mut().0, out);
    });
}

fn row_frames(starts: &[u32]) -> impl Iterator<Item = usize> {
    starts.windows(2).map(|ends| (ends[1] - ends[0]) as usize)
}

/// Normalises the valid frames of one row; `saved` has an entry per group.
fn normalize_row<T: Real>(x: &[T], (gain, bias): (&[T::Acc], &[T::Acc]), saved: &mut [[T::Acc; 2]], out: &mut [T]) {
    let (columns, group_channels) = (gain.len(), gain.len() / saved.len());
    let inverse_count = T::Acc::of(1.0 / (x.len() / columns * group_channels).max(1) as f64);
    let mut sums = vec![T::Acc::zero(); columns];
    for x in x.chunks_exact(columns) {
        sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += x.load());
    }
    for (saved, sums) in saved.iter_mut().zip(sums.chunks_exact(group_channels)) {
        saved[0] = sums.iter().copied().sum::<T::Acc>() * inverse_count;
    }
    let means = per_channel(saved, group_channels, |saved| saved[0]);
    sums.fill(T::Acc::zero());
    for x in x.chunks_exact(columns) {
        for ((sum, x), &mean) in sums.iter_mut().zip(x).zip(&means) {
            let deviation = x.load() - mean;
            *sum += deviation * deviation;
        }
    }
    for (saved, sums) in saved.iter_mut().zip(sums.chunks_exact(group_channels)) {
        saved[1] = rstd_of(sums.iter().copied().sum::<T::Acc>() * inverse_count);
    }
    let mut factors = per_channel(saved, group_channels, |saved| saved[1]);
    factors.iter_mut().zip(gain).for_each(|(factor, &gain)| *factor = *factor * gain);
    for (out, x) in out.chunks_exact_mut(columns).zip(x.chunks_exact(columns)) {
        let each = out.iter_mut().zip(x).zip(&means).zip(&factors).zip(bias);
        each.for_each(|((((out, x), &mean), &factor), &bias)| *out = T::store((x.load() - mean) * factor + bias));
    }
}

/// One statistic of each group, repeated for each of its channels.
fn per_channel<F: Float>(saved: &[[F; 2]], group_channels: usize, pick: impl Fn(&[F; 2]) -> F) -> Vec<F> {
    saved.iter().flat_map(|saved| std::iter::repeat_n(pick(saved), group_channels)).collect()
}

fn backward<T: Real>(args: &mut HostArgs<'_>) {
    let GroupNormGradientArgs { x, gain, starts, lengths, saved, dy, dx, partial, rows, columns, groups } =
        GroupNormGradientArgs::host::<T>(args);
    let (columns, groups) = (columns as usize, groups as usize);
    let (gain, saved) = (to_acc(gain), saved.as_chunks::<2>().0);
    let dx = split_by_lengths(dx, row_frames(&starts[..=rows as usize]).map(|frames| frames * columns));
    let partial = partial.chunks_exact_mut(2 * columns);
    args.workers().each_part(dx.into_iter().zip(partial).collect(), |row, (dx, partial)| {
        let valid = clamp_length(lengths[row], dx.len() / columns) * columns;
        let (dx, padding) = dx.split_at_mut(valid);
        padding.fill(T::store(T::Acc::zero()));
        let first = starts[row] as usize * columns;
        let saved = &saved[row * groups..(row + 1) * groups];
        row_gradient(&x[first..][..valid], &dy[first..][..valid], &gain, saved, partial, dx);
    });
}

/// The gradient of [`normalize_row`]; `partial` gets the row's sums of dgain and dbias.
fn row_gradient<T: Real>(
    x: &[T],
    dy: &[T],
    gain: &[T::Acc],
    saved: &[[T::Acc; 2]],
    partial: &mut [T::Acc],
    dx: &mut [T],
) {
    let (columns, group_channels) = (gain.len(), gain.len() / saved.len());
    let means = per_channel(saved, group_channels, |saved| saved[0]);
    let rstds = per_channel(saved, group_channels, |saved| saved[1]);
    partial.fill(T::Acc::zero());
    let (dgain, dbias) = partial.split_at_mut(columns);
    for (x, dy) in x.chunks_exact(columns).zip(dy.chunks_exact(columns)) {
        for ((dgain, (x, dy)), &mean) in dgain.iter_mut().zip(x.iter().zip(dy)).zip(&means) {
            *dgain += dy.load() * (x.load() - mean);
        }
        dbias.iter_mut().zip(dy).for_each(|(dbias, dy)| *dbias += dy.load());
    }
    dgain.iter_mut().zip(&rstds).for_each(|(dgain, &rstd)| *dgain = *dgain * rstd);
    let inverse_count = T::Acc::of(1.0 / (x.len() / columns * group_channels).max(1) as f64);
    // The mean over a group of `sums · gain`, repeated for each of its channels.
    let group_mean = |sums: &[T::Acc]| -> Vec<T::Acc> {
        let groups = sums.chunks_exact(group_channels).zip(gain.chunks_exact(group_channels));
        let mean = |(sums, gain): (&[T::Acc], &[T::Acc])| {
            sums.iter().zip(gain).map(|(&sum, &gain)| sum * gain).sum::<T::Acc>() * inverse_count
        };
        groups.map(mean).flat_map(|mean| std::iter::repeat_n(mean, group_channels)).collect()
    };
    // dx = gain·rstd·dy - dnorm_mean·rstd - dnorm_norm_mean·rstd²·(x - mean), with the factors of a channel computed once.
    let (mut dnorm_means, mut dnorm_norm_means) = (group_mean(dbias), group_mean(dgain));
    let factors: Vec<T::Acc> = gain.iter().zip(&rstds).map(|(&gain, &rstd)| gain * rstd).collect();
    dnorm_means.iter_mut().zip(&rstds).for_each(|(mean, &rstd)| *mean = *mean * rstd);
    dnorm_norm_means.iter_mut().zip(&rstds).for_each(|(mean, &rstd)| *mean = *mean * rstd * rstd);
    for ((dx, x), dy) in dx.chunks_exact_mut(columns).zip(x.chunks_exact(columns)).zip(dy.chunks_exact(columns)) {
        let channels = factors.iter().zip(&dnorm_means).zip(&dnorm_norm_means).zip(&means);
        let each = dx.iter_mut().zip(x).zip(dy).zip(channels);
        for (((dx, x), dy), (((&factor, &dnorm_mean), &dnorm_norm_mean), &mean)) in each {
            *dx = T::store(factor * dy.load() - dnorm_mean - dnorm_norm_mean * (x.load() - mean));
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
