//! cuBLASLt: opening it, and GEMMs in its terms.
//!
//! Everything here is column-major; [`super::gemms`] converts our row-major GEMMs.

use std::ffi::{CStr, c_void};

use super::api::{Algorithm, Code, CublasLtApi, DevicePtr, Handle, HeuristicResult};
use crate::kernel::DType;
use crate::library::{self, FoundLibrary, LibraryError, Search, Wanted};

/// The newest and the oldest supported cuBLASLt, by CUDA's major version.
const NEWEST_MAJOR: u32 = 13;
const OLDEST_MAJOR: u32 = 12;

/// `CUBLAS_COMPUTE_32F`: accumulates in f32, and does not use TF32.
const COMPUTE_F32: i32 = 68;
const REAL_F32: i32 = 0;
const REAL_BF16: i32 = 14;

// Attributes of a GEMM.
const TRANSPOSE_A: i32 = 3;
const TRANSPOSE_B: i32 = 4;
const EPILOGUE: i32 = 7;
const BIAS_POINTER: i32 = 8;
const EPILOGUE_BIAS: i32 = 4;
// Attributes of a matrix.
const BATCH_COUNT: i32 = 5;
const BATCH_OFFSET: i32 = 6;
// Attributes of the preference for an algorithm.
const MAX_WORKSPACE_BYTES: i32 = 1;
const REDUCTION_SCHEMES: i32 = 3;
const MIN_ALIGNMENT_A: i32 = 5;
/// `CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`: with split-k, partial sums are stored in f32 and added in a second pass. So
/// bf16 is rounded once, and the order of additions does not depend on which block finishes first.
const REDUCTION_IN_F32: u32 = 2;

/// `CUBLAS_STATUS_NOT_SUPPORTED`.
const NOT_SUPPORTED: Code = 15;

/// cuBLASLt, opened.
pub(crate) struct CublasLt {
    pub(crate) api: CublasLtApi,
    pub(crate) found: FoundLibrary,
}

/// A column-major matrix, or a batch of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MatrixLayout {
    pub(crate) dtype: DType,
    /// Stored rows.
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    /// Elements from one column to the next.
    pub(crate) stride: u64,
    pub(crate) batch: u32,
    pub(crate) batch_stride: u64,
    /// The alignment of every matrix of the batch in bytes, at most 256.
    pub(crate) alignment: u32,
}

/// `D = alpha · op(A) · op(B) + beta · D`: everything that affects the choice of algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MatmulKey {
    pub(crate) a: (MatrixLayout, bool),
    pub(crate) b: (MatrixLayout, bool),
    pub(crate) d: MatrixLayout,
    /// The alignment of the bias, if there is one.
    pub(crate) bias_alignment: Option<u32>,
    pub(crate) workspace_bytes: u64,
}

/// A GEMM with its algorithm and descriptors.
pub(crate) struct GemmPlan {
    gemm: Descriptor,
    a: Descriptor,
    b: Descriptor,
    d: Descriptor,
    algorithm: Algorithm,
    workspace_bytes: usize,
    /// Whether the bias epilogue adds the bias. If not, D must contain it already.
    pub(crate) adds_bias: bool,
}

/// The addresses and scalars of one GEMM.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GemmCall {
    pub(crate) a: DevicePtr,
    pub(crate) b: DevicePtr,
    pub(crate) d: DevicePtr,
    pub(crate) bias: Option<DevicePtr>,
    pub(crate) workspace: DevicePtr,
    pub(crate) alpha: f32,
    pub(crate) beta: f32,
    pub(crate) stream: Handle,
}

/// A descriptor in host memory, destroyed with this.
struct Descriptor {
    handle: Handle,
    destroy: unsafe extern "C" fn(Handle) -> Code,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: created by the counterpart of `destroy`, and destroyed once.
        unsafe { (self.destroy)(self.handle) };
    }
}

