//! Which kind of test runs next: each gets its share of the time, and each runs at least once.

use std::time::Duration;

/// The use of time by one kind of test.
#[derive(Clone, Debug)]
pub(crate) struct ShareOfTime {
    /// Its share, relative to the others.
    pub(crate) weight: f64,
    /// Time of its finished cases.
    pub(crate) used: Duration,
    /// The number of finished cases.
    pub(crate) finished: u64,
    /// The number of cases that run now.
    pub(crate) running: u64,
    /// The most cases it may have; none for any number.
    pub(crate) most: Option<u64>,
    /// How long a case takes before one has been timed.
    pub(crate) guess: Duration,
}

impl ShareOfTime {
    /// How long its next case will take.
    fn estimate(&self) -> Duration {
        match self.finished {
            0 => self.guess,
            finished => self.used / u32::try_from(finished).unwrap_or(u32::MAX),
        }
    }

    /// The time it has used, running cases included, per unit of its share.
    fn use_per_weight(&self) -> f64 {
        let running = self.estimate() * u32::try_from(self.running).unwrap_or(u32::MAX);
        (self.used + running).as_secs_f64() / self.weight
    }
}

/// The position of the kind to run next, if one has a case that fits into the time that is `left`: first those without
/// a case, in order, then the one that has used the least of its share.
pub(crate) fn next_kind(shares: &[ShareOfTime], left: Duration) -> Option<usize> {
    let may_run = |share: &&(usize, &ShareOfTime)| {
        let (_, share) = share;
        let started = share.finished + share.running;
        // One that has never run starts as long as there is any time at all.
        let fits = started == 0 && !left.is_zero() || share.estimate().mul_f64(1.5) <= left;
        fits && share.most.is_none_or(|most| started < most)
    };
    let indexed: Vec<(usize, &ShareOfTime)> = shares.iter().enumerate().collect();
    let open: Vec<&(usize, &ShareOfTime)> = indexed.iter().filter(may_run).collect();
    let fresh = open.iter().find(|(_, share)| share.finished + share.running == 0);
    let least = open.iter().min_by(|(_, a), (_, b)| a.use_per_weight().total_cmp(&b.use_per_weight()));
    fresh.or(least).map(|(at, _)| *at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(weight: f64) -> ShareOfTime {
        let guess = Duration::from_secs(1);
        ShareOfTime { weight, used: Duration::ZERO, finished: 0, running: 0, most: None, guess }
    }

    #[test]
    fn every_kind_runs_once_before_any_runs_twice() {
        let mut shares = vec![share(1.0), share(100.0), share(5.0)];
        for expected in 0..3 {
            assert_eq!(next_kind(&shares, Duration::from_secs(60)), Some(expected));
            shares[expected].finished = 1;
            shares[expected].used = Duration::from_secs(1);
        }
        assert_eq!(next_kind(&shares, Duration::from_secs(60)), Some(1));
    }

    #[test]
    fn time_is_shared_by_weight() {
        let mut shares = vec![share(1.0), share(3.0)];
        for _ in 0..400 {
            let at = next_kind(&shares, Duration::from_secs(1000)).unwrap();
            shares[at].finished += 1;
            // The first has long cases.
            shares[at].used += Duration::from_secs(if at == 0 { 4 } else { 1 });
        }
        let ratio = shares[1].used.as_secs_f64() / shares[0].used.as_secs_f64();
        assert!((2.8..3.2).contains(&ratio), "{ratio}");
    }

    #[test]
    fn a_case_that_does_not_fit_is_not_started() {
        let mut long = share(1.0);
        (long.finished, long.used) = (1, Duration::from_secs(30));
        assert_eq!(next_kind(&[long.clone()], Duration::from_secs(20)), None);
        assert_eq!(next_kind(&[long.clone()], Duration::from_secs(60)), Some(0));
        long.most = Some(1);
        assert_eq!(next_kind(&[long], Duration::from_secs(60)), None);
        assert_eq!(next_kind(&[share(1.0)], Duration::ZERO), None);
    }
}
