//! The table of all settings. The command line, the config file, `--print-config` and every message about a setting
//! are generated from it, so their names cannot differ.

use std::borrow::Cow;

use tandem_feed::{FRAME_LIMITS, TOKEN_LIMITS};

use crate::columns::COLUMN_KEYS;
use crate::gpu_name::MAX_INDEX;
use crate::speech::preset_sizes;
use crate::value::{MAX_LIMIT_MB, SettingValue};

/// Which setting. In the order of [`SETTINGS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the table below says what each one means")]
pub enum Id {
    TrainData,
    ValData,
    ExcludeIds,
    SpeakerIdPattern,
    Columns,
    Lang,
    Phonemizer,
    Lexicon,
    Harakat,
    Cache,
    ReadAheadMb,
    MaxBadFraction,
    CheckpointDir,
    Epochs,
    MaxSteps,
    CheckpointEvery,
    Resume,
    ResetTraining,
    InitFrom,
    InitMelStatistics,
    Lr,
    BatchSize,
    GradAccum,
    OptimizationLevel,
    MixedPrecision,
    Seed,
    ModelSize,
    MaxTextLength,
    MaxMelFrames,
    FeatureArithmetic,
    NumWorkers,
    BufferSize,
    PrefetchBufferSize,
    Mode,
    DataGpu,
    ModelGpu,
    Gpu,
    Gpus,
    RankTimeout,
    ShareGpu,
    EnableMemoryIsolation,
    DataGpuMemory,
    ModelGpuMemory,
    ModelStartDelay,
    Transfer,
    VerifyTransfers,
    EnableStaticShapes,
    TensorboardDir,
    Prometheus,
    Trace,
}

impl Id {
    /// The setting's row in the table.
    pub fn setting(self) -> &'static Setting {
        &SETTINGS[self as usize]
    }
}

/// One row of the table.
#[derive(Debug)]
pub struct Setting {
    /// Which setting this is.
    pub id: Id,
    /// Long name on the command line, without the dashes.
    pub flag: &'static str,
    /// Section of the config file.
    pub section: &'static str,
    /// Key in that section.
    pub key: &'static str,
    /// Aliases on the command line; in snake case, also in the config file.
    pub aliases: &'static [&'static str],
    /// Which values are valid.
    pub kind: SettingKind,
    /// The default.
    pub default: DefaultValue,
    /// What it does, in one line; [`help_text`](Setting::help_text) is the whole of it.
    pub help: &'static str,
}

/// Which values of a setting are valid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SettingKind {
    /// A whole number. The bounds also keep every product of sizes far below 2⁶⁴.
    Count {
        /// Smallest valid value.
        min: u64,
        /// Largest valid value.
        max: u64,
    },
    /// A GPU: its number in `nvidia-smi`, or its UUID or the start of it.
    Gpu,
    /// Several GPUs: `all`, or names with commas between them.
    Gpus,
    /// A memory limit: MB, `auto`, or `auto:SHARE`.
    Limit,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// On or off.
    Switch {
        /// The flag that turns it off, if there is one.
        off_flag: Option<&'static str>,
    },
    /// A time in seconds.
    Seconds,
    /// A number over 0, at most 1.
    LearningRate,
    /// A fraction from 0 to 1.
    Share,
    /// A path to a file or folder.
    Path,
    /// Names of data, one or several: paths, patterns and URLs.
    Sources,
    /// Which column of a table is what; see [`parse_columns`](crate::parse_columns).
    Columns,
    /// An address to listen at.
    Address,
    /// A free-form word.
    Word,
    /// Where to find the speaker in an id; see [`tandem_corpus::SpeakerPattern`].
    SpeakerPattern,
}

