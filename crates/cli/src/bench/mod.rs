//! `tandem bench NAME`: measures, prints a table, and says which goals this machine meets.
//!
//! A benchmark is not a check: a missed goal is marked and is no failure. What is promised whatever the machine (the
//! limits of `memory`) does fail.

mod beside;
mod setup;
mod handoff;
mod mel;
mod memory;
mod modes;
mod peers;
mod pipeline;
mod start;
mod step;
pub(crate) mod table;
mod training;
mod verdicts;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command as Clap};
use serde_json::{Value, json};
use tandem_bench::benchmarks::BenchError;
use tandem_events::RunEvent;
use tandem_launch::inventory::{Resolved, host_facts};
use tandem_plan::plan_json;

use self::beside::Ours;
use self::memory::AtTheLimit;
use self::peers::Peer;
use self::setup::BenchSetup;
use crate::args::{self, PlanCall};
use crate::auto;
use crate::exit::{Exit, FAILED};
use crate::run_log;
use crate::screen::{self, Screen};

/// The benchmarks there are, and the figure each is about.
const NAMES: [(Name, &str, &str); 8] = [
    (Name::Pipeline, "pipeline", "steps per second against what the model could do if batches were always there"),
    (Name::Handoff, "handoff", "time to take a batch that is ready, and the driver calls beside it"),
    (Name::Mel, "mel", "features of a batch: latency, and hours of audio per second"),
    (Name::Step, "step", "one training step of the reference transformers, and where its time goes"),
    (Name::Training, "training", "the run itself: against its model without a feed, and against its GEMMs"),
    (Name::Modes, "modes", "every mode of this machine on one corpus, and which one --mode auto would take"),
    (Name::Start, "start", "time to the first batch of a list of a million recordings"),
    (Name::Memory, "memory", "peak use at the smallest limits, and allocations after warm-up"),
];

/// For whoever works on `profile`.
const UNLISTED: (Name, &str, &str) = (Name::Verdicts, "verdicts", "whether `profile` says the right thing here");

/// Which benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    Pipeline,
    Handoff,
    Mel,
    Step,
    Training,
    Modes,
    Start,
    Memory,
    Verdicts,
}

/// A call of `tandem bench`.
#[derive(Clone)]
pub(crate) struct BenchArgs {
    name: Name,
    pub(crate) plan: PlanCall,
    /// `--steps N`
    steps: Option<usize>,
    /// `--rows N`
    rows: Option<usize>,
    /// `--no-sweep`
    no_sweep: bool,
    /// `--bench-dir DIR`
    folder: Option<PathBuf>,
    /// `--size NAME`, each
    sizes: Vec<String>,
    /// `--precision NAME`
    precision: Option<String>,
    /// `--breakdown`
    breakdown: bool,
    /// `--peer CMD`, each
    peers: Vec<String>,
}

/// What a benchmark found.
#[derive(Default)]
struct Found {
    /// For people.
    text: String,
    /// For programs, a row of any table each.
    rows: Vec<Value>,
    /// What peers may have a figure for.
    ours: Vec<Ours>,
    /// What was promised and not kept.
    broken: Vec<String>,
}

pub(crate) fn grammar() -> Clap {
    let name = Arg::new("name").value_name("NAME").help("Which one; without it, all are listed");
    let steps = Arg::new("steps").long("steps").value_name("N").value_parser(count);
    let rows = Arg::new("rows").long("rows").value_name("N").value_parser(count);
    let peer = Arg::new("peer").long("peer").value_name("CMD").action(clap::ArgAction::Append);
    let size = Arg::new("size").long("size").value_name("NAME").value_parser(step::SIZES);
    let precision = Arg::new("precision").long("precision").value_name("NAME").value_parser(step::PRECISIONS);
    Clap::new("bench")
        .about("Measure this machine: how close the pipeline comes to what the model could do, and what it costs")
        .arg(name)
        .arg(steps.help("Steps, rounds or batches that are measured [default: the benchmark's own]"))
        .arg(rows.help("Recordings or rows the benchmark makes for itself [default: the benchmark's own]"))
        .arg(args::switch("no-sweep", "pipeline: leave the planted producers out"))
        .arg(
            size.action(clap::ArgAction::Append)
                .help("step: which model, tiny, small, middle or large. Repeatable [default: those for this device]"),
        )
        .arg(precision.help("step: what GEMMs compute in, f32 or bf16 [default: bf16 where the device has it]"))
        .arg(args::switch("breakdown", "step: time every kind of work by itself too"))
        .arg(args::path("bench-dir", "Folder for what a benchmark leaves: bad_samples.jsonl, the disk cache"))
        .arg(peer.help("A shell command to run in the same run, after ours; its output is quoted. Repeatable"))
        .arg(args::run_log())
}

/// What was typed after `bench`. The flags of the plan are read by `plan`.
pub(crate) fn read(
    given: &ArgMatches,
    plan: impl Fn(&ArgMatches) -> Result<PlanCall, Exit>,
) -> Result<BenchArgs, Exit> {
    let Some(typed) = given.get_one::<String>("name") else {
        return Err(if given.get_flag("json") { Exit::Usage(list()) } else { Exit::Said(list()) });
    };
    let Some((name, ..)) = NAMES.into_iter().chain([UNLISTED]).find(|(_, name, _)| name == typed) else {
        return Err(Exit::Usage(format!("❌ there is no benchmark `{typed}`\n{}", list())));
    };
    let number = |name: &str| given.get_one::<usize>(name).copied();
    let all = |name: &str| given.get_many::<String>(name).into_iter().flatten().cloned().collect();
    Ok(BenchArgs {
        name,
        plan: plan(given)?,
        steps: number("steps"),
        rows: number("rows"),
        no_sweep: given.get_flag("no-sweep"),
        folder: given.get_one::<PathBuf>("bench-dir").cloned(),
        sizes: all("size"),
        precision: given.get_one::<String>("precision").cloned(),
        breakdown: given.get_flag("breakdown"),
        peers: all("peer"),
    })
}

