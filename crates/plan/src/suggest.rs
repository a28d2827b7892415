//! Suggestions for a refused plan. Each is solved first, and only those that fit are printed.

use tandem_device::bytes::mib_ceil;
use tandem_events::Role;
use tandem_model::Preset;

use crate::corpus::Lengths;
use crate::limits::limit_setting;
use crate::placement::on_the_cpu;
use crate::plan::Plan;
use crate::refusal::{Demand, Reason, Refusal, Suggestion};
use crate::setting::Id;
use crate::settings::Settings;
use crate::value::{Limit, SettingValue};

/// Solves other settings on the same hardware.
pub(crate) type Attempt<'a> = &'a dyn Fn(&Settings) -> Result<Plan, Refusal>;

/// Whether a suggestion would be accepted.
type Works<'a> = &'a dyn Fn(&Suggestion) -> bool;

/// `refusal` with suggestions that have all been solved: its own and computed ones. `min` are the smallest length limits that
/// still select a row.
pub(crate) fn complete(refusal: Refusal, settings: &Settings, attempt: Attempt<'_>, min: Lengths) -> Refusal {
    let kind = refusal.kind;
    let is_about_memory = matches!(kind, Reason::TooSmall | Reason::OverFree);
    let is_about_size = is_about_memory || kind == Reason::Disk;
    let works = |suggestion: &Suggestion| match attempt(&suggestion.apply(settings)) {
        Ok(_) => true,
        // Suggestions about flags do not depend on the driver's memory use, which may not be measured yet.
        Err(other) => other.kind == Reason::DriverUnread && !is_about_size,
    };
    let mut refusal = refusal.keep_working(settings, works);
    if kind == Reason::TooSmall {
        refusal.suggestions.extend(alternatives(&refusal.demands, settings, &works, min));
    }
    if kind == Reason::Disk {
        let families = [presets(settings), levels(settings)];
        refusal.suggestions.extend(families.into_iter().filter_map(|family| family.into_iter().find(works)));
    }
    if is_about_memory && refusal.suggestions.is_empty() {
        refusal.suggestions.extend(last_resorts(settings, &works, min));
        refusal = refusal.keep_working(settings, works);
    }
    refusal
}

/// One suggestion per kind of change that fits alone, or else the fewest changes that fit together; and a larger limit.
fn alternatives(demands: &[Demand], settings: &Settings, works: Works<'_>, min: Lengths) -> Vec<Suggestion> {
    let families = [
        batches(settings),
        accumulations(settings),
        buffers(settings),
        frames(settings),
        presets(settings),
        precisions(settings),
    ];
    let mut found: Vec<Suggestion> = families.into_iter().filter_map(|family| family.into_iter().find(works)).collect();
    if found.is_empty() {
        found.extend(together(Suggestion::new("the fewest changes that fit"), settings, works, min));
    }
    found.extend(larger_limits(demands, settings).into_iter().find(works));
    found
}

/// If nothing fits the given limits: other limits, or no GPU.
fn last_resorts(settings: &Settings, works: Works<'_>, min: Lengths) -> Vec<Suggestion> {
    let auto = || SettingValue::Limit(Limit::Auto(None));
    let other_limits = Suggestion::new("the default limits and smaller settings")
        .set(Id::DataGpuMemory, auto())
        .set(Id::ModelGpuMemory, auto());
    let isolated = settings.switch(Id::EnableMemoryIsolation);
    let smaller = isolated.then(|| together(other_limits, settings, works, min)).flatten();
    let on_cpu = Some(on_the_cpu()).filter(works);
    smaller.into_iter().chain(on_cpu).collect()
}

fn count(n: u64) -> SettingValue {
    SettingValue::Count(n)
}

/// Smaller batches that `--grad-accum` divides, largest first. A default batch has been lowered already.
fn batches(settings: &Settings) -> Vec<Suggestion> {
    let (batch, accum) = (settings.count(Id::BatchSize), settings.count(Id::GradAccum));
    if settings.given(Id::BatchSize).is_none() {
        return Vec::new();
    }
    let halves = std::iter::successors(Some(batch / 2), |n| Some(n / 2)).take_while(|n| *n > 0);
    let mut sizes: Vec<u64> = halves.chain([64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1]).chain([accum]).collect();
    sizes.retain(|n| *n < batch && n.is_multiple_of(accum));
    sizes.sort_unstable_by(|a, b| b.cmp(a));
    sizes.into_iter().map(|n| Suggestion::new("a smaller batch").set(Id::BatchSize, count(n))).collect()
}

/// More micro-batches for the same batch, fewest first.
fn accumulations(settings: &Settings) -> Vec<Suggestion> {
    let (batch, accum) = (settings.count(Id::BatchSize), settings.count(Id::GradAccum));
    (accum + 1..=batch)
        .filter(|n| batch.is_multiple_of(*n))
        .map(|n| Suggestion::new("the same batch in more micro-batches").set(Id::GradAccum, count(n)))
        .collect()
}

/// The fewest slots that no device raises.
const MIN_SLOTS: SettingValue = SettingValue::Count(3);

/// Fewer prefetched batches, largest number first.
fn buffers(settings: &Settings) -> Vec<Suggestion> {
    let asked = settings.count(Id::BufferSize);
    let halves = std::iter::successors(Some(asked / 2), |n| Some(n / 2)).take_while(|n| *n > 0);
    let fewer = |n: u64| Suggestion::new("fewer prefetched batches").set(Id::BufferSize, count(n));
    let with_slots = settings.given(Id::PrefetchBufferSize).map(|_| fewer(1).set(Id::PrefetchBufferSize, MIN_SLOTS));
    halves.map(fewer).chain(with_slots).collect()
}

