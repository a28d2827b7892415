//! Conversion of integers to floating point.

use half::bf16;
use tandem_device::{DType, Grid, HostArgs, Kernel, Source, kernel_args};

use super::frames::CHUNK;
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::tensor::TensorType;
use crate::{for_real, named_for};

pub(super) static SOURCE: Source = Source { file: "engine/to_float.cu", text: include_str!("to_float.cu") };

/// Converts to this element type.
#[derive(Debug)]
struct ToFloat(DType);

impl Op for ToFloat {
    fn name(&self) -> &'static str {
        "to_float"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        match inputs {
            [x] if x.dtype == DType::I32 => Ok(vec![x.of(self.0)]),
            _ => refuse("to_float", "takes integers, I32", inputs),
        }
    }

    fn gradient(&self, _: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        Ok(vec![None])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (x, out) = (at.inputs[0], at.outputs[0]);
        let elements = out.ty.shape.elements();
        if elements == 0 {
            return Ok(());
        }
        let kernel = for_real!("to_float", self.0, T => &Convert::<T>::KERNEL);
        at.launch(kernel, Grid::cover(elements, 256), ToFloatArgs { x, out, elements });
        Ok(())
    }
}

kernel_args! {
    /// Arguments of `to_float`.
    struct ToFloatArgs<T: Real> { x: in i32, out: out T, elements: u64 }
}

struct Convert<T>(std::marker::PhantomData<T>);

impl<T: Real> Convert<T> {
    const KERNEL: Kernel = Kernel {
        name: named_for!(T, "to_float"),
        source: on_cuda::<T>(&SOURCE),
        params: ToFloatArgs::params::<T>(),
        host: &convert::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] = &[&Convert::<f32>::KERNEL, &Convert::<bf16>::KERNEL];

fn convert<T: Real>(args: &mut HostArgs<'_>) {
    let ToFloatArgs { x, out, .. } = ToFloatArgs::host::<T>(args);
    args.workers().each_chunk(out, CHUNK, |chunk, out| {
        let x = &x[chunk * CHUNK..];
        out.iter_mut().zip(x).for_each(|(out, &x)| *out = T::store(T::Acc::of(f64::from(x))));
    });
}

impl Graph {
    /// Integers as floats, in the accumulator type. There is no gradient.
    pub fn to_float(&mut self, x: Value) -> Result<Value, EngineError> {
        let dtype = self.acc_dtype();
        self.push(ToFloat(dtype), &[x])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GradientCheck, check_gradients, run};

    #[test]
    fn values_are_unchanged() {
        let found = run(GradientCheck::new().integers(&[2, 2], &[0, -3, 7, i32::MAX]), |g, x| g.to_float(x[0]));
        assert_eq!(found, [0.0, -3.0, 7.0, 2_147_483_647.0]);
    }

    /// In every element type, on every kind of host device, and in more than one chunk.
    #[test]
    fn converted_integers_are_operands_like_others() {
        let durations: Vec<i32> = (0..40_000).map(|i| i % 7).collect();
        check_gradients(GradientCheck::new().input(&[40_000]).integers(&[40_000], &durations), |g, x| {
            let durations = g.to_float(x[1])?;
            g.mul(x[0], durations)
        });
    }

    #[test]
    fn floats_are_refused() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let x = g.input("x", TensorType::new(DType::F32, &[3])).unwrap();
        let error = g.to_float(x).unwrap_err().to_string();
        assert_eq!(error, "to_float: takes integers, I32; the operands are F32[3]");
    }
}
