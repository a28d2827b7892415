//! Compiles kernels with NVRTC, to a cubin for one architecture. Needs no GPU.
//!
//! The driver loads a cubin as it is. So there is no second compilation at load time, and a register spill is found where
//! the kernel is written, not on a user's card.

use std::ffi::{CStr, CString, c_char};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use super::api::{Code, Handle, NvrtcApi};
use crate::error::DeviceError;
use crate::kernel::Source;
use crate::library::{self, FoundLibrary, LibraryError, Search, Wanted};

/// Prepended to every source.
const PRELUDE: &str = include_str!("prelude.cuh");

/// Compiler options besides the architecture. ptxas reports the resources of each kernel.
pub(crate) const OPTIONS: &[&str] = &["--std=c++17", "-default-device", "--ptxas-options=-v"];

/// The newest major version to look for if there is no driver.
const NEWEST_MAJOR: u32 = 13;
/// The oldest supported major version.
const OLDEST_MAJOR: u32 = 12;

/// `NVRTC_ERROR_COMPILATION`: an error in the source; the log says where.
const BAD_SOURCE: Code = 6;

/// NVRTC, opened.
pub struct Compiler {
    api: NvrtcApi,
    found: FoundLibrary,
    version: String,
    archs: Vec<i32>,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NVRTC {} at {}", self.version, self.found.path.display())
    }
}

/// A source compiled for one architecture.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// The cubin.
    pub cubin: Vec<u8>,
    /// The log of the compiler and of ptxas: warnings, and the resources of each kernel.
    pub log: String,
}

/// The resources of one kernel, as ptxas reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources {
    /// The kernel.
    pub kernel: String,
    /// Registers per thread.
    pub registers: u32,
    /// Stack frame per thread: arrays that are indexed at run time are stored there.
    pub stack_bytes: u32,
    /// Register spill stores.
    pub spill_store_bytes: u32,
    /// Register spill loads.
    pub spill_load_bytes: u32,
}

impl Resources {
    /// Whether there are no spills and no stack frame.
    pub fn in_registers(&self) -> bool {
        self.stack_bytes == 0 && self.spill_store_bytes == 0 && self.spill_load_bytes == 0
    }
}

/// The architectures that every kernel must compile for: one per generation of cards since bf16.
pub const ARCHITECTURES: [&str; 5] = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_120"];

/// For tests that compile kernels: NVRTC, or `None` after the test was reported as skipped. Panics instead if
/// `TANDEM_REQUIRE_NVRTC=1`, which `./check` sets.
pub fn compiler_or_skip() -> Option<Compiler> {
    match Compiler::open(None) {
        Ok(compiler) => Some(compiler),
        Err(error) => {
            let required = std::env::var_os("TANDEM_REQUIRE_NVRTC").is_some_and(|value| value == "1");
            assert!(!required, "TANDEM_REQUIRE_NVRTC=1, but {error}");
            let error = error.to_string();
            // Without the list of searched folders.
            report_skipped(error.split("; searched").next().unwrap_or(&error));
            None
        }
    }
}

/// On stderr, and in the file that `./check` prints at its end. `skip` of `tools/test-support` does this for other crates;
/// this one is published, and so cannot depend on it.
fn report_skipped(why: &str) {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    let thread = std::thread::current();
    let test = format!("{}: {}", package.trim_start_matches("tandem-"), thread.name().unwrap_or("?"));
    // Not through the print macros, whose output the test harness captures.
    let _ = writeln!(std::io::stderr(), "\n!!! SKIPPED {test}: no kernel was compiled ({why})\n");
    let Some(list) = std::env::var_os("TANDEM_SKIPPED_TESTS") else { return };
    let line = format!("skipped\t{test}\tcompiling kernels\t{}\n", why.replace(['\t', '\n'], " "));
    let written = OpenOptions::new().create(true).append(true).open(&list);
    let written = written.and_then(|mut file| file.write_all(line.as_bytes()));
    written.unwrap_or_else(|error| panic!("TANDEM_SKIPPED_TESTS: {error}: {}", Path::new(&list).display()));
}

