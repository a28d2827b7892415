//! Which candidate is picked: a pure function of the measured step rates.

use super::candidates::{Candidate, CandidateSet};
use super::step_rate::StepRate;

/// Step rates closer than this are equal: two timed runs of one mode differ by as much. Of equals, the one with the fewest
/// cards is picked. This is half of the error a choice may have.
const EQUAL: f64 = 0.015;

/// The result of trying a candidate.
#[derive(Clone, Debug, PartialEq)]
pub enum CandidateOutcome {
    /// Its measured step rate.
    StepRate(StepRate),
    /// It is the only candidate and was not timed.
    Untimed,
    /// It is impossible, or it failed: the reason.
    Impossible(String),
}

/// A candidate and its outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct CandidateResult {
    /// The candidate.
    pub candidate: Candidate,
    /// Its outcome.
    pub outcome: CandidateOutcome,
}

/// The candidates that were tried, and the pick.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// All that were tried, in the order of the candidate set.
    pub entries: Vec<CandidateResult>,
    /// Why the mode that the flags request could not be placed.
    pub not_as_asked: Option<String>,
    /// The index of the pick in `entries`.
    pub taken: usize,
    /// Cards that were not tried, and why.
    pub left_out: Vec<String>,
}

/// Times the candidates of a set and picks one.
pub struct Contest<'a> {
    /// Times a candidate; the error says why it is impossible. Never called for the CPU: it is the last resort.
    pub time: &'a mut dyn FnMut(&Candidate) -> Result<StepRate, String>,
    /// Whether an untimed candidate is possible.
    pub check: &'a mut dyn FnMut(&Candidate) -> Result<(), String>,
    /// How often each is timed: [`Contest::ROUNDS`], or once on a deterministic clock.
    pub rounds: usize,
}

impl Contest<'_> {
    /// Twice: the first candidate meets a cold page cache, and the clock of a card drifts.
    pub const ROUNDS: usize = 2;

    /// Takes the requested mode if it runs, else times all others. Fails if none is possible, with a line for each.
    pub fn decide(&mut self, set: CandidateSet) -> Result<Choice, Vec<String>> {
        let CandidateSet { asked, others, last, left_out } = set;
        let (mut entries, mut not_as_asked) = (Vec::new(), None);
        match asked {
            Some(Ok(candidate)) => {
                let outcome =
                    (self.time)(&candidate).map_or_else(CandidateOutcome::Impossible, CandidateOutcome::StepRate);
                entries.push(CandidateResult { candidate, outcome });
            }
            Some(Err(why)) => not_as_asked = Some(why),
            None => {}
        }
        if !entries.iter().any(CandidateResult::is_possible) {
            let others = others.into_iter().filter(|one| entries.iter().all(|entry| !entry.is_of(one))).collect();
            entries.extend(self.compare(others));
        }
        if let (false, Some(candidate)) = (entries.iter().any(CandidateResult::is_possible), last) {
            let outcome =
                (self.check)(&candidate).map_or_else(CandidateOutcome::Impossible, |()| CandidateOutcome::Untimed);
            entries.push(CandidateResult { candidate, outcome });
        }
        match Choice::pick(&entries) {
            Some(taken) => Ok(Choice { entries, not_as_asked, taken, left_out }),
            None => {
                Err(not_as_asked.into_iter().chain(entries.iter().filter_map(CandidateResult::complaint)).collect())
            }
        }
    }

    /// Times each once per round, every second round in reverse order; the best time counts.
    pub fn compare(&mut self, candidates: Vec<Candidate>) -> Vec<CandidateResult> {
        let untimed = |candidate| CandidateResult { candidate, outcome: CandidateOutcome::Untimed };
        let mut entries: Vec<CandidateResult> = candidates.into_iter().map(untimed).collect();
        for round in 0..self.rounds {
            let mut order: Vec<usize> = (0..entries.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            order.into_iter().for_each(|at| self.go(&mut entries[at]));
        }
        entries
    }

    fn go(&mut self, entry: &mut CandidateResult) {
        if !entry.is_possible() {
            return;
        }
        let before = entry.steps_per_s().unwrap_or(0.0);
        match (self.time)(&entry.candidate) {
            Ok(rate) if rate.steps_per_s > before => entry.outcome = CandidateOutcome::StepRate(rate),
            Ok(_) => {}
            Err(why) => entry.outcome = CandidateOutcome::Impossible(why),
        }
    }
}

