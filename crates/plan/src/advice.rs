//! Computed advice for a plan that fits: at most three improvements, each with the flag to type.

use tandem_device::bytes::mib_ceil;
use tandem_events::Role;
use tandem_model::Preset;

use crate::hardware::{CardFacts, Hardware};
use crate::limits::limit_setting;
use crate::numa;
use crate::placement::{Mode, Precision};
use crate::plan::Plan;
use crate::refusal::Suggestion;
use crate::setting::Id;
use crate::settings::Settings;
use crate::suggest::Attempt;
use crate::value::{Limit, SettingValue};

const MAX_ADVICE: usize = 3;

/// The advice for `plan`, most useful first.
pub(crate) fn for_plan(plan: &Plan, settings: &Settings, hardware: &Hardware, attempt: Attempt<'_>) -> Vec<String> {
    let advice = [
        accumulated_batch(plan, settings, attempt),
        small_model_on_cpu(plan),
        larger_batch(plan, settings, attempt),
        one_numa_node(plan, settings, hardware, attempt),
        bf16(plan, settings, attempt),
        spare_data_limit(plan, settings, attempt),
    ];
    advice.into_iter().flatten().take(MAX_ADVICE).collect()
}

/// A default batch that was lowered often fits as micro-batches.
fn accumulated_batch(plan: &Plan, settings: &Settings, attempt: Attempt<'_>) -> Option<String> {
    let wanted = settings.count(Id::BatchSize);
    let lowered = settings.given(Id::BatchSize).is_none() && plan.batch_size < wanted;
    let accums = (plan.grad_accum + 1..=wanted).filter(|accum| lowered && wanted.is_multiple_of(*accum));
    let mut tries = accums.map(|accum| {
        Suggestion::new("")
            .set(Id::BatchSize, SettingValue::Count(wanted))
            .set(Id::GradAccum, SettingValue::Count(accum))
    });
    let found = tries.find(|suggestion| attempt(&suggestion.apply(settings)).is_ok())?;
    Some(format!("{} keeps {wanted} utterances per optimizer step in the same memory", typed(&found)))
}

fn small_model_on_cpu(plan: &Plan) -> Option<String> {
    let slow = plan.mode == Mode::Cpu && plan.custom_model.is_none() && plan.model_size != Preset::Nano;
    slow.then(|| "--model-size nano is the preset for CPUs".to_owned())
}

/// Many short kernels per step leave a GPU idle; a larger batch uses it better.
fn larger_batch(plan: &Plan, settings: &Settings, attempt: Attempt<'_>) -> Option<String> {
    if plan.mode == Mode::Cpu || settings.given(Id::BatchSize).is_some() {
        return None;
    }
    let larger = |n: u64| Suggestion::new("").set(Id::BatchSize, SettingValue::Count(n));
    let mut tries =
        [64, 48, 32, 24].into_iter().filter(|n| *n > plan.batch_size && n.is_multiple_of(plan.grad_accum)).map(larger);
    let (found, larger_plan) = tries.find_map(|s| attempt(&s.apply(settings)).ok().map(|plan| (s, plan)))?;
    let (planned, limit) = (larger_plan.model.planned_mb(), larger_plan.model.limit_mb());
    Some(format!("{} also fits: {planned} of {limit} MB for the model role", typed(&found)))
}

fn bf16(plan: &Plan, settings: &Settings, attempt: Attempt<'_>) -> Option<String> {
    let suggestion = Suggestion::new("").set(Id::MixedPrecision, SettingValue::Switch(true));
    let mixed = (plan.precision == Precision::Full).then(|| attempt(&suggestion.apply(settings)).ok())??;
    let saved = plan.model.planned_mb().checked_sub(mixed.model.planned_mb()).filter(|mb| *mb > 0)?;
    Some(format!("{} saves {saved} MB: this device supports bf16", typed(&suggestion)))
}

/// A bounce between two nodes, where another card is on the model's node.
fn one_numa_node(plan: &Plan, settings: &Settings, hardware: &Hardware, attempt: Attempt<'_>) -> Option<String> {
    let model = plan.model.card.filter(|_| numa::is_between_nodes(plan.transfer.route, &plan.data, &plan.model))?;
    let node = plan.model.numa.as_ref()?.node;
    let is_near = |facts: &&CardFacts| facts.card.index != model && facts.numa.as_ref().is_some_and(|n| n.node == node);
    let tries = hardware
        .cards
        .iter()
        .filter(is_near)
        .map(|facts| Suggestion::new("").set(Id::DataGpu, SettingValue::gpu(facts.card.index)));
    let found = tries.into_iter().find(|suggestion| attempt(&suggestion.apply(settings)).is_ok())?;
    Some(format!("{} is on NUMA node {node} as well: batches stay on one node", typed(&found)))
}

/// Memory that the data role reserves but does not need is unavailable to other processes.
fn spare_data_limit(plan: &Plan, settings: &Settings, attempt: Attempt<'_>) -> Option<String> {
    let enough = mib_ceil(plan.data.smallest_limit_bytes);
    if !plan.isolated || plan.data.limit_mb() < 2 * enough {
        return None;
    }
    let suggestion = Suggestion::new("").set(limit_setting(Role::Data), SettingValue::Limit(Limit::Mb(enough)));
    attempt(&suggestion.apply(settings)).ok()?;
    Some(format!("{} is enough for the data role, which needs {} MB", typed(&suggestion), plan.data.planned_mb()))
}

fn typed(suggestion: &Suggestion) -> String {
    suggestion.args().join(" ")
}
