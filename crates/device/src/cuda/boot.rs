//! From nothing to a started driver and its list of cards.

use std::ffi::{CStr, c_char};

use super::api::{ATTRIBUTE_CAPABILITY_MAJOR, ATTRIBUTE_CAPABILITY_MINOR, BootApi, Code, DriverApi, NO_DEVICE, Uuid};
use super::cublas::Blas;
use super::nvml::NvmlReader;
use super::nvrtc::Compiler;
use super::status;
use crate::card::Card;
use crate::library::{self, FoundLibrary, LibraryError, Search, Survey, Wanted, nvidia_present};

/// The oldest driver: memory pools got their cap in it.
const OLDEST: i32 = 12020;

/// A driver that was started.
pub(crate) struct Booted {
    pub(crate) api: DriverApi,
    pub(crate) found: FoundLibrary,
    /// As the driver gives it: 13000 is CUDA 13.0.
    pub(crate) version: i32,
    /// Devices the driver shows to this process, in its own order.
    pub(crate) visible: Vec<Visible>,
}

/// A device as the CUDA driver shows it.
#[derive(Clone, Debug)]
pub(crate) struct Visible {
    /// The driver's handle, which is also its ordinal.
    pub(crate) device: i32,
    pub(crate) card: Card,
}

/// Finds and starts the driver; `None` when there is no NVIDIA device.
///
/// A driver that works, or fails, where no device shows itself is still taken at its word: hardware can be reached
/// in ways we do not know, and then falling back to the CPU in silence would be worse than an error.
pub(crate) fn boot(search: &Search) -> Result<Option<Booted>, LibraryError> {
    let present = nvidia_present(&search.hardware_root);
    let opened = search.open(&Wanted {
        names: vec!["libcuda.so.1".to_string()],
        probe: "cuInit",
        install: "install the NVIDIA driver (535 or later)",
    });
    let opened = match opened {
        Err(LibraryError::NotFound { .. }) if !present => return Ok(None),
        opened => opened?,
    };
    let first = BootApi::load(&opened)?;
    // SAFETY: takes no pointer, and may be called again and again.
    let started = unsafe { (first.cuInit)(0) };
    if started == NO_DEVICE && !present {
        return Ok(None);
    }
    let mut version = 0;
    // SAFETY: one int is written.
    let answered = unsafe { (first.cuDriverGetVersion)(&raw mut version) };
    if answered == 0 && version < OLDEST {
        return Err(too_old(&opened.found, version));
    }
    let api = DriverApi::load(&opened)?;
    let found = FoundLibrary { version: Some(format!("CUDA {}", spell(version))), ..opened.found };
    let visible = match start_failure(&api, search, [started, answered]) {
        Some(what) => return Err(library::broken(&found, what)),
        None if started == NO_DEVICE => Vec::new(),
        None => visible(&api).map_err(|what| library::broken(&found, what))?,
    };
    Ok(Some(Booted { api, found, version, visible }))
}

/// Each library, found or not: for a bug report.
pub(crate) fn survey(search: &Search) -> Survey {
    let booted = boot(search);
    let major = booted.as_ref().ok().and_then(Option::as_ref).map(|booted| booted.version.unsigned_abs() / 1000);
    Survey {
        driver: booted.map(|booted| booted.map(|booted| booted.found)),
        nvml: NvmlReader::open(search).map(|meter| meter.found),
        nvrtc: Compiler::open_in(search, major).map(|compiler| compiler.found().clone()),
        cublaslt: Blas::open_in(search, major).map(|blas| blas.found),
    }
}

