//! The tensors of a file against those a model wants: every difference, not only the first.

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Display};

use super::tensor::{Dtype, TensorSpec};
use super::tensor_file::InFile;

/// A way in which the tensors of a file are not those that were expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// The file lacks one.
    Missing {
        /// Its name.
        name: String,
        /// Its elements.
        dtype: Dtype,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The file has one that nobody asked for.
    Unexpected {
        /// Its name.
        name: String,
        /// Its elements, as the file calls them.
        dtype: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The elements are of another type.
    Dtype {
        /// Its name.
        name: String,
        /// What was asked for.
        expected: Dtype,
        /// What there is, as the file calls it.
        found: String,
    },
    /// The shape is another.
    Shape {
        /// Its name.
        name: String,
        /// What was asked for.
        expected: Vec<usize>,
        /// What there is.
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

/// What is wrong with the expected ones, in their order; then those that are too many, by name.
pub(super) fn mismatches(expected: &[TensorSpec<'_>], found: &BTreeMap<String, InFile>) -> Vec<Mismatch> {
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
    let names: HashSet<_> = expected.iter().map(|spec| spec.name).collect();
    let too_many = found.iter().filter(|(name, _)| !names.contains(name.as_str()));
    all.extend(too_many.map(|(name, tensor)| Mismatch::Unexpected {
        name: name.clone(),
        dtype: tensor.dtype.to_string(),
        shape: tensor.shape.clone(),
    }));
    all
}

fn compare(spec: &TensorSpec<'_>, tensor: &InFile, all: &mut Vec<Mismatch>) {
    let name = || spec.name.to_owned();
    if spec.dtype.in_file() != tensor.dtype {
        all.push(Mismatch::Dtype { name: name(), expected: spec.dtype, found: tensor.dtype.to_string() });
    }
    if spec.shape != tensor.shape {
        all.push(Mismatch::Shape { name: name(), expected: spec.shape.to_vec(), found: tensor.shape.clone() });
    }
}
