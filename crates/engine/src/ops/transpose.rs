//! Matrix transpose.

use half::bf16;
use tandem_device::{Grid, HostArgs, Kernel, Source, kernel_args};

use super::frames::is_real;
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::tensor::TensorType;
use crate::{for_real, named_for};

pub(super) static SOURCE: Source = Source { file: "engine/transpose.cu", text: include_str!("transpose.cu") };

/// Rows and columns of the tiles of the host kernel: sixteen floats are a cache line.
const TILE: usize = 16;

#[derive(Debug)]
struct Transpose;

impl Op for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        match (inputs[0].dtype, inputs[0].shape.dims()) {
            (dtype, &[m, n]) if is_real(inputs[0].dtype) => Ok(vec![TensorType::new(dtype, &[n, m])]),
            (dtype, &[batch, m, n]) if is_real(inputs[0].dtype) => Ok(vec![TensorType::new(dtype, &[batch, n, m])]),
            _ => refuse("transpose", "takes floats [m, n], or a batch of such matrices", inputs),
        }
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first() else { return Ok(vec![None]) };
        Ok(vec![Some(at.graph.transpose(gradient)?)])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (x, out) = (at.inputs[0], at.outputs[0]);
        let (batch, m, n) = match *x.ty.shape.dims() {
            [m, n] => (1, m, n),
            [batch, m, n] => (batch, m, n),
            _ => unreachable!("checked when the node was written"),
        };
        if out.ty.shape.elements() == 0 {
            return Ok(());
        }
        let kernel = for_real!("transpose", out.ty.dtype, T => &TransposeKernel::<T>::KERNEL);
        let grid = Grid { blocks: [n.div_ceil(32), m.div_ceil(32), batch], threads: 256, shared_bytes: 0 };
        at.launch(kernel, grid, TransposeArgs { x, out, batch, m, n });
        Ok(())
    }
}

kernel_args! {
    /// Arguments of `transpose`.
    struct TransposeArgs<T: Real> { x: in T, out: out T, batch: u32, m: u32, n: u32 }
}

struct TransposeKernel<T>(std::marker::PhantomData<T>);

impl<T: Real> TransposeKernel<T> {
    const KERNEL: Kernel = Kernel {
        name: named_for!(T, "transpose"),
        source: on_cuda::<T>(&SOURCE),
        params: TransposeArgs::params::<T>(),
        host: &host::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] = &[&TransposeKernel::<f32>::KERNEL, &TransposeKernel::<bf16>::KERNEL];

fn host<T: Real>(args: &mut HostArgs<'_>) {
    let TransposeArgs { x, out, batch, m, n } = TransposeArgs::host::<T>(args);
    let (m, n) = (m as usize, n as usize);
    // A single matrix is divided into bands of rows; in a batch, each matrix is a unit of work.
    let band = if batch > 1 { n } else { TILE };
    args.workers().each_chunk(out, band * m, |chunk, out| match batch {
        1 => transpose_band(x, out, [m, n], chunk * TILE),
        _ => {
            let x = &x[chunk * m * n..][..m * n];
            for (band, out) in out.chunks_mut(TILE * m).enumerate() {
                transpose_band(x, out, [m, n], band * TILE);
            }
        }
    });
}

/// Transposes the columns of `x` `[m, n]` from `first` on, as many as `out` has rows.
fn transpose_band<T: Real>(x: &[T], out: &mut [T], [m, n]: [usize; 2], first: usize) {
    let columns = out.len() / m;
    for from in (0..m).step_by(TILE) {
        let rows = TILE.min(m - from);
        let x = x[from * n..][..rows * n].chunks_exact(n).map(|row| &row[first..first + columns]);
        if (rows, columns) == (TILE, TILE) {
            transpose_tile(x, &mut out[from..], m);
            continue;
        }
        for (row, x) in x.enumerate() {
            x.iter().enumerate().for_each(|(column, &x)| out[column * m + from + row] = x);
        }
    }
}

/// A full tile through an array of constant size, so that there are no bounds checks: 3 times as fast as element by element.
fn transpose_tile<'x, T: Real>(x: impl Iterator<Item = &'x [T]>, out: &mut [T], stride: usize) {
    let mut tile = [[T::store(T::Acc::zero()); TILE]; TILE];
    tile.iter_mut().zip(x).for_each(|(to, x)| to.copy_from_slice(x));
    for (column, out) in out.chunks_mut(stride).take(TILE).enumerate() {
        let out = &mut out[..TILE];
        for row in 0..TILE {
            out[row] = tile[row][column];
        }
    }
}

impl Graph {
    /// `[m, n]` to `[n, m]`, or `[batch, m, n]` to `[batch, n, m]`.
    ///
    /// A GEMM takes transposed operands without a copy ([`Graph::gemm`]); this op moves the elements.
    pub fn transpose(&mut self, x: Value) -> Result<Value, EngineError> {
        self.push(Transpose, &[x])
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::DType;

    use super::*;
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn gradients() {
        for dims in [&[3, 5][..], &[1, 7], &[37, 18], &[16, 32], &[3, 5, 2], &[2, 33, 17]] {
            check_gradients(GradientCheck::new().input(dims), |g, x| g.transpose(x[0]));
        }
    }

    #[test]
    fn rows_become_columns() {
        let check = |batch: usize, m: usize, n: usize| {
            let x: Vec<f64> = (0..batch * m * n).map(|i| i as f64).collect();
            let mut expected = vec![0.0; x.len()];
            for (i, x) in x.iter().enumerate() {
                let (b, row, column) = (i / (m * n), i / n % m, i % n);
                expected[b * m * n + column * m + row] = *x;
            }
            let dims = [batch as u32, m as u32, n as u32];
            let dims = if batch == 1 { &dims[1..] } else { &dims[..] };
            assert_eq!(run(GradientCheck::new().given(dims, &x), |g, x| g.transpose(x[0])), expected, "{dims:?}");
        };
        check(1, 3, 2);
        check(1, 50, 33);
        check(2, 2, 3);
        check(3, 17, 40);
    }

    #[test]
    fn vectors_are_refused() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let x = g.input("x", TensorType::new(DType::F32, &[4])).unwrap();
        let error = g.transpose(x).unwrap_err().to_string();
        assert_eq!(error, "transpose: takes floats [m, n], or a batch of such matrices; the operands are F32[4]");
    }
}
