//! The driver, the libraries and the cards: where each was found, what it is, who holds its memory.

use tandem_device::bytes::show;
use tandem_device::library::{FoundLibrary, LibraryError, Search, survey};
use tandem_device::{DeviceError, DeviceKind};
use tandem_launch::inventory::Inventory;
use tandem_plan::CardFacts;

use crate::exit::Exit;

use super::examination::Examination;

/// The oldest cards that train at all.
const LEAST_CAPABILITY: (u32, u32) = (7, 5);

/// Looks at them; at simulated ones when asked to.
pub(super) fn look(
    simulated: bool,
    site: &Result<Inventory, DeviceError>,
    to: &mut Examination<'_>,
) -> Result<(), Exit> {
    if simulated {
        to.good("Simulated driver: no library is needed")?;
    } else {
        libraries(to)?;
    }
    let hardware = match site {
        Ok(site) => &site.hardware,
        Err(error) => {
            return to.bad(&format!("The cards cannot be read: {error}"), "see nvidia-smi and the kernel's log");
        }
    };
    // Without cards the driver's own line says why.
    hardware.cards.iter().filter(|_| hardware.kind != DeviceKind::Cpu).try_for_each(|facts| card(facts, to))?;
    let pairs =
        |reader: usize| (0..hardware.cards.len()).filter(move |owner| *owner != reader).map(move |o| (reader, o));
    for (reader, owner) in (0..hardware.cards.len()).flat_map(pairs) {
        let reaches = if hardware.peer[reader][owner] { "reaches" } else { "does not reach" };
        to.note(&format!("Peer access: GPU {reader} {reaches} GPU {owner}"))?;
    }
    Ok(())
}

fn libraries(to: &mut Examination<'_>) -> Result<(), Exit> {
    let found = survey(&Search::from_env());
    let is_needed = !matches!(found.driver, Ok(None));
    match found.driver {
        Ok(Some(driver)) => to.good(&told(&driver))?,
        Ok(None) => to.good("No NVIDIA device on this machine: training runs on the CPU")?,
        Err(error) => failed(&error, to)?,
    }
    for library in [found.nvml, found.nvrtc, found.cublaslt] {
        match library {
            Ok(found) => to.good(&told(&found))?,
            Err(error) if is_needed => failed(&error, to)?,
            Err(_) => {}
        }
    }
    Ok(())
}

fn told(found: &FoundLibrary) -> String {
    let version = found.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
    format!("{}{version} found: {}", found.name, found.path.display())
}

/// An error of a library says itself what to do; it is repeated shortly, where people look for it.
fn failed(error: &LibraryError, to: &mut Examination<'_>) -> Result<(), Exit> {
    let advice = match error {
        LibraryError::NotFound { install, .. } => install,
        LibraryError::CannotOpen { .. } | LibraryError::MissingSymbol { .. } => "reinstall it",
        LibraryError::TooOld { .. } => "update it",
        LibraryError::Broken { .. } => "repair the installation: nvidia-smi first",
    };
    to.bad(&error.to_string(), &format!("{advice}; --mode cpu works meanwhile"))
}

fn card(CardFacts { card, reading, .. }: &CardFacts, to: &mut Examination<'_>) -> Result<(), Exit> {
    let (major, minor) = card.capability;
    let (free, total) = (show(reading.free_bytes), show(reading.total_bytes));
    let text = format!("{card}, compute capability {major}.{minor}, {free} of {total} free");
    if let Some(by) = &card.hidden_by {
        to.warning(&format!("{text}, hidden by {by}"), "unset that to use this card")?;
    } else if card.capability < LEAST_CAPABILITY {
        let (major, minor) = LEAST_CAPABILITY;
        to.bad(&text, &format!("it is too old: {major}.{minor} is needed, 8.0 for bf16; --mode cpu works"))?;
    } else {
        to.good(&text)?;
    }
    let power = reading.power_watts.map_or("power unknown".to_owned(), |watts| format!("{watts:.0} W"));
    let busy = reading.busy_percent.map_or("busy unknown".to_owned(), |busy| format!("{busy} % busy"));
    to.text(&format!("GPU {}: bus {}, {power}, {busy}", card.index, card.bus_id));
    for holder in &reading.holders {
        let name = holder.name.as_deref().unwrap_or("a process");
        to.note(&format!("GPU {}: {} held by {name} (process {})", card.index, show(holder.bytes), holder.pid))?;
    }
    Ok(())
}
