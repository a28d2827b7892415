//! Model presets.

use serde::{Deserialize, Serialize};

/// A named model size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preset {
    /// About 1.9 million parameters: demos on a CPU.
    Nano,
    /// About 11 million.
    Tiny,
    /// About 32 million.
    Small,
    /// About 104 million.
    Normal,
    /// About 468 million.
    Big,
}

/// How the decoder makes the mel spectrogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DecoderKind {
    /// It predicts the mel spectrogram. It learns quickly, but outputs the average of all plausible ones.
    Direct,
    /// It predicts the velocity from noise to speech (flow matching, Lipman et al. 2022).
    Flow,
}

/// The dimensions of the model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelDims {
    /// Channels of the text encoder.
    pub text_width: u32,
    /// Transformer blocks of the text encoder.
    pub text_layers: u32,
    /// Attention heads of the text encoder.
    pub text_heads: u32,
    /// Channels of the reference encoder.
    pub voice_width: u32,
    /// Channels of the duration predictor.
    pub duration_width: u32,
    /// Channels of the decoder.
    pub decoder_width: u32,
    /// Transformer blocks of the decoder.
    pub decoder_layers: u32,
    /// Attention heads of the decoder.
    pub decoder_heads: u32,
    /// How the decoder makes the mel spectrogram.
    #[serde(alias = "way")]
    pub decoder: DecoderKind,
    /// Dropout probability in the text encoder.
    pub text_dropout: f64,
    /// Dropout probability in the decoder.
    pub decoder_dropout: f64,
}

/// What the texts of a model are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Vocabulary {
    /// Number of token ids.
    pub symbols: u32,
    /// Number of languages. Two or more have a language embedding: a learnt vector for each.
    pub languages: u32,
}

impl Vocabulary {
    /// Texts of one language.
    pub const fn of_one_language(symbols: u32) -> Vocabulary {
        Vocabulary { symbols, languages: 1 }
    }
}

impl ModelDims {
    /// Fails with the reason if no model of ours could have these dimensions: they may come from a file, and memory is
    /// planned from them.
    pub fn check(&self) -> Result<(), String> {
        const WIDTHS: std::ops::RangeInclusive<u32> = 1..=16_384;
        const COUNTS: std::ops::RangeInclusive<u32> = 1..=512;
        let widths = [self.text_width, self.voice_width, self.duration_width, self.decoder_width];
        let counts = [self.text_layers, self.text_heads, self.decoder_layers, self.decoder_heads];
        let dropouts = [self.text_dropout, self.decoder_dropout];
        let demands = [
            (widths.iter().all(|width| WIDTHS.contains(width)), "widths of 1 to 16384"),
            (counts.iter().all(|count| COUNTS.contains(count)), "1 to 512 layers and heads"),
            (dropouts.iter().all(|share| (0.0..1.0).contains(share)), "dropout of at least 0 and below 1"),
        ];
        match demands.iter().find(|(met, _)| !met) {
            Some((_, demand)) => Err(format!("expected {demand}, found {self:?}")),
            None => Ok(()),
        }
    }
}

impl Preset {
    /// All presets, smallest first.
    pub const ALL: [Preset; 5] = [Preset::Nano, Preset::Tiny, Preset::Small, Preset::Normal, Preset::Big];

    /// Its name in flags and files.
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

    /// Its dimensions.
    pub fn sizes(self) -> ModelDims {
        let (text, decoder) = match self {
            Preset::Nano => (stack(128, 2, 2), stack(128, 2, 2)),
            Preset::Tiny => (stack(192, 4, 2), stack(256, 4, 4)),
            Preset::Small => (stack(256, 6, 4), stack(384, 6, 6)),
            Preset::Normal => (stack(384, 8, 6), stack(512, 12, 8)),
            Preset::Big => (stack(512, 10, 8), stack(1024, 16, 16)),
        };
        let nano = self == Preset::Nano;
        ModelDims {
            text_width: text.width,
            text_layers: text.layers,
            text_heads: text.heads,
            voice_width: if nano { 64 } else { decoder.width },
            duration_width: if nano { 128 } else { 256 },
            decoder_width: decoder.width,
            decoder_layers: decoder.layers,
            decoder_heads: decoder.heads,
            decoder: if nano { DecoderKind::Direct } else { DecoderKind::Flow },
            text_dropout: 0.1,
            decoder_dropout: 0.05,
        }
    }
}

/// A stack of transformer blocks.
struct Stack {
    width: u32,
    layers: u32,
    heads: u32,
}

fn stack(width: u32, layers: u32, heads: u32) -> Stack {
    Stack { width, layers, heads }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Acoustic;

    #[test]
    fn presets_have_the_number_of_parameters_that_their_docs_state() {
        let stated = [1.9e6, 11e6, 32e6, 104e6, 468e6];
        for (preset, stated) in Preset::ALL.into_iter().zip(stated) {
            let count =
                Acoustic::new(preset.sizes(), Vocabulary::of_one_language(100), 80).unwrap().parameters().count()
                    as f64;
            let ratio = count / stated;
            assert!((0.97..1.03).contains(&ratio), "{}: {:.1} million", preset.name(), count / 1e6);
        }
    }
}
