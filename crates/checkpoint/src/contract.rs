//! `model.json`: the contract between training and everything that runs the model later.
//!
//! Training writes it into every checkpoint; synthesis needs it and `weights.safetensors`, nothing else. Nothing in it
//! is derived by the reader: languages, phonemizers and the vocoder are written.
//!
//! ```json
//! { "format": 3,
//!   "architecture": { "kind": "preset", "name": "nano",
//!                     "dims": { "text_width": 128, "text_layers": 2, "text_heads": 2, "voice_width": 64,
//!                               "duration_width": 128, "decoder_width": 128, "decoder_layers": 2,
//!                               "decoder_heads": 2, "decoder": "direct", "text_dropout": 0.1,
//!                               "decoder_dropout": 0.05 } },
//!   "text": { "languages": [{ "tag": "en", "phonemizer": "dictionary", "script": "Latn" },
//!                           { "tag": "fa", "phonemizer": "characters", "script": "Arab" }],
//!             "language_embedding": true, "symbols": ["<pad>", "<blank>", "…"], "blanks": true,
//!             "keep_harakat": false, "longest_tokens": 201 },
//!   "features": { "rate_hz": 22050, "n_fft": 1024, "win_samples": 1024, "hop_samples": 256, "n_mels": 80,
//!                 "fmin_hz": 0.0, "fmax_hz": 8000.0, "floor": 1e-5, "arithmetic": "f64" },
//!   "mel_statistics": { "mean": -5.1, "std": 2.2, "band_means": [-4.9] },
//!   "compute_dtype": "bf16",
//!   "vocoder": { "kind": "griffin_lim" },
//!   "duration_scale": 1.03 }
//! ```
//!
//! | format | change |
//! |---|---|
//! | 1 | first; see `contract/legacy.rs`, the only place that knows it |
//! | 2 | typed; units, languages and vocoder are written. All languages have the same units; see `contract/legacy.rs` |
//! | 3 | each language has its own phonemizer; several have a language embedding; a lexicon is part of the model |
//!
//! Readers ignore keys they do not know, so that a key can be added without a new format. They refuse unknown dims and
//! unknown values: those are another model.

mod legacy;

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tandem_audio::FeatureSettings;
use tandem_files::read_bounded;
use tandem_model::{ModelDims, Preset, Vocabulary};
use tandem_text::{Harakat, LanguageRules, TextOptions};

use self::legacy::{LegacyModel, convert_format_2};
use crate::disk::unusable;
use crate::error::CheckpointError;
use crate::file_names::MODEL_FILE;

/// The format that is written, and the newest that is read.
const FORMAT: u64 = 3;
/// More than any model needs: a symbol takes a few bytes, a lexicon has at most 8 MiB.
const MAX_BYTES: u64 = 24 << 20;

/// Everything needed to run a trained model, except its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelContract {
    /// Which model it is.
    pub architecture: Architecture,
    /// How texts become tokens; `None` for a model that was trained without texts.
    pub text: Option<ModelText>,
    /// How recordings become log-mel spectrograms.
    pub features: FeatureSettings,
    /// How spectrograms are normalised.
    pub mel_statistics: MelStatistics,
    /// The element type that GEMMs computed in during training.
    pub compute_dtype: ComputeDtype,
    /// What turns spectrograms into waveforms.
    pub vocoder: Vocoder,
    /// The factor that corrects predicted durations, as the last validation measured it. `None` before the first
    /// validation, and for a model that predicts no durations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_scale: Option<f64>,
}

/// Which model it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Architecture {
    /// The speech model.
    Preset {
        /// The preset of `--model-size`.
        name: Preset,
        /// Its dims. They define the model: a preset may change, its checkpoints do not.
        dims: ModelDims,
    },
    /// A model of a library user, who also writes the code that runs it.
    Custom {
        /// Its name.
        name: String,
    },
}

/// How texts become tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelText {
    /// The languages of the training texts, that of most texts first. It is the default for texts that do not show their
    /// language by their script. The position of a language is its id in the language embedding.
    pub languages: Vec<LanguageRules>,
    /// Whether the model has a language embedding: a learnt vector for each language.
    pub language_embedding: bool,
    /// All symbols; the index of each is its token id.
    pub symbols: Vec<String>,
    /// Whether a blank stands before, between and after the tokens.
    pub blanks: bool,
    /// Whether Persian vowel marks are kept.
    pub keep_harakat: bool,
    /// Tokens of the longest training text, if known.
    pub longest_tokens: Option<usize>,
    /// The version of espeak-ng that made the phonemes of the training texts, if it made any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub espeak_version: Option<String>,
    /// The lexicon of `--lexicon`, one line per word: the word, a tab, its phonemes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lexicon: Option<String>,
}

