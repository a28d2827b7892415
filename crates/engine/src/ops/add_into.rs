//! Adding to something that lasts: gradients of micro-batches, counters.

use tandem_device::{Grid, HostArgs, Kernel, Param, Source};

use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{LaunchArg, Lower};
use crate::op::{Op, WriteMode, refuse};
use crate::ops::on_cuda;
use crate::real::Real;
use crate::tensor::TensorType;
use crate::{for_real, named_for};

/// Its kernels.
pub(super) static SOURCE: Source = Source { file: "engine/add_into.cu", text: include_str!("add_into.cu") };

/// Elements of a piece that one thread adds.
const PIECE: usize = 32 * 1024;

#[derive(Debug)]
struct AddInto;

impl Op for AddInto {
    fn name(&self) -> &'static str {
        "add_into"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        match inputs {
            [sum, part] if sum == part => Ok(Vec::new()),
            _ => refuse("add_into", "a sum and what is added to it are of one type", inputs),
        }
    }

    fn mutates(&self) -> &'static [usize] {
        &[0]
    }

    fn brings(&self) -> Option<WriteMode> {
        Some(WriteMode::Accumulate)
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let [sum, part] = [at.inputs[0], at.inputs[1]];
        let elements = sum.ty.shape.elements();
        if elements == 0 {
            return Ok(());
        }
        let kernel = for_real!("add_into", sum.ty.dtype, T => &AddIntoKernel::<T>::KERNEL);
        let args = vec![sum.write(), part.read(), LaunchArg::U64(elements)];
        at.launch(kernel, Grid::cover(elements.div_ceil(4), 256), args);
        Ok(())
    }
}

struct AddIntoKernel<T>(std::marker::PhantomData<T>);

impl<T: Real> AddIntoKernel<T> {
    const KERNEL: Kernel = Kernel {
        name: named_for!(T, "add_into"),
        source: on_cuda::<T>(&SOURCE),
        params: &[Param::Out(T::DTYPE), Param::In(T::DTYPE), Param::U64],
        host: &host::<T>,
    };
}

fn host<T: Real>(args: &mut HostArgs<'_>) {
    let elements = args.u64(2) as usize;
    let part = &args.read::<T>(1)[..elements];
    let workers = args.workers();
    let sum = &mut args.write::<T>(0)[..elements];
    workers.each_chunk(sum, PIECE, |piece, sum| {
        let part = &part[piece * PIECE..];
        sum.iter_mut().zip(part).for_each(|(sum, &part)| *sum = T::store(sum.load() + part.load()));
    });
}

impl Graph {
    /// Adds `part` to `sum`, which lasts: a gradient, a span or a state.
    pub fn add_into(&mut self, sum: Value, part: Value) -> Result<(), EngineError> {
        self.push_many(AddInto, &[sum, part]).map(drop)
    }
}