/// The problems of `sources` on any of [`ARCHITECTURES`]: compile errors, spills and stack frames. Empty if there are
/// none.
pub fn kernel_problems(compiler: &Compiler, sources: &[&Source]) -> Vec<String> {
    kernel_problems_on(compiler, sources, &ARCHITECTURES)
}

/// The same on `architectures`.
pub fn kernel_problems_on(compiler: &Compiler, sources: &[&Source], architectures: &[&str]) -> Vec<String> {
    let pairs = sources.iter().flat_map(|source| architectures.iter().map(move |arch| (*source, *arch)));
    pairs.flat_map(|(source, arch)| problems_of(compiler, source, arch)).collect()
}

fn problems_of(compiler: &Compiler, source: &Source, arch: &str) -> Vec<String> {
    let kernels = match compiler.compile(source, arch) {
        Ok(compiled) => compiled.resources(),
        Err(error) => return vec![error.to_string()],
    };
    let written = source.text.matches("__global__").count();
    let unreported = (kernels.len() < written)
        .then(|| format!("{} on {arch}: ptxas reported {} of {written} kernels", source.file, kernels.len()));
    let spilling = kernels.iter().filter(|kernel| !kernel.in_registers());
    spilling.map(|kernel| format!("{} on {arch}: {kernel:?}", source.file)).chain(unreported).collect()
}

impl Compiled {
    /// The resources of each kernel, in the order of the log.
    pub fn resources(&self) -> Vec<Resources> {
        resources(&self.log)
    }
}

impl Compiler {
    /// Finds and opens the newest NVRTC that the driver supports: cubins of a newer major version than the driver's do not
    /// load. Without a driver (`None`), opens the newest.
    pub fn open(driver_major: Option<u32>) -> Result<Compiler, LibraryError> {
        Compiler::open_in(&Search::from_env(), driver_major)
    }

    /// The same with the given search.
    pub fn open_in(search: &Search, driver_major: Option<u32>) -> Result<Compiler, LibraryError> {
        let opened = search.open(&wanted(driver_major))?;
        let api = NvrtcApi::load(&opened)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two ints are written.
        let code = unsafe { (api.nvrtcVersion)(&raw mut major, &raw mut minor) };
        if code != 0 {
            return Err(opened.broken(format!("nvrtcVersion returned {code}")));
        }
        let version = format!("{major}.{minor}");
        open_builtins(&opened.found.path, &version)?;
        let archs = supported_archs(&api);
        let found = FoundLibrary { version: Some(version.clone()), ..opened.found };
        Ok(Compiler { api, found, version, archs })
    }

    /// The library that was opened.
    pub fn found(&self) -> &FoundLibrary {
        &self.found
    }

    /// Its version, e.g. `13.0`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Compiles `source` for `arch` (e.g. `sm_90`).
    ///
    /// An error in the source is [`DeviceError::Compile`], with file and line in the log; an architecture that is newer
    /// than the compiler is [`LibraryError::TooOld`].
    pub fn compile(&self, source: &Source, arch: &str) -> Result<Compiled, DeviceError> {
        self.knows(arch)?;
        let program = Program::new(self, &whole_text(source), source.file)?;
        let compiled = program.compile(arch);
        let log = program.log()?;
        match compiled {
            0 => Ok(Compiled { cubin: program.cubin()?, log }),
            BAD_SOURCE => Err(DeviceError::Compile { file: source.file, arch: arch.to_string(), log }),
            code => Err(self.broken(code, &log).into()),
        }
    }

    fn knows(&self, arch: &str) -> Result<(), LibraryError> {
        let number = arch.trim_start_matches("sm_").trim_end_matches(|c: char| c.is_ascii_lowercase()).parse();
        let newest = self.archs.iter().max();
        match (number, newest) {
            (Ok(number), Some(&newest)) if newest < number => Err(LibraryError::TooOld {
                library: self.found.name.clone(),
                path: self.found.path.clone(),
                found: format!("{} for cards up to sm_{newest}", self.version),
                needed: format!("one that compiles for {arch}"),
            }),
            _ => Ok(()),
        }
    }

