//! The refusal of a plan: what was found, what is needed, and what to type instead.

use std::fmt::Write as _;

use tandem_device::bytes::{mib_ceil, show};
use tandem_events::Role;

use crate::config::ConfigError;
use crate::memory::device_name;
use crate::model_memory::PlanLine;
use crate::setting::Id;
use crate::settings::{SettingError, Settings, args_of};
use crate::value::SettingValue;

/// Why a plan is impossible. `Display` is complete and ready to print: message, memory table and suggestions.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}", self.text())]
pub struct Refusal {
    /// The reason.
    pub kind: Reason,
    /// What was found and what is needed, starting with `❌`.
    pub message: String,
    /// The memory each role needs, and its limit, if memory is the reason.
    pub demands: Vec<Demand>,
    /// What to type instead. [`crate::Plan::solve`] has solved each of them.
    pub suggestions: Vec<Suggestion>,
}

/// The reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// An unknown flag, an invalid value, or flags that exclude each other.
    Usage,
    /// An unusable config file.
    Config,
    /// `--mode auto` without a timing run.
    NotMeasured,
    /// No usable NVIDIA device, or an unusable one requested.
    Device,
    /// Fewer than two GPUs for dual mode.
    TooFewGpus,
    /// A GPU index out of range.
    GpuIndex,
    /// A limit above the free memory of the device.
    OverFree,
    /// A limit too small for the plan.
    TooSmall,
    /// The driver's own memory use was not measured, so no sum is exact.
    DriverUnread,
    /// Too few usable utterances for one batch.
    Corpus,
    /// A custom model cannot be built for the shapes of the corpus.
    Model,
    /// Too little free disk for the checkpoints.
    Disk,
}

impl Reason {
    /// A stable name for JSON.
    pub fn slug(self) -> &'static str {
        match self {
            Reason::Usage => "usage",
            Reason::Config => "config",
            Reason::NotMeasured => "not-measured",
            Reason::Device => "device",
            Reason::TooFewGpus => "too-few-gpus",
            Reason::GpuIndex => "gpu-index",
            Reason::OverFree => "over-free-memory",
            Reason::TooSmall => "limit-too-small",
            Reason::DriverUnread => "driver-unread",
            Reason::Corpus => "corpus",
            Reason::Model => "model",
            Reason::Disk => "disk",
        }
    }
}

/// The memory a role needs, and its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The role.
    pub role: Role,
    /// Its card; `None` on the CPU.
    pub card: Option<usize>,
    /// Its limit.
    pub limit_bytes: u64,
    /// The smallest limit that fits.
    pub needed_bytes: u64,
    /// Lines of the memory table, largest first.
    pub lines: Vec<PlanLine>,
}

impl Demand {
    /// Whether the limit is large enough.
    pub fn is_met(&self) -> bool {
        self.needed_bytes <= self.limit_bytes
    }
}

/// Flags to add to the command line (or to replace on it), and flags to remove.
#[derive(Clone, Debug, PartialEq)]
pub struct Suggestion {
    changes: Vec<(Id, SettingValue)>,
    left_out: Vec<Id>,
    /// A short description.
    pub text: String,
}

impl Suggestion {
    pub(crate) fn new(text: impl Into<String>) -> Suggestion {
        Suggestion { changes: Vec::new(), left_out: Vec::new(), text: text.into() }
    }

    /// Also sets `id`, replacing an earlier value.
    pub(crate) fn set(mut self, id: Id, value: SettingValue) -> Suggestion {
        self.changes.retain(|(other, _)| *other != id);
        self.changes.push((id, value));
        self
    }

    /// Also removes `ids`.
    pub(crate) fn leave_out(mut self, ids: &[Id]) -> Suggestion {
        self.left_out.extend(ids);
        self
    }

    /// Without the change of `id`.
    pub(crate) fn without(mut self, id: Id) -> Suggestion {
        self.changes.retain(|(other, _)| *other != id);
        self
    }

    /// The settings it changes, with their new values.
    pub(crate) fn changes(&self) -> &[(Id, SettingValue)] {
        &self.changes
    }

    /// Arguments to add or replace: `["--batch-size", "8"]`.
    pub fn args(&self) -> Vec<String> {
        self.changes.iter().flat_map(|(id, value)| args_of(id.setting(), value)).collect()
    }

