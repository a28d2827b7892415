//! Errors of the loader as Python's exceptions. The message is the loader's.

use pyo3::PyErr;
use pyo3::exceptions::PyRuntimeError;
use tandem_loader::LoaderError;

pub(crate) fn to_python(error: LoaderError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}
