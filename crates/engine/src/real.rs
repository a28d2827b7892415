//! The floating-point types of host kernels: f32 and f64, and bf16 as a storage type for f32.
//!
//! [`Real::store`] flushes subnormal numbers to zero. A multiplication with a subnormal operand or result takes about fifty
//! times as long (48 ns instead of 0.9 on an Intel Xeon), one such lane slows its whole vector register, and a GEMM reads each
//! element hundreds of times. Rust does not support the CPU's flush-to-zero mode, so host kernels flush when they store.

use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

use half::bf16;
use tandem_device::Element;

/// An element type of tensors.
pub trait Real: Element {
    /// The accumulator type: what arithmetic on it is done in.
    type Acc: Float;
    /// Its value in the accumulator type.
    fn load(self) -> Self::Acc;
    /// The nearest element; zero if that is subnormal.
    fn store(value: Self::Acc) -> Self;
}

/// A type that arithmetic is done in. The transcendental functions of `f32` are polynomials that vectorise, accurate to a few
/// units in the last place; those of `f64` are the standard library's.
pub trait Float:
    Real<Acc = Self>
    + Copy
    + PartialOrd
    + Default
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + std::iter::Sum
{
    /// From a constant.
    fn of(value: f64) -> Self;
    /// To f64.
    fn to_f64(self) -> f64;
    /// e^x.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// ln(1 + x).
    fn ln_1p(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// The error function.
    fn erf(self) -> Self;
    /// Magnitude.
    fn abs(self) -> Self;
    /// The maximum.
    fn max(self, other: Self) -> Self;
    /// The minimum.
    fn min(self, other: Self) -> Self;
    /// Whether it is neither infinite nor NaN.
    fn is_finite(self) -> bool;
    /// Zero if it is subnormal, otherwise unchanged. A comparison and a mask, no branch.
    fn flushed(self) -> Self;
    /// Zero.
    fn zero() -> Self {
        Self::default()
    }
}

impl Real for f32 {
    type Acc = f32;
    #[inline(always)]
    fn load(self) -> f32 {
        self
    }
    #[inline(always)]
    fn store(value: f32) -> f32 {
        value.flushed()
    }
}

impl Real for f64 {
    type Acc = f64;
    #[inline(always)]
    fn load(self) -> f64 {
        self
    }
    #[inline(always)]
    fn store(value: f64) -> f64 {
        value.flushed()
    }
}

impl Real for bf16 {
    type Acc = f32;
    #[inline(always)]
    fn load(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn store(value: f32) -> bf16 {
        bf16::from_f32(value.flushed())
    }
}

macro_rules! plain_float {
    ($t:ident) => {
        #[inline(always)]
        fn of(value: f64) -> $t {
            value as $t
        }
        #[inline(always)]
        fn to_f64(self) -> f64 {
            f64::from(self)
        }
        #[inline(always)]
        fn sqrt(self) -> $t {
            $t::sqrt(self)
        }
        #[inline(always)]
        fn abs(self) -> $t {
            $t::abs(self)
        }
        #[inline(always)]
        fn max(self, other: $t) -> $t {
            if self > other { self } else { other }
        }
        #[inline(always)]
        fn min(self, other: $t) -> $t {
            if self < other { self } else { other }
        }
        #[inline(always)]
        fn is_finite(self) -> bool {
            $t::is_finite(self)
        }
        #[inline(always)]
        fn flushed(self) -> $t {
            if $t::abs(self) < $t::MIN_POSITIVE { 0.0 } else { self }
        }
    };
}

impl Float for f64 {
    plain_float!(f64);
    fn exp(self) -> f64 {
        f64::exp(self)
    }
    fn ln(self) -> f64 {
        f64::ln(self)
    }
    fn ln_1p(self) -> f64 {
        f64::ln_1p(self)
    }
    fn tanh(self) -> f64 {
        f64::tanh(self)
    }
    fn erf(self) -> f64 {
        libm::erf(self)
    }
}

impl Float for f32 {
    plain_float!(f32);

    /// 2^n · 2^f with a polynomial for 2^f, |f| ≤ ½. Zero below -87.3, close to where the result would be subnormal.
    #[inline(always)]
    fn exp(self) -> f32 {
        let x = Float::min(Float::max(self, -87.3), 88.7);
        // Adding 1.5·2^23 rounds to an integer, which is then in the low bits. Bit for bit the result of `round_ties_even`,
        // which is a function call on targets without SSE 4.1: 3.6 ns per element instead of 1.5 ns.
        const SHIFT: f32 = 12_582_912.0;
        let shifted = x * std::f32::consts::LOG2_E + SHIFT;
        let n = shifted - SHIFT;
        // ln 2 in two parts, so that the remainder is exact.
        let r = (x - n * 0.693_359_4) + n * 2.121_944_4e-4;
        let p = 1.987_569_1e-4;
        let p = p * r + 1.398_199_9e-3;
        let p = p * r + 8.333_452e-3;
        let p = p * r + 4.166_579_6e-2;
        let p = p * r + 1.666_666_5e-1;
        let p = p * r + 0.5;
        let p = p * r * r + r + 1.0;
        // Two factors, because 2^128 is not a float and 2^-127 is subnormal.
        let n = (shifted.to_bits() as i32).wrapping_sub(SHIFT.to_bits() as i32);
        let (low, high) = (n >> 1, n - (n >> 1));
        let scale = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
        let result = p * scale(low) * scale(high);
        // min and max turned a NaN into a number.
        if self.is_nan() {
            self
        } else if self < -87.3 {
            0.0
        } else {
            result
        }
    }

    #[inline(always)]
    fn ln(self) -> f32 {
        ln_f32(self)
    }

    /// ln(u) with u = 1 + x, plus a correction for the rounding of the sum.
    #[inline(always)]
    fn ln_1p(self) -> f32 {
        let u = 1.0 + self;
        let correction = (self - (u - 1.0)) / u;
        let correction = if u > 0.0 && u < f32::INFINITY { correction } else { 0.0 };
        ln_f32(u) + correction
    }

    /// (e^2x - 1) / (e^2x + 1), and an odd polynomial near zero, where the fraction cancels.
    #[inline(always)]
    fn tanh(self) -> f32 {
        let x = Float::abs(self);
        let e = Float::exp(Float::min(x, 20.0) * 2.0);
        let far = 1.0 - 2.0 / (e + 1.0);
        let s = self * self;
        let p = -5.704_988_7e-3;
        let p = p * s + 2.063_909e-2;
        let p = p * s - 5.373_971e-2;
        let p = p * s + 1.333_144_2e-1;
        let p = p * s - 3.333_328e-1;
        let near = self + self * s * p;
        let far = if self < 0.0 { -far } else { far };
        if self.is_nan() {
            self
        } else if x < 0.625 {
            near
        } else {
            far
        }
    }

    #[inline(always)]
    fn erf(self) -> f32 {
        erf_f32(self)
    }
}

/// ln in f32: x = 2^n·m with m around 1, and ln m = 2·atanh((m - 1) / (m + 1)) by its series.
#[inline(always)]
fn ln_f32(x: f32) -> f32 {
    // Subnormal numbers are scaled by 2^23.
    let low = x < f32::MIN_POSITIVE;
    let bits = (if low { x * 8_388_608.0 } else { x }).to_bits() as i32;
    // The bits of √½: m is in √½..√2.
    let above = bits.wrapping_sub(0x3F35_04F3);
    let n = (above >> 23) as f32 - if low { 23.0 } else { 0.0 };
    let m = f32::from_bits((above & 0x007F_FFFF).wrapping_add(0x3F35_04F3) as u32);
    let z = (m - 1.0) / (m + 1.0);
    let s = z * z;
    let p = 0.222_222_22;
    let p = p * s + 0.285_714_3;
    let p = p * s + 0.4;
    let p = p * s + 0.666_666_7;
    let small = 2.0 * z + z * s * p;
    // ln 2 in two parts, so that multiplying by the larger one is exact.
    let result = n * 0.693_359_4 + (small - n * 2.121_944_4e-4);
    if x > 0.0 && x < f32::INFINITY {
        result
    } else if x == 0.0 {
        f32::NEG_INFINITY
    } else if x > 0.0 {
        x
    } else {
        f32::NAN
    }
}

/// erf in f32: its series below one half, and 1 - t·exp(-x² + p(t)) above.
#[inline(always)]
fn erf_f32(x: f32) -> f32 {
    let a = Float::abs(x);
    let s = x * x;
    let p = 1.205_533_3e-4_f32;
    let p = p * s - 8.548_327e-4;
    let p = p * s + 5.223_978e-3;
    let p = p * s - 2.686_617_1e-2;
    let p = p * s + 1.128_379_2e-1;
    let p = p * s - 3.761_263_9e-1;
    let p = p * s + std::f32::consts::FRAC_2_SQRT_PI;
    let near = x * p;
    let t = 1.0 / (1.0 + 0.5 * a);
    let q = 0.170_872_77_f32;
    let q = q * t - 0.822_152_23;
    let q = q * t + 1.488_515_9;
    let q = q * t - 1.135_204;
    let q = q * t + 0.278_868_07;
    let q = q * t - 0.186_288_06;
    let q = q * t + 0.096_784_18;
    let q = q * t + 0.374_091_96;
    let q = q * t + 1.000_023_7;
    let q = q * t - 1.265_512_2;
    let far = 1.0 - t * Float::exp(q - s);
    let far = if x < 0.0 { -far } else { far };
    if x.is_nan() {
        x
    } else if a < 0.5 {
        near
    } else {
        far
    }
}

/// Runs `$body` with `$t` as the Rust type of a floating-point element type; other types are an error of `$op`.
#[macro_export]
macro_rules! for_real {
    ($op:expr, $dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            tandem_device::DType::F32 => {
                type $t = f32;
                $body
            }
            tandem_device::DType::F64 => {
                type $t = f64;
                $body
            }
            tandem_device::DType::BF16 => {
                type $t = half::bf16;
                $body
            }
            dtype => return Err($crate::EngineError::Precision { op: $op, dtype }),
        }
    };
}

/// A kernel's name for the element type `$t`: `name_f32`, `name_bf16`, `name_f64`.
#[macro_export]
macro_rules! named_for {
    ($t:ty, $name:literal) => {
        match <$t as tandem_device::Element>::DTYPE {
            tandem_device::DType::BF16 => concat!($name, "_bf16"),
            tandem_device::DType::F64 => concat!($name, "_f64"),
            _ => concat!($name, "_f32"),
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, from: f32, to: f32, ours: fn(f32) -> f32, exact: fn(f64) -> f64, bound: f64) {
        let mut worst = (0.0_f64, 0.0);
        for i in 0..=20_000 {
            let x = from + (to - from) * (i as f32 / 20_000.0);
            let (found, expected) = (f64::from(ours(x)), exact(f64::from(x)));
            let error = (found - expected).abs() / expected.abs().max(1e-30);
            if error > worst.0 {
                worst = (error, x);
            }
        }
        assert!(worst.0 <= bound, "{name}: relative error {:.2e} at {}", worst.0, worst.1);
    }

    #[test]
    fn polynomials_are_accurate_to_single_precision() {
        check("exp", -87.0, 88.0, <f32 as Float>::exp, f64::exp, 2.5e-7);
        check("tanh", -9.0, 9.0, <f32 as Float>::tanh, f64::tanh, 4e-7);
        check("erf", -4.0, 4.0, <f32 as Float>::erf, libm::erf, 5e-7);
        check("ln", 1e-3, 3.0, <f32 as Float>::ln, f64::ln, 4e-7);
        check("ln", 1.0, 1e30, <f32 as Float>::ln, f64::ln, 4e-7);
        check("ln", 1e-44, 1e-36, <f32 as Float>::ln, f64::ln, 4e-7);
        check("ln_1p", -0.9, 4.0, <f32 as Float>::ln_1p, f64::ln_1p, 4e-7);
        check("ln_1p", -1e-6, 1e-6, <f32 as Float>::ln_1p, f64::ln_1p, 4e-7);
    }

    #[test]
    fn store_flushes_subnormals_and_nothing_else() {
        let least = f32::MIN_POSITIVE;
        for small in [1e-45, 1e-40, f32::from_bits(least.to_bits() - 1)] {
            assert_eq!([f32::store(small), f32::store(-small)], [0.0; 2], "{small:e}");
            assert_eq!([bf16::store(small), bf16::store(-small)], [bf16::ZERO; 2], "{small:e}");
        }
        assert_eq!(f64::store(1e-310), 0.0);
        for normal in [least, -least, 1.5, f32::MAX, f32::INFINITY] {
            assert_eq!((f32::store(normal), bf16::store(normal)), (normal, bf16::from_f32(normal)));
            assert_eq!(f64::store(f64::from(normal)), f64::from(normal));
        }
        assert_eq!(f64::store(f64::MIN_POSITIVE), f64::MIN_POSITIVE);
        assert!(f32::store(f32::NAN).is_nan() && f64::store(f64::NAN).is_nan() && bf16::store(f32::NAN).is_nan());
    }

    #[test]
    fn an_exponential_is_normal_or_zero() {
        let found = (0..=4000).map(|i| <f32 as Float>::exp(-86.0 - i as f32 * 1e-3));
        assert!(found.clone().all(|y| y == 0.0 || y.is_normal()));
        assert!(found.clone().any(|y| y == 0.0) && found.clone().any(|y| y < 1.3e-38 && y > 0.0));
    }

    #[test]
    fn nan_stays_nan_and_infinities_have_their_limits() {
        for function in [<f32 as Float>::exp, <f32 as Float>::tanh, <f32 as Float>::erf] {
            assert!(function(f32::NAN).is_nan());
            assert!(function(0.0).is_finite());
        }
        let ends = [f32::NAN, -1.0, 0.0, f32::INFINITY];
        assert_eq!(ends.map(<f32 as Float>::ln).map(|x| format!("{x}")), ["NaN", "NaN", "-inf", "inf"]);
        let below = [f32::NAN, -2.0, -1.0, f32::INFINITY];
        assert_eq!(below.map(<f32 as Float>::ln_1p).map(|x| format!("{x}")), ["NaN", "NaN", "-inf", "inf"]);
        assert_eq!((<f32 as Float>::exp(-1000.0), <f32 as Float>::exp(f32::NEG_INFINITY)), (0.0, 0.0));
        assert_eq!((<f32 as Float>::tanh(50.0), <f32 as Float>::erf(-9.0)), (1.0, -1.0));
    }
}
