//! Depthwise convolution: every channel has its own filter.

use half::bf16;
use tandem_device::{Grid, HostArgs, Kernel, Source, kernel_args};

use super::frames::{frames_per_chunk, is_lengths, is_sequence, row_grid, row_parts, row_range, valid_frames};
use super::window::{ConvWindow, Windowed};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::{TensorType, accumulator};
use crate::{for_real, named_for};

pub(super) static SOURCE: Source = Source {
    file: "engine/depthwise.cu",
    text: concat!(
        include_str!("frames.cuh"),
        include_str!("partial_sums.cuh"),
        include_str!("window.cuh"),
        include_str!("depthwise.cu")
    ),
};

/// Output frames per partial sum of the weight's gradient.
const FRAMES_PER_CHUNK: u32 = 128;

/// Inputs: frames, weight, bias, row starts, output row starts, lengths.
#[derive(Debug)]
struct Depthwise(Windowed);

/// The gradient of the frames. Inputs: gradient, weight, row starts, output row starts, lengths.
#[derive(Debug)]
struct InputGradient(Windowed);

/// The gradient of the weight, in the accumulator type. Inputs: gradient, frames, row starts, output row starts, lengths.
#[derive(Debug)]
struct WeightGradient(Windowed);

impl Op for Depthwise {
    fn name(&self) -> &'static str {
        "depthwise_conv1d"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let (x, weight, bias, lengths) = (inputs[0], inputs[1], inputs[2], inputs[5]);
        let Windowed { window, rows, out_rows } = &self.0;
        let (channels, kernel, shown) = (x.shape.last(), window.kernel, [x, weight, bias, lengths]);
        if !is_sequence(&x, rows) || !is_lengths(&lengths, rows) {
            let problem = format!("takes frames [{}, channels] and lengths I32[{}]", rows.total(), rows.count());
            return refuse("depthwise_conv1d", problem, &shown);
        }
        let alike = weight.dtype == x.dtype && bias.dtype == x.dtype;
        if weight.shape.dims() != [channels, kernel] || bias.shape.dims() != [channels] || !alike {
            let problem = format!("takes a weight [{channels}, {kernel}] and a bias [{channels}] of one element type");
            return refuse("depthwise_conv1d", problem, &shown);
        }
        Ok(vec![TensorType::new(x.dtype, &[out_rows.total(), channels])])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first() else { return Ok(vec![None; 6]) };
        let [x, weight] = [at.inputs[0], at.inputs[1]];
        let with = |other| [gradient, other, at.inputs[3], at.inputs[4], at.inputs[5]];
        let mut found = vec![None; 6];
        if at.wanted[0] {
            found[0] = Some(at.graph.push(InputGradient(self.0.clone()), &with(weight))?);
        }
        if at.wanted[1] {
            found[1] = Some(at.graph.push(WeightGradient(self.0.clone()), &with(x))?);
        }
        if at.wanted[2] {
            found[2] = Some(at.graph.sum_rows(gradient)?);
        }
        Ok(found)
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (&[x, weight, bias, starts, out_starts, lengths], out) = (at.inputs, at.outputs[0]) else {
            unreachable!("depthwise_conv1d takes six inputs")
        };
        if out.ty.shape.elements() == 0 {
            return Ok(());
        }
        let channels = out.ty.shape.last();
        let ConvWindow { kernel, stride, dilation, padding } = self.0.window;
        let args = DepthwiseArgs {
            x,
            weight,
            bias,
            starts,
            out_starts,
            lengths,
            out,
            channels,
            kernel,
            stride,
            dilation,
            padding,
        };
        let kernel = for_real!("depthwise_conv1d", out.ty.dtype, T => &Kernels::<T>::FORWARD);
        at.launch(kernel, group_grid(&self.0.out_rows, channels), args);
        Ok(())
    }
}

impl Op for InputGradient {
    fn name(&self) -> &'static str {
        "depthwise_conv1d gradient of input"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let gradient = inputs[0];
        Ok(vec![TensorType::new(gradient.dtype, &[self.0.rows.total(), gradient.shape.last()])])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (&[gradient, weight, starts, out_starts, lengths], out) = (at.inputs, at.outputs[0]) else {
            unreachable!("the gradient of depthwise_conv1d takes five inputs")
        };
        if out.ty.shape.elements() == 0 {
            return Ok(());
        }
        let channels = out.ty.shape.last();
        let ConvWindow { kernel, stride, dilation, padding } = self.0.window;
        let args = InputGradientArgs {
            gradient,
            weight,
            starts,
            out_starts,
            lengths,
            out,
            channels,
            kernel,
            stride,
            dilation,
            padding,
        };
        let kernel = for_real!("depthwise_conv1d", out.ty.dtype, T => &Kernels::<T>::INPUT_GRADIENT);
        at.launch(kernel, group_grid(&self.0.rows, channels), args);
        Ok(())
    }
}

