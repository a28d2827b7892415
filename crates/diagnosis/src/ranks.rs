//! How long the ranks of a run wait for each other, and which of them is the slowest.
//!
//! Ranks meet several times in each step. The slowest arrives last and waits least; the others wait for it.

use std::collections::VecDeque;
use std::fmt;

use tandem_events::{Record, RunEvent};

use crate::facts::{Pauses, WARM_UP_STEPS};
use crate::jitter::WINDOW;
use crate::statistics::ratio;

/// Fewer steps than this name no straggler.
const MIN_STEPS: usize = 20;
/// The others must wait at least this share of the step longer than a straggler.
const MIN_EXTRA_SHARE: f64 = 0.05;
/// A record with more ranks is not from a run: its list would take unbounded memory.
const MAX_RANKS: usize = 4096;

/// How long one rank waits for the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankWait {
    /// The rank.
    pub rank: usize,
    /// Mean wait in a step.
    pub wait_ns: f64,
    /// The same as a share of the step.
    pub share: f64,
}

/// The slowest rank. `Display` is its line in reports.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Straggler {
    /// The rank.
    pub rank: usize,
    /// How much longer the others wait than this rank, as a share of the step.
    pub others_wait_share: f64,
}

/// Waits of the ranks over the last 100 steps. Give it every record of a run, in order.
///
/// The first steps of a log do not count: they include the different times at which ranks start. Neither do steps with a
/// validation, a sample or a checkpoint, during which all ranks wait for one.
#[derive(Clone, Debug, Default)]
pub struct RankWaits {
    window: VecDeque<WaitedStep>,
    /// The last step of the log. Its waits come after it.
    last: Option<EndedStep>,
    num_steps: usize,
    pauses: Pauses,
    is_simulated: bool,
}

#[derive(Clone, Copy, Debug)]
struct EndedStep {
    step: u64,
    end_ns: u64,
    /// By the clock that ranks wait by: the host's.
    ns: u64,
}

#[derive(Clone, Debug)]
struct WaitedStep {
    step: EndedStep,
    /// By rank.
    waited_ns: Vec<u64>,
}

impl RankWaits {
    /// Observes a record.
    pub fn observe(&mut self, record: &Record) {
        if self.pauses.observe(record) {
            let RankWaits { window, pauses, .. } = self;
            window.retain(|waited| !waited.step.is_covered_by(pauses));
            return;
        }
        match &record.event {
            RunEvent::DeviceClock { devices, .. } => self.is_simulated = devices == "simulated",
            RunEvent::Step { step, wall_ns, .. } => self.step_ended(*step, record.t_ns, *wall_ns),
            RunEvent::RankWaits { step, waited_ns } => self.waited(*step, waited_ns),
            _ => {}
        }
    }

    /// The mean wait of each rank; empty with one rank and before the first step that counts.
    pub fn report(&self) -> Vec<RankWait> {
        let num_ranks = self.window.front().map_or(0, |waited| waited.waited_ns.len());
        let steps_ns: f64 = self.window.iter().map(|waited| waited.step.ns as f64).sum();
        let of_rank = |rank: usize| {
            let waited_ns: f64 = self.window.iter().map(|waited| waited.waited_ns[rank] as f64).sum();
            RankWait { rank, wait_ns: waited_ns / self.window.len() as f64, share: ratio(waited_ns, steps_ns) }
        };
        (0..num_ranks).map(of_rank).collect()
    }

    /// The rank that waits least, if the others wait for it at least 5 % of the step. `None` before 20 steps.
    pub fn straggler(&self) -> Option<Straggler> {
        if self.window.len() < MIN_STEPS {
            return None;
        }
        let waits = self.report();
        let least = waits.iter().min_by(|a, b| a.share.total_cmp(&b.share))?;
        let others = waits.iter().filter(|wait| wait.rank != least.rank).map(|wait| wait.share);
        let others_wait_share = ratio(others.sum(), (waits.len() - 1) as f64) - least.share;
        (others_wait_share >= MIN_EXTRA_SHARE).then_some(Straggler { rank: least.rank, others_wait_share })
    }

    fn step_ended(&mut self, step: u64, end_ns: u64, wall_ns: u64) {
        let ns = match (self.is_simulated, self.last) {
            // `wall_ns` is by the simulated clock, which runs at another speed than the host's.
            (true, Some(last)) => end_ns.saturating_sub(last.end_ns),
            _ => wall_ns,
        };
        let ended = EndedStep { step, end_ns, ns };
        self.pauses.forget_before(step, ended.begin_ns());
        self.num_steps += 1;
        self.last = Some(ended);
    }

    fn waited(&mut self, step: u64, waited_ns: &[u64]) {
        let is_last = |last: &EndedStep| last.step == step && !last.is_covered_by(&self.pauses);
        let Some(step) = self.last.filter(is_last) else { return };
        if self.num_steps <= WARM_UP_STEPS || !(2..=MAX_RANKS).contains(&waited_ns.len()) {
            return;
        }
        if self.window.front().is_some_and(|first| first.waited_ns.len() != waited_ns.len()) {
            // A run that resumed with another number of ranks.
            self.window.clear();
        }
        if self.window.len() == WINDOW {
            self.window.pop_front();
        }
        self.window.push_back(WaitedStep { step, waited_ns: waited_ns.to_vec() });
    }
}

impl EndedStep {
    fn begin_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.ns)
    }

    fn is_covered_by(&self, pauses: &Pauses) -> bool {
        pauses.cover(self.step, self.begin_ns(), self.end_ns)
    }
}

impl fmt::Display for Straggler {
    /// `rank 2 is the slowest: the others wait for it 18 % of each step`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, percent) = (self.rank, 100.0 * self.others_wait_share);
        write!(f, "rank {rank} is the slowest: the others wait for it {percent:.0} % of each step")
    }
}

