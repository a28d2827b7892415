//! What would work instead. Every suggestion is solved before it is printed; what does not fit is not suggested.

use tandem_device::bytes::mib_ceil;
use tandem_events::Role;

use crate::limits::limit_setting;
use crate::placement::on_the_cpu;
use crate::plan::Plan;
use crate::refusal::{Demand, Reason, Refusal, Suggestion};
use crate::setting::Id;
use crate::settings::Settings;
use crate::value::{Limit, SettingValue};
use crate::workload::ModelSize;

/// Tries settings on the same machine.
pub(crate) type Attempt<'a> = &'a dyn Fn(&Settings) -> Result<Plan, Refusal>;

/// Frames and tokens.
type Least = (u64, u64);

/// Says whether a suggestion would be accepted.
type Works<'a> = &'a dyn Fn(&Suggestion) -> bool;

/// `refusal` with suggestions that all have been solved: its own, and those that come from trying.
/// `least` is the least that a recording and a text can be limited to, in frames and tokens.
pub(crate) fn complete(refusal: Refusal, settings: &Settings, attempt: Attempt<'_>, least: Least) -> Refusal {
    let kind = refusal.kind;
    let is_about_memory = matches!(kind, Reason::TooSmall | Reason::OverFree);
    let works = |suggestion: &Suggestion| match attempt(&suggestion.apply(settings)) {
        Ok(_) => true,
        // A card that nobody has probed yet says nothing against a suggestion about flags.
        Err(other) => other.kind == Reason::DriverUnread && !is_about_memory,
    };
    let mut refusal = refusal.keep_working(settings, works);
    if kind == Reason::TooSmall {
        refusal.suggestions.extend(alternatives(&refusal.demands, settings, &works, least));
    }
    if is_about_memory && refusal.suggestions.is_empty() {
        refusal.suggestions.extend(last_resorts(settings, &works, least));
        refusal = refusal.keep_working(settings, works);
    }
    refusal
}

/// One of each kind of change that fits alone; where none does, the fewest that fit together; and a larger limit.
fn alternatives(demands: &[Demand], settings: &Settings, works: Works<'_>, least: Least) -> Vec<Suggestion> {
    let families = [
        batches(settings),
        accumulations(settings),
        buffers(settings),
        frames(settings),
        sizes(settings),
        precisions(settings),
    ];
    let mut found: Vec<Suggestion> = families.into_iter().filter_map(|family| family.into_iter().find(works)).collect();
    if found.is_empty() {
        found.extend(together(Suggestion::new("the fewest changes that fit together"), settings, works, least));
    }
    found.extend(larger_limits(demands, settings).into_iter().find(works));
    found
}

/// Where nothing fits into the limits there are: other limits, or no GPU.
fn last_resorts(settings: &Settings, works: Works<'_>, least: Least) -> Vec<Suggestion> {
    let auto = || SettingValue::Limit(Limit::Auto(None));
    let other_limits = Suggestion::new("the usual limits, and less in them")
        .set(Id::DataGpuMemory, auto())
        .set(Id::ModelGpuMemory, auto());
    let isolated = settings.switch(Id::EnableMemoryIsolation);
    let smaller = isolated.then(|| together(other_limits, settings, works, least)).flatten();
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
        .map(|n| Suggestion::new("the same batch in more parts").set(Id::GradAccum, count(n)))
        .collect()
}

/// The fewest slots every device takes without raising them.
const FEWEST_SLOTS: SettingValue = SettingValue::Count(3);

/// Fewer batches waiting, most first.
fn buffers(settings: &Settings) -> Vec<Suggestion> {
    let asked = settings.count(Id::BufferSize);
    let halves = std::iter::successors(Some(asked / 2), |n| Some(n / 2)).take_while(|n| *n > 0);
    let fewer = |n: u64| Suggestion::new("fewer batches waiting").set(Id::BufferSize, count(n));
    let with_slots = settings.given(Id::PrefetchBufferSize).map(|_| fewer(1).set(Id::PrefetchBufferSize, FEWEST_SLOTS));
    halves.map(fewer).chain(with_slots).collect()
}

