//! Runs a few real steps of the plan: enough to see which stage is slow on a user's machine.

use std::time::{Duration, Instant};

use tandem_device::DeviceKind;
use tandem_diagnosis::Diagnosis;
use tandem_events::{Emitter, Record, RunEvent};
use tandem_launch::EventBuffer;
use tandem_launch::inventory::Resolved;
use tandem_launch::launch::{Corpora, LaunchError, Launched, Setup};
use tandem_launch::step_events;

use crate::exit::Exit;

use super::report::DoctorReport;

/// Steps to run, including 5 warm-up steps.
const STEPS_ON_CARDS: u64 = 100;
const STEPS_ELSEWHERE: u64 = 20;
/// No step starts after this time: large models take seconds per step on a CPU.
const MAX_TIME: Duration = Duration::from_secs(30);

/// Runs the plan and reports its speed.
pub(super) fn examine(resolved: &Resolved, corpora: &Corpora, report: &mut DoctorReport<'_>) -> Result<(), Exit> {
    match run_steps(resolved, corpora) {
        Ok(records) => report_steps(&records, report),
        Err(error) => {
            let advice = "`tandem validate` with the same flags shows which check fails";
            report.bad(&format!("the plan does not run: {error}"), advice)
        }
    }
}

fn report_steps(records: &[Record], report: &mut DoctorReport<'_>) -> Result<(), Exit> {
    let steps = records.iter().filter(|record| matches!(record.event, RunEvent::Step { .. })).count();
    match Diagnosis::of(records) {
        Ok(diagnosis) => {
            let lines = diagnosis.lines();
            let Some((pace, rest)) = lines.split_first() else { return Ok(()) };
            report.good(&format!("ran {steps} steps: {pace}"))?;
            rest.iter().for_each(|line| report.text(line));
            diagnosis.verdicts.iter().try_for_each(|verdict| report.note(&verdict.to_string()))
        }
        Err(error) => report.good(&format!("ran {steps} steps, too few for a diagnosis: {error}")),
    }
}

fn run_steps(resolved: &Resolved, corpora: &Corpora) -> Result<Vec<Record>, LaunchError> {
    let events = EventBuffer::new(Emitter::none());
    let emitter = events.emitter();
    let (launched, _) = Setup::new(resolved, corpora, None, None, &emitter)?.launch(&mut |_| {})?;
    // The trainer is bound last, so that it is dropped before the arenas it uses.
    let Launched { roles: _roles, mut trainer, .. } = launched;
    let max_steps = if resolved.machine.kind() == DeviceKind::Cuda { STEPS_ON_CARDS } else { STEPS_ELSEWHERE };
    trainer.start_clock();
    let started = Instant::now();
    for _ in 0..max_steps {
        if let Some(report) = trainer.advance()? {
            step_events::step(&report, &emitter);
        }
        if started.elapsed() > MAX_TIME {
            break;
        }
    }
    trainer.drain()?.iter().for_each(|report| step_events::step(report, &emitter));
    trainer.stop()?;
    Ok(events.take())
}
