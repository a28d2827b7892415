//! A model contract for checkpoints that are only written and read.

use tandem_audio::FeatureSettings;
use tandem_checkpoint::{Architecture, ComputeDtype, MelStatistics, ModelContract, Vocoder};

/// A custom model with this name.
pub(crate) fn custom_model(name: &str) -> ModelContract {
    ModelContract {
        architecture: Architecture::Custom { name: name.to_owned() },
        text: None,
        features: FeatureSettings::default(),
        mel_statistics: MelStatistics { mean: -5.0, std: 2.0, band_means: vec![-5.0; 80] },
        compute_dtype: ComputeDtype::F32,
        vocoder: Vocoder::GriffinLim,
        duration_scale: None,
    }
}
