//! GEMMs on a card with cuBLASLt: ours are row-major, cuBLASLt's are column-major.
//!
//! A row-major matrix is the transpose of a column-major one in the same memory, so `C = op(A)·op(B)` is computed as
//! `Cᵀ = op(B)ᵀ·op(A)ᵀ`: A and B are swapped, no data moves, and a bias along our columns runs along cuBLASLt's rows, where
//! its bias epilogue adds it.
//!
//! The heuristic chooses an algorithm once per shape, layout and alignment; it is cached for the life of the process, so
//! that the same GEMM gives the same bits every time.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::CudaDriver;
use super::api::{Code, Handle};
use super::cublas::{self, CublasLt, GemmCall, GemmPlan, MatmulKey, MatrixLayout};
use crate::driver::{Address, Driver as _, StreamId};
use crate::error::DeviceError;
use crate::gemm::{Gemm, Operand, RawGemm};
use crate::kernel::{DType, Grid};
use crate::kernels::gemm_init::{self, GemmInitArgs};
use crate::library::{LibraryError, Search};

/// The largest alignment that is reported to the heuristic: no algorithm requires more.
const LARGEST_ALIGNMENT: u64 = 256;

/// cuBLASLt, opened when it is first needed.
pub(crate) struct LazyCublas {
    search: Search,
    open: Mutex<Option<Arc<CublasLt>>>,
}

impl LazyCublas {
    pub(crate) fn new(search: &Search) -> LazyCublas {
        LazyCublas { search: search.clone(), open: Mutex::new(None) }
    }

    #[cfg(test)]
    pub(crate) fn opened(blas: CublasLt) -> LazyCublas {
        let search = Search::only_under(std::path::Path::new("no such folder"));
        LazyCublas { search, open: Mutex::new(Some(Arc::new(blas))) }
    }

    /// The library that suits a driver of this version.
    pub(crate) fn get(&self, driver: i32) -> Result<Arc<CublasLt>, LibraryError> {
        let mut place = lock(&self.open);
        if let Some(blas) = &*place {
            return Ok(Arc::clone(blas));
        }
        let blas = Arc::new(CublasLt::open_in(&self.search, Some(driver.unsigned_abs() / 1000))?);
        *place = Some(Arc::clone(&blas));
        Ok(blas)
    }
}

/// A card's cuBLASLt handle and its plans.
#[derive(Default)]
pub(crate) struct CardGemms {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The handle, from the first GEMM until the card is closed.
    handle: Option<Handle>,
    /// Descriptors are in host memory, so they outlive the card's context.
    plans: HashMap<MatmulKey, GemmPlan>,
}

impl CardGemms {
    /// Destroys the handle. The card's context must be current and idle.
    pub(crate) fn close(&self, library: &LazyCublas) {
        let handle = lock(&self.state).handle.take();
        if let (Some(handle), Some(blas)) = (handle, &*lock(&library.open)) {
            blas.destroy(handle);
        }
    }
}

impl State {
    fn handle(&mut self, blas: &CublasLt) -> Result<Handle, LibraryError> {
        match self.handle {
            Some(handle) => Ok(handle),
            None => {
                let handle = blas.create().map_err(|code| cublas::broken(blas, code))?;
                self.handle = Some(handle);
                Ok(handle)
            }
        }
    }

    fn plan(&mut self, blas: &CublasLt, handle: Handle, gemm: &RawGemm) -> Result<Option<&GemmPlan>, Code> {
        let key = describe(gemm);
        let vacant = match self.plans.entry(key) {
            Entry::Occupied(known) => return Ok(Some(known.into_mut())),
            Entry::Vacant(vacant) => vacant,
        };
        let bias = gemm.bias.map_or(0, |(at, _)| at.raw);
        let without_bias = MatmulKey { bias_alignment: None, ..key };
        let found = match blas.plan(handle, &key, bias)? {
            None if key.bias_alignment.is_some() => blas.plan(handle, &without_bias, 0)?,
            found => found,
        };
        Ok(found.map(|plan| &*vacant.insert(plan)))
    }
}

impl CudaDriver {
    /// Opens the library, creates the card's handle, and loads our own kernels for GEMMs: all device memory that GEMMs need
    /// besides the library's kernels.
    pub(super) fn open_gemms(&self, card: usize) -> Result<(), DeviceError> {
        self.enter(card, "preparing GEMMs")?;
        let blas = self.blas.get(self.version)?;
        lock(&self.cuda_card(card)?.gemms.state).handle(&blas)?;
        gemm_init::KERNELS.iter().try_for_each(|kernel| self.load(card, kernel).map(drop))
    }

