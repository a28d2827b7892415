//! A tensor as files know it: a name, a type of elements, a shape, bytes.

use std::fmt::{self, Display};

/// What a tensor is made of. Little-endian, rows last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit floating point.
    F32,
    /// Its upper half.
    Bf16,
    /// 64-bit floating point.
    F64,
    /// 32-bit signed integers.
    I32,
    /// 64-bit unsigned integers.
    U64,
}

/// What a tensor should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorSpec<'a> {
    /// Its name, once in a file.
    pub name: &'a str,
    /// Its elements.
    pub dtype: Dtype,
    /// Its dimensions; none for a single number.
    pub shape: &'a [usize],
}

/// A tensor that is to be written.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'a> {
    /// Its name, once in a file.
    pub name: &'a str,
    /// Its elements.
    pub dtype: Dtype,
    /// Its dimensions; none for a single number.
    pub shape: &'a [usize],
    /// All elements, as many as the shape says.
    pub bytes: &'a [u8],
}

impl Dtype {
    /// Bytes of one element.
    pub fn num_bytes(self) -> usize {
        match self {
            Dtype::Bf16 => 2,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::F64 | Dtype::U64 => 8,
        }
    }

    pub(super) fn in_file(self) -> safetensors::Dtype {
        match self {
            Dtype::F32 => safetensors::Dtype::F32,
            Dtype::Bf16 => safetensors::Dtype::BF16,
            Dtype::F64 => safetensors::Dtype::F64,
            Dtype::I32 => safetensors::Dtype::I32,
            Dtype::U64 => safetensors::Dtype::U64,
        }
    }

    /// `None` for what the format has and we do not use.
    pub(super) fn from_file(dtype: safetensors::Dtype) -> Option<Dtype> {
        [Dtype::F32, Dtype::Bf16, Dtype::F64, Dtype::I32, Dtype::U64].into_iter().find(|ours| ours.in_file() == dtype)
    }
}

impl Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.in_file().fmt(f)
    }
}

impl TensorSpec<'_> {
    /// Bytes of all elements.
    pub fn num_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.num_bytes()
    }
}

impl<'a> TensorRef<'a> {
    /// What it is, without its bytes.
    pub fn spec(&self) -> TensorSpec<'a> {
        TensorSpec { name: self.name, dtype: self.dtype, shape: self.shape }
    }
}
