//! The acoustic model: text and a voice in, a mel spectrogram out.
//!
//! It combines Glow-TTS's monotonic alignment search (Kim et al. 2020) and Grad-TTS's prior (Popov et al. 2021) with FastSpeech's
//! duration predictor and length regulator (Ren et al. 2019), FastSpeech 2's pitch and energy predictors (Ren et al. 2020), and a
//! flow matching decoder (Lipman et al. 2022).
//!
//! Losses are sums over valid frames or tokens times a host value, one over their number in the optimizer step, so that
//! gradient accumulation over micro-batches equals the full batch.

use std::sync::Arc;

use tandem_audio::REFERENCE_FRAMES;
use tandem_device::DType;
use tandem_engine::{EngineError, Graph, ParameterList, Parameters, RngKeys, Rows, TensorType, Value};

use crate::batch_shape::{BatchShape, ValidFrames};
use crate::decoder::{Decoder, DecoderInputs};
use crate::durations::DurationPredictor;
use crate::flow::{EulerSteps, integrate, sample_path};
use crate::heads::Heads;
use crate::inputs;
use crate::layers::{Dropout, Linear};
use crate::model::{Losses, Model};
use crate::preset::{DecoderKind, ModelDims, Vocabulary};
use crate::text_encoder::TextEncoder;
use crate::voice::VoiceEncoder;

/// Names of the host values.
pub mod host {
    /// One over the number of mel elements (frames × bands) in the optimizer step.
    pub const PER_ELEMENT: &str = "per_element";
    /// One over the number of tokens in the optimizer step.
    pub const PER_TOKEN: &str = "per_token";
    /// The mean of the mel spectrograms over the corpus.
    pub const MEL_MEAN: &str = "mel_mean";
    /// One over their standard deviation.
    pub const MEL_SCALE: &str = "mel_scale";
    /// The mean of each mel band, normalised like the mel spectrograms: the baseline of a validation.
    pub const BAND_MEAN: &str = "band_mean";
    /// The standard deviation of the noise that synthesis starts from: 1 as in training, less is steadier.
    pub const TEMPERATURE: &str = "temperature";
}

/// Euler steps of the flow decoder in validation and in synthesis.
const VALIDATION_STEPS: u32 = 4;
const SYNTHESIS_STEPS: u32 = 10;
/// Probability that a training utterance has no voice.
const VOICE_DROPOUT: f64 = 0.1;

/// The model: its parts and parameters.
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

/// The fields of a batch, as values of a graph.
#[derive(Clone, Copy)]
struct Batch {
    text: Text,
    mel: Value,
    mel_lengths: Value,
    reference: Value,
}

/// The texts of a batch.
#[derive(Clone, Copy)]
struct Text {
    ids: Value,
    lengths: Value,
    /// The language of each, if there are several.
    language: Option<Value>,
}

/// The output of the text encoder with the voice added, and the voice vector of each utterance.
#[derive(Clone, Copy)]
struct Encoded {
    states: Value,
    voice: Value,
}

/// A batch whose text is aligned with its recordings.
struct Aligned {
    batch: Batch,
    /// The prior, expanded to frames, with its gradient.
    prior: Value,
    /// Frames per token, from the alignment.
    durations: Value,
    /// The predicted ln(1 + frames) per token.
    log_durations: Value,
    decoder_inputs: DecoderInputs,
}

/// The RNG keys of training, per row of each kind of tensor.
struct TrainingKeys {
    text: RngKeys,
    mel: RngKeys,
    utterances: RngKeys,
}

impl Acoustic {
    /// A model of `sizes` for texts of `vocabulary` and `mels` mel bands.
    pub fn new(sizes: ModelDims, vocabulary: Vocabulary, mels: u32) -> Result<Acoustic, EngineError> {
        let mut list = ParameterList::new();
        let text_encoder = TextEncoder::new(&mut list, &sizes, vocabulary)?;
        let voice = VoiceEncoder::new(&mut list, &sizes, mels)?;
        let voice_to_text = Linear::new(&mut list, "voice_to_text", sizes.voice_width, sizes.text_width)?;
        let prior = Linear::new(&mut list, "prior", sizes.text_width, mels)?;
        let durations = DurationPredictor::new(&mut list, &sizes)?;
        let heads = Heads::new(&mut list, &sizes)?;
        let decoder = Decoder::new(&mut list, &sizes, mels)?;
        let parameters = Arc::new(list.finish());
        Ok(Acoustic { sizes, mels, parameters, text_encoder, voice, voice_to_text, prior, durations, heads, decoder })
    }

