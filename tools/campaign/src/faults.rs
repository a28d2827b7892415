//! Faults that Tandem injects on request, in combination: the bytes of a clean run, or a documented exit code and a
//! message, and then the bytes of a clean run after a resume.

use crate::case::CaseContext;
use crate::choices::Choices;
use crate::command::HowEnded;
use crate::fixtures::VARIANTS;
use crate::kills::{complete_or_absent, finish};
use crate::verdict::Expectation;

/// What `TANDEM_FAULT` may change.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EnvironmentFault {
    None,
    /// Slower, and the same bytes.
    Harmless(String),
    /// An error, or the same bytes.
    Harmful(String),
    /// A repeated step: other bytes.
    OtherBytes(String),
    /// Not a fault: an error.
    Unknown(String),
}

pub(crate) fn run(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let variant = *case.choices.pick(&VARIANTS);
    let reference = case.reference(variant)?;
    case.copy_corpus()?;
    let fault = environment_fault(&mut case.choices);
    let mut spec = variant.command();
    // On simulated cards, a fault of the cards as well.
    let simulated = ["1x24GiB", "2x24GiB"].into_iter().find(|cards| spec.has_word(cards));
    let mut card_fault = None;
    if let Some(cards) = simulated
        && !case.choices.one_in(4)
    {
        let options = card_options(&mut case.choices);
        spec = variant.command_with(cards, &format!("{cards},{options}"));
        card_fault = Some(options);
    }
    if let Some(value) = fault.value() {
        spec = spec.env("TANDEM_FAULT", value);
    }
    let outcome = case.run(&spec)?;
    case.counts.inputs += u64::from(fault != EnvironmentFault::None) + u64::from(card_fault.is_some());
    complete_or_absent(case)?;
    let succeeded = outcome.ended == HowEnded::Exited(0);
    case.count(if succeeded { "runs that finished" } else { "runs that ended with an error" });
    match fault {
        EnvironmentFault::OtherBytes(_) => return Ok(()),
        EnvironmentFault::Unknown(value) if succeeded => {
            case.fail(format!("TANDEM_FAULT={value} is ignored"));
        }
        EnvironmentFault::None | EnvironmentFault::Harmless(_) if card_fault.is_none() && !succeeded => {
            case.fail(format!("a slow stage fails the run: {:?}", outcome.ended));
        }
        _ if succeeded => case.same_bytes("run", &reference),
        _ => {}
    }
    if !succeeded && outcome.err.is_empty() {
        case.fail(format!("{:?} without a message", outcome.ended));
    }
    if case.choices.one_in(4) {
        let options = card_options(&mut case.choices);
        let line = format!(
            "validate --sim 2x24GiB,{options} --data-gpu 0 --model-gpu 1 --enable-memory-isolation --data-gpu-memory 1024 \
             --model-gpu-memory 2048 --model-size nano --batch-size 2 --buffer-size 4 --max-mel-frames 200"
        );
        case.run_expecting(&crate::command::CommandSpec::new(&line), &Expectation::default())?;
        case.counts.inputs += 1;
    }
    // Without the fault, the run resumes to the same bytes.
    finish(case, variant)
}

impl EnvironmentFault {
    fn value(&self) -> Option<&str> {
        match self {
            EnvironmentFault::None => None,
            EnvironmentFault::Harmless(value)
            | EnvironmentFault::Harmful(value)
            | EnvironmentFault::OtherBytes(value)
            | EnvironmentFault::Unknown(value) => Some(value),
        }
    }
}

fn environment_fault(choices: &mut Choices) -> EnvironmentFault {
    match choices.below(10) {
        0 => EnvironmentFault::None,
        1..4 => {
            let work = *choices.pick(&["decode", "upload", "features", "transfer"]);
            EnvironmentFault::Harmless(format!("slow:{work}:{}", choices.between(1, 60)))
        }
        4..6 => EnvironmentFault::Harmful(format!("trap@step:{}", choices.between(0, 24))),
        6..8 => {
            let pool = *choices.pick(&["data", "model", "pinned", "host"]);
            let (mib, steps) = (choices.between(1, 40), choices.between(1, 8));
            EnvironmentFault::Harmful(format!("leak:{pool}:{mib}MiB/{steps}"))
        }
        8 => EnvironmentFault::OtherBytes(format!("slow:step:{}", choices.between(2, 5))),
        _ => {
            let unknown =
                ["", "trap", "slow:read:2", "leak:disk:1MiB/1", "slow:decode:0", "\u{1b}[31m", "trap@step:-1"];
            EnvironmentFault::Unknown((*choices.pick(&unknown)).to_owned())
        }
    }
}

/// Options of simulated cards: an order of work, a link and a fault.
fn card_options(choices: &mut Choices) -> String {
    let link = *choices.pick(&["pcie3", "pcie4", "pcie5", "nvlink"]);
    let fault = match choices.below(8) {
        0..2 => format!("refuse-allocation={}", choices.below(200)),
        2..4 => format!("fail-copy={}", choices.below(2000)),
        4..6 => format!("lose-card={}", choices.below(20_000)),
        6 => format!("driver-grows={}MiB", choices.between(1, 30_000)),
        _ => (*choices.pick(&["corrupt-peer", "no-process-figure", "intruder=23GiB", "held=20GiB"])).to_owned(),
    };
    format!("{link},seed={},{fault}", choices.below(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_fault_comes_up() {
        let mut choices = Choices::of_case(1, 0, 0);
        let all: Vec<EnvironmentFault> = (0..200).map(|_| environment_fault(&mut choices)).collect();
        for start in ["slow:decode", "slow:transfer", "slow:step", "trap@step:", "leak:host", "leak:model"] {
            assert!(all.iter().any(|fault| fault.value().is_some_and(|value| value.starts_with(start))), "{start}");
        }
    }
}
