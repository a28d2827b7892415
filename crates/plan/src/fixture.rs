//! What tests build everything from: settings as a command line, machines by size, models that cost nothing to ask.

use tandem_corpus::SampleIndex;
use tandem_device::bytes::{BLOCK_ALIGN, MIB, round_up};
use tandem_device::{DeviceKind, DriverCost};
use tandem_feed::{Bucket, Extent, SPEECH};

use crate::corpus::CorpusFacts;
use crate::hardware::{Hardware, HostFacts};
use crate::placement::Precision;
use crate::setting::{Setting, SettingKind};
use crate::settings::{Origin, Settings};
use crate::workload::{ModelChoice, ModelSize, PlanLine, ProgramKind, Workload, Workloads};

/// The settings a command line says.
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

/// A computer of 64 GB and 16 cores.
pub(crate) fn host() -> HostFacts {
    HostFacts { available_bytes: 64 << 30, cores: 16 }
}

/// About what an H200 with driver 580 costs.
pub(crate) fn driver() -> DriverCost {
    DriverCost {
        context_bytes: 500 * MIB,
        data_modules_bytes: 6 * MIB,
        model_modules_bytes: 90 * MIB,
        source: "table: test".to_owned(),
    }
}

/// A machine without GPUs.
pub(crate) fn cpu_only() -> Hardware {
    Hardware::without_cards(host())
}

/// A machine of `count` cards with `gib` GiB each.
pub(crate) fn gpus(count: usize, gib: u64) -> Hardware {
    Hardware::simulated(count, gib << 30, &driver(), host())
}

/// A corpus of rows of 80 frames and more, each a frame longer than the one before, with a symbol for ten frames.
pub(crate) fn corpus(num_rows: u32) -> CorpusFacts {
    let row = |i: u32| (SampleIndex(i), Extent { frames: 80 + i, tokens: (80 + i) / 10 });
    CorpusFacts::new("corpus", (0..num_rows).map(row).collect())
}

/// Models whose memory is a formula: chains of square GEMMs with the presets' parameters. What is decided from a
/// model's figures can be tested with any model; the real one takes some milliseconds a shape.
pub(crate) struct Chains;

impl Workloads for Chains {
    fn build(&self, choice: ModelChoice, _: DeviceKind) -> Box<dyn Workload> {
        let (width, parameters) = match choice.size {
            ModelSize::Nano => (192, 2_000_000),
            ModelSize::Tiny => (256, 12_000_000),
            ModelSize::Small => (384, 32_000_000),
            ModelSize::Normal => (512, 93_000_000),
            ModelSize::Big => (1024, 480_000_000),
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

impl Workload for Chain {
    fn name(&self) -> String {
        format!("{}: a chain of width {}", self.choice.size.name(), self.width)
    }

    fn lasting(&self) -> Vec<PlanLine> {
        let line = |name, of_each: u64| PlanLine::new(name, round_up(self.parameters * of_each, BLOCK_ALIGN));
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
        let kept = match program {
            ProgramKind::Accumulate => self.parameters.div_ceil(self.width * self.width) + 1,
            ProgramKind::Update => return 0,
            ProgramKind::Validate | ProgramKind::Sample => 2,
        };
        let activations = kept * bucket.frames() * self.width * self.compute_bytes();
        SPEECH.layout(bucket).bytes + round_up(activations, BLOCK_ALIGN)
    }
}
