//! A transformer block: attention with rotary positions, then a feed-forward part that sees its neighbours.

use tandem_engine::{EngineError, Graph, ParameterList, Rows, Value};

use super::{Conv, Dropout, LayerNorm, Linear};

/// Frames that the feed-forward part sees at once.
const KERNEL: u32 = 3;
/// How much wider it is inside.
const EXPANSION: u32 = 4;

/// How wide a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Channels.
    pub width: u32,
    /// Attention heads.
    pub heads: u32,
}

/// Pre-norm: `x + attention(norm(x))`, then `x + feed_forward(norm(x))`.
#[derive(Clone, Debug)]
pub struct Block {
    heads: u32,
    attention_norm: LayerNorm,
    qkv: Linear,
    joined: Linear,
    forward_norm: LayerNorm,
    widen: Conv,
    narrow: Conv,
}

impl Block {
    /// Declares one.
    pub fn new(list: &mut ParameterList, name: &str, sizes: BlockSizes) -> Result<Block, EngineError> {
        let BlockSizes { width, heads } = sizes;
        list.scope(name, |list| {
            Ok(Block {
                heads,
                attention_norm: LayerNorm::new(list, "attention_norm", width)?,
                qkv: Linear::new(list, "qkv", width, 3 * width)?,
                joined: Linear::new(list, "joined", width, width)?,
                forward_norm: LayerNorm::new(list, "forward_norm", width)?,
                widen: Conv::new(list, "widen", width, EXPANSION * width, KERNEL)?,
                narrow: Conv::new(list, "narrow", EXPANSION * width, width, KERNEL)?,
            })
        })
    }

    /// Writes it, as a block that may be computed again.
    pub fn write(
        &self,
        g: &mut Graph,
        x: Value,
        rows: &Rows,
        lengths: Value,
        dropout: Dropout<'_>,
    ) -> Result<Value, EngineError> {
        g.block(|g| {
            let x = g.scope("attention", |g| {
                let y = self.attention_norm.write(g, x)?;
                let y = self.qkv.write(g, y)?;
                let y = g.rotary(y, self.heads, rows)?;
                let y = g.attention(y, self.heads, false, rows, lengths)?;
                let y = self.joined.write(g, y)?;
                let y = dropout.write(g, y)?;
                g.add(x, y)
            })?;
            g.scope("feed_forward", |g| {
                let y = self.forward_norm.write(g, x)?;
                let y = self.widen.write(g, y, rows, lengths)?;
                let y = g.gelu(y)?;
                let y = dropout.write(g, y)?;
                let y = self.narrow.write(g, y, rows, lengths)?;
                let y = dropout.write(g, y)?;
                g.add(x, y)
            })
        })
    }
}