impl CublasLt {
    /// Finds and opens the newest cuBLASLt that a driver of `driver_major` supports.
    pub(crate) fn open_in(search: &Search, driver_major: Option<u32>) -> Result<CublasLt, LibraryError> {
        let opened = search.open(&wanted(driver_major))?;
        let api = CublasLtApi::load(&opened)?;
        // SAFETY: takes nothing.
        let version = unsafe { (api.cublasLtGetVersion)() };
        let spelled = format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
        Ok(CublasLt { api, found: FoundLibrary { version: Some(spelled), ..opened.found } })
    }

    /// The library's name and number for a code.
    pub(crate) fn describe(&self, code: Code) -> String {
        // SAFETY: the library returns a static string or null, which is checked.
        let text = unsafe {
            let text = (self.api.cublasLtGetStatusString)(code);
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        };
        format!("cuBLASLt returned {text} ({code})")
    }

    /// Creates a handle for the card whose context is current.
    pub(crate) fn create(&self) -> Result<Handle, Code> {
        let mut handle = 0;
        // SAFETY: one handle is written.
        done(unsafe { (self.api.cublasLtCreate)(&raw mut handle) }).map(|()| handle)
    }

    /// Undoes [`CublasLt::create`].
    pub(crate) fn destroy(&self, handle: Handle) {
        // SAFETY: created by `create` and destroyed once; no work runs on the card any more.
        unsafe { (self.api.cublasLtDestroy)(handle) };
    }

    /// Asks the heuristic for the best algorithm; `None` if there is none. Then one without the bias may still exist.
    pub(crate) fn plan(&self, handle: Handle, what: &MatmulKey, bias: DevicePtr) -> Result<Option<GemmPlan>, Code> {
        let gemm = self.gemm(what, bias)?;
        let (a, b, d) = (self.layout(&what.a.0)?, self.layout(&what.b.0)?, self.layout(&what.d)?);
        let preference = self.preference(what)?;
        let (mut best, mut count) = (HeuristicResult::default(), 0);
        // SAFETY: every descriptor is alive, and there is room for the one result that is asked for.
        let code = unsafe {
            (self.api.cublasLtMatmulAlgoGetHeuristic)(
                handle,
                gemm.handle,
                a.handle,
                b.handle,
                d.handle,
                d.handle,
                preference.handle,
                1,
                &raw mut best,
                &raw mut count,
            )
        };
        if code == NOT_SUPPORTED || (code == 0 && (count == 0 || best.state != 0)) {
            return Ok(None);
        }
        done(code)?;
        let (algorithm, workspace_bytes) = (best.algorithm, best.workspace_bytes);
        Ok(Some(GemmPlan { gemm, a, b, d, algorithm, workspace_bytes, adds_bias: what.bias_alignment.is_some() }))
    }

    /// Queues a GEMM.
    pub(crate) fn run(&self, handle: Handle, plan: &GemmPlan, call: &GemmCall) -> Result<(), Code> {
        if let Some(bias) = call.bias.filter(|_| plan.adds_bias) {
            self.set(self.api.cublasLtMatmulDescSetAttribute, plan.gemm.handle, BIAS_POINTER, &bias)?;
        }
        // SAFETY: the plan was made for matrices of exactly this shape and alignment, `gemm::check` ensures that they are
        // in live memory of the stream's card, and the workspace is as long as the preference allowed.
        done(unsafe {
            (self.api.cublasLtMatmul)(
                handle,
                plan.gemm.handle,
                (&raw const call.alpha).cast(),
                call.a,
                plan.a.handle,
                call.b,
                plan.b.handle,
                (&raw const call.beta).cast(),
                call.d,
                plan.d.handle,
                call.d,
                plan.d.handle,
                &raw const plan.algorithm,
                call.workspace,
                plan.workspace_bytes,
                call.stream,
            )
        })
    }

