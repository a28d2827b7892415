//! Functions of the user that change texts and turn them into token ids. Decode threads call them, several at once.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyString;
use tandem_loader::{CustomTokenizer, TextMap};

/// `tokenizer=` and `map=` of a feed.
#[derive(Default)]
pub(crate) struct Functions {
    pub(crate) tokenizer: Option<Py<PyAny>>,
    pub(crate) map: Option<Py<PyAny>>,
}

/// The functions, for decode threads and for the garbage collector.
pub(crate) struct Callables {
    /// Empty after the garbage collector has taken a cycle apart.
    functions: Mutex<Functions>,
    /// Ctrl-C or `sys.exit()` in a function: no fault of the row. Nothing is called after it.
    interrupt: Mutex<Option<PyErr>>,
}

impl Callables {
    pub(crate) fn new(functions: Functions) -> Self {
        Self { functions: Mutex::new(functions), interrupt: Mutex::new(None) }
    }

    /// What interrupted a function since the last call: the loop raises it.
    pub(crate) fn take_interrupt(&self) -> Option<PyErr> {
        lock(&self.interrupt).take()
    }

    /// Shows the functions to the garbage collector: a tokenizer may refer to its feed.
    pub(crate) fn traverse(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let functions = match self.functions.try_lock() {
            Ok(functions) => functions,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // In use: what is not shown is not collected.
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        visit.call(&functions.tokenizer)?;
        visit.call(&functions.map)
    }

    /// Forgets the functions.
    pub(crate) fn clear(&self) {
        let functions = std::mem::take(&mut *lock(&self.functions));
        // After the lock: dropping them may run code of the user.
        drop(functions);
    }

    /// Calls one of the functions with a text and reads its result. An error is one of this row, with the type and the text of
    /// the exception, as the last line of a traceback has them.
    fn call<R>(
        &self,
        text: &str,
        choose: impl FnOnce(&Functions) -> &Option<Py<PyAny>>,
        read: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<R>,
    ) -> Result<R, String> {
        let called = Python::try_attach(|py| {
            let function = choose(&lock(&self.functions)).as_ref().map(|function| function.clone_ref(py));
            let Some(function) = function.filter(|_| lock(&self.interrupt).is_none()) else {
                return Err("the feed is being closed".to_owned());
            };
            let result = function.bind(py).call1((text,)).and_then(|result| read(&result));
            result.map_err(|error| {
                let kind = error.get_type(py).name().map_or_else(|_| "exception".to_owned(), |name| name.to_string());
                let message = format!("{kind}: {}", error.value(py));
                if !error.is_instance_of::<PyException>(py) {
                    lock(&self.interrupt).get_or_insert(error);
                }
                message
            })
        });
        called.unwrap_or_else(|| Err("Python is shutting down".to_owned()))
    }
}

impl CustomTokenizer for Callables {
    fn encode(&self, text: &str, _lang: Option<&str>) -> Result<Vec<i32>, String> {
        // Any iterable of integers: a list, a tuple, an array.
        let read = |ids: &Bound<'_, PyAny>| ids.try_iter()?.map(|id| id?.extract()).collect();
        self.call(text, |functions| &functions.tokenizer, read)
    }
}

impl TextMap for Callables {
    fn map(&self, text: &str, _lang: Option<&str>) -> Result<String, String> {
        let read = |mapped: &Bound<'_, PyAny>| match mapped.cast::<PyString>() {
            Ok(text) => Ok(text.to_cow()?.into_owned()),
            Err(_) => Err(PyTypeError::new_err(format!("map= returned {}, expected str", mapped.get_type().name()?))),
        };
        self.call(text, |functions| &functions.map, read)
    }
}

/// Held for a few instructions, in which no Python code runs.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
