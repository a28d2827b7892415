//! `tandem bench mel`.

use serde_json::json;
use tandem_bench::benchmarks::mel::{self, MelRow};
use tandem_device::DeviceKind;

use super::setup::BenchSetup;
use super::table::{TextTable, sign};
use super::{BenchArgs, Found, failed};
use crate::exit::Exit;

/// SPEC: microseconds of log-mel for 8 recordings of 8 s. Three times torchaudio is the other goal; a peer tells.
const GOAL_US: f64 = 100.0;

pub(super) fn measure(call: &BenchArgs, ground: &BenchSetup) -> Result<Found, Exit> {
    let rows = mel::measure(&ground.site, call.steps).map_err(failed)?;
    Ok(report(&rows, ground.kind()))
}

fn report(rows: &[MelRow], kind: DeviceKind) -> Found {
    let rounds = rows.first().map_or(0, |row| row.rounds);
    let (clock, goal) = match kind {
        DeviceKind::Cuda => ("the card's clock", Some(GOAL_US)),
        DeviceKind::Cpu | DeviceKind::Simulated => {
            ("the host's clock: the kernels' twins on the CPU, one batch shape", None)
        }
    };
    let title = format!("Features of a batch; median of {rounds}, by {clock}");
    let mut table = TextTable::new(title, &["", "batch", "µs", "middle half µs", "h audio/s", "goal"]);
    let mut found = Found::default();
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
        found.rows.push(json!({
            "work": row.work,
            "batch": row.rows,
            "seconds": row.seconds,
            "median_us": row.us.median,
            "low_us": row.us.low,
            "high_us": row.us.high,
            "audio_hours_per_s": row.hours_per_s,
            "rounds": row.rounds,
            "goal_met": met,
        }));
    }
    if let Some(goal) = goal {
        table.note(format!(
            "goal: log-mel of 8 × 8 s in ≤ {goal} µs; 3 × torchaudio on the same card (run it with --peer)"
        ));
    }
    found.text = table.show();
    found
}
