//! A loader that several threads of Python share, and the list of those that are open.
//!
//! The lock is taken only by threads that are detached from the interpreter: a thread that held the GIL while it waited for
//! the lock would block the tokenizer that the owner of the lock waits for.

use std::process;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tandem_loader::{Loader, LoaderError};

/// Loaders that are open, and whether the interpreter still takes new ones.
#[derive(Default)]
struct OpenLoaders {
    loaders: Vec<Weak<SharedLoader>>,
    is_shut_down: bool,
}

static OPEN: Mutex<OpenLoaders> = Mutex::new(OpenLoaders { loaders: Vec::new(), is_shut_down: false });
/// The process that imported the module: a forked child neither locks nor closes.
static IMPORTED_BY: OnceLock<u32> = OnceLock::new();

pub(crate) struct SharedLoader(Mutex<Loader>);

impl SharedLoader {
    /// Shares a loader. At the exit of the interpreter it is closed, so that no thread calls a tokenizer after that.
    pub(crate) fn new(py: Python<'_>, loader: Loader) -> PyResult<Arc<Self>> {
        let shared = Arc::new(Self(Mutex::new(loader)));
        let weak = Arc::downgrade(&shared);
        let is_shut_down = py.detach(move || {
            let mut open = lock(&OPEN);
            open.loaders.retain(|loader| loader.strong_count() > 0);
            open.loaders.push(weak);
            open.is_shut_down
        });
        if is_shut_down {
            shared.close(py).map_err(crate::errors::to_python)?;
            return Err(PyRuntimeError::new_err("Python is shutting down: no feed can be opened"));
        }
        Ok(shared)
    }

    /// Runs `work` with the loader, detached from the interpreter.
    pub(crate) fn with<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Loader) -> R + Send) -> R {
        py.detach(|| work(&mut lock(&self.0)))
    }

    /// Ends the threads of the loader and frees its memory. A second call does nothing.
    pub(crate) fn close(&self, py: Python<'_>) -> Result<(), LoaderError> {
        self.with(py, Loader::close)
    }
}

/// Remembers which process imports the module.
pub(crate) fn imported() {
    IMPORTED_BY.get_or_init(process::id);
}

/// Closes every open feed. Python calls it when the interpreter exits, before it stops running threads.
#[pyfunction]
pub(crate) fn close_all(py: Python<'_>) {
    if IMPORTED_BY.get() != Some(&process::id()) {
        return;
    }
    py.detach(|| {
        let open = {
            let mut open = lock(&OPEN);
            open.is_shut_down = true;
            std::mem::take(&mut open.loaders)
        };
        for loader in open.iter().filter_map(Weak::upgrade) {
            // The error was of the data or of the device; at exit there is nobody left to read it.
            let _ = lock(&loader.0).close();
        }
    });
}

/// A loader that panicked is still closed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
