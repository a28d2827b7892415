//! The tensors of a file compared with those a model expects: every difference, not only the first.

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Display};

use crate::tensor::{Dtype, TensorSpec};
use crate::tensor_file::StoredTensor;

/// A difference between the tensors of a file and those that were expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The file lacks a tensor.
    Missing {
        /// Its name.
        name: String,
        /// The expected element type.
        dtype: Dtype,
        /// The expected shape.
        shape: Vec<usize>,
    },
    /// The file has a tensor that was not expected.
    Unexpected {
        /// Its name.
        name: String,
        /// Its element type, by the name in the file.
        dtype: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The element types differ.
    Dtype {
        /// Its name.
        name: String,
        /// The expected element type.
        expected: Dtype,
        /// The element type in the file, by its name there.
        found: String,
    },
    /// The shapes differ.
    Shape {
        /// Its name.
        name: String,
        /// The expected shape.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
}

impl Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mismatch::Missing { name, dtype, shape } => write!(f, "`{name}` {dtype} {shape:?} is missing"),
            Mismatch::Unexpected { name, dtype, shape } => write!(f, "`{name}` {dtype} {shape:?} was not expected"),
            Mismatch::Dtype { name, expected, found } => write!(f, "`{name}`: expected {expected}, found {found}"),
            Mismatch::Shape { name, expected, found } => write!(f, "`{name}`: expected {expected:?}, found {found:?}"),
        }
    }
}

/// The expected tensors that are missing or different, in their order.
pub(crate) fn missing_or_different(
    expected: &[TensorSpec<'_>],
    found: &BTreeMap<String, StoredTensor>,
) -> Vec<Mismatch> {
    let mut all = Vec::new();
    for spec in expected {
        match found.get(spec.name) {
            Some(tensor) => compare(spec, tensor, &mut all),
            None => all.push(Mismatch::Missing {
                name: spec.name.to_owned(),
                dtype: spec.dtype,
                shape: spec.shape.to_vec(),
            }),
        }
    }
    all
}

/// The tensors that were not expected, by name.
pub(crate) fn unexpected(expected: &[TensorSpec<'_>], found: &BTreeMap<String, StoredTensor>) -> Vec<Mismatch> {
    let names: HashSet<_> = expected.iter().map(|spec| spec.name).collect();
    let extra = found.iter().filter(|(name, _)| !names.contains(name.as_str()));
    let mismatch = |(name, tensor): (&String, &StoredTensor)| Mismatch::Unexpected {
        name: name.clone(),
        dtype: tensor.dtype.to_string(),
        shape: tensor.shape.clone(),
    };
    extra.map(mismatch).collect()
}

fn compare(spec: &TensorSpec<'_>, tensor: &StoredTensor, all: &mut Vec<Mismatch>) {
    let name = || spec.name.to_owned();
    if spec.dtype.to_safetensors() != tensor.dtype {
        all.push(Mismatch::Dtype { name: name(), expected: spec.dtype, found: tensor.dtype.to_string() });
    }
    if spec.shape != tensor.shape {
        all.push(Mismatch::Shape { name: name(), expected: spec.shape.to_vec(), found: tensor.shape.clone() });
    }
}
