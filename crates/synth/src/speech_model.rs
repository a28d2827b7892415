//! The model of a checkpoint: its contract as the types that synthesis works with.

use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tandem_audio::FeatureSettings;
use tandem_checkpoint::{Architecture, ComputeDtype, MelStatistics, ModelContract, ModelText, Vocoder};
use tandem_device::DType;
use tandem_model::ModelDims;
use tandem_text::{Language, SymbolTable, TextOptions, VERSION};

use crate::error::SynthError;

/// Duration corrections outside this range are ignored: the model has learned too little to be corrected.
const DURATION_SCALES: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// A trained speech model: everything but its weights.
#[derive(Clone, Debug)]
pub(crate) struct SpeechModel {
    pub(crate) dims: ModelDims,
    pub(crate) symbols: Arc<SymbolTable>,
    pub(crate) text: TextOptions,
    /// The languages of the training texts, at least one. The first is the default.
    pub(crate) languages: Vec<String>,
    pub(crate) features: FeatureSettings,
    pub(crate) mel_statistics: MelStatistics,
    /// The element type of its GEMMs during training.
    pub(crate) compute: DType,
    /// Tokens of the longest training text.
    pub(crate) longest_tokens: Option<usize>,
    /// The factor that corrects predicted durations.
    pub(crate) duration_scale: f64,
}

impl SpeechModel {
    /// Reads `model.json` of the checkpoint in `folder`.
    pub(crate) fn read(folder: &Path) -> Result<SpeechModel, SynthError> {
        let contract = ModelContract::read(folder)?;
        SpeechModel::new(&contract).map_err(|reason| SynthError::not_a_model(folder, reason))
    }

    /// Fails with the reason if the contract is not that of a speech model.
    pub(crate) fn new(contract: &ModelContract) -> Result<SpeechModel, String> {
        let dims = match &contract.architecture {
            Architecture::Preset { dims, .. } => *dims,
            Architecture::Custom { name } => {
                return Err(format!("expected a speech model, found the custom model `{name}`"));
            }
        };
        let Vocoder::GriffinLim = contract.vocoder;
        let Some(text) = &contract.text else {
            return Err("expected a model with symbols, found one that was trained without texts".to_owned());
        };
        let features = contract.features.clone();
        features.check().map_err(|error| error.to_string())?;
        let duration_scale = contract.duration_scale.filter(|scale| DURATION_SCALES.contains(scale));
        Ok(SpeechModel {
            dims,
            symbols: Arc::new(table(text)?),
            text: text.options(),
            languages: text.languages.clone(),
            features,
            mel_statistics: contract.mel_statistics.clone(),
            compute: match contract.compute_dtype {
                ComputeDtype::F32 => DType::F32,
                ComputeDtype::Bf16 => DType::BF16,
            },
            longest_tokens: text.longest_tokens.filter(|tokens| *tokens > 0),
            duration_scale: duration_scale.unwrap_or(1.0),
        })
    }

    /// The language tag for a text: a Persian one for a text with Persian letters, if the model has one; else the default.
    pub(crate) fn language_of(&self, text: &str) -> &str {
        let is_persian = |c: char| ('\u{0600}'..='\u{06FF}').contains(&c);
        let persian = self.languages.iter().find(|tag| Language::from_tag(tag) == Language::Persian);
        match persian {
            Some(tag) if text.chars().any(is_persian) => tag,
            _ => self.languages.first().map_or("und", String::as_str),
        }
    }
}

/// The symbol table of a contract. The text crate checks it.
fn table(text: &ModelText) -> Result<SymbolTable, String> {
    let table = json!({ "version": VERSION, "units": text.units.name(), "symbols": text.symbols });
    SymbolTable::from_json(&table.to_string()).map_err(|error| error.to_string())
}

#[cfg(test)]
pub(crate) mod tests {
    use tandem_model::Preset;
    use tandem_text::Units;

    use super::*;

    /// A small English model of characters.
    pub(crate) fn contract() -> ModelContract {
        let symbols = SymbolTable::fixed(Language::English, Units::Characters).unwrap();
        ModelContract {
            architecture: Architecture::Preset { name: Preset::Nano, dims: Preset::Nano.sizes() },
            text: Some(ModelText {
                units: Units::Characters,
                languages: vec!["en".to_owned()],
                symbols: symbols.symbols().to_vec(),
                blanks: false,
                keep_harakat: false,
                longest_tokens: None,
            }),
            features: FeatureSettings::default(),
            mel_statistics: MelStatistics { mean: -5.0, std: 2.0, band_means: vec![-5.0; 80] },
            compute_dtype: ComputeDtype::F32,
            vocoder: Vocoder::GriffinLim,
            duration_scale: None,
        }
    }

    /// The same after a change of its text.
    pub(crate) fn with_text(change: impl FnOnce(&mut ModelText)) -> ModelContract {
        let mut contract = contract();
        change(contract.text.as_mut().unwrap());
        contract
    }

    #[test]
    fn a_duration_correction_is_used_if_it_is_plausible() {
        assert_eq!(SpeechModel::new(&contract()).unwrap().duration_scale, 1.0);
        for (written, used) in [(1.08, 1.08), (0.5, 0.5), (7.0, 1.0), (-1.0, 1.0)] {
            let contract = ModelContract { duration_scale: Some(written), ..contract() };
            assert_eq!(SpeechModel::new(&contract).unwrap().duration_scale, used);
        }
    }

    #[test]
    fn a_model_that_cannot_speak_is_refused_with_the_reason() {
        let check = |contract: ModelContract, part: &str| {
            let error = SpeechModel::new(&contract).unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        let custom = Architecture::Custom { name: "narrow".into() };
        check(ModelContract { architecture: custom, ..contract() }, "found the custom model `narrow`");
        check(ModelContract { text: None, ..contract() }, "trained without texts");
        check(with_text(|text| text.symbols[5] = "a".into()), "twice");
        check(with_text(|text| text.symbols.push("AA0".into())), "AA0");
        let mut odd_hop = contract();
        odd_hop.features.hop_samples = 255;
        check(odd_hop, "hop_samples");
    }

    #[test]
    fn a_language_is_chosen_by_the_script_of_the_text() {
        let check = |languages: &[&str], text: &str, expected: &str| {
            let languages = languages.iter().map(|tag| (*tag).to_owned()).collect();
            let model = SpeechModel::new(&with_text(|text| text.languages = languages)).unwrap();
            assert_eq!(model.language_of(text), expected, "{text}");
        };
        check(&["en"], "hello", "en");
        check(&["en"], "سلام", "en");
        check(&["fa-IR"], "hello", "fa-IR");
        check(&["en", "fa"], "سلام", "fa");
        check(&["en", "fa"], "hello", "en");
        check(&["de"], "hello", "de");
    }
}
