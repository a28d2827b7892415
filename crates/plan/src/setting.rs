//! Every setting there is, in one table. The command line, the config file, `--print-config` and every message
//! about a setting are made from it, so none of them can know a name the others do not.

use crate::value::SettingValue;

/// Which setting. In the order of [`SETTINGS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the table below says what each one means")]
pub enum Id {
    TrainData,
    ValData,
    ExcludeIds,
    Lang,
    CachePlan,
    MaxBadFraction,
    CheckpointDir,
    Epochs,
    MaxSteps,
    CheckpointEvery,
    Resume,
    ResetTraining,
    Lr,
    BatchSize,
    GradAccum,
    OptimizationLevel,
    MixedPrecision,
    Seed,
    ModelSize,
    MaxTextLength,
    MaxMelFrames,
    NumWorkers,
    BufferSize,
    PrefetchBufferSize,
    Mode,
    DataGpu,
    ModelGpu,
    Gpu,
    ShareGpu,
    EnableMemoryIsolation,
    DataGpuMemory,
    ModelGpuMemory,
    ModelStartDelay,
    TransferPlan,
    EnableStaticShapes,
    TensorboardDir,
    Prometheus,
    Trace,
}

impl Id {
    /// Its row in the table.
    pub fn setting(self) -> &'static Setting {
        &SETTINGS[self as usize]
    }
}

/// One row of the table.
#[derive(Debug)]
pub struct Setting {
    /// Which setting this is.
    pub id: Id,
    /// Its long name on the command line, without the dashes.
    pub flag: &'static str,
    /// The section of the config file it belongs to.
    pub section: &'static str,
    /// Its key in that section.
    pub key: &'static str,
    /// Other names it answers to on the command line; in snake case, also in the config file.
    pub aliases: &'static [&'static str],
    /// What can be written for it.
    pub kind: SettingKind,
    /// What holds when nothing is written.
    pub default: DefaultValue,
    /// What it does, in one line.
    pub help: &'static str,
}

/// What can be written for a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SettingKind {
    /// A whole number. The bounds also keep every product of sizes far inside 64 bits.
    Count {
        /// Smallest that makes sense.
        min: u64,
        /// Largest that makes sense.
        max: u64,
    },
    /// A memory limit: MB, `auto`, or `auto:SHARE`.
    Limit,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// On or off.
    Switch {
        /// The flag that turns it off, where there is one.
        off_flag: Option<&'static str>,
    },
    /// A time in seconds.
    Seconds,
    /// A share, from 0 to 1.
    Share,
    /// A file or a folder, as the system names it.
    Path,
    /// A word of the user's own.
    Word,
}

