//! The memory limit of each role.

use tandem_device::bytes::{MIB, POOL_GRANULE, round_down, show};
use tandem_device::limits::{
    DATA_DEFAULT_MB, DATA_SHARE, MODEL_DEFAULT_MB, MODEL_SHARE, auto_limit_mb, shared_limit_mb,
};
use tandem_events::Role;

use crate::free_memory::FreeMemory;
use crate::hardware::Hardware;
use crate::memory::{Need, by_role, device_name};
use crate::placement::{Mode, Placement};
use crate::refusal::{Reason, Refusal, Suggestion};
use crate::setting::Id;
use crate::settings::Settings;
use crate::value::{Limit, SettingValue};

/// The limits of both roles, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimits {
    pub(crate) data: u64,
    pub(crate) model: u64,
    /// Default limits that were lowered.
    pub(crate) notes: Vec<String>,
}

impl MemoryLimits {
    /// The limits for `placement`. With isolation they are the given limits, refused if they exceed the free memory; a default
    /// limit is lowered to the free memory instead. Without isolation they follow from the free memory and, on one device,
    /// from `data_need`.
    pub(crate) fn resolve(
        settings: &Settings,
        placement: &Placement,
        free: &FreeMemory<'_>,
        data_need: &Need,
    ) -> Result<MemoryLimits, Refusal> {
        if !placement.isolated {
            return Ok(from_free(placement, free, data_need));
        }
        let mut notes = Vec::new();
        let mut bytes = |role| {
            let asked = isolated_mb(role, settings, placement, free.hardware()) * MIB;
            if settings.given(limit_setting(role)).is_some() || placement.mode.is_one_device() {
                return asked;
            }
            let lowered = asked.min(round_down(free.of(placement.card(role)), POOL_GRANULE));
            notes.extend((lowered < asked).then(|| lowered_note(role, asked, lowered, placement.card(role))));
            lowered
        };
        let limits = MemoryLimits { data: bytes(Role::Data), model: bytes(Role::Model), notes };
        check_free(&limits, placement, free)?;
        Ok(limits)
    }

    /// The limit of `role`.
    pub(crate) fn of(&self, role: Role) -> u64 {
        by_role(role, self.data, self.model)
    }
}

/// The setting that limits `role`.
pub(crate) fn limit_setting(role: Role) -> Id {
    by_role(role, Id::DataGpuMemory, Id::ModelGpuMemory)
}

fn lowered_note(role: Role, asked: u64, lowered: u64, card: Option<usize>) -> String {
    format!(
        "⚠️ the {role} limit is {} MB instead of the default {} MB: {} has no more free memory. A --{} you give is never \
         changed",
        lowered / MIB,
        asked / MIB,
        device_name(card),
        limit_setting(role).setting().flag,
    )
}

/// The default share of a card for a role.
fn default_share(role: Role) -> f64 {
    by_role(role, DATA_SHARE, MODEL_SHARE)
}

/// The limit of a role if none was given, or if the total memory of the card is unknown.
fn default_mb(role: Role) -> u64 {
    by_role(role, DATA_DEFAULT_MB, MODEL_DEFAULT_MB)
}

fn isolated_mb(role: Role, settings: &Settings, placement: &Placement, hardware: &Hardware) -> u64 {
    let shared = placement.mode == Mode::SharedGpu;
    let default = if shared { Limit::Auto(None) } else { Limit::Mb(default_mb(role)) };
    let reading = placement.card(role).and_then(|index| hardware.card(index)).map(|facts| &facts.reading);
    match settings.given_limit(limit_setting(role)).unwrap_or(default) {
        Limit::Mb(mb) => mb,
        Limit::Auto(share) => {
            let share = share.unwrap_or_else(|| default_share(role));
            match reading {
                Some(reading) if shared => shared_limit_mb(reading.free_bytes, share),
                // A total of 0 means that the card does not report it.
                known => {
                    let total = known.map(|reading| reading.total_bytes).filter(|total| *total > 0);
                    auto_limit_mb(total, share, default_mb(role))
                }
            }
        }
    }
}

/// Without isolation, 10 % of the free memory is left to other processes.
fn from_free(placement: &Placement, free: &FreeMemory<'_>, data_need: &Need) -> MemoryLimits {
    // Whole MB, so that the limit shown is the limit in force. Divided first, so that nothing overflows.
    let usable = |role| round_down(free.of(placement.card(role)) / 10 * 9, MIB);
    if placement.mode == Mode::Multi {
        return MemoryLimits { data: usable(Role::Data), model: usable(Role::Model), notes: Vec::new() };
    }
    let data = data_need.smallest_limit();
    MemoryLimits { data, model: usable(Role::Model).saturating_sub(data), notes: Vec::new() }
}

