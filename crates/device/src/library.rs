//! Finds the NVIDIA libraries and opens each by its full path.
//!
//! The input is a [`Search`]: everything in the environment that decides where to look, read once, so that a test can lay
//! out a machine in a temporary folder. The output is an open library with a [`FoundLibrary`] that says where it is, or a
//! [`LibraryError`] that says where it was searched for. Nothing here panics: on most machines a library is missing.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use libloading::os::unix::Library;

/// A library cannot be used. Each variant asks for a different reaction.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// It was not found: install it.
    #[error("{library} was not found: {install}, or {}; searched {}", otherwise(library), searched.join(", "))]
    NotFound {
        /// Its file name, or names.
        library: String,
        /// How to install it.
        install: &'static str,
        /// Every place that was searched, in order.
        searched: Vec<String>,
    },

    /// A file of that name exists, but the loader refuses it: repair or remove it.
    #[error("{library} cannot be opened ({why}): reinstall it, or {}; found at {}", otherwise(library), path.display())]
    CannotOpen {
        /// Its file name.
        library: String,
        /// The file.
        path: PathBuf,
        /// The loader's message.
        why: String,
    },

    /// It works, but is too old: update it.
    #[error("{library} is too old: {found} found, {needed} needed: update it, or {}; found at {}", otherwise(library), path.display())]
    TooOld {
        /// Its file name.
        library: String,
        /// The file.
        path: PathBuf,
        /// Its version.
        found: String,
        /// The oldest usable version.
        needed: String,
    },

    /// It lacks a function that every usable version has: it is damaged, or something else under that name.
    #[error("{library} lacks the function {symbol}: reinstall it, or {}; found at {}", otherwise(library), path.display())]
    MissingSymbol {
        /// Its file name.
        library: String,
        /// The file.
        path: PathBuf,
        /// The missing function.
        symbol: String,
    },

    /// It opens but does not work: the installation is broken, not the file.
    #[error("{library} does not work: {what}: repair the installation, or {}; found at {}", otherwise(library), path.display())]
    Broken {
        /// Its file name.
        library: String,
        /// The file.
        path: PathBuf,
        /// Its error.
        what: String,
    },
}

/// What works without a library.
fn otherwise(library: &str) -> &'static str {
    if library.starts_with("libnccl") { "train on one GPU" } else { "run with --mode cpu" }
}

/// A library that was found and opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundLibrary {
    /// Its file name, e.g. `libcuda.so.1`.
    pub name: String,
    /// The file it was opened from.
    pub path: PathBuf,
    /// Its version, if it was queried.
    pub version: Option<String>,
}

/// Where libraries and NVIDIA hardware are searched for.
#[derive(Clone, Debug)]
pub struct Search {
    /// Folders of `LD_LIBRARY_PATH`, in order.
    pub ld_library_path: Vec<PathBuf>,
    /// Whether the system's loader is asked by file name after them. It has its own cache and folders.
    pub ask_loader: bool,
    /// The active Python environment, from `VIRTUAL_ENV`.
    pub virtual_env: Option<PathBuf>,
    /// The active Conda environment, from `CONDA_PREFIX`.
    pub conda_prefix: Option<PathBuf>,
    /// Folders of `PATH`: the first `python3` among them names one more environment.
    pub path: Vec<PathBuf>,
    /// The root of the standard folders: `/`.
    pub root: PathBuf,
    /// The root of `dev`, `proc` and `sys` for detecting NVIDIA hardware: `/`. For tests, `TANDEM_HARDWARE_ROOT` replaces
    /// it, so that a machine with or without a GPU can be laid out in a folder.
    pub hardware_root: PathBuf,
    /// The value of `CUDA_VISIBLE_DEVICES`. The driver applies it; we only name it in messages.
    pub cuda_visible_devices: Option<String>,
}

impl Search {
    /// The search for this process's environment.
    pub fn from_env() -> Search {
        Search {
            ld_library_path: folders_in(std::env::var_os("LD_LIBRARY_PATH")),
            ask_loader: true,
            virtual_env: folder_in("VIRTUAL_ENV"),
            conda_prefix: folder_in("CONDA_PREFIX"),
            path: folders_in(std::env::var_os("PATH")),
            root: PathBuf::from("/"),
            hardware_root: folder_in("TANDEM_HARDWARE_ROOT").unwrap_or_else(|| PathBuf::from("/")),
            cuda_visible_devices: std::env::var("CUDA_VISIBLE_DEVICES").ok(),
        }
    }