impl CandidateResult {
    /// Its step rate, if it was timed.
    pub fn steps_per_s(&self) -> Option<f64> {
        match self.outcome {
            CandidateOutcome::StepRate(rate) => Some(rate.steps_per_s),
            _ => None,
        }
    }

    fn is_possible(&self) -> bool {
        !matches!(self.outcome, CandidateOutcome::Impossible(_))
    }

    fn is_of(&self, other: &Candidate) -> bool {
        self.candidate.is_same_place(other)
    }

    /// Why it is impossible, if it is.
    pub fn why(&self) -> Option<String> {
        match &self.outcome {
            CandidateOutcome::Impossible(why) => Some(why.clone()),
            _ => None,
        }
    }

    fn complaint(&self) -> Option<String> {
        self.why().map(|why| format!("{}: {why}", self.candidate.name()))
    }
}

impl Choice {
    /// The fastest; among equals the one with the fewest cards; among those the first.
    pub fn pick(entries: &[CandidateResult]) -> Option<usize> {
        let best = entries.iter().filter_map(CandidateResult::steps_per_s).fold(0.0, f64::max);
        let is_good = |entry: &CandidateResult| match entry.outcome {
            CandidateOutcome::StepRate(rate) => rate.steps_per_s >= (1.0 - EQUAL) * best,
            CandidateOutcome::Untimed => true,
            CandidateOutcome::Impossible(_) => false,
        };
        let good = entries.iter().enumerate().filter(|(_, entry)| is_good(entry));
        good.min_by_key(|(_, entry)| entry.candidate.num_cards()).map(|(at, _)| at)
    }

    /// The pick.
    pub fn taken(&self) -> &CandidateResult {
        &self.entries[self.taken]
    }

    /// The step rate of the pick divided by the fastest; 1 if nothing was timed.
    pub fn of_best(&self) -> f64 {
        let best = self.entries.iter().filter_map(CandidateResult::steps_per_s).fold(0.0, f64::max);
        self.taken().steps_per_s().map_or(1.0, |own| own / best)
    }

