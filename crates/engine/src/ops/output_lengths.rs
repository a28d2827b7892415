//! The number of valid frames of each row after a convolution.

use tandem_device::{DType, Grid, HostArgs, Kernel, Source, kernel_args};

use super::window::ConvWindow;
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::op::{Backward, Op, refuse};
use crate::tensor::TensorType;

pub(super) static SOURCE: Source = Source {
    file: "engine/output_lengths.cu",
    text: concat!(include_str!("window.cuh"), include_str!("output_lengths.cu")),
};

#[derive(Debug)]
struct OutputLengths(ConvWindow);

impl Op for OutputLengths {
    fn name(&self) -> &'static str {
        "output_lengths"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        match inputs {
            [lengths] if lengths.dtype == DType::I32 && lengths.shape.rank() == 1 => Ok(inputs.to_vec()),
            _ => refuse("output_lengths", "takes lengths I32[rows]", inputs),
        }
    }

    fn gradient(&self, _: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        Ok(vec![None])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (lengths, out) = (at.inputs[0], at.outputs[0]);
        let (ConvWindow { kernel, stride, dilation, padding }, count) = (self.0, out.ty.shape.last());
        let args = OutputLengthsArgs { lengths, out, kernel, stride, dilation, padding, count };
        at.launch(&KERNEL, Grid::cover(u64::from(count), 256), args);
        Ok(())
    }
}

kernel_args! {
    /// Arguments of `output_lengths`.
    struct OutputLengthsArgs {
        lengths: in i32,
        out: out i32,
        kernel: u32,
        stride: u32,
        dilation: u32,
        padding: u32,
        count: u32,
    }
}

static KERNEL: Kernel =
    Kernel { name: "output_lengths", source: &SOURCE, params: OutputLengthsArgs::params(), host: &host };

pub(super) static KERNELS: &[&Kernel] = &[&KERNEL];

fn host(args: &mut HostArgs<'_>) {
    let OutputLengthsArgs { lengths, out, kernel, stride, dilation, padding, .. } = OutputLengthsArgs::host(args);
    let window = ConvWindow { kernel, stride, dilation, padding };
    for (out, &length) in out.iter_mut().zip(lengths) {
        *out = window.output_length(length.max(0) as u32) as i32;
    }
}

impl Graph {
    /// [`ConvWindow::output_length`] of each of `lengths` `[rows]`; a negative length counts as 0.
    pub fn output_lengths(&mut self, lengths: Value, window: ConvWindow) -> Result<Value, EngineError> {
        self.push(OutputLengths(window), &[lengths])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GradientCheck, run};

    #[test]
    fn lengths_are_those_of_the_convolution() {
        let window = ConvWindow { kernel: 4, stride: 2, dilation: 1, padding: 1 };
        let lengths = GradientCheck::new().integers(&[5], &[8, 0, 1, 7, -3]);
        // As floats, because the test takes a loss of the result.
        let found = run(lengths, |g, x| {
            let lengths = g.output_lengths(x[0], window)?;
            g.to_float(lengths)
        });
        assert_eq!(found, [4.0, 0.0, 0.0, 3.0, 0.0]);
    }

    #[test]
    fn float_lengths_are_refused() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let x = g.input("x", TensorType::new(DType::F32, &[3])).unwrap();
        let error = g.output_lengths(x, ConvWindow::same(3)).unwrap_err().to_string();
        assert_eq!(error, "output_lengths: takes lengths I32[rows]; the operands are F32[3]");
    }
}
