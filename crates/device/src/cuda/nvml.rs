//! Readings from NVIDIA's management library: cards in the order `nvidia-smi` shows them, who holds their memory,
//! and what this process holds. Nothing is opened on a card.

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use crate::card::{Card, CardProcess, CardReading};
use crate::error::DeviceError;
use crate::library::{FoundLibrary, LibraryError, Search, Wanted};

/// Functions without which the wrapper would not work, or would panic when it is dropped.
const NEEDED: [&str; 4] = ["nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"];

/// The management library, started.
pub(crate) struct NvmlReader {
    nvml: Nvml,
    pub(crate) found: FoundLibrary,
}

/// What the driver says of one process on one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// It holds this much.
    Bytes(u64),
    /// It is there, but how much it holds is not told.
    Untold,
    /// It is not in the list: it holds nothing, or is known there under a number of another namespace.
    Unlisted,
}

impl NvmlReader {
    pub(crate) fn open(search: &Search) -> Result<NvmlReader, LibraryError> {
        let opened = search.open(&Wanted {
            names: vec!["libnvidia-ml.so.1".to_string()],
            probe: "nvmlInit_v2",
            install: "install the NVIDIA driver, which brings it",
        })?;
        if let Some(symbol) = NEEDED.into_iter().find(|symbol| !opened.has(symbol)) {
            let (library, path) = (opened.found.name, opened.found.path);
            return Err(LibraryError::MissingSymbol { library, path, symbol: symbol.to_string() });
        }
        let nvml = Nvml::builder().lib_path(opened.found.path.as_os_str()).init();
        let nvml = nvml.map_err(|error| opened.broken(error.to_string()))?;
        let version = nvml.sys_driver_version().ok();
        Ok(NvmlReader { nvml, found: FoundLibrary { version, ..opened.found } })
    }

    /// The driver's own version, e.g. `580.159.04`.
    pub(crate) fn driver_version(&self) -> Option<String> {
        self.found.version.clone()
    }

    /// Every card. One that cannot be read keeps its place, so that the others keep their numbers.
    pub(crate) fn cards(&self) -> Result<Vec<Card>, NvmlError> {
        let count = self.nvml.device_count()? as usize;
        Ok((0..count).map(|index| self.card(index).unwrap_or_else(|error| unreadable(index, &error))).collect())
    }

    pub(crate) fn read(&self, card: usize) -> Result<CardReading, DeviceError> {
        let fail = |error| failure(card, "reading the card", &error);
        let device = self.nvml.device_by_index(card as u32).map_err(fail)?;
        let memory = device.memory_info().map_err(fail)?;
        Ok(CardReading {
            free_bytes: memory.free,
            total_bytes: memory.total,
            holders: holders(&device),
            busy_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
            power_watts: device.power_usage().ok().map(|milliwatts| milliwatts as f32 / 1000.0),
        })
    }

    pub(crate) fn held_by(&self, card: usize, pid: u32) -> Result<Held, DeviceError> {
        let fail = |error| failure(card, "reading what the process holds", &error);
        let device = self.nvml.device_by_index(card as u32).map_err(fail)?;
        match device.running_compute_processes() {
            Ok(processes) => Ok(held_in(&processes, pid)),
            Err(NvmlError::NotSupported | NvmlError::NoPermission) => Ok(Held::Untold),
            Err(error) => Err(fail(error)),
        }
    }

    fn card(&self, index: usize) -> Result<Card, NvmlError> {
        let device = self.nvml.device_by_index(index as u32)?;
        let capability = device.cuda_compute_capability()?;
        Ok(Card {
            index,
            name: device.name()?,
            uuid: device.uuid()?,
            bus_id: device.pci_info()?.bus_id,
            total_bytes: device.memory_info()?.total,
            capability: (capability.major.unsigned_abs(), capability.minor.unsigned_abs()),
            hidden_by: None,
        })
    }
}

fn unreadable(index: usize, error: &NvmlError) -> Card {
    Card {
        index,
        name: "unreadable".to_string(),
        uuid: "unknown".to_string(),
        bus_id: "unknown".to_string(),
        total_bytes: 0,
        capability: (0, 0),
        hidden_by: Some(format!("the driver ({error})")),
    }
}

fn holders(device: &Device<'_>) -> Vec<CardProcess> {
    let compute = device.running_compute_processes().unwrap_or_default();
    let graphics = device.running_graphics_processes().unwrap_or_default();
    merge(compute.into_iter().chain(graphics), |pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some(name.trim_end().to_string())
    })
}

/// One holder per process, the largest first: a process that computes and draws is in both lists with one figure.
fn merge(processes: impl Iterator<Item = ProcessInfo>, name_of: impl Fn(u32) -> Option<String>) -> Vec<CardProcess> {
    let mut holders: Vec<CardProcess> = Vec::new();
    for process in processes {
        let UsedGpuMemory::Used(bytes) = process.used_gpu_memory else { continue };
        match holders.iter_mut().find(|holder| holder.pid == process.pid) {
            Some(known) => known.bytes = known.bytes.max(bytes),
            None => holders.push(CardProcess { pid: process.pid, name: name_of(process.pid), bytes }),
        }
    }
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.bytes));
    holders
}

fn held_in(processes: &[ProcessInfo], pid: u32) -> Held {
    match processes.iter().find(|process| process.pid == pid).map(|process| &process.used_gpu_memory) {
        Some(UsedGpuMemory::Used(bytes)) => Held::Bytes(*bytes),
        Some(UsedGpuMemory::Unavailable) => Held::Untold,
        None => Held::Unlisted,
    }
}

fn failure(card: usize, during: &'static str, error: &NvmlError) -> DeviceError {
    match error {
        NvmlError::GpuLost | NvmlError::ResetRequired => DeviceError::Lost { card, during, what: error.to_string() },
        error => DeviceError::Failed { card, during, what: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, used_gpu_memory: UsedGpuMemory) -> ProcessInfo {
        ProcessInfo { pid, used_gpu_memory, gpu_instance_id: None, compute_instance_id: None }
    }

    #[test]
    fn a_process_that_computes_and_draws_is_counted_once() {
        let list = [(7, 100), (9, 300), (7, 100)].map(|(pid, bytes)| process(pid, UsedGpuMemory::Used(bytes)));
        let holders = merge(list.into_iter(), |pid| (pid == 9).then(|| "python3".to_string()));
        assert_eq!(
            holders,
            [
                CardProcess { pid: 9, name: Some("python3".into()), bytes: 300 },
                CardProcess { pid: 7, name: None, bytes: 100 }
            ]
        );
    }

    #[test]
    fn an_untold_figure_is_not_zero() {
        let list = [process(7, UsedGpuMemory::Unavailable), process(9, UsedGpuMemory::Used(5))];
        assert_eq!([7, 8, 9].map(|pid| held_in(&list, pid)), [Held::Untold, Held::Unlisted, Held::Bytes(5)]);
    }
}
