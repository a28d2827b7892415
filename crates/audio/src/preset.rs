//! The log-mel settings of published models. `tests/integration/presets.rs` compares each with its original.

use crate::choices::named;
use crate::{FeatureSettings, Framing, LogBase, MelNorm, MelScale, Spectrum};

/// Settings by the name of the model they come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FeaturePreset {
    /// Tandem's own: the default settings.
    #[default]
    Tandem,
    /// HiFi-GAN V1 to V3 (`meldataset.py` of jik876/hifi-gan, 22,050 Hz): Tandem's with 1e-9 added to the power.
    HifiGan,
    /// Tacotron 2 and WaveGlow (`layers.py` and `stft.py` of NVIDIA/tacotron2): Tandem's with centred frames.
    Tacotron2,
    /// Vocos for 24 kHz (`feature_extractors.py` of gemelo-ai/vocos with `configs/vocos.yaml`).
    Vocos,
    /// Whisper with 80 bands: all models before large-v3 (`audio.py` of openai/whisper).
    Whisper,
    /// Whisper with 128 bands: large-v3 and turbo.
    Whisper128,
}
named!(FeaturePreset {
    Tandem = "tandem",
    HifiGan = "hifi-gan",
    Tacotron2 = "tacotron2",
    Vocos = "vocos",
    Whisper = "whisper",
    Whisper128 = "whisper-128"
});

impl FeaturePreset {
    /// Its settings.
    pub fn settings(self) -> FeatureSettings {
        let tandem = FeatureSettings::default();
        match self {
            FeaturePreset::Tandem => tandem,
            FeaturePreset::HifiGan => FeatureSettings { power_epsilon: 1e-9, ..tandem },
            FeaturePreset::Tacotron2 => FeatureSettings { framing: Framing::Centered, ..tandem },
            FeaturePreset::Vocos => FeatureSettings {
                rate_hz: 24_000,
                n_mels: 100,
                fmax_hz: 12_000.0,
                floor: 1e-7,
                framing: Framing::Centered,
                mel_scale: MelScale::Htk,
                mel_norm: MelNorm::None,
                ..tandem
            },
            FeaturePreset::Whisper => FeatureSettings {
                rate_hz: 16_000,
                n_fft: 400,
                win_samples: 400,
                hop_samples: 160,
                floor: 1e-10,
                framing: Framing::CenteredWithoutLast,
                spectrum: Spectrum::Power,
                log: LogBase::Ten,
                top_range: Some(8.0),
                shift: 4.0,
                scale: 0.25,
                ..tandem
            },
            FeaturePreset::Whisper128 => FeatureSettings { n_mels: 128, ..FeaturePreset::Whisper.settings() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_possible_and_survives_storage() {
        for preset in FeaturePreset::ALL {
            let settings = preset.settings();
            settings.check().unwrap();
            assert_eq!(FeaturePreset::from_name(preset.name()), Some(preset));
            let stored = serde_json::to_string(&settings).unwrap();
            assert_eq!(serde_json::from_str::<FeatureSettings>(&stored).unwrap(), settings, "{stored}");
        }
        assert_eq!(FeaturePreset::from_name("melgan"), None);
        assert_eq!(FeaturePreset::default().settings(), FeatureSettings::default());
    }
}
