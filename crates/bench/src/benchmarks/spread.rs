//! Many measurements of one thing, in three numbers.

/// The median and the middle half around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The median.
    pub median: f64,
    /// A quarter of the measurements are below.
    pub low: f64,
    /// A quarter are above.
    pub high: f64,
}

impl Spread {
    /// Of `values`; zeros when there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Spread {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| percentile(&sorted, share);
        Spread { median: at(0.5), low: at(0.25), high: at(0.75) }
    }
}

/// The value below which `share` of `sorted` lie; 0 when there are none.
pub(crate) fn percentile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((share * last as f64).round() as usize).copied().unwrap_or(0.0)
}

/// The mean, and the standard deviation as a share of it.
pub(crate) fn mean_and_variation(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / count;
    (mean, if mean > 0.0 { variance.sqrt() / mean } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_numbers_of_many() {
        let spread = Spread::of((0..=100).rev().map(f64::from));
        assert_eq!((spread.low, spread.median, spread.high), (25.0, 50.0, 75.0));
        assert_eq!(Spread::of([]).median, 0.0);
    }

    #[test]
    fn equal_values_do_not_vary() {
        assert_eq!(mean_and_variation(&[3.0; 5]), (3.0, 0.0));
        assert_eq!(mean_and_variation(&[1.0, 3.0]), (2.0, 0.5));
        assert_eq!(mean_and_variation(&[]), (0.0, 0.0));
    }
}