/// The default of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DefaultValue {
    /// A constant.
    Fixed(&'static str),
    /// Computed from other settings and the hardware; the text describes how.
    Computed(&'static str),
    /// Computed from the corpus, or `otherwise` without one.
    FromCorpus {
        /// Description of both for `--help`.
        text: &'static str,
        /// The value without a corpus.
        otherwise: &'static str,
    },
}

impl Setting {
    /// The setting with the flag `name`: a long flag without dashes, an alias, or a negative flag.
    pub fn of_flag(name: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|s| s.flag == name || s.aliases.contains(&name) || s.off_flag() == Some(name))
    }

    /// The setting with this config key, in any section.
    pub fn of_key(key: &str) -> Option<&'static Setting> {
        let is = |name: &str| name.replace('-', "_") == key;
        SETTINGS.iter().find(|s| s.key == key || is(s.flag) || s.aliases.iter().any(|a| is(a)))
    }

    /// The value of the flag when it is given without one, if that is allowed.
    pub fn bare_value(&self) -> Option<&'static str> {
        (self.id == Id::Resume).then_some(NEWEST)
    }

    /// Whether the flag takes several values, one after the other.
    pub fn takes_several(&self) -> bool {
        self.kind == SettingKind::Sources
    }

    /// The flag that turns a switch off, if there is one.
    pub fn off_flag(&self) -> Option<&'static str> {
        match self.kind {
            SettingKind::Switch { off_flag } => off_flag,
            _ => None,
        }
    }

    /// The placeholder for the value in `--help`; `None` for a switch.
    pub fn value_name(&self) -> Option<&'static str> {
        match self.kind {
            SettingKind::Count { .. } => Some("N"),
            SettingKind::Gpu => Some("GPU"),
            SettingKind::Gpus => Some("GPUS"),
            SettingKind::Limit => Some("MB"),
            SettingKind::Choice(_) => Some("VALUE"),
            SettingKind::Seconds => Some("S"),
            SettingKind::Share | SettingKind::LearningRate => Some("X"),
            SettingKind::Path | SettingKind::Sources => Some("PATH"),
            SettingKind::Columns => Some("NAMES"),
            SettingKind::Address => Some("ADDR"),
            SettingKind::Word => Some("LANG"),
            SettingKind::SpeakerPattern => Some("PATTERN"),
            SettingKind::Switch { .. } => None,
        }
    }

    /// What it does, for `--help` and the docs. The first clause, up to `; `, stands alone.
    pub fn help_text(&self) -> Cow<'static, str> {
        match self.id {
            Id::ModelSize => format!("{}; millions of parameters: {}", self.help, preset_sizes()).into(),
            _ => self.help.into(),
        }
    }

    /// The default as `--help` shows it.
    pub fn default_text(&self) -> &'static str {
        match (self.kind, self.default) {
            (SettingKind::Switch { .. }, DefaultValue::Fixed("true")) => "on",
            (SettingKind::Switch { .. }, DefaultValue::Fixed(_)) => "off",
            (_, DefaultValue::Fixed(text) | DefaultValue::Computed(text) | DefaultValue::FromCorpus { text, .. }) => {
                text
            }
        }
    }

    /// Description of the valid values for error messages: `a whole number from 1 to 64`.
    pub fn expected(&self) -> String {
        match self.kind {
            SettingKind::Count { min, max } => format!("a whole number from {min} to {max}"),
            SettingKind::Gpu => {
                format!("a GPU number from 0 to {MAX_INDEX}, or a UUID or the start of one (`GPU-8f2d`)")
            }
            SettingKind::Gpus => "all, or GPU numbers or UUIDs with commas between them".to_owned(),
            SettingKind::Limit => {
                format!("a limit from 1 to {MAX_LIMIT_MB} MB, `auto`, or `auto:SHARE` (for example `auto:0.40`)")
            }
            SettingKind::Choice(words) => format!("one of {}", words.join(", ")),
            SettingKind::Switch { .. } => "true or false".to_owned(),
            SettingKind::Seconds => "a number of seconds from 0 to 3600".to_owned(),
            SettingKind::Share => "a number from 0 to 1".to_owned(),
            SettingKind::LearningRate => "a number over 0, at most 1".to_owned(),
            SettingKind::Path => A_PATH.to_owned(),
            SettingKind::Sources => "a path of this system, a pattern, a URL, or a list of them".to_owned(),
            SettingKind::Columns => {
                format!("columns as key=name with commas between them (keys: {})", COLUMN_KEYS.join(", "))
            }
            SettingKind::Address => "a port or an address to listen at".to_owned(),
            SettingKind::Word => "a word of up to 64 letters, digits, - and _".to_owned(),
            SettingKind::SpeakerPattern => {
                "a pattern with {speaker} once and * for anything else (no regular expression)".to_owned()
            }
        }
    }

    /// A valid value for error messages.
    pub fn example(&self) -> String {
        match (self.default, self.kind) {
            (DefaultValue::Fixed(text) | DefaultValue::FromCorpus { otherwise: text, .. }, _) => text.to_owned(),
            (_, SettingKind::Count { min, .. }) => min.to_string(),
            (_, SettingKind::Gpu) => "0".to_owned(),
            (_, SettingKind::Gpus) => "0,1".to_owned(),
            (_, SettingKind::Limit) => "auto".to_owned(),
            (_, SettingKind::Choice(words)) => words.first().copied().unwrap_or_default().to_owned(),
            (_, SettingKind::Switch { .. }) => "true".to_owned(),
            (_, SettingKind::Seconds) => "1.0".to_owned(),
            (_, SettingKind::Share) => "0.5".to_owned(),
            (_, SettingKind::LearningRate) => "0.001".to_owned(),
            (_, SettingKind::Path | SettingKind::Sources) => "./data".to_owned(),
            (_, SettingKind::Columns) => "audio=mp3,text=sentence".to_owned(),
            (_, SettingKind::Address) => "9090".to_owned(),
            (_, SettingKind::Word) => "en".to_owned(),
            (_, SettingKind::SpeakerPattern) => "{speaker}_*".to_owned(),
        }
    }

    /// The default as a value: a constant, or the value used without a corpus.
    pub(crate) fn fixed_default(&self) -> Option<SettingValue> {
        match self.default {
            DefaultValue::Fixed(text) | DefaultValue::FromCorpus { otherwise: text, .. } => {
                SettingValue::parse(self, text)
            }
            DefaultValue::Computed(_) => None,
        }
    }
}

