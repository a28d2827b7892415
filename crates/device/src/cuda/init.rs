//! Initialisation of the CUDA driver, and the list of its cards.

use std::ffi::{CStr, c_char};

use super::api::{ATTRIBUTE_CAPABILITY_MAJOR, ATTRIBUTE_CAPABILITY_MINOR, Code, DriverApi, InitApi, NO_DEVICE, Uuid};
use super::cublas::CublasLt;
use super::nvml::NvmlReader;
use super::nvrtc::Compiler;
use super::status;
use crate::card::Card;
use crate::library::{self, FoundLibrary, LibraryError, Search, Survey, Wanted, nvidia_present};

/// The oldest driver with capped memory pools.
const OLDEST: i32 = 12020;

/// A driver after `cuInit`.
pub(crate) struct InitializedDriver {
    pub(crate) api: DriverApi,
    pub(crate) found: FoundLibrary,
    /// In the driver's encoding: 13000 is CUDA 13.0.
    pub(crate) version: i32,
    /// Devices that are visible to this process, in CUDA's order.
    pub(crate) visible: Vec<Visible>,
}

/// A device that is visible to this process.
#[derive(Clone, Debug)]
pub(crate) struct Visible {
    /// The driver's handle, which is also CUDA's ordinal.
    pub(crate) device: i32,
    pub(crate) card: Card,
}

/// Finds and initialises the driver; `None` if there is no NVIDIA device.
///
/// A driver that works, or fails, on a machine without detected hardware is trusted: the hardware may be attached in a way
/// we do not know, and falling back to the CPU silently would be worse than an error.
pub(crate) fn init(search: &Search) -> Result<Option<InitializedDriver>, LibraryError> {
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
    let first = InitApi::load(&opened)?;
    // SAFETY: takes no pointer, and may be called repeatedly.
    let init_result = unsafe { (first.cuInit)(0) };
    if init_result == NO_DEVICE && !present {
        return Ok(None);
    }
    let mut version = 0;
    // SAFETY: one int is written.
    let version_result = unsafe { (first.cuDriverGetVersion)(&raw mut version) };
    if version_result == 0 && version < OLDEST {
        return Err(too_old(&opened.found, version));
    }
    let api = DriverApi::load(&opened)?;
    let found = FoundLibrary { version: Some(format!("CUDA {}", spell(version))), ..opened.found };
    let visible = match start_failure(&api, search, [init_result, version_result]) {
        Some(what) => return Err(library::broken(&found, what)),
        None if init_result == NO_DEVICE => Vec::new(),
        None => visible(&api).map_err(|what| library::broken(&found, what))?,
    };
    Ok(Some(InitializedDriver { api, found, version, visible }))
}

/// The state of each library, for a bug report.
pub(crate) fn survey(search: &Search) -> Survey {
    let initialized = init(search);
    let major =
        initialized.as_ref().ok().and_then(Option::as_ref).map(|initialized| initialized.version.unsigned_abs() / 1000);
    Survey {
        driver: initialized.map(|initialized| initialized.map(|initialized| initialized.found)),
        nvml: NvmlReader::open(search).map(|nvml| nvml.found),
        nvrtc: Compiler::open_in(search, major).map(|compiler| compiler.found().clone()),
        cublaslt: CublasLt::open_in(search, major).map(|blas| blas.found),
    }
}

/// Formats `13000` as `13.0`.
pub(crate) fn spell(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Cards in the order of `nvidia-smi`, each with CUDA's handle if this process may use it.
///
/// NVML lists every card in order; CUDA lists those that are visible. They are matched by UUID, because CUDA numbers its
/// fastest card first, and only the cards that `CUDA_VISIBLE_DEVICES` allows.
pub(crate) fn match_devices(
    listed: Option<Vec<Card>>,
    visible: &[Visible],
    hidden_by: &str,
) -> Vec<(Card, Option<i32>)> {
    let Some(listed) = listed else {
        let mut visible = visible.to_vec();
        visible.sort_by(|a, b| a.card.bus_id.cmp(&b.card.bus_id));
        let numbered = visible.into_iter().enumerate();
        return numbered.map(|(index, seen)| (Card { index, ..seen.card }, Some(seen.device))).collect();
    };
    let matched = listed.into_iter().map(|card| match visible.iter().find(|seen| seen.card.uuid == card.uuid) {
        Some(seen) => (card, Some(seen.device)),
        None => (Card { hidden_by: card.hidden_by.or_else(|| Some(hidden_by.to_string())), ..card }, None),
    });
    matched.collect()
}

/// What hides a card from this process.
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

/// Why the driver did not start, from the results of its first two functions. Cards that are hidden from this process are
/// not a failure: they are listed as hidden.
fn start_failure(api: &DriverApi, search: &Search, results: [Code; 2]) -> Option<String> {
    match results {
        [0, 0] => None,
        [NO_DEVICE, 0] if search.cuda_visible_devices.is_some() => None,
        [NO_DEVICE, _] => Some("it reports no GPU, but NVIDIA hardware is present: try nvidia-smi".to_string()),
        [0, code] => Some(format!("cuDriverGetVersion returned {}", status::describe(api, code))),
        [code, _] => Some(format!("cuInit returned {}; {}", status::describe(api, code), status::init_hint(code))),
    }
}

fn visible(api: &DriverApi) -> Result<Vec<Visible>, String> {
    let named = |code, function: &str| match code {
        0 => Ok(()),
        code => Err(format!("{function} returned {}", status::describe(api, code))),
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
                .map_err(|(code, function)| format!("{function} returned {}", status::describe(api, code)))?;
            Ok(Visible { device, card })
        })
        .collect()
}

/// The properties of one device. Its index is not known here.
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

/// In the format of `nvidia-smi`: `GPU-8f2d4c9e-….`
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
    fn cards_are_matched_by_uuid_and_the_rest_is_hidden() {
        let listed = ["GPU-a", "GPU-b", "GPU-c"].iter().enumerate();
        let listed = listed.map(|(index, uuid)| Card { index, ..card(uuid, "x") }).collect();
        let visible = [("GPU-c", 0), ("GPU-a", 1)].map(|(uuid, device)| Visible { device, card: card(uuid, "x") });
        let matched = match_devices(Some(listed), &visible, "CUDA_VISIBLE_DEVICES=2,0");
        assert_eq!(matched.iter().map(|(_, device)| *device).collect::<Vec<_>>(), [Some(1), None, Some(0)]);
        let hidden: Vec<Option<&str>> = matched.iter().map(|(card, _)| card.hidden_by.as_deref()).collect();
        assert_eq!(hidden, [None, Some("CUDA_VISIBLE_DEVICES=2,0"), None]);
    }

    #[test]
    fn without_nvml_cards_are_numbered_in_bus_order() {
        let visible = [("GPU-a", "0000:81:00.0"), ("GPU-b", "0000:17:00.0")];
        let mut device = -1;
        let visible = visible.map(|(uuid, bus)| {
            device += 1;
            Visible { device, card: card(uuid, bus) }
        });
        let matched = match_devices(None, &visible, "nothing");
        let order: Vec<_> = matched.iter().map(|(card, device)| (card.index, card.uuid.as_str(), *device)).collect();
        assert_eq!(order, [(0, "GPU-b", Some(1)), (1, "GPU-a", Some(0))]);
    }

    #[test]
    fn versions_and_uuids_are_formatted_as_nvidia_does() {
        assert_eq!([spell(13000), spell(12020), spell(11040)], ["13.0", "12.2", "11.4"]);
        let uuid: Uuid = std::array::from_fn(|i| i as u8 * 17);
        assert_eq!(spell_uuid(&uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
