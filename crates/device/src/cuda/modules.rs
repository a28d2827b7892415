//! Kernels on a card: a source becomes a cubin (from the cache, or compiled), and a cubin a module, which stays loaded
//! until its card is closed.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

use super::api::{Code, DriverApi, FUNCTION_MAX_DYNAMIC_SHARED, Handle};
use super::cubin_cache::{CubinCache, Key};
use super::nvrtc::{self, Compiler};
use crate::error::DeviceError;
use crate::kernel::Source;
use crate::library::{LibraryError, Search};

/// Dynamic shared memory that every kernel may use without setting an attribute.
const SHARED_FOR_ALL: u32 = 48 << 10;

/// `CUDA_ERROR_NOT_FOUND`.
const NOT_FOUND: Code = 500;

/// Gets cubins from the cache or from the compiler, which is opened when it is first needed.
pub(crate) struct Cubins {
    search: Search,
    cache: CubinCache,
    compiler: Mutex<Option<Arc<Compiler>>>,
}

impl Cubins {
    pub(crate) fn new(search: &Search) -> Cubins {
        Cubins { search: search.clone(), cache: CubinCache::from_env(), compiler: Mutex::new(None) }
    }

    /// The compiler for a driver of this version.
    pub(crate) fn compiler(&self, driver: i32) -> Result<Arc<Compiler>, LibraryError> {
        let mut place = self.compiler.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(compiler) = &*place {
            return Ok(Arc::clone(compiler));
        }
        let compiler = Arc::new(Compiler::open_in(&self.search, Some(driver.unsigned_abs() / 1000))?);
        *place = Some(Arc::clone(&compiler));
        Ok(compiler)
    }

    /// The cubin of `source` for `arch`.
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
    loaded: Mutex<LoadedModules>,
}

#[derive(Default)]
struct LoadedModules {
    /// By file name and text: two sources may be equal, and generated ones often are.
    modules: HashMap<(&'static str, &'static str), Handle>,
    /// The maximum dynamic shared memory that was set for each kernel.
    shared: HashMap<Handle, u32>,
}

impl Modules {
    /// The module of `source`; loads it from `cubin` if needed. `check` checks the driver's result for a load of that many
    /// bytes.
    pub(crate) fn get(
        &self,
        api: &DriverApi,
        source: &'static Source,
        cubin: impl FnOnce() -> Result<Vec<u8>, DeviceError>,
        check: impl FnOnce(Code, u64) -> Result<(), DeviceError>,
    ) -> Result<Handle, DeviceError> {
        // Locked while compiling: a second thread that needs the same source waits instead of compiling it too.
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let key = key(source);
        if let Some(&module) = loaded.modules.get(&key) {
            return Ok(module);
        }
        let cubin = cubin()?;
        let mut module = 0;
        // SAFETY: an intact cubin, from the compiler or verified by the cache; the driver copies it.
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

    /// Raises the maximum dynamic shared memory of `function`. Returns the driver's result if it was called.
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
            // SAFETY: loaded by `get`, unloaded once, and no work runs any more.
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
