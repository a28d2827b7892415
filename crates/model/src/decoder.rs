//! From states spread over their frames to the spectrum.

use tandem_engine::{EngineError, Graph, ParameterList, Rows, Value};

use crate::layers::{Block, BlockSizes, Dropout, LayerNorm, Linear};
use crate::preset::Sizes;

/// The decoder. What it makes is added to the prior, so it starts from the prior and learns what is missing.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    enter: Linear,
    voice: Linear,
    blocks: Vec<Block>,
    norm: LayerNorm,
    leave: Linear,
}

impl Decoder {
    pub(crate) fn new(list: &mut ParameterList, sizes: &Sizes, mels: u32) -> Result<Decoder, EngineError> {
        let width = sizes.decoder_width;
        list.scope("decoder", |list| {
            let enter = Linear::new(list, "enter", sizes.text_width, width)?;
            let voice = Linear::new(list, "voice", sizes.voice_width, width)?;
            let block = BlockSizes { width, heads: sizes.decoder_heads };
            let blocks = (0..sizes.decoder_layers).map(|layer| Block::new(list, &format!("blocks.{layer}"), block));
            let blocks = blocks.collect::<Result<_, _>>()?;
            let norm = LayerNorm::new(list, "norm", width)?;
            Ok(Decoder { enter, voice, blocks, norm, leave: Linear::silent(list, "leave", width, mels)? })
        })
    }

    /// `states` and `prior` are spread over the frames already.
    pub(crate) fn write(
        &self,
        g: &mut Graph,
        (states, prior, voice): (Value, Value, Value),
        rows: &Rows,
        lengths: Value,
        dropout: Dropout<'_>,
    ) -> Result<Value, EngineError> {
        g.scope("decoder", |g| {
            let x = self.enter.write(g, states)?;
            let voice = self.voice.write(g, voice)?;
            let voice = g.row_spread(voice, rows)?;
            let mut x = g.add(x, voice)?;
            for (layer, block) in self.blocks.iter().enumerate() {
                x = g.scope(format!("blocks.{layer}"), |g| block.write(g, x, rows, lengths, dropout))?;
            }
            let x = self.norm.write(g, x)?;
            let x = self.leave.write(g, x)?;
            g.add(prior, x)
        })
    }
}
