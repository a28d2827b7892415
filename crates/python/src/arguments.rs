//! Keyword arguments to the options of a loader.

use std::env;
use std::sync::Arc;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Map, Value};
use tandem_loader::LoaderOptions;

use crate::callables::{Callables, Functions};
use crate::{errors, json};

/// The arguments of `Feed` and `plan`.
pub(crate) struct Arguments {
    options: Map<String, Value>,
    functions: Functions,
}

impl Arguments {
    /// Reads the arguments. One that is `None` has its default.
    pub(crate) fn read(source: &Bound<'_, PyAny>, named: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut arguments = Self { options: Map::new(), functions: Functions::default() };
        arguments.options.insert("source".to_owned(), json::from_python(source, "source")?);
        for (name, value) in named.into_iter().flatten() {
            let name: String = name.extract()?;
            if value.is_none() {
                continue;
            }
            match name.as_str() {
                "tokenizer" => arguments.functions.tokenizer = Some(callable(&name, value)?),
                "map" => arguments.functions.map = Some(callable(&name, value)?),
                _ => {
                    let value = json::from_python(&value, &name)?;
                    arguments.options.insert(name, value);
                }
            }
        }
        arguments.add_ranks_of_launcher()?;
        Ok(arguments)
    }

    /// The options of the loader, and the functions that it calls.
    pub(crate) fn into_options(self) -> PyResult<(LoaderOptions, Option<Arc<Callables>>)> {
        let mut options = LoaderOptions::from_json(&Value::Object(self.options)).map_err(errors::to_python)?;
        let (has_tokenizer, has_map) = (self.functions.tokenizer.is_some(), self.functions.map.is_some());
        let callables = Arc::new(Callables::new(self.functions));
        if has_tokenizer {
            options = options.with_tokenizer(callables.clone());
        }
        if has_map {
            options = options.with_text_map(callables.clone());
        }
        Ok((options, (has_tokenizer || has_map).then_some(callables)))
    }

    /// torchrun and other launchers set RANK and WORLD_SIZE. Arguments win.
    fn add_ranks_of_launcher(&mut self) -> PyResult<()> {
        if self.options.contains_key("rank") || self.options.contains_key("world_size") {
            return Ok(());
        }
        let (Some(rank), Some(world_size)) = (env::var_os("RANK"), env::var_os("WORLD_SIZE")) else { return Ok(()) };
        for (name, variable, text) in [("rank", "RANK", rank), ("world_size", "WORLD_SIZE", world_size)] {
            let number = text.to_str().and_then(|text| text.parse::<u32>().ok());
            let number = number.ok_or_else(|| {
                PyValueError::new_err(format!("the environment variable {variable} is not a number: {text:?}"))
            })?;
            self.options.insert(name.to_owned(), number.into());
        }
        Ok(())
    }
}

fn callable(name: &str, value: Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
    if value.is_callable() {
        return Ok(value.unbind());
    }
    let found = value.get_type().name()?;
    Err(PyTypeError::new_err(format!("{name}= is a function of a str, found {found}")))
}
