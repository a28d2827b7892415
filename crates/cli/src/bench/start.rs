//! `tandem bench start`.

use serde_json::json;
use tandem_bench::benchmarks::start::{self, Scan, Start};

use super::setup::BenchSetup;
use super::table::{TextTable, sign};
use super::{BenchArgs, BenchOutput, failed};
use crate::exit::Exit;
use crate::scratch::Scratch;
use crate::screen::Screen;

/// Rows of the manifest with durations, and recordings of the one without.
const ROWS: usize = 1_000_000;
const SCANNED: usize = 2000;
/// The goal: seconds to the first batch.
const GOAL_S: f64 = 2.0;

pub(super) fn measure(args: &BenchArgs, setup: &BenchSetup, screen: &Screen) -> Result<BenchOutput, Exit> {
    let folder = Scratch::new()?;
    let rows = args.rows.unwrap_or(ROWS);
    screen.progress(&format!("Writing a manifest of {rows} rows..."))?;
    let list = start::write_list(&folder.path().join("list"), rows).map_err(failed)?;
    let batch = u32::try_from(setup.resolved.plan.batch_size).unwrap_or(u32::MAX);
    screen.progress("Opening it...")?;
    let start = start::measure(&setup.context, &list, &folder.path().join("lengths"), batch).map_err(failed)?;
    screen.progress(&format!("Measuring {} recordings without durations...", SCANNED.min(rows)))?;
    let scan = start::scan(&folder.path().join("scan"), SCANNED.min(rows)).map_err(failed)?;
    Ok(report(&start, scan, rows == ROWS))
}

fn report(start: &Start, scan: Scan, has_goal: bool) -> BenchOutput {
    let title = format!("First batch of a manifest with {} rows and durations, without an index", start.rows);
    let mut table = TextTable::new(title, &["", "s", "goal"]);
    for (part, seconds) in &start.parts {
        table.row(vec![(*part).to_owned(), format!("{seconds:.3}"), String::new()]);
    }
    let (total_s, met) = (start.total_s(), has_goal.then_some(start.total_s() <= GOAL_S));
    table.row(vec!["total to the first batch".to_owned(), format!("{total_s:.3}"), sign(met)]);
    table.note(format!("goal: ≤ {GOAL_S} s for 1000000 rows; shuffling alone took {:.3} s", start.order_s));
    let each_us = scan.seconds / scan.recordings.max(1) as f64 * 1e6;
    table.note(format!(
        "separately: measuring {} recordings without durations took {each_us:.0} µs each",
        scan.recordings
    ));
    let parts = start.parts.iter().map(|(part, seconds)| json!({ "part": part, "seconds": seconds }));
    let rows = vec![
        json!({
            "table": "first batch",
            "rows": start.rows,
            "list_bytes": start.list_bytes,
            "parts": parts.collect::<Vec<_>>(),
            "order_seconds": start.order_s,
            "total_seconds": total_s,
            "goal_met": met,
        }),
        json!({ "table": "scan", "recordings": scan.recordings, "seconds": scan.seconds, "us_each": each_us }),
    ];
    BenchOutput { text: table.show(), rows, ..BenchOutput::default() }
}
