//! Tensor types: up to five dimensions and an element type. Tensors are dense and row-major (the last dimension is
//! contiguous).

use std::fmt;

use tandem_device::DType;

/// Maximum rank of a tensor.
pub const MAX_RANK: usize = 5;

/// The dimensions of a tensor, outermost first. A scalar is `[1]`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [u32; MAX_RANK],
    rank: u8,
}

/// A shape and an element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// The dimensions.
    pub shape: Shape,
}

impl Shape {
    /// A shape. Panics above five dimensions: that is a bug in a model, not in data.
    pub fn new(dims: &[u32]) -> Shape {
        assert!((1..=MAX_RANK).contains(&dims.len()), "a tensor has 1 to {MAX_RANK} dimensions, not {}", dims.len());
        let mut all = [1; MAX_RANK];
        all[..dims.len()].copy_from_slice(dims);
        Shape { dims: all, rank: dims.len() as u8 }
    }

    /// A scalar: `[1]`.
    pub fn scalar() -> Shape {
        Shape::new(&[1])
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[u32] {
        &self.dims[..usize::from(self.rank)]
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        usize::from(self.rank)
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.dims().iter().map(|&dim| u64::from(dim)).product()
    }

    /// The innermost dimension.
    pub fn last(&self) -> u32 {
        self.dims[usize::from(self.rank) - 1]
    }

    /// The number of rows: all dimensions but the innermost, multiplied.
    pub fn rows(&self) -> u32 {
        self.dims[..usize::from(self.rank) - 1].iter().product()
    }

    /// The same shape with another innermost dimension.
    pub fn with_last(&self, last: u32) -> Shape {
        let mut shape = *self;
        shape.dims[usize::from(self.rank) - 1] = last;
        shape
    }
}

impl TensorType {
    /// A type.
    pub fn new(dtype: DType, dims: &[u32]) -> TensorType {
        TensorType { dtype, shape: Shape::new(dims) }
    }

    /// Bytes of its elements.
    pub fn bytes(&self) -> u64 {
        self.shape.elements() * self.dtype.bytes()
    }

    /// The same shape in another element type.
    pub fn of(self, dtype: DType) -> TensorType {
        TensorType { dtype, ..self }
    }
}

/// The accumulator type of `dtype`: f32 for bf16, else the type itself.
pub fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::BF16 => DType::F32,
        other => other,
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{}", self.dtype, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_knows_its_rows_and_elements() {
        let shape = Shape::new(&[2, 3, 5]);
        assert_eq!((shape.elements(), shape.rows(), shape.last(), shape.rank()), (30, 6, 5, 3));
        assert_eq!(shape.with_last(1).dims(), [2, 3, 1]);
        assert_eq!(TensorType::new(DType::BF16, &[7]).bytes(), 14);
        assert_eq!(TensorType { dtype: DType::F32, shape }.to_string(), "F32[2, 3, 5]");
        assert_eq!(Shape::scalar().rows(), 1);
    }
}
