//! `tandem validate`: five checks on the real devices.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;
use tandem_bench::validate::{CheckReport, validate};
use tandem_events::RunEvent;
use tandem_launch::inventory::{Inventory, Resolved, cards_json};
use tandem_launch::launch::Corpora;
use tandem_plan::{plan_json, show_plan};

use crate::args::PlanArgs;
use crate::auto::{self, AutoScope};
use crate::data::{self, FoundCorpus};
use crate::exit::{Exit, FAILED};
use crate::plan::details;
use crate::run_log;
use crate::scratch::Scratch;
use crate::screen::{self, Screen};

pub(crate) fn run(typed: &PlanArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    typed.warnings.iter().for_each(|warning| screen.warn(warning));
    let auto_args = auto::choose_mode(typed, AutoScope::OneProcess, screen)?;
    let args = auto_args.as_ref().unwrap_or(typed);
    // Holds the generated corpus until the checks end.
    let folder = Scratch::new()?;
    let (mut resolved, corpora) = resolve(args, &folder, screen)?;
    if resolved.prover.is_some() {
        // The checks prove the route in this process, and a bad one would take it down.
        resolved.try_transfer().context("the transfer test between the roles failed")?;
    }
    // Opened only now: a refused plan must not overwrite the log of an earlier run.
    let (log, emitter) = run_log::open(args)?;
    emitter.emit(RunEvent::RunStarted {
        command: "validate".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        plan_json: Some(plan_json(&resolved.plan, &resolved.hardware).to_string()),
    });
    let mut printed = Ok(());
    if args.verbose {
        let Resolved { machine, hardware, plan, .. } = &resolved;
        printed = screen.print(&format!("{}\n{}", show_plan(plan, hardware), details(machine, hardware)));
    }
    let report = validate(&resolved, &corpora, &emitter, &mut |line| {
        if printed.is_ok() {
            printed = screen.progress(line);
        }
    });
    let code = if report.passed() { 0 } else { FAILED };
    let reason = if report.passed() { "all checks passed" } else { "a check failed" };
    run_log::close(log, code, reason, screen);
    let concluded = printed.and_then(|()| match args.json {
        true => screen::write_json(&document(&report, &resolved)),
        false => conclude(&report, args, screen),
    });
    match concluded {
        // The exit code is that of the checks, whether the output was closed or not.
        Ok(()) | Err(Exit::Closed) => Ok(ExitCode::from(code)),
        Err(exit) => Err(exit),
    }
}

/// The plan of a run and its corpus: that of the flags, or synthetic speech.
pub(crate) fn resolve(args: &PlanArgs, folder: &Scratch, screen: &Screen) -> Result<(Resolved, Corpora), Exit> {
    let refused = |refusal| Exit::Refused(Box::new(refusal));
    let (resolved, corpus) = crate::plan::resolve(args, screen)?;
    let (mut resolved, corpora) = match corpus {
        Some(FoundCorpus { corpora, .. }) => (resolved, corpora),
        // Refusals of `plan` are returned above. Synthetic speech is shorter than what `plan` assumes without a corpus and
        // has other buckets: the plan is resolved again for it.
        None => {
            let FoundCorpus { facts, corpora } = data::generate(args, folder)?;
            (Inventory::again(resolved).resolve(&args.settings, Some(&facts)).map_err(refused)?, corpora)
        }
    };
    resolved.plan.cache.move_into(folder.path());
    Ok((resolved, corpora))
}

fn conclude(report: &CheckReport, args: &PlanArgs, screen: &Screen) -> Result<(), Exit> {
    if report.passed() {
        let sim = args.sim_text.as_ref().map(|spec| format!(" --sim {spec}")).unwrap_or_default();
        screen.print("🎉 All validation checks passed!")?;
        return screen.progress(format!("   To run it: tandem train{sim} {}", args.settings).trim_end());
    }
    screen.print("❌ Validation failed:")?;
    for check in report.checks.iter().filter(|check| !check.passed) {
        screen.print(&format!("   {}. {}", check.number, check.text))?;
    }
    report.advice.map_or(Ok(()), |advice| screen.print(&format!("   {advice}")))
}

fn document(report: &CheckReport, resolved: &Resolved) -> serde_json::Value {
    // The plan as it ran: the transfer may have fallen back to another route.
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
