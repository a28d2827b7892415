//! Work on a device, with every address settled but the bases of a few regions: launches, products, copies.

use tandem_device::{DType, Grid, Kernel, Product};

use crate::graph::Span;
use crate::tensor::TensorType;

/// A part of a session's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Region {
    /// Parameters, or what is kept for each of them.
    Span(Span),
    /// What lasts from run to run.
    States,
    /// Numbers that never change.
    Constants,
    /// Numbers that the host sets before a run.
    Host,
    /// The batch.
    Inputs,
    /// What a run leaves for the host.
    Results,
    /// What lives only while a program runs.
    Activations,
}

/// Where a tensor lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// In which part of memory.
    pub region: Region,
    /// Its first byte there.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
}

/// A tensor with its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// What it is.
    pub ty: TensorType,
    /// Where it is.
    pub place: Place,
}

impl Tensor {
    /// As an argument that is read.
    pub fn read(&self) -> StepArg {
        StepArg::Read(self.place, self.ty.dtype)
    }

    /// As an argument that is written (and may be read).
    pub fn write(&self) -> StepArg {
        StepArg::Write(self.place, self.ty.dtype)
    }

    /// Its elements from `first` on, `count` of them, as a flat tensor.
    pub fn part(&self, first: u64, count: u64) -> Tensor {
        assert!(first + count <= self.ty.shape.elements(), "part {first}+{count} of {}", self.ty);
        let width = self.ty.dtype.bytes();
        let place = Place { offset: self.place.offset + first * width, bytes: count * width, ..self.place };
        Tensor { ty: TensorType::new(self.ty.dtype, &[count as u32]), place }
    }
}

/// An argument of a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum StepArg {
    /// Memory that is read.
    Read(Place, DType),
    /// Memory that is written, and may be read.
    Write(Place, DType),
    /// A number.
    U32(u32),
    /// A large number.
    U64(u64),
    /// A real number.
    F32(f32),
}

/// One piece of work.
#[derive(Clone, Debug)]
pub enum Step {
    /// A kernel.
    Launch {
        /// Which.
        kernel: &'static Kernel,
        /// On how many threads.
        grid: Grid,
        /// With what.
        args: Vec<StepArg>,
    },
    /// A matrix product.
    Product {
        /// Its shape.
        product: Product,
        /// Left.
        a: Place,
        /// Right.
        b: Place,
        /// The result.
        c: Place,
        /// Added to every row of the result.
        bias: Option<Place>,
    },
    /// A copy.
    Copy {
        /// From here.
        from: Place,
        /// To there.
        to: Place,
    },
    /// Zeros.
    Clear {
        /// Where.
        to: Place,
    },
}

impl Step {
    /// What kind of work it is: the kernel's name, `product`, `copy` or `clear`.
    pub fn name(&self) -> &'static str {
        match self {
            Step::Launch { kernel, .. } => kernel.name,
            Step::Product { .. } => "product",
            Step::Copy { .. } => "copy",
            Step::Clear { .. } => "clear",
        }
    }
}

/// What an op is given to become work.
pub struct Lower<'a> {
    /// Its inputs.
    pub inputs: &'a [Tensor],
    /// Its outputs.
    pub outputs: &'a [Tensor],
    /// The memory it asked for, as bytes.
    pub scratch: &'a [Tensor],
    pub(crate) taken_over: Option<usize>,
    pub(crate) adds: &'a [bool],
    pub(crate) steps: &'a mut Vec<Step>,
}

impl Lower<'_> {
    /// The input whose memory is that of the first output, if any. A kernel is then given the output only, and reads it.
    pub fn taken_over(&self) -> Option<usize> {
        self.taken_over
    }

    /// Whether an output is to be added to what is there.
    pub fn adds(&self, output: usize) -> bool {
        self.adds[output]
    }

    /// A launch.
    pub fn launch(&mut self, kernel: &'static Kernel, grid: Grid, args: Vec<StepArg>) {
        self.steps.push(Step::Launch { kernel, grid, args });
    }

    /// A matrix product.
    pub fn product(&mut self, product: Product, [a, b, c]: [Tensor; 3], bias: Option<Tensor>) {
        let bias = bias.map(|bias| bias.place);
        self.steps.push(Step::Product { product, a: a.place, b: b.place, c: c.place, bias });
    }

    /// A copy of equal length.
    pub fn copy(&mut self, from: Tensor, to: Tensor) {
        assert_eq!(from.place.bytes, to.place.bytes, "a copy of {} to {}", from.ty, to.ty);
        self.steps.push(Step::Copy { from: from.place, to: to.place });
    }

    /// Zeros.
    pub fn clear(&mut self, to: Tensor) {
        self.steps.push(Step::Clear { to: to.place });
    }
}
