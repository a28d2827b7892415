//! The driver's own memory on a card: context, modules, library workspaces. It is measured, never guessed.

use crate::bytes::MIB;
use crate::error::DeviceError;
use crate::kernel::Kernel;
use crate::machine::Machine;

/// Device memory outside the arenas. It counts against the limits too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverCost {
    /// The context with its streams; once per card.
    pub context_bytes: u64,
    /// The data role's kernels.
    pub data_modules_bytes: u64,
    /// The model role's kernels, libraries and captured graphs.
    pub model_modules_bytes: u64,
    /// Where the numbers come from.
    pub source: String,
}

impl DriverCost {
    /// The CPU has no driver.
    pub fn zero() -> DriverCost {
        DriverCost {
            context_bytes: 0,
            data_modules_bytes: 0,
            model_modules_bytes: 0,
            source: "no driver on the CPU".to_owned(),
        }
    }

    /// Measured on the card named in `source`; used for simulated cards.
    pub fn table() -> DriverCost {
        DriverCost {
            context_bytes: 522 * MIB,
            data_modules_bytes: 2 * MIB,
            model_modules_bytes: 2 * MIB,
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
        source: format!("probed: {}, driver {}", machine.cards()[index].name, machine.driver_version()),
    })
}

/// Bytes of the context, and of the kernels.
fn probe_role(machine: &Machine, index: usize, kernels: &[&'static Kernel]) -> Result<(u64, u64), DeviceError> {
    let used = || machine.read(index).map(|now| now.total_bytes - now.free_bytes);
    let before = used()?;
    let device = machine.open(index)?;
    let process_bytes = || match device.process_bytes()? {
        Some(bytes) => Ok::<u64, DeviceError>(bytes),
        // Fall back to the card's free memory, which other processes may change meanwhile.
        None => used().map(|now| now.saturating_sub(before)),
    };
    // As many streams as both roles use together: they take memory too.
    let streams = (0..8).map(|i| device.stream(i == 0)).collect::<Result<Vec<_>, _>>()?;
    let context = process_bytes()?;
    device.load_all(kernels)?;
    let with_kernels = process_bytes()?;
    drop(streams);
    Ok((context, with_kernels.saturating_sub(context)))
}
