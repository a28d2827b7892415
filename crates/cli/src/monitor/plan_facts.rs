//! The parts of a run's plan that the monitor shows. The log has the plan as the document of `plan --json`.

use serde_json::Value;
use tandem_events::Role;

/// The facts. Fields that a plan of another version lacks are none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PlanFacts {
    pub(super) mode: Option<String>,
    pub(super) simulated: bool,
    pub(super) model_size: Option<String>,
    pub(super) batch_size: Option<u64>,
    /// Batches that a step takes on the rank of this log.
    pub(super) batches_per_step: u64,
    /// Ranks of the run.
    pub(super) ranks: Option<u64>,
    pub(super) max_steps: Option<u64>,
    pub(super) epochs: Option<u64>,
    pub(super) threads: Option<u64>,
    /// Slots on the data device and towards the model device.
    pub(super) buffer_size: Option<u64>,
    pub(super) prefetch: Option<u64>,
    /// The transfer route: `peer`, `bounce` or `handover`, perhaps followed by details.
    pub(super) transfer: Option<String>,
    /// Data first.
    pub(super) roles: [RoleFacts; 2],
}

/// The device of a role.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RoleFacts {
    /// None on the CPU.
    pub(super) card: Option<u64>,
    pub(super) uuid: Option<String>,
    pub(super) name: Option<String>,
    pub(super) limit_bytes: Option<u64>,
}

impl PlanFacts {
    /// Parses the document. Invalid JSON gives no facts.
    pub(super) fn read(plan_json: &str) -> PlanFacts {
        let plan: Value = serde_json::from_str(plan_json).unwrap_or_default();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let role = |role: Role| {
            let role = &plan["roles"][role.to_string()];
            RoleFacts {
                card: role["gpu"].as_u64(),
                uuid: text(&role["uuid"]),
                name: text(&role["name"]),
                limit_bytes: role["limit_bytes"].as_u64(),
            }
        };
        PlanFacts {
            mode: text(&plan["mode"]),
            simulated: plan["simulated"] == true,
            model_size: text(&plan["model_size"]),
            batch_size: plan["batch_size"].as_u64(),
            batches_per_step: batches_per_step(&plan),
            ranks: plan["ranks"]["size"].as_u64(),
            max_steps: plan["training"]["max_steps"].as_u64(),
            epochs: plan["training"]["epochs"].as_u64(),
            threads: plan["threads"].as_u64(),
            buffer_size: plan["buffer_size"].as_u64(),
            prefetch: plan["prefetch"].as_u64(),
            transfer: text(&plan["transfer"]),
            roles: Role::BOTH.map(role),
        }
    }
}

/// Plans of versions without ranks have the micro-batches of the only rank as `grad_accum`.
fn batches_per_step(plan: &Value) -> u64 {
    let per_rank = plan["micro_batches_per_rank"].as_u64();
    per_rank.or(plan["grad_accum"].as_u64()).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_fields_are_none() {
        for text in ["", "no json", "[]", "{\"roles\":7}"] {
            assert_eq!(PlanFacts::read(text), PlanFacts { batches_per_step: 1, ..PlanFacts::default() }, "{text}");
        }
        let text = r#"{"mode":"cpu","grad_accum":2,"roles":{"model":{"gpu":3,"limit_bytes":5}},"training":{"max_steps":null,"epochs":4}}"#;
        let plan = PlanFacts::read(text);
        assert_eq!((plan.roles[0].card, plan.roles[1].card, plan.roles[1].limit_bytes), (None, Some(3), Some(5)));
        assert_eq!((plan.max_steps, plan.epochs, plan.ranks), (None, Some(4), None));
    }

    #[test]
    fn a_step_takes_the_micro_batches_of_one_rank() {
        let check = |text: &str, expected| {
            let plan = PlanFacts::read(text);
            assert_eq!((plan.batches_per_step, plan.ranks), expected, "{text}");
        };
        check(r#"{"grad_accum":4}"#, (4, None));
        let ranks = r#"{"grad_accum":4,"micro_batches_per_rank":2,"ranks":{"rank":1,"size":2}}"#;
        check(ranks, (2, Some(2)));
    }
}