/// Mean and standard deviation of a corpus's log-mel spectrograms. Models train on spectrograms of mean 0 and standard
/// deviation 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MelStatistics {
    /// The mean of all values.
    pub mean: f32,
    /// Their standard deviation. Format 1 called it `deviation`.
    #[serde(alias = "deviation")]
    pub std: f32,
    /// The mean of each band. Format 1 called it `bands`.
    #[serde(alias = "bands")]
    pub band_means: Vec<f32>,
}

/// The element type that GEMMs compute in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeDtype {
    /// 32-bit floating point.
    F32,
    /// bfloat16, accumulated in 32 bits.
    Bf16,
}

/// What turns spectrograms into waveforms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Vocoder {
    /// The Griffin-Lim algorithm: phases are estimated, nothing is learned.
    GriffinLim,
}

impl ModelContract {
    /// Reads `model.json` of the checkpoint in `folder`, format 1 to 3. Whether the file is as it was written is not
    /// checked: opening a [`Checkpoint`](crate::Checkpoint) does that.
    pub fn read(folder: &Path) -> Result<ModelContract, CheckpointError> {
        let path = folder.join(MODEL_FILE);
        match read_bounded(&path, MAX_BYTES) {
            Ok(bytes) => ModelContract::parse(&bytes, &path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let found = if folder.is_dir() { "a folder without model.json" } else { "nothing" };
                Err(CheckpointError::NotACheckpoint { found, path: folder.to_owned() })
            }
            Err(error) => Err(unusable("read", &path)(error)),
        }
    }

    /// The bytes of `model.json`.
    pub fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        #[derive(Serialize)]
        struct Versioned<'a> {
            format: u64,
            #[serde(flatten)]
            model: &'a ModelContract,
        }
        let mut json = serde_json::to_vec_pretty(&Versioned { format: FORMAT, model: self })?;
        json.push(b'\n');
        Ok(json)
    }

    /// The contract in the bytes of a `model.json`. `path` is for messages.
    pub(crate) fn parse(bytes: &[u8], path: &Path) -> Result<ModelContract, CheckpointError> {
        let damaged = |reason: String| CheckpointError::Damaged { reason, path: path.to_owned() };
        let value: Value =
            serde_json::from_slice(bytes).map_err(|error| damaged(format!("the model is not valid JSON ({error})")))?;
        let invalid = |error: serde_json::Error| damaged(format!("the model description is invalid ({error})"));
        // First: everything else may differ in another format.
        let model: ModelContract = match value["format"].as_u64() {
            Some(found) if found > FORMAT => {
                return Err(CheckpointError::NewerFormat { found, known: FORMAT, path: path.to_owned() });
            }
            Some(FORMAT) => serde_json::from_value(value).map_err(invalid)?,
            Some(2) => {
                let converted = convert_format_2(value).map_err(invalid)?;
                serde_json::from_value(converted).map_err(invalid)?
            }
            Some(1) => serde_json::from_value::<LegacyModel>(value).map_err(invalid)?.convert().map_err(damaged)?,
            _ => {
                let found = &value["format"];
                return Err(damaged(format!(
                    "expected a model description of \"format\" 1 to {FORMAT}, found {found}"
                )));
            }
        };
        model.check().map_err(damaged)?;
        Ok(model)
    }

    /// What the types do not say: dimensions of a model that can exist, finite statistics, one mean per band, a language.
    fn check(&self) -> Result<(), String> {
        if let Architecture::Preset { dims, .. } = &self.architecture {
            dims.check()?;
        }
        let n_mels = self.features.n_mels;
        let MelStatistics { mean, std, band_means } = &self.mel_statistics;
        let finite = [*mean, *std].iter().chain(band_means).all(|x| x.is_finite());
        if !finite || *std <= 0.0 || band_means.len() != n_mels {
            let found = format!("found mean {mean}, standard deviation {std}, {} band means", band_means.len());
            return Err(format!("expected finite mel statistics of {n_mels} bands, {found}"));
        }
        match &self.text {
            Some(text) if text.languages.is_empty() => Err("expected at least one language, found none".to_owned()),
            _ => Ok(()),
        }
    }
}

impl MelStatistics {
    /// The mean of each band, normalised like the spectrograms.
    pub fn normalised_band_means(&self) -> Vec<f32> {
        self.band_means.iter().map(|mean| (mean - self.mean) / self.std).collect()
    }
}

impl ModelText {
    /// The options of the front ends.
    pub fn options(&self) -> TextOptions {
        let harakat = if self.keep_harakat { Harakat::Keep } else { Harakat::Drop };
        TextOptions { harakat, blanks: self.blanks }
    }

    /// What its texts are made of, as the model counts it.
    pub fn vocabulary(&self) -> Vocabulary {
        let languages = if self.language_embedding { self.languages.len() as u32 } else { 1 };
        Vocabulary { symbols: self.symbols.len() as u32, languages }
    }
}

#[cfg(test)]
mod tests;