#[cfg(test)]
mod tests {
    use tandem_events::VERSION;

    use super::*;

    const MS: u64 = 1_000_000;

    /// Observes `count` steps of 20 ms from step `first` on. Each rank waits as many tenths of a millisecond as its entry says.
    fn observe_steps(ranks: &mut RankWaits, first: u64, count: u64, waits: &[u64]) {
        for step in first..first + count {
            observe(ranks, step * 20 * MS, RunEvent::Step { step, wall_ns: 20 * MS, wait_ns: 0 });
            let waited_ns = waits.iter().map(|tenths| tenths * MS / 10).collect();
            observe(ranks, step * 20 * MS, RunEvent::RankWaits { step, waited_ns });
        }
    }

    fn observe(ranks: &mut RankWaits, t_ns: u64, event: RunEvent) {
        ranks.observe(&Record { v: VERSION, seq: 0, t_ns, dropped: 0, event });
    }

    /// A run of `count` steps after the warm-up.
    fn run(count: u64, waits: &[u64]) -> RankWaits {
        let mut ranks = RankWaits::default();
        observe_steps(&mut ranks, 1, WARM_UP_STEPS as u64 + count, waits);
        ranks
    }

    #[track_caller]
    fn check(count: u64, waits: &[u64], expected: Option<&str>) {
        let found = run(count, waits).straggler().map(|straggler| straggler.to_string());
        assert_eq!(found.as_deref(), expected, "{count} steps, waits {waits:?}");
    }

    #[test]
    fn the_report_has_the_mean_wait_of_each_rank_and_its_share() {
        let wait = |rank, ms: f64| RankWait { rank, wait_ns: ms * 1e6, share: ms / 20.0 };
        assert_eq!(run(10, &[50, 0]).report(), [wait(0, 5.0), wait(1, 0.0)]);
    }

    #[test]
    fn the_rank_that_the_others_wait_for_is_the_straggler() {
        check(20, &[0, 50], Some("rank 0 is the slowest: the others wait for it 25 % of each step"));
        check(20, &[38, 36, 2, 40], Some("rank 2 is the slowest: the others wait for it 18 % of each step"));
    }

    #[test]
    fn ranks_that_are_alike_have_no_straggler() {
        check(100, &[0, 0], None);
        // All ranks wait for the network.
        check(100, &[50, 50, 50, 50], None);
        check(100, &[9, 0], None);
        check(100, &[10, 0], Some("rank 1 is the slowest: the others wait for it 5 % of each step"));
    }

    #[test]
    fn too_few_steps_name_no_straggler() {
        check(19, &[0, 50], None);
        assert_eq!(run(19, &[0, 50]).report().len(), 2, "but each rank's wait is known");
        check(0, &[0, 50], None);
        assert_eq!(run(0, &[0, 50]).report(), []);
    }

    #[test]
    fn one_rank_waits_for_nobody() {
        for waits in [&[][..], &[5]] {
            let ranks = run(100, waits);
            assert_eq!((ranks.report(), ranks.straggler()), (Vec::new(), None));
        }
    }

    #[test]
    fn only_the_last_hundred_steps_count() {
        let mut ranks = run(300, &[0, 50]);
        observe_steps(&mut ranks, 306, 100, &[50, 0]);
        assert_eq!(ranks.straggler().map(|straggler| straggler.rank), Some(1));
        assert_eq!((ranks.report()[0].share, ranks.report()[1].share), (0.25, 0.0));
    }

    #[test]
    fn another_number_of_ranks_starts_from_zero() {
        let mut ranks = run(100, &[0, 50]);
        observe_steps(&mut ranks, 106, 19, &[50, 50, 50, 0]);
        assert_eq!((ranks.report().len(), ranks.straggler()), (4, None));
        observe_steps(&mut ranks, 125, 1, &[50, 50, 50, 0]);
        assert_eq!(ranks.straggler().map(|straggler| straggler.rank), Some(3));
    }

    #[test]
    fn a_rank_that_writes_a_checkpoint_is_not_slow() {
        let mut ranks = run(30, &[10, 10]);
        // Step 36 starts after the checkpoint of step 35, for which rank 1 waits two seconds.
        observe(&mut ranks, 2_700 * MS, RunEvent::Checkpoint { step: 35, bytes: 1, ns: 2_000 * MS });
        observe(&mut ranks, 2_720 * MS, RunEvent::Step { step: 36, wall_ns: 2_020 * MS, wait_ns: 0 });
        observe(&mut ranks, 2_720 * MS, RunEvent::RankWaits { step: 36, waited_ns: vec![0, 2_000 * MS] });
        assert_eq!((ranks.straggler(), ranks.report()[1].share), (None, 0.05));
    }

    #[test]
    fn waits_of_a_step_that_is_not_in_the_log_are_ignored() {
        let mut ranks = run(10, &[10, 10]);
        observe(&mut ranks, 0, RunEvent::RankWaits { step: 9_000, waited_ns: vec![0, u64::MAX] });
        assert_eq!(ranks.report()[1].share, 0.05);
    }

    #[test]
    fn with_simulated_cards_the_step_is_timed_by_the_host_as_the_waits_are() {
        let mut ranks = RankWaits::default();
        observe(&mut ranks, 0, RunEvent::DeviceClock { now_ns: 0, devices: "simulated".into() });
        for step in 1..=60 {
            observe(&mut ranks, step * 20 * MS, RunEvent::Step { step, wall_ns: MS / 10, wait_ns: 0 });
            observe(&mut ranks, step * 20 * MS, RunEvent::RankWaits { step, waited_ns: vec![5 * MS, 0] });
        }
        assert_eq!(ranks.report()[0].share, 0.25);
    }
}
