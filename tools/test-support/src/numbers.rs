//! Comparing lists of numbers.

/// The largest of `values`: 0 without any, NaN if one of them is NaN.
///
/// `fold(0.0, f64::max)` drops NaN, so that a comparison whose every result is NaN would pass as perfect.
pub fn largest<T: Into<f64>>(values: impl IntoIterator<Item = T>) -> f64 {
    values.into_iter().map(Into::into).fold(0.0, |largest: f64, value: f64| match largest.is_nan() || value.is_nan() {
        true => f64::NAN,
        false => largest.max(value),
    })
}

#[cfg(test)]
mod tests {
    use super::largest;

    #[test]
    fn a_nan_is_never_dropped() {
        assert_eq!(largest([0.5_f32, 2.0, 1.0]), 2.0);
        assert_eq!(largest(Vec::<f64>::new()), 0.0);
        for values in [[f64::NAN, 1.0], [1.0, f64::NAN]] {
            assert!(largest(values).is_nan());
        }
    }
}
