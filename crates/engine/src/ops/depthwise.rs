//! Convolutions in which every channel sees only itself.

use tandem_device::{DType, Element, Grid, HostArgs, Kernel, Param, Source};

use super::frames::{filled_of, frames_of_a_piece, is_lengths, is_sequence, row_grid, row_parts, span};
use super::window::{ConvWindow, Windowed};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{LaunchArg, Lower, Tensor};
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

/// Output frames whose share of the weight's gradient is summed before the shares are.
const FRAMES_OF_A_SHARE: u32 = 128;

/// Frames, weight, bias, both tables and lengths to output frames.
#[derive(Debug)]
struct Depthwise(Windowed);

/// Gradient, weight, both tables and lengths to the gradient of the frames.
#[derive(Debug)]
struct OfFrames(Windowed);

/// Gradient, frames, both tables and lengths to the gradient of the weight, in the wide element type.
#[derive(Debug)]
struct OfWeight(Windowed);

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
            found[0] = Some(at.graph.push(OfFrames(self.0.clone()), &with(weight))?);
        }
        if at.wanted[1] {
            found[1] = Some(at.graph.push(OfWeight(self.0.clone()), &with(x))?);
        }
        if at.wanted[2] {
            found[2] = Some(at.graph.sum_rows(gradient)?);
        }
        Ok(found)
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (out, channels) = (at.outputs[0], at.outputs[0].ty.shape.last());
        let kernel = for_real!("depthwise_conv1d", out.ty.dtype, T => &Kernels::<T>::FORWARD);
        self.0.launch(at, (kernel, group_grid(&self.0.out_rows, channels)), at.inputs, out, channels);
        Ok(())
    }
}

impl Op for OfFrames {
    fn name(&self) -> &'static str {
        "depthwise_conv1d gradient of frames"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let gradient = inputs[0];
        Ok(vec![TensorType::new(gradient.dtype, &[self.0.rows.total(), gradient.shape.last()])])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (out, channels) = (at.outputs[0], at.outputs[0].ty.shape.last());
        let kernel = for_real!("depthwise_conv1d", out.ty.dtype, T => &Kernels::<T>::OF_FRAMES);
        self.0.launch(at, (kernel, group_grid(&self.0.rows, channels)), at.inputs, out, channels);
        Ok(())
    }
}

impl OfWeight {
    fn shares(&self) -> u32 {
        self.0.out_rows.total().div_ceil(FRAMES_OF_A_SHARE).max(1)
    }
}

impl Op for OfWeight {
    fn name(&self) -> &'static str {
        "depthwise_conv1d gradient of weight"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let gradient = inputs[0];
        let dims = [gradient.shape.last(), self.0.window.kernel];
        Ok(vec![TensorType::new(accumulator(gradient.dtype), &dims)])
    }

    fn scratch(&self, _: &[TensorType], outputs: &[TensorType]) -> Vec<u64> {
        vec![u64::from(self.shares()) * outputs[0].bytes()]
    }

    fn can_add(&self, _: usize) -> bool {
        true
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (gradient, out) = (at.inputs[0], at.outputs[0]);
        let (channels, taps) = (gradient.ty.shape.last(), self.0.window.kernel);
        let ty = TensorType::new(out.ty.dtype, &[self.shares(), taps, channels]);
        let shares = Tensor { ty, ..at.scratch[0] };
        let kernel = for_real!("depthwise_conv1d", gradient.ty.dtype, T => &Kernels::<T>::SHARES);
        let mut args = self.0.args(at.inputs, shares, channels);
        args.push(LaunchArg::U32(self.0.rows.count()));
        let grid = Grid { blocks: [channels.div_ceil(32).max(1), self.shares(), 1], threads: 256, shared_bytes: 0 };
        at.launch(kernel, grid, args);
        let kernel = for_real!("depthwise_conv1d", out.ty.dtype, T => &Kernels::<T>::COMBINE);
        let mut args = vec![shares.read(), out.write()];
        args.extend([self.shares(), channels, taps, u32::from(at.adds(0))].map(LaunchArg::U32));
        let blocks = (channels * taps).div_ceil(32).max(1);
        at.launch(kernel, Grid { blocks: [blocks, 1, 1], threads: 512, shared_bytes: 0 }, args);
        Ok(())
    }
}

/// A grid whose threads have eight frames each, so that they load a weight once for all of them.
fn group_grid(rows: &Rows, channels: u32) -> Grid {
    row_grid(rows, channels.div_ceil(8))
}

struct Kernels<T>(std::marker::PhantomData<T>);

