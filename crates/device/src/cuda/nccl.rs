//! NCCL: opening it, and its calls with a deadline.
//!
//! Communicators are non-blocking (`blocking = 0`): a call returns at once, with `ncclInProgress` while a thread of NCCL works
//! on it. Until that thread is done the communicator must not be used, and what it queues is not yet on the stream. So every
//! call is followed by [`Nccl::settle`], which polls. It ends when the work is queued, not when it has run. Two calls do block:
//! `ncclCommAbort` tells the card and all threads of NCCL to stop and waits for the threads, and `ncclCommDestroy` has nothing
//! to wait for after `ncclCommFinalize`.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::api::{Code, Handle, NcclApi, NcclConfig, NcclUniqueId};
use crate::driver::COMMUNICATOR_ID_BYTES;
use crate::error::DeviceError;
use crate::library::{FoundLibrary, LibraryError, Search, Wanted};
use crate::machine::lock;

/// `ncclUnhandledCudaError`.
pub(super) const CUDA_ERROR: Code = 1;
/// `ncclInProgress`.
pub(super) const IN_PROGRESS: Code = 7;
/// `ncclUint8`.
pub(super) const UINT8: i32 = 1;
/// `ncclFloat32`.
pub(super) const FLOAT32: i32 = 7;
/// `ncclSum`.
pub(super) const SUM: i32 = 0;

/// The oldest NCCL whose `ncclConfig_t` is at least as long as ours.
const OLDEST: i32 = 21800;

/// The pause between two polls grows from the first to the second, as in [`super::bounded_waits`].
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_micros(320);

/// What the process that starts ranks must set for each of them.
///
/// NVLS (NVLink SHARP) sums in the switch, in an order that differs from run to run. Without support for mixing, captured and
/// other collectives need no synchronisation of their own; ours are never captured. A ring sums in a fixed order.
pub(crate) const REQUIRED_ENVIRONMENT: &[(&str, &str)] =
    &[(NVLS.0, NVLS.1), ("NCCL_GRAPH_MIXING_SUPPORT", "0"), (ALGORITHM, RING)];
const NVLS: (&str, &str) = ("NCCL_NVLS_ENABLE", "0");
const ALGORITHM: &str = "NCCL_ALGO";
const RING: &str = "Ring";

/// NCCL, opened.
pub(crate) struct Nccl {
    pub(crate) api: NcclApi,
    pub(crate) found: FoundLibrary,
}

/// Why a call did not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsettled {
    Failed(Code),
    TimedOut(Duration),
    Aborted,
}

/// NCCL, opened when it is first needed, and the environment that it reads.
pub(crate) struct LazyNccl {
    search: Search,
    open: Mutex<Option<Arc<Nccl>>>,
    variable: fn(&str) -> Option<String>,
}

/// Where NCCL is, and its version.
pub(crate) fn find_nccl(search: &Search) -> Result<FoundLibrary, LibraryError> {
    Nccl::open_in(search).map(|nccl| nccl.found)
}

impl LazyNccl {
    pub(crate) fn new(search: &Search) -> LazyNccl {
        let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        LazyNccl { search: search.clone(), open: Mutex::new(None), variable }
    }

    #[cfg(test)]
    pub(crate) fn opened(nccl: Nccl, variable: fn(&str) -> Option<String>) -> LazyNccl {
        let search = Search::only_under(std::path::Path::new("no such folder"));
        LazyNccl { search, open: Mutex::new(Some(Arc::new(nccl))), variable }
    }

    pub(crate) fn get(&self) -> Result<Arc<Nccl>, LibraryError> {
        let mut place = lock(&self.open);
        if let Some(nccl) = &*place {
            return Ok(Arc::clone(nccl));
        }
        let nccl = Arc::new(Nccl::open_in(&self.search)?);
        *place = Some(Arc::clone(&nccl));
        Ok(nccl)
    }

    /// The library, if something has needed it.
    pub(crate) fn if_open(&self) -> Option<Arc<Nccl>> {
        lock(&self.open).clone()
    }