impl WeightGradient {
    fn chunks(&self) -> u32 {
        self.0.out_rows.total().div_ceil(FRAMES_PER_CHUNK).max(1)
    }
}

impl Op for WeightGradient {
    fn name(&self) -> &'static str {
        "depthwise_conv1d gradient of weight"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let gradient = inputs[0];
        let dims = [gradient.shape.last(), self.0.window.kernel];
        Ok(vec![TensorType::new(accumulator(gradient.dtype), &dims)])
    }

    fn scratch(&self, _: &[TensorType], outputs: &[TensorType]) -> Vec<u64> {
        vec![u64::from(self.chunks()) * outputs[0].bytes()]
    }

    fn can_accumulate(&self, _: usize) -> bool {
        true
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (&[gradient, x, starts, out_starts, lengths], out) = (at.inputs, at.outputs[0]) else {
            unreachable!("the gradient of a weight takes five inputs")
        };
        let (channels, chunks) = (gradient.ty.shape.last(), self.chunks());
        let ConvWindow { kernel: taps, stride, dilation, padding } = self.0.window;
        let partial = Tensor { ty: TensorType::new(out.ty.dtype, &[chunks, taps, channels]), ..at.scratch[0] };
        let kernel = for_real!("depthwise_conv1d", gradient.ty.dtype, T => &Kernels::<T>::WEIGHT_GRADIENT);
        let args = WeightGradientArgs {
            gradient,
            x,
            starts,
            out_starts,
            lengths,
            partial,
            channels,
            kernel: taps,
            stride,
            dilation,
            padding,
            rows: self.0.rows.count(),
        };
        let grid = Grid { blocks: [channels.div_ceil(32).max(1), chunks, 1], threads: 256, shared_bytes: 0 };
        at.launch(kernel, grid, args);
        let kernel = for_real!("depthwise_conv1d", out.ty.dtype, T => &Kernels::<T>::COMBINE);
        let args = CombineArgs { partial, out, chunks, channels, taps, accumulate: at.accumulates(0).into() };
        let blocks = (channels * taps).div_ceil(32).max(1);
        at.launch(kernel, Grid { blocks: [blocks, 1, 1], threads: 512, shared_bytes: 0 }, args);
        Ok(())
    }
}

/// A grid whose threads compute eight frames each, so that they load a weight once for all of them.
fn group_grid(rows: &Rows, channels: u32) -> Grid {
    row_grid(rows, channels.div_ceil(8))
}

kernel_args! {
    /// Arguments of `depthwise`.
    struct DepthwiseArgs<T: Real> {
        x: in T,
        weight: in T,
        bias: in T,
        starts: in u32,
        out_starts: in u32,
        lengths: in i32,
        out: out T,
        channels: u32,
        kernel: u32,
        stride: u32,
        dilation: u32,
        padding: u32,
    }
}

kernel_args! {
    /// Arguments of `depthwise_gradient`.
    struct InputGradientArgs<T: Real> {
        gradient: in T,
        weight: in T,
        starts: in u32,
        out_starts: in u32,
        lengths: in i32,
        out: out T,
        channels: u32,
        kernel: u32,
        stride: u32,
        dilation: u32,
        padding: u32,
    }
}

kernel_args! {
    /// Arguments of `depthwise_weight_gradient`.
    struct WeightGradientArgs<T: Real> {
        gradient: in T,
        x: in T,
        starts: in u32,
        out_starts: in u32,
        lengths: in i32,
        partial: out T::Acc,
        channels: u32,
        kernel: u32,
        stride: u32,
        dilation: u32,
        padding: u32,
        rows: u32,
    }
}

kernel_args! {
    /// Arguments of `depthwise_combine`.
    struct CombineArgs<A: Real> { partial: in A, out: out A, chunks: u32, channels: u32, taps: u32, accumulate: u32 }
}

struct Kernels<T>(std::marker::PhantomData<T>);

impl<T: Real> Kernels<T> {
    const FORWARD: Kernel = Kernel {
        name: named_for!(T, "depthwise"),
        source: on_cuda::<T>(&SOURCE),
        params: DepthwiseArgs::params::<T>(),
        host: &forward::<T>,
    };

