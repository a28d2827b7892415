//! The model of a checkpoint: its contract as the types that synthesis works with.

use std::path::Path;
use std::sync::Arc;

use tandem_audio::FeatureSettings;
use tandem_checkpoint::{Architecture, ComputeDtype, MelStatistics, ModelContract, Vocoder};
use tandem_device::DType;
use tandem_espeak::Espeak;
use tandem_model::{ModelDims, Vocabulary};
use tandem_text::{
    FrontEnd, LanguageRules, Lexicon, Phonemizer, Pronouncer, SymbolTable, TextOptions, dominant_script,
    normalized_tag, primary_subtag,
};

use crate::error::SynthError;

/// Duration corrections outside this range are ignored: the model has learned too little to be corrected.
const DURATION_SCALES: std::ops::RangeInclusive<f64> = 0.5..=2.0;

/// A trained speech model: everything but its weights.
#[derive(Clone, Debug)]
pub(crate) struct SpeechModel {
    pub(crate) dims: ModelDims,
    pub(crate) symbols: Arc<SymbolTable>,
    pub(crate) text: TextOptions,
    /// The languages of the training texts, at least one. The first is the default. A position is a language's id.
    pub(crate) languages: Vec<LanguageRules>,
    pub(crate) vocabulary: Vocabulary,
    pub(crate) lexicon: Option<Arc<Lexicon>>,
    /// The version of espeak-ng that made the phonemes of the training texts.
    pub(crate) espeak_version: Option<String>,
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
        let lexicon = text.lexicon.as_deref().map(|text| {
            Lexicon::parse(text).map(Arc::new).map_err(|error| format!("expected a lexicon, found: {error}"))
        });
        let duration_scale = contract.duration_scale.filter(|scale| DURATION_SCALES.contains(scale));
        Ok(SpeechModel {
            dims,
            symbols: Arc::new(SymbolTable::from_symbols(text.symbols.clone()).map_err(|error| error.to_string())?),
            text: text.options(),
            languages: text.languages.clone(),
            vocabulary: text.vocabulary(),
            lexicon: lexicon.transpose()?,
            espeak_version: text.espeak_version.clone(),
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

    /// The id of the language that a text is read in: `asked`, if that is given; else the first language with the script of
    /// the text; else the main language.
    ///
    /// `asked` is a language of the model, or differs from one after the primary subtag only: `en` finds `en-us`. Fails with
    /// [`SynthError::NoSuchLanguage`].
    pub(crate) fn language_of(&self, text: &str, asked: Option<&str>) -> Result<usize, SynthError> {
        let position = |is: &dyn Fn(&LanguageRules) -> bool| self.languages.iter().position(is);
        if let Some(asked) = asked {
            let tag = normalized_tag(asked);
            let same = position(&|rules| rules.tag == tag);
            let similar = || position(&|rules| primary_subtag(&rules.tag) == primary_subtag(&tag));
            return same.or_else(similar).ok_or_else(|| SynthError::NoSuchLanguage {
                asked: asked.to_owned(),
                known: self.languages.iter().map(|rules| rules.tag.clone()).collect(),
            });
        }
        let script = dominant_script(text);
        Ok(script.and_then(|script| position(&|rules| rules.script == Some(script))).unwrap_or(0))
    }

    /// The front end that training used for the language with this id.
    ///
    /// Fails with [`SynthError::Espeak`] if it needs that library, and it is not there.
    pub(crate) fn front_end(&self, language: usize) -> Result<FrontEnd, SynthError> {
        let LanguageRules { tag, phonemizer, .. } = &self.languages[language];
        let pronouncer = match phonemizer {
            Phonemizer::Characters => Pronouncer::Characters,
            Phonemizer::Dictionary => Pronouncer::Dictionary,
            Phonemizer::Espeak => Pronouncer::Source(Arc::new(Espeak::load()?.voice(tag)?)),
        };
        Ok(FrontEnd::with_table(tag, pronouncer, self.lexicon.clone(), self.text, Arc::clone(&self.symbols))?)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tandem_checkpoint::ModelText;
    use tandem_model::Preset;
    use tandem_text::{Language, Script};

    use super::*;

    fn language(tag: &str, script: Option<Script>) -> LanguageRules {
        LanguageRules { tag: tag.to_owned(), phonemizer: Phonemizer::Characters, script }
    }

    /// A small English model of characters.
    pub(crate) fn contract() -> ModelContract {
        let symbols = SymbolTable::fixed(Language::English, Phonemizer::Characters).unwrap();
        ModelContract {
            architecture: Architecture::Preset { name: Preset::Nano, dims: Preset::Nano.sizes() },
            text: Some(ModelText {
                languages: vec![language("en", Some(Script::LATIN))],
                language_embedding: false,
                symbols: symbols.symbols().to_vec(),
                blanks: false,
                keep_harakat: false,
                longest_tokens: None,
                espeak_version: None,
                lexicon: None,
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
        check(with_text(|text| text.symbols.push("A 0".into())), "A 0");
        check(with_text(|text| text.lexicon = Some("no tab".into())), "expected a lexicon, found: ");
        let mut odd_hop = contract();
        odd_hop.features.hop_samples = 255;
        check(odd_hop, "hop_samples");
    }

    #[test]
    fn a_language_is_chosen_by_the_flag_then_by_the_script_of_the_text_then_by_the_corpus() {
        let model = |languages: &[(&str, Option<Script>)]| {
            let languages = languages.iter().map(|(tag, script)| language(tag, *script)).collect();
            SpeechModel::new(&with_text(|text| text.languages = languages)).unwrap()
        };
        let check = |model: &SpeechModel, text: &str, asked: Option<&str>, expected: Result<&str, &str>| {
            let found = model.language_of(text, asked).map(|id| model.languages[id].tag.as_str());
            assert_eq!(found.map_err(|error| error.to_string()), expected.map_err(str::to_owned), "{text}");
        };
        let (latin, arabic) = (Some(Script::LATIN), Some(Script::ARABIC));
        let english = model(&[("en", latin)]);
        check(&english, "hello", None, Ok("en"));
        check(&english, "سلام", None, Ok("en"));
        let persian = model(&[("fa-ir", arabic)]);
        check(&persian, "25", None, Ok("fa-ir"));
        check(&persian, "hello", Some("FA"), Ok("fa-ir"));
        let both = model(&[("fa", arabic), ("en-us", latin), ("en-gb", latin), ("und", None)]);
        check(&both, "سلام", None, Ok("fa"));
        check(&both, "۲۵", None, Ok("fa"));
        check(&both, "hello", None, Ok("en-us"));
        check(&both, "hello", Some("en_GB"), Ok("en-gb"));
        check(&both, "hello", Some("en"), Ok("en-us"));
        check(&both, "25", None, Ok("fa"));
        let known = "the model does not know language \"de\"; it was trained on fa, en-us, en-gb, und";
        check(&both, "hello", Some("de"), Err(known));
    }
}
