//! Readings from NVML, NVIDIA's management library: cards in the order of `nvidia-smi`, and memory per process. No context
//! is opened on a card.

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};

use crate::card::{Card, CardProcess, CardReading};
use crate::error::DeviceError;
use crate::library::{FoundLibrary, LibraryError, Search, Wanted};

/// Functions that the wrapper needs; without some of them it would panic when it is dropped.
const NEEDED: [&str; 4] = ["nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"];

/// NVML, initialised.
pub(crate) struct NvmlReader {
    nvml: Nvml,
    pub(crate) found: FoundLibrary,
}

/// Memory of one process on one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NvmlProcessMemory {
    /// It uses this much.
    Bytes(u64),
    /// It is listed, but its memory is not reported.
    Unavailable,
    /// It is not listed: it uses no memory, or is listed under the process id of another namespace.
    NotListed,
}

impl NvmlReader {
    pub(crate) fn open(search: &Search) -> Result<NvmlReader, LibraryError> {
        let opened = search.open(&Wanted {
            names: vec!["libnvidia-ml.so.1".to_string()],
            probe: "nvmlInit_v2",
            install: "install the NVIDIA driver, which includes it",
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

    /// The driver's version, e.g. `580.159.04`.
    pub(crate) fn driver_version(&self) -> Option<String> {
        self.found.version.clone()
    }

    /// Every card. A card that cannot be read stays in the list, so that the others keep their indices.
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
            processes: processes(&device),
            busy_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
            power_watts: device.power_usage().ok().map(|milliwatts| milliwatts as f32 / 1000.0),
        })
    }

    pub(crate) fn process_memory(&self, card: usize, pid: u32) -> Result<NvmlProcessMemory, DeviceError> {
        let fail = |error| failure(card, "reading the memory of the process", &error);
        let device = self.nvml.device_by_index(card as u32).map_err(fail)?;
        match device.running_compute_processes() {
            Ok(processes) => Ok(memory_of(&processes, pid)),
            Err(NvmlError::NotSupported | NvmlError::NoPermission) => Ok(NvmlProcessMemory::Unavailable),
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

fn processes(device: &Device<'_>) -> Vec<CardProcess> {
    let compute = device.running_compute_processes().unwrap_or_default();
    let graphics = device.running_graphics_processes().unwrap_or_default();
    merge(compute.into_iter().chain(graphics), |pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        Some(name.trim_end().to_string())
    })
}

/// One entry per process, the largest first: a process that computes and draws is in both lists with the same number.
fn merge(processes: impl Iterator<Item = ProcessInfo>, name_of: impl Fn(u32) -> Option<String>) -> Vec<CardProcess> {
    let mut merged: Vec<CardProcess> = Vec::new();
    for process in processes {
        let UsedGpuMemory::Used(bytes) = process.used_gpu_memory else { continue };
        match merged.iter_mut().find(|known| known.pid == process.pid) {
            Some(known) => known.bytes = known.bytes.max(bytes),
            None => merged.push(CardProcess { pid: process.pid, name: name_of(process.pid), bytes }),
        }
    }
    merged.sort_by_key(|process| std::cmp::Reverse(process.bytes));
    merged
}

fn memory_of(processes: &[ProcessInfo], pid: u32) -> NvmlProcessMemory {
    match processes.iter().find(|process| process.pid == pid).map(|process| &process.used_gpu_memory) {
        Some(UsedGpuMemory::Used(bytes)) => NvmlProcessMemory::Bytes(*bytes),
        Some(UsedGpuMemory::Unavailable) => NvmlProcessMemory::Unavailable,
        None => NvmlProcessMemory::NotListed,
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
        let merged = merge(list.into_iter(), |pid| (pid == 9).then(|| "python3".to_string()));
        assert_eq!(
            merged,
            [
                CardProcess { pid: 9, name: Some("python3".into()), bytes: 300 },
                CardProcess { pid: 7, name: None, bytes: 100 }
            ]
        );
    }

    #[test]
    fn an_unavailable_number_is_not_zero() {
        let list = [process(7, UsedGpuMemory::Unavailable), process(9, UsedGpuMemory::Used(5))];
        assert_eq!(
            [7, 8, 9].map(|pid| memory_of(&list, pid)),
            [NvmlProcessMemory::Unavailable, NvmlProcessMemory::NotListed, NvmlProcessMemory::Bytes(5)]
        );
    }
}
