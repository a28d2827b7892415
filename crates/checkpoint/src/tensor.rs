//! A tensor in a file: name, element type, shape, bytes.

use std::fmt::{self, Display};

/// The element type of a tensor. Little-endian, row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit floating point.
    F32,
    /// bfloat16: the upper half of an f32.
    Bf16,
    /// 64-bit floating point.
    F64,
    /// 32-bit signed integers.
    I32,
    /// 64-bit unsigned integers.
    U64,
}

/// The description of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorSpec<'a> {
    /// Its name, unique in the file.
    pub name: &'a str,
    /// Its element type.
    pub dtype: Dtype,
    /// Its dimensions; empty for a scalar.
    pub shape: &'a [usize],
}

/// A tensor to write.
#[derive(Clone, Copy, Debug)]
pub struct TensorRef<'a> {
    /// Its name, unique in the file.
    pub name: &'a str,
    /// Its element type.
    pub dtype: Dtype,
    /// Its dimensions; empty for a scalar.
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

    pub(crate) fn to_safetensors(self) -> safetensors::Dtype {
        match self {
            Dtype::F32 => safetensors::Dtype::F32,
            Dtype::Bf16 => safetensors::Dtype::BF16,
            Dtype::F64 => safetensors::Dtype::F64,
            Dtype::I32 => safetensors::Dtype::I32,
            Dtype::U64 => safetensors::Dtype::U64,
        }
    }

    /// `None` for element types of the format that Tandem does not use.
    pub(crate) fn from_safetensors(dtype: safetensors::Dtype) -> Option<Dtype> {
        let all = [Dtype::F32, Dtype::Bf16, Dtype::F64, Dtype::I32, Dtype::U64];
        all.into_iter().find(|ours| ours.to_safetensors() == dtype)
    }
}

impl Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_safetensors().fmt(f)
    }
}

impl TensorSpec<'_> {
    /// Bytes of all elements.
    pub fn num_bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.num_bytes()
    }
}

impl<'a> TensorRef<'a> {
    /// Its description, without the bytes.
    pub fn spec(&self) -> TensorSpec<'a> {
        TensorSpec { name: self.name, dtype: self.dtype, shape: self.shape }
    }
}
