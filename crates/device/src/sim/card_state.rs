//! The state of one simulated card: what is open and reserved on it, and the memory it uses.

use std::collections::{BTreeMap, BTreeSet};

use crate::bytes::{MIB, round_up};
use crate::cost::DriverCost;
use crate::host_memory::HostMemory;

/// One card.
#[derive(Default)]
pub(super) struct CardState {
    /// Opens without a matching close: a card may be opened again while its last handle closes.
    pub(super) opens: u32,
    pub(super) modules: BTreeSet<&'static str>,
    pub(super) intruder: u64,
    /// Memory that the desktop uses now.
    pub(super) desktop: u64,
    /// The driver's memory beyond its table.
    pub(super) grown: u64,
    /// GEMMs queued so far, if they leak.
    pub(super) gemms: u64,
    /// Whether it has peer access, or another card has it to this one: the driver's mappings take memory on both.
    pub(super) maps_peers: bool,
    /// The host's clock when the card was opened: its own clock is read relative to this.
    pub(super) opened_ns: u64,
    /// Set once the card fails every call, with the time of the failure.
    pub(super) failure: Option<(Failure, u64)>,
    pub(super) reservations: BTreeMap<u64, SimReservation>,
    /// Memory that was released while work that never ends may still use it.
    pub(super) left_behind: Vec<HostMemory>,
}

/// Why a card fails every call.
#[derive(Clone, Copy)]
pub(super) enum Failure {
    Lost,
    Trapped,
    CopyFailed,
}

/// Reserved memory.
pub(super) struct SimReservation {
    pub(super) memory: HostMemory,
    pub(super) capped: bool,
    /// Cards with peer access to it.
    pub(super) peers: Vec<usize>,
}

impl CardState {
    /// Memory of this process as a driver counts it: context, modules, and reservations in 2 MiB pages.
    pub(super) fn process_bytes(&self) -> u64 {
        let peers = if self.maps_peers { DriverCost::SIMULATED_PEER_BYTES } else { 0 };
        let context = if self.opens > 0 { DriverCost::table().context_bytes + peers + self.grown } else { 0 };
        let modules = self.modules.len() as u64 * 2 * MIB;
        let reserved = self.reservations.values().map(|reservation| &reservation.memory).chain(&self.left_behind);
        context + modules + reserved.map(|memory| round_up(memory.bytes(), 2 * MIB)).sum::<u64>()
    }
}