    /// Ignores the environment: only the standard folders and the hardware under `root`.
    pub fn only_under(root: &Path) -> Search {
        Search {
            ld_library_path: Vec::new(),
            ask_loader: false,
            virtual_env: None,
            conda_prefix: None,
            path: Vec::new(),
            root: root.to_path_buf(),
            hardware_root: root.to_path_buf(),
            cuda_visible_devices: None,
        }
    }

    /// Opens the first library that can be opened: names in the given order, and for each name all places.
    ///
    /// A file that the loader refuses does not end the search (the system's loader skips it too); if nothing else is
    /// found, the error reports it.
    pub(crate) fn open(&self, wanted: &Wanted) -> Result<OpenLibrary, LibraryError> {
        let places = self.places();
        let mut refused = None;
        for name in &wanted.names {
            for place in &places {
                match place.open(name, wanted.probe) {
                    Ok(Some(opened)) => return Ok(opened),
                    Ok(None) => {}
                    Err(error) => refused = refused.or(Some(error)),
                }
            }
        }
        Err(refused.unwrap_or_else(|| LibraryError::NotFound {
            library: wanted.names.join(" or "),
            install: wanted.install,
            searched: self.searched_paths(),
        }))
    }

    /// Every place that is searched, for messages.
    pub fn searched_paths(&self) -> Vec<String> {
        self.places().iter().map(Place::describe).collect()
    }

    /// Every place, in search order, without folders of link-time stubs.
    fn places(&self) -> Vec<Place> {
        let mut folders: Vec<PathBuf> = Vec::new();
        let add = |folders: &mut Vec<PathBuf>, more: Vec<PathBuf>| {
            for folder in more {
                if !is_stubs(&folder) && !folders.contains(&folder) {
                    folders.push(folder);
                }
            }
        };
        add(&mut folders, self.ld_library_path.clone());
        let before_loader = folders.len();
        add(&mut folders, self.standard_folders());
        add(&mut folders, self.wheel_folders());

        let mut places: Vec<Place> = folders.into_iter().map(Place::Folder).collect();
        if self.ask_loader {
            places.insert(before_loader, Place::Loader);
        }
        places
    }

    fn standard_folders(&self) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> = [
            "usr/lib/x86_64-linux-gnu",
            "usr/lib/aarch64-linux-gnu",
            "usr/lib64",
            "usr/lib",
            "lib64",
            "usr/local/nvidia/lib64",
            "usr/local/nvidia/lib",
            "usr/lib/wsl/lib",
            "run/opengl-driver/lib",
        ]
        .iter()
        .map(|folder| self.root.join(folder))
        .collect();
        let toolkits = children(&self.root.join("usr/local"), "cuda");
        for toolkit in toolkits.into_iter().chain([self.root.join("opt/cuda"), self.root.join("usr/lib/cuda")]) {
            folders.push(toolkit.join("lib64"));
            folders.push(toolkit.join("targets/x86_64-linux/lib"));
            folders.push(toolkit.join("targets/sbsa-linux/lib"));
        }
        folders
    }

    /// Where NVIDIA's wheels install libraries in the active Python environments: `site-packages/nvidia/*/lib`.
    fn wheel_folders(&self) -> Vec<PathBuf> {
        let python = self.path.iter().find(|folder| folder.join("python3").exists());
        let prefixes = self.virtual_env.iter().chain(&self.conda_prefix).map(PathBuf::as_path);
        let mut folders = Vec::new();
        for prefix in prefixes.chain(python.and_then(|folder| folder.parent())) {
            for python in children(&prefix.join("lib"), "python3") {
                for wheel in children(&python.join("site-packages/nvidia"), "") {
                    folders.push(wheel.join("lib"));
                }
            }
        }
        folders
    }
}

/// Whether there is NVIDIA hardware under `root` (`/` on a real machine): a device node, an entry in the kernel driver's
/// list, a display controller on the PCI bus, or WSL's device for the card of its host.
pub fn nvidia_present(root: &Path) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let node = names_in(&root.join("dev")).iter().any(|name| name.strip_prefix("nvidia").is_some_and(is_number));
    let listed = || !names_in(&root.join("proc/driver/nvidia/gpus")).is_empty();
    let wsl = || root.join("dev/dxg").exists() && root.join("usr/lib/wsl/lib/libcuda.so.1").exists();
    node || listed() || on_pci_bus(&root.join("sys/bus/pci/devices")) || wsl()
}

