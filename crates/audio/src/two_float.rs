//! Numbers as unevaluated sums of two f32, about as precise as f64: the host side of `kernels/two_float.cuh`.
//!
//! Every operation here is one there, in the same order, and each rounds once: host and card compute the same bits. The
//! kernel's file names the algorithms.

use std::ops::{Add, Mul, Neg, Sub};

use crate::transform::{Complex, TransformReal};

/// The number `hi + lo`. Not normalized: `lo` may exceed half an ulp of `hi`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TwoFloat {
    pub(crate) hi: f32,
    pub(crate) lo: f32,
}

impl TwoFloat {
    /// `a + b`, and the error of that sum (Knuth's TwoSum), to which `rest` is added.
    fn sum(a: f32, b: f32, rest: f32) -> TwoFloat {
        let sum = a + b;
        let b_part = sum - a;
        let error = (a - (sum - b_part)) + (b - b_part);
        TwoFloat { hi: sum, lo: error + rest }
    }

    fn single(self) -> f32 {
        self.hi + self.lo
    }
}

/// [`f32::mul_add`] without its call to the C library, which builds for any x86-64 have: a frame takes 70 µs, not 110. In f64
/// the product is exact, and a sum that is not a tie of f32 rounds to f32 as the exact sum does.
fn fused(a: f32, b: f32, c: f32) -> f32 {
    const BITS_BELOW_F32: u64 = (1 << 29) - 1;
    const TIE: u64 = 1 << 28;
    let sum = f64::from(a) * f64::from(b) + f64::from(c);
    let is_tie = sum.to_bits() & BITS_BELOW_F32 == TIE;
    // Subnormal numbers have their ties elsewhere.
    let is_normal = sum.abs() >= f64::from(f32::MIN_POSITIVE) || sum == 0.0;
    if is_normal && !is_tie { sum as f32 } else { a.mul_add(b, c) }
}

impl Neg for TwoFloat {
    type Output = TwoFloat;
    fn neg(self) -> TwoFloat {
        TwoFloat { hi: -self.hi, lo: -self.lo }
    }
}

impl Add for TwoFloat {
    type Output = TwoFloat;
    fn add(self, b: TwoFloat) -> TwoFloat {
        TwoFloat::sum(self.hi, b.hi, self.lo + b.lo)
    }
}

impl Sub for TwoFloat {
    type Output = TwoFloat;
    fn sub(self, b: TwoFloat) -> TwoFloat {
        self + -b
    }
}

impl Mul for TwoFloat {
    type Output = TwoFloat;
    fn mul(self, b: TwoFloat) -> TwoFloat {
        let product = self.hi * b.hi;
        let error = fused(self.hi, b.hi, -product);
        TwoFloat { hi: product, lo: fused(self.lo, b.hi, fused(self.hi, b.lo, error)) }
    }
}

impl TransformReal for TwoFloat {
    fn of(value: f64) -> TwoFloat {
        let hi = value as f32;
        TwoFloat { hi, lo: (value - f64::from(hi)) as f32 }
    }

    fn fused(self, b: TwoFloat, c: TwoFloat) -> TwoFloat {
        let product = self * b;
        TwoFloat::sum(product.hi, c.hi, product.lo + c.lo)
    }

    fn half(self) -> TwoFloat {
        TwoFloat { hi: 0.5 * self.hi, lo: 0.5 * self.lo }
    }

    fn twice_minus(self, b: TwoFloat) -> TwoFloat {
        TwoFloat::sum(self.hi + self.hi, -b.hi, fused(2.0, self.lo, -b.lo))
    }

    fn windowed(apart: i32, far: i32, v: TwoFloat) -> TwoFloat {
        // Below 2^22 in magnitude: both conversions are exact.
        let [x, far] = [apart, far].map(|x| x as f32 / 65_536.0);
        let product = x * v.hi;
        let error = fused(x, v.hi, -product);
        TwoFloat::sum(product, far, fused(x, v.lo, error))
    }

    fn power((re, im): Complex<TwoFloat>) -> f32 {
        let (x, y) = (re.single(), im.single());
        x.mul_add(x, y * y)
    }

