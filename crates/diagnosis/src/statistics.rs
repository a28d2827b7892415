//! Means, percentiles and slopes of a few hundred numbers.

/// Mean and spread of some numbers; zeros where there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// How many there are.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Their standard deviation.
    pub std: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
    /// The median.
    pub p50: f64,
    /// 95 of 100 are no larger.
    pub p95: f64,
    /// 99 of 100 are no larger.
    pub p99: f64,
}

impl Summary {
    /// Of `numbers`. Sorts a copy.
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

    /// Standard deviation ÷ mean; 0 where there is no mean.
    pub fn variation(&self) -> f64 {
        ratio(self.std, self.mean)
    }
}

/// `part ÷ whole`, 0 of nothing.
pub(crate) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

pub(crate) fn mean_std(numbers: &[f64]) -> (f64, f64) {
    let count = numbers.len().max(1) as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let variance = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    (mean, variance.sqrt())
}

/// The middle one, the upper of two; 0 of none. Reorders them.
pub(crate) fn median(numbers: &mut [f64]) -> f64 {
    if numbers.is_empty() {
        return 0.0;
    }
    let middle = numbers.len() / 2;
    *numbers.select_nth_unstable_by(middle, f64::total_cmp).1
}

/// Theil–Sen's slope of points that stand in the order of x, on each side of place `cut` by itself: the median of the
/// slopes of pairs at least half a side apart. Nearer ones say little about a trend, and of a wave that rises slowly and
/// falls at once nearly all of them rise. Costs a division for a quarter of all pairs; `room` is overwritten.
pub(crate) fn slope(points: &[(f64, f64)], cut: usize, room: &mut Vec<f64>) -> f64 {
    room.clear();
    for side in [&points[..cut], &points[cut..]] {
        let apart = side.len().div_ceil(2);
        for (i, (x0, y0)) in side.iter().enumerate().take(side.len() - apart) {
            let rises = side[i + apart..].iter().filter(|(x1, _)| x1 > x0).map(|(x1, y1)| (y1 - y0) / (x1 - x0));
            room.extend(rises);
        }
    }
    median(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_numbers_that_were_there() {
        let numbers: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let all = Summary::of(&numbers);
        assert_eq!((all.min, all.p50, all.p95, all.p99, all.max), (1.0, 50.0, 95.0, 99.0, 100.0));
        assert_eq!((all.count, all.mean), (100, 50.5));
        assert_eq!(Summary::of(&[]), Summary::default());
        assert_eq!(Summary::of(&[3.0]).variation(), 0.0);
    }

    #[test]
    fn a_slope_is_not_moved_by_a_quarter_of_outliers() {
        let points: Vec<(f64, f64)> =
            (0..30).map(|i| (f64::from(i), if i % 4 == 0 { 1e6 } else { 2.0 * f64::from(i) })).collect();
        assert_eq!(slope(&points, 0, &mut Vec::new()), 2.0);
    }

    #[test]
    fn a_saw_has_next_to_no_slope() {
        let points: Vec<(f64, f64)> = (0..60).map(|i| (f64::from(i), f64::from(i % 15))).collect();
        assert!(slope(&points, 0, &mut Vec::new()).abs() < 0.1, "its teeth rise by 1");
    }

    #[test]
    fn a_cut_hides_what_happens_at_it() {
        let points: Vec<(f64, f64)> = (0..20).map(|i| (f64::from(i), if i < 10 { 0.0 } else { 50.0 })).collect();
        assert_eq!(slope(&points, 10, &mut Vec::new()), 0.0);
        assert!(slope(&points, 0, &mut Vec::new()) > 0.0);
    }
}
