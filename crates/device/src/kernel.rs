//! Kernels: one piece of device work, written twice (CUDA C++ and Rust) and called through one typed door.
//!
//! A [`Kernel`] is declared as a static beside its maths. The CUDA text is compiled for the card at hand; the
//! Rust host kernel runs on the CPU and on simulated cards and is what the CUDA result is tested against.

use crate::arena::View;
use crate::driver::RawArg;
use crate::error::DeviceError;
use crate::workers::Workers;

/// Element types a kernel can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the types")]
pub enum DType {
    U8,
    I16,
    I32,
    U32,
    U64,
    F32,
    F64,
    BF16,
}

impl DType {
    /// Bytes of one element.
    pub const fn bytes(self) -> u64 {
        match self {
            DType::U8 => 1,
            DType::I16 | DType::BF16 => 2,
            DType::I32 | DType::U32 | DType::F32 => 4,
            DType::U64 | DType::F64 => 8,
        }
    }
}

/// A Rust type that is stored on devices as it is in memory.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The same type, as a value.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => { $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })* };
}
elements!(u8 => U8, i16 => I16, i32 => I32, u32 => U32, u64 => U64, f32 => F32, f64 => F64, half::bf16 => BF16);

/// One parameter of a kernel, in the order of its CUDA signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Param {
    /// A pointer it reads.
    In(DType),
    /// A pointer it writes (and may read).
    Out(DType),
    /// An unsigned number.
    U32,
    /// A large unsigned number.
    U64,
    /// A real number.
    F32,
}

/// A CUDA source file. All kernels of a file are compiled together.
#[derive(Debug)]
pub struct Source {
    /// Its name, for messages and the cache.
    pub file: &'static str,
    /// Its text, without the prelude that is put before it.
    pub text: &'static str,
}

/// The Rust half of a kernel. Several threads may call it at once, each with arguments of its own.
pub type HostKernel = &'static (dyn Fn(&mut HostArgs<'_>) + Send + Sync);

/// A kernel: its name and source, its parameters, and its Rust host kernel.
pub struct Kernel {
    /// The `extern "C" __global__` function in `source`.
    pub name: &'static str,
    /// Where it is written.
    pub source: &'static Source,
    /// What it takes.
    pub params: &'static [Param],
    /// The same maths on host memory. Called with arguments that were checked against `params`.
    ///
    /// A reference to a function, or to a closure that carries what a kernel generated at run time was made from.
    pub host: HostKernel,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in {}", self.name, self.source.file)
    }
}

/// How many threads run a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block, in x.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

impl Grid {
    /// One thread per item, `threads` to a block.
    pub fn cover(items: u64, threads: u32) -> Grid {
        let blocks = items.div_ceil(u64::from(threads)).clamp(1, i32::MAX as u64) as u32;
        Grid { blocks: [blocks, 1, 1], threads, shared_bytes: 0 }
    }
}