    /// Refuses an environment in which sums differ from run to run. A variable cannot be set here: other threads may be
    /// reading the environment.
    pub(super) fn check_environment(&self) -> Result<(), DeviceError> {
        let (variable, expected) = NVLS;
        let found = (self.variable)(variable);
        if found.as_deref().map(str::trim) == Some(expected) {
            return Ok(());
        }
        Err(DeviceError::CommunicatorEnvironment { variable, expected, found })
    }

    /// The algorithm of collectives, for reports.
    pub(super) fn algorithm(&self) -> String {
        match (self.variable)(ALGORITHM) {
            Some(value) if value.eq_ignore_ascii_case(RING) => RING.to_owned(),
            Some(value) if !value.is_empty() => format!("{ALGORITHM}={value}"),
            _ => "an algorithm of its own choice".to_owned(),
        }
    }
}

impl Nccl {
    /// Finds and opens NCCL.
    fn open_in(search: &Search) -> Result<Nccl, LibraryError> {
        let opened = search.open(&wanted())?;
        let api = NcclApi::load(&opened)?;
        let mut version = 0;
        // SAFETY: one int is written.
        let code = unsafe { (api.ncclGetVersion)(&raw mut version) };
        if code != 0 {
            return Err(opened.broken(format!("ncclGetVersion returned {code}")));
        }
        let found = FoundLibrary { version: Some(spell(version)), ..opened.found };
        check_version(&found, version)?;
        Ok(Nccl { api, found })
    }

    /// The library and its version: `NCCL 2.28.9`.
    pub(super) fn name(&self) -> String {
        format!("NCCL {}", self.found.version.as_deref().unwrap_or("of unknown version"))
    }

    /// The library's text and number for a code.
    pub(super) fn describe(&self, code: Code) -> String {
        // SAFETY: takes a number.
        format!("{} ({code})", text(unsafe { (self.api.ncclGetErrorString)(code) }))
    }

    /// The library's last message in this process; empty if there is none.
    pub(super) fn last_error(&self, communicator: Handle) -> String {
        // SAFETY: the communicator is alive or null; no version reads it.
        text(unsafe { (self.api.ncclGetLastError)(communicator) })
    }

    pub(super) fn unique_id(&self) -> Result<[u8; COMMUNICATOR_ID_BYTES], Code> {
        let mut id = NcclUniqueId([0; COMMUNICATOR_ID_BYTES]);
        // SAFETY: one id is written.
        match unsafe { (self.api.ncclGetUniqueId)(&raw mut id) } {
            0 => Ok(id.0),
            code => Err(code),
        }
    }

    /// Starts to create a communicator for the card whose context is current: its handle (0 if there is none) and the result.
    pub(super) fn init(&self, id: [u8; COMMUNICATOR_ID_BYTES], rank: u32, size: u32) -> (Handle, Code) {
        let (mut handle, mut config) = (0, NcclConfig::non_blocking());
        let (size, rank, id) = (size.cast_signed(), rank.cast_signed(), NcclUniqueId(id));
        // SAFETY: one handle is written; the config is read during the call.
        let code = unsafe { (self.api.ncclCommInitRankConfig)(&raw mut handle, size, id, rank, &raw mut config) };
        (handle, code)
    }

    /// The state of a live communicator: 0, [`IN_PROGRESS`] or an error.
    pub(super) fn state(&self, communicator: Handle) -> Code {
        let mut state = 0;
        // SAFETY: the communicator is alive, and no other thread uses it; one code is written.
        match unsafe { (self.api.ncclCommGetAsyncError)(communicator, &raw mut state) } {
            0 => state,
            code => code,
        }
    }

    /// Waits until the call that returned `code` has come to its end, for `deadline` at most.
    pub(super) fn settle(
        &self,
        communicator: Handle,
        code: Code,
        deadline: Duration,
        is_aborted: &AtomicBool,
    ) -> Result<(), Unsettled> {
        let (began, mut pause, mut code) = (Instant::now(), FIRST_PAUSE, code);
        loop {
            match code {
                0 => return Ok(()),
                IN_PROGRESS if communicator != 0 => {}
                code => return Err(Unsettled::Failed(code)),
            }
            if is_aborted.load(Ordering::Relaxed) {
                return Err(Unsettled::Aborted);
            }
            if began.elapsed() > deadline {
                return Err(Unsettled::TimedOut(deadline));
            }
            thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
            code = self.state(communicator);
        }
    }

