//! The mask of valid frames: 1 before the length of a row, 0 for padding.

use half::bf16;
use tandem_device::{DType, HostArgs, Kernel, Source, kernel_args};

use super::frames::{CHUNK, is_lengths, row_grid, row_parts};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::TensorType;
use crate::{for_real, named_for};

pub(super) static SOURCE: Source =
    Source { file: "engine/length_mask.cu", text: concat!(include_str!("frames.cuh"), include_str!("length_mask.cu")) };

/// Inputs: row starts and lengths. Output: a mask of this element type.
#[derive(Debug)]
struct LengthMask {
    rows: Rows,
    dtype: DType,
}

impl Op for LengthMask {
    fn name(&self) -> &'static str {
        "length_mask"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        match is_lengths(&inputs[1], &self.rows) {
            true => Ok(vec![TensorType::new(self.dtype, &[self.rows.total(), 1])]),
            false => refuse("length_mask", format!("takes lengths I32[{}]", self.rows.count()), &inputs[1..]),
        }
    }

    fn gradient(&self, _: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        Ok(vec![None; 2])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let out = at.outputs[0];
        if out.ty.shape.elements() == 0 {
            return Ok(());
        }
        let kernel = for_real!("length_mask", self.dtype, T => &Mask::<T>::KERNEL);
        let args = LengthMaskArgs { starts: at.inputs[0], lengths: at.inputs[1], out };
        at.launch(kernel, row_grid(&self.rows, 1), args);
        Ok(())
    }
}

kernel_args! {
    /// Arguments of `length_mask`.
    struct LengthMaskArgs<T: Real> { starts: in u32, lengths: in i32, out: out T }
}

struct Mask<T>(std::marker::PhantomData<T>);

impl<T: Real> Mask<T> {
    const KERNEL: Kernel = Kernel {
        name: named_for!(T, "length_mask"),
        source: on_cuda::<T>(&SOURCE),
        params: LengthMaskArgs::params::<T>(),
        host: &mask::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] = &[&Mask::<f32>::KERNEL, &Mask::<bf16>::KERNEL];

fn mask<T: Real>(args: &mut HostArgs<'_>) {
    let LengthMaskArgs { starts, lengths, out } = LengthMaskArgs::host::<T>(args);
    args.workers().each_chunk(out, CHUNK, |chunk, mut out| {
        for run in row_parts(starts, chunk * CHUNK..chunk * CHUNK + out.len()) {
            let (frames, rest) = std::mem::take(&mut out).split_at_mut(run.frames.len());
            let ones = run.valid(lengths[run.row]).len();
            frames[..ones].fill(T::store(T::Acc::of(1.0)));
            frames[ones..].fill(T::store(T::Acc::zero()));
            out = rest;
        }
    });
}

impl Graph {
    /// `[frames, 1]` in the precision of the graph: 1 for the valid frames of each row, 0 for padding.
    pub fn length_mask(&mut self, lengths: Value, rows: &Rows) -> Result<Value, EngineError> {
        let starts = self.row_starts(rows);
        let dtype = self.precision();
        self.push(LengthMask { rows: rows.clone(), dtype }, &[starts, lengths])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn valid_frames_are_one() {
        let rows = Rows::new(&[3, 0, 2, 2]);
        let mask = run(GradientCheck::new().integers(&[4], &[2, 0, 9, -1]), |g, x| g.length_mask(x[0], &rows));
        assert_eq!(mask, [1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    }

    /// In every element type, on every kind of host device, and in more than one chunk.
    #[test]
    fn gradients_pass_where_it_is_one() {
        let rows = Rows::new(&[20_000, 0, 15_000]);
        check_gradients(GradientCheck::new().input(&[35_000, 1]).integers(&[3], &[11_000, 0, 15_000]), |g, x| {
            let mask = g.length_mask(x[1], &rows)?;
            g.mul(x[0], mask)
        });
    }

    #[test]
    fn lengths_of_other_rows_are_named() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let lengths = g.input("lengths", TensorType::new(DType::I32, &[3])).unwrap();
        let error = g.length_mask(lengths, &Rows::even(2, 5)).unwrap_err().to_string();
        assert_eq!(error, "length_mask: takes lengths I32[2]; the operands are I32[3]");
    }
}
