//! In-place accumulation: gradients of micro-batches, counters.

use half::bf16;
use tandem_device::{Grid, HostArgs, Kernel, Source, kernel_args};

use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::op::{Op, WriteMode, refuse};
use crate::ops::on_cuda;
use crate::real::Real;
use crate::tensor::TensorType;
use crate::{for_real, named_for};

pub(super) static SOURCE: Source = Source { file: "engine/add_into.cu", text: include_str!("add_into.cu") };

/// Elements of a chunk that one worker thread adds.
const CHUNK: usize = 32 * 1024;

#[derive(Debug)]
struct AddInto;

impl Op for AddInto {
    fn name(&self) -> &'static str {
        "add_into"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        match inputs {
            [sum, part] if sum == part => Ok(Vec::new()),
            _ => refuse("add_into", "a sum and its summand have one type", inputs),
        }
    }

    fn mutates(&self) -> &'static [usize] {
        &[0]
    }

    fn write_mode(&self) -> Option<WriteMode> {
        Some(WriteMode::Accumulate)
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let [sum, part] = [at.inputs[0], at.inputs[1]];
        let elements = sum.ty.shape.elements();
        if elements == 0 {
            return Ok(());
        }
        let kernel = for_real!("add_into", sum.ty.dtype, T => &AddIntoKernel::<T>::KERNEL);
        let args = AddIntoArgs { sum, part, n: elements };
        at.launch(kernel, Grid::cover(elements.div_ceil(4), 256), args);
        Ok(())
    }
}

kernel_args! {
    /// Arguments of `add_into`.
    struct AddIntoArgs<T: Real> { sum: out T, part: in T, n: u64 }
}

struct AddIntoKernel<T>(std::marker::PhantomData<T>);

impl<T: Real> AddIntoKernel<T> {
    const KERNEL: Kernel = Kernel {
        name: named_for!(T, "add_into"),
        source: on_cuda::<T>(&SOURCE),
        params: AddIntoArgs::params::<T>(),
        host: &host::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] = &[&AddIntoKernel::<f32>::KERNEL, &AddIntoKernel::<bf16>::KERNEL];

fn host<T: Real>(args: &mut HostArgs<'_>) {
    let AddIntoArgs { sum, part, n } = AddIntoArgs::host::<T>(args);
    args.workers().each_chunk(&mut sum[..n as usize], CHUNK, |chunk, sum| {
        let part = &part[chunk * CHUNK..n as usize];
        sum.iter_mut().zip(part).for_each(|(sum, &part)| *sum = T::store(sum.load() + part.load()));
    });
}

impl Graph {
    /// Adds `part` to `sum` in place: a gradient, a span or a state.
    pub fn add_into(&mut self, sum: Value, part: Value) -> Result<(), EngineError> {
        self.push_many(AddInto, &[sum, part]).map(drop)
    }
}
