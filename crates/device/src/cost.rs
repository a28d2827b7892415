//! What the driver takes on a card for itself: context, modules, library workspaces. Measured, never guessed.

use crate::bytes::MIB;
use crate::error::DeviceError;
use crate::kernel::Kernel;
use crate::machine::Machine;

/// Device bytes that no arena holds. They count against the limits all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverCost {
    /// The context with its streams, once per card.
    pub context_bytes: u64,
    /// The data role's kernels.
    pub data_modules_bytes: u64,
    /// The model role's kernels, libraries and recordings.
    pub model_modules_bytes: u64,
    /// Where the figures come from.
    pub source: String,
}

impl DriverCost {
    /// No driver: the CPU.
    pub fn nothing() -> DriverCost {
        DriverCost {
            context_bytes: 0,
            data_modules_bytes: 0,
            model_modules_bytes: 0,
            source: "no driver on the CPU".to_owned(),
        }
    }

    /// What was read on the card named in `source`: for simulated cards.
    pub fn table() -> DriverCost {
        DriverCost {
            context_bytes: 522 * MIB,
            data_modules_bytes: 2 * MIB,
            model_modules_bytes: 2 * MIB,
            source: "table: NVIDIA H200, driver 580.159.04".to_owned(),
        }
    }
}

/// Opens card `index` once for each role, loads that role's kernels, reads what the driver took, and closes it again.
///
/// Each role alone, because on two cards each pays for its own. Takes a fraction of a second with warm kernel caches.
/// Needs the card to itself in this process: what is open there already would be counted too.
pub fn probe(
    machine: &Machine,
    index: usize,
    data_kernels: &[&'static Kernel],
    model_kernels: &[&'static Kernel],
) -> Result<DriverCost, DeviceError> {
    if let Some(cost) = machine.tabled_cost() {
        return Ok(cost);
    }
    let (data_context, data_modules_bytes) = probe_role(machine, index, data_kernels)?;
    let (model_context, model_modules_bytes) = probe_role(machine, index, model_kernels)?;
    Ok(DriverCost {
        context_bytes: data_context.max(model_context),
        data_modules_bytes,
        model_modules_bytes,
        source: format!("probed: {}, driver {}", machine.cards()[index].name, machine.driver_version()),
    })
}

/// What the context takes, and what the kernels take on top.
fn probe_role(machine: &Machine, index: usize, kernels: &[&'static Kernel]) -> Result<(u64, u64), DeviceError> {
    let used = || machine.read(index).map(|now| now.total_bytes - now.free_bytes);
    let before = used()?;
    let device = machine.open(index)?;
    let held = || match device.process_bytes()? {
        Some(bytes) => Ok::<u64, DeviceError>(bytes),
        // Without per-process figures only the card's free memory is left; others may move it meanwhile.
        None => used().map(|now| now.saturating_sub(before)),
    };
    // As many streams as both roles use together: they cost memory too.
    let streams = (0..8).map(|i| device.stream(i == 0)).collect::<Result<Vec<_>, _>>()?;
    let context = held()?;
    device.load_all(kernels)?;
    let with_kernels = held()?;
    drop(streams);
    Ok((context, with_kernels.saturating_sub(context)))
}
