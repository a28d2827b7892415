//! Compiling kernels with NVRTC, to machine code for one exact architecture. Needs no GPU.
//!
//! A source comes in as text and goes out as a CUBIN the driver loads as it is: no second compilation at load
//! time, and a register spill is seen where the kernel is written instead of on someone's card.

use std::ffi::{CStr, CString, c_char};
use std::path::Path;

use super::api::{Code, Handle, NvrtcApi};
use crate::error::DeviceError;
use crate::kernel::Source;
use crate::library::{self, FoundLibrary, LibraryError, Search, Wanted};

/// Put before every source.
const PRELUDE: &str = include_str!("prelude.cuh");

/// Options every source is compiled with, besides its architecture. The assembler reports what each kernel uses.
pub(crate) const OPTIONS: &[&str] = &["--std=c++17", "-default-device", "--ptxas-options=-v"];

/// The newest CUDA we know a name for, where no driver says what it can load.
const NEWEST_MAJOR: u32 = 13;
/// The oldest CUDA whose machine code we ask for.
const OLDEST_MAJOR: u32 = 12;

/// `NVRTC_ERROR_COMPILATION`: the source is at fault, and the log says where.
const BAD_SOURCE: Code = 6;

/// NVRTC, found and opened.
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
    /// Machine code, as the driver loads it.
    pub cubin: Vec<u8>,
    /// What the compiler and the assembler said: warnings, and what each kernel uses.
    pub log: String,
}

/// What one kernel of a source uses, as the assembler reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources {
    /// The kernel.
    pub kernel: String,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of a thread's stack: arrays indexed at run time end up there.
    pub stack_bytes: u32,
    /// Bytes written to memory because registers ran out.
    pub spill_store_bytes: u32,
    /// Bytes read back.
    pub spill_load_bytes: u32,
}

impl Resources {
    /// Whether everything stayed in registers.
    pub fn in_registers(&self) -> bool {
        self.stack_bytes == 0 && self.spill_store_bytes == 0 && self.spill_load_bytes == 0
    }
}

/// Every architecture kernels must compile for: one of each kind of card since bf16.
pub const ARCHITECTURES: [&str; 5] = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_120"];

/// What is wrong with `sources` on any of [`ARCHITECTURES`]: what does not compile, and what does not stay in
/// registers. Empty when nothing is.
pub fn complaints(compiler: &Compiler, sources: &[&Source]) -> Vec<String> {
    let pairs = sources.iter().flat_map(|source| ARCHITECTURES.map(|arch| (*source, arch)));
    pairs.flat_map(|(source, arch)| complaints_on(compiler, source, arch)).collect()
}

fn complaints_on(compiler: &Compiler, source: &Source, arch: &str) -> Vec<String> {
    let kernels = match compiler.compile(source, arch) {
        Ok(compiled) => compiled.resources(),
        Err(error) => return vec![error.to_string()],
    };
    let written = source.text.matches("__global__").count();
    let unreported = (kernels.len() < written)
        .then(|| format!("{} on {arch}: {} of {written} kernels were reported", source.file, kernels.len()));
    let spilling = kernels.iter().filter(|kernel| !kernel.in_registers());
    spilling.map(|kernel| format!("{} on {arch}: {kernel:?}", source.file)).chain(unreported).collect()
}

impl Compiled {
    /// What each kernel uses, in the order they were assembled.
    pub fn resources(&self) -> Vec<Resources> {
        resources(&self.log)
    }
}

impl Compiler {
    /// Finds and opens the newest NVRTC that the driver can follow: machine code of a newer major version than the
    /// driver's does not load. Without a driver (`None`), the newest there is.
    pub fn open(driver_major: Option<u32>) -> Result<Compiler, LibraryError> {
        Compiler::open_in(&Search::from_env(), driver_major)
    }

    /// The same, looking only where `search` says.
    pub fn open_in(search: &Search, driver_major: Option<u32>) -> Result<Compiler, LibraryError> {
        let opened = search.open(&wanted(driver_major))?;
        let api = NvrtcApi::load(&opened)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both places are valid for a write of an int.
        let code = unsafe { (api.nvrtcVersion)(&raw mut major, &raw mut minor) };
        if code != 0 {
            return Err(opened.broken(format!("nvrtcVersion answered {code}")));
        }
        let version = format!("{major}.{minor}");
        open_builtins(&opened.found.path, &version)?;
        let archs = supported_archs(&api);
        let found = FoundLibrary { version: Some(version.clone()), ..opened.found };
        Ok(Compiler { api, found, version, archs })
    }

    /// Where it was found.
    pub fn found(&self) -> &FoundLibrary {
        &self.found
    }

    /// Its version, e.g. `13.0`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Compiles `source` for `arch` (e.g. `sm_90`).
    ///
    /// A source that is wrong is [`DeviceError::Compile`], with file and line in the log; an architecture newer
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
        // SAFETY: NVRTC gives a static text for every number, and we only read it when it is not null.
        let text = unsafe {
            let text = (self.api.nvrtcGetErrorString)(code);
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        library::broken(&self.found, format!("{text} ({code}) {log}").trim_end())
    }
}

/// The text that is compiled: what a cache must key on. Lines are numbered per file, for messages.
pub(crate) fn whole_text(source: &Source) -> String {
    format!("#line 1 \"prelude.cuh\"\n{PRELUDE}\n#line 1 \"{}\"\n{}", source.file, source.text)
}

/// Reads what each kernel uses from a log written with `--ptxas-options=-v`.
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

/// NVRTC opens its second library by bare name while it compiles, and finds nothing when both lie in a wheel.
/// A library already in the process under that name is what it then gets, so we open the one beside it first.
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

/// A program in the compiler, destroyed with this.
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
        // SAFETY: exactly the number of bytes asked for above is written.
        self.compiler.check(unsafe { get(self.handle, buffer.as_mut_ptr().cast()) })?;
        Ok(buffer)
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was made by this compiler and is destroyed once.
        unsafe { (self.compiler.api.nvrtcDestroyProgram)(&raw mut self.handle) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_compiler_the_driver_can_follow_is_preferred() {
        let check = |driver, expected: &[&str]| assert_eq!(wanted(driver).names, expected);
        check(None, &["libnvrtc.so.13", "libnvrtc.so.12"]);
        check(Some(12), &["libnvrtc.so.12"]);
        check(Some(14), &["libnvrtc.so.14", "libnvrtc.so.13", "libnvrtc.so.12"]);
    }

    #[test]
    fn what_kernels_use_is_read_from_the_log() {
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
    fn lines_are_counted_from_the_source_of_their_own_file() {
        let text = whole_text(&Source { file: "mel.cu", text: "first\n" });
        assert!(text.starts_with("#line 1 \"prelude.cuh\"\n") && text.ends_with("\n#line 1 \"mel.cu\"\nfirst\n"));
    }
}
