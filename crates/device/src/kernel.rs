//! Kernels: written in CUDA C++ and in Rust, with one declaration of their parameters.
//!
//! A [`Kernel`] is a static or a constant beside its maths. The CUDA text is compiled for the card at hand; the
//! Rust host kernel runs on the CPU and on simulated cards and is what the CUDA result is tested against.
//!
//! [`kernel_args!`](crate::kernel_args) declares the parameters once. The parameter list, the arguments of a launch and
//! the slices of the host kernel come from that declaration, and [`signature`] compares it with the CUDA text.

mod declare;
pub(crate) mod signature;

pub use declare::{ArgValue, KernelArgs};

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

/// A Rust type with the same representation on the host and on devices.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The type as a value.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),*) => { $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })* };
}
elements!(u8 => U8, i16 => I16, i32 => I32, u32 => U32, u64 => U64, f32 => F32, f64 => F64, half::bf16 => BF16);

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name in the CUDA signature.
    pub name: &'static str,
    /// Its type.
    pub kind: ParamKind,
}

/// The type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParamKind {
    /// A pointer that the kernel reads.
    In(DType),
    /// A pointer that the kernel writes, and may read.
    Out(DType),
    /// A 32-bit unsigned integer.
    U32,
    /// A 64-bit unsigned integer.
    U64,
    /// A float.
    F32,
}

impl std::fmt::Display for ParamKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ParamKind::In(dtype) => write!(f, "{dtype:?} memory to read"),
            ParamKind::Out(dtype) => write!(f, "{dtype:?} memory to write"),
            ParamKind::U32 => f.write_str("a u32"),
            ParamKind::U64 => f.write_str("a u64"),
            ParamKind::F32 => f.write_str("an f32"),
        }
    }
}

/// A CUDA source file. All kernels of a file are compiled together.
#[derive(Debug)]
pub struct Source {
    /// Its name, for messages and the cache.
    pub file: &'static str,
    /// Its text, without the prelude that is prepended.
    pub text: &'static str,
}

/// The Rust implementation of a kernel. Several threads may call it at once, each with its own arguments.
pub type HostKernel = &'static (dyn Fn(&mut HostArgs<'_>) + Send + Sync);

/// A kernel: its name and source, its parameters, and its Rust host kernel.
pub struct Kernel {
    /// The `extern "C" __global__` function in `source`.
    pub name: &'static str,
    /// The source that contains it.
    pub source: &'static Source,
    /// Its parameters, in the order of the CUDA signature: `XArgs::params()` of a [`kernel_args!`](crate::kernel_args)
    /// declaration.
    pub params: &'static [Param],
    /// The same maths on host memory. Its arguments have been checked against `params`.
    ///
    /// A reference to a function, or to a closure that holds the data of a kernel generated at run time.
    pub host: HostKernel,
}

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in {}", self.name, self.source.file)
    }
}

/// The launch configuration of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Blocks in x, y and z.
    pub blocks: [u32; 3],
    /// Threads of a block, in x.
    pub threads: u32,
    /// Bytes of dynamic shared memory per block.
    pub shared_bytes: u32,
}

impl Grid {
    /// One thread per item, `threads` per block.
    pub fn cover(items: u64, threads: u32) -> Grid {
        let blocks = items.div_ceil(u64::from(threads)).clamp(1, i32::MAX as u64) as u32;
        Grid { blocks: [blocks, 1, 1], threads, shared_bytes: 0 }
    }
}

