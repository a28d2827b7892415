//! The driver, the libraries and the GPUs: where each was found, its version, and the processes that use its memory.

use tandem_device::bytes::show;
use tandem_device::library::{FoundLibrary, LibraryError, Search, survey};
use tandem_device::{DeviceError, DeviceKind};
use tandem_launch::inventory::Inventory;
use tandem_plan::{CardFacts, explain_visibility};

use crate::exit::Exit;

use super::report::DoctorReport;

/// Older GPUs cannot train.
const MIN_CAPABILITY: (u32, u32) = (7, 5);

/// Examines the real GPUs, or the simulated ones.
pub(super) fn examine(
    simulated: bool,
    inventory: &Result<Inventory, DeviceError>,
    report: &mut DoctorReport<'_>,
) -> Result<(), Exit> {
    if simulated {
        report.good("Simulated driver: no library is needed")?;
    } else {
        libraries(report)?;
    }
    let hardware = match inventory {
        Ok(inventory) => &inventory.hardware,
        Err(error) => {
            return report.bad(&format!("Cannot read the GPUs: {error}"), "check nvidia-smi and the kernel log");
        }
    };
    // Without GPUs, the line of the driver says why.
    let undo = hardware.visibility.as_ref().and_then(|visibility| visibility.undo.as_deref());
    let cards = hardware.cards.iter().filter(|_| hardware.kind != DeviceKind::Cpu);
    cards.into_iter().try_for_each(|facts| card(facts, undo, report))?;
    if let Some(numbers) = explain_visibility(hardware) {
        let (numbers, _) = numbers.split_once('\n').unwrap_or((&numbers, ""));
        report.note(numbers)?;
    }
    let pairs =
        |reader: usize| (0..hardware.cards.len()).filter(move |owner| *owner != reader).map(move |o| (reader, o));
    for (reader, owner) in (0..hardware.cards.len()).flat_map(pairs) {
        let access = if hardware.peer[reader][owner] { "can access" } else { "cannot access" };
        report.note(&format!("Peer access: GPU {reader} {access} GPU {owner}"))?;
    }
    Ok(())
}

fn libraries(report: &mut DoctorReport<'_>) -> Result<(), Exit> {
    let found = survey(&Search::from_env());
    let is_needed = !matches!(found.driver, Ok(None));
    match found.driver {
        Ok(Some(driver)) => report.good(&library_line(&driver))?,
        Ok(None) => report.good("No NVIDIA device on this machine: training runs on the CPU")?,
        Err(error) => report_failed(&error, report)?,
    }
    for library in [found.nvml, found.nvrtc, found.cublaslt] {
        match library {
            Ok(found) => report.good(&library_line(&found))?,
            Err(error) if is_needed => report_failed(&error, report)?,
            Err(_) => {}
        }
    }
    Ok(())
}

fn library_line(found: &FoundLibrary) -> String {
    let version = found.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
    format!("{}{version} found: {}", found.name, found.path.display())
}

/// Reports an error of a library, with a short version of its advice.
fn report_failed(error: &LibraryError, report: &mut DoctorReport<'_>) -> Result<(), Exit> {
    let advice = match error {
        LibraryError::NotFound { install, .. } => install,
        LibraryError::CannotOpen { .. } | LibraryError::MissingSymbol { .. } => "reinstall it",
        LibraryError::TooOld { .. } => "update it",
        LibraryError::Broken { .. } => "repair the installation; start with nvidia-smi",
    };
    report.bad(&error.to_string(), &format!("{advice}; --mode cpu works until then"))
}

fn card(facts: &CardFacts, undo: Option<&str>, report: &mut DoctorReport<'_>) -> Result<(), Exit> {
    let CardFacts { card, reading, .. } = facts;
    let (major, minor) = card.capability;
    let (free, total) = (show(reading.free_bytes), show(reading.total_bytes));
    let text = format!("{card}, compute capability {major}.{minor}, {free} of {total} free");
    if let Some(by) = &card.hidden_by {
        report.warning(&format!("{text}, hidden by {by}"), undo.unwrap_or("it cannot be used from here"))?;
    } else if card.capability < MIN_CAPABILITY {
        let (major, minor) = MIN_CAPABILITY;
        report
            .bad(&text, &format!("this GPU is too old: {major}.{minor} is needed, 8.0 for bf16; --mode cpu works"))?;
    } else {
        report.good(&text)?;
    }
    let power = reading.power_watts.map_or("power unknown".to_owned(), |watts| format!("{watts:.0} W"));
    let busy = reading.busy_percent.map_or("busy unknown".to_owned(), |busy| format!("{busy} % busy"));
    report.text(&format!("GPU {}: bus {}, {power}, {busy}", card.index, card.bus_id));
    for process in &reading.processes {
        let name = process.name.as_deref().unwrap_or("a process");
        report.note(&format!(
            "GPU {}: {} used by {name} (process {})",
            card.index,
            show(process.bytes),
            process.pid
        ))?;
    }
    Ok(())
}