    /// Flags to remove: `["--gpu"]`.
    pub fn left_out(&self) -> Vec<String> {
        self.left_out.iter().map(|id| format!("--{}", id.setting().flag)).collect()
    }

    /// `settings` with this suggestion applied.
    pub fn apply(&self, settings: &Settings) -> Settings {
        let mut changed = settings.without(&self.left_out);
        for (id, value) in &self.changes {
            changed.replace(*id, value.clone());
        }
        changed
    }

    fn line(&self) -> String {
        let mut line = self.args().join(" ");
        if !self.left_out.is_empty() {
            let _ = write!(line, " (without {})", self.left_out().join(", "));
        }
        if !self.text.is_empty() {
            let _ = write!(line, ": {}", self.text);
        }
        line
    }
}

impl Refusal {
    /// The exit code of every refusal.
    pub const CODE: u8 = 2;

    pub(crate) fn new(kind: Reason, message: impl Into<String>) -> Refusal {
        Refusal { kind, message: message.into(), demands: Vec::new(), suggestions: Vec::new() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Refusal {
        Refusal::new(Reason::Usage, message)
    }

    pub(crate) fn suggest(mut self, suggestion: Suggestion) -> Refusal {
        self.suggestions.push(suggestion);
        self
    }

    /// Keeps only the suggestions that work on top of `settings`, and names only flags to remove that the user gave.
    pub(crate) fn keep_working(mut self, settings: &Settings, works: impl Fn(&Suggestion) -> bool) -> Refusal {
        self.suggestions.retain(works);
        for suggestion in &mut self.suggestions {
            suggestion.left_out.retain(|id| settings.given(*id).is_some());
        }
        self
    }

    fn text(&self) -> String {
        let mut text = self.message.clone();
        for demand in self.demands.iter().filter(|demand| !demand.is_met()) {
            text.push_str(&demand_text(demand));
        }
        if !self.suggestions.is_empty() {
            text.push_str("\n   What would work:");
        }
        for suggestion in &self.suggestions {
            let _ = write!(text, "\n     {}", suggestion.line());
        }
        text
    }
}

fn demand_text(demand: &Demand) -> String {
    let (needed, limit) = (mib_ceil(demand.needed_bytes), show(demand.limit_bytes));
    let (role, device) = (demand.role, device_name(demand.card));
    let mut text = format!("\n   {role} role on {device}: needs {needed} MB, limit {limit}");
    for line in &demand.lines {
        let _ = write!(text, "\n     {:>10}  {}", show(line.bytes), line.name);
    }
    text
}

impl From<SettingError> for Refusal {
    fn from(error: SettingError) -> Refusal {
        Refusal::usage(format!("❌ {error}"))
    }
}

impl From<ConfigError> for Refusal {
    fn from(error: ConfigError) -> Refusal {
        Refusal::new(Reason::Config, format!("❌ {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_device::bytes::MIB;

    #[test]
    fn a_refusal_prints_its_table_and_its_suggestions() {
        let mut refusal = Refusal::new(Reason::TooSmall, "❌ too small").suggest(
            Suggestion::new("half the batch").set(Id::BatchSize, SettingValue::Count(8)).leave_out(&[Id::Gpu]),
        );
        refusal.demands = vec![Demand {
            role: Role::Model,
            card: Some(1),
            limit_bytes: 512 * MIB,
            needed_bytes: 640 * MIB,
            lines: vec![PlanLine::new("activations", 600 * MIB)],
        }];
        assert_eq!(
            refusal.to_string(),
            "❌ too small\n   model role on GPU 1: needs 640 MB, limit 512 MB\n         600 MB  activations\n   \
             What would work:\n     --batch-size 8 (without --gpu): half the batch"
        );
    }

    #[test]
    fn a_suggestion_changes_only_what_it_names() {
        let settings = Settings::new().with(&[("batch-size", "16"), ("gpu", "0"), ("seed", "7")]).unwrap();
        let suggestion = Suggestion::new("").set(Id::BatchSize, SettingValue::Count(8)).leave_out(&[Id::Gpu]);
        assert_eq!(suggestion.apply(&settings).to_string(), "--batch-size 8 --seed 7");
        assert_eq!(suggestion.without(Id::BatchSize).apply(&settings).to_string(), "--batch-size 16 --seed 7");
    }
}
