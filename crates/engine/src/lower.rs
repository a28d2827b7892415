//! Work on a device, with every address settled but the bases of a few regions: launches, GEMMs, copies.

use tandem_device::{DType, Gemm, Grid, Kernel};

use crate::graph::ParameterSpan;
use crate::tensor::TensorType;

/// A part of a session's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Region {
    /// Parameters, or what is kept for each of them.
    ParameterSpan(ParameterSpan),
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
pub struct Location {
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
    pub place: Location,
}

impl Tensor {
    /// As an argument that is read.
    pub fn read(&self) -> LaunchArg {
        LaunchArg::Read(self.place, self.ty.dtype)
    }

    /// As an argument that is written (and may be read).
    pub fn write(&self) -> LaunchArg {
        LaunchArg::Write(self.place, self.ty.dtype)
    }

    /// Its elements from `first` on, `count` of them, as a flat tensor.
    pub fn part(&self, first: u64, count: u64) -> Tensor {
        assert!(first + count <= self.ty.shape.elements(), "part {first}+{count} of {}", self.ty);
        let width = self.ty.dtype.bytes();
        let place = Location { offset: self.place.offset + first * width, bytes: count * width, ..self.place };
        Tensor { ty: TensorType::new(self.ty.dtype, &[count as u32]), place }
    }
}

/// An argument of a launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LaunchArg {
    /// Memory that is read.
    Read(Location, DType),
    /// Memory that is written, and may be read.
    Write(Location, DType),
    /// A number.
    U32(u32),
    /// A large number.
    U64(u64),
    /// A real number.
    F32(f32),
}

/// One piece of work.
#[derive(Clone, Debug)]
pub enum Launch {
    /// A kernel.
    Kernel {
        /// Which.
        kernel: &'static Kernel,
        /// On how many threads.
        grid: Grid,
        /// With what.
        args: Vec<LaunchArg>,
    },
    /// A GEMM.
    Gemm {
        /// Its shape.
        gemm: Gemm,
        /// Left.
        a: Location,
        /// Right.
        b: Location,
        /// The result.
        c: Location,
        /// Added to every row of the result.
        bias: Option<Location>,
    },
    /// A copy.
    Copy {
        /// From here.
        from: Location,
        /// To there.
        to: Location,
    },
    /// Zeros.
    Clear {
        /// Where.
        to: Location,
    },
}

impl Launch {
    /// What kind of work it is: the kernel's name, `gemm`, `copy` or `clear`.
    pub fn name(&self) -> &'static str {
        match self {
            Launch::Kernel { kernel, .. } => kernel.name,
            Launch::Gemm { .. } => "gemm",
            Launch::Copy { .. } => "copy",
            Launch::Clear { .. } => "clear",
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
    pub(crate) steps: &'a mut Vec<Launch>,
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
    pub fn launch(&mut self, kernel: &'static Kernel, grid: Grid, args: Vec<LaunchArg>) {
        self.steps.push(Launch::Kernel { kernel, grid, args });
    }

    /// A GEMM.
    pub fn gemm(&mut self, gemm: Gemm, [a, b, c]: [Tensor; 3], bias: Option<Tensor>) {
        let bias = bias.map(|bias| bias.place);
        self.steps.push(Launch::Gemm { gemm, a: a.place, b: b.place, c: c.place, bias });
    }

    /// A copy of equal length.
    pub fn copy(&mut self, from: Tensor, to: Tensor) {
        assert_eq!(from.place.bytes, to.place.bytes, "a copy of {} to {}", from.ty, to.ty);
        self.steps.push(Launch::Copy { from: from.place, to: to.place });
    }

    /// Zeros.
    pub fn clear(&mut self, to: Tensor) {
        self.steps.push(Launch::Clear { to: to.place });
    }
}
