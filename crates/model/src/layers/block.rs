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
    /// Channels of what the norms are told, one vector per row; none where gain and bias are the same for all.
    pub condition: Option<u32>,
}

/// Pre-norm: `x + attention(norm(x))`, then `x + feed_forward(norm(x))`.
#[derive(Clone, Debug)]
pub struct TransformerBlock {
    heads: u32,
    norms: Norms,
    qkv: Linear,
    joined: Linear,
    widen: Conv,
    narrow: Linear,
}

/// Where gain and bias of the two norms come from.
#[derive(Clone, Debug)]
enum Norms {
    /// They are learnt.
    Learnt([LayerNorm; 2]),
    /// Each row has its own, made from what is known of it.
    Told([Linear; 2]),
}

/// What a block is given beside what it works on.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// Where utterances begin.
    pub rows: &'a Rows,
    /// How long each is.
    pub lengths: Value,
    /// What is known of each; for blocks whose norms are told.
    pub condition: Option<Value>,
    /// Dropout inside.
    pub dropout: Dropout<'a>,
}

impl Norms {
    fn new(list: &mut ParameterList, sizes: BlockSizes) -> Result<Norms, EngineError> {
        let names = ["attention_norm", "forward_norm"];
        let width = sizes.width;
        Ok(match sizes.condition {
            None => {
                let [first, second] = names.map(|name| LayerNorm::new(list, name, width));
                Norms::Learnt([first?, second?])
            }
            // Zeros at first: a plain norm, until there is something to tell.
            Some(condition) => {
                let [first, second] = names.map(|name| Linear::silent(list, name, condition, 2 * width));
                Norms::Told([first?, second?])
            }
        })
    }

    fn write(&self, g: &mut Graph, which: usize, x: Value, around: Surroundings<'_>) -> Result<Value, EngineError> {
        match self {
            Norms::Learnt(norms) => norms[which].write(g, x),
            Norms::Told(norms) => {
                let Some(condition) = around.condition else { panic!("a block whose norms are told knows its rows") };
                let scale_shift = norms[which].write(g, condition)?;
                g.adaptive_norm(x, scale_shift, around.rows)
            }
        }
    }
}

impl TransformerBlock {
    /// Declares one.
    pub fn new(list: &mut ParameterList, name: &str, sizes: BlockSizes) -> Result<TransformerBlock, EngineError> {
        let BlockSizes { width, heads, .. } = sizes;
        list.scope(name, |list| {
            Ok(TransformerBlock {
                heads,
                norms: Norms::new(list, sizes)?,
                qkv: Linear::new(list, "qkv", width, 3 * width)?,
                joined: Linear::new(list, "joined", width, width)?,
                widen: Conv::new(list, "widen", width, EXPANSION * width, KERNEL)?,
                narrow: Linear::new(list, "narrow", EXPANSION * width, width)?,
            })
        })
    }

    /// Writes it, as a block that may be computed again.
    pub fn write(&self, g: &mut Graph, x: Value, around: Surroundings<'_>) -> Result<Value, EngineError> {
        let Surroundings { rows, lengths, dropout, .. } = around;
        g.block(|g| {
            let x = g.scope("attention", |g| {
                let y = self.norms.write(g, 0, x, around)?;
                let y = self.qkv.write(g, y)?;
                let y = g.rotary(y, self.heads, rows)?;
                let y = g.attention(y, self.heads, false, rows, lengths)?;
                let y = self.joined.write(g, y)?;
                let y = dropout.write(g, y)?;
                g.add(x, y)
            })?;
            g.scope("feed_forward", |g| {
                let y = self.norms.write(g, 1, x, around)?;
                let y = self.widen.write(g, y, rows, lengths)?;
                let y = g.gelu(y)?;
                let y = dropout.write(g, y)?;
                let y = self.narrow.write(g, y)?;
                let y = dropout.write(g, y)?;
                g.add(x, y)
            })
        })
    }
}