    const INPUT_GRADIENT: Kernel = Kernel {
        name: named_for!(T, "depthwise_gradient"),
        source: on_cuda::<T>(&SOURCE),
        params: InputGradientArgs::params::<T>(),
        host: &input_gradient::<T>,
    };

    const WEIGHT_GRADIENT: Kernel = Kernel {
        name: named_for!(T, "depthwise_weight_gradient"),
        source: on_cuda::<T>(&SOURCE),
        params: WeightGradientArgs::params::<T>(),
        host: &weight_gradient::<T>,
    };

    const COMBINE: Kernel = Kernel {
        name: named_for!(T, "depthwise_combine"),
        source: on_cuda::<T>(&SOURCE),
        params: CombineArgs::params::<T>(),
        host: &combine::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] = &[
    &Kernels::<f32>::FORWARD,
    &Kernels::<bf16>::FORWARD,
    &Kernels::<f32>::INPUT_GRADIENT,
    &Kernels::<bf16>::INPUT_GRADIENT,
    &Kernels::<f32>::WEIGHT_GRADIENT,
    &Kernels::<bf16>::WEIGHT_GRADIENT,
    &Kernels::<f32>::COMBINE,
];

/// The weight `[channels, taps]` as `[taps, channels]`, so that loops over channels run over slices.
fn by_tap<T: Real>(weight: &[T], channels: usize) -> Vec<T::Acc> {
    let taps = weight.len() / channels;
    (0..weight.len()).map(|i| weight[i % channels * taps + i / channels].load()).collect()
}

/// Channels whose sums over all taps stay in registers.
const LANES: usize = 16;

/// `out = initial + Σ weight · x`. Each of `taps` holds the offsets of a tap in `weight` and in `x`.
fn accumulate_taps<T: Real>(out: &mut [T], initial: &[T::Acc], taps: &[(usize, usize)], weight: &[T::Acc], x: &[T]) {
    let blocks = out.len() / LANES;
    for block in 0..blocks {
        accumulate_lanes::<T, LANES>(out, block * LANES, initial, taps, weight, x);
    }
    for channel in blocks * LANES..out.len() {
        accumulate_lanes::<T, 1>(out, channel, initial, taps, weight, x);
    }
}

#[inline(always)]
fn accumulate_lanes<T: Real, const N: usize>(
    out: &mut [T],
    first: usize,
    initial: &[T::Acc],
    taps: &[(usize, usize)],
    weight: &[T::Acc],
    x: &[T],
) {
    let mut sums = [T::Acc::zero(); N];
    sums.copy_from_slice(&initial[first..first + N]);
    for &(weight_offset, x_offset) in taps {
        let (weight, x) = (&weight[weight_offset + first..][..N], &x[x_offset + first..][..N]);
        for lane in 0..N {
            sums[lane] += weight[lane] * x[lane].load();
        }
    }
    let out = &mut out[first..first + N];
    for lane in 0..N {
        out[lane] = T::store(sums[lane]);
    }
}

fn forward<T: Real>(args: &mut HostArgs<'_>) {
    let DepthwiseArgs {
        x,
        weight,
        bias,
        starts,
        out_starts,
        lengths,
        out,
        channels,
        kernel,
        stride,
        dilation,
        padding,
    } = DepthwiseArgs::host::<T>(args);
    let (channels, window) = (channels as usize, ConvWindow { kernel, stride, dilation, padding });
    let (weight, bias) = (by_tap(weight, channels), bias.iter().map(|bias| bias.load()).collect::<Vec<_>>());
    let frames = frames_per_chunk(channels * window.kernel as usize);
    args.workers().each_chunk(out, frames * channels, |chunk, out| {
        let mut taps = Vec::with_capacity(window.kernel as usize);
        let mut out = out.chunks_exact_mut(channels);
        for run in row_parts(out_starts, chunk * frames..chunk * frames + out.len()) {
            let length = valid_frames(starts, lengths, run.row);
            let out_length = window.output_length(length as u32) as usize;
            let row = &x[row_range(starts, run.row).start * channels..];
            for (t, out) in run.in_row().zip(&mut out) {
                let readable = if t < out_length { length } else { 0 };
                let reads = window.reads(t, readable);
                taps.clear();
                taps.extend(reads.map(|(tap, frame)| (tap * channels, frame * channels)));
                accumulate_taps(out, &bias, &taps, &weight, row);
            }
        }
    });
}

fn input_gradient<T: Real>(args: &mut HostArgs<'_>) {
    let InputGradientArgs {
        gradient,
        weight,
        starts,
        out_starts,
        lengths,
        out,
        channels,
        kernel,
        stride,
        dilation,
        padding,
    } = InputGradientArgs::host::<T>(args);
    let (channels, window) = (channels as usize, ConvWindow { kernel, stride, dilation, padding });
    let (weight, zeros) = (by_tap(weight, channels), vec![T::Acc::zero(); channels]);
    let frames = frames_per_chunk(channels * window.kernel as usize);
    args.workers().each_chunk(out, frames * channels, |chunk, out| {
        let mut taps = Vec::with_capacity(window.kernel as usize);
        let mut out = out.chunks_exact_mut(channels);
        for run in row_parts(starts, chunk * frames..chunk * frames + out.len()) {
            let length = valid_frames(starts, lengths, run.row);
            let out_length = window.output_length(length as u32) as usize;
            let row = &gradient[row_range(out_starts, run.row).start * channels..];
            for (frame, out) in run.in_row().zip(&mut out) {
                let readers = window.readers(frame, if frame < length { out_length } else { 0 });
                taps.clear();
                taps.extend(readers.map(|(tap, t)| (tap * channels, t * channels)));
                accumulate_taps(out, &zeros, &taps, &weight, row);
            }
        }
    });
}

fn weight_gradient<T: Real>(args: &mut HostArgs<'_>) {
    let WeightGradientArgs {
        gradient,
        x,
        starts,
        out_starts,
        lengths,
        partial,
        channels,
        kernel,
        stride,
        dilation,
        padding,
        ..
    } = WeightGradientArgs::host::<T>(args);
    let (channels, window) = (channels as usize, ConvWindow { kernel, stride, dilation, padding });
    let (chunk_frames, total) = (FRAMES_PER_CHUNK as usize, gradient.len() / channels);
    args.workers().each_chunk(partial, channels * window.kernel as usize, |chunk, sums| {
        sums.fill(T::Acc::zero());
        let first = chunk * chunk_frames;
        for run in row_parts(out_starts, first..first + chunk_frames.min(total - first)) {
            let length = valid_frames(starts, lengths, run.row);
            let out_length = window.output_length(length as u32) as usize;
            let row = &x[row_range(starts, run.row).start * channels..];
            let gradient = &gradient[row_range(out_starts, run.row).start * channels..];
            for t in run.in_row().start..run.in_row().end.min(out_length) {
                let gradient = &gradient[t * channels..][..channels];
                for (tap, frame) in window.reads(t, length) {
                    let sums = &mut sums[tap * channels..][..channels];
                    let each = sums.iter_mut().zip(gradient).zip(&row[frame * channels..]);
                    each.for_each(|((sum, g), x)| *sum += g.load() * x.load());
                }
            }
        }
    });
}

/// Adds the partial sums `[chunks, taps, channels]` in order, to `[channels, taps]`.
fn combine<T: Real>(args: &mut HostArgs<'_>) {
    let CombineArgs { partial, out, channels, taps, accumulate, .. } = CombineArgs::host::<T>(args);
    let (channels, taps) = (channels as usize, taps as usize);
    let mut total = vec![T::Acc::zero(); channels * taps];
    for partial in partial.chunks_exact(channels * taps) {
        total.iter_mut().zip(partial).for_each(|(total, partial)| *total += partial.load());
    }
    for (i, out) in out.iter_mut().enumerate() {
        let sum = total[i % taps * channels + i / taps];
        *out = T::store(if accumulate != 0 { out.load() + sum } else { sum });
    }
}

impl Graph {
    /// A depthwise convolution over the frames of each row: `x` `[frames, channels]`,
    /// `weight` `[channels, kernel]`, `bias` `[channels]`, to `[output frames, channels]`.
    ///
    /// Frames past the length are read as zeros. Output frames past the output length ([`Graph::output_lengths`]) are the
    /// bias.
    pub fn depthwise_conv1d(
        &mut self,
        x: Value,
        weight: Value,
        bias: Value,
        window: ConvWindow,
        rows: &Rows,
        lengths: Value,
    ) -> Result<Value, EngineError> {
        let windowed = Windowed::new(window, rows);
        let [starts, out_starts] = windowed.starts(self);
        self.push(Depthwise(windowed), &[x, weight, bias, starts, out_starts, lengths])
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::DType;

    use super::*;
    use crate::testing::{GradientCheck, accumulated, check_gradients, run};

    const WINDOWS: [ConvWindow; 4] = [
        ConvWindow { kernel: 3, stride: 1, dilation: 1, padding: 1 },
        ConvWindow { kernel: 4, stride: 2, dilation: 1, padding: 1 },
        ConvWindow { kernel: 3, stride: 1, dilation: 2, padding: 2 },
        ConvWindow { kernel: 1, stride: 1, dilation: 1, padding: 0 },
    ];

    #[test]
    fn gradients() {
        let rows = Rows::new(&[5, 0, 7]);
        for window in WINDOWS {
            for channels in [3, 8] {
                let check = GradientCheck::new().input(&[12, channels]);
                let check = check.input(&[channels, window.kernel]).input(&[channels]);
                check_gradients(check.integers(&[3], &[4, 0, 7]), |g, x| {
                    g.depthwise_conv1d(x[0], x[1], x[2], window, &rows, x[3])
                });
            }
        }
        // More than one chunk and more than one partial sum.
        let rows = Rows::new(&[300, 0, 211]);
        for (channels, taps) in [(19, 7), (40, 9)] {
            let check = GradientCheck::new().input(&[511, channels]).input(&[channels, taps]).input(&[channels]);
            check_gradients(check.integers(&[3], &[280, 0, 211]), |g, x| {
                g.depthwise_conv1d(x[0], x[1], x[2], ConvWindow::same(taps), &rows, x[3])
            });
        }
    }

    /// Compared with a convolution, another op, whose weight is zero between channels.
    #[test]
    fn channels_are_independent() {
        let rows = Rows::new(&[5, 0, 7]);
        for window in WINDOWS {
            let kernel = window.kernel;
            let x: Vec<f64> = (0..36).map(|i| f64::from(i * 7 % 19) - 9.0).collect();
            let weight: Vec<f64> = (0..3 * kernel).map(|i| f64::from(i * 5 % 11) - 5.0).collect();
            let mut full = vec![0.0; (9 * kernel) as usize];
            for (channel, tap) in (0..3).flat_map(|channel| (0..kernel).map(move |tap| (channel, tap))) {
                full[((channel * kernel + tap) * 3 + channel) as usize] = weight[(channel * kernel + tap) as usize];
            }
            let check = |weight: &[f64], dims: &[u32]| {
                let check = GradientCheck::new().given(&[12, 3], &x).given(dims, weight);
                check.given(&[3], &[1.0, 2.0, -3.0]).integers(&[3], &[4, 0, 7])
            };
            let found =
                run(check(&weight, &[3, kernel]), |g, x| g.depthwise_conv1d(x[0], x[1], x[2], window, &rows, x[3]));
            let expected = run(check(&full, &[3, kernel * 3]), |g, x| g.conv1d(x[0], x[1], x[2], window, &rows, x[3]));
            assert_eq!(found, expected, "{window:?}");
        }
    }

    #[test]
    fn gradients_of_a_weight_add_up() {
        let rows = Rows::new(&[4]);
        let sums = |runs| {
            accumulated(runs, &[2, 3], |g, weight| {
                let x = g.constant(&[4, 2], &[1.0_f32, 10.0, 2.0, 20.0, 4.0, 40.0, 999.0, 999.0]);
                let (bias, lengths) = (g.constant(&[2], &[0.0_f32; 2]), g.constant(&[1], &[3]));
                let y = g.depthwise_conv1d(x, weight, bias, ConvWindow::same(3), &rows, lengths)?;
                g.sum_all(y)
            })
        };
        // The first tap never reads the last valid frame, the last tap never the first.
        assert_eq!(sums(1), [3.0, 7.0, 6.0, 30.0, 70.0, 60.0]);
        assert_eq!(sums(2), [6.0, 14.0, 12.0, 60.0, 140.0, 120.0]);
    }

    #[test]
    fn a_wrong_weight_is_named() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let mut input = |name: &str, dtype, dims: &[u32]| g.input(name, TensorType::new(dtype, dims)).unwrap();
        let x = input("x", DType::F32, &[12, 3]);
        let (weight, bias) = (input("weight", DType::F32, &[3, 5]), input("bias", DType::F32, &[3]));
        let lengths = input("lengths", DType::I32, &[2]);
        let rows = Rows::even(2, 6);
        let error = g.depthwise_conv1d(x, weight, bias, ConvWindow::same(3), &rows, lengths).unwrap_err().to_string();
        assert_eq!(
            error,
            "depthwise_conv1d: takes a weight [3, 3] and a bias [3] of one element type; the operands are F32[12, 3] and \
             F32[3, 5] and F32[3] and I32[2]"
        );
    }
}
