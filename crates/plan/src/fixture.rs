//! What tests build everything from: settings as a command line, machines by size.

use tandem_corpus::SampleIndex;
use tandem_device::DriverCost;
use tandem_device::bytes::MIB;
use tandem_feed::Extent;

use crate::corpus::CorpusFacts;
use crate::hardware::{Hardware, HostFacts};
use crate::setting::{Kind, Setting};
use crate::settings::{Origin, Settings};

/// The settings a command line says.
pub(crate) fn settings(line: &str) -> Settings {
    let mut settings = Settings::new();
    let mut words = line.split_whitespace();
    while let Some(word) = words.next() {
        let name = word.strip_prefix("--").expect("a flag");
        let is_switch = Setting::of_flag(name).is_some_and(|s| matches!(s.kind, Kind::Switch { .. }));
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
