//! The devices of the two roles, as far as the log has said.

use tandem_events::{Role, RunEvent};

/// The card of each role, or the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RoleDevices {
    cards: [Option<usize>; 2],
    /// No cards: decoding, features and the step all run on the CPU.
    pub(crate) is_cpu: bool,
}

impl RoleDevices {
    /// Observes every event of a run, in order.
    pub(crate) fn observe(&mut self, event: &RunEvent) {
        match event {
            RunEvent::DeviceClock { devices, .. } => self.is_cpu = devices == "cpu",
            RunEvent::ArenaReserved { role, card, .. } => self.cards[usize::from(*role == Role::Model)] = Some(*card),
            _ => {}
        }
    }

    /// The data role's card.
    pub(crate) fn data(&self) -> Option<usize> {
        self.cards[0].filter(|_| !self.is_cpu)
    }

    /// The model role's card.
    pub(crate) fn model(&self) -> Option<usize> {
        self.cards[1].filter(|_| !self.is_cpu)
    }

    /// Both roles take turns on one card. On the CPU they do not, because the cores run in parallel.
    pub(crate) fn is_one_card(&self) -> bool {
        self.data().is_some() && self.data() == self.model()
    }

    /// Both roles are on one card, or on the CPU.
    pub(crate) fn is_one_device(&self) -> bool {
        self.is_cpu || self.is_one_card()
    }
}
