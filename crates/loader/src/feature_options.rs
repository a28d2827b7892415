//! `features`: a preset by name, or one with some of its numbers changed.

use serde::Deserialize;
use serde_json::{Map, Value};
use tandem_audio::{FeaturePreset, FeatureSettings};

use crate::LoaderError;
use crate::options::nearest;

/// A preset, or changes to one.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum FeatureOptions {
    Preset(String),
    Changed(Map<String, Value>),
}

/// The names that librosa and torchaudio use for what our settings name by their units.
const NAMES: [(&str, &str); 16] = [
    ("sample_rate", "rate_hz"),
    ("n_fft", "n_fft"),
    ("win_length", "win_samples"),
    ("hop_length", "hop_samples"),
    ("n_mels", "n_mels"),
    ("fmin", "fmin_hz"),
    ("fmax", "fmax_hz"),
    ("floor", "floor"),
    ("framing", "framing"),
    ("spectrum", "spectrum"),
    ("power_epsilon", "power_epsilon"),
    ("mel_scale", "mel_scale"),
    ("mel_norm", "mel_norm"),
    ("log", "log"),
    ("top_range", "top_range"),
    ("shift", "shift"),
];
/// Those that have no other name, and the preset.
const PRESET: &str = "preset";
const SCALE: &str = "scale";

impl Default for FeatureOptions {
    fn default() -> FeatureOptions {
        FeatureOptions::Preset(FeaturePreset::Tandem.name().to_owned())
    }
}

impl FeatureOptions {
    /// The settings they stand for. Fails with the name of the first that cannot be.
    pub(crate) fn settings(&self) -> Result<FeatureSettings, LoaderError> {
        let settings = match self {
            FeatureOptions::Preset(name) => preset(name)?.settings(),
            FeatureOptions::Changed(changes) => changed(changes)?,
        };
        settings.check().map_err(|error| LoaderError::Option(format!("features: {error}")))?;
        Ok(settings)
    }
}

fn preset(name: &str) -> Result<FeaturePreset, LoaderError> {
    FeaturePreset::from_name(name).ok_or_else(|| {
        let known = FeaturePreset::ALL.map(FeaturePreset::name);
        let (near, known) = (nearest(name, &known), known.join(", "));
        LoaderError::Option(format!("features: there is no preset {name:?}{near}; there are {known}"))
    })
}

fn changed(changes: &Map<String, Value>) -> Result<FeatureSettings, LoaderError> {
    let base = match changes.get(PRESET) {
        None => FeaturePreset::Tandem,
        Some(Value::String(name)) => preset(name)?,
        Some(other) => {
            return Err(LoaderError::Option(format!("features: preset: expected a name, found {other}")));
        }
    };
    let unstored = |error: serde_json::Error| LoaderError::Option(format!("features: {error}"));
    let mut stored = serde_json::to_value(base.settings()).map_err(unstored)?;
    for (name, value) in changes.iter().filter(|(name, _)| *name != PRESET) {
        let field = match NAMES.iter().find(|(known, _)| known == name) {
            Some((_, field)) => field,
            None if name == SCALE => SCALE,
            None => {
                let known: Vec<&str> = NAMES.iter().map(|(known, _)| *known).chain([SCALE, PRESET]).collect();
                let (near, known) = (nearest(name, &known), known.join(", "));
                return Err(LoaderError::Option(format!("features: there is no {name:?}{near}; there are {known}")));
            }
        };
        stored[field] = value.clone();
        let alone = serde_json::from_value::<FeatureSettings>(stored.clone());
        alone.map_err(|error| LoaderError::Option(format!("features: {name}: {error}")))?;
    }
    serde_json::from_value(stored).map_err(unstored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn settings(options: Value) -> Result<FeatureSettings, String> {
        let options: FeatureOptions = serde_json::from_value(options).map_err(|error| error.to_string())?;
        options.settings().map_err(|error| error.to_string())
    }

    #[test]
    fn a_preset_is_taken_whole_or_changed_by_the_names_of_librosa() {
        assert_eq!(settings(json!("whisper")), Ok(FeaturePreset::Whisper.settings()));
        assert_eq!(settings(json!({})), Ok(FeatureSettings::default()));
        let changed = settings(json!({ "preset": "hifi-gan", "sample_rate": 44_100, "hop_length": 512, "n_fft": 2048,
            "win_length": 2048, "n_mels": 128, "fmax": 16_000.0 }));
        let expected = FeatureSettings {
            rate_hz: 44_100,
            hop_samples: 512,
            n_fft: 2048,
            win_samples: 2048,
            n_mels: 128,
            fmax_hz: 16_000.0,
            ..FeaturePreset::HifiGan.settings()
        };
        assert_eq!(changed, Ok(expected));
    }

    #[test]
    fn what_cannot_be_is_named() {
        let check = |options: Value, expected: &str| {
            let found = settings(options.clone()).unwrap_err();
            assert!(found.contains(expected), "{options}: {found}");
        };
        check(json!("waspers"), "there is no preset \"waspers\"");
        check(json!({ "hop": 3 }), "there is no \"hop\"");
        check(json!({ "hop_lenght": 3 }), "did you mean \"hop_length\"?");
        check(json!({ "n_mels": "x" }), "features: n_mels: ");
        check(json!({ "preset": 3 }), "expected a name");
        check(json!({ "fmax": 20_000.0 }), "fmax_hz is at most half");
        check(json!({ "log": "2" }), "features: log: ");
    }
}
