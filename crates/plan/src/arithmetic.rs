//! The arithmetic of the features: chosen from the data card at the first start of a run, then kept.

use tandem_feed::Arithmetic;

use crate::hardware::Hardware;
use crate::memory::device_name;
use crate::placement::Placement;
use crate::refusal::{Refusal, Suggestion};
use crate::setting::Id;
use crate::settings::Settings;
use crate::value::SettingValue;

/// The chosen arithmetic, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArithmeticPlan {
    /// The arithmetic.
    pub arithmetic: Arithmetic,
    /// Why this one.
    pub why: String,
    /// Who chose it.
    pub origin: ArithmeticOrigin,
}

/// Who chose the arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArithmeticOrigin {
    /// The device of the data role.
    Device,
    /// The user, with `--feature-arithmetic`.
    Flag,
    /// The checkpoint that the run resumes from, where the device would have chosen another one.
    Checkpoint,
}

impl ArithmeticPlan {
    /// Chooses the arithmetic for `placement`. A run that resumes keeps that of its checkpoint, on any card: other features
    /// would be another run. Refuses to change it.
    pub fn choose(settings: &Settings, placement: &Placement, hardware: &Hardware) -> Result<ArithmeticPlan, Refusal> {
        let wanted = settings.choice(Id::FeatureArithmetic);
        let plan = match Arithmetic::ALL.into_iter().find(|arithmetic| arithmetic.name() == wanted) {
            Some(arithmetic) => ArithmeticPlan {
                arithmetic,
                why: format!("--feature-arithmetic {wanted}"),
                origin: ArithmeticOrigin::Flag,
            },
            None => fastest_on(placement.data, hardware),
        };
        let stored = hardware.run_folder.and_then(|folder| folder.arithmetic);
        match stored.filter(|_| !settings.switch(Id::ResetTraining)) {
            Some(stored) if plan.is_forced() && stored != plan.arithmetic => Err(changed(&plan, stored)),
            Some(stored) => Ok(plan.kept(stored)),
            None => Ok(plan),
        }
    }

    /// The arithmetic of the checkpoint that a run resumes from, instead of the one its card would get.
    pub fn kept(self, stored: Arithmetic) -> ArithmeticPlan {
        if self.arithmetic == stored {
            return self;
        }
        let why = format!("as in the checkpoint; a new run here would use {}: {}", self.arithmetic.name(), self.why);
        ArithmeticPlan { arithmetic: stored, why, origin: ArithmeticOrigin::Checkpoint }
    }

    /// Whether the user gave `--feature-arithmetic`.
    pub fn is_forced(&self) -> bool {
        self.origin == ArithmeticOrigin::Flag
    }

    /// The line of a run that keeps another arithmetic than its device would have chosen.
    pub(crate) fn note(&self) -> Option<String> {
        let is_kept = self.origin == ArithmeticOrigin::Checkpoint;
        is_kept.then(|| format!("features stay in {}, {}", self.arithmetic.name(), self.why))
    }
}

/// What a new run on this card gets; `None` is the CPU.
fn fastest_on(card: Option<usize>, hardware: &Hardware) -> ArithmeticPlan {
    let chosen = |arithmetic, why: String| ArithmeticPlan { arithmetic, why, origin: ArithmeticOrigin::Device };
    let Some(facts) = card.and_then(|index| hardware.card(index)) else {
        return chosen(Arithmetic::F64, "the CPU computes f64 fast".to_owned());
    };
    let ((major, minor), name) = (facts.card.capability, device_name(card));
    match facts.card.has_fast_f64() {
        true => chosen(Arithmetic::F64, format!("{name} computes f64 fast: compute capability {major}.{minor}")),
        false => chosen(Arithmetic::TwoFloat, format!("{name} has few f64 units: compute capability {major}.{minor}")),
    }
}

