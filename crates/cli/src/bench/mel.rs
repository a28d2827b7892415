//! `tandem bench mel`.

use serde_json::json;
use tandem_bench::benchmarks::mel::{self, MelRow};
use tandem_device::DeviceKind;

use super::setup::BenchSetup;
use super::table::{TextTable, sign};
use super::{BenchArgs, BenchOutput, failed};
use crate::exit::Exit;

/// The goal for the log-mel of 8 recordings of 8 s, in microseconds. The other goal, 3 × torchaudio, needs a peer.
const GOAL_US: f64 = 100.0;

pub(super) fn measure(args: &BenchArgs, setup: &BenchSetup) -> Result<BenchOutput, Exit> {
    let rows = mel::measure(&setup.context, args.steps).map_err(failed)?;
    Ok(report(&rows, setup.kind()))
}

fn report(rows: &[MelRow], kind: DeviceKind) -> BenchOutput {
    let rounds = rows.first().map_or(0, |row| row.rounds);
    let (clock, goal) = match kind {
        DeviceKind::Cuda => ("GPU clock", Some(GOAL_US)),
        DeviceKind::Cpu | DeviceKind::Simulated => ("host clock; host kernels on the CPU, one batch shape", None),
    };
    let title = format!("Features of one batch; median of {rounds} ({clock})");
    let mut table = TextTable::new(title, &["", "batch", "µs", "p25 to p75 µs", "audio h/s", "goal"]);
    let mut output = BenchOutput::default();
    for row in rows {
        let has_goal = row.work == "log-mel" && row.rows == 8 && row.seconds == 8.0;
        let met = goal.filter(|_| has_goal).map(|goal| row.us.median <= goal);
        table.row(vec![
            row.work.clone(),
            format!("{} × {} s", row.rows, row.seconds),
            format!("{:.1}", row.us.median),
            format!("{:.1} to {:.1}", row.us.low, row.us.high),
            format!("{:.1}", row.hours_per_s),
            sign(met),
        ]);
        output.rows.push(json!({
            "work": row.work,
            "batch": row.rows,
            "seconds": row.seconds,
            "median_us": row.us.median,
            "low_us": row.us.low,
            "high_us": row.us.high,
            "audio_hours_per_s": row.hours_per_s,
            "rounds": row.rounds,
            "over_f64": row.over_f64,
            "goal_met": met,
        }));
    }
    for row in rows {
        let Some(over_f64) = row.over_f64 else { continue };
        let (rows, seconds) = (row.rows, row.seconds);
        table.note(format!("two-float takes {over_f64:.2} × the time of f64 for {rows} × {seconds} s"));
    }
    if let Some(goal) = goal {
        table.note(format!(
            "goal: log-mel of 8 × 8 s in ≤ {goal} µs; 3 × as fast as torchaudio on the same GPU (run it with --peer)"
        ));
    }
    output.text = table.show();
    output
}