    /// Its trainable parameters.
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

    fn training_losses(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> {
        let keys = TrainingKeys {
            text: RngKeys::new(g, &shape.text)?,
            mel: RngKeys::new(g, &shape.mel)?,
            utterances: RngKeys::new(g, &Rows::even(shape.count(), 1))?,
        };
        let aligned = self.encode_and_align(g, shape, Some(&keys))?;
        let per_element = inputs::per_element(g)?;
        let (mel, lengths) = (aligned.batch.mel, aligned.batch.mel_lengths);
        let frames = ValidFrames { rows: &shape.mel, lengths };
        let dropout = Dropout { p: self.sizes.decoder_dropout, keys: Some(&keys.mel) };
        let mel_loss = match self.sizes.decoder {
            DecoderKind::Direct => {
                let predicted = self.decoder.direct(g, aligned.decoder_inputs, frames, dropout)?;
                g.l1_loss(predicted, mel, &shape.mel, lengths, per_element)?
            }
            DecoderKind::Flow => {
                let path = sample_path(g, mel, &keys.mel)?;
                let predicted = self.decoder.velocity(g, aligned.decoder_inputs, path.noisy, frames, dropout)?;
                g.l2_loss(predicted, path.velocity, &shape.mel, lengths, per_element)?
            }
        };
        let per_frame = g.scale(per_element, f64::from(self.mels))?;
        let heads_loss = self.heads.loss(g, aligned.decoder_inputs.states, shape, lengths, per_frame)?;
        let (prior_loss, duration_loss) = self.text_losses(g, shape, &aligned)?;
        let loss = g.add(mel_loss, prior_loss)?;
        let loss = g.add(loss, duration_loss)?;
        let loss = g.add(loss, heads_loss)?;
        let losses = Losses::new("loss", loss).and("mel", mel_loss);
        Ok(losses.and("prior", prior_loss).and("duration", duration_loss))
    }

    /// Results besides the losses: `mean`, the loss of a constant mean prediction; the `alignment`; and the predicted
    /// `log_durations`.
    fn validation_losses(&self, g: &mut Graph, shape: &BatchShape) -> Result<Losses, EngineError> {
        let aligned = self.encode_and_align(g, shape, None)?;
        let per_element = inputs::per_element(g)?;
        // The flow starts from zero noise: deterministic, and the middle of the plausible outputs.
        let start = g.scale(aligned.decoder_inputs.prior, 0.0)?;
        let Batch { mel, mel_lengths, .. } = aligned.batch;
        let frames = ValidFrames { rows: &shape.mel, lengths: mel_lengths };
        let steps = EulerSteps { start, count: VALIDATION_STEPS };
        let predicted = self.decode(g, aligned.decoder_inputs, frames, steps)?;
        let mel_loss = g.l1_loss(predicted, mel, &shape.mel, mel_lengths, per_element)?;
        let (prior_loss, duration_loss) = self.text_losses(g, shape, &aligned)?;
        let mean = inputs::band_means(g, self.mels)?;
        let mean = g.broadcast_to(mean, g.shape(mel))?;
        let mean_loss = g.l1_loss(mean, mel, &shape.mel, mel_lengths, per_element)?;
        g.result("alignment", aligned.durations)?;
        let log_durations = g.cast(aligned.log_durations, g.acc_dtype())?;
        g.result("log_durations", log_durations)?;
        let losses = Losses::new("mel", mel_loss).and("mean", mean_loss);
        Ok(losses.and("prior", prior_loss).and("duration", duration_loss))
    }
}

impl Acoustic {
    /// Predicts the duration of each token. Result: `log_durations`, ln(1 + frames).
    pub fn predict_durations(&self, precision: DType, shape: &BatchShape) -> Result<Graph, EngineError> {
        let mut g = Graph::new(self.parameters.clone(), precision);
        let text = self.text(&mut g, shape)?;
        let reference = inputs::reference(&mut g, shape, self.mels)?;
        let encoded = self.encode(&mut g, shape, text, reference, None)?;
        let tokens = ValidFrames { rows: &shape.text, lengths: text.lengths };
        let predicted = self.durations.forward(&mut g, encoded.states, tokens, Dropout::OFF)?;
        let predicted = g.cast(predicted, g.acc_dtype())?;
        g.result("log_durations", predicted)?;
        Ok(g)
    }

