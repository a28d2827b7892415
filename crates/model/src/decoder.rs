//! From states spread over their frames to the spectrum.
//!
//! Two ways. *Direct*: the decoder says what to add to the prior. *Flow*: it says in which direction a spectrum that is
//! partly noise must move, at any time between noise (0) and speech (1); a spectrum is made by following it from noise.

use tandem_engine::{EngineError, Graph, ParameterList, Rows, Value};

use crate::layers::{BlockSizes, Dropout, LayerNorm, Linear, Surroundings, TransformerBlock};
use crate::preset::{DecoderKind, ModelDims};

/// Places between 0 and 1 by which a time is told, and how wide each reaches.
const TIME_FEATURES: u32 = 32;
const TIME_REACH: f64 = 1.5;

/// The decoder.
#[derive(Clone, Debug)]
pub(crate) struct Decoder {
    enter: Linear,
    voice: Linear,
    flow: Option<FlowParts>,
    blocks: Vec<TransformerBlock>,
    norm: LayerNorm,
    leave: Linear,
}

/// What only the flow has.
#[derive(Clone, Debug)]
struct FlowParts {
    /// The spectrum on its way, and the prior beside it.
    noisy: Linear,
    time: [Linear; 2],
}

/// What is known of a batch when its spectrum is made. States and prior are spread over the frames already.
#[derive(Clone, Copy)]
pub(crate) struct DecoderInputs {
    pub(crate) states: Value,
    pub(crate) prior: Value,
    pub(crate) voice: Value,
}

/// A spectrum on its way, `[frames, mels]`, and when: `[rows, 1]`, in the wide element type.
#[derive(Clone, Copy)]
pub(crate) struct OnItsWay {
    pub(crate) mel: Value,
    pub(crate) time: Value,
}

impl Decoder {
    pub(crate) fn new(list: &mut ParameterList, sizes: &ModelDims, mels: u32) -> Result<Decoder, EngineError> {
        let width = sizes.decoder_width;
        list.scope("decoder", |list| {
            let enter = Linear::new(list, "enter", sizes.text_width, width)?;
            let voice = Linear::new(list, "voice", sizes.voice_width, width)?;
            let flow = match sizes.way {
                DecoderKind::Direct => None,
                DecoderKind::Flow => Some(FlowParts::new(list, width, mels)?),
            };
            let block = BlockSizes { width, heads: sizes.decoder_heads, condition: Some(width) };
            let blocks =
                (0..sizes.decoder_layers).map(|layer| TransformerBlock::new(list, &format!("blocks.{layer}"), block));
            let blocks = blocks.collect::<Result<_, _>>()?;
            let norm = LayerNorm::new(list, "norm", width)?;
            Ok(Decoder { enter, voice, flow, blocks, norm, leave: Linear::silent(list, "leave", width, mels)? })
        })
    }

    /// The spectrum, directly.
    pub(crate) fn direct(
        &self,
        g: &mut Graph,
        known: DecoderInputs,
        rows: &Rows,
        lengths: Value,
        dropout: Dropout<'_>,
    ) -> Result<Value, EngineError> {
        let missing = self.write(g, known, None, rows, lengths, dropout)?;
        g.add(known.prior, missing)
    }

    /// Where a spectrum that is `on_its_way` must move.
    pub(crate) fn velocity(
        &self,
        g: &mut Graph,
        known: DecoderInputs,
        on_its_way: OnItsWay,
        rows: &Rows,
        lengths: Value,
        dropout: Dropout<'_>,
    ) -> Result<Value, EngineError> {
        self.write(g, known, Some(on_its_way), rows, lengths, dropout)
    }

    fn write(
        &self,
        g: &mut Graph,
        known: DecoderInputs,
        on_its_way: Option<OnItsWay>,
        rows: &Rows,
        lengths: Value,
        dropout: Dropout<'_>,
    ) -> Result<Value, EngineError> {
        g.scope("decoder", |g| {
            let mut x = self.enter.write(g, known.states)?;
            let mut condition = self.voice.write(g, known.voice)?;
            if let (Some(flow), Some(now)) = (&self.flow, on_its_way) {
                let noisy = g.concat(&[now.mel, known.prior])?;
                let noisy = flow.noisy.write(g, noisy)?;
                x = g.add(x, noisy)?;
                let time = flow.tell_time(g, now.time)?;
                condition = g.add(condition, time)?;
            }
            let condition = g.silu(condition)?;
            let around = Surroundings { rows, lengths, condition: Some(condition), dropout };
            for (layer, block) in self.blocks.iter().enumerate() {
                x = g.scope(format!("blocks.{layer}"), |g| block.write(g, x, around))?;
            }
            let x = self.norm.write(g, x)?;
            self.leave.write(g, x)
        })
    }
}

impl FlowParts {
    fn new(list: &mut ParameterList, width: u32, mels: u32) -> Result<FlowParts, EngineError> {
        let noisy = Linear::new(list, "noisy", 2 * mels, width)?;
        let time = [Linear::new(list, "time.0", TIME_FEATURES, width)?, Linear::new(list, "time.1", width, width)?];
        Ok(FlowParts { noisy, time })
    }

    /// `[rows, 1]` to `[rows, width]`: how near the time is to each of a few places, and two layers on top.
    fn tell_time(&self, g: &mut Graph, time: Value) -> Result<Value, EngineError> {
        let rows = g.shape(time).rows();
        let last = f64::from(TIME_FEATURES - 1);
        let places: Vec<f64> = (0..TIME_FEATURES).map(|i| f64::from(i) / last).collect();
        let places = g.numbers(&[TIME_FEATURES], &places);
        let places = g.spread(places, tandem_engine::Shape::new(&[rows, TIME_FEATURES]))?;
        let apart = g.sub(places, time)?;
        let apart = g.scale(apart, last / TIME_REACH)?;
        let apart = g.square(apart)?;
        let near = g.scale(apart, -0.5)?;
        let near = g.exp(near)?;
        let near = g.cast(near, g.precision())?;
        let x = self.time[0].write(g, near)?;
        let x = g.silu(x)?;
        self.time[1].write(g, x)
    }
}
