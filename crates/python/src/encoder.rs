//! Callables of the user that turn a text into token ids. Decode threads call them, several at once.

use std::sync::{Mutex, PoisonError, TryLockError};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use tandem_loader::TextEncoder;

struct Callables {
    tokenizer: Py<PyAny>,
    map: Option<Py<PyAny>>,
}

/// `tokenizer(map(text))` as a [`TextEncoder`].
pub(crate) struct PyEncoder {
    /// None after the garbage collector has taken a cycle apart.
    callables: Mutex<Option<Callables>>,
}

impl PyEncoder {
    pub(crate) fn new(tokenizer: Py<PyAny>, map: Option<Py<PyAny>>) -> Self {
        Self { callables: Mutex::new(Some(Callables { tokenizer, map })) }
    }

    /// Shows the callables to the garbage collector: a tokenizer may refer to its feed.
    pub(crate) fn traverse(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let callables = match self.callables.try_lock() {
            Ok(callables) => callables,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // In use: what is not shown is not collected.
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        let Some(callables) = callables.as_ref() else { return Ok(()) };
        visit.call(&callables.tokenizer)?;
        visit.call(&callables.map)
    }

    /// Forgets the callables.
    pub(crate) fn clear(&self) {
        let callables = self.callables.lock().unwrap_or_else(PoisonError::into_inner).take();
        // After the lock: dropping them may run code of the user.
        drop(callables);
    }

    fn call(&self, py: Python<'_>, text: &str) -> PyResult<Vec<i32>> {
        let (tokenizer, map) = {
            let callables = self.callables.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(callables) = callables.as_ref() else { return Ok(Vec::new()) };
            (callables.tokenizer.clone_ref(py), callables.map.as_ref().map(|map| map.clone_ref(py)))
        };
        let ids = match map {
            Some(map) => tokenizer.bind(py).call1((map.bind(py).call1((text,))?,))?,
            None => tokenizer.bind(py).call1((text,))?,
        };
        // Any iterable of integers: a list, a tuple, an array.
        ids.try_iter()?.map(|id| id?.extract()).collect()
    }
}

impl TextEncoder for PyEncoder {
    fn encode(&self, text: &str, _lang: Option<&str>) -> Result<Vec<i32>, String> {
        let ids = Python::try_attach(|py| self.call(py, text).map_err(|error| describe(py, &error)));
        ids.unwrap_or_else(|| Err("Python is shutting down".to_owned()))
    }
}

/// The type and the text of an exception, as the last line of a traceback has them.
fn describe(py: Python<'_>, error: &PyErr) -> String {
    let name = error.get_type(py).name().map_or_else(|_| "exception".to_owned(), |name| name.to_string());
    format!("{name}: {}", error.value(py))
}
