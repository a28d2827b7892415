//! What could be better about a plan that works: computed, with the flag to type, three at most.

use tandem_device::bytes::mib_ceil;
use tandem_events::Role;

use crate::limits::limit_setting;
use crate::placement::{Mode, Precision};
use crate::plan::Plan;
use crate::refusal::Suggestion;
use crate::setting::Id;
use crate::settings::Settings;
use crate::suggest::Attempt;
use crate::value::{Limit, SettingValue};
use crate::workload::ModelSize;

const MOST: usize = 3;

/// The advice for `plan`, most useful first.
pub(crate) fn for_plan(plan: &Plan, settings: &Settings, attempt: Attempt<'_>) -> Vec<String> {
    let advice = [
        whole_batch(plan, settings, attempt),
        small_model_on_cpu(plan),
        larger_batch(plan, settings, attempt),
        bf16(plan, settings, attempt),
        spare_data_limit(plan, settings, attempt),
    ];
    advice.into_iter().flatten().take(MOST).collect()
}

/// A default batch that was lowered can often be kept, in parts.
fn whole_batch(plan: &Plan, settings: &Settings, attempt: Attempt<'_>) -> Option<String> {
    let wanted = settings.count(Id::BatchSize);
    let lowered = settings.given(Id::BatchSize).is_none() && plan.batch_size < wanted;
    let parts = (plan.grad_accum + 1..=wanted).filter(|parts| lowered && wanted.is_multiple_of(*parts));
    let mut tries = parts.map(|parts| {
        Suggestion::new("")
            .set(Id::BatchSize, SettingValue::Count(wanted))
            .set(Id::GradAccum, SettingValue::Count(parts))
    });
    let found = tries.find(|suggestion| attempt(&suggestion.apply(settings)).is_ok())?;
    Some(format!("{} keeps {wanted} utterances per optimizer step in the same memory", typed(&found)))
}

fn small_model_on_cpu(plan: &Plan) -> Option<String> {
    let slow = plan.mode == Mode::Cpu && plan.own_model.is_none() && plan.model_size != ModelSize::Nano;
    slow.then(|| "--model-size nano is the preset made for CPUs".to_owned())
}

/// Steps of many short kernels leave a GPU idle; a larger batch, where it fits, fills it.
fn larger_batch(plan: &Plan, settings: &Settings, attempt: Attempt<'_>) -> Option<String> {
    if plan.mode == Mode::Cpu || settings.given(Id::BatchSize).is_some() {
        return None;
    }
    let larger = |n: u64| Suggestion::new("").set(Id::BatchSize, SettingValue::Count(n));
    let mut tries =
        [64, 48, 32, 24].into_iter().filter(|n| *n > plan.batch_size && n.is_multiple_of(plan.grad_accum)).map(larger);
    let (found, roomier) = tries.find_map(|s| attempt(&s.apply(settings)).ok().map(|plan| (s, plan)))?;
    let (planned, limit) = (roomier.model.planned_mb(), roomier.model.limit_mb());
    Some(format!("{} fits as well: {planned} of {limit} MB for the model role", typed(&found)))
}

fn bf16(plan: &Plan, settings: &Settings, attempt: Attempt<'_>) -> Option<String> {
    let suggestion = Suggestion::new("").set(Id::MixedPrecision, SettingValue::Switch(true));
    let leaner = (plan.precision == Precision::Full).then(|| attempt(&suggestion.apply(settings)).ok())??;
    let saved = plan.model.planned_mb().checked_sub(leaner.model.planned_mb()).filter(|mb| *mb > 0)?;
    Some(format!("{} would save {saved} MB: this device has bf16", typed(&suggestion)))
}

/// What the data role has and does not need is taken from everybody else.
fn spare_data_limit(plan: &Plan, settings: &Settings, attempt: Attempt<'_>) -> Option<String> {
    let enough = mib_ceil(plan.data.smallest_limit_bytes());
    if !plan.isolated || plan.data.limit_mb() < 2 * enough {
        return None;
    }
    let suggestion = Suggestion::new("").set(limit_setting(Role::Data), SettingValue::Limit(Limit::Mb(enough)));
    attempt(&suggestion.apply(settings)).ok()?;
    Some(format!("{} is enough for the data role, which holds {} MB", typed(&suggestion), plan.data.planned_mb()))
}

fn typed(suggestion: &Suggestion) -> String {
    suggestion.args().join(" ")
}