/// Shorter recordings, longest first.
fn frames(settings: &Settings) -> Vec<Suggestion> {
    let most = settings.count(Id::MaxMelFrames);
    let eighths = (1..8).rev().map(|i| (most * i / 8) / 8 * 8).filter(|n| *n >= 8 && *n < most);
    let shorter = |n| Suggestion::new("longer recordings left out").set(Id::MaxMelFrames, count(n));
    eighths.map(shorter).collect()
}

/// Smaller presets, largest first.
fn sizes(settings: &Settings) -> Vec<Suggestion> {
    let chosen = settings.choice(Id::ModelSize);
    let smaller = ModelSize::ALL.into_iter().rev().map(ModelSize::name).skip_while(|name| *name != chosen).skip(1);
    smaller.map(|name| Suggestion::new("a smaller model").set(Id::ModelSize, SettingValue::Choice(name))).collect()
}

/// Half the bytes per activation, where that was turned off by hand.
fn precisions(settings: &Settings) -> Vec<Suggestion> {
    if settings.given_switch(Id::MixedPrecision) != Some(false) {
        return Vec::new();
    }
    vec![Suggestion::new("bf16 compute").set(Id::MixedPrecision, SettingValue::Switch(true))]
}

/// Limits that hold what is needed: of the short roles only; else, on a shared card, of both.
fn larger_limits(demands: &[Demand], settings: &Settings) -> Vec<Suggestion> {
    if !settings.switch(Id::EnableMemoryIsolation) {
        return Vec::new();
    }
    let holding = |text: &str, roles: &[Role]| {
        let chosen = demands.iter().filter(|demand| roles.contains(&demand.role));
        chosen.fold(Suggestion::new(text), |suggestion, demand| {
            let limit = Limit::Mb(mib_ceil(demand.needed_bytes));
            suggestion.set(limit_setting(demand.role), SettingValue::Limit(limit))
        })
    };
    let short: Vec<Role> = demands.iter().filter(|demand| !demand.is_met()).map(|demand| demand.role).collect();
    vec![holding("the smallest limit that holds it", &short), holding("limits that hold both roles", &Role::BOTH)]
}

/// `first` and the fewest further changes that fit together, in the order in which they hurt least.
fn together(first: Suggestion, settings: &Settings, works: Works<'_>, least: Least) -> Option<Suggestion> {
    let mut rung = first;
    for (id, value) in rungs(settings, least) {
        rung = rung.set(id, value);
        if works(&rung) {
            return Some(without_needless(rung, works));
        }
    }
    None
}

/// Every change that saves memory, down to the smallest run there is. Later values of a setting replace earlier.
fn rungs(settings: &Settings, (least_frames, least_tokens): Least) -> Vec<(Id, SettingValue)> {
    let accum = settings.count(Id::GradAccum);
    let mut rungs = vec![
        (Id::BufferSize, count(12)),
        (Id::PrefetchBufferSize, FEWEST_SLOTS),
        (Id::BatchSize, count(accum)),
        (Id::MaxMelFrames, count(504)),
        (Id::OptimizationLevel, SettingValue::Choice("basic")),
    ];
    rungs.extend(sizes(settings).iter().flat_map(|s| s.changes().to_vec()));
    rungs.extend([
        (Id::MaxMelFrames, count(248)),
        (Id::GradAccum, count(1)),
        (Id::BatchSize, count(1)),
        (Id::TransferPlan, SettingValue::Choice("auto")),
        (Id::BufferSize, count(1)),
        (Id::MaxMelFrames, count(least_frames)),
        (Id::MaxTextLength, count(least_tokens)),
        (Id::MixedPrecision, SettingValue::Switch(false)),
    ]);
    rungs.retain(|(id, value)| is_smaller(settings, *id, value));
    rungs
}

/// Whether `value` changes anything, and does not ask for more than is there now.
fn is_smaller(settings: &Settings, id: Id, value: &SettingValue) -> bool {
    match (value, settings.given(id).map(|given| given.value.clone()).or_else(|| id.setting().fixed_default())) {
        (SettingValue::Count(new), Some(SettingValue::Count(now))) => *new < now,
        (new, Some(now)) => *new != now,
        (_, None) => true,
    }
}

fn without_needless(mut suggestion: Suggestion, works: Works<'_>) -> Suggestion {
    for (id, _) in suggestion.changes().to_vec() {
        let leaner = suggestion.clone().keep(id);
        if works(&leaner) {
            suggestion = leaner;
        }
    }
    suggestion
}