/// A launch argument by position, with the element type of its memory.
#[derive(Clone, Copy, Debug)]
pub enum Arg<'a> {
    /// Memory that is read as elements of this type.
    In(View<'a>, DType),
    /// Memory that is written as elements of this type.
    Out(View<'a>, DType),
    /// A 32-bit number.
    U32(u32),
    /// A 64-bit number.
    U64(u64),
    /// A float.
    F32(f32),
}

impl Arg<'_> {
    fn kind(&self) -> ParamKind {
        match *self {
            Arg::In(_, dtype) => ParamKind::In(dtype),
            Arg::Out(_, dtype) => ParamKind::Out(dtype),
            Arg::U32(_) => ParamKind::U32,
            Arg::U64(_) => ParamKind::U64,
            Arg::F32(_) => ParamKind::F32,
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

/// Checks `args` against the parameters of `kernel`: number, kind, element type, whole elements, the right card, and
/// that nothing written overlaps anything else (the host kernel holds `&mut` to it).
pub(crate) fn check(kernel: &'static Kernel, card: usize, args: &[Arg<'_>]) -> Result<Vec<RawArg>, DeviceError> {
    let wrong = |problem: String| DeviceError::Arguments { kernel: kernel.name, problem };
    if args.len() != kernel.params.len() {
        return Err(wrong(format!("takes {} arguments, given {}", kernel.params.len(), args.len())));
    }
    for (arg, &Param { name, kind }) in args.iter().zip(kernel.params) {
        if arg.kind() != kind {
            return Err(wrong(format!("`{name}` is {kind}, given {}", arg.kind())));
        }
        if let Arg::In(view, dtype) | Arg::Out(view, dtype) = arg {
            let at = view.address();
            if at.card != card {
                return Err(wrong(format!("`{name}` is on GPU {}, the stream is on GPU {card}", at.card)));
            }
            if view.bytes() % dtype.bytes() != 0 || at.raw % dtype.bytes() != 0 {
                return Err(wrong(format!("`{name}` is not whole, aligned elements of {dtype:?}")));
            }
        }
    }
    let raw: Vec<RawArg> = args.iter().map(Arg::raw).collect();
    match overlap(&raw) {
        Some((i, j)) => {
            let [a, b] = [i, j].map(|i| kernel.params[i].name);
            Err(wrong(format!("`{a}` and `{b}` overlap, and one of them is written")))
        }
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

/// The arguments of a host kernel, not yet taken: a declaration's `host` turns them into slices and numbers.
///
/// They are taken in the order of the parameters, each by its name. Taking one by another name, or as another type, is
/// a mistake in the host kernel, and panics.
pub struct HostArgs<'a> {
    pub(crate) kernel: &'static Kernel,
    pub(crate) args: std::vec::IntoIter<HostArg<'a>>,
    pub(crate) workers: &'a Workers,
}

pub(crate) enum HostArg<'a> {
    Read(&'a [u8]),
    Write(&'a mut [u8]),
    U32(u32),
    U64(u64),
    F32(f32),
}

impl<'a> HostArgs<'a> {
    /// The threads that a host kernel may distribute its work over, in chunks whose number depends on the problem
    /// alone.
    pub fn workers(&self) -> &'a Workers {
        self.workers
    }

    /// The elements that parameter `name` reads.
    pub fn take_in<T: Element>(&mut self, name: &str) -> &'a [T] {
        match self.take(name, ParamKind::In(T::DTYPE)) {
            HostArg::Read(bytes) => bytemuck::cast_slice(bytes),
            _ => unreachable!("the kind was checked"),
        }
    }

    /// The elements that parameter `name` writes.
    pub fn take_out<T: Element>(&mut self, name: &str) -> &'a mut [T] {
        match self.take(name, ParamKind::Out(T::DTYPE)) {
            HostArg::Write(bytes) => bytemuck::cast_slice_mut(bytes),
            _ => unreachable!("the kind was checked"),
        }
    }

    /// The number that parameter `name` is.
    pub fn take_u32(&mut self, name: &str) -> u32 {
        match self.take(name, ParamKind::U32) {
            HostArg::U32(n) => n,
            _ => unreachable!("the kind was checked"),
        }
    }

    /// The number that parameter `name` is.
    pub fn take_u64(&mut self, name: &str) -> u64 {
        match self.take(name, ParamKind::U64) {
            HostArg::U64(n) => n,
            _ => unreachable!("the kind was checked"),
        }
    }

    /// The number that parameter `name` is.
    pub fn take_f32(&mut self, name: &str) -> f32 {
        match self.take(name, ParamKind::F32) {
            HostArg::F32(x) => x,
            _ => unreachable!("the kind was checked"),
        }
    }

    fn take(&mut self, name: &str, kind: ParamKind) -> HostArg<'a> {
        let params = self.kernel.params;
        let param = params.get(params.len() - self.args.len());
        let Some((param, arg)) = param.zip(self.args.next()) else {
            panic!("kernel {} has no parameter for the host kernel's `{name}`", self.kernel.name);
        };
        assert!(
            (param.name, param.kind) == (name, kind),
            "kernel {}: the host kernel takes `{name}` as {kind}, the next parameter is `{}`, {}",
            self.kernel.name,
            param.name,
            param.kind,
        );
        arg
    }
}

#[cfg(test)]
mod tests;