    /// Aligns texts with their recordings. Result: `alignment`, the duration of each token in frames.
    pub fn align(&self, precision: DType, shape: &BatchShape) -> Result<Graph, EngineError> {
        let mut g = Graph::new(self.parameters.clone(), precision);
        let Batch { text, mel, mel_lengths, reference } = self.batch(&mut g, shape)?;
        let encoded = self.encode(&mut g, shape, text, reference, None)?;
        let prior = self.prior.forward(&mut g, encoded.states)?;
        let durations = g.align(prior, mel, &shape.text, text.lengths, &shape.mel, mel_lengths)?;
        g.result("alignment", durations)?;
        Ok(g)
    }

    /// Synthesises the mel spectrogram of a text whose tokens last `durations` (an input). Result: `mel`, not normalised.
    pub fn sample(&self, precision: DType, shape: &BatchShape) -> Result<Graph, EngineError> {
        let mut g = Graph::new(self.parameters.clone(), precision);
        let text = self.text(&mut g, shape)?;
        let reference = inputs::reference(&mut g, shape, self.mels)?;
        let durations = g.input("durations", TensorType::new(DType::I32, &[shape.text.total()]))?;
        let mel_lengths = g.input("mel_lengths", TensorType::new(DType::I32, &[shape.count()]))?;
        let encoded = self.encode(&mut g, shape, text, reference, None)?;
        let prior = self.prior.forward(&mut g, encoded.states)?;
        let decoder_inputs = self.regulate_length(&mut g, shape, encoded, prior, durations)?;
        let keys = RngKeys::new(&mut g, &shape.mel)?;
        let noise = g.noise(self.mels, &keys)?;
        let temperature = g.host(host::TEMPERATURE, TensorType::new(g.acc_dtype(), &[1]))?;
        let start = g.mul(noise, temperature)?;
        let frames = ValidFrames { rows: &shape.mel, lengths: mel_lengths };
        let steps = EulerSteps { start, count: SYNTHESIS_STEPS };
        let mel = self.decode(&mut g, decoder_inputs, frames, steps)?;
        let (mean, scale) = inputs::statistics(&mut g)?;
        let mel = g.cast(mel, g.acc_dtype())?;
        let mel = g.div(mel, scale)?;
        let mel = g.add(mel, mean)?;
        g.result("mel", mel)?;
        Ok(g)
    }

    /// From a batch to the decoder's inputs: encodes the text, aligns it with the recording, expands it to frames.
    fn encode_and_align(
        &self,
        g: &mut Graph,
        shape: &BatchShape,
        keys: Option<&TrainingKeys>,
    ) -> Result<Aligned, EngineError> {
        let batch = self.batch(g, shape)?;
        let Batch { text, mel, mel_lengths, reference } = batch;
        let encoded = self.encode(g, shape, text, reference, keys)?;
        let dropout = Dropout { p: self.sizes.text_dropout, keys: keys.map(|keys| &keys.text) };
        let prior = self.prior.forward(g, encoded.states)?;
        let tokens = ValidFrames { rows: &shape.text, lengths: text.lengths };
        let log_durations = self.durations.forward(g, encoded.states, tokens, dropout)?;
        let durations = g.align(prior, mel, &shape.text, text.lengths, &shape.mel, mel_lengths)?;
        let decoder_inputs = self.regulate_length(g, shape, encoded, prior, durations)?;
        let prior = g.expand(prior, durations, &shape.text, &shape.mel)?;
        Ok(Aligned { batch, prior, durations, log_durations, decoder_inputs })
    }