/// The libraries for a bug report: where each was found, or why not.
#[derive(Debug)]
pub struct Survey {
    /// The CUDA driver, opened and initialised; `None` if there is no NVIDIA device.
    pub driver: Result<Option<FoundLibrary>, LibraryError>,
    /// NVML, the management library: memory per process, power, utilisation.
    pub nvml: Result<FoundLibrary, LibraryError>,
    /// NVRTC, the compiler, of a version that suits the driver.
    pub nvrtc: Result<FoundLibrary, LibraryError>,
    /// cuBLASLt, for GEMMs, of a version that suits the driver.
    pub cublaslt: Result<FoundLibrary, LibraryError>,
}

/// Finds and opens all four libraries, and initialises the driver. Opens no context on any card.
pub fn survey(search: &Search) -> Survey {
    crate::cuda::survey(search)
}

/// Finds and opens NCCL, which reduces gradients between cards. Only data-parallel runs need it: nothing else opens it.
pub fn find_nccl(search: &Search) -> Result<FoundLibrary, LibraryError> {
    crate::cuda::find_nccl(search)
}

/// A library to search for.
pub(crate) struct Wanted {
    /// File names, preferred first.
    pub(crate) names: Vec<String>,
    /// A function that every version has: its address shows which file the loader took.
    pub(crate) probe: &'static str,
    /// How to install it.
    pub(crate) install: &'static str,
}

/// An open library. It is never closed: these libraries start threads and register exit handlers, whose code must stay
/// loaded.
#[derive(Debug)]
pub(crate) struct OpenLibrary {
    library: ManuallyDrop<Library>,
    pub(crate) found: FoundLibrary,
}

impl OpenLibrary {
    /// The function of this name.
    ///
    /// # Safety
    ///
    /// `F` must be the function pointer type that the library declares for `name`.
    pub(crate) unsafe fn symbol<F: Copy>(&self, name: &str) -> Result<F, LibraryError> {
        // SAFETY: the caller guarantees the type; a missing function is the `None` of a nullable pointer.
        let symbol = unsafe { self.library.get::<Option<F>>(name) };
        symbol.ok().and_then(|symbol| *symbol).ok_or_else(|| LibraryError::MissingSymbol {
            library: self.found.name.clone(),
            path: self.found.path.clone(),
            symbol: name.to_string(),
        })
    }

    /// Whether it has a function of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        // SAFETY: the address is compared with null and never called.
        unsafe { self.symbol::<unsafe extern "C" fn()>(name) }.is_ok()
    }

    /// The error that this library does not work.
    pub(crate) fn broken(&self, what: impl Into<String>) -> LibraryError {
        broken(&self.found, what)
    }
}

/// The error that `found` does not work.
pub(crate) fn broken(found: &FoundLibrary, what: impl Into<String>) -> LibraryError {
    LibraryError::Broken { library: found.name.clone(), path: found.path.clone(), what: what.into() }
}

/// A place to search.
enum Place {
    Folder(PathBuf),
    Loader,
}

impl Place {
    fn describe(&self) -> String {
        match self {
            Place::Folder(folder) => folder.display().to_string(),
            Place::Loader => "the system's loader (ldconfig)".to_string(),
        }
    }

    /// Opens the library `name` here; `None` if there is none.
    fn open(&self, name: &str, probe: &str) -> Result<Option<OpenLibrary>, LibraryError> {
        match self {
            Place::Folder(folder) => open_file(&folder.join(name), name),
            Place::Loader => ask_loader(name, probe),
        }
    }
}

/// Opens the file at `path`; `None` if there is none, or if it is a link-time stub.
pub(crate) fn open_file(path: &Path, name: &str) -> Result<Option<OpenLibrary>, LibraryError> {
    let Ok(real) = path.canonicalize() else { return Ok(None) };
    if is_stubs(path) || is_stubs(&real) {
        return Ok(None);
    }
    // SAFETY: this runs the library's initialisers; it is one of NVIDIA's, found under its own name.
    match unsafe { Library::new(path) } {
        Ok(library) => Ok(Some(opened(library, name, path.to_path_buf()))),
        Err(why) => Err(cannot_open(name, path, &why)),
    }
}

