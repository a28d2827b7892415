//! Products on a card: row-major as we write them, column-major as cuBLASLt reads them.
//!
//! A row-major matrix is the transpose of a column-major one in the same memory, so `C = op(A)·op(B)` is asked for as
//! `Cᵀ = op(B)ᵀ·op(A)ᵀ`: the factors change places, nothing is moved, and a bias along our columns runs along its rows,
//! which is where the library adds one.
//!
//! The algorithm is asked for once for each shape, layout and alignment, and kept for as long as the process lives: the
//! same GEMM gives the same bits every time.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::CudaDriver;
use super::api::{Code, Handle};
use super::cublas::{self, Blas, Columns, Description, GemmCall, GemmPlan};
use crate::driver::{Address, Driver as _, StreamId};
use crate::error::DeviceError;
use crate::gemm::{Gemm, Operand, RawGemm};
use crate::kernel::{DType, Grid};
use crate::kernels::gemm_base::{self, GemmBaseArgs};
use crate::library::{LibraryError, Search};

/// The most that an address is asked to be aligned to: no algorithm wants more.
const LARGEST_ALIGNMENT: u64 = 256;

/// Where the library comes from. It is opened when it is first needed.
pub(crate) struct BlasDoor {
    search: Search,
    open: Mutex<Option<Arc<Blas>>>,
}

impl BlasDoor {
    pub(crate) fn new(search: &Search) -> BlasDoor {
        BlasDoor { search: search.clone(), open: Mutex::new(None) }
    }

    #[cfg(test)]
    pub(crate) fn opened(blas: Blas) -> BlasDoor {
        let search = Search::only_under(std::path::Path::new("no such folder"));
        BlasDoor { search, open: Mutex::new(Some(Arc::new(blas))) }
    }

    /// The library that suits a driver of this version.
    pub(crate) fn get(&self, driver: i32) -> Result<Arc<Blas>, LibraryError> {
        let mut place = lock(&self.open);
        if let Some(blas) = &*place {
            return Ok(Arc::clone(blas));
        }
        let blas = Arc::new(Blas::open_in(&self.search, Some(driver.unsigned_abs() / 1000))?);
        *place = Some(Arc::clone(&blas));
        Ok(blas)
    }
}

/// What one card needs for GEMMs.
#[derive(Default)]
pub(crate) struct Products {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The library's handle, from the first GEMM to the closing of the card.
    handle: Option<Handle>,
    /// Descriptors are in host memory: they outlive the card's context.
    plans: HashMap<Description, GemmPlan>,
}

impl Products {
    /// Gives the handle back. The card's context must be current and idle.
    pub(crate) fn close(&self, door: &BlasDoor) {
        let handle = lock(&self.state).handle.take();
        if let (Some(handle), Some(blas)) = (handle, &*lock(&door.open)) {
            blas.destroy(handle);
        }
    }
}

impl State {
    fn handle(&mut self, blas: &Blas) -> Result<Handle, LibraryError> {
        match self.handle {
            Some(handle) => Ok(handle),
            None => {
                let handle = blas.create().map_err(|code| cublas::broken(blas, code))?;
                self.handle = Some(handle);
                Ok(handle)
            }
        }
    }

    fn plan(&mut self, blas: &Blas, handle: Handle, gemm: &RawGemm) -> Result<Option<&GemmPlan>, Code> {
        let whole = describe(gemm);
        let vacant = match self.plans.entry(whole) {
            Entry::Occupied(known) => return Ok(Some(known.into_mut())),
            Entry::Vacant(vacant) => vacant,
        };
        let bias = gemm.bias.map_or(0, |(at, _)| at.raw);
        let alone = Description { bias_alignment: None, ..whole };
        let found = match blas.plan(handle, &whole, bias)? {
            None if whole.bias_alignment.is_some() => blas.plan(handle, &alone, 0)?,
            found => found,
        };
        Ok(found.map(|plan| &*vacant.insert(plan)))
    }
}

