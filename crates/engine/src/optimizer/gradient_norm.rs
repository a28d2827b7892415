//! The global gradient norm, first step: sums of squares by chunks. [`super::update_factors`] adds them in order.

use tandem_device::{DType, Grid, HostArgs, Kernel, kernel_args};

use super::SOURCE;
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::named_for;
use crate::op::{Op, refuse};
use crate::ops::on_cuda;
use crate::real::Float;
use crate::tensor::TensorType;

/// Elements of a chunk. The number of chunks depends on the model alone, so the order of additions does too.
const CHUNK: u64 = 32 * 1024;
/// Independent sums, so that additions do not wait for each other.
const LANES: usize = 16;

/// The sum of squares of each chunk of a flat tensor. The sum is not finite if an element is not, or if it overflows.
#[derive(Debug)]
struct SumOfSquares;

impl Op for SumOfSquares {
    fn name(&self) -> &'static str {
        "sum_of_squares"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        match inputs {
            [ty] if ty.shape.rank() == 1 && matches!(ty.dtype, DType::F32 | DType::F64) => {
                Ok(vec![TensorType::new(ty.dtype, &[ty.shape.elements().div_ceil(CHUNK) as u32])])
            }
            _ => refuse("sum_of_squares", "takes one flat tensor of f32 or f64", inputs),
        }
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (x, sums) = (at.inputs[0], at.outputs[0]);
        let kernel = match x.ty.dtype {
            DType::F64 => &Squares::<f64>::KERNEL,
            _ => &Squares::<f32>::KERNEL,
        };
        let blocks = [sums.ty.shape.last(), 1, 1];
        let args = SumOfSquaresArgs { x, sums, n: x.ty.shape.elements() };
        at.launch(kernel, Grid { blocks, threads: 256, shared_bytes: 0 }, args);
        Ok(())
    }
}

kernel_args! {
    /// Arguments of `sum_of_squares`.
    struct SumOfSquaresArgs<F: Float> { x: in F, sums: out F, n: u64 }
}

struct Squares<F>(std::marker::PhantomData<F>);

impl<F: Float> Squares<F> {
    const KERNEL: Kernel = Kernel {
        name: named_for!(F, "sum_of_squares"),
        source: on_cuda::<F>(&SOURCE),
        params: SumOfSquaresArgs::params::<F>(),
        host: &host::<F>,
    };
}

fn host<F: Float>(args: &mut HostArgs<'_>) {
    let SumOfSquaresArgs { x, sums, n } = SumOfSquaresArgs::host::<F>(args);
    let (elements, chunk) = (n as usize, CHUNK as usize);
    args.workers().each_chunk(sums, 1, |i, sum| sum[0] = sum_of_squares(&x[i * chunk..elements.min((i + 1) * chunk)]));
}

pub(super) static KERNELS: &[&Kernel] = &[&Squares::<f32>::KERNEL];

fn sum_of_squares<F: Float>(x: &[F]) -> F {
    let mut lanes = [F::zero(); LANES];
    let blocks = x.chunks_exact(LANES);
    let rest: F = blocks.remainder().iter().map(|&x| x * x).sum();
    for block in blocks {
        lanes.iter_mut().zip(block).for_each(|(lane, &x)| *lane += x * x);
    }
    lanes.into_iter().sum::<F>() + rest
}

impl Graph {
    /// The sum of squares of each chunk of `x`.
    pub(super) fn sum_of_squares(&mut self, x: Value) -> Result<Value, EngineError> {
        self.push(SumOfSquares, &[x])
    }
}
