//! The length of the gradient over all parameters: sums of squares by pieces, which [`super::decide`] adds in order.

use tandem_device::{DType, Element, Grid, HostArgs, Kernel, Param};

use super::SOURCE;
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{LaunchArg, Lower};
use crate::named_for;
use crate::op::{Op, refuse};
use crate::ops::on_cuda;
use crate::real::Float;
use crate::tensor::TensorType;

/// Elements of a piece: their number depends on the model alone, so the order of additions does too.
const PIECE: u64 = 32 * 1024;
/// Sums that are kept side by side, so that additions need not wait for each other.
const LANES: usize = 16;

/// The sum of squares of every piece of a flat tensor. A piece with something that is not finite, or whose sum of squares
/// leaves the range of its element type, has a sum that is not finite.
#[derive(Debug)]
struct SquaredPieces;

impl Op for SquaredPieces {
    fn name(&self) -> &'static str {
        "squared_pieces"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        match inputs {
            [ty] if ty.shape.rank() == 1 && matches!(ty.dtype, DType::F32 | DType::F64) => {
                Ok(vec![TensorType::new(ty.dtype, &[ty.shape.elements().div_ceil(PIECE) as u32])])
            }
            _ => refuse("squared_pieces", "takes one flat tensor of f32 or f64", inputs),
        }
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (x, sums) = (at.inputs[0], at.outputs[0]);
        let kernel = match x.ty.dtype {
            DType::F64 => &Squares::<f64>::KERNEL,
            _ => &Squares::<f32>::KERNEL,
        };
        let blocks = [sums.ty.shape.last(), 1, 1];
        let args = vec![x.read(), sums.write(), LaunchArg::U64(x.ty.shape.elements())];
        at.launch(kernel, Grid { blocks, threads: 256, shared_bytes: 0 }, args);
        Ok(())
    }
}

struct Squares<F>(std::marker::PhantomData<F>);

impl<F: Float> Squares<F> {
    const KERNEL: Kernel = Kernel {
        name: named_for!(F, "squared_pieces"),
        source: on_cuda::<F>(&SOURCE),
        params: &[Param::In(<F as Element>::DTYPE), Param::Out(<F as Element>::DTYPE), Param::U64],
        host: &host::<F>,
    };
}

fn host<F: Float>(args: &mut HostArgs<'_>) {
    let elements = args.u64(2) as usize;
    let x = &args.read::<F>(0)[..elements];
    let workers = args.workers();
    let sums = args.write::<F>(1);
    let piece = PIECE as usize;
    workers.each_chunk(sums, 1, |i, sum| sum[0] = squares_of(&x[i * piece..elements.min((i + 1) * piece)]));
}

fn squares_of<F: Float>(x: &[F]) -> F {
    let mut lanes = [F::zero(); LANES];
    let blocks = x.chunks_exact(LANES);
    let rest: F = blocks.remainder().iter().map(|&x| x * x).sum();
    for block in blocks {
        lanes.iter_mut().zip(block).for_each(|(lane, &x)| *lane += x * x);
    }
    lanes.into_iter().sum::<F>() + rest
}

impl Graph {
    /// The sum of squares of each piece of `x`.
    pub(super) fn squared_pieces(&mut self, x: Value) -> Result<Value, EngineError> {
        self.push(SquaredPieces, &[x])
    }
}
