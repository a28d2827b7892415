//! The power of the run's GPUs now. The log does not have it, so it is read from this machine's GPUs, if the run uses them.

use tandem_device::{DeviceKind, Machine};

use super::plan_facts::PlanFacts;

/// Reads power through NVML. Opens no context on the GPUs.
pub(super) struct PowerMeter {
    machine: Option<Machine>,
}

impl PowerMeter {
    /// Finds the GPUs of the run. There are none for a run on the CPU, on simulated GPUs or on another machine.
    pub(super) fn of(plan: &PlanFacts) -> PowerMeter {
        let wanted = |machine: &Machine| plan.roles.iter().any(|role| index(machine, role.uuid.as_deref()).is_some());
        let has_cards = !plan.simulated && plan.roles.iter().any(|role| role.uuid.is_some());
        // A driver error is ignored: the power is then unknown.
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
