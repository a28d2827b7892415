//! A pre-norm transformer block: attention with rotary position embeddings (Su et al. 2021), then a feed-forward part whose
//! first layer is a convolution (as in FastSpeech, Ren et al. 2019).
//!
//! Parameter names are part of the checkpoint format, and seed the initialisation.

use tandem_engine::{EngineError, Graph, ParameterList, Rows, Value};

use super::{Conv, Dropout, LayerNorm, Linear};

/// Kernel size of the feed-forward convolution, in frames.
const KERNEL: u32 = 3;
/// Expansion of the feed-forward part.
const EXPANSION: u32 = 4;

/// The dimensions of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockDims {
    /// Channels.
    pub width: u32,
    /// Attention heads.
    pub heads: u32,
    /// Channels of the conditioning vector of each row, for adaptive layer norm; `None` for plain layer norm.
    pub condition: Option<u32>,
}

/// Pre-norm: `x + attention(norm(x))`, then `x + feed_forward(norm(x))`.
#[derive(Clone, Debug)]
pub struct TransformerBlock {
    heads: u32,
    norms: Norms,
    qkv: Linear,
    attention_out: Linear,
    up: Conv,
    down: Linear,
}

/// The two norms of a block.
#[derive(Clone, Debug)]
enum Norms {
    /// Layer norm.
    Plain([LayerNorm; 2]),
    /// Adaptive layer norm (as in DiT, Peebles & Xie 2022): scale and shift are computed from each row's condition.
    Adaptive([Linear; 2]),
}

/// The inputs of a block besides the activations.
#[derive(Clone, Copy)]
pub struct BlockContext<'a> {
    /// The row offsets.
    pub rows: &'a Rows,
    /// The number of valid frames of each row.
    pub lengths: Value,
    /// The conditioning vector of each row, for adaptive layer norm.
    pub condition: Option<Value>,
    /// Dropout inside the block.
    pub dropout: Dropout<'a>,
}

impl Norms {
    fn new(list: &mut ParameterList, dims: BlockDims) -> Result<Norms, EngineError> {
        let names = ["attention_norm", "forward_norm"];
        let width = dims.width;
        Ok(match dims.condition {
            None => {
                let [first, second] = names.map(|name| LayerNorm::new(list, name, width));
                Norms::Plain([first?, second?])
            }
            // Zero-initialised: it starts as a plain norm.
            Some(condition) => {
                let [first, second] = names.map(|name| Linear::zeros(list, name, condition, 2 * width));
                Norms::Adaptive([first?, second?])
            }
        })
    }

    fn forward(&self, g: &mut Graph, which: usize, x: Value, context: BlockContext<'_>) -> Result<Value, EngineError> {
        match self {
            Norms::Plain(norms) => norms[which].forward(g, x),
            Norms::Adaptive(norms) => {
                let Some(condition) = context.condition else { panic!("adaptive layer norm needs a condition") };
                let scale_shift = norms[which].forward(g, condition)?;
                g.adaptive_norm(x, scale_shift, context.rows)
            }
        }
    }
}

impl TransformerBlock {
    /// Declares a block.
    pub fn new(list: &mut ParameterList, name: &str, dims: BlockDims) -> Result<TransformerBlock, EngineError> {
        let BlockDims { width, heads, .. } = dims;
        list.scope(name, |list| {
            Ok(TransformerBlock {
                heads,
                norms: Norms::new(list, dims)?,
                qkv: Linear::new(list, "qkv", width, 3 * width)?,
                attention_out: Linear::new(list, "joined", width, width)?,
                up: Conv::new(list, "widen", width, EXPANSION * width, KERNEL)?,
                down: Linear::new(list, "narrow", EXPANSION * width, width)?,
            })
        })
    }

    /// Adds its forward pass to a graph, as one block for gradient checkpointing.
    pub fn forward(&self, g: &mut Graph, x: Value, context: BlockContext<'_>) -> Result<Value, EngineError> {
        let BlockContext { rows, lengths, dropout, .. } = context;
        g.block(|g| {
            let x = g.scope("attention", |g| {
                let y = self.norms.forward(g, 0, x, context)?;
                let y = self.qkv.forward(g, y)?;
                let y = g.rotary(y, self.heads, rows)?;
                let y = g.attention(y, self.heads, false, rows, lengths)?;
                let y = self.attention_out.forward(g, y)?;
                let y = dropout.forward(g, y)?;
                g.add(x, y)
            })?;
            g.scope("feed_forward", |g| {
                let y = self.norms.forward(g, 1, x, context)?;
                let y = self.up.forward(g, y, rows, lengths)?;
                let y = g.gelu(y)?;
                let y = dropout.forward(g, y)?;
                let y = self.down.forward(g, y)?;
                let y = dropout.forward(g, y)?;
                g.add(x, y)
            })
        })
    }
}
