//! A model contract for tests that write checkpoints.

use tandem_audio::FeatureSettings;

use crate::contract::{Architecture, ComputeDtype, MelStatistics, ModelContract, Vocoder};

/// A custom model without texts.
pub(crate) fn custom_model() -> ModelContract {
    ModelContract {
        architecture: Architecture::Custom { name: "test".into() },
        text: None,
        features: FeatureSettings::default(),
        mel_statistics: MelStatistics { mean: -5.0, std: 2.0, band_means: vec![-5.0; 80] },
        compute_dtype: ComputeDtype::F32,
        vocoder: Vocoder::GriffinLim,
        duration_scale: None,
    }
}
