//! Convolutions over the frames of each row, and transposed ones: im2col and a GEMM.

use tandem_device::{Gemm, Operand};

use super::frames::{is_lengths, is_sequence};
use super::unfold::{Fold, Unfold, launch_unfold};
use super::window::{ConvWindow, Windowed};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::rows::Rows;
use crate::tensor::TensorType;

/// Inputs: frames, weight, bias, row starts, output row starts, lengths. The unfolded windows are scratch memory: they are
/// `kernel` times the input, so the backward pass unfolds again.
#[derive(Debug)]
struct Conv1d(Windowed);

impl Conv1d {
    /// The type of the windows of `x`.
    fn windows(&self, x: TensorType) -> TensorType {
        TensorType::new(x.dtype, &[self.0.out_rows.total(), self.0.window.kernel * x.shape.last()])
    }
}

impl Op for Conv1d {
    fn name(&self) -> &'static str {
        "conv1d"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let (x, weight, bias, lengths) = (inputs[0], inputs[1], inputs[2], inputs[5]);
        let (rows, shown) = (&self.0.rows, [x, weight, bias, lengths]);
        if !is_sequence(&x, rows) || !is_lengths(&lengths, rows) {
            let problem = format!("takes frames [{}, channels] and lengths I32[{}]", rows.total(), rows.count());
            return refuse("conv1d", problem, &shown);
        }
        let width = self.windows(x).shape.last();
        let fits = |out: u32| weight.shape.dims() == [out, width] && weight.dtype == x.dtype && bias.dtype == x.dtype;
        match *bias.shape.dims() {
            [out] if fits(out) => Ok(vec![TensorType::new(x.dtype, &[self.0.out_rows.total(), out])]),
            _ => {
                refuse("conv1d", format!("takes a weight [out, {width}] and a bias [out] of one element type"), &shown)
            }
        }
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first() else { return Ok(vec![None; 6]) };
        let [starts, out_starts, lengths] = [at.inputs[3], at.inputs[4], at.inputs[5]];
        let mut found = vec![None; 6];
        if at.wanted[0] {
            let windows = at.graph.matmul(gradient, at.inputs[1])?;
            found[0] = Some(at.graph.push(Fold(self.0.clone()), &[windows, starts, out_starts, lengths])?);
        }
        if at.wanted[1] {
            let windows = at.graph.push(Unfold(self.0.clone()), &[at.inputs[0], starts, out_starts, lengths])?;
            found[1] = Some(at.graph.gemm(gradient, windows, true, false, true)?);
        }
        if at.wanted[2] {
            found[2] = Some(at.graph.sum_rows(gradient)?);
        }
        Ok(found)
    }

    fn scratch(&self, inputs: &[TensorType], _: &[TensorType]) -> Vec<u64> {
        vec![self.windows(inputs[0]).bytes()]
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let &[x, weight, bias, starts, out_starts, lengths] = at.inputs else {
            unreachable!("conv1d takes six inputs")
        };
        let (windows, out) = (Tensor { ty: self.windows(x.ty), ..at.scratch[0] }, at.outputs[0]);
        if out.ty.shape.elements() == 0 {
            return Ok(());
        }
        launch_unfold(at, &self.0, &[x, starts, out_starts, lengths], windows)?;
        let (m, n, k) = (out.ty.shape.rows(), out.ty.shape.last(), windows.ty.shape.last());
        let stored = |transposed, stride| Operand { transposed, stride, batch_stride: 0 };
        let gemm = Gemm {
            dtype: x.ty.dtype,
            out: out.ty.dtype,
            m,
            n,
            k,
            batch: 1,
            a: stored(false, k),
            b: stored(true, k),
            c: stored(false, n),
            alpha: 1.0,
            accumulate: false,
        };
        at.gemm(gemm, [windows, weight, out], Some(bias));
        Ok(())
    }
}

impl Graph {
    /// A convolution over the frames of each row: `x` `[frames, in]`, `weight` `[out, kernel · in]` (tap-major),
    /// `bias` `[out]`, to `[output frames, out]`.
    ///
    /// Frames past the length are read as zeros. Output frames past the output length ([`Graph::output_lengths`]) are the
    /// bias.
    pub fn conv1d(
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
        self.push(Conv1d(windowed), &[x, weight, bias, starts, out_starts, lengths])
    }

