//! A few real steps of the plan, and what they say: enough to see which stage is slow on somebody else's machine.

use std::time::{Duration, Instant};

use tandem_device::DeviceKind;
use tandem_diagnosis::Diagnosis;
use tandem_events::{Emitter, Record, RunEvent};
use tandem_launch::EventBuffer;
use tandem_launch::inventory::Resolved;
use tandem_launch::launch::{Corpora, LaunchError, Launched, Setup};
use tandem_launch::step_events;

use crate::exit::Exit;

use super::examination::Examination;

/// Steps that are taken: the first five count for nothing.
const STEPS_ON_CARDS: u64 = 100;
const STEPS_ELSEWHERE: u64 = 20;
/// Larger models on a CPU take seconds a step: nobody waits longer than this for the next one.
const LONGEST: Duration = Duration::from_secs(30);

/// Runs the plan for a while.
pub(super) fn look(resolved: &Resolved, corpora: &Corpora, to: &mut Examination<'_>) -> Result<(), Exit> {
    match take_steps(resolved, corpora) {
        Ok(records) => tell_of(&records, to),
        Err(error) => {
            let advice = "`tandem validate` with the same flags says at which point it fails";
            to.bad(&format!("the plan does not run: {error}"), advice)
        }
    }
}

fn tell_of(records: &[Record], to: &mut Examination<'_>) -> Result<(), Exit> {
    let steps = records.iter().filter(|record| matches!(record.event, RunEvent::Step { .. })).count();
    match Diagnosis::of(records) {
        Ok(diagnosis) => {
            let told = diagnosis.lines();
            let Some((pace, rest)) = told.split_first() else { return Ok(()) };
            to.good(&format!("{steps} steps taken: {pace}"))?;
            rest.iter().for_each(|line| to.text(line));
            diagnosis.verdicts.iter().try_for_each(|verdict| to.note(&verdict.to_string()))
        }
        Err(error) => to.good(&format!("{steps} steps taken; too few for a diagnosis: {error}")),
    }
}

fn take_steps(resolved: &Resolved, corpora: &Corpora) -> Result<Vec<Record>, LaunchError> {
    let heard = EventBuffer::new(Emitter::none());
    let emitter = heard.emitter();
    let (launched, _) = Setup::new(resolved, corpora, None, None, &emitter)?.launch(&mut |_| {})?;
    // The trainer is bound last: it goes before the arenas its memory is from.
    let Launched { roles: _roles, mut trainer, .. } = launched;
    let most = if resolved.machine.kind() == DeviceKind::Cuda { STEPS_ON_CARDS } else { STEPS_ELSEWHERE };
    trainer.start_clock();
    let begun = Instant::now();
    for _ in 0..most {
        if let Some(report) = trainer.advance()? {
            step_events::step(&report, &emitter);
        }
        if begun.elapsed() > LONGEST {
            break;
        }
    }
    trainer.settle()?.iter().for_each(|report| step_events::step(report, &emitter));
    trainer.stop()?;
    Ok(heard.take())
}
