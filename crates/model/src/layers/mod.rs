//! What models are put together from: each holds its parameters and writes itself into a graph.

mod affine;
mod block;

pub use affine::{Conv, Embedding, LayerNorm, Linear};
pub use block::{BlockSizes, Surroundings, TransformerBlock};

use tandem_engine::{EngineError, Graph, RngKeys, Value};

/// Dropout while training; nothing while not.
#[derive(Clone, Copy)]
pub struct Dropout<'a> {
    /// The share that is dropped.
    pub share: f64,
    /// Where the numbers come from; none when nothing is to be dropped.
    pub draws: Option<&'a RngKeys>,
}

impl Dropout<'_> {
    /// Drops.
    pub fn write(&self, g: &mut Graph, x: Value) -> Result<Value, EngineError> {
        match self.draws {
            Some(draws) => g.dropout(x, self.share, draws),
            None => Ok(x),
        }
    }
}