/// What holds when a setting is not written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DefaultValue {
    /// This value, always.
    Fixed(&'static str),
    /// Something that depends on the rest; the text says on what.
    Computed(&'static str),
    /// Something that the corpus says, and this value where there is none.
    FromCorpus {
        /// Both, for people.
        text: &'static str,
        /// The value without a corpus.
        otherwise: &'static str,
    },
}

impl Setting {
    /// The setting that `name` (a long flag without dashes, an alias, or a negative flag) belongs to.
    pub fn of_flag(name: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|s| s.flag == name || s.aliases.contains(&name) || s.off_flag() == Some(name))
    }

    /// The setting that `key` means in a config file, whatever its section.
    pub fn of_key(key: &str) -> Option<&'static Setting> {
        let is = |name: &str| name.replace('-', "_") == key;
        SETTINGS.iter().find(|s| s.key == key || is(s.flag) || s.aliases.iter().any(|a| is(a)))
    }

    /// What the flag means when nothing is written behind it, where that is allowed.
    pub fn bare_value(&self) -> Option<&'static str> {
        (self.id == Id::Resume).then_some(NEWEST)
    }

    /// The flag that turns a switch off, where there is one.
    pub fn off_flag(&self) -> Option<&'static str> {
        match self.kind {
            SettingKind::Switch { off_flag } => off_flag,
            _ => None,
        }
    }

    /// What stands for the value in `--help`; nothing for a switch.
    pub fn value_name(&self) -> Option<&'static str> {
        match self.kind {
            SettingKind::Count { .. } => Some("N"),
            SettingKind::Limit => Some("MB"),
            SettingKind::Choice(_) => Some("WORD"),
            SettingKind::Seconds => Some("S"),
            SettingKind::Share => Some("X"),
            SettingKind::Path => Some("PATH"),
            SettingKind::Word => Some("WORD"),
            SettingKind::Switch { .. } => None,
        }
    }

    /// The default as it is shown to people.
    pub fn default_text(&self) -> &'static str {
        match self.default {
            DefaultValue::Fixed(text) | DefaultValue::Computed(text) | DefaultValue::FromCorpus { text, .. } => text,
        }
    }

    /// What can be written, for messages: `a whole number from 1 to 64`.
    pub fn expected(&self) -> String {
        match self.kind {
            SettingKind::Count { min, max } => format!("a whole number from {min} to {max}"),
            SettingKind::Limit => "a number of MB from 1 on, `auto`, or `auto:0.40` for another share".to_owned(),
            SettingKind::Choice(words) => format!("one of {}", words.join(", ")),
            SettingKind::Switch { .. } => "true or false".to_owned(),
            SettingKind::Seconds => "a number of seconds from 0 to 3600".to_owned(),
            SettingKind::Share => "a number from 0 to 1".to_owned(),
            SettingKind::Path => "a path".to_owned(),
            SettingKind::Word => "a word of up to 64 letters, digits, - and _".to_owned(),
        }
    }

    /// Something that could have been written.
    pub fn example(&self) -> String {
        match (self.default, self.kind) {
            (DefaultValue::Fixed(text) | DefaultValue::FromCorpus { otherwise: text, .. }, _) => text.to_owned(),
            (_, SettingKind::Count { min, .. }) => min.to_string(),
            (_, SettingKind::Limit) => "auto".to_owned(),
            (_, SettingKind::Choice(words)) => words.first().copied().unwrap_or_default().to_owned(),
            (_, SettingKind::Switch { .. }) => "true".to_owned(),
            (_, SettingKind::Seconds) => "1.0".to_owned(),
            (_, SettingKind::Share) => "0.5".to_owned(),
            (_, SettingKind::Path) => "./data".to_owned(),
            (_, SettingKind::Word) => "en".to_owned(),
        }
    }

    /// The default as a value, where it is a fixed one, or is one without a corpus.
    pub(crate) fn fixed_default(&self) -> Option<SettingValue> {
        match self.default {
            DefaultValue::Fixed(text) | DefaultValue::FromCorpus { otherwise: text, .. } => {
                SettingValue::parse(self, text)
            }
            DefaultValue::Computed(_) => None,
        }
    }
}

/// What `--resume` means alone: the newest checkpoint of the run, and there must be one.
pub const NEWEST: &str = "newest";

/// The sections of a config file, in the order they are written.
pub const SECTIONS: [&str; 3] = ["data", "model", "training"];

const TRAINING: &str = "training";
const MODEL: &str = "model";
const DATA: &str = "data";
const GPU_INDEX: SettingKind = SettingKind::Count { min: 0, max: 1023 };

