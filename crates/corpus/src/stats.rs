//! How lengths are spread: of recordings in seconds, of texts in characters.

/// Numbers in rising order. Eight bytes each.
#[derive(Clone, Debug, PartialEq)]
pub struct Distribution {
    sorted: Vec<f64>,
    total: f64,
}

/// A bar of a histogram.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    /// Its lower edge, included.
    pub from: f64,
    /// Its upper edge, not included; the last one's is.
    pub to: f64,
    /// How many lie in it.
    pub count: usize,
}

impl Distribution {
    /// Of `values`; those that are no number are left out. Cost: one sort.
    pub fn new(values: impl IntoIterator<Item = f64>) -> Distribution {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        // The sum of no numbers is -0.0.
        let total = sorted.iter().sum::<f64>() + 0.0;
        Distribution { sorted, total }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// Their sum.
    pub fn total(&self) -> f64 {
        self.total
    }

    /// Their sum in hours, if they are seconds.
    pub fn hours(&self) -> f64 {
        self.total / 3600.0
    }

    /// Their mean; 0 of nothing.
    pub fn mean(&self) -> f64 {
        if self.sorted.is_empty() { 0.0 } else { self.total / self.sorted.len() as f64 }
    }

    /// The least one.
    pub fn min(&self) -> Option<f64> {
        self.sorted.first().copied()
    }

    /// The largest one.
    pub fn max(&self) -> Option<f64> {
        self.sorted.last().copied()
    }

    /// The least value that `percent` of all do not exceed (nearest rank, so always one of the values).
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        let rank = (percent / 100.0 * self.sorted.len() as f64).ceil() as usize;
        self.sorted.get(rank.clamp(1, self.sorted.len().max(1)) - 1).copied()
    }

    /// How many exceed `limit`.
    pub fn count_over(&self, limit: f64) -> usize {
        self.sorted.len() - self.sorted.partition_point(|value| *value <= limit)
    }

    /// `num_bins` bars of equal width from the least to the largest value; one bar when they are the same.
    pub fn histogram(&self, num_bins: usize) -> Vec<Bin> {
        let (Some(min), Some(max)) = (self.min(), self.max()) else { return Vec::new() };
        let num_bins = if max > min { num_bins } else { num_bins.min(1) };
        let edge = |bin: usize| if bin == num_bins { max } else { min + (max - min) * bin as f64 / num_bins as f64 };
        let below = |bin: usize| {
            if bin == num_bins { self.sorted.len() } else { self.sorted.partition_point(|value| *value < edge(bin)) }
        };
        (0..num_bins)
            .map(|bin| Bin { from: edge(bin), to: edge(bin + 1), count: below(bin + 1) - below(bin) })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values() {
        let check = |values: &[f64], percent: f64, expected: Option<f64>| {
            assert_eq!(Distribution::new(values.iter().copied()).percentile(percent), expected, "{values:?} {percent}");
        };
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        check(&hundred, 50.0, Some(50.0));
        check(&hundred, 99.5, Some(100.0));
        check(&hundred, 99.0, Some(99.0));
        check(&hundred, 0.0, Some(1.0));
        check(&hundred, 100.0, Some(100.0));
        check(&[7.0], 99.5, Some(7.0));
        check(&[], 99.5, None);
    }

    #[test]
    fn sums() {
        let lengths = Distribution::new([3600.0, f64::NAN, 1800.0]);
        assert_eq!((lengths.count(), lengths.hours(), lengths.mean()), (2, 1.5, 2700.0));
        assert_eq!((lengths.min(), lengths.max(), lengths.count_over(1800.0)), (Some(1800.0), Some(3600.0), 1));
        assert_eq!(Distribution::new([]).mean(), 0.0);
        assert!(Distribution::new([]).hours().is_sign_positive());
    }

    #[test]
    fn every_value_is_in_one_bar() {
        let check = |values: &[f64], num_bins: usize, expected: &[usize]| {
            let bins = Distribution::new(values.iter().copied()).histogram(num_bins);
            assert_eq!(bins.iter().map(|bin| bin.count).collect::<Vec<_>>(), expected, "{values:?}");
            assert!(bins.windows(2).all(|pair| pair[0].to == pair[1].from));
        };
        check(&[0.0, 1.0, 2.0, 3.0, 4.0], 2, &[2, 3]);
        check(&[0.0, 0.1, 10.0], 5, &[2, 0, 0, 0, 1]);
        check(&[2.0, 2.0], 4, &[2]);
        check(&[], 4, &[]);
        check(&[1.0], 0, &[]);
    }
}