impl CudaDriver {
    /// Opens the library, makes the card's handle, and loads our own part: what GEMMs take of a card besides the
    /// library's kernels.
    pub(super) fn open_gemms(&self, card: usize) -> Result<(), DeviceError> {
        self.enter(card, "preparing GEMMs")?;
        let blas = self.blas.get(self.version)?;
        lock(&self.seat(card)?.gemms.state).handle(&blas)?;
        gemm_base::KERNELS.iter().try_for_each(|kernel| self.load(card, kernel).map(drop))
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
            return self.lay_base(card, stream, p);
        }
        let blas = self.blas.get(self.version)?;
        let mut state = lock(&self.seat(card)?.gemms.state);
        let handle = state.handle(&blas)?;
        let answered = |code: Code| self.gemm_failed(card, &blas, code, &p.shape);
        let plan = state.plan(&blas, handle, p).map_err(answered)?;
        let plan = plan.ok_or_else(|| refused(format!("{} has no algorithm for it", blas.found.name)))?;
        let bias_first = p.bias.is_some() && !plan.adds_bias;
        if bias_first {
            self.lay_base(card, stream, p)?;
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
        blas.run(handle, plan, &call).map_err(answered)
    }

    /// Makes C what the GEMM is added to: zeros or what it holds, and the bias.
    fn lay_base(&self, card: usize, stream: StreamId, p: &RawGemm) -> Result<(), DeviceError> {
        let Gemm { m, n, batch, c, accumulate, out, .. } = p.shape;
        if accumulate && p.bias.is_none() {
            return Ok(());
        }
        let kernel = gemm_base::kernel(out);
        let id = self.load(card, kernel)?;
        // Without a bias nothing is read there.
        let bias = p.bias.unwrap_or((p.c.0, 0));
        let args = kernel.bind_addresses(GemmBaseArgs {
            c: p.c,
            bias,
            m,
            n,
            batch,
            stride: c.stride,
            batch_stride: c.batch_stride,
            keeps: accumulate.into(),
            has_bias: p.bias.is_some().into(),
        })?;
        let elements = u64::from(m) * u64::from(n) * u64::from(batch);
        self.launch(card, stream, (kernel, id), Grid::cover(elements, gemm_base::THREADS), &args)
    }

    /// The library has no answer of its own for a card that is lost: the driver is asked.
    fn gemm_failed(&self, card: usize, blas: &Blas, code: Code, shape: &Gemm) -> DeviceError {
        let during = "queueing a GEMM";
        let alive = self.opened(card, during).and_then(|open| {
            // SAFETY: the stream lives until `close`, and has work only while memory is reserved.
            self.check(card, during, unsafe { (self.api.cuStreamSynchronize)(open.service) })
        });
        if let Err(lost @ DeviceError::Lost { .. }) = alive {
            return lost;
        }
        let what = format!("{shape}: {}", blas.describe(code));
        DeviceError::Failed { card, during, what }
    }
}

/// A GEMM in the library's terms.
fn describe(p: &RawGemm) -> Description {
    let Gemm { m, n, k, batch, dtype, out, a, b, c, .. } = p.shape;
    let columns = |operand: Operand, dtype: DType, (rows, columns): (u32, u32), at: Address| {
        let (rows, columns) = if operand.transposed { (columns, rows) } else { (rows, columns) };
        let apart = if batch > 1 { operand.batch_stride * dtype.bytes() } else { 0 };
        Columns {
            dtype,
            // A stored row is a column of theirs. With one row alone its stride says nothing.
            rows: columns.into(),
            columns: rows.into(),
            stride: if rows > 1 { operand.stride } else { operand.stride.max(columns) }.into(),
            batch,
            batch_stride: operand.batch_stride,
            alignment: alignment(at.raw | apart),
        }
    };
    Description {
        a: (columns(b, dtype, (k, n), p.b.0), b.transposed),
        b: (columns(a, dtype, (m, k), p.a.0), a.transposed),
        d: columns(c, out, (m, n), p.c.0),
        bias_alignment: p.bias.map(|(at, _)| alignment(at.raw)),
        workspace_bytes: p.workspace.map_or(0, |(_, bytes)| bytes),
    }
}

/// The largest power of two that divides `place`, up to what matters.
fn alignment(place: u64) -> u32 {
    (1u64 << (place | LARGEST_ALIGNMENT).trailing_zeros()) as u32
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
