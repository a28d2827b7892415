//! Batch fields and host values, as values of a graph. Asking for one twice gives the same node.
//!
//! Batches are packed: utterances lie back to back. [`BatchShape`] has the row offsets, the lengths say how much of its row
//! each utterance fills. Elements between the end of an utterance and the end of its row are undefined; ops and losses that
//! take lengths ignore them.

use tandem_device::DType;
use tandem_engine::{EngineError, Graph, TensorType, Value};

use crate::acoustic::host;
use crate::batch_shape::BatchShape;

/// The token ids of all texts, `[tokens]`, and the number of tokens of each utterance, `[utterances]`.
pub fn text(g: &mut Graph, shape: &BatchShape) -> Result<(Value, Value), EngineError> {
    let text = g.input("text", TensorType::new(DType::I32, &[shape.text.total()]))?;
    let lengths = g.input("text_lengths", TensorType::new(DType::I32, &[shape.count()]))?;
    Ok((text, lengths))
}

/// The language of each utterance, as its id in the language embedding, `[utterances]`.
pub fn language(g: &mut Graph, shape: &BatchShape) -> Result<Value, EngineError> {
    g.input("language", TensorType::new(DType::I32, &[shape.count()]))
}

/// The mel spectrograms, `[frames, mels]`, normalised to mean 0 and standard deviation 1 over the corpus, and the number of
/// frames of each utterance, `[utterances]`.
pub fn mel(g: &mut Graph, shape: &BatchShape, mels: u32) -> Result<(Value, Value), EngineError> {
    let mel = g.input("mel", TensorType::new(DType::F32, &[shape.mel.total(), mels]))?;
    let mel = normalised(g, mel)?;
    let lengths = g.input("mel_lengths", TensorType::new(DType::I32, &[shape.count()]))?;
    Ok((mel, lengths))
}

/// The voice references: for each utterance a few seconds of another one by the same speaker, `[utterances × reference frames,
/// mels]`, normalised like the mel spectrograms.
pub fn reference(g: &mut Graph, shape: &BatchShape, mels: u32) -> Result<Value, EngineError> {
    let reference = g.input("reference", TensorType::new(DType::F32, &[shape.references().total(), mels]))?;
    normalised(g, reference)
}

/// One over the number of mel elements (frames × bands) in the optimizer step.
pub fn per_element(g: &mut Graph) -> Result<Value, EngineError> {
    scalar(g, host::PER_ELEMENT)
}

/// One over the number of tokens in the optimizer step.
pub fn per_token(g: &mut Graph) -> Result<Value, EngineError> {
    scalar(g, host::PER_TOKEN)
}

/// The mean of each mel band over the corpus, normalised like the mel spectrograms: the baseline of a constant mean
/// prediction. Validation programs only.
pub fn band_means(g: &mut Graph, mels: u32) -> Result<Value, EngineError> {
    g.host(host::BAND_MEAN, TensorType::new(g.acc_dtype(), &[mels]))
}

/// The mean of the mel spectrograms over the corpus, and one over their standard deviation.
pub fn statistics(g: &mut Graph) -> Result<(Value, Value), EngineError> {
    Ok((scalar(g, host::MEL_MEAN)?, scalar(g, host::MEL_SCALE)?))
}

/// A mel spectrogram of mean 0 and standard deviation 1, in the element type of the graph.
fn normalised(g: &mut Graph, mel: Value) -> Result<Value, EngineError> {
    let (mean, scale) = statistics(g)?;
    let mel = g.cast(mel, g.acc_dtype())?;
    let mel = g.sub(mel, mean)?;
    let mel = g.mul(mel, scale)?;
    g.cast(mel, g.precision())
}

fn scalar(g: &mut Graph, name: &str) -> Result<Value, EngineError> {
    g.host(name, TensorType::new(g.acc_dtype(), &[1]))
}
