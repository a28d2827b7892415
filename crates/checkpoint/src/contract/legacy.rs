//! `model.json` of formats 1 and 2, and their conversion. The only place that knows them.
//!
//! Format 1 did not say whether symbols are phonemes or characters, and often not which languages it was trained on:
//! both are derived from the symbols, here and nowhere else. In both formats all languages have the same units, and none
//! has an embedding.

use serde::Deserialize;
use serde_json::Value;
use tandem_audio::FeatureSettings;
use tandem_model::{ModelDims, Preset};
use tandem_text::{Language, LanguageRules, Phonemizer, Script, SymbolTable};

use super::{Architecture, ComputeDtype, MelStatistics, ModelContract, ModelText, Vocoder};

/// `model.json` of format 1.
#[derive(Deserialize)]
pub(super) struct LegacyModel {
    /// The speech model has a preset and sizes; a custom model has its name.
    preset: Option<Preset>,
    sizes: Option<ModelDims>,
    own_model: Option<String>,
    symbols: Option<Vec<String>>,
    #[serde(default)]
    text: LegacyText,
    features: LegacyFeatures,
    statistics: MelStatistics,
    compute: ComputeDtype,
    duration_scale: Option<f64>,
}

/// Early files of format 1 do not have it; the defaults are what they were trained with.
#[derive(Default, Deserialize)]
#[serde(default)]
struct LegacyText {
    /// `--lang`.
    language: Option<String>,
    blanks: bool,
    keeps_harakat: bool,
    longest_tokens: Option<usize>,
}

#[derive(Deserialize)]
struct LegacyFeatures {
    rate_hz: u32,
    n_fft: usize,
    /// Early files of format 1 do not have it; then it is `n_fft`.
    win_samples: Option<usize>,
    hop_samples: usize,
    n_mels: usize,
    fmin_hz: f64,
    fmax_hz: f64,
    floor: f64,
}

impl LegacyModel {
    /// The same model in today's format. Fails with the reason.
    pub(super) fn convert(self) -> Result<ModelContract, String> {
        let architecture = match (self.preset, self.sizes, self.own_model) {
            (Some(name), Some(dims), _) => Architecture::Preset { name, dims },
            (_, _, Some(name)) => Architecture::Custom { name },
            _ => return Err("expected \"preset\" and \"sizes\", or \"own_model\"".to_owned()),
        };
        Ok(ModelContract {
            architecture,
            text: self.symbols.map(|symbols| self.text.convert(symbols)),
            features: self.features.convert(),
            mel_statistics: self.statistics,
            compute_dtype: self.compute,
            // Format 1 knew no other.
            vocoder: Vocoder::GriffinLim,
            duration_scale: self.duration_scale,
        })
    }
}

impl LegacyText {
    fn convert(self, symbols: Vec<String>) -> ModelText {
        let units = units_of(&symbols);
        let languages = self.language.map_or_else(|| languages_of(&symbols, units), |language| vec![language]);
        let text = Format2Text {
            units,
            languages,
            symbols,
            blanks: self.blanks,
            keep_harakat: self.keeps_harakat,
            longest_tokens: self.longest_tokens,
        };
        text.convert()
    }
}

impl LegacyFeatures {
    fn convert(self) -> FeatureSettings {
        let LegacyFeatures { rate_hz, n_fft, win_samples, hop_samples, n_mels, fmin_hz, fmax_hz, floor } = self;
        let win_samples = win_samples.unwrap_or(n_fft);
        // Format 1 knew no other arithmetic, framing, spectrum, mel scale or logarithm than the default.
        let rest = FeatureSettings::default();
        FeatureSettings { rate_hz, n_fft, win_samples, hop_samples, n_mels, fmin_hz, fmax_hz, floor, ..rest }
    }
}

/// `"text"` of format 2.
#[derive(Deserialize)]
struct Format2Text {
    units: Units,
    languages: Vec<String>,
    symbols: Vec<String>,
    blanks: bool,
    keep_harakat: bool,
    longest_tokens: Option<usize>,
}

/// What a symbol stands for, in every language of the model.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Units {
    Characters,
    Phonemes,
}

/// A model of format 2 as one of format 3: only `"text"` differs.
pub(super) fn convert_format_2(mut model: Value) -> serde_json::Result<Value> {
    let text: Option<Format2Text> = serde_json::from_value(model["text"].take())?;
    model["text"] = serde_json::to_value(text.map(Format2Text::convert))?;
    Ok(model)
}

impl Format2Text {
    fn convert(self) -> ModelText {
        ModelText {
            languages: self.languages.into_iter().map(|tag| self.units.rules(tag)).collect(),
            language_embedding: false,
            symbols: self.symbols,
            blanks: self.blanks,
            keep_harakat: self.keep_harakat,
            longest_tokens: self.longest_tokens,
            espeak_version: None,
            lexicon: None,
        }
    }
}

impl Units {
    fn rules(self, tag: String) -> LanguageRules {
        let phonemizer = match self {
            Units::Characters => Phonemizer::Characters,
            Units::Phonemes => Phonemizer::Dictionary,
        };
        let script = match Language::from_tag(&tag) {
            Language::English => Some(Script::LATIN),
            Language::Persian => Some(Script::ARABIC),
            Language::Other => None,
        };
        LanguageRules { tag, phonemizer, script }
    }
}

/// Phones have names of more than one character. The first two symbols are padding and blank.
fn units_of(symbols: &[String]) -> Units {
    let has_phones = symbols.iter().skip(2).any(|symbol| symbol.chars().count() > 1);
    if has_phones { Units::Phonemes } else { Units::Characters }
}

/// The languages with a fixed symbol table that the symbols contain; `und` if there is none.
fn languages_of(symbols: &[String], units: Units) -> Vec<String> {
    let contains = |language| {
        let phonemizer = units.rules(String::new()).phonemizer;
        let fixed = SymbolTable::fixed(language, phonemizer);
        fixed.is_some_and(|fixed| fixed.symbols().iter().all(|symbol| symbols.contains(symbol)))
    };
    let known = [(Language::English, "en"), (Language::Persian, "fa")];
    let found: Vec<String> =
        known.into_iter().filter(|(language, _)| contains(*language)).map(|(_, tag)| tag.to_owned()).collect();
    if found.is_empty() { vec!["und".to_owned()] } else { found }
}
