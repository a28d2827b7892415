//! What a program asks for. Every option but the corpus has a default, and an unknown one is refused by name.

use std::path::PathBuf;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;
use tandem_audio::FeatureSettings;
use tandem_feed::{CustomTokenizer, TextMap};

use crate::LoaderError;
use crate::feature_options::FeatureOptions;
use crate::fields::DEFAULT_FIELDS;

/// The options of a [`Loader`](crate::Loader). Made from JSON, so that one place knows their names and defaults.
#[derive(Clone)]
pub struct LoaderOptions {
    pub(crate) given: GivenOptions,
    pub(crate) features: FeatureSettings,
    pub(crate) encoder: Option<Arc<dyn CustomTokenizer>>,
    pub(crate) map: Option<Arc<dyn TextMap>>,
}

/// Where `device` and `data_device` may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceChoice {
    /// A card if there is one, else the CPU.
    Auto,
    Cpu,
    /// By CUDA's number.
    Cuda(i32),
}

/// Which rows of the corpus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SplitChoice {
    #[default]
    All,
    Train,
    Validation,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CacheChoice {
    #[default]
    Auto,
    None,
    Memory,
    Disk,
}

/// One name, or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum OneOrMany {
    One(String),
    Many(Vec<String>),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LimitOptions {
    pub(crate) data_mb: Option<u64>,
    pub(crate) model_mb: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct TextChoices {
    pub(crate) lang: Option<String>,
    pub(crate) phonemizer: Option<String>,
    pub(crate) harakat: Option<String>,
    pub(crate) lexicon: Option<PathBuf>,
    pub(crate) pad_id: Option<i32>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ColumnOptions {
    pub(crate) audio: Option<String>,
    pub(crate) text: Option<String>,
    pub(crate) speaker: Option<String>,
    pub(crate) id: Option<String>,
    pub(crate) lang: Option<String>,
    pub(crate) duration: Option<String>,
}

/// The options as they are written.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct GivenOptions {
    pub(crate) source: OneOrMany,
    pub(crate) device: String,
    pub(crate) data_device: Option<String>,
    pub(crate) sim: Option<String>,
    pub(crate) batch_size: u32,
    pub(crate) buckets: usize,
    pub(crate) static_shapes: bool,
    pub(crate) fields: Vec<String>,
    pub(crate) features: FeatureOptions,
    pub(crate) channels_first: bool,
    pub(crate) text: TextChoices,
    pub(crate) max_frames: Option<u32>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) limits: LimitOptions,
    pub(crate) prefetch: u64,
    pub(crate) held: u64,
    pub(crate) workers: Option<usize>,
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) seed: u64,
    pub(crate) split: SplitChoice,
    pub(crate) split_seed: u64,
    pub(crate) endless: bool,
    pub(crate) cache: CacheChoice,
    pub(crate) cache_dir: Option<PathBuf>,
    pub(crate) exclude_ids: Option<PathBuf>,
    pub(crate) columns: ColumnOptions,
    pub(crate) speaker_id_pattern: Option<String>,
    pub(crate) read_ahead_mb: u64,
    pub(crate) max_bad_fraction: f64,
    pub(crate) verify_transfers: Option<u64>,
    pub(crate) log_dir: Option<PathBuf>,
    pub(crate) tensorboard_dir: Option<PathBuf>,
}

impl Default for GivenOptions {
    fn default() -> GivenOptions {
        GivenOptions {
            source: OneOrMany::Many(Vec::new()),
            device: "auto".to_owned(),
            data_device: None,
            sim: None,
            batch_size: 16,
            buckets: 8,
            static_shapes: true,
            fields: DEFAULT_FIELDS.map(str::to_owned).to_vec(),
            features: FeatureOptions::default(),
            channels_first: false,
            text: TextChoices::default(),
            max_frames: None,
            max_tokens: None,
            limits: LimitOptions::default(),
            prefetch: 8,
            held: 3,
            workers: None,
            rank: 0,
            world_size: 1,
            seed: 1234,
            split: SplitChoice::All,
            split_seed: 1234,
            endless: false,
            cache: CacheChoice::Auto,
            cache_dir: None,
            exclude_ids: None,
            columns: ColumnOptions::default(),
            speaker_id_pattern: None,
            read_ahead_mb: 256,
            max_bad_fraction: 0.05,
            verify_transfers: None,
            log_dir: None,
            tensorboard_dir: None,
        }
    }
}

