//! `Tensor`: one field of a batch, for any library that speaks DLPack.

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tandem_loader::{ConsumerStream, DType, TensorBatch, TensorDevice, TensorInfo};

use crate::dlpack::{self, DlDevice, DlLayout, DlType, ManagedKind};
use crate::errors;
use crate::process::OfProcess;

/// Memory of a batch. It is yours until the last tensor of the batch, and everything made from one, is gone.
#[pyclass(name = "Tensor", module = "tandem", frozen)]
pub(crate) struct PyTensor {
    batch: OfProcess<TensorBatch>,
    position: usize,
}

impl PyTensor {
    pub(crate) fn new(batch: OfProcess<TensorBatch>, position: usize) -> Self {
        Self { batch, position }
    }

    fn info(&self) -> PyResult<&TensorInfo> {
        Ok(&self.batch.get()?.tensors()[self.position])
    }

    fn dl_device(&self) -> PyResult<DlDevice> {
        Ok(match self.batch.get()?.device() {
            TensorDevice::Cpu => DlDevice::CPU,
            TensorDevice::Cuda(ordinal) => DlDevice::cuda(ordinal),
        })
    }
}

#[pymethods]
impl PyTensor {
    /// The field's name.
    #[getter]
    fn name(&self) -> PyResult<&'static str> {
        Ok(self.info()?.name)
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.info()?.shape)
    }

    /// Elements, not bytes, from one position of a dimension to the next.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.info()?.strides)
    }

    /// The type as numpy and PyTorch name it.
    #[getter]
    fn dtype(&self) -> PyResult<&'static str> {
        Ok(types(self.info()?.dtype).0)
    }

    /// `cpu`, or `cuda:0`.
    #[getter]
    fn device(&self) -> PyResult<String> {
        Ok(match self.batch.get()?.device() {
            TensorDevice::Cpu => "cpu".to_owned(),
            TensorDevice::Cuda(ordinal) => format!("cuda:{ordinal}"),
        })
    }

    fn __dlpack_device__(&self) -> PyResult<(i32, i32)> {
        let device = self.dl_device()?;
        Ok((device.device_type, device.device_id))
    }

    /// A capsule with this memory. `stream` is the stream that reads it: it waits for the batch, and the host does not.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let batch = self.batch.get()?;
        let device = self.dl_device()?;
        if copy == Some(true) {
            return Err(PyBufferError::new_err(
                "a tensor of a batch is exported without a copy; copy it after from_dlpack, for example with clone()",
            ));
        }
        if let Some(asked) = dl_device.filter(|asked| *asked != (device.device_type, device.device_id)) {
            let has = (device.device_type, device.device_id);
            return Err(PyBufferError::new_err(format!(
                "the tensor is on {} (DLPack device {has:?}) and is not copied to DLPack device {asked:?}; \
                 open the feed with device= of that device",
                self.device()?
            )));
        }
        let stream = ConsumerStream::from_dlpack(batch.device(), stream).map_err(PyValueError::new_err)?;
        py.detach(|| batch.read_on(stream)).map_err(errors::to_python)?;
        let info = self.info()?;
        let layout = DlLayout {
            data: batch.pointer(self.position),
            device,
            element: types(info.dtype).1,
            shape: info.shape.clone(),
            strides: info.strides.clone(),
        };
        let kind = match max_version {
            Some((1.., _)) => ManagedKind::Versioned,
            _ => ManagedKind::Legacy,
        };
        dlpack::capsule(py, layout, kind, self.batch.clone())
    }

    fn __repr__(&self) -> PyResult<String> {
        let info = self.info()?;
        let (name, shape, dtype) = (info.name, &info.shape, self.dtype()?);
        Ok(format!("Tensor({name}, shape={shape:?}, dtype={dtype}, device={})", self.device()?))
    }
}

/// The name of a type, and what DLPack calls it.
fn types(dtype: DType) -> (&'static str, DlType) {
    match dtype {
        DType::U8 => ("uint8", DlType::unsigned(8)),
        DType::I16 => ("int16", DlType::signed(16)),
        DType::I32 => ("int32", DlType::signed(32)),
        DType::U32 => ("uint32", DlType::unsigned(32)),
        DType::U64 => ("uint64", DlType::unsigned(64)),
        DType::F32 => ("float32", DlType::float(32)),
        DType::F64 => ("float64", DlType::float(64)),
        DType::BF16 => ("bfloat16", DlType::BFLOAT16),
    }
}
