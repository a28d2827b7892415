//! im2col (unfold): the windows of a convolution as rows of a matrix, so that the convolution is a GEMM; and col2im (fold), its
//! adjoint, which adds where windows overlap.

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
use crate::tensor::TensorType;
use crate::{for_real, named_for};

pub(super) static SOURCE: Source = Source {
    file: "engine/unfold.cu",
    text: concat!(include_str!("frames.cuh"), include_str!("window.cuh"), include_str!("unfold.cu")),
};

/// `(x, row starts, output row starts, lengths)` to `[output frames, kernel · channels]`.
#[derive(Debug)]
pub(super) struct Unfold(pub(super) Windowed);

/// The adjoint of [`Unfold`].
#[derive(Debug)]
pub(super) struct Fold(pub(super) Windowed);

impl Op for Unfold {
    fn name(&self) -> &'static str {
        "unfold"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let Windowed { window, rows, out_rows } = &self.0;
        let (x, lengths) = (inputs[0], inputs[3]);
        if !is_sequence(&x, rows) || !is_lengths(&lengths, rows) {
            let problem = format!("takes frames [{}, channels] and lengths I32[{}]", rows.total(), rows.count());
            return refuse("unfold", problem, &[x, lengths]);
        }
        Ok(vec![TensorType::new(x.dtype, &[out_rows.total(), window.kernel * x.shape.last()])])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first() else { return Ok(vec![None; 4]) };
        let inputs = [gradient, at.inputs[1], at.inputs[2], at.inputs[3]];
        Ok(vec![Some(at.graph.push(Fold(self.0.clone()), &inputs)?), None, None, None])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        launch_unfold(at, &self.0, at.inputs, at.outputs[0])
    }
}

/// Launches unfold with the inputs `[x, starts, out_starts, lengths]`.
pub(super) fn launch_unfold(
    at: &mut Lower<'_>,
    windowed: &Windowed,
    inputs: &[Tensor],
    out: Tensor,
) -> Result<(), EngineError> {
    let kernel = for_real!("unfold", out.ty.dtype, T => &Windows::<T>::UNFOLD);
    let grid = row_grid(&windowed.out_rows, out.ty.shape.last());
    launch(at, kernel, grid, windowed.window, inputs, out, inputs[0].ty.shape.last());
    Ok(())
}

impl Op for Fold {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let Windowed { window, rows, out_rows } = &self.0;
        let (x, lengths) = (inputs[0], inputs[3]);
        let kernel = window.kernel;
        if !is_sequence(&x, out_rows) || x.shape.last() % kernel != 0 || !is_lengths(&lengths, rows) {
            let (frames, rows) = (out_rows.total(), rows.count());
            let problem = format!("takes windows [{frames}, {kernel} · channels] and lengths I32[{rows}]");
            return refuse("fold", problem, &[x, lengths]);
        }
        Ok(vec![TensorType::new(x.dtype, &[rows.total(), x.shape.last() / kernel])])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first() else { return Ok(vec![None; 4]) };
        let inputs = [gradient, at.inputs[1], at.inputs[2], at.inputs[3]];
        Ok(vec![Some(at.graph.push(Unfold(self.0.clone()), &inputs)?), None, None, None])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (out, channels) = (at.outputs[0], at.outputs[0].ty.shape.last());
        let kernel = for_real!("fold", out.ty.dtype, T => &Windows::<T>::FOLD);
        launch(at, kernel, row_grid(&self.0.rows, channels), self.0.window, at.inputs, out, channels);
        Ok(())
    }
}

/// Launches unfold or fold with the inputs `[x, starts, out_starts, lengths]`, unless the output is empty.
fn launch(
    at: &mut Lower<'_>,
    kernel: &'static Kernel,
    grid: Grid,
    window: ConvWindow,
    inputs: &[Tensor],
    out: Tensor,
    channels: u32,
) {
    if out.ty.shape.elements() == 0 {
        return;
    }
    let [x, starts, out_starts, lengths] = [inputs[0], inputs[1], inputs[2], inputs[3]];
    let ConvWindow { kernel: taps, stride, dilation, padding } = window;
    let args = UnfoldArgs { x, starts, out_starts, lengths, out, channels, kernel: taps, stride, dilation, padding };
    at.launch(kernel, grid, args);
}