/// `13000` as `13.0`.
pub(crate) fn spell(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Cards in the order of `nvidia-smi`, each with the driver's handle for it, if this process may use it.
///
/// The management library knows every card and its place; CUDA knows which of them it shows. They are matched by
/// identity, since CUDA counts from its fastest card and from what `CUDA_VISIBLE_DEVICES` leaves.
pub(crate) fn seat(listed: Option<Vec<Card>>, visible: &[Visible], hidden_by: &str) -> Vec<(Card, Option<i32>)> {
    let Some(listed) = listed else {
        let mut visible = visible.to_vec();
        visible.sort_by(|a, b| a.card.bus_id.cmp(&b.card.bus_id));
        let numbered = visible.into_iter().enumerate();
        return numbered.map(|(index, seen)| (Card { index, ..seen.card }, Some(seen.device))).collect();
    };
    let seated = listed.into_iter().map(|card| match visible.iter().find(|seen| seen.card.uuid == card.uuid) {
        Some(seen) => (card, Some(seen.device)),
        None => (Card { hidden_by: card.hidden_by.or_else(|| Some(hidden_by.to_string())), ..card }, None),
    });
    seated.collect()
}

/// What keeps the process from a card that exists.
pub(crate) fn hider(search: &Search) -> String {
    match &search.cuda_visible_devices {
        Some(value) => format!("CUDA_VISIBLE_DEVICES={value}"),
        None => "the CUDA driver (a container's device list, or MIG mode)".to_string(),
    }
}

fn too_old(found: &FoundLibrary, version: i32) -> LibraryError {
    LibraryError::TooOld {
        library: found.name.clone(),
        path: found.path.clone(),
        found: format!("a driver of CUDA {}", spell(version)),
        needed: format!("CUDA {} (driver 535) or later", spell(OLDEST)),
    }
}

/// Why the driver did not start, given what its first two functions answered. Cards that exist and are hidden
/// from this process are no failure: they are listed as hidden.
fn start_failure(api: &DriverApi, search: &Search, answers: [Code; 2]) -> Option<String> {
    match answers {
        [0, 0] => None,
        [NO_DEVICE, 0] if search.cuda_visible_devices.is_some() => None,
        [NO_DEVICE, _] => {
            Some("it says that there is no GPU, but NVIDIA hardware is present: try nvidia-smi".to_string())
        }
        [0, code] => Some(format!("cuDriverGetVersion answered {}", status::describe(api, code))),
        [code, _] => Some(format!("cuInit answered {}; {}", status::describe(api, code), status::init_hint(code))),
    }
}

fn visible(api: &DriverApi) -> Result<Vec<Visible>, String> {
    let named = |code, function: &str| match code {
        0 => Ok(()),
        code => Err(format!("{function} answered {}", status::describe(api, code))),
    };
    let mut count = 0;
    // SAFETY: one int is written.
    named(unsafe { (api.cuDeviceGetCount)(&raw mut count) }, "cuDeviceGetCount")?;
    (0..count)
        .map(|ordinal| {
            let mut device = 0;
            // SAFETY: one int is written.
            named(unsafe { (api.cuDeviceGet)(&raw mut device, ordinal) }, "cuDeviceGet")?;
            let card = card(api, device)
                .map_err(|(code, function)| format!("{function} answered {}", status::describe(api, code)))?;
            Ok(Visible { device, card })
        })
        .collect()
}

/// What CUDA says of one device. Its place among the others is not known here.
fn card(api: &DriverApi, device: i32) -> Result<Card, (Code, &'static str)> {
    let check = |code, function| if code == 0 { Ok(()) } else { Err((code, function)) };
    let mut name = [0; 256];
    // SAFETY: at most 256 characters are written, the last of them NUL.
    check(unsafe { (api.cuDeviceGetName)(name.as_mut_ptr(), 256, device) }, "cuDeviceGetName")?;
    let mut bus_id = [0; 64];
    // SAFETY: at most 64 characters are written, the last of them NUL.
    check(unsafe { (api.cuDeviceGetPCIBusId)(bus_id.as_mut_ptr(), 64, device) }, "cuDeviceGetPCIBusId")?;
    let mut uuid: Uuid = [0; 16];
    // SAFETY: 16 bytes are written.
    check(unsafe { (api.cuDeviceGetUuid_v2)(&raw mut uuid, device) }, "cuDeviceGetUuid")?;
    let mut total = 0;
    // SAFETY: one size is written.
    check(unsafe { (api.cuDeviceTotalMem_v2)(&raw mut total, device) }, "cuDeviceTotalMem")?;
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: one int is written.
        let code = unsafe { (api.cuDeviceGetAttribute)(&raw mut value, attribute, device) };
        check(code, "cuDeviceGetAttribute").map(|()| value.unsigned_abs())
    };
    Ok(Card {
        index: 0,
        name: text(&name),
        uuid: spell_uuid(&uuid),
        bus_id: text(&bus_id),
        total_bytes: total as u64,
        capability: (attribute(ATTRIBUTE_CAPABILITY_MAJOR)?, attribute(ATTRIBUTE_CAPABILITY_MINOR)?),
        hidden_by: None,
    })
}

fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|&c| c.cast_unsigned()).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

/// As `nvidia-smi` writes it: `GPU-8f2d4c9e-….`
fn spell_uuid(uuid: &Uuid) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(uuid: &str, bus_id: &str) -> Card {
        Card {
            index: 0,
            name: "card".into(),
            uuid: uuid.into(),
            bus_id: bus_id.into(),
            total_bytes: 1 << 34,
            capability: (9, 0),
            hidden_by: None,
        }
    }

    #[test]
    fn cards_are_matched_by_identity_and_the_rest_is_hidden() {
        let listed = ["GPU-a", "GPU-b", "GPU-c"].iter().enumerate();
        let listed = listed.map(|(index, uuid)| Card { index, ..card(uuid, "x") }).collect();
        let visible = [("GPU-c", 0), ("GPU-a", 1)].map(|(uuid, device)| Visible { device, card: card(uuid, "x") });
        let seats = seat(Some(listed), &visible, "CUDA_VISIBLE_DEVICES=2,0");
        assert_eq!(seats.iter().map(|(_, device)| *device).collect::<Vec<_>>(), [Some(1), None, Some(0)]);
        let hidden: Vec<Option<&str>> = seats.iter().map(|(card, _)| card.hidden_by.as_deref()).collect();
        assert_eq!(hidden, [None, Some("CUDA_VISIBLE_DEVICES=2,0"), None]);
    }

    #[test]
    fn without_the_management_library_cards_are_counted_along_the_bus() {
        let visible = [("GPU-a", "0000:81:00.0"), ("GPU-b", "0000:17:00.0")];
        let mut device = -1;
        let visible = visible.map(|(uuid, bus)| {
            device += 1;
            Visible { device, card: card(uuid, bus) }
        });
        let seats = seat(None, &visible, "nothing");
        let order: Vec<_> = seats.iter().map(|(card, device)| (card.index, card.uuid.as_str(), *device)).collect();
        assert_eq!(order, [(0, "GPU-b", Some(1)), (1, "GPU-a", Some(0))]);
    }

    #[test]
    fn versions_and_identities_are_spelled_as_nvidia_does() {
        assert_eq!([spell(13000), spell(12020), spell(11040)], ["13.0", "12.2", "11.4"]);
        let uuid: Uuid = std::array::from_fn(|i| i as u8 * 17);
        assert_eq!(spell_uuid(&uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
