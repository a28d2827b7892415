//! Values that the host gives to a run, and results that it gets.

use tandem_device::Element;

use crate::error::EngineError;
use crate::program::NamedLayout;
use crate::tensor::TensorType;

/// The elements of a host value.
#[derive(Clone, Copy, Debug)]
pub enum HostValue<'a> {
    /// Floating-point numbers.
    F32(&'a [f32]),
    /// Floating-point numbers, in gradient checks.
    F64(&'a [f64]),
    /// Integers.
    I32(&'a [i32]),
    /// Integers.
    U32(&'a [u32]),
}

impl HostValue<'_> {
    pub(super) fn bytes(&self, name: &str, ty: TensorType) -> Result<&[u8], EngineError> {
        match self {
            HostValue::F32(x) => check_type::<f32>("host value", name, ty, x.len()).map(|()| bytemuck::cast_slice(x)),
            HostValue::F64(x) => check_type::<f64>("host value", name, ty, x.len()).map(|()| bytemuck::cast_slice(x)),
            HostValue::I32(x) => check_type::<i32>("host value", name, ty, x.len()).map(|()| bytemuck::cast_slice(x)),
            HostValue::U32(x) => check_type::<u32>("host value", name, ty, x.len()).map(|()| bytemuck::cast_slice(x)),
        }
    }
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Results {
    layout: NamedLayout,
    bytes: Vec<u8>,
}

impl Results {
    pub(super) fn new(layout: NamedLayout, bytes: Vec<u8>) -> Results {
        Results { layout, bytes }
    }

    /// The elements of a result.
    pub fn get<T: Element>(&self, name: &str) -> Result<Vec<T>, EngineError> {
        let field = self.layout.find("result", name)?;
        let elements = field.ty.shape.elements() as usize;
        check_type::<T>("result", name, field.ty, elements)?;
        let bytes = &self.bytes[field.offset as usize..][..field.ty.bytes() as usize];
        Ok(bytemuck::pod_collect_to_vec(bytes))
    }
}

/// Fails unless `count` elements of `T` are a tensor of type `ty`.
pub(super) fn check_type<T: Element>(
    what: &'static str,
    name: &str,
    ty: TensorType,
    count: usize,
) -> Result<(), EngineError> {
    if ty.dtype == T::DTYPE && ty.shape.elements() == count as u64 {
        return Ok(());
    }
    let found = format!("{count} elements of {:?}", T::DTYPE);
    Err(EngineError::Mismatch { what, name: name.to_owned(), expected: ty, found })
}