fn list() -> String {
    let lines = NAMES.iter().map(|(_, name, what)| format!("  tandem bench {name:<10} {what}\n"));
    lines.fold("Benchmarks:\n".to_owned(), |text, line| text + &line)
}

/// For clap: a count of at least one.
fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err("expected a whole number above 0".to_owned()),
    }
}

pub(crate) fn run(typed: &BenchArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    typed.plan.warnings.iter().for_each(|warning| screen.warn(warning));
    let settled = match typed.name {
        // It times them all itself.
        Name::Modes => None,
        _ => auto::settle(&typed.plan, screen)?.map(|plan| BenchArgs { plan, ..typed.clone() }),
    };
    let call = settled.as_ref().unwrap_or(typed);
    // What a benchmark made for itself is gone with its folder.
    let (ground, limit, _made) = match call.name {
        Name::Memory => memory::ground(call, screen).map(|(ground, limit)| (ground, Some(limit), None))?,
        Name::Training => training::ground(call, screen).map(|(ground, folder)| (ground, None, Some(folder)))?,
        Name::Modes => modes::ground(call, screen).map(|(ground, folder)| (ground, None, Some(folder)))?,
        _ => (BenchSetup::find(call, screen)?, None, None),
    };
    ground.say_notes(screen);
    let (log, emitter) = run_log::open(&call.plan)?;
    emitter.emit(RunEvent::RunStarted {
        command: format!("bench {}", call.name()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        plan_json: Some(plan_json(&ground.resolved.plan, &ground.resolved.hardware).to_string()),
    });
    let ground = ground.telling(emitter);
    let outcome = measure(call, &ground, limit.as_ref(), screen);
    let code = if outcome.as_ref().is_ok_and(|(found, _)| found.broken.is_empty()) { 0 } else { FAILED };
    let reason = if code == 0 { "measured" } else { "the benchmark failed" };
    let resolved = ground.end();
    run_log::close(log, code, reason, screen);
    let (found, peers) = outcome?;
    if call.plan.json {
        screen::write_json(&document(call, &found, &peers, &resolved))?;
    }
    Ok(ExitCode::from(code))
}

/// Ours first, said at once: a peer that hangs or fails must not lose it.
fn measure(
    call: &BenchArgs,
    ground: &BenchSetup,
    limit: Option<&AtTheLimit>,
    screen: &Screen,
) -> Result<(Found, Vec<Peer>), Exit> {
    screen.progress(&ground.heading(call.name()))?;
    let mut found = match (call.name, limit) {
        (Name::Pipeline, _) => pipeline::measure(call, ground, screen)?,
        (Name::Handoff, _) => handoff::measure(call, ground)?,
        (Name::Mel, _) => mel::measure(call, ground)?,
        (Name::Step, _) => step::measure(call, ground, screen)?,
        (Name::Training, _) => training::measure(call, ground, screen)?,
        (Name::Modes, _) => modes::measure(call, ground, screen)?,
        (Name::Verdicts, _) => verdicts::measure(call, screen)?,
        (Name::Start, _) => start::measure(call, ground, screen)?,
        (Name::Memory, Some(limit)) => memory::measure(call, ground, limit, screen)?,
        (Name::Memory, None) => unreachable!("its ground comes with its limits"),
    };
    if !call.plan.json {
        screen.say(&found.text)?;
    }
    found.broken.iter().for_each(|line| screen::complain(&format!("❌ {line}"), ground.resolved.plan.simulated));
    let peers = call.peers.iter().map(|command| {
        screen.progress(&format!("Peer: {command}"))?;
        let peer = Peer::run(command);
        if !call.plan.json {
            screen.say(&peer.show())?;
        }
        peer.warn(screen);
        Ok(peer)
    });
    let peers = peers.collect::<Result<Vec<_>, Exit>>()?;
    if let Some((text, rows)) = beside::compare(&found.ours, &peers) {
        found.rows.extend(rows);
        if !call.plan.json {
            screen.say(&text)?;
        }
    }
    Ok((found, peers))
}

fn document(call: &BenchArgs, found: &Found, peers: &[Peer], resolved: &Resolved) -> Value {
    json!({
        "bench": call.name(),
        "simulated": resolved.plan.simulated,
        "machine": {
            "gpu": resolved.plan.model.card.map(|_| &resolved.plan.model.name),
            "driver": resolved.plan.model.card.map(|_| resolved.machine.driver_version()),
            "cores": host_facts().cores,
        },
        "mode": resolved.plan.mode.slug(),
        "transfer": resolved.plan.transfer.to_string(),
        "rows": found.rows,
        "broken": found.broken,
        "peers": peers.iter().map(Peer::json).collect::<Vec<_>>(),
    })
}

impl BenchArgs {
    fn name(&self) -> &'static str {
        NAMES.into_iter().chain([UNLISTED]).find(|(name, ..)| *name == self.name).map_or("", |(_, name, _)| name)
    }
}

/// A benchmark that could not be run, as the program tells it.
fn failed(error: BenchError) -> Exit {
    Exit::Failed(anyhow::Error::new(error))
}
