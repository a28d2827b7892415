//! `tandem bench handoff`.

use serde_json::{Value, json};
use tandem_bench::benchmarks::clips;
use tandem_bench::benchmarks::handoff::{self, Handoff, Latency};
use tandem_device::DeviceKind;

use super::setup::BenchSetup;
use super::table::{TextTable, sign};
use super::{BenchArgs, BenchOutput, failed};
use crate::exit::Exit;
use crate::scratch::Scratch;

/// Rounds of each measurement.
const ROUNDS: usize = 20_000;
/// Fewer leases: every one needs a prepared batch.
const LEASES: usize = 2000;
const LEASES_OFF_CUDA: usize = 200;
const CLIPS: usize = 64;
/// The goals, in microseconds.
const GOAL_P50_US: f64 = 2.0;
const GOAL_P99_US: f64 = 10.0;

pub(super) fn measure(args: &BenchArgs, setup: &BenchSetup) -> Result<BenchOutput, Exit> {
    let folder = Scratch::new()?;
    let training_set = match setup.training_set() {
        Some(training_set) => training_set.clone(),
        None => {
            let list = clips::write(folder.path(), args.rows.unwrap_or(CLIPS)).map_err(failed)?;
            clips::open(&list).map_err(failed)?
        }
    };
    let rounds = args.steps.unwrap_or(ROUNDS);
    let leases = if setup.kind() == DeviceKind::Cuda { LEASES } else { LEASES_OFF_CUDA };
    let handoff = handoff::measure(&setup.context, &training_set, rounds, rounds.min(leases)).map_err(failed)?;
    Ok(report(&handoff))
}

fn report(handoff: &Handoff) -> BenchOutput {
    /// One measured operation.
    struct Operation {
        /// In the JSON document.
        name: &'static str,
        about: &'static str,
        latency: Latency,
        has_goal: bool,
    }
    let operation = |name, about, latency, has_goal| Operation { name, about, latency, has_goal };
    let operations = [
        operation("ring", "take a ready slot from the ring and return it", handoff.ring, true),
        operation("lease", "lease a ready batch, driver calls included", handoff.lease, false),
        operation("wait", "driver: make the stream wait for an event", handoff.wait, false),
        operation("record", "driver: record an event", handoff.record, false),
    ];
    let columns = ["", "p50 µs", "p99 µs", "goal"];
    let mut table = TextTable::new("Hand-over of a ready batch", &columns);
    let mut rows: Vec<Value> = Vec::new();
    for Operation { name, about, latency: Latency { p50_us, p99_us }, has_goal } in operations {
        let met = has_goal.then_some(p50_us <= GOAL_P50_US && p99_us <= GOAL_P99_US);
        table.row(vec![about.to_owned(), format!("{p50_us:.2}"), format!("{p99_us:.2}"), sign(met)]);
        rows.push(json!({ "name": name, "p50_us": p50_us, "p99_us": p99_us, "goal_met": met }));
    }
    table.note(format!(
        "goal: p50 ≤ {GOAL_P50_US} µs and p99 ≤ {GOAL_P99_US} µs for the ring; driver calls have no goal"
    ));
    BenchOutput { text: table.show(), rows, ..BenchOutput::default() }
}
