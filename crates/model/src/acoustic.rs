//! The acoustic model: text and a voice in, a spectrum out.
//!
//! Losses are sums over valid frames or tokens times a weight that the host gives, one over their number in the whole
//! optimizer step, so that a batch in pieces trains like the whole.

use std::sync::Arc;

use tandem_device::DType;
use tandem_engine::{EngineError, Graph, ParameterList, Parameters, RngKeys, Rows, TensorType, Value};

use crate::batch_shape::{BatchShape, REFERENCE_FRAMES};
use crate::decoder::{Decoder, DecoderInputs};
use crate::durations::DurationPredictor;
use crate::flow::{on_the_path, walk};
use crate::heads::Heads;
use crate::inputs;
use crate::layers::{Dropout, Linear};
use crate::model::{Losses, Model};
use crate::preset::{DecoderKind, ModelDims};
use crate::text_encoder::TextEncoder;
use crate::voice::VoiceEncoder;

/// Numbers the programs ask of the host.
pub mod host {
    /// One over the numbers of the spectrum (frames × bands) in the optimizer step.
    pub const PER_NUMBER: &str = "per_number";
    /// One over the tokens in the optimizer step.
    pub const PER_TOKEN: &str = "per_token";
    /// The mean of the spectrum over the corpus.
    pub const MEL_MEAN: &str = "mel_mean";
    /// One over its deviation.
    pub const MEL_SCALE: &str = "mel_scale";
    /// The mean of each band, normalised like the spectrum: what a validation is compared with.
    pub const BAND_MEAN: &str = "band_mean";
    /// How far the noise is spread that a spectrum is made from: 1 as in training, less is steadier.
    pub const TEMPERATURE: &str = "temperature";
}

/// Steps from noise to speech: when a validation looks, and when a spectrum is made to be listened to.
const STEPS_WHEN_JUDGED: u32 = 4;
const STEPS_WHEN_HEARD: u32 = 10;
/// Of the utterances, how many are trained without a voice.
const VOICELESS: f64 = 0.1;

/// The model: its parts and what they learn.
#[derive(Clone, Debug)]
pub struct Acoustic {
    sizes: ModelDims,
    mels: u32,
    parameters: Arc<Parameters>,
    text_encoder: TextEncoder,
    voice: VoiceEncoder,
    voice_to_text: Linear,
    prior: Linear,
    durations: DurationPredictor,
    heads: Heads,
    decoder: Decoder,
}

/// What a batch brings, as values of a graph.
struct Batch {
    text: Value,
    text_lengths: Value,
    mel: Value,
    mel_lengths: Value,
    reference: Value,
}

/// What all programs with a recording compute.
struct Heard {
    batch: Batch,
    prior: Value,
    durations: Value,
    log_durations: Value,
    known: DecoderInputs,
}

/// Where the numbers of training come from: for text, for spectra, for whole utterances.
struct AllDraws {
    text: RngKeys,
    mel: RngKeys,
    utterances: RngKeys,
}

impl Acoustic {
    /// A model of `sizes` for texts of `symbols` different symbols and spectra of `mels` bands.
    pub fn new(sizes: ModelDims, symbols: u32, mels: u32) -> Result<Acoustic, EngineError> {
        let mut list = ParameterList::new();
        let text_encoder = TextEncoder::new(&mut list, &sizes, symbols)?;
        let voice = VoiceEncoder::new(&mut list, &sizes, mels)?;
        let voice_to_text = Linear::new(&mut list, "voice_to_text", sizes.voice_width, sizes.text_width)?;
        let prior = Linear::new(&mut list, "prior", sizes.text_width, mels)?;
        let durations = DurationPredictor::new(&mut list, &sizes)?;
        let heads = Heads::new(&mut list, &sizes)?;
        let decoder = Decoder::new(&mut list, &sizes, mels)?;
        let parameters = Arc::new(list.finish());
        Ok(Acoustic { sizes, mels, parameters, text_encoder, voice, voice_to_text, prior, durations, heads, decoder })
    }

    /// What it learns.
    pub fn parameters(&self) -> &Arc<Parameters> {
        &self.parameters
    }
}

impl Model for Acoustic {
    fn name(&self) -> &str {
        "acoustic"
    }

    fn parameters(&self) -> &Arc<Parameters> {
        &self.parameters
    }