/// Shorter length limits for recordings, longest first.
fn frames(settings: &Settings) -> Vec<Suggestion> {
    let max = settings.count(Id::MaxMelFrames);
    let eighths = (1..8).rev().map(|i| (max * i / 8) / 8 * 8).filter(|n| *n >= 8 && *n < max);
    let shorter = |n| Suggestion::new("skip longer recordings").set(Id::MaxMelFrames, count(n));
    eighths.map(shorter).collect()
}

/// Smaller presets, largest first.
fn presets(settings: &Settings) -> Vec<Suggestion> {
    let chosen = settings.choice(Id::ModelSize);
    let smaller = Preset::ALL.into_iter().rev().map(Preset::name).skip_while(|name| *name != chosen).skip(1);
    smaller.map(|name| Suggestion::new("a smaller model").set(Id::ModelSize, SettingValue::Choice(name))).collect()
}

/// No EMA of the weights: a quarter less to save.
fn levels(settings: &Settings) -> Vec<Suggestion> {
    if settings.choice(Id::OptimizationLevel) == "basic" {
        return Vec::new();
    }
    vec![Suggestion::new("no EMA to save").set(Id::OptimizationLevel, SettingValue::Choice("basic"))]
}

/// Half the bytes per activation, if the user turned mixed precision off.
fn precisions(settings: &Settings) -> Vec<Suggestion> {
    if settings.given_switch(Id::MixedPrecision) != Some(false) {
        return Vec::new();
    }
    vec![Suggestion::new("bf16 compute").set(Id::MixedPrecision, SettingValue::Switch(true))]
}

/// Limits that are large enough: for the roles that do not fit; otherwise, on a shared card, for both.
fn larger_limits(demands: &[Demand], settings: &Settings) -> Vec<Suggestion> {
    if !settings.switch(Id::EnableMemoryIsolation) {
        return Vec::new();
    }
    let limits_for = |text: &str, roles: &[Role]| {
        let chosen = demands.iter().filter(|demand| roles.contains(&demand.role));
        chosen.fold(Suggestion::new(text), |suggestion, demand| {
            let limit = Limit::Mb(mib_ceil(demand.needed_bytes));
            suggestion.set(limit_setting(demand.role), SettingValue::Limit(limit))
        })
    };
    let short: Vec<Role> = demands.iter().filter(|demand| !demand.is_met()).map(|demand| demand.role).collect();
    let smallest = if short.len() == 1 { "the smallest limit that fits" } else { "the smallest limits that fit" };
    vec![limits_for(smallest, &short), limits_for("limits that fit both roles", &Role::BOTH)]
}

/// `first` and the fewest further changes that fit together, least harmful first.
fn together(first: Suggestion, settings: &Settings, works: Works<'_>, min: Lengths) -> Option<Suggestion> {
    let mut suggestion = first;
    for (id, value) in memory_savings(settings, min) {
        suggestion = suggestion.set(id, value);
        if works(&suggestion) {
            return Some(without_needless(suggestion, works));
        }
    }
    None
}

/// Changes that save memory, down to the smallest possible run. Later values of a setting replace earlier ones.
fn memory_savings(settings: &Settings, min: Lengths) -> Vec<(Id, SettingValue)> {
    let accum = settings.count(Id::GradAccum);
    let mut steps = vec![
        (Id::BufferSize, count(12)),
        (Id::PrefetchBufferSize, MIN_SLOTS),
        (Id::ReadAheadMb, count(0)),
        (Id::BatchSize, count(accum)),
        (Id::MaxMelFrames, count(504)),
        (Id::OptimizationLevel, SettingValue::Choice("basic")),
    ];
    steps.extend(presets(settings).iter().flat_map(|s| s.changes().to_vec()));
    steps.extend([
        (Id::MaxMelFrames, count(248)),
        (Id::GradAccum, count(1)),
        (Id::BatchSize, count(1)),
        (Id::Transfer, SettingValue::Choice("auto")),
        (Id::BufferSize, count(1)),
        (Id::MaxMelFrames, count(min.frames)),
        (Id::MaxTextLength, count(min.tokens)),
        (Id::MixedPrecision, SettingValue::Switch(false)),
    ]);
    // A limit below the shortest recording would leave nothing to train on, whatever else is saved.
    let selects_none = |id: Id, value: &SettingValue| matches!(value, SettingValue::Count(n) if id == Id::MaxMelFrames && *n < min.frames);
    steps.retain(|(id, value)| is_smaller(settings, *id, value) && !selects_none(*id, value));
    steps
}

/// Whether `value` differs from the current value and is not larger.
fn is_smaller(settings: &Settings, id: Id, value: &SettingValue) -> bool {
    match (value, settings.given(id).map(|given| given.value.clone()).or_else(|| id.setting().fixed_default())) {
        (SettingValue::Count(new), Some(SettingValue::Count(now))) => *new < now,
        (new, Some(now)) => *new != now,
        (_, None) => true,
    }
}

fn without_needless(mut suggestion: Suggestion, works: Works<'_>) -> Suggestion {
    for (id, _) in suggestion.changes().to_vec() {
        let leaner = suggestion.clone().without(id);
        if works(&leaner) {
            suggestion = leaner;
        }
    }
    suggestion
}