    /// A sentence that compares one card with two, if both were timed.
    pub fn one_or_two(&self) -> Option<String> {
        let best = |cards: usize| {
            let of = self.entries.iter().filter(|entry| entry.candidate.num_cards() == cards);
            of.filter_map(CandidateResult::steps_per_s).reduce(f64::max)
        };
        let (one, two) = (best(1)?, best(2)?);
        let gain = 100.0 * (two / one - 1.0);
        Some(match self.taken().candidate.num_cards() {
            1 if gain < -100.0 * EQUAL => {
                format!(
                    "One GPU beats two here: {one:.2} steps/s against {two:.2} ({:.0} % more)",
                    100.0 * (one / two - 1.0)
                )
            }
            1 => format!("One GPU is as good as two here: {one:.2} steps/s against {two:.2}"),
            _ => format!("Two GPUs beat one here: {two:.2} steps/s against {one:.2} ({gain:.0} % more)"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tandem_device::{Machine, SimSpec};
    use tandem_plan::Settings;

    use super::*;
    use crate::auto_mode::candidates;
    use tandem_launch::inventory::Inventory;

    /// A choice among the modes of `spec` where each has the given step rates, one per round; a mode without rates is impossible.
    fn decide(
        spec: &str,
        flags: &[(&str, &str)],
        paces: &[(&str, &[f64])],
    ) -> Result<(Choice, Vec<String>), Vec<String>> {
        let hardware = Inventory::of(Machine::simulated(spec.parse::<SimSpec>().unwrap())).unwrap().hardware;
        let settings = Settings::new().with(&[("mode", "auto")]).unwrap().with(flags).unwrap();
        let mut paces: BTreeMap<&str, Vec<f64>> = paces.iter().map(|(name, paces)| (*name, paces.to_vec())).collect();
        let mut order = Vec::new();
        let mut time = |candidate: &Candidate| {
            order.push(candidate.name());
            let left = paces.get_mut(candidate.name().as_str()).ok_or("does not fit")?;
            let steps_per_s = if left.len() > 1 { left.remove(0) } else { left[0] };
            Ok(StepRate { steps_per_s, low: steps_per_s, high: steps_per_s, steps: 8 })
        };
        let field = candidates(&settings, &hardware).unwrap();
        let choice = Contest { time: &mut time, check: &mut |_| Ok(()), rounds: Contest::ROUNDS }.decide(field)?;
        Ok((choice, order))
    }

    fn taken(spec: &str, paces: &[(&str, &[f64])]) -> (String, Option<String>) {
        let (choice, _) = decide(spec, &[], paces).unwrap();
        (choice.taken().candidate.name(), choice.one_or_two())
    }

    const SINGLE: &str = "single, GPU 0";
    const SHARED: &str = "shared, GPU 0";
    const DUAL: &str = "dual, GPU 1 to GPU 0";
    const PARALLEL: &str = "data parallel, GPU 0,1";

    #[test]
    fn data_parallel_training_is_taken_where_it_is_faster() {
        let check = |parallel: f64, expected: &str| {
            let (name, _) =
                taken("2x24GiB", &[(SINGLE, &[50.0]), (SHARED, &[50.0]), (DUAL, &[50.0]), (PARALLEL, &[parallel])]);
            assert_eq!(name, expected, "{parallel}");
        };
        check(90.0, PARALLEL);
        check(50.5, SINGLE);
        check(30.0, SINGLE);
    }

    #[test]
    fn the_fastest_is_taken_and_of_equals_the_one_with_fewer_cards() {
        let check = |paces: [f64; 3], expected: &str, said: &str| {
            let [single, shared, dual] = paces.map(|rate| [rate]);
            let (name, sentence) = taken("2x24GiB", &[(SINGLE, &single), (SHARED, &shared), (DUAL, &dual)]);
            assert_eq!(name, expected, "{paces:?}");
            assert!(sentence.as_ref().unwrap().contains(said), "{sentence:?}");
        };
        check([50.0, 50.0, 60.0], DUAL, "Two GPUs beat one here: 60.00 steps/s against 50.00 (20 % more)");
        check([50.0, 50.0, 40.0], SINGLE, "One GPU beats two here: 50.00 steps/s against 40.00 (25 % more)");
        check([50.0, 50.2, 50.4], SINGLE, "One GPU is as good as two here");
        check([45.0, 50.0, 50.2], SHARED, "One GPU is as good as two here");
    }

    #[test]
    fn each_has_two_goes_and_the_better_counts() {
        // The first one pays for files that nobody has read yet.
        let paces: [(&str, &[f64]); 4] =
            [(SINGLE, &[20.0, 60.0]), (SHARED, &[50.0]), (DUAL, &[55.0, 10.0]), (PARALLEL, &[12.0])];
        let (choice, order) = decide("2x24GiB", &[], &paces).unwrap();
        assert_eq!(order, [SINGLE, SHARED, DUAL, PARALLEL, PARALLEL, DUAL, SHARED, SINGLE]);
        assert_eq!((choice.taken().candidate.name().as_str(), choice.of_best()), (SINGLE, 1.0));
    }

    #[test]
    fn what_does_not_fit_is_no_candidate_and_is_in_the_table() {
        let (choice, _) = decide("2x24GiB", &[], &[(DUAL, &[10.0])]).unwrap();
        assert_eq!(choice.taken().candidate.name(), DUAL);
        assert_eq!(choice.entries[0].outcome, CandidateOutcome::Impossible("does not fit".to_owned()));
        // Nothing fits on cards: the CPU is what is left, and is not timed.
        let (choice, _) = decide("1x24GiB", &[], &[]).unwrap();
        assert_eq!(
            (choice.taken().candidate.name().as_str(), &choice.taken().outcome),
            ("cpu", &CandidateOutcome::Untimed)
        );
        let limits = decide("1x24GiB", &[("enable-memory-isolation", "")], &[]).unwrap_err();
        assert_eq!(limits, ["shared, GPU 0, isolated: does not fit"]);
    }

    #[test]
    fn what_was_asked_for_is_taken_when_it_runs_and_nothing_else_is_timed() {
        let pair = [("data-gpu", "1"), ("model-gpu", "0")];
        let paces: [(&str, &[f64]); 2] = [(DUAL, &[10.0]), (SINGLE, &[90.0])];
        let (choice, order) = decide("2x24GiB", &pair, &paces).unwrap();
        assert_eq!((choice.taken().candidate.name().as_str(), order.len()), (DUAL, 1));
        // It does not run: what there is instead is timed, and why is kept.
        let (choice, order) = decide("2x24GiB", &pair, &[(SINGLE, &[90.0])]).unwrap();
        assert_eq!((choice.taken().candidate.name().as_str(), order.len()), (SINGLE, 5), "{order:?}");
        assert_eq!(choice.entries[0].outcome, CandidateOutcome::Impossible("does not fit".to_owned()));
        let (choice, _) = decide("1x24GiB", &pair, &[(SINGLE, &[90.0])]).unwrap();
        assert_eq!(choice.taken().candidate.name(), SINGLE);
        assert!(choice.not_as_asked.unwrap().contains("found 1"));
    }
}