impl<T: Real> Kernels<T> {
    const IN: Param = Param::In(T::DTYPE);
    const TABLE: Param = Param::In(DType::U32);
    const LENGTHS: Param = Param::In(DType::I32);

    const FORWARD: Kernel = Kernel {
        name: named_for!(T, "depthwise"),
        source: on_cuda::<T>(&SOURCE),
        params: &[
            Self::IN,
            Self::IN,
            Self::IN,
            Self::TABLE,
            Self::TABLE,
            Self::LENGTHS,
            Param::Out(T::DTYPE),
            Param::U32,
            Param::U32,
            Param::U32,
            Param::U32,
            Param::U32,
        ],
        host: &forward::<T>,
    };

    const OF_FRAMES: Kernel = Kernel {
        name: named_for!(T, "depthwise_of_frames"),
        source: on_cuda::<T>(&SOURCE),
        params: &[
            Self::IN,
            Self::IN,
            Self::TABLE,
            Self::TABLE,
            Self::LENGTHS,
            Param::Out(T::DTYPE),
            Param::U32,
            Param::U32,
            Param::U32,
            Param::U32,
            Param::U32,
        ],
        host: &of_frames::<T>,
    };

    const SHARES: Kernel = Kernel {
        name: named_for!(T, "depthwise_shares"),
        source: on_cuda::<T>(&SOURCE),
        params: &[
            Self::IN,
            Self::IN,
            Self::TABLE,
            Self::TABLE,
            Self::LENGTHS,
            Param::Out(<T::Acc as Element>::DTYPE),
            Param::U32,
            Param::U32,
            Param::U32,
            Param::U32,
            Param::U32,
            Param::U32,
        ],
        host: &shares::<T>,
    };

    const COMBINE: Kernel = Kernel {
        name: named_for!(T, "depthwise_combine"),
        source: on_cuda::<T>(&SOURCE),
        params: &[Self::IN, Param::Out(T::DTYPE), Param::U32, Param::U32, Param::U32, Param::U32],
        host: &combine::<T>,
    };
}

/// The weight `[channels, taps]` with the channels of a tap together, so that loops over channels are over slices.
fn by_tap<T: Real>(weight: &[T], channels: usize) -> Vec<T::Acc> {
    let taps = weight.len() / channels;
    (0..weight.len()).map(|i| weight[i % channels * taps + i / channels].load()).collect()
}

/// Channels that are summed over all taps at once: their sums stay in registers.
const LANES: usize = 16;

/// `out = start + Σ weight · x`, where each of `taps` says at which element of either a tap begins.
fn weigh<T: Real>(out: &mut [T], start: &[T::Acc], taps: &[(usize, usize)], weight: &[T::Acc], x: &[T]) {
    let blocks = out.len() / LANES;
    for block in 0..blocks {
        weigh_lanes::<T, LANES>(out, block * LANES, start, taps, weight, x);
    }
    for channel in blocks * LANES..out.len() {
        weigh_lanes::<T, 1>(out, channel, start, taps, weight, x);
    }
}