    pub(super) fn queue_gemm(&self, card: usize, stream: StreamId, p: &RawGemm) -> Result<(), DeviceError> {
        let refused = |problem: String| DeviceError::Gemm { gemm: p.shape.to_string(), problem };
        if p.c.1 == 0 {
            return Ok(());
        }
        if p.shape.dtype == DType::F64 {
            return Err(refused("GEMMs of F64 run on the CPU and on simulated cards".to_owned()));
        }
        self.enter(card, "queueing a GEMM")?;
        if p.shape.k == 0 {
            return self.init_output(card, stream, p);
        }
        let blas = self.blas.get(self.version)?;
        let mut state = lock(&self.cuda_card(card)?.gemms.state);
        let handle = state.handle(&blas)?;
        let failed = |code: Code| self.gemm_failed(card, &blas, code, &p.shape);
        let plan = state.plan(&blas, handle, p).map_err(failed)?;
        let plan = plan.ok_or_else(|| refused(format!("{} has no algorithm for it", blas.found.name)))?;
        let bias_first = p.bias.is_some() && !plan.adds_bias;
        if bias_first {
            self.init_output(card, stream, p)?;
        }
        let call = GemmCall {
            a: p.b.0.raw,
            b: p.a.0.raw,
            d: p.c.0.raw,
            bias: p.bias.map(|(at, _)| at.raw),
            workspace: p.workspace.map_or(0, |(at, _)| at.raw),
            alpha: p.shape.alpha as f32,
            beta: if p.shape.accumulate || bias_first { 1.0 } else { 0.0 },
            stream: stream as Handle,
        };
        blas.run(handle, plan, &call).map_err(failed)
    }

    /// Initialises C for a GEMM that accumulates: zeros or the old C, plus the bias.
    fn init_output(&self, card: usize, stream: StreamId, p: &RawGemm) -> Result<(), DeviceError> {
        let Gemm { m, n, batch, c, accumulate, out, .. } = p.shape;
        if accumulate && p.bias.is_none() {
            return Ok(());
        }
        let kernel = gemm_init::kernel(out);
        let id = self.load(card, kernel)?;
        // Without a bias nothing is read there.
        let bias = p.bias.unwrap_or((p.c.0, 0));
        let args = kernel.bind_addresses(GemmInitArgs {
            c: p.c,
            bias,
            m,
            n,
            batch,
            stride: c.stride,
            batch_stride: c.batch_stride,
            accumulate: accumulate.into(),
            has_bias: p.bias.is_some().into(),
        })?;
        let elements = u64::from(m) * u64::from(n) * u64::from(batch);
        self.launch(card, stream, (kernel, id), Grid::cover(elements, gemm_init::THREADS), &args)
    }

    /// cuBLASLt has no error code for a lost card, so the driver is asked.
    fn gemm_failed(&self, card: usize, blas: &CublasLt, code: Code, shape: &Gemm) -> DeviceError {
        let during = "queueing a GEMM";
        self.loss(card, during).unwrap_or_else(|| {
            let what = format!("{shape}: {}", blas.describe(code));
            DeviceError::Failed { card, during, what }
        })
    }
}

/// A GEMM in cuBLASLt's terms.
fn describe(p: &RawGemm) -> MatmulKey {
    let Gemm { m, n, k, batch, dtype, out, a, b, c, .. } = p.shape;
    let columns = |operand: Operand, dtype: DType, (rows, columns): (u32, u32), at: Address| {
        let (rows, columns) = if operand.transposed { (columns, rows) } else { (rows, columns) };
        let apart = if batch > 1 { operand.batch_stride * dtype.bytes() } else { 0 };
        MatrixLayout {
            dtype,
            // Our stored row is a cuBLASLt column. With a single row, the stride is meaningless.
            rows: columns.into(),
            columns: rows.into(),
            stride: if rows > 1 { operand.stride } else { operand.stride.max(columns) }.into(),
            batch,
            batch_stride: operand.batch_stride,
            alignment: alignment(at.raw | apart),
        }
    };
    MatmulKey {
        a: (columns(b, dtype, (k, n), p.b.0), b.transposed),
        b: (columns(a, dtype, (m, k), p.a.0), a.transposed),
        d: columns(c, out, (m, n), p.c.0),
        bias_alignment: p.bias.map(|(at, _)| alignment(at.raw)),
        workspace_bytes: p.workspace.map_or(0, |(_, bytes)| bytes),
    }
}

/// The largest power of two that divides `address`, at most [`LARGEST_ALIGNMENT`].
fn alignment(address: u64) -> u32 {
    (1u64 << (address | LARGEST_ALIGNMENT).trailing_zeros()) as u32
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
