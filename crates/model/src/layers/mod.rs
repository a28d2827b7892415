//! Layers: each declares its parameters and adds its forward pass to a graph.

mod affine;
mod block;

pub use affine::{Conv, Embedding, LayerNorm, Linear};
pub use block::{BlockContext, BlockDims, TransformerBlock};

use tandem_engine::{EngineError, Graph, RngKeys, Value};

/// Dropout (Srivastava et al. 2014) in training; the identity otherwise.
#[derive(Clone, Copy)]
pub struct Dropout<'a> {
    /// The probability of dropping an element.
    pub p: f64,
    /// The RNG keys; `None` outside training.
    pub keys: Option<&'a RngKeys>,
}

impl Dropout<'_> {
    /// No dropout.
    pub const OFF: Dropout<'static> = Dropout { p: 0.0, keys: None };

    /// Adds it to a graph.
    pub fn forward(&self, g: &mut Graph, x: Value) -> Result<Value, EngineError> {
        match self.keys {
            Some(keys) => g.dropout(x, self.p, keys),
            None => Ok(x),
        }
    }
}
