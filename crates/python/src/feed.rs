//! `Feed` and its iterator.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tandem_loader::{Loader, LoaderError, Next};

use crate::arguments::Arguments;
use crate::batch::PyBatch;
use crate::callables::Callables;
use crate::process::OfProcess;
use crate::shared::SharedLoader;
use crate::{errors, json};

/// The longest wait without a look at Python's signals: Ctrl-C takes effect after this time at most.
const LONGEST_WAIT: Duration = Duration::from_millis(50);
/// The logger that gets what a feed reports while it runs.
const LOGGER: &str = "tandem";

/// The batches of a corpus. The package's `Feed` is this class, with a finalizer.
#[pyclass(name = "Feed", module = "tandem._native", subclass, frozen, weakref)]
pub(crate) struct PyFeed {
    loader: OfProcess<Arc<SharedLoader>>,
    callables: Option<OfProcess<Arc<Callables>>>,
}

#[pymethods]
impl PyFeed {
    #[new]
    #[pyo3(
        signature = (source, **options),
        text_signature = "(source, *, device=None, data_device=None, batch_size=None, buckets=None, \
            static_shapes=None, fields=None, features=None, channels_first=None, text=None, tokenizer=None, \
            map=None, max_frames=None, max_tokens=None, limits=None, prefetch=None, held=None, workers=None, \
            rank=None, world_size=None, seed=None, split=None, split_seed=None, endless=None, cache=None, cache_dir=None, \
            exclude_ids=None, columns=None, speaker_id_pattern=None, read_ahead_mb=None, max_bad_fraction=None, \
            verify_transfers=None, log_dir=None, tensorboard_dir=None, sim=None)"
    )]
    fn new(py: Python<'_>, source: &Bound<'_, PyAny>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let (options, callables) = Arguments::read(source, options)?.into_options()?;
        let mut signal = None;
        let loader = py.detach(|| {
            // Measuring a large corpus for the first time takes minutes.
            let mut watch = || match Python::attach(|py| py.check_signals()) {
                Ok(()) => ControlFlow::Continue(()),
                Err(raised) => {
                    signal = Some(raised);
                    ControlFlow::Break(())
                }
            };
            Loader::open_watched(options, &mut watch)
        });
        signal.map_or(Ok(()), Err)?;
        raise_interrupt(callables.as_deref())?;
        let loader = loader.map_err(errors::to_python)?;
        let feed =
            Self { loader: OfProcess::new(SharedLoader::new(py, loader)?), callables: callables.map(OfProcess::new) };
        feed.log_messages(py)?;
        Ok(feed)
    }

    fn __iter__(feed: Bound<'_, Self>) -> PyResult<FeedIterator> {
        feed.get().loader.get()?;
        Ok(FeedIterator { feed: feed.unbind(), has_begun: AtomicBool::new(false), has_ended: AtomicBool::new(false) })
    }

    /// The number of batches of the current epoch, on this rank.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let batches = self.with(py, |loader| loader.batches_per_epoch())?;
        Ok(batches.try_into()?)
    }

    /// The current epoch, from 0: the next one begins when a loop has reached the end of this one.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |loader| loader.epoch())
    }

    /// The names of the speakers; `speaker` holds positions in this list.
    #[getter]
    fn speakers(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with(py, |loader| loader.speakers())
    }

    /// The tags of the languages; `language` holds positions in this list.
    #[getter]
    fn languages(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with(py, |loader| loader.languages())
    }

    /// The symbols of the text; `text` holds positions in this list. Empty with a tokenizer of the user.
    #[getter]
    fn symbols(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with(py, |loader| loader.symbols())
    }

    /// Where the feed is, as a dict that JSON and pickle can hold.
    fn state_dict(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let state = self.with(py, |loader| loader.state())?.map_err(errors::to_python)?;
        json::to_python(py, &state)
    }

    /// Resumes where `state_dict` was called. The next batches are the same bytes, also with another number of ranks.
    #[pyo3(signature = (state_dict, /))]
    fn load_state_dict(&self, py: Python<'_>, state_dict: &Bound<'_, PyAny>) -> PyResult<()> {
        let state = json::from_python(state_dict, "state_dict")?;
        self.with(py, |loader| loader.restore(&state))?.map_err(errors::to_python)
    }

    /// Counters since the start.
    fn stats(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let stats = self.with(py, |loader| loader.stats())?.map_err(errors::to_python)?;
        json::to_python(py, &stats)
    }

    /// The bottleneck, and what would remove it.
    fn profile(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let profile = self.with(py, |loader| loader.profile())?.map_err(errors::to_python)?;
        json::to_python(py, &profile)
    }

    /// What the feed takes: memory, slots, threads, shapes.
    fn plan(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let plan = self.with(py, |loader| loader.plan())?;
        json::to_python(py, &plan)
    }

    /// Ends the threads and frees the memory, except that of tensors which are still in use. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.loader.get()?.close(py).map_err(errors::to_python)?;
        self.log_messages(py)
    }

    fn __enter__(feed: Bound<'_, Self>) -> Bound<'_, Self> {
        feed
    }

    /// Closes the feed. An exception of the block is the one to show: closing a feed that failed fails with the same error.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let closed = self.close(py);
        if kind.is_none() { closed } else { Ok(()) }
    }

    /// Closes the feed before the garbage collector takes it apart. In a forked child it does nothing.
    fn _finalize(&self, py: Python<'_>) {
        if let Some(loader) = self.loader.get_here() {
            // Nobody is left to handle the error.
            let _ = loader.close(py);
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self.callables.as_ref().and_then(OfProcess::get_here) {
            Some(callables) => callables.traverse(visit),
            None => Ok(()),
        }
    }

    fn __clear__(&self) {
        if let Some(callables) = self.callables.as_ref().and_then(OfProcess::get_here) {
            callables.clear();
        }
    }
}