fn check_free(limits: &MemoryLimits, placement: &Placement, free: &FreeMemory<'_>) -> Result<(), Refusal> {
    if placement.mode.is_one_device() {
        let sum = limits.data.saturating_add(limits.model);
        return if sum <= free.of(placement.model) {
            Ok(())
        } else {
            Err(sum_over_free(limits, placement.model, free))
        };
    }
    let free_of = |role: Role| free.of(placement.card(role));
    let over: Vec<Role> = Role::BOTH.into_iter().filter(|role| limits.of(*role) > free_of(*role)).collect();
    if over.is_empty() {
        return Ok(());
    }
    let messages = over.iter().map(|role| limit_over_free(*role, limits.of(*role), placement.card(*role), free));
    let mut refusal = Refusal::new(Reason::OverFree, messages.collect::<Vec<_>>().join("\n"));
    let mut lowered = Suggestion::new("all free memory");
    let mut auto = Suggestion::new("the default share of the card");
    for role in over {
        let largest = (free_of(role) / MIB).max(1);
        lowered = lowered.set(limit_setting(role), SettingValue::Limit(Limit::Mb(largest)));
        auto = auto.set(limit_setting(role), SettingValue::Limit(Limit::Auto(None)));
    }
    refusal = refusal.suggest(lowered).suggest(auto);
    Err(refusal.suggest(auto_both()))
}

fn limit_over_free(role: Role, limit: u64, card: Option<usize>, free: &FreeMemory<'_>) -> String {
    let largest = free.of(card) / MIB;
    format!(
        "❌ The {role} limit of {} exceeds the free memory of {}\n   {}\n   The largest limit that fits: {largest} MB",
        show(limit),
        device_name(card),
        free.describe(card),
    )
}

fn sum_over_free(limits: &MemoryLimits, card: Option<usize>, free: &FreeMemory<'_>) -> Refusal {
    let mb = |bytes: u64| bytes / MIB;
    let left = |other: u64| mb(free.of(card).saturating_sub(other));
    let message = format!(
        "❌ The limits of {} MB (data) and {} MB (model) together exceed the free memory of {}\n   {}\n   \
         The largest limits that fit: {} MB together",
        mb(limits.data),
        mb(limits.model),
        device_name(card),
        free.describe(card),
        mb(free.of(card)),
    );
    let lower = |role: Role, other: u64| {
        Suggestion::new(format!("the largest {role} limit that fits next to the other"))
            .set(limit_setting(role), SettingValue::Limit(Limit::Mb(left(other).max(1))))
    };
    Refusal::new(Reason::OverFree, message)
        .suggest(lower(Role::Model, limits.data))
        .suggest(lower(Role::Data, limits.model))
        .suggest(auto_both())
}

