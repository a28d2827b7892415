//! `tandem bench step`.

use serde_json::{Value, json};
use tandem_bench::benchmarks::step::{self, Breakdown, StepRow, StepSize, StepSpec};
use tandem_device::bytes::mib_ceil;
use tandem_device::{DType, DeviceKind};
use tandem_plan::Precision;

use super::comparison::OwnFigure;
use super::setup::BenchSetup;
use super::table::{TextTable, percent};
use super::{BenchArgs, BenchOutput, failed};
use crate::exit::Exit;
use crate::screen::Screen;

/// Steps per median.
const STEPS: usize = 30;
/// The goal: step time ÷ time of its GEMMs and attention alone.
const GOAL_OVER_FLOOR: f64 = 1.35;
const GOAL_OVER_FLOOR_SMALL: f64 = 1.6;

/// The values of `--size`.
pub(super) const SIZES: [&str; 4] = ["tiny", "small", "middle", "large"];
/// The values of `--precision`.
pub(super) const PRECISIONS: [&str; 2] = ["f32", "bf16"];

pub(super) fn measure(args: &BenchArgs, setup: &BenchSetup, screen: &Screen) -> Result<BenchOutput, Exit> {
    let spec =
        StepSpec { precision: precision(args, setup), steps: args.steps.unwrap_or(STEPS), breakdown: args.breakdown };
    let mut rows = Vec::new();
    for size in sizes(args, setup.kind()) {
        screen.progress(&format!("Measuring:   {}", size.label()))?;
        rows.push(step::measure(&setup.context, size, spec).map_err(failed)?);
    }
    Ok(report(&rows, spec, setup.kind()))
}

fn sizes(args: &BenchArgs, kind: DeviceKind) -> Vec<StepSize> {
    if args.sizes.is_empty() {
        return StepSize::usual(kind).to_vec();
    }
    StepSize::ALL.into_iter().filter(|size| args.sizes.iter().any(|name| name == size.name)).collect()
}

fn precision(args: &BenchArgs, setup: &BenchSetup) -> DType {
    match (args.precision.as_deref(), setup.resolved.plan.precision) {
        (Some("f32"), _) | (None, Precision::Full) => DType::F32,
        _ => DType::BF16,
    }
}

fn precision_name(precision: DType) -> &'static str {
    if precision == DType::BF16 { PRECISIONS[1] } else { PRECISIONS[0] }
}

/// The allowed ratio of a step to its floor, where there is a goal.
fn goal(size: &StepSize, spec: StepSpec, kind: DeviceKind) -> Option<f64> {
    let goal = if size.name == "small" { GOAL_OVER_FLOOR_SMALL } else { GOAL_OVER_FLOOR };
    (kind == DeviceKind::Cuda && spec.precision == DType::BF16).then_some(goal)
}

fn report(rows: &[StepRow], spec: StepSpec, kind: DeviceKind) -> BenchOutput {
    let compute = match spec.precision {
        DType::BF16 => "bf16 with master weights in f32",
        _ => "f32",
    };
    let title = format!("One training step, {compute}; median of {}, from launch to completion", spec.steps);
    let columns = ["", "ms", "p25 to p75 ms", "first step s", "arena MB", "launches", "GEMMs", "loss"];
    let mut table = TextTable::new(title, &columns);
    let mut output = BenchOutput::default();
    for row in rows {
        table.row(vec![
            row.size.label(),
            format!("{:.3}", row.ms.median),
            format!("{:.3} to {:.3}", row.ms.low, row.ms.high),
            format!("{:.2}", row.first_step_s),
            mib_ceil(row.arena_bytes).to_string(),
            row.launches.to_string(),
            row.gemms.to_string(),
            format!("{:.3}", row.loss),
        ]);
        output.rows.push(step_json(row));
        output.ours.push(OwnFigure {
            label: row.size.label(),
            ms: row.ms.median,
            goal_over_floor: goal(&row.size, spec, kind),
        });
    }
    if kind != DeviceKind::Cuda {
        table.note("host kernels on the CPU, host clock");
    }
    output.text = table.show();
    for row in rows {
        if let Some(breakdown) = &row.breakdown {
            output.text += &show_breakdown(row, breakdown);
            output.rows.extend(breakdown_json(row, breakdown));
        }
    }
    output
}

fn show_breakdown(row: &StepRow, breakdown: &Breakdown) -> String {
    let title = format!("Time of {} by kind of kernel, each timed alone", row.size.label());
    let mut table = TextTable::new(title, &["", "count", "µs", "share", "TFLOP/s", "GB/s"]);
    let total_us = breakdown.total_us();
    let mut line = |name: &str, count: String, us: f64, rates: [String; 2]| {
        let [flops, bytes] = rates;
        let share = percent(us / total_us.max(1e-3));
        table.row(vec![name.to_owned(), count, format!("{us:.1}"), share, flops, bytes]);
    };
    for group in &breakdown.groups {
        let flops = group.tera_flops().map_or(String::new(), |rate| format!("{rate:.1}"));
        line(&group.name, group.count.to_string(), group.us, [flops, format!("{:.0}", group.giga_bytes())]);
    }
    line("sum of all, one after another", String::new(), total_us, Default::default());
    line(FLOOR, String::new(), breakdown.floor_us(), Default::default());
    let ratio = over_floor(row, breakdown);
    table.note(format!("a step takes {ratio:.2} × {FLOOR}"));
    table.show()
}

const FLOOR: &str = "GEMMs and attention alone";

/// Step time ÷ time of its GEMMs and attention alone.
fn over_floor(row: &StepRow, breakdown: &Breakdown) -> f64 {
    row.ms.median * 1e3 / breakdown.floor_us().max(1e-3)
}

fn step_json(row: &StepRow) -> Value {
    json!({
        "table": "step",
        "size": row.size.label(),
        "precision": precision_name(row.spec.precision),
        "median_ms": row.ms.median,
        "low_ms": row.ms.low,
        "high_ms": row.ms.high,
        "steps": row.spec.steps,
        "first_step_s": row.first_step_s,
        "session_s": row.session_s,
        "parameters": row.parameters,
        "arena_bytes": row.arena_bytes,
        "launches": row.launches,
        "gemms": row.gemms,
        "moves": row.moves,
        "loss": row.loss,
    })
}

fn breakdown_json(row: &StepRow, breakdown: &Breakdown) -> Vec<Value> {
    let size = row.size.label();
    let group = |group: &step::KernelGroup| {
        json!({
            "table": "group",
            "size": size,
            "name": group.name,
            "count": group.count,
            "us": group.us,
            "share": group.us / breakdown.total_us().max(1e-3),
            "tera_flops": group.tera_flops(),
            "giga_bytes_per_s": group.giga_bytes(),
        })
    };
    let mut rows: Vec<Value> = breakdown.groups.iter().map(group).collect();
    rows.push(json!({
        "table": "floor",
        "size": size,
        "name": FLOOR,
        "us": breakdown.floor_us(),
        "all_us": breakdown.total_us(),
        "step_over_floor": over_floor(row, breakdown),
    }));
    rows
}