impl PyFeed {
    fn with<R: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Loader) -> R + Send) -> PyResult<R> {
        Ok(self.loader.get()?.with(py, work))
    }

    /// Waits for the next batch without the GIL, and looks for signals and messages meanwhile.
    fn next(&self, py: Python<'_>) -> PyResult<Option<PyBatch>> {
        loop {
            let (next, messages) = self.with(py, |loader| (loader.next_batch(LONGEST_WAIT), loader.take_messages()))?;
            log(py, &messages)?;
            raise_interrupt(self.callables.as_ref().and_then(OfProcess::get_here).map(Arc::as_ref))?;
            match next.map_err(errors::to_python)? {
                Next::Batch(batch) => return Ok(Some(PyBatch::new(batch))),
                Next::EpochEnd => return Ok(None),
                Next::NotReady => py.check_signals()?,
            }
        }
    }

    fn log_messages(&self, py: Python<'_>) -> PyResult<()> {
        let messages = self.with(py, |loader| loader.take_messages())?;
        log(py, &messages)
    }
}

impl Drop for PyFeed {
    /// Threads that end may be in a tokenizer, which needs the GIL: they are joined without it.
    fn drop(&mut self) {
        let Some(loader) = self.loader.get_here() else { return };
        let close = |py: Python<'_>| loader.close(py);
        let _: Option<Result<(), LoaderError>> = Python::try_attach(close);
    }
}

/// Ctrl-C in a tokenizer is for the loop.
fn raise_interrupt(callables: Option<&Callables>) -> PyResult<()> {
    callables.and_then(Callables::take_interrupt).map_or(Ok(()), Err)
}

/// Python's `logging` gets the messages: without configuration, warnings go to standard error.
fn log(py: Python<'_>, messages: &[String]) -> PyResult<()> {
    if messages.is_empty() {
        return Ok(());
    }
    let logger = py.import("logging")?.call_method1("getLogger", (LOGGER,))?;
    for message in messages {
        logger.call_method1("warning", ("%s", message))?;
    }
    Ok(())
}

/// The batches that are left of an epoch.
#[pyclass(module = "tandem._native", frozen)]
pub(crate) struct FeedIterator {
    feed: Py<PyFeed>,
    has_begun: AtomicBool,
    has_ended: AtomicBool,
}

#[pymethods]
impl FeedIterator {
    fn __iter__(iterator: Bound<'_, Self>) -> Bound<'_, Self> {
        iterator
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PyBatch>> {
        if self.has_ended.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut batch = self.feed.get().next(py)?;
        let is_first = !self.has_begun.swap(true, Ordering::Relaxed);
        if batch.is_none() && is_first {
            // The loop before this one left after the last batch, and did not ask for the end of its epoch.
            batch = self.feed.get().next(py)?;
        }
        self.has_ended.store(batch.is_none(), Ordering::Relaxed);
        Ok(batch)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.feed)
    }
}
