//! GEMMs on a stream. They are separate from kernels because NVIDIA cards run them with cuBLASLt.
//!
//! Everything is row-major. A GEMM is checked against its memory before it is queued, like a kernel's arguments.

use std::fmt;

use crate::arena::View;
use crate::bytes::BLOCK_ALIGN;
use crate::driver::{Address, RawArg};
use crate::error::DeviceError;
use crate::kernel::DType;

/// `C = alpha · op(A) · op(B)`, of `[m, k]` and `[k, n]`, for each of `batch` matrices.
///
/// With `accumulate` the result is added to C; with a bias, `bias[n]` is added to every row. bf16 is accumulated in f32,
/// and the result is rounded once. `k = 0` gives zeros, or C, or the bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gemm {
    /// Element type of A and B: F32, F64 or BF16.
    pub dtype: DType,
    /// Element type of C and of the bias: that of A and B, or F32 for BF16.
    pub out: DType,
    /// Rows of op(A) and of C.
    pub m: u32,
    /// Columns of op(B) and of C.
    pub n: u32,
    /// Columns of op(A), rows of op(B).
    pub k: u32,
    /// The number of GEMMs of this shape.
    pub batch: u32,
    /// The layout of A.
    pub a: Operand,
    /// The layout of B.
    pub b: Operand,
    /// The layout of C, never transposed. The matrices of a batch may follow each other, or be side by side as columns of
    /// one larger matrix; they must not overlap.
    pub c: Operand,
    /// Scales op(A)·op(B), not the bias or C.
    pub alpha: f64,
    /// Whether the result is added to C.
    pub accumulate: bool,
}

/// The row-major layout of a matrix in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Operand {
    /// Whether it is stored as its transpose: op(A) of `[m, k]` as `k` rows of `m`.
    pub transposed: bool,
    /// Elements from one stored row to the next.
    pub stride: u32,
    /// Elements from one matrix of the batch to the next; 0 if all use the same.
    pub batch_stride: u64,
}

impl Operand {
    /// Rows of `stride` elements, one matrix (or the same for all of a batch).
    pub const fn rows(stride: u32) -> Operand {
        Operand { transposed: false, stride, batch_stride: 0 }
    }

    /// The same memory, taken as the transpose.
    pub const fn transposed(self) -> Operand {
        Operand { transposed: !self.transposed, ..self }
    }

    /// The same with `batch_stride` elements between the matrices of a batch.
    pub const fn every(self, batch_stride: u64) -> Operand {
        Operand { batch_stride, ..self }
    }

    /// Stored rows and columns of a matrix that is used as `rows` by `columns`.
    fn stored(&self, rows: u32, columns: u32) -> (u64, u64) {
        let (rows, columns) = if self.transposed { (columns, rows) } else { (rows, columns) };
        (rows.into(), columns.into())
    }

    /// Elements from the first used one to the last, of `batch` matrices used as `rows` by `columns`; `None` on overflow.
    fn extent(&self, rows: u32, columns: u32, batch: u32) -> Option<u64> {
        let (rows, columns) = self.stored(rows, columns);
        if rows == 0 || columns == 0 || batch == 0 {
            return Some(0);
        }
        let one = (rows - 1) * u64::from(self.stride) + columns;
        self.batch_stride.checked_mul(u64::from(batch) - 1)?.checked_add(one)
    }
}

impl Gemm {
    /// A workspace for GEMMs of all sizes on all cards: NVIDIA's recommendation for its largest.
    pub const WORKSPACE_BYTES: u64 = 32 << 20;

    /// One GEMM of dense matrices: A as `[m, k]`, B as `[k, n]`, C as `[m, n]`.
    pub const fn dense(dtype: DType, [m, n, k]: [u32; 3]) -> Gemm {
        let (a, b, c) = (Operand::rows(k), Operand::rows(n), Operand::rows(n));
        Gemm { dtype, out: dtype, m, n, k, batch: 1, a, b, c, alpha: 1.0, accumulate: false }
    }

    /// The same of A stored as `[k, m]`, densely.
    pub const fn with_a_transposed(self) -> Gemm {
        Gemm { a: Operand { transposed: true, stride: self.m, ..self.a }, ..self }
    }

    /// The same of B stored as `[n, k]`, densely.
    pub const fn with_b_transposed(self) -> Gemm {
        Gemm { b: Operand { transposed: true, stride: self.k, ..self.b }, ..self }
    }

    /// Bytes of A, from the first used element to the last.
    #[cfg(test)]
    pub(crate) fn bytes_of_a(&self) -> u64 {
        self.a.extent(self.m, self.k, self.batch).unwrap_or(u64::MAX).saturating_mul(self.dtype.bytes())
    }

    /// Bytes of B.
    #[cfg(test)]
    pub(crate) fn bytes_of_b(&self) -> u64 {
        self.b.extent(self.k, self.n, self.batch).unwrap_or(u64::MAX).saturating_mul(self.dtype.bytes())
    }

    /// Bytes of C.
    #[cfg(test)]
    pub(crate) fn bytes_of_c(&self) -> u64 {
        self.c.extent(self.m, self.n, self.batch).unwrap_or(u64::MAX).saturating_mul(self.out.bytes())
    }

    /// Floating-point operations.
    pub fn flops(&self) -> f64 {
        2.0 * [self.m, self.n, self.k, self.batch].map(f64::from).iter().product::<f64>()
    }

