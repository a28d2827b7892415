//! The driver's own memory on a card: context, modules, library workspaces. It is measured, never guessed.

use tandem_events::Role;

use crate::arena::{Arena, ArenaSpec};
use crate::bytes::{MIB, POOL_GRANULE};
use crate::device::Device;
use crate::error::DeviceError;
use crate::kernel::Kernel;
use crate::machine::Machine;
use crate::stream::Stream;

/// Device memory outside the arenas. It counts against the limits too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverCost {
    /// The context with its streams; once per card.
    pub context_bytes: u64,
    /// The data role's kernels.
    pub data_modules_bytes: u64,
    /// The model role's kernels, libraries and captured graphs.
    pub model_modules_bytes: u64,
    /// The card that was open beside it when it was measured; `None` if it was measured alone.
    pub beside: Option<Beside>,
    /// Where the numbers come from.
    pub source: String,
}

/// The other card of a pair, while the driver's memory was measured. Its context and the mappings of its memory count too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beside {
    /// The card.
    pub card: usize,
    /// Whether the two had peer access to each other, as far as the driver could enable it.
    pub has_peer_access: bool,
}

impl DriverCost {
    /// What peer access to another card adds on a simulated card. No pair of cards was measured: this is an assumption, chosen
    /// larger than the room that a plan leaves, so that a plan that forgets it fails.
    pub(crate) const SIMULATED_PEER_BYTES: u64 = 64 * MIB;

    /// Whether it counts the context of `other`, and peer access to it if that is needed.
    pub fn counts_pair(&self, other: usize, needs_peer_access: bool) -> bool {
        self.beside.is_some_and(|beside| beside.card == other && (beside.has_peer_access || !needs_peer_access))
    }

    /// The CPU has no driver.
    pub fn zero() -> DriverCost {
        DriverCost {
            context_bytes: 0,
            data_modules_bytes: 0,
            model_modules_bytes: 0,
            beside: None,
            source: "no driver on the CPU".to_owned(),
        }
    }

    /// Measured on the card named in `source`; used for simulated cards.
    pub fn table() -> DriverCost {
        DriverCost {
            context_bytes: 522 * MIB,
            data_modules_bytes: 2 * MIB,
            model_modules_bytes: 2 * MIB,
            beside: None,
            source: "table: NVIDIA H200, driver 580.159.04".to_owned(),
        }
    }
}