/// The table.
pub static SETTINGS: &[Setting] = &[
    Setting {
        id: Id::TrainData,
        flag: "train-data",
        section: DATA,
        key: "train_data",
        aliases: &[],
        kind: SettingKind::Path,
        default: DefaultValue::Computed("none: evenly spaced shapes"),
        help: "LJSpeech folder, its metadata file (.csv), or a JSONL manifest",
    },
    Setting {
        id: Id::ValData,
        flag: "val-data",
        section: DATA,
        key: "val_data",
        aliases: &[],
        kind: SettingKind::Path,
        default: DefaultValue::Computed("metadata_eval.csv, else a tenth of the training data"),
        help: "The same for validation",
    },
    Setting {
        id: Id::ExcludeIds,
        flag: "exclude-ids",
        section: DATA,
        key: "exclude_ids",
        aliases: &[],
        kind: SettingKind::Path,
        default: DefaultValue::Computed("none"),
        help: "Utterances never trained on, an id per line",
    },
    Setting {
        id: Id::Lang,
        flag: "lang",
        section: DATA,
        key: "lang",
        aliases: &[],
        kind: SettingKind::Word,
        default: DefaultValue::Fixed("en"),
        help: "Language of rows that name none",
    },
    Setting {
        id: Id::CachePlan,
        flag: "cache",
        section: DATA,
        key: "cache",
        aliases: &[],
        kind: SettingKind::Choice(&["auto", "none", "memory", "disk"]),
        default: DefaultValue::Fixed("auto"),
        help: "Where decoded audio is kept between epochs; auto: in memory when it fits a quarter of what is free",
    },
    Setting {
        id: Id::MaxBadFraction,
        flag: "max-bad-fraction",
        section: DATA,
        key: "max_bad_fraction",
        aliases: &[],
        kind: SettingKind::Share,
        default: DefaultValue::Fixed("0.05"),
        help: "Recordings of an epoch that may turn out bad before the run stops, as a share",
    },
    Setting {
        id: Id::CheckpointDir,
        flag: "checkpoint-dir",
        section: TRAINING,
        key: "checkpoint_dir",
        aliases: &[],
        kind: SettingKind::Path,
        default: DefaultValue::Fixed("./checkpoints"),
        help: "Folder of the run: checkpoints, run log, samples",
    },
    Setting {
        id: Id::Epochs,
        flag: "epochs",
        section: TRAINING,
        key: "epochs",
        aliases: &[],
        kind: SettingKind::Count { min: 1, max: 1_000_000 },
        default: DefaultValue::Fixed("500"),
        help: "Times the corpus is gone through; --max-steps may end the run sooner",
    },
    Setting {
        id: Id::MaxSteps,
        flag: "max-steps",
        section: TRAINING,
        key: "max_steps",
        aliases: &[],
        kind: SettingKind::Count { min: 1, max: u32::MAX as u64 },
        default: DefaultValue::Computed("none; 300 without data"),
        help: "Optimizer steps at most",
    },
    Setting {
        id: Id::CheckpointEvery,
        flag: "checkpoint-every",
        section: TRAINING,
        key: "checkpoint_every",
        aliases: &[],
        kind: SettingKind::Count { min: 1, max: u32::MAX as u64 },
        default: DefaultValue::Computed("1000 steps or 10 minutes"),
        help: "Steps from one checkpoint to the next",
    },
    Setting {
        id: Id::Resume,
        flag: "resume",
        section: TRAINING,
        key: "resume",
        aliases: &[],
        kind: SettingKind::Path,
        default: DefaultValue::Computed("the newest checkpoint, where there is one"),
        help: "Go on from this checkpoint, exactly; alone: from the newest, and there must be one",
    },
    Setting {
        id: Id::ResetTraining,
        flag: "reset-training",
        section: TRAINING,
        key: "reset_training",
        aliases: &[],
        kind: SettingKind::Switch { off_flag: None },
        default: DefaultValue::Fixed("false"),
        help: "Begin anew: an earlier run in the folder is moved aside, nothing is deleted",
    },
    Setting {
        id: Id::Lr,
        flag: "lr",
        section: TRAINING,
        key: "lr",
        aliases: &["learning-rate"],
        kind: SettingKind::Share,
        default: DefaultValue::Computed("0.002 to 0.0001, by the size of the model"),
        help: "The highest learning rate",
    },
    Setting {
        id: Id::BatchSize,
        flag: "batch-size",
        section: TRAINING,
        key: "batch_size",
        aliases: &[],
        kind: SettingKind::Count { min: 1, max: 65_536 },
        default: DefaultValue::Fixed("16"),
        help: "Utterances per optimizer step; the default is lowered, aloud, where it does not fit",
    },
    Setting {
        id: Id::GradAccum,
        flag: "grad-accum",
        section: TRAINING,
        key: "grad_accum",
        aliases: &["gradient-accumulation-steps"],
        kind: SettingKind::Count { min: 1, max: 65_536 },
        default: DefaultValue::Fixed("1"),
        help: "Splits the batch into this many micro-batches; must divide it",
    },
    Setting {
        id: Id::OptimizationLevel,
        flag: "optimization-level",
        section: TRAINING,
        key: "optimization_level",
        aliases: &[],
        kind: SettingKind::Choice(&["basic", "enhanced"]),
        default: DefaultValue::Fixed("enhanced"),
        help: "basic: AdamW, warm-up then constant; enhanced: warm-up, cosine, clipping and an averaged (EMA) copy of the weights",
    },
    Setting {
        id: Id::MixedPrecision,
        flag: "mixed-precision",
        section: TRAINING,
        key: "mixed_precision",
        aliases: &["use-mixed-precision"],
        kind: SettingKind::Switch { off_flag: Some("no-mixed-precision") },
        default: DefaultValue::Computed("on where the device has bf16"),
        help: "bf16 compute with f32 master weights",
    },
    Setting {
        id: Id::Seed,
        flag: "seed",
        section: TRAINING,
        key: "seed",
        aliases: &[],
        // As far as a YAML number goes.
        kind: SettingKind::Count { min: 0, max: i64::MAX as u64 },
        default: DefaultValue::Fixed("1234"),
        help: "Fixes data order, dropout and initial weights",
    },
    Setting {
        id: Id::ModelSize,
        flag: "model-size",
        section: MODEL,
        key: "model_size",
        aliases: &[],
        kind: SettingKind::Choice(&["nano", "tiny", "small", "normal", "big"]),
        default: DefaultValue::Fixed("tiny"),
        help: "Preset: about 2, 12, 32, 93 or 480 million parameters",
    },
    Setting {
        id: Id::MaxTextLength,
        flag: "max-text-length",
        section: DATA,
        key: "max_text_length",
        aliases: &[],
        kind: SettingKind::Count { min: 1, max: 10_000 },
        default: DefaultValue::FromCorpus {
            text: "99.5th percentile of the corpus; 200 without one",
            otherwise: "200",
        },
        help: "Longest text that is trained on, in tokens; longer ones are left out",
    },
    Setting {
        id: Id::MaxMelFrames,
        flag: "max-mel-frames",
        section: DATA,
        key: "max_mel_frames",
        aliases: &["max-mel-length"],
        kind: SettingKind::Count { min: 8, max: 100_000 },
        default: DefaultValue::FromCorpus {
            text: "99.5th percentile of the corpus; 1000 without one",
            otherwise: "1000",
        },
        help: "Longest recording that is trained on, in frames of 256 samples; longer ones are left out",
    },
    Setting {
        id: Id::NumWorkers,
        flag: "num-workers",
        section: DATA,
        key: "num_workers",
        aliases: &[],
        kind: SettingKind::Count { min: 1, max: 1024 },
        default: DefaultValue::Computed(
            "min(8, cores); more, up to twice the cores (8 at least, 64 at most), when it waits for them",
        ),
        help: "Decode threads; a number given by hand is never changed",
    },
    Setting {
        id: Id::BufferSize,
        flag: "buffer-size",
        section: DATA,
        key: "pipeline_buffer_size",
        aliases: &["pipeline-buffer-size"],
        kind: SettingKind::Count { min: 1, max: 65_536 },
        default: DefaultValue::Fixed("50"),
        help: "Batches prefetched on the data side; two GPUs keep max(6, N/2)",
    },
    Setting {
        id: Id::PrefetchBufferSize,
        flag: "prefetch-buffer-size",
        section: DATA,
        key: "prefetch_buffer_size",
        aliases: &[],
        kind: SettingKind::Count { min: 1, max: 1024 },
        default: DefaultValue::Computed("clamp(64 / batch, 3, 8); 2 on the CPU"),
        help: "Batch slots towards the model device; at least 3 on a GPU",
    },
    Setting {
        id: Id::Mode,
        flag: "mode",
        section: DATA,
        key: "mode",
        aliases: &[],
        kind: SettingKind::Choice(&["single", "dual", "cpu", "auto"]),
        default: DefaultValue::Computed("from the GPU flags"),
        help: "Where to run: one GPU, two, or the CPU",
    },
    Setting {
        id: Id::DataGpu,
        flag: "data-gpu",
        section: DATA,
        key: "data_gpu",
        aliases: &[],
        kind: GPU_INDEX,
        default: DefaultValue::Computed("none"),
        help: "GPU that prepares data, as nvidia-smi counts; goes with --model-gpu",
    },
    Setting {
        id: Id::ModelGpu,
        flag: "model-gpu",
        section: DATA,
        key: "model_gpu",
        aliases: &[],
        kind: GPU_INDEX,
        default: DefaultValue::Computed("none"),
        help: "GPU that trains the model, as nvidia-smi counts; goes with --data-gpu",
    },
    Setting {
        id: Id::Gpu,
        flag: "gpu",
        section: DATA,
        key: "gpu",
        aliases: &[],
        kind: GPU_INDEX,
        default: DefaultValue::Computed("the one with the most free memory"),
        help: "GPU of single mode and of --share-gpu",
    },
    Setting {
        id: Id::ShareGpu,
        flag: "share-gpu",
        section: DATA,
        key: "share_gpu",
        aliases: &[],
        kind: SettingKind::Switch { off_flag: Some("no-share-gpu") },
        default: DefaultValue::Fixed("false"),
        help: "Both roles on one GPU, as two partitions",
    },
    Setting {
        id: Id::EnableMemoryIsolation,
        flag: "enable-memory-isolation",
        section: DATA,
        key: "enable_memory_isolation",
        aliases: &[],
        kind: SettingKind::Switch { off_flag: Some("no-enable-memory-isolation") },
        default: DefaultValue::Fixed("false"),
        help: "Hard memory limits on both roles",
    },
    Setting {
        id: Id::DataGpuMemory,
        flag: "data-gpu-memory",
        section: DATA,
        key: "data_gpu_memory",
        aliases: &["data-gpu-memory-limit"],
        kind: SettingKind::Limit,
        default: DefaultValue::Computed("8192; auto with --share-gpu"),
        help: "Limit of the data role in MB, auto, or auto:SHARE; needs --enable-memory-isolation",
    },
    Setting {
        id: Id::ModelGpuMemory,
        flag: "model-gpu-memory",
        section: DATA,
        key: "model_gpu_memory",
        aliases: &["model-gpu-memory-limit"],
        kind: SettingKind::Limit,
        default: DefaultValue::Computed("16384; auto with --share-gpu"),
        help: "Limit of the model role in MB, auto, or auto:SHARE; needs --enable-memory-isolation",
    },
    Setting {
        id: Id::ModelStartDelay,
        flag: "model-start-delay",
        section: DATA,
        key: "model_start_delay",
        aliases: &[],
        kind: SettingKind::Seconds,
        default: DefaultValue::Fixed("2.0"),
        help: "Longest wait for a warm buffer, in seconds",
    },
    Setting {
        id: Id::TransferPlan,
        flag: "transfer",
        section: DATA,
        key: "transfer",
        aliases: &[],
        kind: SettingKind::Choice(&["auto", "peer", "bounce", "handover"]),
        default: DefaultValue::Fixed("auto"),
        help: "How batches cross from the data role to the model role",
    },
    Setting {
        id: Id::EnableStaticShapes,
        flag: "enable-static-shapes",
        section: DATA,
        key: "enable_static_shapes",
        aliases: &["pad-to-fixed-length"],
        kind: SettingKind::Switch { off_flag: Some("disable-static-shapes") },
        default: DefaultValue::Fixed("true"),
        help: "Few padded shapes, compiled before the first step; off: each batch as long as it is, compiled on first sight",
    },
    Setting {
        id: Id::TensorboardDir,
        flag: "tensorboard-dir",
        section: TRAINING,
        key: "tensorboard_dir",
        aliases: &["tensorboard-log-dir"],
        kind: SettingKind::Path,
        default: DefaultValue::Computed("tensorboard in the folder of the run"),
        help: "Folder for TensorBoard's event files",
    },
    Setting {
        id: Id::Prometheus,
        flag: "prometheus",
        section: TRAINING,
        key: "prometheus",
        aliases: &[],
        kind: SettingKind::Path,
        default: DefaultValue::Computed("none"),
        help: "Serve figures to Prometheus at this address: 9090, :9090 (both on loopback) or 0.0.0.0:9090",
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

/// A key of the Python trainers that has nothing left to do.
#[derive(Debug)]
pub struct Retired {
    /// The key, in any section.
    pub key: &'static str,
    /// What took its place, as the end of a sentence.
    pub instead: &'static str,
}

/// Keys that are recognised, warned about, and otherwise without effect.
pub static RETIRED: &[Retired] = &[
    Retired { key: "use_tf_native_loading", instead: "decoding always runs on native threads (num_workers)" },
    Retired { key: "enhanced_gpu_prefetch", instead: "batches always wait on the device (prefetch_buffer_size)" },
    Retired { key: "enhanced_gpu_pipeline", instead: "every mode overlaps data and training (mode)" },
    Retired { key: "prefetch_to_gpu", instead: "batches always wait on the device (prefetch_buffer_size)" },
    Retired { key: "optimize_cpu_gpu_overlap", instead: "data and training always overlap" },
    Retired { key: "auto_tune_performance", instead: "what is not set by hand is computed; see the plan" },
    Retired { key: "shuffle_buffer_size", instead: "the order comes from the seed alone (seed)" },
    Retired { key: "enable_xla", instead: "every shape is compiled ahead" },
    Retired { key: "enable_memory_growth", instead: "memory is reserved once, at start (enable_memory_isolation)" },
    Retired { key: "pin_memory", instead: "uploads always go through page-locked memory" },
    Retired { key: "persistent_workers", instead: "decode threads live as long as the run (num_workers)" },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn rows_stand_in_the_order_of_their_ids() {
        for (i, setting) in SETTINGS.iter().enumerate() {
            assert_eq!(setting.id as usize, i, "{}", setting.flag);
            assert_eq!(setting.id.setting().flag, setting.flag);
        }
        assert_eq!(Id::Trace as usize + 1, SETTINGS.len());
    }

    #[test]
    fn no_name_means_two_things() {
        let mut seen = BTreeSet::new();
        for s in SETTINGS {
            for name in s.aliases.iter().copied().chain([s.flag]).chain(s.off_flag()) {
                assert!(seen.insert(name), "{name}");
                assert_eq!(Setting::of_flag(name).map(|s| s.id), Some(s.id));
            }
            assert_eq!(Setting::of_key(s.key).map(|s| s.id), Some(s.id));
            assert!(SECTIONS.contains(&s.section));
        }
        assert!(RETIRED.iter().all(|r| Setting::of_key(r.key).is_none()));
    }

    #[test]
    fn fixed_defaults_and_examples_can_be_written() {
        for s in SETTINGS {
            assert!(SettingValue::parse(s, &s.example()).is_some(), "{}", s.flag);
            assert_eq!(s.fixed_default().is_none(), matches!(s.default, DefaultValue::Computed(_)), "{}", s.flag);
        }
    }
}
