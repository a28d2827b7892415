//! A GEMM on host memory, on the calling thread: for GEMMs inside host kernels.

use gemm::Parallelism;

use crate::kernel::Element;

/// f32 and f64: the element types of GEMMs on the host.
pub trait GemmFloat: Element + sealed::HostFloat {}

impl GemmFloat for f32 {}
impl GemmFloat for f64 {}

mod sealed {
    pub trait HostFloat: Copy + std::ops::Add<Output = Self> + 'static {
        const ZERO: Self;
        const ONE: Self;
        fn from_f64(x: f64) -> Self;
    }

    impl HostFloat for f32 {
        const ZERO: f32 = 0.0;
        const ONE: f32 = 1.0;
        fn from_f64(x: f64) -> f32 {
            x as f32
        }
    }

    impl HostFloat for f64 {
        const ZERO: f64 = 0.0;
        const ONE: f64 = 1.0;
        fn from_f64(x: f64) -> f64 {
            x
        }
    }
}

/// A matrix that is read, row-major in a slice.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a, T> {
    /// Its elements.
    pub values: &'a [T],
    /// Elements from one stored row to the next.
    pub stride: usize,
    /// Whether it is stored as its transpose.
    pub transposed: bool,
}

impl<'a, T> Matrix<'a, T> {
    /// A matrix stored as it is used.
    pub fn rows(values: &'a [T], stride: usize) -> Matrix<'a, T> {
        Matrix { values, stride, transposed: false }
    }

    /// A matrix stored as its transpose.
    pub fn transposed(values: &'a [T], stride: usize) -> Matrix<'a, T> {
        Matrix { values, stride, transposed: true }
    }

    fn holds(&self, rows: usize, columns: usize) -> bool {
        let (rows, columns) = if self.transposed { (columns, rows) } else { (rows, columns) };
        fits(self.values.len(), self.stride, rows, columns)
    }

    fn raw(&self) -> RawMatrix<T> {
        RawMatrix { at: self.values.as_ptr(), stride: self.stride, transposed: self.transposed }
    }
}

/// `C[m, n] = alpha · A[m, k] · B[k, n]`; with `accumulate` the result is added to C. `c_stride` is the row stride of C.
///
/// Runs on the calling thread. The same shapes, strides and values give the same bits. Panics if a slice is too short for
/// its shape, which is a bug in the caller.
pub fn gemm_into<T: GemmFloat>(
    [m, n, k]: [usize; 3],
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    (c, c_stride): (&mut [T], usize),
    alpha: T,
    accumulate: bool,
) {
    assert!(a.holds(m, k), "A of [{m}, {k}] in {} elements, row stride {}", a.values.len(), a.stride);
    assert!(b.holds(k, n), "B of [{k}, {n}] in {} elements, row stride {}", b.values.len(), b.stride);
    assert!(fits(c.len(), c_stride, m, n), "C of [{m}, {n}] in {} elements, row stride {c_stride}", c.len());
    // SAFETY: the asserts checked that all three fit their slices, and `c` is borrowed mutably.
    unsafe { multiply([m, n, k], a.raw(), b.raw(), (c.as_mut_ptr(), c_stride), alpha, accumulate) };
}

fn fits(len: usize, stride: usize, rows: usize, columns: usize) -> bool {
    let used = || (rows - 1).checked_mul(stride)?.checked_add(columns);
    rows == 0 || columns == 0 || ((rows == 1 || stride >= columns) && used().is_some_and(|used| used <= len))
}

/// A matrix whose bounds the caller has checked.
pub(crate) struct RawMatrix<T> {
    pub(crate) at: *const T,
    pub(crate) stride: usize,
    pub(crate) transposed: bool,
}

impl<T> RawMatrix<T> {
    /// Row and column stride of op(matrix).
    fn strides(&self) -> (isize, isize) {
        let stride = self.stride as isize;
        if self.transposed { (1, stride) } else { (stride, 1) }
    }
}

/// [`gemm_into`] without bounds checks.
///
/// # Safety
/// The three matrices must be in live memory. Until this returns, nothing else may access C or write A or B.
pub(crate) unsafe fn multiply<T: GemmFloat>(
    [m, n, k]: [usize; 3],
    a: RawMatrix<T>,
    b: RawMatrix<T>,
    (c, c_stride): (*mut T, usize),
    alpha: T,
    accumulate: bool,
) {
    let ((a_row, a_column), (b_row, b_column)) = (a.strides(), b.strides());
    if m == 0 || n == 0 {
        return;
    }
    if k == 0 {
        // SAFETY: rows of C, by this function's contract.
        let row = |i| unsafe { std::slice::from_raw_parts_mut(c.add(i * c_stride), n) };
        return (0..if accumulate { 0 } else { m }).for_each(|i| row(i).fill(T::ZERO));
    }
    // SAFETY: by this function's contract.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c,
            1,
            c_stride as isize,
            accumulate,
            a.at,
            a_column,
            a_row,
            b.at,
            b_column,
            b_row,
            T::ONE,
            alpha,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests;