    /// What is wrong with the GEMM, independent of its memory.
    fn problem(&self) -> Option<String> {
        let Gemm { m, n, batch, c, dtype, out, .. } = *self;
        if !matches!((dtype, out), (DType::F32 | DType::F64 | DType::BF16, _) if out == dtype)
            && (dtype, out) != (DType::BF16, DType::F32)
        {
            return Some(format!("there is no GEMM of {dtype:?} into {out:?}"));
        }
        if !self.alpha.is_finite() {
            return Some(format!("alpha is {}", self.alpha));
        }
        if c.transposed {
            return Some("C is never transposed".to_owned());
        }
        let operands = [("A", self.a, (m, self.k)), ("B", self.b, (self.k, n)), ("C", c, (m, n))];
        for (name, operand, (rows, columns)) in operands {
            let (rows, columns) = operand.stored(rows, columns);
            if rows > 1 && u64::from(operand.stride) < columns {
                return Some(format!("rows of {name} have {columns} elements and a stride of {}", operand.stride));
            }
        }
        let one = c.extent(m, n, 1).unwrap_or(u64::MAX);
        let behind = c.batch_stride >= one;
        let beside = c.batch_stride >= u64::from(n)
            && c.extent(1, n, batch).is_some_and(|width| m <= 1 || width <= u64::from(c.stride));
        (batch > 1 && one > 0 && !behind && !beside)
            .then(|| format!("matrices of C overlap with a batch stride of {}", c.batch_stride))
    }
}

impl fmt::Display for Gemm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Gemm { m, n, k, batch, .. } = self;
        let transposed = |operand: &Operand| if operand.transposed { "ᵀ" } else { "" };
        let (a, b) = (transposed(&self.a), transposed(&self.b));
        write!(f, "{batch} x [{m},{k}]{a}·[{k},{n}]{b} of {:?} into {:?}", self.dtype, self.out)
    }
}

/// A GEMM that was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawGemm {
    pub(crate) shape: Gemm,
    /// Address and used bytes of A, B and C.
    pub(crate) a: (Address, u64),
    pub(crate) b: (Address, u64),
    pub(crate) c: (Address, u64),
    pub(crate) bias: Option<(Address, u64)>,
    /// Scratch memory for the card. GEMMs on the host do not use it.
    pub(crate) workspace: Option<(Address, u64)>,
}

impl RawGemm {
    /// The memory it accesses, without the workspace.
    pub(crate) fn args(&self) -> Vec<RawArg> {
        let reads = [Some(self.a), Some(self.b), self.bias].into_iter().flatten();
        let reads = reads.map(|(at, bytes)| RawArg::Read { at, bytes });
        reads.chain([RawArg::Write { at: self.c.0, bytes: self.c.1 }]).collect()
    }
}

/// Checks the GEMM and its memory: types, strides, sizes from the shape, alignment, the right card, and that C overlaps
/// nothing that is read.
pub(crate) fn check(
    gemm: &Gemm,
    card: usize,
    [a, b, c]: [View<'_>; 3],
    bias: Option<View<'_>>,
    workspace: Option<View<'_>>,
) -> Result<RawGemm, DeviceError> {
    let wrong = |problem: String| DeviceError::Gemm { gemm: gemm.to_string(), problem };
    if let Some(problem) = gemm.problem() {
        return Err(wrong(problem));
    }
    let Gemm { m, n, k, batch, dtype, out, .. } = *gemm;
    let used = |name: &str, view: View<'_>, dtype: DType, elements: Option<u64>| {
        let (at, size) = (view.address(), dtype.bytes());
        if at.card != card {
            return Err(wrong(format!("{name} is on GPU {}, the stream is on GPU {card}", at.card)));
        }
        if !view.bytes().is_multiple_of(size) || !at.raw.is_multiple_of(size) {
            return Err(wrong(format!("{name} is not aligned to elements of {dtype:?}")));
        }
        match elements.and_then(|elements| elements.checked_mul(size)).filter(|bytes| *bytes <= view.bytes()) {
            Some(bytes) => Ok((at, bytes)),
            None => {
                let needs = elements.map_or("more than 2^64 elements".to_owned(), |n| format!("{n} elements"));
                Err(wrong(format!("{name} needs {needs}, given {}", view.bytes() / size)))
            }
        }
    };
    let raw = RawGemm {
        shape: *gemm,
        a: used("A", a, dtype, gemm.a.extent(m, k, batch))?,
        b: used("B", b, dtype, gemm.b.extent(k, n, batch))?,
        c: used("C", c, out, gemm.c.extent(m, n, batch))?,
        bias: bias.map(|bias| used("the bias", bias, out, Some(n.into()))).transpose()?,
        workspace: workspace.map(|view| used("the workspace", view, DType::U8, Some(view.bytes()))).transpose()?,
    };
    if let Some((at, _)) = raw.workspace.filter(|(at, _)| !at.raw.is_multiple_of(BLOCK_ALIGN)) {
        return Err(wrong(format!("the workspace at {:#x} is not aligned to {BLOCK_ALIGN} bytes", at.raw)));
    }
    let overlap = |a: (Address, u64), b: (Address, u64)| a.0.raw < b.0.raw + b.1 && b.0.raw < a.0.raw + a.1;
    let read = [("A", Some(raw.a)), ("B", Some(raw.b)), ("the bias", raw.bias)];
    let written = [("C", Some(raw.c)), ("the workspace", raw.workspace)];
    let pairs = read.iter().flat_map(|read| written.iter().map(move |written| (*written, *read)));
    let mut pairs = pairs.chain([(written[1], written[0])]);
    match pairs.find(|((_, a), (_, b))| a.zip(*b).is_some_and(|(a, b)| overlap(a, b))) {
        Some(((written, _), (other, _))) => Err(wrong(format!("{written} overlaps {other}"))),
        None => Ok(raw),
    }
}

#[cfg(test)]
mod tests;
