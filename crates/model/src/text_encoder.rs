//! The text encoder: an embedding of tokens and, with several languages, of languages; a prenet of residual convolutions;
//! transformer blocks. Its output are the states, one per token.

use tandem_engine::{EngineError, Graph, ParameterList, Value};

use crate::batch_shape::ValidFrames;
use crate::layers::{BlockContext, BlockDims, Conv, Dropout, Embedding, LayerNorm, TransformerBlock};
use crate::preset::{ModelDims, Vocabulary};

/// The name of the symbol embedding: a row for each token id.
pub const SYMBOL_EMBEDDING: &str = "text_encoder.embedding.weight";
/// The name of the language embedding, which models of several languages have: a row for each language.
pub const LANGUAGE_EMBEDDING: &str = "text_encoder.languages.weight";

/// Convolutions of the prenet, and their kernel size in tokens.
const PRENET_LAYERS: u32 = 3;
const PRENET_KERNEL: u32 = 5;

/// The text encoder.
#[derive(Clone, Debug)]
pub(crate) struct TextEncoder {
    embedding: Embedding,
    /// Only with several languages.
    languages: Option<Embedding>,
    prenet: Vec<(Conv, LayerNorm)>,
    blocks: Vec<TransformerBlock>,
    norm: LayerNorm,
}

impl TextEncoder {
    pub(crate) fn new(
        list: &mut ParameterList,
        sizes: &ModelDims,
        vocabulary: Vocabulary,
    ) -> Result<TextEncoder, EngineError> {
        let Vocabulary { symbols, languages } = vocabulary;
        let width = sizes.text_width;
        list.scope("text_encoder", |list| {
            let embedding = Embedding::new(list, "embedding", symbols, width)?;
            let languages = match languages {
                0 | 1 => None,
                languages => Some(Embedding::new(list, "languages", languages, width)?),
            };
            let mut prenet = Vec::new();
            for layer in 0..PRENET_LAYERS {
                let conv = Conv::new(list, &format!("prenet.{layer}.conv"), width, width, PRENET_KERNEL)?;
                prenet.push((conv, LayerNorm::new(list, &format!("prenet.{layer}.norm"), width)?));
            }
            let block = BlockDims { width, heads: sizes.text_heads, condition: None };
            let blocks =
                (0..sizes.text_layers).map(|layer| TransformerBlock::new(list, &format!("blocks.{layer}"), block));
            let blocks = blocks.collect::<Result<_, _>>()?;
            Ok(TextEncoder { embedding, languages, prenet, blocks, norm: LayerNorm::new(list, "norm", width)? })
        })
    }

    /// Whether it has an embedding of languages, and needs those of the texts.
    pub(crate) fn has_languages(&self) -> bool {
        self.languages.is_some()
    }

    /// `[tokens]`, and with several languages `[utterances]` of language ids, to `[tokens, text width]`.
    pub(crate) fn forward(
        &self,
        g: &mut Graph,
        ids: Value,
        language: Option<Value>,
        tokens: ValidFrames<'_>,
        dropout: Dropout<'_>,
    ) -> Result<Value, EngineError> {
        let ValidFrames { rows, lengths } = tokens;
        g.scope("text_encoder", |g| {
            let mut x = self.embedding.forward(g, ids)?;
            if let (Some(languages), Some(language)) = (&self.languages, language) {
                let y = languages.forward(g, language)?;
                let y = g.row_broadcast(y, rows)?;
                x = g.add(x, y)?;
            }
            for (conv, norm) in &self.prenet {
                let y = conv.forward(g, x, rows, lengths)?;
                let y = norm.forward(g, y)?;
                let y = g.relu(y)?;
                let y = dropout.forward(g, y)?;
                x = g.add(x, y)?;
            }
            let context = BlockContext { rows, lengths, condition: None, dropout };
            for (layer, block) in self.blocks.iter().enumerate() {
                x = g.scope(format!("blocks.{layer}"), |g| block.forward(g, x, context))?;
            }
            self.norm.forward(g, x)
        })
    }
}
