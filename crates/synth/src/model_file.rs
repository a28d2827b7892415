//! `model.json`: what a checkpoint says of its model, as far as speaking needs it.
//!
//! What later versions add is passed over; what earlier ones lack has the value they trained with.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::json;
use tandem_audio::FeatureSettings;
use tandem_device::DType;
use tandem_model::ModelDims;
use tandem_text::{Harakat, Language, SymbolTable, TextOptions, Units, VERSION};

use crate::error::SynthError;

/// The file's name in a checkpoint.
pub const MODEL_FILE: &str = "model.json";

/// Corrections of durations that are believed.
const DURATION_SCALES: std::ops::RangeInclusive<f64> = 0.5..=2.0;
/// The newest format that is read.
const FORMAT: u64 = 1;

/// A model that was trained: everything but its weights.
#[derive(Clone, Debug)]
pub(crate) struct ModelFile {
    pub(crate) sizes: ModelDims,
    pub(crate) symbols: Arc<SymbolTable>,
    pub(crate) text: TextOptions,
    /// The language of texts that do not show it by their script.
    pub(crate) language: Option<String>,
    pub(crate) features: FeatureSettings,
    pub(crate) mean: f32,
    pub(crate) deviation: f32,
    /// The mean of each band.
    pub(crate) bands: Vec<f32>,
    /// What it was trained in.
    pub(crate) compute: DType,
    /// Tokens of the longest text it was trained on.
    pub(crate) longest_tokens: Option<usize>,
    /// What guessed durations are to be multiplied with.
    pub(crate) duration_scale: f64,
}

#[derive(Deserialize)]
struct Saved {
    format: u64,
    sizes: ModelDims,
    symbols: Option<Vec<String>>,
    features: SavedFeatures,
    statistics: SavedStatistics,
    compute: String,
    #[serde(default)]
    text: SavedText,
    duration_scale: Option<f64>,
}

#[derive(Deserialize)]
struct SavedFeatures {
    rate_hz: u32,
    n_fft: usize,
    win_samples: Option<usize>,
    hop_samples: usize,
    n_mels: usize,
    fmin_hz: f64,
    fmax_hz: f64,
    floor: f64,
}

#[derive(Deserialize)]
struct SavedStatistics {
    mean: f32,
    deviation: f32,
    bands: Vec<f32>,
}

/// How texts were read. Not written before synthesis needed it: then it was what the defaults say.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SavedText {
    language: Option<String>,
    blanks: bool,
    keeps_harakat: bool,
    longest_tokens: Option<usize>,
}

impl ModelFile {
    /// Reads the file of a checkpoint's folder.
    pub(crate) fn read(folder: &Path) -> Result<ModelFile, SynthError> {
        let path = folder.join(MODEL_FILE);
        let bytes = match fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(SynthError::not_a_model(folder, format!("expected a checkpoint with {MODEL_FILE}")));
            }
            read => read.map_err(SynthError::unreadable(&path))?,
        };
        ModelFile::parse(&bytes).map_err(|reason| SynthError::not_a_model(&path, reason))
    }

    fn parse(bytes: &[u8]) -> Result<ModelFile, String> {
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|error| format!("no JSON ({error})"))?;
        match value["format"].as_u64() {
            Some(format) if format > FORMAT => {
                return Err(format!("written by a newer version (format {format}, this program reads up to {FORMAT})"));
            }
            _ => {}
        }
        let saved: Saved = serde_json::from_value(value).map_err(|error| format!("no model of ours ({error})"))?;
        saved.check()
    }
}

impl Saved {
    fn check(self) -> Result<ModelFile, String> {
        let Some(symbols) = self.symbols else { return Err("the model was trained without texts".to_owned()) };
        let (symbols, units) = table(symbols)?;
        let SavedFeatures { rate_hz, n_fft, hop_samples, n_mels, fmin_hz, fmax_hz, floor, .. } = self.features;
        let win_samples = self.features.win_samples.unwrap_or(n_fft);
        let features = FeatureSettings { rate_hz, n_fft, win_samples, hop_samples, n_mels, fmin_hz, fmax_hz, floor };
        features.check().map_err(|error| error.to_string())?;
        let SavedStatistics { mean, deviation, bands } = self.statistics;
        let finite =
            mean.is_finite() && deviation.is_finite() && deviation > 0.0 && bands.iter().all(|x| x.is_finite());
        if !finite || bands.len() != n_mels {
            return Err(format!("mean {mean} and deviation {deviation} of spectra, means of {} bands", bands.len()));
        }
        let compute = match self.compute.as_str() {
            "f32" => DType::F32,
            "bf16" => DType::BF16,
            other => return Err(format!("the model computes in {other:?}, expected f32 or bf16")),
        };
        let SavedText { language, blanks, keeps_harakat, longest_tokens } = self.text;
        let harakat = if keeps_harakat { Harakat::Keep } else { Harakat::Drop };
        let text = TextOptions { units, harakat, blanks };
        let longest_tokens = longest_tokens.filter(|tokens| *tokens > 0);
        let (sizes, _) = (self.sizes, self.format);
        // A model that learnt little may be far off: what it says is then not worth stretching.
        let duration_scale = self.duration_scale.filter(|scale| DURATION_SCALES.contains(scale)).unwrap_or(1.0);
        Ok(ModelFile {
            sizes,
            symbols,
            text,
            language,
            features,
            mean,
            deviation,
            bands,
            compute,
            longest_tokens,
            duration_scale,
        })
    }
}

