//! The sizes models come in.

use serde::{Deserialize, Serialize};

/// A size with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// About 2 million parameters: demos on a CPU.
    Nano,
    /// About 11 million.
    Tiny,
    /// About 32 million.
    Small,
    /// About 104 million.
    Normal,
    /// About 465 million.
    Big,
}

/// How a decoder comes to a spectrum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecoderKind {
    /// It says the spectrum. Quick to learn; what could be one thing or another is averaged.
    Direct,
    /// It says where to move on the way from noise to speech (flow matching).
    Flow,
}

/// Width and depth of every part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelDims {
    /// Channels of the text encoder.
    pub text_width: u32,
    /// Its blocks.
    pub text_layers: u32,
    /// Its attention heads.
    pub text_heads: u32,
    /// Channels of the reference encoder.
    pub voice_width: u32,
    /// Channels of the duration predictor.
    pub duration_width: u32,
    /// Channels of the decoder.
    pub decoder_width: u32,
    /// Its blocks.
    pub decoder_layers: u32,
    /// Its attention heads.
    pub decoder_heads: u32,
    /// How it comes to a spectrum.
    pub way: DecoderKind,
    /// Dropped activations in the text encoder.
    pub text_dropout: f64,
    /// Dropped activations in the decoder.
    pub decoder_dropout: f64,
}

impl Preset {
    /// All of them, smallest first.
    pub const ALL: [Preset; 5] = [Preset::Nano, Preset::Tiny, Preset::Small, Preset::Normal, Preset::Big];

    /// What it is called in flags and files.
    pub fn name(self) -> &'static str {
        match self {
            Preset::Nano => "nano",
            Preset::Tiny => "tiny",
            Preset::Small => "small",
            Preset::Normal => "normal",
            Preset::Big => "big",
        }
    }

    /// The preset called `name`.
    pub fn named(name: &str) -> Option<Preset> {
        Preset::ALL.into_iter().find(|preset| preset.name() == name)
    }

    /// How wide and deep it is.
    pub fn sizes(self) -> ModelDims {
        let sizes = |text: [u32; 3], voice_width, duration_width, decoder: [u32; 3], way| ModelDims {
            text_width: text[0],
            text_layers: text[1],
            text_heads: text[2],
            voice_width,
            duration_width,
            decoder_width: decoder[0],
            decoder_layers: decoder[1],
            decoder_heads: decoder[2],
            way,
            text_dropout: 0.1,
            decoder_dropout: 0.05,
        };
        match self {
            Preset::Nano => sizes([128, 2, 2], 64, 128, [128, 2, 2], DecoderKind::Direct),
            Preset::Tiny => sizes([192, 4, 2], 256, 256, [256, 4, 4], DecoderKind::Flow),
            Preset::Small => sizes([256, 6, 4], 384, 256, [384, 6, 6], DecoderKind::Flow),
            Preset::Normal => sizes([384, 8, 6], 512, 256, [512, 12, 8], DecoderKind::Flow),
            Preset::Big => sizes([512, 10, 8], 1024, 256, [1024, 16, 16], DecoderKind::Flow),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Acoustic;

    #[test]
    fn presets_have_about_the_parameters_they_promise() {
        let promised = [2e6, 12e6, 32e6, 93e6, 480e6];
        for (preset, promised) in Preset::ALL.into_iter().zip(promised) {
            let count = Acoustic::new(preset.sizes(), 100, 80).unwrap().parameters().count() as f64;
            let ratio = count / promised;
            assert!((0.85..1.15).contains(&ratio), "{}: {:.1} million", preset.name(), count / 1e6);
        }
    }
}