/// A petabyte: nothing has more memory.
const MAX_MB: u64 = 1 << 30;

/// Every name, for suggestions.
const NAMES: [&str; 33] = [
    "source",
    "device",
    "data_device",
    "sim",
    "batch_size",
    "buckets",
    "static_shapes",
    "fields",
    "features",
    "channels_first",
    "text",
    "max_frames",
    "max_tokens",
    "limits",
    "prefetch",
    "held",
    "workers",
    "rank",
    "world_size",
    "seed",
    "split",
    "split_seed",
    "endless",
    "cache",
    "cache_dir",
    "exclude_ids",
    "columns",
    "speaker_id_pattern",
    "read_ahead_mb",
    "max_bad_fraction",
    "verify_transfers",
    "log_dir",
    "tensorboard_dir",
];

impl LoaderOptions {
    /// Reads the options. Fails with [`LoaderError::Option`], which names the option, what was expected and what was found.
    pub fn from_json(value: &Value) -> Result<LoaderOptions, LoaderError> {
        let object = value.as_object().ok_or_else(|| LoaderError::Option("expected options by name".to_owned()))?;
        if let Some(unknown) = object.keys().find(|name| !NAMES.contains(&name.as_str())) {
            let nearest = nearest(unknown, &NAMES);
            return Err(LoaderError::Option(format!("there is no option {unknown:?}{nearest}")));
        }
        // One by one first: serde names no option when its value has the wrong type.
        for (name, value) in object {
            let alone = Value::Object([(name.clone(), value.clone())].into_iter().collect());
            serde_json::from_value::<GivenOptions>(alone)
                .map_err(|error| LoaderError::Option(format!("{name}: {error}")))?;
        }
        let given: GivenOptions =
            serde_json::from_value(value.clone()).map_err(|error| LoaderError::Option(error.to_string()))?;
        let features = given.features.settings()?;
        let options = LoaderOptions { given, features, encoder: None, map: None };
        options.check()?;
        Ok(options)
    }

    /// The same with a tokenizer of the program's own, in place of our front ends.
    pub fn with_tokenizer(self, encoder: Arc<dyn CustomTokenizer>) -> LoaderOptions {
        LoaderOptions { encoder: Some(encoder), ..self }
    }

    /// The same with a change of each text before it is tokenized.
    pub fn with_text_map(self, map: Arc<dyn TextMap>) -> LoaderOptions {
        LoaderOptions { map: Some(map), ..self }
    }

    /// The corpus by name.
    pub(crate) fn sources(&self) -> Vec<String> {
        match &self.given.source {
            OneOrMany::One(name) => vec![name.clone()],
            OneOrMany::Many(names) => names.clone(),
        }
    }

    fn check(&self) -> Result<(), LoaderError> {
        let given = &self.given;
        let in_range = |name: &str, found: u64, range: std::ops::RangeInclusive<u64>| match range.contains(&found) {
            true => Ok(()),
            false => {
                let (least, most) = range.into_inner();
                Err(LoaderError::Option(format!("{name}: expected {least} to {most}, found {found}")))
            }
        };
        if self.sources().is_empty() {
            return Err(LoaderError::Option("source: expected a corpus, found none".to_owned()));
        }
        in_range("batch_size", given.batch_size.into(), 1..=65_536)?;
        in_range("buckets", given.buckets as u64, 1..=tandem_feed::MAX_BUCKETS as u64)?;
        in_range("prefetch", given.prefetch, 1..=4096)?;
        // While a loop asks for the next batch, it usually holds the last one.
        in_range("held", given.held, 2..=4096)?;
        in_range("workers", given.workers.unwrap_or(1) as u64, 1..=1024)?;
        in_range("world_size", given.world_size.into(), 1..=1 << 20)?;
        in_range("rank", given.rank.into(), 0..=u64::from(given.world_size) - 1)?;
        in_range("verify_transfers", given.verify_transfers.unwrap_or(1), 1..=u64::MAX)?;
        in_range("read_ahead_mb", given.read_ahead_mb, 0..=MAX_MB)?;
        in_range("limits: data_mb", given.limits.data_mb.unwrap_or(0), 0..=MAX_MB)?;
        in_range("limits: model_mb", given.limits.model_mb.unwrap_or(0), 0..=MAX_MB)?;
        if !(0.0..=1.0).contains(&given.max_bad_fraction) {
            let found = given.max_bad_fraction;
            return Err(LoaderError::Option(format!("max_bad_fraction: expected 0 to 1, found {found}")));
        }
        match (given.cache, &given.cache_dir) {
            (CacheChoice::Disk, None) => {
                Err(LoaderError::Option("cache: \"disk\" needs cache_dir, the folder to cache in".to_owned()))
            }
            (CacheChoice::Disk, Some(_)) | (_, None) => Ok(()),
            (_, Some(_)) => Err(LoaderError::Option("cache_dir: it is for cache=\"disk\": add it".to_owned())),
        }
    }
}

