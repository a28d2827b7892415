//! Means, percentiles and slopes of a few hundred numbers.

/// Mean and spread of some numbers; zeros for an empty slice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Number of values.
    pub count: usize,
    /// Mean.
    pub mean: f64,
    /// Standard deviation.
    pub std: f64,
    /// Minimum.
    pub min: f64,
    /// Maximum.
    pub max: f64,
    /// Median.
    pub p50: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
}

impl Summary {
    /// Summarizes `numbers`. Sorts a copy.
    pub fn of(numbers: &[f64]) -> Summary {
        if numbers.is_empty() {
            return Summary::default();
        }
        let mut sorted = numbers.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (mean, std) = mean_std(&sorted);
        let rank = |share: f64| sorted[((sorted.len() as f64 * share).ceil() as usize).clamp(1, sorted.len()) - 1];
        let [p50, p95, p99] = [0.50, 0.95, 0.99].map(rank);
        Summary { count: sorted.len(), mean, std, min: sorted[0], max: sorted[sorted.len() - 1], p50, p95, p99 }
    }

    /// Standard deviation ÷ mean; 0 if the mean is 0.
    pub fn variation(&self) -> f64 {
        ratio(self.std, self.mean)
    }
}

/// `part ÷ whole`; 0 if `whole` is 0.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

pub(crate) fn mean_std(numbers: &[f64]) -> (f64, f64) {
    let count = numbers.len().max(1) as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

/// The median, the upper one of two; 0 for an empty slice. Reorders the slice.
pub(crate) fn median(numbers: &mut [f64]) -> f64 {
    if numbers.is_empty() {
        return 0.0;
    }
    let middle = numbers.len() / 2;
    *numbers.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// Theil–Sen slope of points sorted by x, without pairs across index `cut`: the median of the slopes of pairs at least half a
/// side apart. Closer pairs say little about a trend, and in a sawtooth wave nearly all of them rise. Costs a division for a
/// quarter of all pairs; overwrites `scratch`.
pub(crate) fn slope(points: &[(f64, f64)], cut: usize, scratch: &mut Vec<f64>) -> f64 {
    scratch.clear();
    for side in [&points[..cut], &points[cut..]] {
        let apart = side.len().div_ceil(2);
        for (i, (x0, y0)) in side.iter().enumerate().take(side.len() - apart) {
            let slopes = side[i + apart..].iter().filter(|(x1, _)| x1 > x0).map(|(x1, y1)| (y1 - y0) / (x1 - x0));
            scratch.extend(slopes);
        }
    }
    median(scratch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_of_the_input() {
        let numbers: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let all = Summary::of(&numbers);
        assert_eq!((all.min, all.p50, all.p95, all.p99, all.max), (1.0, 50.0, 95.0, 99.0, 100.0));
        assert_eq!((all.count, all.mean), (100, 50.5));
        assert_eq!(Summary::of(&[]), Summary::default());
        assert_eq!(Summary::of(&[3.0]).variation(), 0.0);
    }

    #[test]
    fn a_quarter_of_outliers_does_not_change_the_slope() {
        let points: Vec<(f64, f64)> =
            (0..30).map(|i| (f64::from(i), if i % 4 == 0 { 1e6 } else { 2.0 * f64::from(i) })).collect();
        assert_eq!(slope(&points, 0, &mut Vec::new()), 2.0);
    }

    #[test]
    fn a_sawtooth_has_almost_no_slope() {
        let points: Vec<(f64, f64)> = (0..60).map(|i| (f64::from(i), f64::from(i % 15))).collect();
        assert!(slope(&points, 0, &mut Vec::new()).abs() < 0.1, "its teeth rise by 1");
    }

    #[test]
    fn a_step_at_the_cut_does_not_count() {
        let points: Vec<(f64, f64)> = (0..20).map(|i| (f64::from(i), if i < 10 { 0.0 } else { 50.0 })).collect();
        assert_eq!(slope(&points, 10, &mut Vec::new()), 0.0);
        assert!(slope(&points, 0, &mut Vec::new()) > 0.0);
    }
}