#[inline(always)]
fn weigh_lanes<T: Real, const N: usize>(
    out: &mut [T],
    first: usize,
    start: &[T::Acc],
    taps: &[(usize, usize)],
    weight: &[T::Acc],
    x: &[T],
) {
    let mut sums = [T::Acc::zero(); N];
    sums.copy_from_slice(&start[first..first + N]);
    for &(of_weight, of_x) in taps {
        let (weight, x) = (&weight[of_weight + first..][..N], &x[of_x + first..][..N]);
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
    let (x, weight, bias) = (args.read::<T>(0), args.read::<T>(1), args.read::<T>(2));
    let (starts, out_starts, lengths) = (args.read::<u32>(3), args.read::<u32>(4), args.read::<i32>(5));
    let (channels, window) = (args.u32(7) as usize, ConvWindow::of_args(args, 8));
    let (weight, bias) = (by_tap(weight, channels), bias.iter().map(|bias| bias.load()).collect::<Vec<_>>());
    let frames = frames_of_a_piece(channels * window.kernel as usize);
    let workers = args.workers();
    workers.each_chunk(args.write::<T>(6), frames * channels, |piece, out| {
        let mut taps = Vec::with_capacity(window.kernel as usize);
        let mut out = out.chunks_exact_mut(channels);
        for run in row_parts(out_starts, piece * frames..piece * frames + out.len()) {
            let length = filled_of(starts, lengths, run.row);
            let out_length = window.output_length(length as u32) as usize;
            let row = &x[span(starts, run.row).start * channels..];
            for (t, out) in run.in_row().zip(&mut out) {
                let readable = if t < out_length { length } else { 0 };
                let reads = window.reads(t, readable);
                taps.clear();
                taps.extend(reads.map(|(tap, frame)| (tap * channels, frame * channels)));
                weigh(out, &bias, &taps, &weight, row);
            }
        }
    });
}

fn of_frames<T: Real>(args: &mut HostArgs<'_>) {
    let (gradient, weight) = (args.read::<T>(0), args.read::<T>(1));
    let (starts, out_starts, lengths) = (args.read::<u32>(2), args.read::<u32>(3), args.read::<i32>(4));
    let (channels, window) = (args.u32(6) as usize, ConvWindow::of_args(args, 7));
    let (weight, zeros) = (by_tap(weight, channels), vec![T::Acc::zero(); channels]);
    let frames = frames_of_a_piece(channels * window.kernel as usize);
    let workers = args.workers();
    workers.each_chunk(args.write::<T>(5), frames * channels, |piece, out| {
        let mut taps = Vec::with_capacity(window.kernel as usize);
        let mut out = out.chunks_exact_mut(channels);
        for run in row_parts(starts, piece * frames..piece * frames + out.len()) {
            let length = filled_of(starts, lengths, run.row);
            let out_length = window.output_length(length as u32) as usize;
            let row = &gradient[span(out_starts, run.row).start * channels..];
            for (frame, out) in run.in_row().zip(&mut out) {
                let readers = window.readers(frame, if frame < length { out_length } else { 0 });
                taps.clear();
                taps.extend(readers.map(|(tap, t)| (tap * channels, t * channels)));
                weigh(out, &zeros, &taps, &weight, row);
            }
        }
    });
}

fn shares<T: Real>(args: &mut HostArgs<'_>) {
    let (gradient, x) = (args.read::<T>(0), args.read::<T>(1));
    let (starts, out_starts, lengths) = (args.read::<u32>(2), args.read::<u32>(3), args.read::<i32>(4));
    let (channels, window) = (args.u32(6) as usize, ConvWindow::of_args(args, 7));
    let (share, total) = (FRAMES_OF_A_SHARE as usize, gradient.len() / channels);
    let workers = args.workers();
    workers.each_chunk(args.write::<T::Acc>(5), channels * window.kernel as usize, |piece, sums| {
        sums.fill(T::Acc::zero());
        let first = piece * share;
        for run in row_parts(out_starts, first..first + share.min(total - first)) {
            let length = filled_of(starts, lengths, run.row);
            let out_length = window.output_length(length as u32) as usize;
            let row = &x[span(starts, run.row).start * channels..];
            let gradient = &gradient[span(out_starts, run.row).start * channels..];
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

/// The sum of all shares `[taps, channels]` in order, as `[channels, taps]`.
fn combine<T: Real>(args: &mut HostArgs<'_>) {
    let (shares, adds) = (args.read::<T>(0), args.u32(5) != 0);
    let (channels, taps) = (args.u32(3) as usize, args.u32(4) as usize);
    let mut total = vec![T::Acc::zero(); channels * taps];
    for share in shares.chunks_exact(channels * taps) {
        total.iter_mut().zip(share).for_each(|(total, share)| *total += share.load());
    }
    for (i, out) in args.write::<T>(1).iter_mut().enumerate() {
        let sum = total[i % taps * channels + i / taps];
        *out = T::store(if adds { out.load() + sum } else { sum });
    }
}

impl Graph {
    /// A convolution over the frames of each row in which every channel sees only itself: `x` `[frames, channels]`,
    /// `weight` `[channels, kernel]`, `bias` `[channels]`, to `[output frames, channels]`.
    ///
    /// Frames past the length are seen as zeros. Output frames past the output length ([`Graph::output_lengths`]) are the
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
                check_gradients(check.whole(&[3], &[4, 0, 7]), |g, x| {
                    g.depthwise_conv1d(x[0], x[1], x[2], window, &rows, x[3])
                });
            }
        }
        // More than one piece and more than one share.
        let rows = Rows::new(&[300, 0, 211]);
        for (channels, taps) in [(19, 7), (40, 9)] {
            let check = GradientCheck::new().input(&[511, channels]).input(&[channels, taps]).input(&[channels]);
            check_gradients(check.whole(&[3], &[280, 0, 211]), |g, x| {
                g.depthwise_conv1d(x[0], x[1], x[2], ConvWindow::same(taps), &rows, x[3])
            });
        }
    }

    /// A convolution whose weight is zero between channels, which is another op.
    #[test]
    fn every_channel_sees_only_itself() {
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
                check.given(&[3], &[1.0, 2.0, -3.0]).whole(&[3], &[4, 0, 7])
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
        // The first tap never sees the last filled frame, the last tap never the first.
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
