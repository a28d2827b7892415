//! What planning needs to know about a model: how many bytes it needs, and for how long.

use tandem_device::DeviceKind;
use tandem_feed::{Bucket, MELS};
use tandem_model::{Preset, REFERENCE_FRAMES, VoiceReferences};

use crate::placement::Precision;

/// A line of a memory table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanLine {
    /// What it is for.
    pub name: String,
    /// Size.
    pub bytes: u64,
}

impl PlanLine {
    /// `bytes` for `name`.
    pub fn new(name: impl Into<String>, bytes: u64) -> PlanLine {
        PlanLine { name: name.into(), bytes }
    }
}

/// The programs of a model. They share working memory, so only the largest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProgramKind {
    /// Forward and backward of one micro-batch, added into the gradients.
    Accumulate,
    /// Gradient clipping, optimizer step, EMA.
    Update,
    /// Forward pass with losses, on validation data.
    Validate,
    /// Forward pass without targets, for audio samples.
    Sample,
}

impl ProgramKind {
    /// All programs.
    pub const ALL: [ProgramKind; 4] =
        [ProgramKind::Accumulate, ProgramKind::Update, ProgramKind::Validate, ProgramKind::Sample];
}

/// The lines of [`ModelMemory::persistent`] that a checkpoint has.
const SAVED_LINES: [&str; 4] =
    ["parameters", "averaged parameters", "optimizer first moment", "optimizer second moment"];
/// Bytes of the reference of a voice.
const VOICE_BYTES: u64 = REFERENCE_FRAMES as u64 * MELS * 4;
/// More than the names of all tensors and the two JSON files take.
const CHECKPOINT_OVERHEAD_BYTES: u64 = 1 << 20;

/// The memory of a model. All sizes are multiples of the block size, so that sums are exact.
pub trait ModelMemory {
    /// A short description of the model.
    fn describe(&self) -> String;
    /// The name of a custom model; `None` for a preset.
    fn custom_name(&self) -> Option<String> {
        None
    }
    /// Why a program could not be built for one of the shapes asked for; `None` if all could.
    fn build_error(&self) -> Option<String> {
        None
    }
    /// What is allocated for the whole run: parameters, gradients, optimizer state.
    fn persistent(&self) -> Vec<PlanLine>;
    /// Bytes of a checkpoint with the references of `num_voices` voices, at most: the weights, their EMA, both moments.
    fn checkpoint_bytes(&self, num_voices: u64) -> u64 {
        let saved = self.persistent().into_iter().filter(|line| SAVED_LINES.contains(&line.name.as_str()));
        let voices = num_voices.min(VoiceReferences::MAX_VOICES as u64) * VOICE_BYTES;
        saved.map(|line| line.bytes).sum::<u64>() + voices + CHECKPOINT_OVERHEAD_BYTES
    }
    /// Bytes of the constant tables of all programs of these buckets, allocated for the whole run.
    fn tables(&self, buckets: &[Bucket]) -> u64;
    /// Bytes of activations and workspaces of one program on one bucket.
    fn bytes(&self, program: ProgramKind, bucket: &Bucket) -> u64;
}

/// Models to choose from. A plan that does not fit can try a smaller one.
pub trait ModelCatalog {
    /// The memory of the chosen model on a device of this kind.
    fn memory_of(&self, choice: ModelChoice, device: DeviceKind) -> Box<dyn ModelMemory>;
}

/// Which model, and how it is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelChoice {
    /// The preset.
    pub preset: Preset,
    /// Precision of the training step.
    pub precision: Precision,
    /// Whether there is an EMA of the weights.
    pub ema: bool,
    /// Whether an optimizer step accumulates the gradients of several micro-batches.
    pub accumulates: bool,
    /// Whether programs of exact shapes are compiled during training.
    pub exact_shapes: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::{Id, SettingKind};

    #[test]
    fn the_flag_takes_exactly_the_presets() {
        let names: Vec<&str> = Preset::ALL.map(Preset::name).to_vec();
        assert_eq!(Id::ModelSize.setting().kind, SettingKind::Choice(&["nano", "tiny", "small", "normal", "big"]));
        assert_eq!(names, ["nano", "tiny", "small", "normal", "big"]);
        assert!(names.into_iter().all(|name| Preset::named(name).is_some_and(|preset| preset.name() == name)));
    }
}
