//! Launches: kernels, GEMMs and copies whose addresses are fixed up to the base of each memory region.

use tandem_device::{ArgValue, DType, Gemm, Grid, Kernel, KernelArgs, Param, ParamKind};

use crate::graph::ParameterSpan;
use crate::tensor::TensorType;

/// A region of a session's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Region {
    /// The parameters, or one optimizer state of them.
    ParameterSpan(ParameterSpan),
    /// Memory that persists across runs.
    States,
    /// Values fixed at compile time.
    Constants,
    /// Values that the host sets before a run.
    Host,
    /// The batch.
    Inputs,
    /// Results for the host.
    Results,
    /// Activations: live only while a program runs.
    Activations,
}

/// The memory range of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// The region.
    pub region: Region,
    /// Its first byte in the region.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// A tensor with its location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its type.
    pub ty: TensorType,
    /// Its location.
    pub location: Location,
}

impl Tensor {
    /// As a kernel argument that is read.
    pub fn read(&self) -> LaunchArg {
        LaunchArg::Read(self.location, self.ty.dtype)
    }

    /// As a kernel argument that is written (and may be read).
    pub fn write(&self) -> LaunchArg {
        LaunchArg::Write(self.location, self.ty.dtype)
    }

    /// Its elements from `first` on, `count` of them, as a flat tensor.
    pub fn part(&self, first: u64, count: u64) -> Tensor {
        assert!(first + count <= self.ty.shape.elements(), "part {first}+{count} of {}", self.ty);
        let width = self.ty.dtype.bytes();
        let location = Location { offset: self.location.offset + first * width, bytes: count * width, ..self.location };
        Tensor { ty: TensorType::new(self.ty.dtype, &[count as u32]), location }
    }
}

/// An argument of a kernel launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LaunchArg {
    /// Memory that is read.
    Read(Location, DType),
    /// Memory that is written, and may be read.
    Write(Location, DType),
    /// An integer.
    U32(u32),
    /// A 64-bit integer.
    U64(u64),
    /// A floating-point number.
    F32(f32),
}

/// One entry of a program, queued on a stream.
#[derive(Clone, Debug)]
pub enum Launch {
    /// A kernel.
    Kernel {
        /// The kernel.
        kernel: &'static Kernel,
        /// Its launch grid.
        grid: Grid,
        /// Its arguments.
        args: Vec<LaunchArg>,
    },
    /// A GEMM.
    Gemm {
        /// Its dimensions and layout.
        gemm: Gemm,
        /// The left operand.
        a: Location,
        /// The right operand.
        b: Location,
        /// The output.
        c: Location,
        /// The bias epilogue: added to every row of the output.
        bias: Option<Location>,
    },
    /// A copy.
    Copy {
        /// The source.
        from: Location,
        /// The destination.
        to: Location,
    },
    /// A fill with zeros.
    Clear {
        /// The destination.
        to: Location,
    },
}

impl Launch {
    /// The kernel's name, `gemm`, `copy` or `clear`.
    pub fn name(&self) -> &'static str {
        match self {
            Launch::Kernel { kernel, .. } => kernel.name,
            Launch::Gemm { .. } => "gemm",
            Launch::Copy { .. } => "copy",
            Launch::Clear { .. } => "clear",
        }
    }
}

/// The context in which an op emits its launches.
pub struct Lower<'a> {
    /// Its inputs.
    pub inputs: &'a [Tensor],
    /// Its outputs.
    pub outputs: &'a [Tensor],
    /// The scratch buffers it asked for, as bytes.
    pub scratch: &'a [Tensor],
    pub(crate) in_place_input: Option<usize>,
    pub(crate) accumulates: &'a [bool],
    pub(crate) launches: &'a mut Vec<Launch>,
}

impl Lower<'_> {
    /// The input that the first output overwrites in place, if any. The kernel then takes the output only, and reads it.
    pub fn in_place_input(&self) -> Option<usize> {
        self.in_place_input
    }

    /// Whether an output is accumulated in place.
    pub fn accumulates(&self, output: usize) -> bool {
        self.accumulates[output]
    }

    /// Emits a kernel launch, with the arguments that [`kernel_args!`](tandem_device::kernel_args) declared for `kernel`. Panics if they
    /// are those of another kernel.
    pub fn launch(&mut self, kernel: &'static Kernel, grid: Grid, args: impl KernelArgs<Tensor>) {
        let bound = kernel.bind(args).unwrap_or_else(|error| panic!("{error}"));
        let arg = |(param, value): (Param, ArgValue<Tensor>)| match (value, param.kind) {
            (ArgValue::Memory(tensor), ParamKind::Out(_)) => LaunchArg::Write(tensor.location, tensor.ty.dtype),
            (ArgValue::Memory(tensor), _) => LaunchArg::Read(tensor.location, tensor.ty.dtype),
            (ArgValue::U32(n), _) => LaunchArg::U32(n),
            (ArgValue::U64(n), _) => LaunchArg::U64(n),
            (ArgValue::F32(x), _) => LaunchArg::F32(x),
        };
        let args = bound.into_iter().map(arg).collect();
        self.launches.push(Launch::Kernel { kernel, grid, args });
    }

    /// Emits a GEMM.
    pub fn gemm(&mut self, gemm: Gemm, [a, b, c]: [Tensor; 3], bias: Option<Tensor>) {
        let bias = bias.map(|bias| bias.location);
        self.launches.push(Launch::Gemm { gemm, a: a.location, b: b.location, c: c.location, bias });
    }

    /// Emits a copy between tensors of equal size.
    pub fn copy(&mut self, from: Tensor, to: Tensor) {
        assert_eq!(from.location.bytes, to.location.bytes, "a copy of {} to {}", from.ty, to.ty);
        self.launches.push(Launch::Copy { from: from.location, to: to.location });
    }

    /// Emits a fill with zeros.
    pub fn clear(&mut self, to: Tensor) {
        self.launches.push(Launch::Clear { to: to.location });
    }
}
