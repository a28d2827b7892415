//! What a batch brings and what the host tells, as values of a graph. A model may ask for the same thing twice: it is one
//! node.
//!
//! Batches hold utterances one behind the other, without a gap: [`BatchShape`] says where each begins, the lengths say how
//! much of its row each fills. What lies between the end of an utterance and the end of its row is undefined; ops and
//! losses that take lengths leave it out.

use tandem_device::DType;
use tandem_engine::{EngineError, Graph, TensorType, Value};

use crate::acoustic::host;
use crate::batch_shape::BatchShape;

/// The symbols of all texts, `[tokens]`, and how many each utterance has, `[utterances]`.
pub fn text(g: &mut Graph, shape: &BatchShape) -> Result<(Value, Value), EngineError> {
    let text = g.input("text", TensorType::new(DType::I32, &[shape.text.total()]))?;
    let lengths = g.input("text_lengths", TensorType::new(DType::I32, &[shape.count()]))?;
    Ok((text, lengths))
}

/// The spectra, `[frames, mels]`, of mean 0 and deviation 1 over the corpus, and how many frames each utterance has,
/// `[utterances]`.
pub fn mel(g: &mut Graph, shape: &BatchShape, mels: u32) -> Result<(Value, Value), EngineError> {
    let mel = g.input("mel", TensorType::new(DType::F32, &[shape.mel.total(), mels]))?;
    let mel = normalised(g, mel)?;
    let lengths = g.input("mel_lengths", TensorType::new(DType::I32, &[shape.count()]))?;
    Ok((mel, lengths))
}

/// For each utterance a few seconds of another one of the same speaker, `[utterances × reference frames, mels]`,
/// normalised like the spectra.
pub fn reference(g: &mut Graph, shape: &BatchShape, mels: u32) -> Result<Value, EngineError> {
    let reference = g.input("reference", TensorType::new(DType::F32, &[shape.references().total(), mels]))?;
    normalised(g, reference)
}

/// One over the numbers of the spectra (frames × bands) in the whole optimizer step.
pub fn per_number(g: &mut Graph) -> Result<Value, EngineError> {
    one(g, host::PER_NUMBER)
}

/// One over the tokens in the whole optimizer step.
pub fn per_token(g: &mut Graph) -> Result<Value, EngineError> {
    one(g, host::PER_TOKEN)
}

/// The mean of each band over the corpus, normalised like the spectra: what guessing without looking would say. Told to
/// validations only.
pub fn band_means(g: &mut Graph, mels: u32) -> Result<Value, EngineError> {
    g.host(host::BAND_MEAN, TensorType::new(g.acc_dtype(), &[mels]))
}

/// The mean of the spectra over the corpus, and one over their deviation.
pub fn statistics(g: &mut Graph) -> Result<(Value, Value), EngineError> {
    Ok((one(g, host::MEL_MEAN)?, one(g, host::MEL_SCALE)?))
}

/// A spectrum of mean 0 and deviation 1, in the element type of the graph.
fn normalised(g: &mut Graph, mel: Value) -> Result<Value, EngineError> {
    let (mean, scale) = statistics(g)?;
    let mel = g.cast(mel, g.acc_dtype())?;
    let mel = g.sub(mel, mean)?;
    let mel = g.mul(mel, scale)?;
    g.cast(mel, g.precision())
}

fn one(g: &mut Graph, name: &str) -> Result<Value, EngineError> {
    g.host(name, TensorType::new(g.acc_dtype(), &[1]))
}
