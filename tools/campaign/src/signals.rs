//! SIGTERM, SIGINT, SIGHUP, once and twice, and SIGSTOP with SIGCONT, at random moments: a documented exit code, a
//! checkpoint, and the bytes of an undisturbed run after a resume.

use std::time::Duration;

use rustix::process::Signal;

use crate::case::CaseContext;
use crate::checkpoints::checkpoints;
use crate::command::HowEnded;
use crate::fixtures::VARIANTS;
use crate::kills::{DisturbTime, complete_or_absent, finish};
use crate::verdict::Expectation;

const STOPPING: [(Signal, i32); 3] = [(Signal::TERM, 15), (Signal::INT, 2), (Signal::HUP, 1)];

pub(crate) fn run(case: &mut CaseContext<'_>) -> anyhow::Result<()> {
    let variant = *case.choices.pick(&VARIANTS);
    let reference = case.reference(variant)?;
    case.copy_corpus()?;
    for _ in 0..case.choices.between(1, 3) {
        let time = DisturbTime::choose(case, reference.wall);
        let (signal, number) = *case.choices.pick(&STOPPING);
        let (second, second_number) = *case.choices.pick(&STOPPING);
        let pause = Duration::from_secs_f64(case.choices.fraction() * 0.1);
        let mut expected = Expectation::code(0).or_signal(number);
        let mut running = case.spawn(&variant.command())?;
        time.wait(&mut running, &case.path("run"))?;
        let mut once = false;
        match case.choices.below(8) {
            0..4 => {
                running.signal(signal)?;
                once = true;
                case.count("one signal");
            }
            4 => {
                running.signal(signal)?;
                std::thread::sleep(pause);
                running.signal(signal)?;
                case.count("the same signal twice");
            }
            5 => {
                running.signal(signal)?;
                std::thread::sleep(pause);
                running.signal(second)?;
                expected = expected.or_signal(second_number);
                case.count("two signals");
            }
            6 => {
                running.signal(Signal::STOP)?;
                std::thread::sleep(pause * 4);
                running.signal(Signal::CONT)?;
                expected = Expectation::code(0);
                case.count("stopped and continued");
            }
            _ => {
                running.signal(Signal::STOP)?;
                running.signal(signal)?;
                std::thread::sleep(pause);
                running.signal(Signal::CONT)?;
                once = true;
                case.count("stopped, signalled, continued");
            }
        }
        let outcome = running.wait()?;
        case.counts.inputs += 1;
        case.judge(&outcome, &expected);
        complete_or_absent(case)?;
        let out = outcome.out_text();
        let trained = out.contains("Model training starting now");
        if once && trained && matches!(outcome.ended, HowEnded::Signalled(_)) {
            case.fail("one signal during training ended the process without a checkpoint");
        }
        let stopped = out.split("Stopped after step ").nth(1);
        let step = stopped.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok());
        if let Some(step) = step.filter(|step| *step > 0)
            && !checkpoints(&case.path("run"))?.contains(&format!("checkpoint-{step:08}"))
        {
            case.fail(format!("stopped after step {step}, and there is no checkpoint of it"));
        }
        // A signal after the last step only ends the samples.
        let ended = step.is_some() || out.contains("Training finished");
        if once && trained && matches!(outcome.ended, HowEnded::Exited(code) if code > 128) && !ended {
            case.fail("stopped by one signal without saying after which step");
        }
    }
    finish(case, variant)
}
