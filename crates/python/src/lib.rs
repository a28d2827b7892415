//! The Python module `tandem._native`: batches of [`tandem_loader`] as DLPack tensors.
//!
//! ```text
//!   Feed(source, ...) -> for batch in feed -> batch["mel"] -> Tensor.__dlpack__() -> numpy, JAX, PyTorch
//! ```
//!
//! This crate converts arguments, waits without the GIL and passes memory on. It decides nothing about data: what a feed
//! does is in `tandem-loader`.
//!
//! `unsafe` is in `dlpack` only, which fills C structures that other libraries read and free.

mod errors;

// Python's values to JSON and back.
mod json;

// Arguments to a loader.
mod arguments;
mod callables;

// A value that belongs to one process.
mod process;

// A loader that several threads of Python share, and the list of those that are open.
mod shared;

// The classes.
mod feed;
mod batch;
mod tensor;
mod dlpack;

use pyo3::pymodule;

/// Functions and classes in Rust. `tandem` is the module to import.
#[pymodule(name = "_native", gil_used = false)]
mod native {
    use pyo3::prelude::*;
    use pyo3::types::PyDict;

    #[pymodule_export]
    use crate::batch::PyBatch;
    #[pymodule_export]
    use crate::feed::{FeedIterator, PyFeed};
    #[pymodule_export]
    use crate::tensor::PyTensor;

    use crate::arguments::Arguments;
    use crate::{errors, json, shared};

    /// What a feed with these arguments would take and do, as a dict. Opens no device and decodes nothing.
    #[pyfunction]
    #[pyo3(
        signature = (source, **options),
        text_signature = "(source, *, device=None, data_device=None, batch_size=None, buckets=None, \
            static_shapes=None, fields=None, features=None, channels_first=None, text=None, tokenizer=None, \
            map=None, max_frames=None, max_tokens=None, limits=None, prefetch=None, held=None, workers=None, \
            rank=None, world_size=None, seed=None, split=None, split_seed=None, endless=None, cache=None, cache_dir=None, \
            exclude_ids=None, columns=None, speaker_id_pattern=None, read_ahead_mb=None, max_bad_fraction=None, \
            verify_transfers=None, log_dir=None, tensorboard_dir=None, sim=None)"
    )]
    fn plan(py: Python<'_>, source: &Bound<'_, PyAny>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Py<PyAny>> {
        let (options, _) = Arguments::read(source, options)?.into_options()?;
        let plan = py.detach(|| tandem_loader::plan(&options)).map_err(errors::to_python)?;
        json::to_python(py, &plan)
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let py = module.py();
        shared::imported();
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        let mapping = py.import("collections.abc")?.getattr("Mapping")?;
        mapping.call_method1("register", (py.get_type::<PyBatch>(),))?;
        let close_all = wrap_pyfunction!(shared::close_all, module)?;
        py.import("atexit")?.call_method1("register", (close_all,))?;
        Ok(())
    }
}