impl DeviceChoice {
    pub(crate) fn parse(option: &str, text: &str) -> Result<DeviceChoice, LoaderError> {
        let ordinal = text.strip_prefix("cuda:").and_then(|number| number.parse::<u16>().ok());
        match (text, ordinal) {
            ("auto", _) => Ok(DeviceChoice::Auto),
            ("cpu", _) => Ok(DeviceChoice::Cpu),
            ("cuda", _) => Ok(DeviceChoice::Cuda(0)),
            (_, Some(ordinal)) => Ok(DeviceChoice::Cuda(ordinal.into())),
            _ => Err(LoaderError::Option(format!(
                "{option}: expected \"auto\", \"cpu\", \"cuda\" or \"cuda:N\", found {text:?}"
            ))),
        }
    }
}

/// `; did you mean X?`, if a known name is near.
pub(crate) fn nearest(unknown: &str, known: &[&str]) -> String {
    // With fewer letters in common it is another word.
    let is_near = |near: &&str| near.chars().filter(|c| unknown.contains(*c)).count() * 2 >= near.len();
    match tandem_text::nearest(unknown, known.iter().copied()).filter(is_near) {
        Some(near) => format!("; did you mean {near:?}?"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(options: &Value) -> String {
        LoaderOptions::from_json(options).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn every_name_is_known_and_every_wrong_value_is_named() {
        // No option has this value: each is refused by its own name, and none as unknown.
        for name in NAMES {
            let found = refused(&json!({ "source": "x", name: [[1]] }));
            assert!(found.starts_with(&format!("{name}: ")), "{name}: {found}");
            assert!(!found.contains("unknown field `"), "{name}: {found}");
        }
        // Every option of the struct is in the list: serde names them all when one is unknown.
        let listed = serde_json::from_value::<GivenOptions>(json!({ "?": 1 })).unwrap_err().to_string();
        assert_eq!(listed.matches('`').count() / 2 - 1, NAMES.len(), "{listed}");
        let check = |options: Value, expected: &str| {
            let found = refused(&options);
            assert!(found.contains(expected), "{options}: {found}");
        };
        check(json!({ "source": "x", "batchsize": 3 }), "did you mean \"batch_size\"?");
        check(json!({ "batch_size": 3 }), "source: expected a corpus");
        check(json!({ "source": "x", "batch_size": 0 }), "batch_size: expected 1 to 65536, found 0");
        check(json!({ "source": "x", "batch_size": "many" }), "batch_size: ");
        check(json!({ "source": "x", "held": 1 }), "held: expected 2");
        check(json!({ "source": "x", "rank": 2, "world_size": 2 }), "rank: expected 0 to 1, found 2");
        check(json!({ "source": "x", "cache": "disk" }), "needs cache_dir");
        check(json!({ "source": "x", "limits": { "data": 3 } }), "limits: ");
        check(json!({ "source": "x", "features": "whisperer" }), "did you mean \"whisper\"?");
        assert_eq!(refused(&json!({ "source": ["x", "y"], "limits": { "data_mb": 512 } })), "");
    }

    #[test]
    fn devices_are_named_as_pytorch_names_them() {
        let parse = |text: &str| DeviceChoice::parse("device", text).ok();
        assert_eq!(parse("cuda:3"), Some(DeviceChoice::Cuda(3)));
        assert_eq!((parse("cuda"), parse("cpu")), (Some(DeviceChoice::Cuda(0)), Some(DeviceChoice::Cpu)));
        assert_eq!([parse("gpu"), parse("cuda:x"), parse("cuda:-1"), parse("")], [None; 4]);
    }
}
