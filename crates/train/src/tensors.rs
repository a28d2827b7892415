//! Parameters and what is kept for each of them, by name: from the spans of a session to a checkpoint and back.

use std::sync::Arc;

use tandem_engine::{ParameterSpan, Parameters, ProgramSet, Session};
use tandem_model::VoiceReferences;

use crate::checkpoint::{Checkpoint, Dtype, EMA_PREFIX, TensorRef, TensorSpec};
use crate::error::TrainError;

/// Spans that last, the prefix of their tensors, and whether they are weights.
const KEPT: [(ParameterSpan, &str, bool); 4] = [
    (ParameterSpan::Parameters, "", true),
    (ParameterSpan::Average, EMA_PREFIX, true),
    (ParameterSpan::FirstMoment, "first_moment.", false),
    (ParameterSpan::SecondMoment, "second_moment.", false),
];

/// How the spans of a session are called in a checkpoint.
#[derive(Clone, Debug)]
pub struct SpanNames {
    parameters: Arc<Parameters>,
    spans: Vec<ParameterSpan>,
}

/// The tensors of a checkpoint, copied off the device.
#[derive(Clone, Debug)]
pub struct TensorBytes {
    weights: Vec<Named>,
    optimizer: Vec<Named>,
}

#[derive(Clone, Debug)]
struct Named {
    name: String,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl SpanNames {
    /// The names for a session of `set`.
    pub fn of(set: &ProgramSet) -> SpanNames {
        let has = |span: &ParameterSpan| set.spans().contains(span);
        let spans = KEPT.iter().map(|(span, ..)| *span).filter(has).collect();
        SpanNames { parameters: set.parameters().clone(), spans }
    }

    /// The spans that a checkpoint keeps.
    pub fn kept(&self) -> Vec<ParameterSpan> {
        self.spans.clone()
    }

    /// Copies everything a checkpoint keeps. Waits for the device.
    pub fn copy(&self, session: &Session) -> Result<TensorBytes, TrainError> {
        let mut tensors = TensorBytes { weights: Vec::new(), optimizer: Vec::new() };
        for (span, prefix, is_weight) in self.named_spans() {
            let values: Vec<f32> = session.read_span(span)?;
            let into = if is_weight { &mut tensors.weights } else { &mut tensors.optimizer };
            for (_, parameter) in self.parameters.iter() {
                let at = parameter.offset as usize..(parameter.offset + parameter.shape.elements()) as usize;
                into.push(Named {
                    name: format!("{prefix}{}", parameter.name),
                    shape: dims(parameter.shape.dims()),
                    bytes: bytemuck::cast_slice(&values[at]).to_vec(),
                });
            }
        }
        Ok(tensors)
    }

    /// Reads one span of a checkpoint; its tensors have been checked by [`SpanNames::expect`].
    pub fn read(&self, checkpoint: &Checkpoint, span: ParameterSpan) -> Result<Vec<f32>, TrainError> {
        let mut values = vec![0.0_f32; self.parameters.elements() as usize];
        for (_, prefix, is_weight) in self.named_spans().filter(|(known, ..)| *known == span) {
            let file = if is_weight { &checkpoint.weights } else { &checkpoint.optimizer };
            for (_, parameter) in self.parameters.iter() {
                let at = parameter.offset as usize..(parameter.offset + parameter.shape.elements()) as usize;
                file.read_into(&format!("{prefix}{}", parameter.name), bytemuck::cast_slice_mut(&mut values[at]))?;
            }
        }
        Ok(values)
    }

    /// Checks that a checkpoint has exactly these tensors, but for voices: those are of the corpus, not of the model.
    pub fn expect(&self, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        for (file, weights) in [(&checkpoint.weights, true), (&checkpoint.optimizer, false)] {
            let named = self.named(weights);
            let mut specs: Vec<TensorSpec<'_>> =
                named.iter().map(|(name, shape)| TensorSpec { name, dtype: Dtype::F32, shape }).collect();
            let voices = file.names().filter(|name| name.starts_with(VoiceReferences::PREFIX));
            specs.extend(voices.filter_map(|name| file.spec(name)));
            file.expect(&specs)?;
        }
        Ok(())
    }

    fn named(&self, weights: bool) -> Vec<(String, Vec<usize>)> {
        let spans = self.named_spans().filter(|(.., is_weight)| *is_weight == weights);
        let of_span = |(_, prefix, _): (ParameterSpan, &'static str, bool)| {
            self.parameters.iter().map(move |(_, p)| (format!("{prefix}{}", p.name), dims(p.shape.dims())))
        };
        spans.flat_map(of_span).collect()
    }

    fn named_spans(&self) -> impl Iterator<Item = (ParameterSpan, &'static str, bool)> {
        KEPT.into_iter().filter(|(span, ..)| self.spans.contains(span))
    }
}

fn dims(dims: &[u32]) -> Vec<usize> {
    dims.iter().map(|&dim| dim as usize).collect()
}

impl TensorBytes {
    /// Keeps voices beside the weights, of `bands` bands.
    pub fn add_voices(&mut self, voices: &VoiceReferences, bands: usize) {
        let named = |(name, mel): (String, &[f32])| Named {
            name,
            shape: vec![mel.len() / bands.max(1), bands],
            bytes: bytemuck::cast_slice(mel).to_vec(),
        };
        self.weights.extend(voices.tensors().map(named));
    }

    /// Parameters and their averages.
    pub fn weights(&self) -> Vec<TensorRef<'_>> {
        refs(&self.weights)
    }

    /// What the optimizer keeps.
    pub fn optimizer(&self) -> Vec<TensorRef<'_>> {
        refs(&self.optimizer)
    }
}

fn refs(named: &[Named]) -> Vec<TensorRef<'_>> {
    named.iter().map(|t| TensorRef { name: &t.name, dtype: Dtype::F32, shape: &t.shape, bytes: &t.bytes }).collect()
}
