//! Parameters, their EMA and their optimizer state by name: from the spans of a session to a checkpoint and back.

use std::sync::Arc;

use tandem_checkpoint::{Checkpoint, Dtype, EMA_PREFIX, Fingerprint, TensorFile, TensorRef, TensorSpec};
use tandem_engine::{ParameterSpan, Parameters, ProgramSet, Session};
use tandem_model::VoiceReferences;

use crate::error::TrainError;

/// A span that is saved in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SavedSpan {
    span: ParameterSpan,
    /// The prefix of its tensors.
    prefix: &'static str,
    file: SpanFile,
}

/// The file of a checkpoint that holds a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpanFile {
    Weights,
    Optimizer,
}

const SAVED: [SavedSpan; 4] = [
    SavedSpan { span: ParameterSpan::Parameters, prefix: "", file: SpanFile::Weights },
    SavedSpan { span: ParameterSpan::Average, prefix: EMA_PREFIX, file: SpanFile::Weights },
    SavedSpan { span: ParameterSpan::FirstMoment, prefix: "first_moment.", file: SpanFile::Optimizer },
    SavedSpan { span: ParameterSpan::SecondMoment, prefix: "second_moment.", file: SpanFile::Optimizer },
];

impl SpanFile {
    fn of(self, checkpoint: &Checkpoint) -> &TensorFile {
        match self {
            SpanFile::Weights => &checkpoint.weights,
            SpanFile::Optimizer => &checkpoint.optimizer,
        }
    }
}

/// The names of a session's parameters in a checkpoint.
#[derive(Clone, Debug)]
pub struct TensorNames {
    parameters: Arc<Parameters>,
    spans: Vec<SavedSpan>,
}

/// The tensors of a checkpoint, copied to the host.
#[derive(Clone, Debug)]
pub struct CheckpointTensors {
    weights: Vec<HostTensor>,
    optimizer: Vec<HostTensor>,
}

#[derive(Clone, Debug)]
struct HostTensor {
    name: String,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl TensorNames {
    /// The names for a session of `set`.
    pub fn of(set: &ProgramSet) -> TensorNames {
        let spans = SAVED.into_iter().filter(|saved| set.spans().contains(&saved.span)).collect();
        TensorNames { parameters: set.parameters().clone(), spans }
    }

    /// The spans that are saved.
    pub fn spans(&self) -> Vec<ParameterSpan> {
        self.spans.iter().map(|saved| saved.span).collect()
    }

    /// Copies all saved spans to the host. Waits for the device.
    pub fn copy(&self, session: &Session) -> Result<CheckpointTensors, TrainError> {
        let mut tensors = CheckpointTensors { weights: Vec::new(), optimizer: Vec::new() };
        for SavedSpan { span, prefix, file } in &self.spans {
            let values: Vec<f32> = session.read_span(*span)?;
            let into = match file {
                SpanFile::Weights => &mut tensors.weights,
                SpanFile::Optimizer => &mut tensors.optimizer,
            };
            for (_, parameter) in self.parameters.iter() {
                let at = parameter.offset as usize..(parameter.offset + parameter.shape.elements()) as usize;
                into.push(HostTensor {
                    name: format!("{prefix}{}", parameter.name),
                    shape: dims(parameter.shape.dims()),
                    bytes: bytemuck::cast_slice(&values[at]).to_vec(),
                });
            }
        }
        Ok(tensors)
    }

    /// Reads one span of a checkpoint, which [`TensorNames::expect`] has checked.
    pub fn read(&self, checkpoint: &Checkpoint, span: ParameterSpan) -> Result<Vec<f32>, TrainError> {
        let mut values = vec![0.0_f32; self.parameters.elements() as usize];
        for SavedSpan { prefix, file, .. } in self.spans.iter().filter(|saved| saved.span == span) {
            let file = file.of(checkpoint);
            for (_, parameter) in self.parameters.iter() {
                let at = parameter.offset as usize..(parameter.offset + parameter.shape.elements()) as usize;
                file.read_into(&format!("{prefix}{}", parameter.name), bytemuck::cast_slice_mut(&mut values[at]))?;
            }
        }
        Ok(values)
    }

    /// Checks that a checkpoint has exactly these tensors, except voices: those depend on the corpus, not on the model.
    pub fn expect(&self, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        for span_file in [SpanFile::Weights, SpanFile::Optimizer] {
            let file = span_file.of(checkpoint);
            let expected = self.expected_in(span_file);
            let mut specs: Vec<TensorSpec<'_>> =
                expected.iter().map(|(name, shape)| TensorSpec { name, dtype: Dtype::F32, shape }).collect();
            let voices = file.names().filter(|name| name.starts_with(VoiceReferences::PREFIX));
            specs.extend(voices.filter_map(|name| file.spec(name)));
            file.expect(&specs)?;
        }
        Ok(())
    }

    /// Names and shapes of the tensors in one file.
    fn expected_in(&self, file: SpanFile) -> Vec<(String, Vec<usize>)> {
        let prefixes = self.spans.iter().filter(|saved| saved.file == file).map(|saved| saved.prefix);
        let of_span = |prefix: &'static str| {
            self.parameters.iter().map(move |(_, p)| (format!("{prefix}{}", p.name), dims(p.shape.dims())))
        };
        prefixes.flat_map(of_span).collect()
    }
}

fn dims(dims: &[u32]) -> Vec<usize> {
    dims.iter().map(|&dim| dim as usize).collect()
}

impl CheckpointTensors {
    /// Adds reference voices of `bands` mel bands to the weights.
    pub fn add_voices(&mut self, voices: &VoiceReferences, bands: usize) {
        let tensor = |(name, mel): (String, &[f32])| HostTensor {
            name,
            shape: vec![mel.len() / bands.max(1), bands],
            bytes: bytemuck::cast_slice(mel).to_vec(),
        };
        self.weights.extend(voices.tensors().map(tensor));
    }

    /// A hash of every tensor.
    pub fn hash(&self) -> String {
        let mut fingerprint = Fingerprint::new();
        for tensor in self.weights.iter().chain(&self.optimizer) {
            fingerprint.take(&[&tensor.name]);
            fingerprint.take_bytes(&tensor.bytes);
        }
        fingerprint.hex()
    }

    /// Parameters and their EMA, and voices.
    pub fn weights(&self) -> Vec<TensorRef<'_>> {
        refs(&self.weights)
    }

    /// Optimizer state.
    pub fn optimizer(&self) -> Vec<TensorRef<'_>> {
        refs(&self.optimizer)
    }
}

fn refs(tensors: &[HostTensor]) -> Vec<TensorRef<'_>> {
    tensors.iter().map(|t| TensorRef { name: &t.name, dtype: Dtype::F32, shape: &t.shape, bytes: &t.bytes }).collect()
}
