//! `tandem doctor --pair A,B`: everything about two cards that a bug report needs, in one JSON file.
//!
//! All measurements run in child processes with deadlines. One that fails is a field with its reason, and the report is
//! complete without it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Map, Value, json};
use tandem_bench::pair::PairCheck;
use tandem_device::bytes::MIB;
use tandem_device::library::Search;
use tandem_device::{Card, DeviceKind, Machine, Route};
use tandem_launch::route_proof::RouteProof;
use tandem_plan::{GpuName, quoted};

use crate::args::PlanArgs;
use crate::exit::Exit;
use crate::pair_checks::PairChecks;
use crate::screen::{self, Screen};
use crate::whole_file::write_whole;

use super::pair_table::show;
use super::pci;
use super::private::Private;
use super::{cannot_write, check_writable};

/// What the file is. A file with another schema is not a report and is never overwritten.
const SCHEMA: &str = "tandem-pair-report";
/// It grows when a field is renamed or removed.
const VERSION: u32 = 1;
const DEFAULT_FILE: &str = "tandem-pair.json";
/// Every slot is proven.
const SLOTS: usize = 3;
/// Large enough that the bandwidth of a fast link shows, and not its latency.
const BATCH_BYTES: u64 = 64 * MIB;
const SIMULATED_BATCH_BYTES: u64 = 4 * MIB;

/// The cards of `--pair A,B`.
pub(super) fn parse(text: &str) -> Result<[GpuName; 2], Exit> {
    let names: Option<Vec<GpuName>> = text.split(',').map(|part| GpuName::parse(part.trim())).collect();
    let pair: Option<[GpuName; 2]> = names.and_then(|names| names.try_into().ok());
    pair.filter(|[a, b]| a != b).ok_or_else(|| {
        let expected = "expected two different GPUs, by number or UUID, e.g. --pair 0,1";
        Exit::Usage(format!("❌ --pair {text}: {expected}"))
    })
}

