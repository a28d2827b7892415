//! DLPack 1.x: the structures that libraries pass tensors in, and the capsules that Python passes them in.
//!
//! Written after the specification of DLPack and the array API's page on `__dlpack__`. A capsule owns its tensor until a
//! consumer renames it to `used_dltensor` (or `used_dltensor_versioned`); from then on the consumer calls the deleter, on any
//! thread and without the GIL. The deleter drops the owner of the memory, which is no Python object.
#![expect(unsafe_code, reason = "other libraries read these structures and call the deleter")]

use std::ffi::{CStr, c_void};
use std::ptr;

use pyo3::ffi;
use pyo3::prelude::*;

const LEGACY_NAME: &CStr = c"dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";
/// The fields of 1.0; later versions of 1.x have added device types and element types only.
const VERSION: DlVersion = DlVersion { major: 1, minor: 0 };
/// The consumer may write: the memory is its own until it calls the deleter.
const FLAGS: u64 = 0;

/// A device, as `DLDevice` has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DlDevice {
    pub(crate) device_type: i32,
    pub(crate) device_id: i32,
}

impl DlDevice {
    pub(crate) const CPU: Self = Self { device_type: 1, device_id: 0 };

    pub(crate) const fn cuda(device_id: i32) -> Self {
        Self { device_type: 2, device_id }
    }
}

/// An element type, as `DLDataType` has it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct DlType {
    code: u8,
    bits: u8,
    lanes: u16,
}

impl DlType {
    pub(crate) const BFLOAT16: Self = Self { code: 4, bits: 16, lanes: 1 };

    pub(crate) const fn signed(bits: u8) -> Self {
        Self { code: 0, bits, lanes: 1 }
    }

    pub(crate) const fn unsigned(bits: u8) -> Self {
        Self { code: 1, bits, lanes: 1 }
    }

    pub(crate) const fn float(bits: u8) -> Self {
        Self { code: 2, bits, lanes: 1 }
    }
}

/// `DLTensor`.
#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: DlDevice,
    num_dimensions: i32,
    element: DlType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`, before version 1.
#[repr(C)]
struct Legacy {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut Legacy),
}

/// `DLPackVersion`.
#[repr(C)]
struct DlVersion {
    major: u32,
    minor: u32,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    version: DlVersion,
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut Versioned),
    flags: u64,
    tensor: DlTensor,
}

/// Which structure a capsule holds.
#[derive(Clone, Copy)]
pub(crate) enum ManagedKind {
    Legacy,
    Versioned,
}

/// Where a tensor is, and how it lies there.
pub(crate) struct DlLayout {
    pub(crate) data: u64,
    pub(crate) device: DlDevice,
    pub(crate) element: DlType,
    pub(crate) shape: Vec<i64>,
    /// In elements.
    pub(crate) strides: Vec<i64>,
}

/// A structure, what it points to, and what keeps its memory: freed together by the deleter.
#[repr(C)]
struct Export<M, T> {
    managed: M,
    shape: Vec<i64>,
    strides: Vec<i64>,
    owner: T,
}

/// A capsule with the tensor of `layout`, whose memory is valid for as long as `owner` lives.
pub(crate) fn capsule<T: Send + 'static>(
    py: Python<'_>,
    layout: DlLayout,
    kind: ManagedKind,
    owner: T,
) -> PyResult<Bound<'_, PyAny>> {
    let DlLayout { data, device, element, mut shape, mut strides } = layout;
    let num_dimensions = shape.len().try_into()?;
    // DLPack: a tensor without elements has no address.
    let data = if shape.contains(&0) { ptr::null_mut() } else { ptr::without_provenance_mut(usize::try_from(data)?) };
    let (shape_pointer, strides_pointer) = (shape.as_mut_ptr(), strides.as_mut_ptr());
    let tensor = DlTensor {
        data,
        device,
        num_dimensions,
        element,
        shape: shape_pointer,
        strides: strides_pointer,
        byte_offset: 0,
    };
    let context = ptr::null_mut();
    match kind {
        ManagedKind::Legacy => {
            let managed = Legacy { tensor, context, deleter: delete::<Legacy, T> };
            wrap(py, Export { managed, shape, strides, owner }, LEGACY_NAME, free_legacy, delete::<Legacy, T>)
        }
        ManagedKind::Versioned => {
            let managed =
                Versioned { version: VERSION, context, deleter: delete::<Versioned, T>, flags: FLAGS, tensor };
            let export = Export { managed, shape, strides, owner };
            wrap(py, export, VERSIONED_NAME, free_versioned, delete::<Versioned, T>)
        }
    }
}

/// Moves an export into a new capsule.
fn wrap<'py, M, T>(
    py: Python<'py>,
    export: Export<M, T>,
    name: &'static CStr,
    destructor: ffi::PyCapsule_Destructor,
    deleter: unsafe extern "C" fn(*mut M),
) -> PyResult<Bound<'py, PyAny>> {
    let export: *mut Export<M, T> = Box::into_raw(Box::new(export));
    // SAFETY: the pointer is not null, the name is static, and the thread is attached (`py`). The result is a new reference,
    // or null with an exception.
    let capsule =
        unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(export.cast(), name.as_ptr(), Some(destructor))) };
    if capsule.is_err() {
        // SAFETY: no capsule has taken the export, so it is freed here, once.
        unsafe { deleter(export.cast()) };
    }
    capsule
}

/// Frees an export.
///
/// # Safety
///
/// `managed` came out of [`wrap`] with the same `M` and `T`, and is not used again.
unsafe extern "C" fn delete<M, T>(managed: *mut M) {
    // SAFETY: `managed` is the first field of a `repr(C)` export in a box (the caller's promise), and is freed once.
    drop(unsafe { Box::from_raw(managed.cast::<Export<M, T>>()) });
}

/// Frees the tensor of a capsule that nobody consumed.
///
/// # Safety
///
/// Python calls it with a capsule of [`wrap`], attached, when the last reference is gone.
unsafe extern "C" fn free_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is alive during its destructor, and a valid name has a pointer to `Legacy`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, LEGACY_NAME.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(capsule, LEGACY_NAME.as_ptr()).cast::<Legacy>();
            ((*managed).deleter)(managed);
        }
    }
}

/// As [`free_legacy`].
///
/// # Safety
///
/// As that of [`free_legacy`].
unsafe extern "C" fn free_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is alive during its destructor, and a valid name has a pointer to `Versioned`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED_NAME.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(capsule, VERSIONED_NAME.as_ptr()).cast::<Versioned>();
            ((*managed).deleter)(managed);
        }
    }
}