    /// Destroys a communicator in order; `false` if it is still alive, because its work does not end by the deadline.
    pub(super) fn destroy(&self, communicator: Handle, deadline: Duration, is_aborted: &AtomicBool) -> bool {
        // SAFETY: the communicator is alive and idle.
        let code = unsafe { (self.api.ncclCommFinalize)(communicator) };
        if self.settle(communicator, code, deadline, is_aborted).is_err() {
            return false;
        }
        // SAFETY: finalised above, and destroyed once.
        unsafe { (self.api.ncclCommDestroy)(communicator) };
        true
    }

    /// Stops whatever a communicator does, on the card and on the host, and frees it.
    pub(super) fn abort(&self, communicator: Handle) {
        // SAFETY: the communicator is alive, and not used after this.
        unsafe { (self.api.ncclCommAbort)(communicator) };
    }
}

fn wanted() -> Wanted {
    Wanted {
        names: vec!["libnccl.so.2".to_owned()],
        probe: "ncclGetVersion",
        install: "pip install nvidia-nccl-cu13 in an active Python environment (nvidia-nccl-cu12 for a driver of CUDA 12), or install the distribution's libnccl2",
    }
}

fn check_version(found: &FoundLibrary, version: i32) -> Result<(), LibraryError> {
    if version >= OLDEST {
        return Ok(());
    }
    let (library, path) = (found.name.clone(), found.path.clone());
    Err(LibraryError::TooOld { library, path, found: spell(version), needed: spell(OLDEST) })
}

/// Formats `22809` as `2.28.9`. Up to 2.8 the code had one digit less.
fn spell(version: i32) -> String {
    let thousands = if version < 10_000 { 1000 } else { 10_000 };
    format!("{}.{}.{}", version / thousands, version % thousands / 100, version % 100)
}

fn text(text: *const c_char) -> String {
    // SAFETY: the library's texts are static and end in NUL; null is excluded first.
    if text.is_null() { String::new() } else { unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn versions_are_formatted_as_nvidia_does() {
        assert_eq!([22809, 21805, 23203, 2804].map(spell), ["2.28.9", "2.18.5", "2.32.3", "2.8.4"]);
    }

    #[test]
    fn a_version_before_2_18_is_refused() {
        let found = FoundLibrary { name: "libnccl.so.2".into(), path: PathBuf::from("/x/libnccl.so.2"), version: None };
        check_version(&found, 21800).unwrap();
        let text = check_version(&found, 21701).unwrap_err().to_string();
        assert!(text.contains("2.17.1 found, 2.18.0 needed") && text.contains("/x/libnccl.so.2"), "{text}");
    }

    #[test]
    fn a_missing_library_is_named_with_what_to_install_and_every_searched_place() {
        let environment = PathBuf::from("/no such environment");
        let search = Search { virtual_env: Some(environment), ..Search::only_under(&PathBuf::from("/no such folder")) };
        let text = find_nccl(&search).unwrap_err().to_string();
        let parts = ["libnccl.so.2", "pip install nvidia-nccl-cu13", "libnccl2", "train on one GPU", "/usr/lib64"];
        for part in parts {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("--mode cpu"), "{text}");
    }

    #[test]
    fn a_damaged_library_in_a_python_environment_is_found_and_named() {
        let root = std::env::temp_dir().join(format!("tandem-nccl-{}", std::process::id()));
        let folder = root.join("venv/lib/python3.12/site-packages/nvidia/nccl/lib");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("libnccl.so.2"), "not an ELF file at all").unwrap();
        let search = Search { virtual_env: Some(root.join("venv")), ..Search::only_under(&root) };
        let error = find_nccl(&search).unwrap_err();
        std::fs::remove_dir_all(&root).unwrap();
        let LibraryError::CannotOpen { path, .. } = &error else { panic!("{error}") };
        assert!(path.ends_with("nvidia/nccl/lib/libnccl.so.2"), "{error}");
    }
}
