//! `tandem bench handoff`.

use serde_json::{Value, json};
use tandem_bench::benchmarks::clips;
use tandem_bench::benchmarks::handoff::{self, Handoff, Latency};
use tandem_device::DeviceKind;

use super::setup::BenchSetup;
use super::table::{TextTable, sign};
use super::{BenchArgs, Found, failed};
use crate::exit::Exit;
use crate::scratch::Scratch;

/// Rounds of each.
const ROUNDS: usize = 20_000;
/// Leases are slower: every batch has to be made.
const LEASES: usize = 2000;
const LEASES_ELSEWHERE: usize = 200;
const CLIPS: usize = 64;
/// SPEC: microseconds, half of all and 99 of 100.
const GOAL_P50_US: f64 = 2.0;
const GOAL_P99_US: f64 = 10.0;

pub(super) fn measure(call: &BenchArgs, ground: &BenchSetup) -> Result<Found, Exit> {
    let folder = Scratch::new()?;
    let material = match ground.material() {
        Some(material) => material.clone(),
        None => {
            let list = clips::write(folder.path(), call.rows.unwrap_or(CLIPS)).map_err(failed)?;
            clips::open(&list).map_err(failed)?
        }
    };
    let rounds = call.steps.unwrap_or(ROUNDS);
    let leases = if ground.kind() == DeviceKind::Cuda { LEASES } else { LEASES_ELSEWHERE };
    let found = handoff::measure(&ground.site, &material, rounds, rounds.min(leases)).map_err(failed)?;
    Ok(report(&found))
}

fn report(found: &Handoff) -> Found {
    let parts: [(&str, &str, Latency, bool); 4] = [
        ("ring", "take a ready slot from the ring and send it home", found.ring, true),
        ("lease", "lease a ready batch, driver calls included", found.lease, false),
        ("wait", "driver: the stream waits for an event", found.wait, false),
        ("record", "driver: an event is recorded", found.record, false),
    ];
    let columns = ["", "p50 µs", "p99 µs", "goal"];
    let mut table = TextTable::new("Hand-over of a batch that is ready", &columns);
    let mut rows: Vec<Value> = Vec::new();
    for (name, what, Latency { p50_us, p99_us }, has_goal) in parts {
        let met = has_goal.then_some(p50_us <= GOAL_P50_US && p99_us <= GOAL_P99_US);
        table.row(vec![what.to_owned(), format!("{p50_us:.2}"), format!("{p99_us:.2}"), sign(met)]);
        rows.push(json!({ "name": name, "p50_us": p50_us, "p99_us": p99_us, "goal_met": met }));
    }
    table.note(format!(
        "goal: p50 ≤ {GOAL_P50_US} µs and p99 ≤ {GOAL_P99_US} µs for the ring; the driver's calls are its own"
    ));
    Found { text: table.show(), rows, ..Found::default() }
}
