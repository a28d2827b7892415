//! `Batch`: the tensors of one batch by name.

use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use tandem_loader::TensorBatch;

use crate::errors;
use crate::process::OfProcess;
use crate::tensor::PyTensor;

/// A mapping from names to tensors. The batch, and each tensor of it, keeps the slot of the batch.
#[pyclass(name = "Batch", module = "tandem", frozen, mapping)]
pub(crate) struct PyBatch(OfProcess<TensorBatch>);

impl PyBatch {
    pub(crate) fn new(batch: TensorBatch) -> Self {
        Self(OfProcess::new(batch))
    }

    fn find(&self, name: &str) -> PyResult<Option<PyTensor>> {
        let position = self.0.get()?.tensors().iter().position(|tensor| tensor.name == name);
        Ok(position.map(|position| PyTensor::new(self.0.clone(), position)))
    }
}

#[pymethods]
impl PyBatch {
    fn __getitem__(&self, name: &str) -> PyResult<PyTensor> {
        self.find(name)?.ok_or_else(|| PyKeyError::new_err(name.to_owned()))
    }

    fn __contains__(&self, name: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(match name.extract::<String>() {
            Ok(name) => self.find(&name)?.is_some(),
            Err(_) => false,
        })
    }

    fn __len__(&self) -> PyResult<usize> {
        Ok(self.0.get()?.tensors().len())
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyList::new(py, self.keys()?)?.try_iter()?.into_any())
    }

    /// The names of the tensors, in the order of the fields that were asked for.
    fn keys(&self) -> PyResult<Vec<&'static str>> {
        Ok(self.0.get()?.tensors().iter().map(|tensor| tensor.name).collect())
    }

    fn values(&self) -> PyResult<Vec<PyTensor>> {
        let tensors = 0..self.0.get()?.tensors().len();
        Ok(tensors.map(|position| PyTensor::new(self.0.clone(), position)).collect())
    }

    fn items(&self) -> PyResult<Vec<(&'static str, PyTensor)>> {
        Ok(self.keys()?.into_iter().zip(self.values()?).collect())
    }

    #[pyo3(signature = (name, default=None, /))]
    fn get(&self, py: Python<'_>, name: &str, default: Option<Py<PyAny>>) -> PyResult<Py<PyAny>> {
        match self.find(name)? {
            Some(tensor) => Ok(Py::new(py, tensor)?.into_any()),
            None => Ok(default.unwrap_or_else(|| py.None())),
        }
    }

    /// The ids of the rows.
    #[getter]
    fn ids(&self) -> PyResult<Vec<String>> {
        Ok(self.0.get()?.ids())
    }

    /// The texts of the rows.
    #[getter]
    fn texts(&self) -> PyResult<Vec<String>> {
        Ok(self.0.get()?.texts())
    }

    /// The epoch of the batch, from 0.
    #[getter]
    fn epoch(&self) -> PyResult<u64> {
        Ok(self.0.get()?.epoch())
    }

    /// The position of the batch in its epoch, from 0, over all ranks.
    #[getter]
    fn index(&self) -> PyResult<u64> {
        Ok(self.0.get()?.index())
    }

    /// The bucket of the batch: batches of a bucket have the same static shapes.
    #[getter]
    fn bucket(&self) -> PyResult<usize> {
        Ok(self.0.get()?.bucket())
    }

    /// Blocks until the batch is there: for readers that passed stream -1.
    fn synchronize(&self, py: Python<'_>) -> PyResult<()> {
        let batch = self.0.get()?;
        py.detach(|| batch.synchronize()).map_err(errors::to_python)
    }

    /// The slot is reused only after what is queued on this stream when the batch is released.
    #[pyo3(signature = (stream, /))]
    fn record_stream(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let (batch, stream) = (self.0.get()?, stream_pointer(stream)?);
        py.detach(|| batch.record_stream(stream)).map_err(errors::to_python)
    }

    fn __repr__(&self) -> PyResult<String> {
        let batch = self.0.get()?;
        let tensors = batch.tensors().iter().map(|tensor| format!("{}: {:?}", tensor.name, tensor.shape));
        let tensors = tensors.collect::<Vec<_>>().join(", ");
        Ok(format!("Batch(epoch={}, index={}, bucket={}, {tensors})", batch.epoch(), batch.index(), batch.bucket()))
    }
}

/// The `cudaStream_t` of an integer, of `torch.cuda.Stream`, `cupy.cuda.Stream`, or of an object with `__cuda_stream__`.
fn stream_pointer(stream: &Bound<'_, PyAny>) -> PyResult<u64> {
    if let Ok(pointer) = stream.extract() {
        return Ok(pointer);
    }
    if let Ok(protocol) = stream.call_method0("__cuda_stream__") {
        return protocol.extract::<(u64, u64)>().map(|(_version, pointer)| pointer);
    }
    for attribute in ["cuda_stream", "ptr"] {
        if let Ok(pointer) = stream.getattr(attribute) {
            return pointer.extract();
        }
    }
    let found = stream.get_type().name()?;
    Err(PyTypeError::new_err(format!("a stream is an integer pointer or a stream of PyTorch or CuPy, found {found}")))
}
