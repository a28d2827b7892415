//! Fixtures of the tests: settings from a command line, machines by size, models whose memory is a formula.

use tandem_corpus::SampleIndex;
use tandem_device::bytes::{BLOCK_ALIGN, MIB, round_up};
use tandem_device::{DeviceKind, DriverCost, Visibility};
use tandem_feed::{Bucket, Extent, SPEECH};
use tandem_model::Preset;

use crate::corpus::CorpusFacts;
use crate::hardware::{Hardware, HostFacts};
use crate::model_memory::{ModelCatalog, ModelChoice, ModelMemory, PlanLine, ProgramKind};
use crate::placement::Precision;
use crate::setting::{Setting, SettingKind};
use crate::settings::{Origin, Settings};

/// The settings of a command line.
pub(crate) fn settings(line: &str) -> Settings {
    let mut settings = Settings::new();
    let mut words = line.split_whitespace();
    while let Some(word) = words.next() {
        let name = word.strip_prefix("--").expect("a flag");
        let is_switch = Setting::of_flag(name).is_some_and(|s| matches!(s.kind, SettingKind::Switch { .. }));
        let text = if is_switch { "" } else { words.next().expect("a value") };
        settings.set(name, text, Origin::Flag).expect("a good value");
    }
    settings
}

/// A host with 64 GB and 16 cores.
pub(crate) fn host() -> HostFacts {
    HostFacts { available_bytes: 64 << 30, limited_by: None, cores: 16 }
}

/// About the memory that driver 580 uses on an H200.
pub(crate) fn driver() -> DriverCost {
    DriverCost {
        context_bytes: 500 * MIB,
        data_modules_bytes: 6 * MIB,
        model_modules_bytes: 90 * MIB,
        beside: None,
        source: "table: test".to_owned(),
    }
}

/// A machine without GPUs.
pub(crate) fn cpu_only() -> Hardware {
    Hardware::without_cards(host())
}

/// Cards of which CUDA sees only some, in this order.
pub(crate) fn restricted(count: usize, cuda_order: &[usize]) -> Hardware {
    let by = "CUDA_VISIBLE_DEVICES=set".to_owned();
    let mut hardware = gpus(count, 24);
    for facts in &mut hardware.cards {
        facts.card.hidden_by = (!cuda_order.contains(&facts.card.index)).then(|| by.clone());
    }
    let undo = Some("unset CUDA_VISIBLE_DEVICES".to_owned());
    hardware.visibility = Some(Visibility { by, undo, cuda_order: cuda_order.to_vec(), lists_hidden: true });
    hardware
}

/// A machine with `count` cards of `gib` GiB each.
pub(crate) fn gpus(count: usize, gib: u64) -> Hardware {
    Hardware::simulated(count, gib << 30, &driver(), host())
}

/// A corpus whose rows have 80, 81, … frames and a token per ten frames.
pub(crate) fn corpus(num_rows: u32) -> CorpusFacts {
    let row = |i: u32| (SampleIndex(i), Extent { frames: 80 + i, tokens: (80 + i) / 10 });
    CorpusFacts::new("corpus", (0..num_rows).map(row).collect())
}

/// The same in an object store.
pub(crate) fn remote_corpus(num_rows: u32) -> CorpusFacts {
    let mut facts = corpus(num_rows);
    facts.is_remote = true;
    facts
}

/// Models whose memory is a formula: chains of square GEMMs with about the parameters of the presets. The decisions under test
/// work with any model, and the real one takes some milliseconds per shape.
pub(crate) struct Chains;

impl ModelCatalog for Chains {
    fn memory_of(&self, choice: ModelChoice, _: DeviceKind) -> Box<dyn ModelMemory> {
        let (width, parameters) = match choice.preset {
            Preset::Nano => (192, 2_000_000),
            Preset::Tiny => (256, 12_000_000),
            Preset::Small => (384, 32_000_000),
            Preset::Normal => (512, 93_000_000),
            Preset::Big => (1024, 480_000_000),
        };
        Box::new(Chain { choice, width, parameters })
    }
}

struct Chain {
    choice: ModelChoice,
    width: u64,
    parameters: u64,
}

impl Chain {
    fn compute_bytes(&self) -> u64 {
        if self.choice.precision == Precision::Mixed { 2 } else { 4 }
    }
}

impl ModelMemory for Chain {
    fn describe(&self) -> String {
        format!("{}: a chain of width {}", self.choice.preset.name(), self.width)
    }

    fn persistent(&self) -> Vec<PlanLine> {
        let line = |name, width: u64| PlanLine::new(name, round_up(self.parameters * width, BLOCK_ALIGN));
        let mixed = self.choice.precision == Precision::Mixed;
        let compute = mixed.then(|| line("compute parameters", self.compute_bytes()));
        let moments = ["gradients", "optimizer first moment", "optimizer second moment"].map(|name| line(name, 4));
        let average = self.choice.ema.then(|| line("averaged parameters", 4));
        [line("parameters", 4)].into_iter().chain(compute).chain(moments).chain(average).collect()
    }

    fn tables(&self, buckets: &[Bucket]) -> u64 {
        buckets.iter().map(|bucket| round_up(bucket.batch() * 4, BLOCK_ALIGN)).sum()
    }

    fn bytes(&self, program: ProgramKind, bucket: &Bucket) -> u64 {
        let layers = match program {
            ProgramKind::Accumulate => self.parameters.div_ceil(self.width * self.width) + 1,
            ProgramKind::Update => return 0,
            ProgramKind::Validate | ProgramKind::Sample => 2,
        };
        let activations = layers * bucket.frames() * self.width * self.compute_bytes();
        SPEECH.layout(bucket).bytes + round_up(activations, BLOCK_ALIGN)
    }
}