    fn ln(x: f32) -> f32 {
        const SQRT_HALF: u32 = 0x3f35_04f3;
        let bits = x.to_bits() + (1.0_f32.to_bits() - SQRT_HALF);
        let k = ((bits >> 23) as i32 - 127) as f32;
        let f = f32::from_bits((bits & 0x007f_ffff) + SQRT_HALF) - 1.0;
        let s = f / (2.0 + f);
        let z = s * s;
        let w = z * z;
        let odd = z * w.mul_add(0.284_987_87, 0.666_666_6);
        let even = w * w.mul_add(0.242_790_79, 0.400_009_72);
        let half_square = 0.5 * (f * f);
        let tail = s.mul_add(half_square + (odd + even), k * 9.058_001e-6);
        k.mul_add(0.693_138_1, (tail - half_square) + f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exact(x: TwoFloat) -> f64 {
        f64::from(x.hi) + f64::from(x.lo)
    }

    /// The most that an operation may be off, relative to its largest operand.
    const ERROR: f64 = 1.0 / (1_u64 << 44) as f64;

    proptest! {
        #[test]
        fn operations_are_about_as_precise_as_f64(a in -2.0..2.0_f64, b in -2.0..2.0_f64, c in -2.0..2.0_f64) {
            let [x, y, z] = [a, b, c].map(TwoFloat::of);
            for (found, expected) in [
                (x + y, a + b),
                (x - y, a - b),
                (x * y, a * b),
                (x.fused(y, z), a.mul_add(b, c)),
                (x.twice_minus(y), 2.0 * a - b),
                (x.half(), a / 2.0),
                (-x, -a),
            ] {
                prop_assert!((exact(found) - expected).abs() <= 8.0 * ERROR, "{found:?} for {expected}");
            }
        }

        #[test]
        fn a_fused_operation_rounds_once(a in any::<f32>(), b in any::<f32>(), c in any::<f32>(), shift in -60..60_i32) {
            let near = -(a * b) * (shift as f32).exp2();
            // Beside any numbers: digits in common, all digits in common, and the tie 2^24 + 1 with a sum on either side of it.
            let tie = (24_929.0, 673.0);
            for (a, b, c) in [(a, b, c), (a, b, near), (a, b, -(a * b)), (tie.0, tie.1, 1e-18), (tie.0, tie.1, -1e-18)] {
                let (found, expected) = (fused(a, b, c), a.mul_add(b, c));
                prop_assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(), "{a} {b} {c}");
            }
        }

        #[test]
        fn a_cancelled_sum_keeps_what_is_left(a in 0.5..1.0_f64, bits in 30..44_i32) {
            let small = 2.0_f64.powi(-bits);
            let found = exact(TwoFloat::of(a + small) - TwoFloat::of(a));
            prop_assert!((found - small).abs() <= 2.0 * ERROR, "{found} for {small}");
        }

        #[test]
        fn samples_are_windowed_exactly(apart in -65_536..=65_536_i32, far in -32_768..=32_768_i32, v in 0.0..1.0_f64) {
            let found = exact(TwoFloat::windowed(apart, far, TwoFloat::of(v)));
            let expected = (f64::from(apart) * v + f64::from(far)) / 65_536.0;
            prop_assert!((found - expected).abs() <= 4.0 * ERROR, "{found} for {expected}");
        }

        #[test]
        fn the_logarithm_is_within_an_ulp(x in 1e-5..1e4_f32) {
            let (found, expected) = (TwoFloat::ln(x), f64::from(x).ln());
            let ulp = f64::from(f32::EPSILON) * expected.abs().max(f64::from(x - 1.0).abs()).max(1e-6);
            prop_assert!((f64::from(found) - expected).abs() <= ulp, "ln {x}: {found} for {expected}");
        }
    }

    /// The constants in the CUDA text are written with more digits; they are the same numbers.
    #[test]
    fn the_kernels_polynomial_is_this_one() {
        let cuda = include_str!("kernels/two_float.cuh");
        for (written, here) in [
            ("0.28498786688f", 0.284_987_87_f32),
            ("0.66666662693f", 0.666_666_6),
            ("0.24279078841f", 0.242_790_79),
            ("0.40000972152f", 0.400_009_72),
            ("9.0580006145e-6f", 9.058_001e-6),
            ("0.69313812256f", 0.693_138_1),
        ] {
            assert!(cuda.contains(written), "{written}");
            assert_eq!(written.trim_end_matches('f').parse::<f32>().unwrap().to_bits(), here.to_bits(), "{written}");
        }
    }
}
