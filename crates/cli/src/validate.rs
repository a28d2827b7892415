//! `tandem validate`: five checks on the real devices.

use std::process::ExitCode;

use serde_json::json;
use tandem_bench::validate::{CheckReport, validate};
use tandem_events::RunEvent;
use tandem_launch::inventory::{Inventory, Resolved, cards_json};
use tandem_launch::launch::Corpora;
use tandem_plan::{plan_json, show_plan};

use crate::args::PlanCall;
use crate::auto;
use crate::data::{self, FoundCorpus};
use crate::exit::{Exit, FAILED};
use crate::plan::details;
use crate::run_log;
use crate::scratch::Scratch;
use crate::screen::{self, Screen};

pub(crate) fn run(typed: &PlanCall, screen: &Screen) -> Result<ExitCode, Exit> {
    typed.warnings.iter().for_each(|warning| screen.warn(warning));
    let settled = auto::settle(typed, screen)?;
    let call = settled.as_ref().unwrap_or(typed);
    // The corpus it makes for itself is gone when this is.
    let folder = Scratch::new()?;
    let (resolved, corpora) = resolve(call, &folder, screen)?;
    // Only now: a plan that is refused must not cost anybody the log of an earlier run.
    let (log, emitter) = run_log::open(call)?;
    emitter.emit(RunEvent::RunStarted {
        command: "validate".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        plan_json: Some(plan_json(&resolved.plan, &resolved.hardware).to_string()),
    });
    let mut shown = Ok(());
    if call.verbose {
        let Resolved { machine, hardware, plan } = &resolved;
        shown = screen.say(&format!("{}\n{}", show_plan(plan, hardware), details(machine, hardware)));
    }
    let report = validate(&resolved, &corpora, &emitter, &mut |line| {
        if shown.is_ok() {
            shown = screen.progress(line);
        }
    });
    let code = if report.passed() { 0 } else { FAILED };
    let reason = if report.passed() { "all checks passed" } else { "a check failed" };
    run_log::close(log, code, reason, screen);
    let concluded = shown.and_then(|()| match call.json {
        true => screen::write_json(&document(&report, &resolved)),
        false => conclude(&report, call, screen),
    });
    match concluded {
        // The checks have their answer, whether anybody reads it or not.
        Ok(()) | Err(Exit::Closed) => Ok(ExitCode::from(code)),
        Err(exit) => Err(exit),
    }
}

/// The plan of a run, and what it runs on: the corpus that was named, or synthetic speech.
pub(crate) fn resolve(call: &PlanCall, folder: &Scratch, screen: &Screen) -> Result<(Resolved, Corpora), Exit> {
    let refused = |refusal| Exit::Refused(Box::new(refusal));
    let (resolved, corpus) = crate::plan::resolve(call, screen)?;
    if let Some(FoundCorpus { corpora, .. }) = corpus {
        return Ok((resolved, corpora));
    }
    // What `plan` refuses was refused above. Synthetic speech is shorter than what is planned for without a corpus, and
    // has shapes of its own.
    let FoundCorpus { facts, corpora } = data::make(call, folder)?;
    let resolved = Inventory::again(resolved).resolve(&call.settings, Some(&facts)).map_err(refused)?;
    Ok((resolved, corpora))
}

fn conclude(report: &CheckReport, call: &PlanCall, screen: &Screen) -> Result<(), Exit> {
    if report.passed() {
        let sim = call.sim_text.as_ref().map(|spec| format!(" --sim {spec}")).unwrap_or_default();
        screen.say("🎉 All validation checks passed!")?;
        return screen.say(format!("   To run it: tandem train{sim} {}", call.settings).trim_end());
    }
    screen.say("❌ Validation failed:")?;
    for check in report.checks.iter().filter(|check| !check.passed) {
        screen.say(&format!("   {}. {}", check.number, check.text))?;
    }
    report.advice.map_or(Ok(()), |advice| screen.say(&format!("   {advice}")))
}

fn document(report: &CheckReport, resolved: &Resolved) -> serde_json::Value {
    // The plan as it was carried out: another way across may have taken the place of the planned one.
    let mut plan = resolved.plan.clone();
    plan.transfer = report.transfer.clone().unwrap_or(plan.transfer);
    let check = |check: &tandem_bench::validate::Check| json!({ "number": check.number, "passed": check.passed, "text": check.text });
    json!({
        "passed": report.passed(),
        "advice": report.advice,
        "simulated": resolved.plan.simulated,
        "checks": report.checks.iter().map(check).collect::<Vec<_>>(),
        "cards": cards_json(&resolved.machine),
        "plan": plan_json(&plan, &resolved.hardware),
    })
}