    /// The states of the texts in the voices of their references, and the voices.
    fn encode(
        &self,
        g: &mut Graph,
        shape: &BatchShape,
        text: Text,
        reference: Value,
        keys: Option<&TrainingKeys>,
    ) -> Result<Encoded, EngineError> {
        let dropout = Dropout { p: self.sizes.text_dropout, keys: keys.map(|keys| &keys.text) };
        let tokens = ValidFrames { rows: &shape.text, lengths: text.lengths };
        let states = self.text_encoder.forward(g, text.ids, text.language, tokens, dropout)?;
        let rows = shape.references();
        let lengths = vec![REFERENCE_FRAMES as i32; shape.count() as usize];
        let lengths = g.constant(&[shape.count()], &lengths);
        let mut voice = self.voice.forward(g, reference, ValidFrames { rows: &rows, lengths })?;
        if let Some(keys) = keys {
            // Dropout scales what it passes by 1 / (1 - p): this mask is 1 or 0.
            let mask = g.numbers(&[shape.count(), 1], &vec![1.0 - VOICE_DROPOUT; shape.count() as usize]);
            let mask = g.dropout(mask, VOICE_DROPOUT, &keys.utterances)?;
            voice = g.mul(voice, mask)?;
        }
        let voice_bias = self.voice_to_text.forward(g, voice)?;
        let voice_bias = g.row_broadcast(voice_bias, &shape.text)?;
        Ok(Encoded { states: g.add(states, voice_bias)?, voice })
    }

    /// The length regulator: repeats states and prior for their durations.
    fn regulate_length(
        &self,
        g: &mut Graph,
        shape: &BatchShape,
        Encoded { states, voice }: Encoded,
        prior: Value,
        durations: Value,
    ) -> Result<DecoderInputs, EngineError> {
        // Detached: only its own loss trains the prior, so that it stays suited to the alignment.
        let prior = g.detach(prior)?;
        let prior = g.expand(prior, durations, &shape.text, &shape.mel)?;
        let states = g.expand(states, durations, &shape.text, &shape.mel)?;
        Ok(DecoderInputs { states, prior, voice })
    }

    /// The mel spectrogram, without the recording. Only the flow decoder uses `steps`.
    fn decode(
        &self,
        g: &mut Graph,
        inputs: DecoderInputs,
        frames: ValidFrames<'_>,
        steps: EulerSteps,
    ) -> Result<Value, EngineError> {
        match self.sizes.decoder {
            DecoderKind::Direct => self.decoder.direct(g, inputs, frames, Dropout::OFF),
            DecoderKind::Flow => {
                let mel = integrate(g, &self.decoder, inputs, frames, steps)?;
                g.cast(mel, g.precision())
            }
        }
    }

    /// The losses of the prior and of the durations.
    fn text_losses(&self, g: &mut Graph, shape: &BatchShape, aligned: &Aligned) -> Result<(Value, Value), EngineError> {
        let (per_element, per_token) = (inputs::per_element(g)?, inputs::per_token(g)?);
        let Batch { text, mel, mel_lengths, .. } = aligned.batch;
        // The negative log-likelihood under a normal distribution of variance 1, up to a constant.
        let half = g.scale(per_element, 0.5)?;
        let prior_loss = g.l2_loss(aligned.prior, mel, &shape.mel, mel_lengths, half)?;
        let target = g.to_float(aligned.durations)?;
        let target = g.ln_1p(target)?;
        let target = g.reshape(target, &[shape.text.total(), 1])?;
        let duration_loss = g.l2_loss(aligned.log_durations, target, &shape.text, text.lengths, per_token)?;
        Ok((prior_loss, duration_loss))
    }

    fn batch(&self, g: &mut Graph, shape: &BatchShape) -> Result<Batch, EngineError> {
        let text = self.text(g, shape)?;
        let (mel, mel_lengths) = inputs::mel(g, shape, self.mels)?;
        let reference = inputs::reference(g, shape, self.mels)?;
        Ok(Batch { text, mel, mel_lengths, reference })
    }

    fn text(&self, g: &mut Graph, shape: &BatchShape) -> Result<Text, EngineError> {
        let (ids, lengths) = inputs::text(g, shape)?;
        let language = self.text_encoder.has_languages().then(|| inputs::language(g, shape)).transpose()?;
        Ok(Text { ids, lengths, language })
    }
}
