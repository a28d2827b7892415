//! The safe GEMM: results, and bounds checks.

use super::*;

#[test]
fn a_gemm_of_slices_matches_the_expected_values() {
    // [2,3]·[3,2], A stored as its transpose in rows of 2, B in rows of 5, C in rows of 4.
    let a = [1., 4., 2., 5., 3., 6.];
    let b = [1., 2., 9., 9., 9., 3., 4., 9., 9., 9., 5., 6.];
    let check = |accumulate: bool, expected: [f64; 6]| {
        let mut c = [1.0; 6];
        gemm_into([2, 2, 3], Matrix::transposed(&a, 2), Matrix::rows(&b, 5), (&mut c, 4), 2.0, accumulate);
        assert_eq!(c, expected);
    };
    check(false, [44., 56., 1., 1., 98., 128.]);
    check(true, [45., 57., 1., 1., 99., 129.]);
}

#[test]
fn with_k_0_c_is_zero_or_unchanged() {
    for (accumulate, expected) in [(false, 0.0), (true, 3.0)] {
        let mut c = [3f32; 4];
        gemm_into([2, 2, 0], Matrix::rows(&[], 0), Matrix::rows(&[], 2), (&mut c, 2), 1.0, accumulate);
        assert_eq!(c, [expected; 4]);
    }
}

#[test]
fn slices_too_short_for_their_shape_are_refused() {
    let run = |lens: [usize; 3], strides: [usize; 3]| {
        let [a, b, mut c] = lens.map(|len| vec![0f32; len]);
        let (a, b) = (Matrix::rows(&a, strides[0]), Matrix::transposed(&b, strides[1]));
        let gemm = || gemm_into([3, 4, 5], a, b, (&mut c, strides[2]), 1.0, false);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(gemm)).is_ok()
    };
    assert!(run([15, 20, 12], [5, 5, 4]), "exactly enough");
    for short in [[14, 20, 12], [15, 19, 12], [15, 20, 11]] {
        assert!(!run(short, [5, 5, 4]), "{short:?}");
    }
    for overlapping in [[4, 5, 4], [5, 4, 4], [5, 5, 3], [usize::MAX, 5, 4]] {
        assert!(!run([99, 99, 99], overlapping), "{overlapping:?}");
    }
}
