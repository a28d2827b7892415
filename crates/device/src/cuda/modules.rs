//! Kernels on a card: sources become machine code (from the disk, or compiled), machine code becomes a module,
//! and a module stays until its card is closed.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

use super::api::{Code, DriverApi, FUNCTION_MAX_DYNAMIC_SHARED, Handle};
use super::cubin_cache::{CubinCache, Key};
use super::nvrtc::{self, Compiler};
use crate::error::DeviceError;
use crate::kernel::Source;
use crate::library::{LibraryError, Search};

/// Dynamic shared memory every kernel may have without being asked for.
const SHARED_FOR_ALL: u32 = 48 << 10;

/// `CUDA_ERROR_NOT_FOUND`.
const NOT_FOUND: Code = 500;

/// Where machine code comes from. The compiler is opened when it is first needed.
pub(crate) struct Cubins {
    search: Search,
    cache: CubinCache,
    compiler: Mutex<Option<Arc<Compiler>>>,
}

impl Cubins {
    pub(crate) fn new(search: &Search) -> Cubins {
        Cubins { search: search.clone(), cache: CubinCache::from_env(), compiler: Mutex::new(None) }
    }

    /// The compiler that suits a driver of this version.
    pub(crate) fn compiler(&self, driver: i32) -> Result<Arc<Compiler>, LibraryError> {
        let mut place = self.compiler.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiler) = &*place {
            return Ok(Arc::clone(compiler));
        }
        let compiler = Arc::new(Compiler::open_in(&self.search, Some(driver.unsigned_abs() / 1000))?);
        *place = Some(Arc::clone(&compiler));
        Ok(compiler)
    }

    /// Machine code of `source` for `arch`.
    pub(crate) fn get(
        &self,
        source: &Source,
        arch: &str,
        driver: i32,
        driver_text: &str,
    ) -> Result<Vec<u8>, DeviceError> {
        let compiler = self.compiler(driver)?;
        let text = nvrtc::whole_text(source);
        let key = Key {
            file: source.file,
            text: &text,
            options: nvrtc::OPTIONS,
            arch,
            nvrtc: compiler.version(),
            driver: driver_text,
        };
        self.cache.get_or(&key, || compiler.compile(source, arch).map(|compiled| compiled.cubin))
    }
}

/// The modules loaded on one card.
#[derive(Default)]
pub(crate) struct Modules {
    loaded: Mutex<LoadedKernel>,
}

#[derive(Default)]
struct LoadedKernel {
    /// By their text: a source may be in the program twice, and generated ones come out equal.
    modules: HashMap<(&'static str, &'static str), Handle>,
    /// The most dynamic shared memory each kernel was allowed so far.
    shared: HashMap<Handle, u32>,
}

impl Modules {
    /// The module of `source`, loaded now from `cubin` if it was not before. `check` judges the driver's answer to
    /// a load of that many bytes.
    pub(crate) fn get(
        &self,
        api: &DriverApi,
        source: &'static Source,
        cubin: impl FnOnce() -> Result<Vec<u8>, DeviceError>,
        check: impl FnOnce(Code, u64) -> Result<(), DeviceError>,
    ) -> Result<Handle, DeviceError> {
        // Held while compiling: a second thread that wants the same source waits instead of compiling it too.
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let key = key(source);
        if let Some(&module) = loaded.modules.get(&key) {
            return Ok(module);
        }
        let cubin = cubin()?;
        let mut module = 0;
        // SAFETY: a whole CUBIN, straight from the compiler or checked by its cache; the driver copies it.
        let code = unsafe { (api.cuModuleLoadData)(&raw mut module, cubin.as_ptr().cast()) };
        check(code, cubin.len() as u64)?;
        loaded.modules.insert(key, module);
        Ok(module)
    }

    /// Those of `sources` that are not loaded yet, each once.
    pub(crate) fn missing(&self, sources: &[&'static Source]) -> Vec<&'static Source> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let mut seen: HashSet<_> = loaded.modules.keys().copied().collect();
        sources.iter().copied().filter(|source| seen.insert(key(source))).collect()
    }

    /// Raises what `function` may have of dynamic shared memory. The answer, where the driver had to be asked.
    pub(crate) fn allow_shared(&self, api: &DriverApi, function: Handle, bytes: u32) -> Option<Code> {
        if bytes <= SHARED_FOR_ALL {
            return None;
        }
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let allowed = loaded.shared.entry(function).or_insert(SHARED_FOR_ALL);
        if bytes <= *allowed {
            return None;
        }
        // SAFETY: the function belongs to a module of this card, which is loaded until the card is closed.
        let code = unsafe { (api.cuFuncSetAttribute)(function, FUNCTION_MAX_DYNAMIC_SHARED, bytes as i32) };
        if code == 0 {
            *allowed = bytes;
        }
        Some(code)
    }

    /// Unloads everything. The card's context must be current and idle.
    pub(crate) fn unload(&self, api: &DriverApi) {
        let loaded = std::mem::take(&mut *self.loaded.lock().unwrap_or_else(PoisonError::into_inner));
        for module in loaded.modules.into_values() {
            // SAFETY: loaded by `get`, unloaded once, and nothing runs any more.
            unsafe { (api.cuModuleUnload)(module) };
        }
    }
}

fn key(source: &'static Source) -> (&'static str, &'static str) {
    (source.file, source.text)
}

/// The kernel called `name` in `module`.
pub(crate) fn function(api: &DriverApi, module: Handle, name: &str) -> Result<Handle, Code> {
    let name = CString::new(name).map_err(|_| NOT_FOUND)?;
    let mut function = 0;
    // SAFETY: the module is loaded, the name ends in NUL, and one handle is written.
    match unsafe { (api.cuModuleGetFunction)(&raw mut function, module, name.as_ptr()) } {
        0 => Ok(function),
        code => Err(code),
    }
}