/// An argument, as the caller gives it.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// Memory that is read as elements of this type.
    In(View<'a>, DType),
    /// Memory that is written as elements of this type.
    Out(View<'a>, DType),
    /// A number.
    U32(u32),
    /// A large number.
    U64(u64),
    /// A real number.
    F32(f32),
}

impl<'a> Arg<'a> {
    /// Memory to read as `T`.
    pub fn read<T: Element>(view: View<'a>) -> Arg<'a> {
        Arg::In(view, T::DTYPE)
    }

    /// Memory to write as `T`.
    pub fn write<T: Element>(view: View<'a>) -> Arg<'a> {
        Arg::Out(view, T::DTYPE)
    }

    fn is(&self, param: Param) -> bool {
        match (self, param) {
            (Arg::In(_, have), Param::In(want)) | (Arg::Out(_, have), Param::Out(want)) => *have == want,
            (Arg::U32(_), Param::U32) | (Arg::U64(_), Param::U64) | (Arg::F32(_), Param::F32) => true,
            _ => false,
        }
    }

    fn raw(&self) -> RawArg {
        match self {
            Arg::In(view, _) => RawArg::Read { at: view.address(), bytes: view.bytes() },
            Arg::Out(view, _) => RawArg::Write { at: view.address(), bytes: view.bytes() },
            Arg::U32(n) => RawArg::U32(*n),
            Arg::U64(n) => RawArg::U64(*n),
            Arg::F32(x) => RawArg::F32(*x),
        }
    }
}

/// Checks `args` against what `kernel` takes: number, kind, element type, whole elements, the right card, and
/// that nothing written overlaps anything else (the Rust host kernel holds `&mut` to it).
pub(crate) fn check(kernel: &'static Kernel, card: usize, args: &[Arg<'_>]) -> Result<Vec<RawArg>, DeviceError> {
    let wrong = |problem: String| DeviceError::Arguments { kernel: kernel.name, problem };
    if args.len() != kernel.params.len() {
        return Err(wrong(format!("takes {} arguments, given {}", kernel.params.len(), args.len())));
    }
    for (i, (arg, &param)) in args.iter().zip(kernel.params).enumerate() {
        if !arg.is(param) {
            return Err(wrong(format!("argument {i} must be {param:?}, given {arg:?}")));
        }
        if let Arg::In(view, dtype) | Arg::Out(view, dtype) = arg {
            if view.address().card != card {
                return Err(wrong(format!(
                    "argument {i} lies on GPU {}, the stream is on {card}",
                    view.address().card
                )));
            }
            if view.bytes() % dtype.bytes() != 0 || view.address().raw % dtype.bytes() != 0 {
                return Err(wrong(format!("argument {i} is not whole, aligned elements of {dtype:?}")));
            }
        }
    }
    let raw: Vec<RawArg> = args.iter().map(Arg::raw).collect();
    match overlap(&raw) {
        Some((i, j)) => Err(wrong(format!("arguments {i} and {j} overlap, and one of them is written"))),
        None => Ok(raw),
    }
}

fn overlap(args: &[RawArg]) -> Option<(usize, usize)> {
    let span = |arg: &RawArg| match *arg {
        RawArg::Read { at, bytes } => Some((at.raw, at.raw + bytes, false)),
        RawArg::Write { at, bytes } => Some((at.raw, at.raw + bytes, true)),
        _ => None,
    };
    for (i, a) in args.iter().enumerate() {
        let Some((a_from, a_to, a_writes)) = span(a) else { continue };
        for (j, b) in args.iter().enumerate().skip(i + 1) {
            let Some((b_from, b_to, b_writes)) = span(b) else { continue };
            if (a_writes || b_writes) && a_from < b_to && b_from < a_to {
                return Some((i, j));
            }
        }
    }
    None
}

/// The arguments of a Rust host kernel: slices where the CUDA kernel has pointers.
pub struct HostArgs<'a> {
    pub(crate) args: Vec<HostArg<'a>>,
    pub(crate) grid: Grid,
    pub(crate) workers: &'a Workers,
}

pub(crate) enum HostArg<'a> {
    Read(&'a [u8]),
    Write(Option<&'a mut [u8]>),
    U32(u32),
    U64(u64),
    F32(f32),
}

impl<'a> HostArgs<'a> {
    /// The grid of the call, for host kernels whose result depends on it.
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// The threads a host kernel may spread its work over, in pieces whose number depends on the problem alone.
    pub fn workers(&self) -> &'a Workers {
        self.workers
    }

    /// The elements argument `i` reads.
    pub fn read<T: Element>(&self, i: usize) -> &'a [T] {
        match &self.args[i] {
            HostArg::Read(bytes) => bytemuck::cast_slice(bytes),
            _ => panic!("argument {i} is not memory to read"),
        }
    }

    /// The elements argument `i` writes; once per call.
    pub fn write<T: Element>(&mut self, i: usize) -> &'a mut [T] {
        match &mut self.args[i] {
            HostArg::Write(bytes) => match bytes.take() {
                Some(bytes) => bytemuck::cast_slice_mut(bytes),
                None => panic!("argument {i} was taken before"),
            },
            _ => panic!("argument {i} is not memory to write"),
        }
    }

    /// The number in argument `i`.
    pub fn u32(&self, i: usize) -> u32 {
        match self.args[i] {
            HostArg::U32(n) => n,
            _ => panic!("argument {i} is not a u32"),
        }
    }

    /// The number in argument `i`.
    pub fn u64(&self, i: usize) -> u64 {
        match self.args[i] {
            HostArg::U64(n) => n,
            _ => panic!("argument {i} is not a u64"),
        }
    }

    /// The number in argument `i`.
    pub fn f32(&self, i: usize) -> f32 {
        match self.args[i] {
            HostArg::F32(x) => x,
            _ => panic!("argument {i} is not an f32"),
        }
    }
}

#[cfg(test)]
mod tests;
