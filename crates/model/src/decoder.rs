//! The decoder: from expanded states to the mel spectrogram, by transformer blocks with adaptive layer norm.
//!
//! *Direct*: the decoder predicts what to add to the prior. *Flow*: it predicts the velocity of a noisy mel spectrogram at any
//! time between noise (0) and speech (1), see [`crate::flow`]. Parameter names are part of the checkpoint format.

use tandem_engine::{EngineError, Graph, ParameterList, Shape, Value};

use crate::batch_shape::ValidFrames;
use crate::layers::{BlockContext, BlockDims, Dropout, LayerNorm, Linear, TransformerBlock};
use crate::preset::{DecoderKind, ModelDims};

/// Gaussian radial basis functions of the time embedding, with equally spaced centres between 0 and 1, and their standard
/// deviation relative to that spacing.
const TIME_FEATURES: u32 = 32;
const TIME_SPREAD: f64 = 1.5;

/// The decoder.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    input: Linear,
    voice: Linear,
    flow: Option<FlowLayers>,
    blocks: Vec<TransformerBlock>,
    norm: LayerNorm,
    output: Linear,
}

/// The layers that only the flow decoder has.
#[derive(Clone, Debug)]
struct FlowLayers {
    /// The input projection of the noisy mel spectrogram, concatenated with the prior.
    noisy: Linear,
    time: [Linear; 2],
}

/// The conditioning of the decoder. States and prior are expanded to frames already.
#[derive(Clone, Copy)]
pub(crate) struct DecoderInputs {
    pub(crate) states: Value,
    pub(crate) prior: Value,
    pub(crate) voice: Value,
}

/// A point of the flow: a noisy mel spectrogram, `[frames, mels]`, and its time, `[rows, 1]`, in the accumulator type.
#[derive(Clone, Copy)]
pub(crate) struct NoisyMel {
    pub(crate) mel: Value,
    pub(crate) time: Value,
}

impl Decoder {
    pub(crate) fn new(list: &mut ParameterList, sizes: &ModelDims, mels: u32) -> Result<Decoder, EngineError> {
        let width = sizes.decoder_width;
        list.scope("decoder", |list| {
            let input = Linear::new(list, "enter", sizes.text_width, width)?;
            let voice = Linear::new(list, "voice", sizes.voice_width, width)?;
            let flow = match sizes.decoder {
                DecoderKind::Direct => None,
                DecoderKind::Flow => Some(FlowLayers::new(list, width, mels)?),
            };
            let block = BlockDims { width, heads: sizes.decoder_heads, condition: Some(width) };
            let blocks =
                (0..sizes.decoder_layers).map(|layer| TransformerBlock::new(list, &format!("blocks.{layer}"), block));
            let blocks = blocks.collect::<Result<_, _>>()?;
            let norm = LayerNorm::new(list, "norm", width)?;
            Ok(Decoder { input, voice, flow, blocks, norm, output: Linear::zeros(list, "leave", width, mels)? })
        })
    }

    /// The mel spectrogram of the direct decoder: the prior plus the predicted residual.
    pub(crate) fn direct(
        &self,
        g: &mut Graph,
        inputs: DecoderInputs,
        frames: ValidFrames<'_>,
        dropout: Dropout<'_>,
    ) -> Result<Value, EngineError> {
        let residual = self.forward(g, inputs, None, frames, dropout)?;
        g.add(inputs.prior, residual)
    }

    /// The predicted velocity of a noisy mel spectrogram.
    pub(crate) fn velocity(
        &self,
        g: &mut Graph,
        inputs: DecoderInputs,
        noisy: NoisyMel,
        frames: ValidFrames<'_>,
        dropout: Dropout<'_>,
    ) -> Result<Value, EngineError> {
        self.forward(g, inputs, Some(noisy), frames, dropout)
    }

    fn forward(
        &self,
        g: &mut Graph,
        inputs: DecoderInputs,
        noisy: Option<NoisyMel>,
        frames: ValidFrames<'_>,
        dropout: Dropout<'_>,
    ) -> Result<Value, EngineError> {
        g.scope("decoder", |g| {
            let mut x = self.input.forward(g, inputs.states)?;
            let mut condition = self.voice.forward(g, inputs.voice)?;
            if let (Some(flow), Some(noisy)) = (&self.flow, noisy) {
                let mel_and_prior = g.concat(&[noisy.mel, inputs.prior])?;
                let projected = flow.noisy.forward(g, mel_and_prior)?;
                x = g.add(x, projected)?;
                let time = flow.embed_time(g, noisy.time)?;
                condition = g.add(condition, time)?;
            }
            let condition = Some(g.silu(condition)?);
            let context = BlockContext { rows: frames.rows, lengths: frames.lengths, condition, dropout };
            for (layer, block) in self.blocks.iter().enumerate() {
                x = g.scope(format!("blocks.{layer}"), |g| block.forward(g, x, context))?;
            }
            let x = self.norm.forward(g, x)?;
            self.output.forward(g, x)
        })
    }
}

impl FlowLayers {
    fn new(list: &mut ParameterList, width: u32, mels: u32) -> Result<FlowLayers, EngineError> {
        let noisy = Linear::new(list, "noisy", 2 * mels, width)?;
        let time = [Linear::new(list, "time.0", TIME_FEATURES, width)?, Linear::new(list, "time.1", width, width)?];
        Ok(FlowLayers { noisy, time })
    }

    /// The time embedding, `[rows, 1]` to `[rows, width]`: Gaussian radial basis functions and a two-layer MLP.
    fn embed_time(&self, g: &mut Graph, time: Value) -> Result<Value, EngineError> {
        let rows = g.shape(time).rows();
        let last = f64::from(TIME_FEATURES - 1);
        let centres: Vec<f64> = (0..TIME_FEATURES).map(|i| f64::from(i) / last).collect();
        let centres = g.numbers(&[TIME_FEATURES], &centres);
        let centres = g.broadcast_to(centres, Shape::new(&[rows, TIME_FEATURES]))?;
        let distance = g.sub(centres, time)?;
        let distance = g.scale(distance, last / TIME_SPREAD)?;
        let squared = g.square(distance)?;
        let exponent = g.scale(squared, -0.5)?;
        let features = g.exp(exponent)?;
        let features = g.cast(features, g.precision())?;
        let x = self.time[0].forward(g, features)?;
        let x = g.silu(x)?;
        self.time[1].forward(g, x)
    }
}