pub(super) fn run(
    names: &[GpuName; 2],
    args: &PlanArgs,
    output: Option<&Path>,
    screen: &Screen,
) -> Result<ExitCode, Exit> {
    refuse_settings(args)?;
    let file = match (output, args.json) {
        (None, true) => None,
        (output, _) => Some(output.map_or_else(|| PathBuf::from(DEFAULT_FILE), Path::to_owned)),
    };
    file.as_deref().map_or(Ok(()), |file| check_writable(file, is_report))?;
    let (machine, cards) = find(names, args)?;
    let document = Private::from_env().hide_in(measure(&machine, cards, args, screen)?);
    if let Some(file) = &file {
        write_whole(file, format!("{document:#}\n").as_bytes()).map_err(|error| cannot_write(file, &error))?;
    }
    if args.json {
        screen::write_json(&document)?;
    } else {
        screen.progress(&show(&document))?;
    }
    if let Some(file) = &file {
        screen.print(&format!("For a bug report: {}", quoted(&file.display().to_string())))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A report is about two cards, not about a run: a setting would have no effect.
fn refuse_settings(args: &PlanArgs) -> Result<(), Exit> {
    let settings = args.settings.to_string();
    match settings.is_empty() {
        true => Ok(()),
        false => Err(Exit::Usage(format!("❌ --pair takes no settings of a run; remove: {settings}"))),
    }
}

fn is_report(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Value>(bytes).is_ok_and(|document| document["schema"] == SCHEMA)
}

/// The machine and the indices of both cards, if it has them.
fn find(names: &[GpuName; 2], args: &PlanArgs) -> Result<(Machine, [usize; 2]), Exit> {
    let machine = match &args.sim {
        Some(spec) => Some(Machine::simulated(spec.clone())),
        None => Machine::cuda().map_err(|error| Exit::Usage(format!("❌ --pair: {error}")))?,
    };
    let found = machine.as_ref().map(Machine::cards).unwrap_or_default();
    let listed: String = found.iter().map(|card| format!("\n   {card}")).collect();
    let Some(machine) = machine.as_ref().filter(|_| found.len() >= 2) else {
        return Err(Exit::Usage(format!("❌ --pair requires two GPUs, found {}{listed}", found.len())));
    };
    let index = |name: &GpuName| {
        let mut named = found.iter().filter(|card| name.is_name_of(card.index, &card.uuid)).map(|card| card.index);
        let problem = match (named.next(), named.next()) {
            (Some(index), None) => return Ok(index),
            (None, _) => format!("{name} is none of these GPUs"),
            (Some(_), Some(_)) => format!("{name} begins several UUIDs: type more of it"),
        };
        Err(Exit::Usage(format!("❌ --pair: {problem}{listed}")))
    };
    let cards = [index(&names[0])?, index(&names[1])?];
    if cards[0] == cards[1] {
        return Err(Exit::Usage(format!("❌ --pair: {} and {} are the same GPU{listed}", names[0], names[1])));
    }
    if let Some((card, by)) = cards.iter().find_map(|card| Some((&found[*card], found[*card].hidden_by.as_ref()?))) {
        return Err(Exit::Usage(format!("❌ --pair: GPU {} ({}) is hidden by {by}", card.index, card.uuid)));
    }
    Ok((machine.clone(), cards))
}

/// Runs all checks, a few in each process.
fn measure(machine: &Machine, [a, b]: [usize; 2], args: &PlanArgs, screen: &Screen) -> Result<Value, Exit> {
    let checks = PairChecks::of(args);
    let batch_bytes = if machine.kind() == DeviceKind::Simulated { SIMULATED_BATCH_BYTES } else { BATCH_BYTES };
    let forward = RouteProof { from: a, to: b, batch_bytes, slots: SLOTS };
    let backward = RouteProof { from: b, to: a, ..forward };
    let cards = [a, b].map(|index| card_json(&machine.cards()[index], machine.kind()));
    let routes: Vec<PairCheck> =
        PairCheck::ALL.into_iter().filter(|check| matches!(check, PairCheck::Route(_))).collect();
    let run = |title: String, proof: &RouteProof, group: &[PairCheck]| {
        screen.progress(&title)?;
        Ok::<_, Exit>(checks.run(machine, proof, group).into_iter().map(field).collect::<Vec<Value>>())
    };
    let mut first =
        run("1. Peer access, memory of the driver".to_owned(), &forward, &[PairCheck::PeerAccess, PairCheck::Memory])?;
    let to_b = run(format!("2. Routes from GPU {a} to GPU {b}"), &forward, &routes)?;
    let to_a = run(format!("3. Routes from GPU {b} to GPU {a}"), &backward, &routes)?;
    let mut times = run("4. Events and clocks".to_owned(), &forward, &[PairCheck::Events, PairCheck::Clocks])?;
    // Alone in its process: neither card works there afterwards.
    let mut trap = run(format!("5. A fault on GPU {a} while GPU {b} waits for it"), &forward, &[PairCheck::Trap])?;
    Ok(json!({
        "schema": SCHEMA,
        "version": VERSION,
        "tandem": env!("CARGO_PKG_VERSION"),
        "simulated": machine.kind() == DeviceKind::Simulated,
        "driver": machine.driver_version(),
        "cards": cards,
        "peer_access": first[0].take(),
        "driver_memory": first[1].take(),
        "routes": { "a_to_b": by_name(&routes, to_b), "b_to_a": by_name(&routes, to_a) },
        "event_round_trip": times[0].take(),
        "clocks": times[1].take(),
        "trap_on_a": trap[0].take(),
    }))
}

/// The figures of a check, or why there are none.
fn field(result: Result<Value, String>) -> Value {
    result.unwrap_or_else(|reason| json!({ "error": reason }))
}

/// The routes in the order of the ladder.
fn by_name(checks: &[PairCheck], fields: Vec<Value>) -> Vec<Value> {
    let mut found: Map<String, Value> = checks.iter().map(|check| check.name().to_owned()).zip(fields).collect();
    let row = |route: Route| {
        let mut row = found.remove(route.name())?;
        row["route"] = route.name().into();
        Some(row)
    };
    Route::LADDER.into_iter().filter_map(row).collect()
}

fn card_json(card: &Card, kind: DeviceKind) -> Value {
    let (major, minor) = card.capability;
    let pci = (kind == DeviceKind::Cuda).then(|| pci::read(&Search::from_env().hardware_root, &card.bus_id));
    json!({
        "gpu": card.index,
        "name": card.name,
        "uuid": card.uuid,
        "bus_id": card.bus_id,
        "compute_capability": format!("{major}.{minor}"),
        "total_bytes": card.total_bytes,
        "pci": pci,
    })
}