fn changed(plan: &ArithmeticPlan, stored: Arithmetic) -> Refusal {
    let (wanted, stored) = (plan.arithmetic.name(), stored.name());
    Refusal::usage(format!(
        "❌ --feature-arithmetic {wanted}: the run was started with {stored}, and its checkpoints keep it\n   Remove \
         --feature-arithmetic to resume, or add --reset-training to start from step 0"
    ))
    .suggest(Suggestion::new("resume as the run was started").set(Id::FeatureArithmetic, SettingValue::Choice("auto")))
    .suggest(Suggestion::new("start from step 0").set(Id::ResetTraining, SettingValue::Switch(true)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Chains, cpu_only, gpus, settings};
    use crate::hardware::RunFolderFacts;
    use crate::plan::Plan;
    use tandem_checkpoint::FolderSpace;

    /// Two cards of this capability, and a run folder with a checkpoint of this arithmetic.
    fn cards(capability: (u32, u32), arithmetic: Option<Arithmetic>) -> Hardware {
        let mut hardware = gpus(2, 24);
        hardware.cards.iter_mut().for_each(|facts| facts.card.capability = capability);
        hardware.run_folder =
            Some(RunFolderFacts { space: FolderSpace::default(), must_fit: false, arithmetic, grad_accum: None });
        hardware
    }

    fn solve(line: &str, hardware: &Hardware) -> Result<Plan, Refusal> {
        Plan::solve(&settings(line), hardware, &Chains, None)
    }

    #[test]
    fn the_data_cards_f64_rate_chooses() {
        let check = |capability, expected| {
            let plan = solve("--gpu 1", &cards(capability, None)).unwrap();
            assert_eq!(plan.arithmetic.arithmetic, expected, "{capability:?}");
            assert!(plan.arithmetic.why.starts_with("GPU 1 "), "{}", plan.arithmetic.why);
            assert!(!plan.notes.iter().any(|note| note.contains("features")), "{:?}", plan.notes);
        };
        for capability in [(8, 0), (9, 0), (10, 0)] {
            check(capability, Arithmetic::F64);
        }
        for capability in [(7, 5), (8, 6), (8, 7), (8, 9), (10, 3), (12, 0), (12, 1)] {
            check(capability, Arithmetic::TwoFloat);
        }
        let mut mixed = cards((8, 0), None);
        mixed.cards[0].card.capability = (8, 6);
        let arithmetic = |line: &str| solve(line, &mixed).unwrap().arithmetic.arithmetic;
        assert_eq!(arithmetic("--data-gpu 0 --model-gpu 1"), Arithmetic::TwoFloat);
        assert_eq!(arithmetic("--data-gpu 1 --model-gpu 0"), Arithmetic::F64);
        assert_eq!(solve("", &cpu_only()).unwrap().arithmetic.arithmetic, Arithmetic::F64);
    }

    #[test]
    fn a_flag_forces_it() {
        for (flag, arithmetic) in [("f64", Arithmetic::F64), ("two-float", Arithmetic::TwoFloat)] {
            for hardware in [cards((8, 6), None), cards((9, 0), None), cpu_only()] {
                let plan = solve(&format!("--feature-arithmetic {flag}"), &hardware).unwrap();
                assert_eq!((plan.arithmetic.arithmetic, plan.arithmetic.is_forced()), (arithmetic, true));
            }
        }
    }

    #[test]
    fn a_checkpoint_keeps_it_on_any_card_and_says_so() {
        let check = |capability, stored, is_noted| {
            let plan = solve("", &cards(capability, Some(stored))).unwrap();
            assert_eq!(plan.arithmetic.arithmetic, stored);
            let note = plan.notes.iter().find(|note| note.starts_with("features stay in"));
            assert_eq!(note.is_some(), is_noted, "{:?}", plan.notes);
        };
        check((8, 6), Arithmetic::F64, true);
        check((9, 0), Arithmetic::TwoFloat, true);
        check((9, 0), Arithmetic::F64, false);
        check((8, 6), Arithmetic::TwoFloat, false);
    }

    #[test]
    fn a_flag_does_not_change_it_in_the_middle_of_a_run() {
        let hardware = cards((8, 6), Some(Arithmetic::F64));
        let refusal = solve("--feature-arithmetic two-float", &hardware).unwrap_err();
        assert!(refusal.message.contains("the run was started with f64"), "{refusal}");
        let typed: Vec<String> = refusal.suggestions.iter().map(|suggestion| suggestion.args().join(" ")).collect();
        assert_eq!(typed, ["--feature-arithmetic auto", "--reset-training"], "{refusal}");
        assert!(solve("--feature-arithmetic f64", &hardware).is_ok());
        let reset = solve("--reset-training", &hardware).unwrap();
        assert_eq!(reset.arithmetic.arithmetic, Arithmetic::TwoFloat);
    }
}