/// The table of these symbols. Phones have names of more than one character; characters are one.
fn table(symbols: Vec<String>) -> Result<(Arc<SymbolTable>, Units), String> {
    let has_phones = symbols.iter().skip(2).any(|symbol| symbol.chars().count() > 1);
    let units = if has_phones { Units::Phonemes } else { Units::Characters };
    let saved = json!({ "version": VERSION, "units": units.name(), "symbols": symbols }).to_string();
    let table = SymbolTable::from_json(&saved).map_err(|error| error.to_string())?;
    Ok((Arc::new(table), units))
}

impl ModelFile {
    /// The language tag a text is read in: the one that was trained, else the one its script and the symbols show.
    pub(crate) fn language_of(&self, text: &str) -> &str {
        if let Some(language) = &self.language {
            return language;
        }
        let knows = |language| {
            let own = SymbolTable::fixed(language, self.text.units);
            own.is_some_and(|own| own.symbols().iter().all(|symbol| self.symbols.id(symbol).is_some()))
        };
        let is_persian = |c: char| ('\u{0600}'..='\u{06FF}').contains(&c);
        match (knows(Language::English), knows(Language::Persian)) {
            (_, true) if text.chars().any(is_persian) => "fa",
            (true, _) => "en",
            (false, true) => "fa",
            (false, false) => "und",
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::Value;
    use tandem_model::Preset;

    use super::*;

    /// A small English model of characters.
    pub(crate) fn model() -> Value {
        let symbols = SymbolTable::fixed(Language::English, Units::Characters).unwrap();
        json!({
            "format": 1,
            "preset": "nano",
            "sizes": Preset::Nano.sizes(),
            "symbols": symbols.symbols(),
            "features": {
                "rate_hz": 22_050, "n_fft": 1024, "hop_samples": 256, "n_mels": 80, "fmin_hz": 0.0,
                "fmax_hz": 8000.0, "floor": 1e-5,
            },
            "statistics": { "mean": -5.0, "deviation": 2.0, "bands": vec![-5.0; 80] },
            "compute": "f32",
        })
    }

    fn parse(model: &Value) -> Result<ModelFile, String> {
        ModelFile::parse(model.to_string().as_bytes())
    }

    #[test]
    fn what_earlier_versions_lack_is_what_they_trained_with() {
        let model = parse(&model()).unwrap();
        assert_eq!(model.features, FeatureSettings::default());
        assert_eq!((model.text, model.language, model.longest_tokens), (TextOptions::default(), None, None));
    }

    #[test]
    fn a_correction_of_durations_is_believed_where_it_can_be() {
        assert_eq!(parse(&model()).unwrap().duration_scale, 1.0);
        for (written, believed) in [(1.08, 1.08), (0.5, 0.5), (7.0, 1.0), (-1.0, 1.0)] {
            let mut model = model();
            model["duration_scale"] = written.into();
            assert_eq!(parse(&model).unwrap().duration_scale, believed);
        }
    }

    #[test]
    fn what_is_wrong_with_a_model_is_said() {
        let check = |change: fn(&mut Value), part: &str| {
            let mut model = model();
            change(&mut model);
            let error = parse(&model).unwrap_err();
            assert!(error.contains(part), "{error}");
        };
        check(|m| m["format"] = 2.into(), "newer version (format 2");
        check(|m| *m = json!([]), "no model of ours");
        check(|m| m["symbols"] = Value::Null, "without texts");
        check(|m| m["symbols"][5] = "a".into(), "twice");
        check(|m| m["features"]["hop_samples"] = 255.into(), "hop_samples");
        check(|m| m["statistics"]["deviation"] = 0.0.into(), "deviation 0");
        check(|m| m["statistics"]["bands"] = json!([1.0]), "1 bands");
        check(|m| m["compute"] = "f16".into(), "\"f16\"");
        check(|m| m["sizes"]["text_width"] = "wide".into(), "no model of ours");
        assert!(ModelFile::parse(b"{").unwrap_err().contains("no JSON"));
    }

    #[test]
    fn a_language_is_known_by_its_script_and_the_symbols() {
        let english = SymbolTable::fixed(Language::English, Units::Characters).unwrap();
        let persian = SymbolTable::fixed(Language::Persian, Units::Characters).unwrap();
        let phones = SymbolTable::fixed(Language::English, Units::Phonemes).unwrap();
        let german = SymbolTable::from_texts(["äb"]);
        let check = |table: &SymbolTable, text: &str, expected: &str| {
            let mut model = model();
            model["symbols"] = table.symbols().into();
            assert_eq!(parse(&model).unwrap().language_of(text), expected, "{text}");
        };
        check(&english, "hello", "en");
        check(&english, "سلام", "en");
        check(&phones, "hello", "en");
        check(&persian, "hello", "fa");
        check(&german, "hello", "und");
        check(&english.merged(&persian).unwrap(), "سلام", "fa");
        check(&english.merged(&persian).unwrap(), "hello", "en");
        let mut model = model();
        model["text"] = json!({ "language": "de", "blanks": true });
        let model = parse(&model).unwrap();
        assert_eq!((model.language_of("hello"), model.text.blanks), ("de", true));
    }
}
