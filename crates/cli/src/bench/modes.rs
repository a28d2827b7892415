//! `tandem bench modes`.

use serde_json::json;
use tandem_bench::auto_mode::TimedRuns;
use tandem_bench::benchmarks::modes::{self, ModeRow, ModesReport};
use tandem_device::bytes::mib_ceil;
use tandem_plan::setting::Id;

use super::setup::BenchSetup;
use super::table::{TextTable, percent, sign};
use super::{BenchArgs, BenchOutput, training};
use crate::args::PlanArgs;
use crate::auto;
use crate::exit::Exit;
use crate::pair_checks;
use crate::scratch::Scratch;
use crate::screen::Screen;

/// The goal: throughput with hard limits ÷ the same mode without.
const GOAL: f64 = 0.99;

/// Resolves the plan of the default mode, with a corpus.
pub(super) fn prepare(args: &BenchArgs, screen: &Screen) -> Result<(BenchSetup, Scratch), Exit> {
    let settings = args.plan.settings.without(&[Id::Mode]);
    training::prepare(&BenchArgs { plan: PlanArgs { settings, ..args.plan.clone() }, ..args.clone() }, screen)
}

pub(super) fn measure(args: &BenchArgs, setup: &BenchSetup, screen: &Screen) -> Result<BenchOutput, Exit> {
    let Some(corpus) = &setup.corpus else { return Ok(BenchOutput::default()) };
    let refused = |refusal| Exit::Refused(Box::new(refusal));
    let candidates = modes::field(&args.plan.settings, &setup.resolved.hardware).map_err(refused)?;
    screen.progress(&format!("Timing {} modes...", candidates.len()))?;
    let survey = || pair_checks::survey(&args.plan);
    let (folder, emitter) = (Scratch::new()?, setup.context.emitter.clone());
    let mut timed_runs = TimedRuns::new(&survey, &corpus.facts, &corpus.corpora, folder.path(), emitter);
    timed_runs = timed_runs.of_steps(args.steps);
    let mut printed = Ok(());
    let report = modes::run(candidates, &mut timed_runs, auto::rounds(&args.plan), &mut |line| {
        if printed.is_ok() {
            printed = screen.progress(&format!("   {line}"));
        }
    });
    printed?;
    let mut output = BenchOutput::default();
    show(&report, setup, &mut output);
    Ok(output)
}

fn show(report: &ModesReport, setup: &BenchSetup, output: &mut BenchOutput) {
    let plan = &setup.resolved.plan;
    let title = format!("Modes of this machine: {} model, batch {}", plan.model_size.name(), plan.batch_size);
    let columns = [
        "mode",
        "steps/s",
        "p25 to p75",
        "÷ best",
        "÷ no limits",
        "data busy",
        "model busy",
        "data MB",
        "model MB",
        "goal",
        "",
    ];
    let mut table = TextTable::new(title, &columns);
    for (index, row) in report.rows.iter().enumerate() {
        let of_open = report.of_open(index);
        let goal = of_open.map(|share| share >= GOAL);
        let mut cells = vec![row.candidate.name()];
        cells.extend(figures(row, report.best()));
        cells.insert(4, of_open.map_or(String::new(), |share| format!("{share:.3}")));
        cells.extend([sign(goal), remark(row, report.taken == Some(index))]);
        table.row(cells);
        output.rows.push(json_row(row, of_open, goal, report, index));
    }
    if plan.simulated {
        table.note("simulated: times are of the simulated clock, where features and step take turns on one card");
    }
    if report.rows.iter().any(|row| !row.candidate.ranks.is_empty()) {
        table.note(auto::RANKS_NOTE);
    }
    table.note(
        "÷ no limits: against the same mode without hard limits (goal: ≥ 0.99); chosen: the mode --mode auto chooses",
    );
    output.text += &table.show();
    let fastest = report.rows.iter().max_by(|a, b| rate(a).total_cmp(&rate(b))).filter(|row| row.seen.is_ok());
    if let Some(fastest) = fastest {
        output.text += &format!("Fastest on this machine: {}\n", fastest.candidate.name());
    }
}

fn rate(row: &ModeRow) -> f64 {
    row.rate().map_or(0.0, |rate| rate.steps_per_s)
}

/// Throughput, its spread, its ratio to the best, busy time and memory.
fn figures(row: &ModeRow, best: f64) -> Vec<String> {
    let Ok(seen) = &row.seen else { return vec![String::new(); 7] };
    let busy = |of: Option<f64>| of.map_or(String::new(), percent);
    vec![
        format!("{:.2}", seen.rate.steps_per_s),
        format!("{:.2} to {:.2}", seen.rate.low, seen.rate.high),
        format!("{:.3}", seen.rate.steps_per_s / best),
        busy(seen.busy.map(|busy| busy.data)),
        busy(seen.busy.map(|busy| busy.model)),
        mib_ceil(seen.used_bytes[0]).to_string(),
        mib_ceil(seen.used_bytes[1]).to_string(),
    ]
}

fn remark(row: &ModeRow, is_chosen: bool) -> String {
    match &row.seen {
        Ok(_) if is_chosen => "chosen".to_owned(),
        Ok(_) => String::new(),
        Err(reason) => reason.clone(),
    }
}

fn json_row(
    row: &ModeRow,
    of_open: Option<f64>,
    goal: Option<bool>,
    report: &ModesReport,
    index: usize,
) -> serde_json::Value {
    let seen = row.seen.as_ref().ok();
    json!({
        "table": "modes",
        "mode": if row.candidate.ranks.is_empty() { row.candidate.mode.slug() } else { "data_parallel" },
        "gpus": row.candidate.ranks,
        "name": row.candidate.name(),
        "flags": row.candidate.flags(),
        "isolated": row.is_isolated,
        "steps_per_s": seen.map(|seen| seen.rate.steps_per_s),
        "low": seen.map(|seen| seen.rate.low),
        "high": seen.map(|seen| seen.rate.high),
        "steps": seen.map(|seen| seen.rate.steps),
        "of_best": seen.map(|seen| seen.rate.steps_per_s / report.best()),
        "of_open": of_open,
        "data_busy": seen.and_then(|seen| seen.busy).map(|busy| busy.data),
        "model_busy": seen.and_then(|seen| seen.busy).map(|busy| busy.model),
        "data_mb": seen.map(|seen| mib_ceil(seen.used_bytes[0])),
        "model_mb": seen.map(|seen| mib_ceil(seen.used_bytes[1])),
        "taken": report.taken == Some(index),
        "goal_met": goal,
        "why": row.seen.as_ref().err(),
    })
}
