//! Errors for missing, old or broken NVIDIA libraries: never a panic, always the library, its path and what to do. The
//! libraries are real ones, built here by `rustc` for each case.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tandem_device::library::{LibraryError, Search, survey};

/// Every driver function we need besides the three that each fake defines itself.
const FUNCTIONS: &[&str] = &[
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetUuid_v2",
    "cuDeviceGetPCIBusId",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuDeviceCanAccessPeer",
    "cuDeviceGetP2PAttribute",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxCreate_v2",
    "cuCtxDestroy_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxGetStreamPriorityRange",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolSetAccess",
    "cuMemPoolGetAccess",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuPointerGetAttribute",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamQuery",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD8Async",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuThreadExchangeStreamCaptureMode",
    "cuStreamIsCapturing",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuGraphInstantiateWithFlags",
    "cuGraphDestroy",
    "cuGraphUpload",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
];

/// A machine in a folder: its libraries and its hardware.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str) -> Machine {
        let root = std::env::temp_dir().join(format!("tandem-libraries-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("usr/lib64")).unwrap();
        Machine(root)
    }

    fn with_card(self) -> Machine {
        fs::create_dir_all(self.0.join("dev")).unwrap();
        fs::write(self.0.join("dev/nvidia0"), "").unwrap();
        self
    }

    fn with_file(self, name: &str, bytes: &[u8]) -> Machine {
        fs::write(self.library(name), bytes).unwrap();
        self
    }

    /// A driver whose `cuInit` and `cuDriverGetVersion` return the given values, without the functions in `lacking`.
    fn with_driver(self, init: i32, version: i32, lacking: &[&str]) -> Machine {
        let mut source = String::from(
            "#[no_mangle] pub unsafe extern \"C\" fn cuGetErrorName(_: i32, out: *mut *const u8) -> i32 \
             { *out = b\"CUDA_ERROR_FAKE\\0\".as_ptr(); 0 }\n",
        );
        source += &format!("#[no_mangle] pub extern \"C\" fn cuInit(_: u32) -> i32 {{ {init} }}\n");
        source += &format!(
            "#[no_mangle] pub unsafe extern \"C\" fn cuDriverGetVersion(out: *mut i32) -> i32 {{ *out = {version}; 0 }}\n"
        );
        for function in FUNCTIONS.iter().filter(|function| !lacking.contains(function)) {
            source += &format!("#[no_mangle] pub extern \"C\" fn {function}() -> i32 {{ 1 }}\n");
        }
        // An initialised driver is asked for its device count at once: it has none.
        source = source.replace(
            "fn cuDeviceGetCount() -> i32 { 1 }",
            "fn cuDeviceGetCount(out: *mut i32) -> i32 { unsafe { *out = 0 }; 0 }",
        );
        build(&source, &self.library("libcuda.so.1"));
        self
    }

    fn library(&self, name: &str) -> PathBuf {
        self.0.join("usr/lib64").join(name)
    }

    fn search(&self) -> Search {
        Search::only_under(&self.0)
    }

    fn driver_error(&self) -> LibraryError {
        match survey(&self.search()).driver {
            Ok(found) => panic!("no error, but {found:?}"),
            Err(error) => says_what_to_do(error),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn build(source: &str, to: &Path) {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| {
        // The compiler next to Cargo, if there is one.
        let beside = Path::new(env!("CARGO")).with_file_name("rustc");
        if beside.exists() { beside.into() } else { "rustc".into() }
    });
    let file = to.with_extension("rs");
    fs::write(&file, source).unwrap();
    let made = Command::new(rustc)
        .args(["--edition", "2021", "--crate-type", "cdylib", "--crate-name", "fake", "-C", "panic=abort", "-o"])
        .arg(to)
        .arg(&file)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::remove_file(file).unwrap();
}

/// Every message names the library and the mode that always works.
fn says_what_to_do(error: LibraryError) -> LibraryError {
    let text = error.to_string();
    assert!(text.contains("lib") && text.contains("--mode cpu"), "{text}");
    error
}

#[test]
fn no_device_and_no_driver_is_an_ordinary_machine() {
    let machine = Machine::new("plain");
    let found = survey(&machine.search());
    assert!(matches!(found.driver, Ok(None)), "{found:?}");
    for error in [found.nvml.unwrap_err(), found.nvrtc.unwrap_err(), found.cublaslt.unwrap_err()] {
        assert!(matches!(says_what_to_do(error), LibraryError::NotFound { .. }));
    }
}

#[test]
fn a_device_without_a_driver_is_an_error_with_the_searched_places() {
    let error = Machine::new("bare").with_card().driver_error();
    let LibraryError::NotFound { library, searched, .. } = &error else { panic!("{error}") };
    assert_eq!(library, "libcuda.so.1");
    assert!(searched.iter().any(|place| place.ends_with("usr/lib64")), "{searched:?}");
}

#[test]
fn a_file_that_is_no_library_is_named() {
    let error = Machine::new("text").with_card().with_file("libcuda.so.1", b"#!/bin/sh\n").driver_error();
    let LibraryError::CannotOpen { path, why, .. } = &error else { panic!("{error}") };
    assert!(path.ends_with("usr/lib64/libcuda.so.1") && !why.is_empty(), "{error}");
}

#[test]
fn an_old_driver_is_distinguished_from_a_broken_one_even_without_newer_functions() {
    let machine = Machine::new("old").with_card().with_driver(0, 11040, &["cuMemPoolCreate"]);
    let error = machine.driver_error();
    let LibraryError::TooOld { found, needed, .. } = &error else { panic!("{error}") };
    assert!(found.contains("11.4") && needed.contains("12.2") && needed.contains("535"), "{error}");
}

#[test]
fn a_driver_that_lacks_a_function_is_named_with_it() {
    let error = Machine::new("lacking").with_card().with_driver(0, 13000, &["cuMemPoolCreate"]).driver_error();
    let LibraryError::MissingSymbol { symbol, .. } = &error else { panic!("{error}") };
    assert_eq!(symbol, "cuMemPoolCreate");
}

#[test]
fn the_error_of_a_driver_that_does_not_start_is_quoted() {
    let error = Machine::new("unknown").with_card().with_driver(999, 13000, &[]).driver_error();
    let LibraryError::Broken { what, .. } = &error else { panic!("{error}") };
    for part in ["cuInit", "999", "CUDA_ERROR_FAKE", "nvidia-smi"] {
        assert!(what.contains(part), "{part} in {what}");
    }
}

#[test]
fn a_driver_that_finds_no_device_agrees_with_a_machine_that_has_none() {
    let machine = Machine::new("leftover").with_driver(100, 13000, &[]);
    assert!(matches!(survey(&machine.search()).driver, Ok(None)));
}

#[test]
fn a_driver_that_finds_no_device_where_there_is_one_is_broken() {
    let machine = Machine::new("blind").with_card().with_driver(100, 13000, &[]);
    assert!(matches!(machine.driver_error(), LibraryError::Broken { .. }));
}

#[test]
fn devices_hidden_on_purpose_are_not_a_driver_failure() {
    let machine = Machine::new("hidden").with_card().with_driver(100, 13000, &[]);
    let search = Search { cuda_visible_devices: Some(String::new()), ..machine.search() };
    let found = survey(&search).driver.unwrap().unwrap();
    assert_eq!(found.version.as_deref(), Some("CUDA 13.0"));
}

#[test]
fn a_working_driver_is_reported_with_its_path_and_version() {
    let machine = Machine::new("good").with_card().with_driver(0, 12080, &[]);
    let found = survey(&machine.search()).driver.unwrap().unwrap();
    assert_eq!((found.name.as_str(), found.version.as_deref()), ("libcuda.so.1", Some("CUDA 12.8")));
    assert_eq!(found.path, machine.library("libcuda.so.1"));
}

#[test]
fn nvml_without_its_functions_is_an_error_and_not_a_panic() {
    let machine = Machine::new("nvml");
    let source = "#[no_mangle] pub extern \"C\" fn nvmlInit_v2() -> i32 { 0 }\n";
    build(source, &machine.library("libnvidia-ml.so.1"));
    let error = survey(&machine.search()).nvml.unwrap_err();
    let LibraryError::MissingSymbol { symbol, .. } = says_what_to_do(error) else { panic!("another error") };
    assert_eq!(symbol, "nvmlShutdown");
}

#[test]
fn a_compiler_newer_than_the_driver_is_not_used() {
    let machine = Machine::new("nvrtc").with_card().with_driver(0, 12040, &[]).with_file("libnvrtc.so.13", b"13");
    let error = survey(&machine.search()).nvrtc.unwrap_err();
    assert!(matches!(&error, LibraryError::NotFound { library, .. } if library == "libnvrtc.so.12"), "{error}");
}