/// Opens `name` with the system's loader. Its file is found from the address of `probe`.
fn ask_loader(name: &str, probe: &str) -> Result<Option<OpenLibrary>, LibraryError> {
    // SAFETY: as in `open_file`.
    let library = match unsafe { Library::new(name) } {
        Ok(library) => library,
        Err(why) => {
            let error = cannot_open(name, Path::new(name), &why);
            let LibraryError::CannotOpen { why, .. } = &error else { return Ok(None) };
            // The loader's message for "no such file", if it is about this name and not about a dependency of it.
            let absent = why.starts_with(name) && why.contains("cannot open shared object file");
            return if absent { Ok(None) } else { Err(error) };
        }
    };
    // SAFETY: the address is looked up in the process's memory map and never called.
    let address = unsafe { library.get::<Option<unsafe extern "C" fn()>>(probe) }.ok().and_then(|symbol| *symbol);
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path = address.and_then(|function| file_mapped_at(&maps, function as usize as u64));
    let path = path.unwrap_or_else(|| PathBuf::from(name));
    Ok((!is_stubs(&path)).then(|| opened(library, name, path)))
}

fn opened(library: Library, name: &str, path: PathBuf) -> OpenLibrary {
    OpenLibrary {
        library: ManuallyDrop::new(library),
        found: FoundLibrary { name: name.to_string(), path, version: None },
    }
}

fn cannot_open(name: &str, path: &Path, why: &libloading::Error) -> LibraryError {
    // The loader's message is the source of the wrapper's error.
    let mut text = String::new();
    let source = std::error::Error::source(why);
    let _ = match source {
        Some(source) => write!(text, "{source}"),
        None => write!(text, "{why}"),
    };
    LibraryError::CannotOpen { library: name.to_string(), path: path.to_path_buf(), why: text }
}

/// The file mapped at `address`, from the text of `/proc/self/maps`.
fn file_mapped_at(maps: &str, address: u64) -> Option<PathBuf> {
    maps.lines().find_map(|line| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        let range = u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?;
        let path = line.find('/').map(|start| PathBuf::from(&line[start..]));
        range.contains(&address).then_some(path).flatten()
    })
}

fn is_stubs(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "stubs")
}

fn folders_in(value: Option<OsString>) -> Vec<PathBuf> {
    let folders = value.map(|value| std::env::split_paths(&value).collect::<Vec<_>>()).unwrap_or_default();
    folders.into_iter().filter(|folder| !folder.as_os_str().is_empty()).collect()
}

