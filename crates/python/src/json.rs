//! Python's values to JSON and back.

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde_json::{Map, Number, Value};

/// A value as JSON. `name` is the argument that it came in.
pub(crate) fn from_python(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Value> {
    if value.is_none() {
        Ok(Value::Null)
    } else if let Ok(value) = value.cast::<PyBool>() {
        Ok(Value::Bool(value.is_true()))
    } else if let Ok(text) = value.cast::<PyString>() {
        Ok(Value::String(text.to_cow()?.into_owned()))
    } else if let Ok(number) = value.cast::<PyInt>() {
        from_int(number, name)
    } else if let Ok(number) = value.cast::<PyFloat>() {
        let number = Number::from_f64(number.value());
        number.map(Value::Number).ok_or_else(|| PyValueError::new_err(format!("{name}= is not a finite number")))
    } else if let Ok(entries) = value.cast::<PyDict>() {
        let entries = entries.iter().map(|(key, value)| {
            let key: String = key.extract()?;
            let value = from_python(&value, &format!("{name}[{key:?}]"))?;
            Ok((key, value))
        });
        entries.collect::<PyResult<Map<_, _>>>().map(Value::Object)
    } else if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        value.try_iter()?.map(|item| from_python(&item?, name)).collect::<PyResult<_>>().map(Value::Array)
    } else if let Ok(path) = value.call_method0("__fspath__") {
        from_python(&path, name)
    } else if let Ok(number) = value.call_method0("__index__") {
        // Integers of numpy.
        from_int(number.cast()?, name)
    } else {
        let found = value.get_type().name()?;
        Err(PyTypeError::new_err(format!("{name}= has a value of type {found}, which no option takes")))
    }
}

fn from_int(number: &Bound<'_, PyInt>, name: &str) -> PyResult<Value> {
    let number = number.extract::<u64>().map(Value::from).or_else(|_| number.extract::<i64>().map(Value::from));
    number.map_err(|_| PyValueError::new_err(format!("{name}= does not fit into 64 bits")))
}

/// JSON as dicts, lists, strings and numbers.
pub(crate) fn to_python(py: Python<'_>, value: &Value) -> PyResult<Py<PyAny>> {
    match value {
        Value::Null => Ok(py.None()),
        Value::Bool(value) => value.into_py_any(py),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number.into_py_any(py),
            (None, Some(number)) => number.into_py_any(py),
            (None, None) => number.as_f64().into_py_any(py),
        },
        Value::String(text) => text.into_py_any(py),
        Value::Array(items) => {
            let items = items.iter().map(|item| to_python(py, item)).collect::<PyResult<Vec<_>>>()?;
            PyList::new(py, items)?.into_py_any(py)
        }
        Value::Object(entries) => {
            let dict = PyDict::new(py);
            for (key, value) in entries {
                dict.set_item(key, to_python(py, value)?)?;
            }
            dict.into_py_any(py)
        }
    }
}