/// The value of `--resume` without an argument: the newest checkpoint of the run, which must exist.
pub const NEWEST: &str = "newest";

/// What a path must be.
pub(crate) const A_PATH: &str = "a path of this system";

/// The sections of a config file, in the order `--print-config` writes them.
pub const SECTIONS: [&str; 3] = ["data", "model", "training"];

const TRAINING: &str = "training";
const MODEL: &str = "model";
const DATA: &str = "data";

/// The table of all settings.
pub static SETTINGS: &[Setting] = &[
    Setting {
        id: Id::TrainData,
        flag: "train-data",
        section: DATA,
        key: "train_data",
        aliases: &["data-path", "dataset-path"],
        kind: SettingKind::Sources,
        default: DefaultValue::Computed("a generated demo corpus"),
        help: "Folder, list, corpus.yaml, tar, Parquet, Arrow or Lhotse files, URLs; folders: LJSpeech, Piper, VCTK, Common Voice, wav+txt; several names are one corpus",
    },
    Setting {
        id: Id::ValData,
        flag: "val-data",
        section: DATA,
        key: "val_data",
        aliases: &["val-data-path"],
        kind: SettingKind::Sources,
        default: DefaultValue::Computed("metadata_eval.csv, else 10 % of the training data"),
        help: "Validation data, in the same formats",
    },
    Setting {
        id: Id::ExcludeIds,
        flag: "exclude-ids",
        section: DATA,
        key: "exclude_ids",
        aliases: &[],
        kind: SettingKind::Path,
        default: DefaultValue::Computed("none"),
        help: "File of utterance ids to exclude from training, one per line",
    },
    Setting {
        id: Id::SpeakerIdPattern,
        flag: "speaker-id-pattern",
        section: DATA,
        key: "speaker_id_pattern",
        aliases: &[],
        kind: SettingKind::SpeakerPattern,
        default: DefaultValue::Computed("none"),
        help: "Where to find the speaker of rows that name none in their id: {speaker}_* finds p248 in p248_065",
    },
    Setting {
        id: Id::Columns,
        flag: "columns",
        section: DATA,
        key: "columns",
        aliases: &[],
        kind: SettingKind::Columns,
        default: DefaultValue::Computed("found by their usual names"),
        help: "Columns of Parquet and Arrow tables, as audio=mp3,text=sentence; keys: audio, text, speaker, id, lang, duration",
    },
    Setting {
        id: Id::Lang,
        flag: "lang",
        section: DATA,
        key: "lang",
        aliases: &["language"],
        kind: SettingKind::Word,
        default: DefaultValue::Computed("en"),
        help: "Language of rows that do not name one, for example fa or de",
    },
    Setting {
        id: Id::Phonemizer,
        flag: "phonemizer",
        section: DATA,
        key: "phonemizer",
        aliases: &[],
        kind: SettingKind::Choice(&["auto", "dictionary", "espeak", "characters"]),
        default: DefaultValue::Fixed("auto"),
        help: "What turns words into symbols; auto: the built-in dictionary for English, characters for other languages",
    },
    Setting {
        id: Id::Lexicon,
        flag: "lexicon",
        section: DATA,
        key: "lexicon",
        aliases: &[],
        kind: SettingKind::Path,
        default: DefaultValue::Computed("none"),
        help: "Pronunciations to use first, in any language: lines of a word, a tab, and its phonemes with spaces between",
    },
    Setting {
        id: Id::Harakat,
        flag: "harakat",
        section: DATA,
        key: "harakat",
        aliases: &[],
        kind: SettingKind::Choice(&["drop", "keep"]),
        default: DefaultValue::Fixed("drop"),
        help: "Whether Persian vowel marks are symbols or are left out; a lexicon and espeak always see them",
    },
    Setting {
        id: Id::Cache,
        flag: "cache",
        section: DATA,
        key: "cache",
        aliases: &[],
        kind: SettingKind::Choice(&["auto", "none", "memory", "disk"]),
        default: DefaultValue::Fixed("auto"),
        help: "Where to cache decoded audio between epochs; auto: in memory if it fits in a quarter of the free RAM",
    },
    Setting {
        id: Id::ReadAheadMb,
        flag: "read-ahead-mb",
        section: DATA,
        key: "read_ahead_mb",
        aliases: &[],
        kind: SettingKind::Count { min: 0, max: 1 << 20 },
        default: DefaultValue::Fixed("256"),
        help: "Most MB of recordings to fetch ahead from an object store, in host memory; 0 turns it off",
    },
    Setting {
        id: Id::MaxBadFraction,
        flag: "max-bad-fraction",
        section: DATA,
        key: "max_bad_fraction",
        aliases: &[],
        kind: SettingKind::Share,
        default: DefaultValue::Fixed("0.05"),
        help: "Stop the run when more than this fraction of an epoch's recordings cannot be decoded",
    },
    Setting {
        id: Id::CheckpointDir,
        flag: "checkpoint-dir",
        section: TRAINING,
        key: "checkpoint_dir",
        aliases: &["output-path"],
        kind: SettingKind::Path,
        default: DefaultValue::Fixed("./checkpoints"),
        help: "Run folder: checkpoints, run log, samples",
    },
    Setting {
        id: Id::Epochs,
        flag: "epochs",
        section: TRAINING,
        key: "epochs",
        aliases: &[],
        kind: SettingKind::Count { min: 1, max: 1_000_000 },
        default: DefaultValue::Fixed("500"),
        help: "Number of epochs; --max-steps may end the run earlier",
    },
    Setting {
        id: Id::MaxSteps,
        flag: "max-steps",
        section: TRAINING,
        key: "max_steps",
        aliases: &[],
        kind: SettingKind::Count { min: 1, max: u32::MAX as u64 },
        default: DefaultValue::Computed("none; 300 on the demo corpus"),
        help: "Maximum number of optimizer steps",
    },
    Setting {
        id: Id::CheckpointEvery,
        flag: "checkpoint-every",
        section: TRAINING,
        key: "checkpoint_every",
        aliases: &["save-step"],
        kind: SettingKind::Count { min: 1, max: u32::MAX as u64 },
        default: DefaultValue::Computed("1000 steps or 10 minutes"),
        help: "Steps between checkpoints",
    },
    Setting {
        id: Id::Resume,
        flag: "resume",
        section: TRAINING,
        key: "resume",
        aliases: &[],
        kind: SettingKind::Path,
        default: DefaultValue::Computed("the newest checkpoint, if there is one"),
        help: "Resume exactly from this checkpoint; without PATH: from the newest, which must exist",
    },
    Setting {
        id: Id::ResetTraining,
        flag: "reset-training",
        section: TRAINING,
        key: "reset_training",
        aliases: &[],
        kind: SettingKind::Switch { off_flag: None },
        default: DefaultValue::Fixed("false"),
        help: "Start from step 0; an earlier run in the folder is moved aside, nothing is deleted",
    },
    Setting {
        id: Id::InitFrom,
        flag: "init-from",
        section: TRAINING,
        key: "init_from",
        aliases: &[],
        kind: SettingKind::Path,
        default: DefaultValue::Computed("none: random weights"),
        help: "Fine-tune: start from the weights of this checkpoint or run, at step 0",
    },
    Setting {
        id: Id::InitMelStatistics,
        flag: "init-mel-statistics",
        section: TRAINING,
        key: "init_mel_statistics",
        aliases: &[],
        kind: SettingKind::Choice(&["keep", "measure"]),
        default: DefaultValue::Fixed("keep"),
        help: "With --init-from: normalise spectrograms as its model does, or by the statistics of the new data",
    },
    Setting {
        id: Id::Lr,
        flag: "lr",
        section: TRAINING,
        key: "lr",
        aliases: &["learning-rate"],
        kind: SettingKind::LearningRate,
        default: DefaultValue::Computed("0.002 to 0.0001, by model size"),
        help: "Peak learning rate",
    },
    Setting {
        id: Id::BatchSize,
        flag: "batch-size",
        section: TRAINING,
        key: "batch_size",
        aliases: &[],
        kind: SettingKind::Count { min: 1, max: 65_536 },
        default: DefaultValue::Fixed("16"),
        help: "Utterances per optimizer step; the default is lowered automatically, with a note, if it does not fit",
    },
    Setting {
        id: Id::GradAccum,
        flag: "grad-accum",
        section: TRAINING,
        key: "grad_accum",
        aliases: &["gradient-accumulation-steps"],
        kind: SettingKind::Count { min: 1, max: 65_536 },
        default: DefaultValue::Fixed("1"),
        help: "Split each batch into this many micro-batches; must divide --batch-size",
    },
    Setting {
        id: Id::OptimizationLevel,
        flag: "optimization-level",
        section: TRAINING,
        key: "optimization_level",
        aliases: &[],
        kind: SettingKind::Choice(&["basic", "enhanced"]),
        default: DefaultValue::Fixed("enhanced"),
        help: "basic: AdamW, warm-up, then a constant rate; enhanced: warm-up, cosine decay, gradient clipping and an EMA of the weights",
    },
    Setting {
        id: Id::MixedPrecision,
        flag: "mixed-precision",
        section: TRAINING,
        key: "mixed_precision",
        aliases: &["use-mixed-precision"],
        kind: SettingKind::Switch { off_flag: Some("no-mixed-precision") },
        default: DefaultValue::Computed("on if the device supports bf16"),
        help: "bf16 compute with f32 master weights",
    },
    Setting {
        id: Id::Seed,
        flag: "seed",
        section: TRAINING,
        key: "seed",
        aliases: &[],
        // YAML integers are signed.
        kind: SettingKind::Count { min: 0, max: i64::MAX as u64 },
        default: DefaultValue::Fixed("1234"),
        help: "Random seed for data order, dropout and initial weights",
    },
    Setting {
        id: Id::ModelSize,
        flag: "model-size",
        section: MODEL,
        key: "model_size",
        aliases: &[],
        kind: SettingKind::Choice(&["nano", "tiny", "small", "normal", "big"]),
        default: DefaultValue::Fixed("tiny"),
        help: "Preset of the model",
    },
    Setting {
        id: Id::MaxTextLength,
        flag: "max-text-length",
        section: DATA,
        key: "max_text_length",
        aliases: &[],
        kind: SettingKind::Count { min: *TOKEN_LIMITS.start() as u64, max: *TOKEN_LIMITS.end() as u64 },
        default: DefaultValue::FromCorpus {
            text: "99.5th percentile of the corpus; 200 without one",
            otherwise: "200",
        },
        help: "Longest text to train on, in tokens; utterances with longer texts are skipped",
    },
    Setting {
        id: Id::MaxMelFrames,
        flag: "max-mel-frames",
        section: DATA,
        key: "max_mel_frames",
        aliases: &["max-mel-length"],
        kind: SettingKind::Count { min: *FRAME_LIMITS.start() as u64, max: *FRAME_LIMITS.end() as u64 },
        default: DefaultValue::FromCorpus {
            text: "99.5th percentile of the corpus; 1000 without one",
            otherwise: "1000",
        },
        help: "Longest recording to train on, in frames of 256 samples; longer ones are skipped",
    },
    Setting {
        id: Id::FeatureArithmetic,
        flag: "feature-arithmetic",
        section: DATA,
        key: "feature_arithmetic",
        aliases: &[],
        kind: SettingKind::Choice(&["auto", "f64", "two-float"]),
        default: DefaultValue::Fixed("auto"),
        help: "Arithmetic of log-mel frames; auto: pairs of f32 on a card with few f64 units, chosen at the first start and kept",
    },
    Setting {
        id: Id::NumWorkers,
        flag: "num-workers",
        section: DATA,
        key: "num_workers",
        aliases: &["num-loader-workers"],
        kind: SettingKind::Count { min: 1, max: 1024 },
        default: DefaultValue::Computed("min(8, cores), then tuned: up to twice the cores, at least 8, at most 64"),
        help: "Decode threads; a number you give is never changed",
    },
    Setting {
        id: Id::BufferSize,
        flag: "buffer-size",
        section: DATA,
        key: "pipeline_buffer_size",
        aliases: &["pipeline-buffer-size"],
        kind: SettingKind::Count { min: 1, max: 65_536 },
        default: DefaultValue::Fixed("50"),
        help: "Batches prefetched on the data side; with two GPUs max(6, N/2)",
    },
    Setting {
        id: Id::PrefetchBufferSize,
        flag: "prefetch-buffer-size",
        section: DATA,
        key: "prefetch_buffer_size",
        aliases: &[],
        kind: SettingKind::Count { min: 1, max: 1024 },
        default: DefaultValue::Computed("clamp(64 / batch, 3, 8); 2 on the CPU"),
        help: "Batch slots on the model side; at least 3 on a GPU",
    },
    Setting {
        id: Id::Mode,
        flag: "mode",
        section: DATA,
        key: "mode",
        aliases: &[],
        kind: SettingKind::Choice(&["single", "dual", "cpu", "auto"]),
        default: DefaultValue::Computed("from the GPU flags"),
        help: "Where to run: one GPU, two GPUs or the CPU; auto times the modes and takes the fastest",
    },
    Setting {
        id: Id::DataGpu,
        flag: "data-gpu",
        section: DATA,
        key: "data_gpu",
        aliases: &[],
        kind: SettingKind::Gpu,
        default: DefaultValue::Computed("none"),
        help: "GPU that prepares data: its number in nvidia-smi, or its UUID; requires --model-gpu",
    },
    Setting {
        id: Id::ModelGpu,
        flag: "model-gpu",
        section: DATA,
        key: "model_gpu",
        aliases: &[],
        kind: SettingKind::Gpu,
        default: DefaultValue::Computed("none"),
        help: "GPU that trains the model: its number in nvidia-smi, or its UUID; requires --data-gpu",
    },
    Setting {
        id: Id::Gpu,
        flag: "gpu",
        section: DATA,
        key: "gpu",
        aliases: &[],
        kind: SettingKind::Gpu,
        default: DefaultValue::Computed("the GPU with the most free memory"),
        help: "GPU for single mode and for --share-gpu: its number in nvidia-smi, or its UUID",
    },
    Setting {
        id: Id::Gpus,
        flag: "gpus",
        section: DATA,
        key: "gpus",
        aliases: &[],
        kind: SettingKind::Gpus,
        default: DefaultValue::Computed("none"),
        help: "GPUs that train together, one process each: all, or 0,1,3; every GPU has both roles, and gradients are summed",
    },
    Setting {
        id: Id::RankTimeout,
        flag: "rank-timeout",
        section: DATA,
        key: "rank_timeout",
        aliases: &[],
        kind: SettingKind::Count { min: 1, max: 86_400 },
        default: DefaultValue::Fixed("600"),
        help: "Seconds that ranks wait for one that does not answer; then the run ends with an error that names it",
    },
    Setting {
        id: Id::ShareGpu,
        flag: "share-gpu",
        section: DATA,
        key: "share_gpu",
        aliases: &[],
        kind: SettingKind::Switch { off_flag: Some("no-share-gpu") },
        default: DefaultValue::Fixed("false"),
        help: "Run both roles on one GPU, as two partitions",
    },
    Setting {
        id: Id::EnableMemoryIsolation,
        flag: "enable-memory-isolation",
        section: DATA,
        key: "enable_memory_isolation",
        aliases: &[],
        kind: SettingKind::Switch { off_flag: Some("no-enable-memory-isolation") },
        default: DefaultValue::Fixed("false"),
        help: "Enforce hard memory limits on both roles",
    },
    Setting {
        id: Id::DataGpuMemory,
        flag: "data-gpu-memory",
        section: DATA,
        key: "data_gpu_memory",
        aliases: &["data-gpu-memory-limit"],
        kind: SettingKind::Limit,
        default: DefaultValue::Computed("8192; auto with --share-gpu"),
        help: "Memory limit of the data role: MB, auto, or auto:SHARE; requires --enable-memory-isolation",
    },
    Setting {
        id: Id::ModelGpuMemory,
        flag: "model-gpu-memory",
        section: DATA,
        key: "model_gpu_memory",
        aliases: &["model-gpu-memory-limit"],
        kind: SettingKind::Limit,
        default: DefaultValue::Computed("16384; auto with --share-gpu"),
        help: "Memory limit of the model role: MB, auto, or auto:SHARE; requires --enable-memory-isolation",
    },
    Setting {
        id: Id::ModelStartDelay,
        flag: "model-start-delay",
        section: DATA,
        key: "model_start_delay",
        aliases: &[],
        kind: SettingKind::Seconds,
        default: DefaultValue::Fixed("2.0"),
        help: "Longest wait for the data buffer to fill before the first step, in seconds",
    },
    Setting {
        id: Id::Transfer,
        flag: "transfer",
        section: DATA,
        key: "transfer",
        aliases: &[],
        kind: SettingKind::Choice(&["auto", "peer", "peer-copy", "staged", "bounce", "handover"]),
        default: DefaultValue::Fixed("auto"),
        help: "How batches move from the data role to the model role",
    },
    Setting {
        id: Id::VerifyTransfers,
        flag: "verify-transfers",
        section: DATA,
        key: "verify_transfers",
        aliases: &[],
        kind: SettingKind::Count { min: 1, max: 1_000_000 },
        default: DefaultValue::Computed("none is verified"),
        help: "Verify one in N batches after its transfer, by a checksum on both GPUs; a batch that changed ends the run",
    },
    Setting {
        id: Id::EnableStaticShapes,
        flag: "enable-static-shapes",
        section: DATA,
        key: "enable_static_shapes",
        aliases: &["pad-to-fixed-length"],
        kind: SettingKind::Switch { off_flag: Some("disable-static-shapes") },
        default: DefaultValue::Fixed("true"),
        help: "Pad batches to a few fixed shapes, compiled before the first step; off: exact shapes, each compiled when first seen",
    },
    Setting {
        id: Id::TensorboardDir,
        flag: "tensorboard-dir",
        section: TRAINING,
        key: "tensorboard_dir",
        aliases: &["tensorboard-log-dir"],
        kind: SettingKind::Path,
        default: DefaultValue::Computed("tensorboard/ in the run folder"),
        help: "Folder for TensorBoard event files",
    },
    Setting {
        id: Id::Prometheus,
        flag: "prometheus",
        section: TRAINING,
        key: "prometheus",
        aliases: &[],
        kind: SettingKind::Address,
        default: DefaultValue::Computed("none"),
        help: "Serve Prometheus metrics at this address: 9090, :9090 (both on loopback) or 0.0.0.0:9090",
    },
    Setting {
        id: Id::Trace,
        flag: "trace",
        section: TRAINING,
        key: "trace",
        aliases: &[],
        kind: SettingKind::Path,
        default: DefaultValue::Computed("none"),
        help: "Write a Chrome/Perfetto trace of the run to this file",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speech::{SpeechModels, acoustic, millions};
    use std::collections::BTreeSet;
    use tandem_model::Preset;

    #[test]
    fn rows_are_in_the_order_of_their_ids() {
        for (i, setting) in SETTINGS.iter().enumerate() {
            assert_eq!(setting.id as usize, i, "{}", setting.flag);
            assert_eq!(setting.id.setting().flag, setting.flag);
        }
        assert_eq!(Id::Trace as usize + 1, SETTINGS.len());
    }

    #[test]
    fn the_help_of_model_size_has_the_parameter_counts_of_the_presets() {
        let help = Id::ModelSize.setting().help_text();
        for preset in Preset::ALL {
            let model = acoustic(preset, SpeechModels::DEFAULT_VOCABULARY).unwrap();
            let stated = format!("{} {}", preset.name(), millions(model.parameters().count()));
            assert!(help.contains(&stated), "{stated:?} is not in {help:?}");
        }
    }

    #[test]
    fn every_name_belongs_to_one_setting() {
        let mut seen = BTreeSet::new();
        for s in SETTINGS {
            for name in s.aliases.iter().copied().chain([s.flag]).chain(s.off_flag()) {
                assert!(seen.insert(name), "{name}");
                assert_eq!(Setting::of_flag(name).map(|s| s.id), Some(s.id));
            }
            assert_eq!(Setting::of_key(s.key).map(|s| s.id), Some(s.id));
            assert!(SECTIONS.contains(&s.section));
        }
    }

    #[test]
    fn fixed_defaults_and_examples_are_valid() {
        for s in SETTINGS {
            assert!(SettingValue::parse(s, &s.example()).is_some(), "{}", s.flag);
            assert_eq!(s.fixed_default().is_none(), matches!(s.default, DefaultValue::Computed(_)), "{}", s.flag);
        }
    }
}