/// Measures the driver's memory on card `index`: opens it once for each role, loads that role's kernels, reads the memory
/// in use, and closes it again.
///
/// Each role is measured alone, because on two cards each has its own context. This takes a fraction of a second with a
/// warm kernel cache. Nothing else of this process may be open on the card: it would be counted too.
pub fn probe(
    machine: &Machine,
    index: usize,
    data_kernels: &[&'static Kernel],
    model_kernels: &[&'static Kernel],
) -> Result<DriverCost, DeviceError> {
    if let Some(cost) = machine.known_driver_cost() {
        return Ok(cost);
    }
    let (data_context, data_modules_bytes) = probe_role(machine, index, data_kernels)?;
    let (model_context, model_modules_bytes) = probe_role(machine, index, model_kernels)?;
    Ok(DriverCost {
        context_bytes: data_context.max(model_context),
        data_modules_bytes,
        model_modules_bytes,
        beside: None,
        source: format!("probed: {}, driver {}", machine.cards()[index].name, machine.driver_version()),
    })
}

/// Bytes of the context, and of the kernels.
fn probe_role(machine: &Machine, index: usize, kernels: &[&'static Kernel]) -> Result<(u64, u64), DeviceError> {
    let used = || used_bytes(machine, index);
    let before = used()?;
    let device = machine.open(index)?;
    let process_bytes = || match device.process_bytes()? {
        Some(bytes) => Ok::<u64, DeviceError>(bytes),
        // Fall back to the card's free memory, which other processes may change meanwhile.
        None => used().map(|now| now.saturating_sub(before)),
    };
    let streams = (0..PROBE_STREAMS).map(|i| device.stream(i == 0)).collect::<Result<Vec<_>, _>>()?;
    let context = process_bytes()?;
    device.load_all(kernels)?;
    let with_kernels = process_bytes()?;
    drop(streams);
    Ok((context, with_kernels.saturating_sub(context)))
}

/// Measures the driver's memory on both cards of a pair, the data role's first: with both contexts open and, if
/// `needs_peer_access`, with a small pool on each that the other can access. A second context and the mappings between the two
/// take memory that [`probe`] does not see.
///
/// Each card is opened once. Nothing else of this process may be open on the cards: it would be counted too.
pub fn probe_pair(
    machine: &Machine,
    cards: [usize; 2],
    needs_peer_access: bool,
    data_kernels: &[&'static Kernel],
    model_kernels: &[&'static Kernel],
) -> Result<[DriverCost; 2], DeviceError> {
    let Some(cost) = machine.known_driver_cost() else {
        return measure_pair(machine, cards, needs_peer_access, data_kernels, model_kernels);
    };
    let peer_bytes = if needs_peer_access { DriverCost::SIMULATED_PEER_BYTES } else { 0 };
    Ok([cards[1], cards[0]].map(|card| DriverCost {
        context_bytes: cost.context_bytes + peer_bytes,
        beside: Some(Beside { card, has_peer_access: needs_peer_access }),
        ..cost.clone()
    }))
}

fn measure_pair(
    machine: &Machine,
    cards: [usize; 2],
    needs_peer_access: bool,
    data_kernels: &[&'static Kernel],
    model_kernels: &[&'static Kernel],
) -> Result<[DriverCost; 2], DeviceError> {
    let [data, model] = [OpenProbe::open(machine, cards[0])?, OpenProbe::open(machine, cards[1])?];
    // Bound until the end: closing a pool may undo its mappings.
    let _pools = if needs_peer_access { Some(PeerPools::open(&data.device, &model.device)?) } else { None };
    let measure = |probe: &OpenProbe, other: usize| -> Result<DriverCost, DeviceError> {
        let context_bytes = probe.driver_bytes()?;
        // The model's kernels first: those that both roles use then count for both.
        probe.device.load_all(model_kernels)?;
        let with_model = probe.driver_bytes()?;
        probe.device.load_all(data_kernels)?;
        let with_both = probe.driver_bytes()?;
        let name = &probe.device.card().name;
        Ok(DriverCost {
            context_bytes,
            data_modules_bytes: with_both.saturating_sub(context_bytes),
            model_modules_bytes: with_model.saturating_sub(context_bytes),
            beside: Some(Beside { card: other, has_peer_access: needs_peer_access }),
            source: format!("probed beside GPU {other}: {name}, driver {}", machine.driver_version()),
        })
    };
    Ok([measure(&data, cards[1])?, measure(&model, cards[0])?])
}

/// A card that is open for a probe, with as many streams as both roles use together.
struct OpenProbe {
    device: Device,
    /// Memory in use before, for drivers that do not report memory per process.
    used_before: u64,
    _streams: Vec<Stream>,
}

impl OpenProbe {
    fn open(machine: &Machine, card: usize) -> Result<OpenProbe, DeviceError> {
        let used_before = used_bytes(machine, card)?;
        let device = machine.open(card)?;
        let streams = (0..PROBE_STREAMS).map(|i| device.stream(i == 0)).collect::<Result<Vec<_>, _>>()?;
        Ok(OpenProbe { device, used_before, _streams: streams })
    }

    /// The driver's memory on the card now, without our own reservations.
    fn driver_bytes(&self) -> Result<u64, DeviceError> {
        let (machine, card) = (self.device.machine(), self.device.index());
        let held = match self.device.process_bytes()? {
            Some(bytes) => bytes,
            // Fall back to the card's free memory, which other processes may change meanwhile.
            None => used_bytes(machine, card)?.saturating_sub(self.used_before),
        };
        Ok(held.saturating_sub(machine.counters(card).live_bytes))
    }
}

/// A small pool on each card, which the other card can access.
struct PeerPools {
    _pools: [Arena; 2],
}

impl PeerPools {
    /// Peer access that the driver offers and does not enable adds nothing: no run will use it.
    fn open(data: &Device, model: &Device) -> Result<PeerPools, DeviceError> {
        let pool = |role, device: &Device| {
            let spec = ArenaSpec { peer_bytes: POOL_GRANULE, ..ArenaSpec::new(role, POOL_GRANULE) };
            Arena::reserve_as(device, spec, false)
        };
        let pools = [pool(Role::Data, data)?, pool(Role::Model, model)?];
        match pools[0].allow_peer(model).and_then(|()| pools[1].allow_peer(data)) {
            Err(error) if !error.is_about_route() => Err(error),
            _ => Ok(PeerPools { _pools: pools }),
        }
    }
}

/// As many streams as both roles use together: they take memory too.
const PROBE_STREAMS: usize = 8;

fn used_bytes(machine: &Machine, card: usize) -> Result<u64, DeviceError> {
    machine.read(card).map(|now| now.total_bytes.saturating_sub(now.free_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{Link, SimSpec};

    /// The table is what a measurement of simulated cards finds.
    #[test]
    fn a_pair_is_measured_with_both_contexts_and_peer_access() {
        let machine = Machine::simulated(SimSpec::new(2, 4 << 30).with_link(Link::Nvlink));
        let kernels = crate::kernels::KERNELS;
        for needs_peer_access in [false, true] {
            let measured = measure_pair(&machine, [1, 0], needs_peer_access, kernels, kernels).unwrap();
            let table = probe_pair(&machine, [1, 0], needs_peer_access, kernels, kernels).unwrap();
            let extra = if needs_peer_access { DriverCost::SIMULATED_PEER_BYTES } else { 0 };
            for ((found, expected), other) in measured.iter().zip(&table).zip([0, 1]) {
                assert_eq!(found.context_bytes, DriverCost::table().context_bytes + extra);
                assert_eq!(found.context_bytes, expected.context_bytes);
                assert_eq!((found.beside, found.data_modules_bytes), (expected.beside, found.model_modules_bytes));
                assert!(found.counts_pair(other, needs_peer_access) && !found.counts_pair(1 - other, false));
                assert_eq!(found.counts_pair(other, true), needs_peer_access);
            }
        }
        assert!(!DriverCost::table().counts_pair(0, false), "measured alone");
        assert_eq!(machine.sim().unwrap().alive(), Default::default());
    }

    #[test]
    fn peer_access_that_cannot_be_enabled_adds_nothing_to_a_pair() {
        let spec = SimSpec::new(2, 4 << 30).with_link(Link::Nvlink);
        let machine = Machine::simulated(spec.with_fault(crate::sim::SimFault::RefusePeerAccess));
        let [data, model] = measure_pair(&machine, [0, 1], true, &[], &[]).unwrap();
        let alone = DriverCost::table().context_bytes;
        assert_eq!((data.context_bytes, model.context_bytes), (alone, alone));
    }
}
