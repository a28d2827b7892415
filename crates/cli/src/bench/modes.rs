//! `tandem bench modes`.

use serde_json::json;
use tandem_bench::auto_mode::TimedRuns;
use tandem_bench::benchmarks::modes::{self, ModeRow, ModesReport};
use tandem_device::bytes::mib_ceil;
use tandem_launch::inventory::Inventory;
use tandem_plan::setting::Id;

use super::setup::BenchSetup;
use super::table::{TextTable, percent, sign};
use super::{BenchArgs, Found, training};
use crate::args::PlanCall;
use crate::auto;
use crate::exit::Exit;
use crate::scratch::Scratch;
use crate::screen::Screen;

/// SPEC §9: what hard limits may cost.
const GOAL: f64 = 0.99;

/// The ground for it: that of the mode which runs when none is named.
pub(super) fn ground(call: &BenchArgs, screen: &Screen) -> Result<(BenchSetup, Scratch), Exit> {
    let settings = call.plan.settings.without(&[Id::Mode]);
    training::ground(&BenchArgs { plan: PlanCall { settings, ..call.plan.clone() }, ..call.clone() }, screen)
}

pub(super) fn measure(call: &BenchArgs, ground: &BenchSetup, screen: &Screen) -> Result<Found, Exit> {
    let Some(corpus) = &ground.corpus else { return Ok(Found::default()) };
    let refused = |refusal| Exit::Refused(Box::new(refusal));
    let field = modes::field(&call.plan.settings, &ground.resolved.hardware).map_err(refused)?;
    screen.progress(&format!("Timing {} modes...", field.len()))?;
    let survey = || Inventory::survey(call.plan.sim.clone());
    let mut trials = TimedRuns::new(&survey, (&corpus.facts, &corpus.corpora), ground.site.emitter.clone());
    trials = trials.of_steps(call.steps);
    let mut said = Ok(());
    let report = modes::run(field, &mut trials, auto::rounds(&call.plan), &mut |line| {
        if said.is_ok() {
            said = screen.progress(&format!("   {line}"));
        }
    });
    said?;
    let mut found = Found::default();
    show(&report, ground, &mut found);
    Ok(found)
}

fn show(report: &ModesReport, ground: &BenchSetup, found: &mut Found) {
    let plan = &ground.resolved.plan;
    let title = format!("The modes of this machine: {} model, batch {}", plan.model_size.name(), plan.batch_size);
    let columns = [
        "mode",
        "steps/s",
        "middle half",
        "÷ best",
        "÷ open",
        "data busy",
        "model busy",
        "data MB",
        "model MB",
        "goal",
        "",
    ];
    let mut table = TextTable::new(title, &columns);
    for (at, row) in report.rows.iter().enumerate() {
        let of_open = report.of_open(at);
        let goal = of_open.map(|share| share >= GOAL);
        let mut cells = vec![row.candidate.name()];
        cells.extend(figures(row, report.best()));
        cells.insert(4, of_open.map_or(String::new(), |share| format!("{share:.3}")));
        cells.extend([sign(goal), remark(row, report.taken == Some(at))]);
        table.row(cells);
        found.rows.push(json_row(row, of_open, goal, report, at));
    }
    if plan.simulated {
        table.note("simulated: by the clock of the simulated cards, on which features and step take turns on one card");
    }
    table.note("÷ open: against the same mode without hard limits (goal ≥ 0.99); taken: what --mode auto takes");
    found.text += &table.show();
    let fastest = report.rows.iter().max_by(|a, b| rate(a).total_cmp(&rate(b))).filter(|row| row.seen.is_ok());
    if let Some(fastest) = fastest {
        found.text += &format!("The fastest here: {}\n", fastest.candidate.name());
    }
}

fn rate(row: &ModeRow) -> f64 {
    row.pace().map_or(0.0, |pace| pace.steps_per_s)
}

/// Pace, spread, of the best, how busy, how much memory.
fn figures(row: &ModeRow, best: f64) -> Vec<String> {
    let Ok(seen) = &row.seen else { return vec![String::new(); 7] };
    let busy = |of: Option<f64>| of.map_or(String::new(), percent);
    vec![
        format!("{:.2}", seen.pace.steps_per_s),
        format!("{:.2} to {:.2}", seen.pace.low, seen.pace.high),
        format!("{:.3}", seen.pace.steps_per_s / best),
        busy(seen.busy.map(|busy| busy.data)),
        busy(seen.busy.map(|busy| busy.model)),
        mib_ceil(seen.used_bytes[0]).to_string(),
        mib_ceil(seen.used_bytes[1]).to_string(),
    ]
}

fn remark(row: &ModeRow, is_taken: bool) -> String {
    match &row.seen {
        Ok(_) if is_taken => "taken".to_owned(),
        Ok(_) => String::new(),
        Err(why) => why.clone(),
    }
}

fn json_row(
    row: &ModeRow,
    of_open: Option<f64>,
    goal: Option<bool>,
    report: &ModesReport,
    at: usize,
) -> serde_json::Value {
    let seen = row.seen.as_ref().ok();
    json!({
        "table": "modes",
        "mode": row.candidate.mode.slug(),
        "name": row.candidate.name(),
        "flags": row.candidate.flags(),
        "isolated": row.is_isolated,
        "steps_per_s": seen.map(|seen| seen.pace.steps_per_s),
        "low": seen.map(|seen| seen.pace.low),
        "high": seen.map(|seen| seen.pace.high),
        "steps": seen.map(|seen| seen.pace.steps),
        "of_best": seen.map(|seen| seen.pace.steps_per_s / report.best()),
        "of_open": of_open,
        "data_busy": seen.and_then(|seen| seen.busy).map(|busy| busy.data),
        "model_busy": seen.and_then(|seen| seen.busy).map(|busy| busy.model),
        "data_mb": seen.map(|seen| mib_ceil(seen.used_bytes[0])),
        "model_mb": seen.map(|seen| mib_ceil(seen.used_bytes[1])),
        "taken": report.taken == Some(at),
        "goal_met": goal,
        "why": row.seen.as_ref().err(),
    })
}