fn folder_in(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Entries of `folder` whose names start with `prefix`, the highest version number first.
fn children(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let numbers = |name: &str| -> Vec<u32> {
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
    };
    let mut names: Vec<String> = names_in(folder).into_iter().filter(|name| name.starts_with(prefix)).collect();
    names.sort_by(|a, b| numbers(b).cmp(&numbers(a)).then_with(|| a.cmp(b)));
    names.into_iter().map(|name| folder.join(name)).collect()
}

fn on_pci_bus(devices: &Path) -> bool {
    let reads = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    names_in(devices).iter().any(|device| {
        let device = devices.join(device);
        reads(device.join("vendor")).trim() == "0x10de" && reads(device.join("class")).starts_with("0x03")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is removed after the test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("tandem-library-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Folder(path)
        }

        fn with(self, file: &str, text: &str) -> Folder {
            let path = self.0.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn wanted(names: &[&str]) -> Wanted {
        let names = names.iter().map(ToString::to_string).collect();
        Wanted { names, probe: "cuInit", install: "install the NVIDIA driver" }
    }

    fn places(search: &Search) -> Vec<String> {
        search.places().iter().map(|place| place.describe().replace(search.root.to_str().unwrap(), "")).collect()
    }

    #[test]
    fn the_loader_path_comes_first_then_the_loader_then_standard_folders_then_wheels() {
        let machine = Folder::new("order")
            .with("usr/local/cuda-12.4/lib64/x", "")
            .with("usr/local/cuda-13.0/lib64/x", "")
            .with("venv/lib/python3.12/site-packages/nvidia/cu13/lib/x", "")
            .with("other/bin/python3", "")
            .with("other/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/x", "");
        let root = &machine.0;
        let search = Search {
            ld_library_path: vec![root.join("mine"), root.join("mine/stubs"), root.join("mine")],
            ask_loader: true,
            virtual_env: Some(root.join("venv")),
            path: vec![root.join("empty"), root.join("other/bin")],
            ..Search::only_under(root)
        };
        let places = places(&search);
        let at = |text: &str| places.iter().position(|place| place.ends_with(text)).unwrap_or_else(|| panic!("{text}"));
        let order = [
            "/mine",
            "the system's loader (ldconfig)",
            "/usr/lib/x86_64-linux-gnu",
            "/usr/local/nvidia/lib64",
            "/usr/local/cuda-13.0/lib64",
            "/usr/local/cuda-12.4/lib64",
            "/venv/lib/python3.12/site-packages/nvidia/cu13/lib",
            "/other/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib",
        ]
        .map(at);
        assert!(order.is_sorted(), "{order:?} in {places:?}");
        assert!(!places.iter().any(|place| place.contains("stubs")), "{places:?}");
    }

    #[test]
    fn a_missing_library_is_named_with_every_searched_place() {
        let machine = Folder::new("nowhere");
        let error = Search::only_under(&machine.0).open(&wanted(&["libcuda.so.1"])).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, LibraryError::NotFound { .. }), "{text}");
        for part in ["libcuda.so.1", "install the NVIDIA driver", "--mode cpu", "/usr/lib/x86_64-linux-gnu"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn a_file_that_is_no_library_is_skipped_and_reported_if_nothing_else_is_found() {
        let machine = Folder::new("text").with("usr/lib64/libcuda.so.1", "not an ELF file at all");
        let error = Search::only_under(&machine.0).open(&wanted(&["libcuda.so.1"])).unwrap_err();
        let LibraryError::CannotOpen { path, why, .. } = &error else { panic!("{error}") };
        assert!(path.ends_with("usr/lib64/libcuda.so.1"));
        assert!(!why.is_empty() && error.to_string().contains("--mode cpu"), "{error}");
    }

    #[test]
    fn a_stub_is_never_opened_even_through_a_symlink() {
        let machine = Folder::new("stubs").with("usr/local/cuda/lib64/stubs/libcuda.so", "a stub");
        let (stub, link) = ("usr/local/cuda/lib64/stubs/libcuda.so", "usr/local/cuda/lib64/libcuda.so.1");
        std::os::unix::fs::symlink(machine.0.join(stub), machine.0.join(link)).unwrap();
        let error = Search::only_under(&machine.0).open(&wanted(&["libcuda.so.1"])).unwrap_err();
        assert!(matches!(error, LibraryError::NotFound { .. }), "{error}");
    }

    #[test]
    fn the_file_that_the_loader_took_is_found() {
        let machine = Folder::new("loader");
        let search = Search { ask_loader: true, ..Search::only_under(&machine.0) };
        let libc = Wanted { names: vec!["libc.so.6".into()], probe: "getpid", install: "" };
        let opened = search.open(&libc).unwrap();
        assert!(opened.found.path.is_absolute() && opened.found.path.exists(), "{:?}", opened.found);
        assert!(opened.has("getpid") && !opened.has("tandem_has_no_such_function"));
    }

    #[test]
    fn memory_maps_are_searched_by_address() {
        let maps =
            "7f00-7f10 r-xp 0 08:01 5 /lib/with space.so\n7f10-7f20 rw-p 0 00:00 0 \n7f20-7f30 r--p 0 08:01 6 /b.so";
        assert_eq!(file_mapped_at(maps, 0x7f0f), Some(PathBuf::from("/lib/with space.so")));
        assert_eq!(file_mapped_at(maps, 0x7f10), None);
        assert_eq!(file_mapped_at(maps, 0x7f20), Some(PathBuf::from("/b.so")));
    }

    #[test]
    fn hardware_is_detected_in_any_of_four_places() {
        type Files = &'static [(&'static str, &'static str)];
        let cases: [(&str, Files, bool); 7] = [
            ("none", &[], false),
            ("control-node-only", &[("dev/nvidiactl", ""), ("dev/nvidia-uvm", "")], false),
            ("node", &[("dev/nvidia0", "")], true),
            ("kernel", &[("proc/driver/nvidia/gpus/0000:01:00.0/information", "")], true),
            (
                "pci",
                &[("sys/bus/pci/devices/a/vendor", "0x10de\n"), ("sys/bus/pci/devices/a/class", "0x030200\n")],
                true,
            ),
            (
                "audio",
                &[("sys/bus/pci/devices/a/vendor", "0x10de\n"), ("sys/bus/pci/devices/a/class", "0x040300\n")],
                false,
            ),
            ("wsl", &[("dev/dxg", ""), ("usr/lib/wsl/lib/libcuda.so.1", "")], true),
        ];
        for (name, files, expected) in cases {
            let machine = files.iter().fold(Folder::new(name), |folder, (file, text)| folder.with(file, text));
            assert_eq!(nvidia_present(&machine.0), expected, "{name}");
        }
    }
}