kernel_args! {
    /// Arguments of `unfold` and `fold`.
    struct UnfoldArgs<T: Real> {
        x: in T,
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

struct Windows<T>(std::marker::PhantomData<T>);

impl<T: Real> Windows<T> {
    const UNFOLD: Kernel = Kernel {
        name: named_for!(T, "unfold"),
        source: on_cuda::<T>(&SOURCE),
        params: UnfoldArgs::params::<T>(),
        host: &unfold::<T>,
    };

    const FOLD: Kernel = Kernel {
        name: named_for!(T, "fold"),
        source: on_cuda::<T>(&SOURCE),
        params: UnfoldArgs::params::<T>(),
        host: &fold::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] =
    &[&Windows::<f32>::UNFOLD, &Windows::<f32>::FOLD, &Windows::<bf16>::UNFOLD, &Windows::<bf16>::FOLD];

fn unfold<T: Real>(args: &mut HostArgs<'_>) {
    let UnfoldArgs { x, starts, out_starts, lengths, out, channels, kernel, stride, dilation, padding } =
        UnfoldArgs::host::<T>(args);
    let (window, channels) = (ConvWindow { kernel, stride, dilation, padding }, channels as usize);
    let width = window.kernel as usize * channels;
    let frames = frames_per_chunk(width);
    args.workers().each_chunk(out, frames * width, |chunk, out| {
        let mut out = out.chunks_exact_mut(width);
        for run in row_parts(out_starts, chunk * frames..chunk * frames + out.len()) {
            let length = valid_frames(starts, lengths, run.row);
            let out_length = window.output_length(length as u32) as usize;
            let row = &x[row_range(starts, run.row).start * channels..][..length * channels];
            for (t, out) in run.in_row().zip(&mut out) {
                match t < out_length {
                    true => one_window(row, t, window, out),
                    false => out.fill(T::store(T::Acc::zero())),
                }
            }
        }
    });
}

/// The window of output frame `t`; `row` has the valid frames.
fn one_window<T: Real>(row: &[T], t: usize, window: ConvWindow, out: &mut [T]) {
    let zero = T::store(T::Acc::zero());
    let channels = out.len() / window.kernel as usize;
    if window.dilation > 1 {
        out.fill(zero);
        for (tap, frame) in window.reads(t, row.len() / channels) {
            out[tap * channels..][..channels].copy_from_slice(&row[frame * channels..][..channels]);
        }
        return;
    }
    // Adjacent taps are one copy, with zeros before the row's start and after its end.
    let (begin, padding) = (t * window.stride as usize * channels, window.padding as usize * channels);
    let before = padding.saturating_sub(begin).min(out.len());
    let behind = (begin + out.len()).saturating_sub(padding + row.len()).min(out.len() - before);
    let (head, rest) = out.split_at_mut(before);
    let (middle, tail) = rest.split_at_mut(rest.len() - behind);
    head.fill(zero);
    if !middle.is_empty() {
        middle.copy_from_slice(&row[begin + before - padding..][..middle.len()]);
    }
    tail.fill(zero);
}

fn fold<T: Real>(args: &mut HostArgs<'_>) {
    let UnfoldArgs { x, starts, out_starts, lengths, out, channels, kernel, stride, dilation, padding } =
        UnfoldArgs::host::<T>(args);
    let (window, channels) = (ConvWindow { kernel, stride, dilation, padding }, channels as usize);
    let width = window.kernel as usize * channels;
    let frames = frames_per_chunk(width);
    args.workers().each_chunk(out, frames * channels, |chunk, out| {
        let mut parts = Vec::with_capacity(window.kernel as usize);
        let mut out = out.chunks_exact_mut(channels);
        for run in row_parts(starts, chunk * frames..chunk * frames + out.len()) {
            let length = valid_frames(starts, lengths, run.row);
            let out_length = window.output_length(length as u32) as usize;
            let windows = &x[row_range(out_starts, run.row).start * width..];
            for (frame, out) in run.in_row().zip(&mut out) {
                let readers = window.readers(frame, if frame < length { out_length } else { 0 });
                parts.clear();
                parts.extend(readers.map(|(tap, t)| t * width + tap * channels));
                add_parts(out, &parts, windows);
            }
        }
    });
}

/// Channels summed at once over all parts: their sums stay in registers.
const LANES: usize = 16;

/// `out = Σ x[part..]` over the offsets in `parts`.
fn add_parts<T: Real>(out: &mut [T], parts: &[usize], x: &[T]) {
    let blocks = out.len() / LANES;
    for block in 0..blocks {
        add_lanes::<T, LANES>(out, block * LANES, parts, x);
    }
    for channel in blocks * LANES..out.len() {
        add_lanes::<T, 1>(out, channel, parts, x);
    }
}

#[inline(always)]
fn add_lanes<T: Real, const N: usize>(out: &mut [T], first: usize, parts: &[usize], x: &[T]) {
    let mut sums = [T::Acc::zero(); N];
    for part in parts {
        let x = &x[part + first..][..N];
        for lane in 0..N {
            sums[lane] += x[lane].load();
        }
    }
    let out = &mut out[first..first + N];
    for lane in 0..N {
        out[lane] = T::store(sums[lane]);
    }
}

impl Graph {
    /// The windows of `x` `[frames, channels]` as rows `[output frames, kernel · channels]`, tap by tap.
    ///
    /// A tap outside the valid frames `0..length` of its row is zero. Output frames past the output length of the valid frames
    /// ([`Graph::output_lengths`]) are zero.
    pub fn unfold(&mut self, x: Value, window: ConvWindow, rows: &Rows, lengths: Value) -> Result<Value, EngineError> {
        let windowed = Windowed::new(window, rows);
        let [starts, out_starts] = windowed.starts(self);
        self.push(Unfold(windowed), &[x, starts, out_starts, lengths])
    }

    /// The adjoint of [`Graph::unfold`]: every window of `x` `[output frames, kernel · channels]` is added to the frames it
    /// covers. `rows` and `lengths` are those of the result.
    ///
    /// Frames past the length are zero, and windows past the output length are ignored.
    pub fn fold(&mut self, x: Value, window: ConvWindow, rows: &Rows, lengths: Value) -> Result<Value, EngineError> {
        let windowed = Windowed::new(window, rows);
        let [starts, out_starts] = windowed.starts(self);
        self.push(Fold(windowed), &[x, starts, out_starts, lengths])
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::DType;

    use super::*;
    use crate::testing::{GradientCheck, check_gradients, run};

    const WINDOWS: [ConvWindow; 4] = [
        ConvWindow { kernel: 3, stride: 1, dilation: 1, padding: 1 },
        ConvWindow { kernel: 4, stride: 2, dilation: 1, padding: 1 },
        ConvWindow { kernel: 3, stride: 1, dilation: 2, padding: 2 },
        ConvWindow { kernel: 2, stride: 3, dilation: 2, padding: 0 },
    ];

    /// Rows of 5, 0 and 7 frames, of which 4, 0 and 7 are valid.
    fn case() -> (Rows, [i32; 3]) {
        (Rows::new(&[5, 0, 7]), [4, 0, 7])
    }

    fn reference(x: &[f64], channels: usize, window: ConvWindow, rows: &Rows, lengths: &[i32]) -> Vec<f64> {
        let mut windows = Vec::new();
        for (row, &length) in (0..rows.count()).zip(lengths) {
            for t in 0..window.output_length(rows.length(row)) {
                for (tap, channel) in (0..window.kernel).flat_map(|tap| (0..channels).map(move |c| (tap, c))) {
                    let frame = i64::from(t * window.stride + tap * window.dilation) - i64::from(window.padding);
                    let in_bounds = (0..i64::from(length)).contains(&frame) && t < window.output_length(length as u32);
                    let first = rows.starts()[row as usize] as usize;
                    windows.push(if in_bounds { x[(first + frame as usize) * channels + channel] } else { 0.0 });
                }
            }
        }
        windows
    }

    #[test]
    fn gradients() {
        let (rows, lengths) = case();
        for window in WINDOWS {
            for channels in [3, 8] {
                check_gradients(GradientCheck::new().input(&[12, channels]).integers(&[3], &lengths), |g, x| {
                    g.unfold(x[0], window, &rows, x[1])
                });
                let windows = [window.output_rows(&rows).total(), window.kernel * channels];
                check_gradients(GradientCheck::new().input(&windows).integers(&[3], &lengths), |g, x| {
                    g.fold(x[0], window, &rows, x[1])
                });
            }
        }
    }

    #[test]
    fn windows_match_the_definition() {
        let (rows, lengths) = case();
        // Padding is not zero here, and must not be read.
        let x: Vec<f64> = (1..=24).map(f64::from).collect();
        for window in WINDOWS {
            let check = GradientCheck::new().given(&[12, 2], &x).integers(&[3], &lengths);
            let found = run(check, |g, x| g.unfold(x[0], window, &rows, x[1]));
            assert_eq!(found, reference(&x, 2, window, &rows, &lengths), "{window:?}");
        }
    }

    #[test]
    fn several_chunks_give_one_result() {
        let rows = Rows::new(&[1500, 3, 900]);
        let (lengths, window) = ([1400, 3, 900], ConvWindow::same(5));
        let x: Vec<f64> = (0..2403 * 7).map(|i| f64::from(i % 1013)).collect();
        let check = GradientCheck::new().given(&[2403, 7], &x).integers(&[3], &lengths);
        let found = run(check, |g, x| g.unfold(x[0], window, &rows, x[1]));
        assert_eq!(found, reference(&x, 7, window, &rows, &lengths));
        check_gradients(GradientCheck::new().input(&[2403, 7]).integers(&[3], &lengths), |g, x| {
            let windows = g.unfold(x[0], window, &rows, x[1])?;
            g.fold(windows, window, &rows, x[1])
        });
    }

    #[test]
    fn folding_adds_where_windows_overlap() {
        let rows = Rows::new(&[4, 2]);
        // Windows of ones count the windows that cover a frame.
        let windows = GradientCheck::new().given(&[6, 3], &[1.0; 18]).integers(&[2], &[3, 2]);
        let counts = run(windows, |g, x| g.fold(x[0], ConvWindow::same(3), &rows, x[1]));
        assert_eq!(counts, [2.0, 3.0, 2.0, 0.0, 2.0, 2.0]);
    }

    #[test]
    fn shapes_that_do_not_match_the_rows_are_refused() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let x = g.input("x", TensorType::new(DType::F32, &[11, 3])).unwrap();
        let lengths = g.input("lengths", TensorType::new(DType::I32, &[3])).unwrap();
        let (rows, _) = case();
        let error = g.unfold(x, ConvWindow::same(3), &rows, lengths).unwrap_err().to_string();
        let expected = "unfold: takes frames [12, channels] and lengths I32[3]; the operands are F32[11, 3] and I32[3]";
        assert_eq!(error, expected);
        let error = g.fold(x, ConvWindow::same(3), &rows, lengths).unwrap_err().to_string();
        let expected =
            "fold: takes windows [12, 3 · channels] and lengths I32[3]; the operands are F32[11, 3] and I32[3]";
        assert_eq!(error, expected);
    }
}