fn auto_both() -> Suggestion {
    let auto = || SettingValue::Limit(Limit::Auto(None));
    Suggestion::new("the default shares").set(Id::DataGpuMemory, auto()).set(Id::ModelGpuMemory, auto())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{cpu_only, gpus, settings};
    use crate::free_memory::OwnBytes;
    use crate::model_memory::PlanLine;
    use tandem_device::CardProcess;

    fn resolve(line: &str, hardware: &Hardware) -> Result<(u64, u64), Refusal> {
        let settings = settings(line);
        let placement = Placement::choose(&settings, hardware)?;
        let need = Need { driver_bytes: 64 * MIB, arena: vec![PlanLine::new("slots", 400 * MIB)], slots_bytes: 0 };
        let limits =
            MemoryLimits::resolve(&settings, &placement, &FreeMemory::new(hardware, OwnBytes::default()), &need)?;
        Ok((limits.data / MIB, limits.model / MIB))
    }

    const TWO: &str = "--data-gpu 0 --model-gpu 1 --enable-memory-isolation";
    const ONE: &str = "--share-gpu --enable-memory-isolation";

    #[test]
    fn limits_in_every_mode() {
        let check = |line: &str, hardware: &Hardware, expected: (u64, u64)| {
            assert_eq!(resolve(line, hardware).unwrap(), expected, "{line}");
        };
        check(TWO, &gpus(2, 24), (8192, 16384));
        check(&format!("{TWO} --data-gpu-memory auto --model-gpu-memory auto"), &gpus(2, 24), (8110, 16465));
        check(&format!("{TWO} --data-gpu-memory 4096 --model-gpu-memory auto:0.5"), &gpus(2, 24), (4096, 12288));
        // 24064 MB are left after 512: 33 % and 67 % of them, in steps of 32.
        check(ONE, &gpus(1, 24), (7936, 16096));
        check(&format!("{ONE} --data-gpu-memory 1024"), &gpus(1, 24), (1024, 16096));
        // 90 % of the free memory; on one device the data role gets what it needs: 64 + 416.
        check("--data-gpu 0 --model-gpu 1", &gpus(2, 10), (9216, 9216));
        check("", &gpus(1, 10), (480, 8736));
        check("--share-gpu", &gpus(1, 10), (480, 8736));
        check("", &cpu_only(), (480, 58982 - 480));
    }

    #[test]
    fn a_card_of_unknown_total_gets_the_default_limits() {
        let mut hardware = gpus(2, 24);
        hardware.cards.iter_mut().for_each(|facts| facts.reading.total_bytes = 0);
        let line = format!("{TWO} --data-gpu-memory auto --model-gpu-memory auto");
        assert_eq!(resolve(&line, &hardware).unwrap(), (8192, 16384));
    }

    #[test]
    fn a_limit_over_the_free_memory_names_the_processes_that_use_it() {
        let mut hardware = gpus(2, 24);
        let reading = &mut hardware.cards[1].reading;
        reading.free_bytes = 10_000 * MIB;
        reading.processes = vec![CardProcess { pid: 42, name: Some("python3".to_owned()), bytes: 14_000 * MIB }];
        let text = resolve(&format!("{TWO} --model-gpu-memory 16384"), &hardware).unwrap_err().to_string();
        for part in [
            "❌ The model limit of 16384 MB exceeds the free memory of GPU 1",
            "total 24576 MB, free 10000 MB",
            "used: 14000 MB by python3 (pid 42)",
            "used: 576 MB by the driver",
            "The largest limit that fits: 10000 MB",
            "--model-gpu-memory 10000",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(resolve(&format!("{TWO} --model-gpu-memory 10000"), &hardware).unwrap(), (8192, 10000));
    }

    #[test]
    fn a_default_limit_is_lowered_to_the_free_memory_and_a_given_one_never() {
        let notes = |line: &str, hardware: &Hardware| {
            let settings = settings(line);
            let placement = Placement::choose(&settings, hardware).unwrap();
            let need = Need { driver_bytes: 0, arena: Vec::new(), slots_bytes: 0 };
            MemoryLimits::resolve(&settings, &placement, &FreeMemory::new(hardware, OwnBytes::default()), &need)
                .unwrap()
                .notes
        };
        let mut pair = gpus(2, 10);
        pair.cards[0].reading.free_bytes = 5_000 * MIB;
        // Whole granules of 32 MB.
        assert_eq!(resolve(TWO, &pair).unwrap(), (4992, 10240));
        let lowered = notes(TWO, &pair);
        assert_eq!(lowered.len(), 2);
        assert!(lowered[0].contains("data limit is 4992 MB instead of the default 8192 MB: GPU 0 has"), "{lowered:?}");
        assert!(lowered[1].contains("A --model-gpu-memory you give is never changed"), "{lowered:?}");
        assert_eq!(resolve(TWO, &gpus(2, 24)).map(|_| notes(TWO, &gpus(2, 24))), Ok(Vec::new()));
        for (flag, refused) in
            [("--data-gpu-memory 8192", true), ("--model-gpu-memory 16384", true), ("--data-gpu-memory 4000", false)]
        {
            let outcome = resolve(&format!("{TWO} {flag}"), &pair);
            assert_eq!(outcome.is_err_and(|refusal| refusal.kind == Reason::OverFree), refused, "{flag}");
        }
    }

    #[test]
    fn two_limits_on_one_card_must_fit_its_free_memory_together() {
        let line = format!("{ONE} --data-gpu-memory 8192 --model-gpu-memory 16385");
        let text = resolve(&line, &gpus(1, 24)).unwrap_err().to_string();
        assert!(text.contains("8192 MB (data) and 16385 MB (model)"), "{text}");
        assert!(text.contains("24576 MB together") && text.contains("--model-gpu-memory 16384"), "{text}");
        assert!(text.contains("--data-gpu-memory 8191"), "{text}");
    }

    #[test]
    fn a_limit_may_be_all_that_is_free_and_not_a_byte_more() {
        let hardware = gpus(2, 24);
        let pair = |mb: u64| format!("--data-gpu 0 --model-gpu 1 --enable-memory-isolation --data-gpu-memory {mb}");
        resolve(&pair(24_576), &hardware).unwrap();
        assert_eq!(resolve(&pair(24_577), &hardware).unwrap_err().kind, Reason::OverFree);
    }
}