    fn check(&self, code: Code) -> Result<(), LibraryError> {
        if code == 0 { Ok(()) } else { Err(self.broken(code, "")) }
    }

    fn broken(&self, code: Code, log: &str) -> LibraryError {
        // SAFETY: NVRTC returns a static string or null, which is checked.
        let text = unsafe {
            let text = (self.api.nvrtcGetErrorString)(code);
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        library::broken(&self.found, format!("{text} ({code}) {log}").trim_end())
    }
}

/// The complete text that is compiled, which is part of the cache key. Lines are numbered per file, for messages.
pub(crate) fn whole_text(source: &Source) -> String {
    format!("#line 1 \"prelude.cuh\"\n{PRELUDE}\n#line 1 \"{}\"\n{}", source.file, source.text)
}

/// Parses the resources of each kernel from a log written with `--ptxas-options=-v`.
pub(crate) fn resources(log: &str) -> Vec<Resources> {
    let mut kernels: Vec<Resources> = Vec::new();
    for line in log.lines() {
        if let Some((_, name)) = line.split_once("Function properties for ") {
            let kernel = name.trim().to_string();
            kernels.push(Resources { kernel, registers: 0, stack_bytes: 0, spill_store_bytes: 0, spill_load_bytes: 0 });
        }
        let Some(last) = kernels.last_mut() else { continue };
        let before = |words: &str| -> Option<u32> { line.split_once(words)?.0.split_whitespace().last()?.parse().ok() };
        last.stack_bytes = before(" bytes stack frame").unwrap_or(last.stack_bytes);
        last.spill_store_bytes = before(" bytes spill stores").unwrap_or(last.spill_store_bytes);
        last.spill_load_bytes = before(" bytes spill loads").unwrap_or(last.spill_load_bytes);
        last.registers = before(" registers").unwrap_or(last.registers);
    }
    kernels
}

fn wanted(driver_major: Option<u32>) -> Wanted {
    let newest = driver_major.unwrap_or(NEWEST_MAJOR).max(OLDEST_MAJOR);
    Wanted {
        names: (OLDEST_MAJOR..=newest).rev().map(|major| format!("libnvrtc.so.{major}")).collect(),
        probe: "nvrtcVersion",
        install: "install the CUDA toolkit, or the package nvidia-cuda-nvrtc in an active Python environment",
    }
}

/// NVRTC opens its builtins library by file name when it compiles, and does not find it if both are in a Python wheel. We
/// open the one next to it first: the loader then returns the library that is already open under that name.
fn open_builtins(nvrtc: &Path, version: &str) -> Result<(), LibraryError> {
    let name = format!("libnvrtc-builtins.so.{version}");
    let real = nvrtc.canonicalize().unwrap_or_else(|_| nvrtc.to_path_buf());
    for folder in [nvrtc, &real].into_iter().filter_map(Path::parent) {
        if library::open_file(&folder.join(&name), &name)?.is_some() {
            break;
        }
    }
    Ok(())
}

fn supported_archs(api: &NvrtcApi) -> Vec<i32> {
    let mut count = 0;
    // SAFETY: one int is written.
    let code = unsafe { (api.nvrtcGetNumSupportedArchs)(&raw mut count) };
    let mut archs = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: `count` ints are written, and there is room for as many.
    let filled = code == 0 && !archs.is_empty() && unsafe { (api.nvrtcGetSupportedArchs)(archs.as_mut_ptr()) } == 0;
    if filled { archs } else { Vec::new() }
}

/// An NVRTC program; destroyed on drop.
struct Program<'a> {
    compiler: &'a Compiler,
    handle: Handle,
}

