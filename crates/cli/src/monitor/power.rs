//! What the cards draw now. A log does not have it, so the cards of this machine are asked, when they are the run's.

use tandem_device::{DeviceKind, Machine};

use super::plan_facts::PlanFacts;

/// The cards of this machine, as far as they can be asked. Nothing is opened on them.
pub(super) struct PowerMeter {
    machine: Option<Machine>,
}

impl PowerMeter {
    /// Finds the cards of the run here. A run on the CPU, on simulated cards or on another machine's has none.
    pub(super) fn of(plan: &PlanFacts) -> PowerMeter {
        let wanted = |machine: &Machine| plan.roles.iter().any(|role| index(machine, role.uuid.as_deref()).is_some());
        let has_cards = !plan.simulated && plan.roles.iter().any(|role| role.uuid.is_some());
        // A driver that does not answer is no matter here: power is then not known.
        let machine = if has_cards { Machine::cuda().ok().flatten() } else { None };
        PowerMeter { machine: machine.filter(|machine| machine.kind() == DeviceKind::Cuda && wanted(machine)) }
    }

    /// Watts of each role's card, data first.
    pub(super) fn watts(&self, plan: &PlanFacts) -> [Option<f32>; 2] {
        let Some(machine) = &self.machine else { return [None; 2] };
        let of = |uuid: Option<&str>| machine.read(index(machine, uuid)?).ok()?.power_watts;
        [of(plan.roles[0].uuid.as_deref()), of(plan.roles[1].uuid.as_deref())]
    }
}

fn index(machine: &Machine, uuid: Option<&str>) -> Option<usize> {
    machine.cards().iter().position(|card| Some(card.uuid.as_str()) == uuid)
}