    fn gemm(&self, what: &MatmulKey, bias: DevicePtr) -> Result<Descriptor, Code> {
        let mut handle = 0;
        // SAFETY: one handle is written.
        done(unsafe { (self.api.cublasLtMatmulDescCreate)(&raw mut handle, COMPUTE_F32, REAL_F32) })?;
        let owned = Descriptor { handle, destroy: self.api.cublasLtMatmulDescDestroy };
        let set = self.api.cublasLtMatmulDescSetAttribute;
        self.set(set, handle, TRANSPOSE_A, &i32::from(what.a.1))?;
        self.set(set, handle, TRANSPOSE_B, &i32::from(what.b.1))?;
        if what.bias_alignment.is_some() {
            self.set(set, handle, EPILOGUE, &EPILOGUE_BIAS)?;
            self.set(set, handle, BIAS_POINTER, &bias)?;
        }
        Ok(owned)
    }

    fn layout(&self, matrix: &MatrixLayout) -> Result<Descriptor, Code> {
        let mut handle = 0;
        let (dtype, stride) = (data_type(matrix.dtype), matrix.stride as i64);
        // SAFETY: one handle is written.
        let code = unsafe {
            (self.api.cublasLtMatrixLayoutCreate)(&raw mut handle, dtype, matrix.rows, matrix.columns, stride)
        };
        done(code)?;
        let owned = Descriptor { handle, destroy: self.api.cublasLtMatrixLayoutDestroy };
        if matrix.batch > 1 {
            let set = self.api.cublasLtMatrixLayoutSetAttribute;
            self.set(set, handle, BATCH_COUNT, &(matrix.batch as i32))?;
            self.set(set, handle, BATCH_OFFSET, &(matrix.batch_stride as i64))?;
        }
        Ok(owned)
    }

    fn preference(&self, what: &MatmulKey) -> Result<Descriptor, Code> {
        let mut handle = 0;
        // SAFETY: one handle is written.
        done(unsafe { (self.api.cublasLtMatmulPreferenceCreate)(&raw mut handle) })?;
        let owned = Descriptor { handle, destroy: self.api.cublasLtMatmulPreferenceDestroy };
        let set = self.api.cublasLtMatmulPreferenceSetAttribute;
        self.set(set, handle, MAX_WORKSPACE_BYTES, &what.workspace_bytes)?;
        self.set(set, handle, REDUCTION_SCHEMES, &REDUCTION_IN_F32)?;
        for (i, matrix) in (0..).zip([&what.a.0, &what.b.0, &what.d, &what.d]) {
            self.set(set, handle, MIN_ALIGNMENT_A + i, &matrix.alignment)?;
        }
        Ok(owned)
    }

    fn set<T>(
        &self,
        set: unsafe extern "C" fn(Handle, i32, *const c_void, usize) -> Code,
        handle: Handle,
        attribute: i32,
        value: &T,
    ) -> Result<(), Code> {
        // SAFETY: the descriptor is alive; the value is read during the call, with its length.
        done(unsafe { set(handle, attribute, std::ptr::from_ref(value).cast(), size_of::<T>()) })
    }
}

fn data_type(dtype: DType) -> i32 {
    if dtype == DType::BF16 { REAL_BF16 } else { REAL_F32 }
}

fn done(code: Code) -> Result<(), Code> {
    if code == 0 { Ok(()) } else { Err(code) }
}

fn wanted(driver_major: Option<u32>) -> Wanted {
    let newest = driver_major.unwrap_or(NEWEST_MAJOR).max(OLDEST_MAJOR);
    Wanted {
        names: (OLDEST_MAJOR..=newest).rev().map(|major| format!("libcublasLt.so.{major}")).collect(),
        probe: "cublasLtCreate",
        install: "install the CUDA toolkit, or the package nvidia-cublas in an active Python environment",
    }
}

/// The error that the library cannot be used on a card.
pub(crate) fn broken(blas: &CublasLt, code: Code) -> LibraryError {
    library::broken(&blas.found, blas.describe(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_library_that_the_driver_supports_is_preferred() {
        let check = |driver, expected: &[&str]| assert_eq!(wanted(driver).names, expected);
        check(None, &["libcublasLt.so.13", "libcublasLt.so.12"]);
        check(Some(12), &["libcublasLt.so.12"]);
        check(Some(13), &["libcublasLt.so.13", "libcublasLt.so.12"]);
    }
}