impl<'a> Program<'a> {
    fn new(compiler: &'a Compiler, text: &str, file: &str) -> Result<Program<'a>, LibraryError> {
        let nul = |_| library::broken(&compiler.found, format!("the source {file} holds a NUL character"));
        let (text, file) = (CString::new(text).map_err(nul)?, CString::new(file).map_err(nul)?);
        let (mut handle, none) = (0, std::ptr::null());
        // SAFETY: both texts end in NUL and outlive the call, which copies them; there are no headers.
        let code =
            unsafe { (compiler.api.nvrtcCreateProgram)(&raw mut handle, text.as_ptr(), file.as_ptr(), 0, none, none) };
        compiler.check(code)?;
        Ok(Program { compiler, handle })
    }

    fn compile(&self, arch: &str) -> Code {
        let arch = format!("--gpu-architecture={arch}");
        let options: Vec<CString> =
            OPTIONS.iter().chain([&arch.as_str()]).filter_map(|option| CString::new(*option).ok()).collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive, and every option ends in NUL and outlives the call.
        unsafe { (self.compiler.api.nvrtcCompileProgram)(self.handle, pointers.len() as i32, pointers.as_ptr()) }
    }

    fn log(&self) -> Result<String, LibraryError> {
        let api = &self.compiler.api;
        let bytes = self.read(api.nvrtcGetProgramLogSize, api.nvrtcGetProgramLog)?;
        let text = String::from_utf8_lossy(&bytes);
        Ok(text.trim_end_matches('\0').to_string())
    }

    fn cubin(&self) -> Result<Vec<u8>, LibraryError> {
        self.read(self.compiler.api.nvrtcGetCUBINSize, self.compiler.api.nvrtcGetCUBIN)
    }

    fn read(
        &self,
        size: unsafe extern "C" fn(Handle, *mut usize) -> Code,
        get: unsafe extern "C" fn(Handle, *mut c_char) -> Code,
    ) -> Result<Vec<u8>, LibraryError> {
        let mut bytes = 0;
        // SAFETY: the program is alive, and one size is written.
        self.compiler.check(unsafe { size(self.handle, &raw mut bytes) })?;
        let mut buffer = vec![0u8; bytes];
        // SAFETY: exactly as many bytes as reported above are written.
        self.compiler.check(unsafe { get(self.handle, buffer.as_mut_ptr().cast()) })?;
        Ok(buffer)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was created by this compiler and is destroyed once.
        unsafe { (self.compiler.api.nvrtcDestroyProgram)(&raw mut self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_compiler_that_the_driver_supports_is_preferred() {
        let check = |driver, expected: &[&str]| assert_eq!(wanted(driver).names, expected);
        check(None, &["libnvrtc.so.13", "libnvrtc.so.12"]);
        check(Some(12), &["libnvrtc.so.12"]);
        check(Some(14), &["libnvrtc.so.14", "libnvrtc.so.13", "libnvrtc.so.12"]);
    }

    #[test]
    fn resources_are_parsed_from_the_log() {
        let log = "mel.cu(3): warning #177-D: variable was declared but never referenced\n\
            ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'fast' for 'sm_90'\n\
            ptxas info    : Function properties for fast\n    \
                0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
            ptxas info    : Used 10 registers, used 0 barriers, 400 bytes cmem[0]\n\
            ptxas info    : Compiling entry function 'slow' for 'sm_90'\n\
            ptxas info    : Function properties for slow\n    \
                128 bytes stack frame, 64 bytes spill stores, 96 bytes spill loads\n\
            ptxas info    : Used 255 registers, used 0 barriers, 128 bytes cumulative stack size\n";
        let found = resources(log);
        let slow = Resources {
            kernel: "slow".into(),
            registers: 255,
            stack_bytes: 128,
            spill_store_bytes: 64,
            spill_load_bytes: 96,
        };
        assert_eq!(found.len(), 2);
        assert!(found[0].kernel == "fast" && found[0].in_registers() && found[0].registers == 10);
        assert!(found[1] == slow && !slow.in_registers());
        assert_eq!(resources("").len(), 0);
    }

    #[test]
    fn lines_are_numbered_per_file() {
        let text = whole_text(&Source { file: "mel.cu", text: "first\n" });
        assert!(text.starts_with("#line 1 \"prelude.cuh\"\n") && text.ends_with("\n#line 1 \"mel.cu\"\nfirst\n"));
    }
}
