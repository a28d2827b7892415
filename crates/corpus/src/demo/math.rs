//! Exponential and cosine from basic arithmetic, so that every machine gets the same bits. The system's own differ in
//! the last place from one library to the next.

use std::f64::consts::{LN_2, LOG2_E, PI};

/// e to the power of `x`, for `x` from -700 to 0.
pub(super) fn exp(x: f64) -> f64 {
    let x = x.clamp(-700.0, 0.0);
    // x = k ln 2 + r with |r| ≤ ln 2 / 2, where the series converges fast.
    let k = (x * LOG2_E).round();
    let r = x - k * LN_2;
    let (mut term, mut sum) = (1.0, 1.0);
    for n in 1..=14 {
        term = term * r / f64::from(n);
        sum += term;
    }
    let two_to_k = f64::from_bits(((1023 + k as i64) as u64) << 52);
    sum * two_to_k
}

/// The cosine of `x`, for `x` from 0 to π.
pub(super) fn cos(x: f64) -> f64 {
    let half = x.clamp(0.0, PI) / 2.0;
    let (mut term, mut sine) = (half, half);
    for n in 1..=11 {
        let n = f64::from(2 * n);
        term = -term * half * half / (n * (n + 1.0));
        sine += term;
    }
    1.0 - 2.0 * sine * sine
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_good_as_the_library() {
        for i in 0..=1000 {
            let x = -f64::from(i) / 50.0;
            assert!((exp(x) / x.exp() - 1.0).abs() < 1e-13, "exp {x}");
            let x = PI * f64::from(i) / 1000.0;
            assert!((cos(x) - x.cos()).abs() < 1e-13, "cos {x}");
        }
        assert_eq!(exp(0.0), 1.0);
    }
}