    fn learn(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> {
        let draws = AllDraws {
            text: RngKeys::new(g, &shape.text)?,
            mel: RngKeys::new(g, &shape.mel)?,
            utterances: RngKeys::new(g, &Rows::even(shape.count(), 1))?,
        };
        let heard = self.hear(g, shape, Some(&draws))?;
        let per_number = inputs::per_number(g)?;
        let lengths = heard.batch.mel_lengths;
        let dropout = Dropout { share: self.sizes.decoder_dropout, draws: Some(&draws.mel) };
        let mel_loss = match self.sizes.way {
            DecoderKind::Direct => {
                let mel = self.decoder.direct(g, heard.known, &shape.mel, lengths, dropout)?;
                g.l1_loss(mel, heard.batch.mel, &shape.mel, lengths, per_number)?
            }
            DecoderKind::Flow => {
                let path = on_the_path(g, heard.batch.mel, &draws.mel)?;
                let found = self.decoder.velocity(g, heard.known, path.now, &shape.mel, lengths, dropout)?;
                g.l2_loss(found, path.movement, &shape.mel, lengths, per_number)?
            }
        };
        let per_frame = g.scale(per_number, f64::from(self.mels))?;
        let heads_loss = self.heads.loss(g, heard.known.states, shape, lengths, per_frame)?;
        let (prior_loss, duration_loss) = self.text_losses(g, shape, &heard)?;
        let loss = g.add(mel_loss, prior_loss)?;
        let loss = g.add(loss, duration_loss)?;
        let loss = g.add(loss, heads_loss)?;
        let losses = Losses::new("loss", loss).and("mel", mel_loss);
        Ok(losses.and("prior", prior_loss).and("duration", duration_loss))
    }

    /// Beside the losses: `mean` of guessing every band's mean, the `alignment`, and the `log_durations` guessed for it.
    fn judge(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> {
        let heard = self.hear(g, shape, None)?;
        let per_number = inputs::per_number(g)?;
        // From no noise at all: the same every time, and the middle of what could be said.
        let start = g.scale(heard.known.prior, 0.0)?;
        let Batch { mel, mel_lengths, .. } = heard.batch;
        let found = self.decode(g, shape, heard.known, mel_lengths, (start, STEPS_WHEN_JUDGED))?;
        let mel_loss = g.l1_loss(found, mel, &shape.mel, mel_lengths, per_number)?;
        let (prior_loss, duration_loss) = self.text_losses(g, shape, &heard)?;
        let mean = inputs::band_means(g, self.mels)?;
        let like = g.shape(heard.batch.mel);
        let guess = g.spread(mean, like)?;
        let mean_loss = g.l1_loss(guess, mel, &shape.mel, mel_lengths, per_number)?;
        g.result("alignment", heard.durations)?;
        let guessed = g.cast(heard.log_durations, g.acc_dtype())?;
        g.result("log_durations", guessed)?;
        let losses = Losses::new("mel", mel_loss).and("mean", mean_loss);
        Ok(losses.and("prior", prior_loss).and("duration", duration_loss))
    }
}

impl Acoustic {
    /// How long each token of a text lasts: `log_durations`, ln(1 + frames).
    pub fn guess_durations(&self, precision: DType, shape: &BatchShape) -> Result<Graph, EngineError> {
        let mut g = Graph::new(self.parameters.clone(), precision);
        let (text, text_lengths) = inputs::text(&mut g, shape)?;
        let reference = inputs::reference(&mut g, shape, self.mels)?;
        let (states, _) = self.states(&mut g, shape, (text, text_lengths), reference, None)?;
        let dropout = Dropout { share: 0.0, draws: None };
        let guess = self.durations.write(&mut g, states, &shape.text, text_lengths, dropout)?;
        let guess = g.cast(guess, g.acc_dtype())?;
        g.result("log_durations", guess)?;
        Ok(g)
    }

    /// How long each token of a text lasts in a recording of it: `alignment`, in frames.
    pub fn find_alignment(&self, precision: DType, shape: &BatchShape) -> Result<Graph, EngineError> {
        let mut g = Graph::new(self.parameters.clone(), precision);
        let Batch { text, text_lengths, mel, mel_lengths, reference } = self.batch(&mut g, shape)?;
        let (states, _) = self.states(&mut g, shape, (text, text_lengths), reference, None)?;
        let prior = self.prior.write(&mut g, states)?;
        let durations = g.align(prior, mel, &shape.text, text_lengths, &shape.mel, mel_lengths)?;
        g.result("alignment", durations)?;
        Ok(g)
    }

    /// A spectrum for a text whose tokens last `durations` (an input): `mel`, as the recordings have it.
    pub fn sample(&self, precision: DType, shape: &BatchShape) -> Result<Graph, EngineError> {
        let mut g = Graph::new(self.parameters.clone(), precision);
        let (text, text_lengths) = inputs::text(&mut g, shape)?;
        let reference = inputs::reference(&mut g, shape, self.mels)?;
        let durations = g.input("durations", TensorType::new(DType::I32, &[shape.text.total()]))?;
        let mel_lengths = g.input("mel_lengths", TensorType::new(DType::I32, &[shape.count()]))?;
        let (states, voice) = self.states(&mut g, shape, (text, text_lengths), reference, None)?;
        let prior = self.prior.write(&mut g, states)?;
        let known = self.spread(&mut g, shape, (states, prior, voice), durations)?;
        let draws = RngKeys::new(&mut g, &shape.mel)?;
        let noise = g.noise(self.mels, &draws)?;
        let temperature = g.host(host::TEMPERATURE, TensorType::new(g.acc_dtype(), &[1]))?;
        let start = g.mul(noise, temperature)?;
        let mel = self.decode(&mut g, shape, known, mel_lengths, (start, STEPS_WHEN_HEARD))?;
        let (mean, scale) = inputs::statistics(&mut g)?;
        let mel = g.cast(mel, g.acc_dtype())?;
        let mel = g.div(mel, scale)?;
        let mel = g.add(mel, mean)?;
        g.result("mel", mel)?;
        Ok(g)
    }

    /// Text to what is known of every frame, along the alignment with the recording.
    fn hear(&self, g: &mut Graph, shape: &BatchShape, draws: Option<&AllDraws>) -> Result<Heard, EngineError> {
        let batch = self.batch(g, shape)?;
        let Batch { text, text_lengths, mel_lengths, reference, .. } = batch;
        let (states, voice) = self.states(g, shape, (text, text_lengths), reference, draws)?;
        let dropout = Dropout { share: self.sizes.text_dropout, draws: draws.map(|draws| &draws.text) };
        let prior = self.prior.write(g, states)?;
        let log_durations = self.durations.write(g, states, &shape.text, text_lengths, dropout)?;
        let durations = g.align(prior, batch.mel, &shape.text, text_lengths, &shape.mel, mel_lengths)?;
        let known = self.spread(g, shape, (states, prior, voice), durations)?;
        let prior = g.expand(prior, durations, &shape.text, &shape.mel)?;
        Ok(Heard { batch, prior, durations, log_durations, known })
    }

    /// The states of a text that is spoken by a voice, and the voice.
    fn states(
        &self,
        g: &mut Graph,
        shape: &BatchShape,
        (text, lengths): (Value, Value),
        reference: Value,
        draws: Option<&AllDraws>,
    ) -> Result<(Value, Value), EngineError> {
        let dropout = Dropout { share: self.sizes.text_dropout, draws: draws.map(|draws| &draws.text) };
        let states = self.text_encoder.write(g, text, &shape.text, lengths, dropout)?;
        let references = shape.references();
        let whole = vec![REFERENCE_FRAMES as i32; shape.count() as usize];
        let whole = g.constant(&[shape.count()], &whole);
        let mut voice = self.voice.write(g, reference, &references, whole)?;
        if let Some(draws) = draws {
            let there = g.numbers(&[shape.count(), 1], &vec![1.0 - VOICELESS; shape.count() as usize]);
            let there = g.dropout(there, VOICELESS, &draws.utterances)?;
            voice = g.mul(voice, there)?;
        }
        let tint = self.voice_to_text.write(g, voice)?;
        let tint = g.row_spread(tint, &shape.text)?;
        Ok((g.add(states, tint)?, voice))
    }

    /// What is known of every frame.
    fn spread(
        &self,
        g: &mut Graph,
        shape: &BatchShape,
        (states, prior, voice): (Value, Value, Value),
        durations: Value,
    ) -> Result<DecoderInputs, EngineError> {
        // The prior is trained by its own loss: the decoder may lean on it, not bend it.
        let prior = g.detach(prior)?;
        let prior = g.expand(prior, durations, &shape.text, &shape.mel)?;
        let states = g.expand(states, durations, &shape.text, &shape.mel)?;
        Ok(DecoderInputs { states, prior, voice })
    }

    /// The spectrum, without a recording to look at: directly, or in so many steps from `start`.
    fn decode(
        &self,
        g: &mut Graph,
        shape: &BatchShape,
        known: DecoderInputs,
        lengths: Value,
        (start, steps): (Value, u32),
    ) -> Result<Value, EngineError> {
        match self.sizes.way {
            DecoderKind::Direct => {
                let still = Dropout { share: 0.0, draws: None };
                self.decoder.direct(g, known, &shape.mel, lengths, still)
            }
            DecoderKind::Flow => {
                let mel = walk(g, &self.decoder, known, (&shape.mel, lengths), start, steps)?;
                g.cast(mel, g.precision())
            }
        }
    }

    /// The losses of the prior and of the durations.
    fn text_losses(&self, g: &mut Graph, shape: &BatchShape, heard: &Heard) -> Result<(Value, Value), EngineError> {
        let (per_number, per_token) = (inputs::per_number(g)?, inputs::per_token(g)?);
        let Batch { mel, mel_lengths, text_lengths, .. } = heard.batch;
        // −log of a normal density of variance one, but for a constant.
        let half = g.scale(per_number, 0.5)?;
        let prior_loss = g.l2_loss(heard.prior, mel, &shape.mel, mel_lengths, half)?;
        let frames = g.to_float(heard.durations)?;
        let frames = g.ln_1p(frames)?;
        let frames = g.reshape(frames, &[shape.text.total(), 1])?;
        let duration_loss = g.l2_loss(heard.log_durations, frames, &shape.text, text_lengths, per_token)?;
        Ok((prior_loss, duration_loss))
    }

    fn batch(&self, g: &mut Graph, shape: &BatchShape) -> Result<Batch, EngineError> {
        let (text, text_lengths) = inputs::text(g, shape)?;
        let (mel, mel_lengths) = inputs::mel(g, shape, self.mels)?;
        let reference = inputs::reference(g, shape, self.mels)?;
        Ok(Batch { text, text_lengths, mel, mel_lengths, reference })
    }
}