    /// A transposed convolution, which upsamples: `x` `[frames, in]`, `weight` `[kernel · out, in]`, `bias` `[out]`,
    /// to `[output frames, out]`. Each frame becomes a window, and overlapping windows are added (col2im).
    ///
    /// `rows_out` and `lengths_out` are those of the result; the rows of `x` are `window.output_rows(rows_out)`, and as many
    /// of its frames count. Output frames past the length are the bias.
    pub fn conv_transpose1d(
        &mut self,
        x: Value,
        weight: Value,
        bias: Value,
        window: ConvWindow,
        rows_out: &Rows,
        lengths_out: Value,
    ) -> Result<Value, EngineError> {
        let frames = window.output_rows(rows_out).total();
        let [x_ty, weight_ty, bias_ty] = [x, weight, bias].map(|value| self.ty(value));
        let (taps, inputs) = (window.kernel * bias_ty.shape.last(), x_ty.shape.last());
        let fits = x_ty.shape.dims() == [frames, inputs] && weight_ty.shape.dims() == [taps, inputs];
        if !fits || bias_ty.shape.rank() != 1 {
            let kernel = window.kernel;
            let problem = format!("takes frames [{frames}, in], a weight [{kernel} · out, in] and a bias [out]");
            return refuse("conv_transpose1d", problem, &[x_ty, weight_ty, bias_ty]);
        }
        let windows = self.linear(x, weight, None)?;
        let frames = self.fold(windows, window, rows_out, lengths_out)?;
        self.add(frames, bias)
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::DType;

    use super::*;
    use crate::testing::{GradientCheck, accumulated, check_gradients, run};
    use crate::{NamedLayout, Program, Recomputed};

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
            let check = GradientCheck::new().input(&[12, 3]).input(&[5, window.kernel * 3]).input(&[5]);
            check_gradients(check.integers(&[3], &[4, 0, 7]), |g, x| g.conv1d(x[0], x[1], x[2], window, &rows, x[3]));
            let frames = window.output_rows(&rows).total();
            let check = GradientCheck::new().input(&[frames, 3]).input(&[window.kernel * 2, 3]).input(&[2]);
            check_gradients(check.integers(&[3], &[4, 0, 7]), |g, x| {
                g.conv_transpose1d(x[0], x[1], x[2], window, &rows, x[3])
            });
        }
    }

    /// The convolution of one row, by its definition.
    fn by_hand(x: &[f64], weight: &[f64], bias: &[f64], window: ConvWindow) -> Vec<f64> {
        let (outs, kernel) = (bias.len(), window.kernel as usize);
        let ins = weight.len() / outs / kernel;
        let length = (x.len() / ins) as i64;
        let mut y = Vec::new();
        for t in 0..i64::from(window.output_length(length as u32)) {
            for out in 0..outs {
                let mut sum = bias[out];
                for (tap, channel) in (0..kernel).flat_map(|tap| (0..ins).map(move |channel| (tap, channel))) {
                    let frame = t * i64::from(window.stride) + tap as i64 * i64::from(window.dilation)
                        - i64::from(window.padding);
                    if (0..length).contains(&frame) {
                        sum += x[frame as usize * ins + channel] * weight[(out * kernel + tap) * ins + channel];
                    }
                }
                y.push(sum);
            }
        }
        y
    }

    fn numbers(count: u32, step: u32) -> Vec<f64> {
        (0..count).map(|i| f64::from(i * step % 23) - 11.0).collect()
    }

    /// A row has the same result in a batch, with non-zero padding, as alone.
    #[test]
    fn a_row_in_a_batch_is_a_row_alone() {
        let rows = Rows::new(&[9, 0, 7]);
        for window in WINDOWS {
            let (x, weight, bias) = (numbers(16 * 2, 5), numbers(3 * window.kernel * 2, 7), [0.5, -2.0, 3.0]);
            let check = GradientCheck::new().given(&[16, 2], &x).given(&[3, window.kernel * 2], &weight);
            let check = check.given(&[3], &bias).integers(&[3], &[6, 0, 7]);
            let found = run(check, |g, x| g.conv1d(x[0], x[1], x[2], window, &rows, x[3]));
            let mut expected = by_hand(&x[..12], &weight, &bias, window);
            let first_row = window.output_length(9) as usize * 3;
            while expected.len() < first_row {
                expected.extend(bias);
            }
            expected.extend(by_hand(&x[18..], &weight, &bias, window));
            assert_eq!(found, expected, "{window:?}");
        }
    }

    /// `y[t · stride + tap - padding] += weight[tap] · x[t]`, the definition.
    #[test]
    fn a_transposed_convolution_by_hand() {
        let window = ConvWindow { kernel: 4, stride: 2, dilation: 1, padding: 1 };
        let (rows, x, weight) = (Rows::new(&[8, 6]), numbers(7, 5), numbers(4, 7));
        let mut expected = vec![0.5; 14];
        // Of the first row three of four frames count, because six of eight are asked for.
        for (t, first, length, from) in
            [(0, 0, 6, 0), (1, 0, 6, 1), (2, 0, 6, 2), (0, 8, 6, 4), (1, 8, 6, 5), (2, 8, 6, 6)]
        {
            for tap in 0..4 {
                let frame = t * 2 + tap - 1;
                if (0..length).contains(&frame) {
                    expected[(first + frame) as usize] += weight[tap as usize] * x[from];
                }
            }
        }
        let check = GradientCheck::new().given(&[7, 1], &x).given(&[4, 1], &weight).given(&[1], &[0.5]);
        let found =
            run(check.integers(&[2], &[6, 6]), |g, x| g.conv_transpose1d(x[0], x[1], x[2], window, &rows, x[3]));
        assert_eq!(found, expected);
    }

    #[test]
    fn gradients_of_a_weight_add_up() {
        let rows = Rows::new(&[4]);
        let sums = |runs| {
            accumulated(runs, &[1, 3], |g, weight| {
                let x = g.constant(&[4, 1], &[1.0_f32, 2.0, 4.0, 999.0]);
                let (bias, lengths) = (g.constant(&[1], &[0.0_f32]), g.constant(&[1], &[3]));
                let y = g.conv1d(x, weight, bias, ConvWindow::same(3), &rows, lengths)?;
                g.sum_all(y)
            })
        };
        assert_eq!(sums(1), [3.0, 7.0, 6.0]);
        assert_eq!(sums(2), [6.0, 14.0, 12.0]);
    }

    /// Peak bytes of a loss and its gradients through three layers of `layer`.
    fn peak_bytes(layer: impl Fn(&mut Graph, Value, Value, Value) -> Result<Value, EngineError>) -> u64 {
        let mut g = Graph::new(Default::default(), DType::F32);
        let mut layout = NamedLayout::default();
        let mut input = |g: &mut Graph, name: &str, ty: TensorType| {
            layout.place(name, ty).unwrap();
            g.input(name, ty).unwrap()
        };
        let mut x = input(&mut g, "x", TensorType::new(DType::F32, &[96, 16]));
        let lengths = input(&mut g, "lengths", TensorType::new(DType::I32, &[2]));
        let weights = ["a", "b", "c"].map(|name| input(&mut g, name, TensorType::new(DType::F32, &[16, 80])));
        for weight in weights {
            x = layer(&mut g, x, weight, lengths).unwrap();
        }
        let loss = g.sum_all(x).unwrap();
        for (i, gradient) in g.gradients(loss, &weights, &Recomputed::new()).unwrap().into_iter().enumerate() {
            g.result(&format!("gradient {i}"), gradient.unwrap()).unwrap();
        }
        Program::compile(&g, &layout, &mut NamedLayout::default()).unwrap().memory().peak_bytes
    }

    #[test]
    fn windows_are_not_saved_for_the_backward_pass() {
        let (rows, window) = (Rows::even(2, 48), ConvWindow::same(5));
        let ours = peak_bytes(|g, x, weight, lengths| {
            let bias = g.constant(&[16], &[0.0_f32; 16]);
            g.conv1d(x, weight, bias, window, &rows, lengths)
        });
        let saved = peak_bytes(|g, x, weight, lengths| {
            let windows = g.unfold(x, window, &rows, lengths)?;
            g.linear(windows, weight, None)
        });
        let windows = 96 * 80 * 4;
        assert!(ours + windows <= saved, "{ours} bytes against {saved}");
    }

    #[test]
    fn a_wrong_weight_is_named() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let mut input = |name: &str, dtype, dims: &[u32]| g.input(name, TensorType::new(dtype, dims)).unwrap();
        let x = input("x", DType::F32, &[12, 3]);
        let (weight, bias) = (input("weight", DType::F32, &[5, 8]), input("bias", DType::F32, &[5]));
        let lengths = input("lengths", DType::I32, &[2]);
        let rows = Rows::even(2, 6);
        let error = g.conv1d(x, weight, bias, ConvWindow::same(3), &rows, lengths).unwrap_err().to_string();
        assert_eq!(
            error,
            "conv1d: takes a weight [out, 9] and a bias [out] of one element type; the operands are F32[12, 3] and \
             F32[5, 8] and F32[5] and I32[2]"
        );
        let error = g.conv_transpose1d(x, weight, bias, ConvWindow::same(3), &rows, lengths).unwrap_err().to_string();
        assert_eq!(
            error,
            "conv_transpose1d: takes frames [12, in], a weight [3 · out, in] and a bias [out]; the operands are \
             F32[12, 3] and F32[5, 8] and F32[5]"
        );
    }
}
