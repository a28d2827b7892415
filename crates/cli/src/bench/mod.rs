//! `tandem bench NAME`: measures, prints a table, and marks which goals this machine meets.
//!
//! A benchmark is not a check: a missed goal is marked and does not fail. Promises that hold on every machine (the limits of
//! `memory`) do fail.

mod comparison;
mod handoff;
mod mel;
mod memory;
mod modes;
mod peers;
mod pipeline;
mod ranks;
mod setup;
mod shards;
mod start;
mod step;
pub(crate) mod table;
mod training;
mod verdicts;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};
use tandem_bench::benchmarks::BenchError;
use tandem_bench::benchmarks::shards::ClipRate;
use tandem_events::RunEvent;
use tandem_launch::inventory::{Resolved, host_facts};
use tandem_plan::plan_json;
use tandem_plan::setting::Id;

use self::comparison::OwnFigure;
use self::memory::SmallestLimits;
use self::peers::Peer;
use self::setup::BenchSetup;
use crate::args::{self, PlanArgs};
use crate::auto::{self, AutoScope};
use crate::exit::{Exit, FAILED};
use crate::run_log;
use crate::scratch::Scratch;
use crate::screen::{self, Screen};

/// A benchmark in the list of `tandem bench`.
struct BenchEntry {
    benchmark: Benchmark,
    name: &'static str,
    about: &'static str,
}

const fn entry(benchmark: Benchmark, name: &'static str, about: &'static str) -> BenchEntry {
    BenchEntry { benchmark, name, about }
}

/// All benchmarks, in the order they are listed.
const BENCHMARKS: [BenchEntry; 11] = [
    entry(
        Benchmark::Pipeline,
        "pipeline",
        "training speed against model-only throughput, for producers of every speed",
    ),
    entry(Benchmark::Handoff, "handoff", "latency of taking a ready batch, and of the driver calls around it"),
    entry(Benchmark::Mel, "mel", "feature extraction: latency of a batch, and hours of audio per second"),
    entry(Benchmark::Step, "step", "one training step of the reference transformers, and where its time goes"),
    entry(Benchmark::Training, "training", "a real run against its model-only throughput and against its GEMMs alone"),
    entry(Benchmark::Modes, "modes", "every mode of this machine on one corpus, and the one --mode auto chooses"),
    entry(Benchmark::Ranks, "ranks", "sum of the gradients of several ranks; scaling of more GPUs, predicted"),
    entry(Benchmark::Start, "start", "time to the first batch of a manifest with a million recordings"),
    entry(Benchmark::Shards, "shards", "a million utterances in tar shards: index, open, resume, clips per second"),
    entry(Benchmark::Memory, "memory", "peak memory at the smallest accepted limits, and allocations after warm-up"),
    entry(Benchmark::Verdicts, "verdicts", "whether `tandem profile` names the stage that was slowed down (for tests)"),
];

/// Which benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Benchmark {
    Pipeline,
    Handoff,
    Mel,
    Step,
    Training,
    Modes,
    Ranks,
    Start,
    Shards,
    Memory,
    Verdicts,
}

/// Arguments of `tandem bench`.
#[derive(Clone)]
pub(crate) struct BenchArgs {
    benchmark: Benchmark,
    pub(crate) plan: PlanArgs,
    /// `--steps N`
    steps: Option<usize>,
    /// `--rows N`
    rows: Option<usize>,
    /// `--no-sweep`
    no_sweep: bool,
    /// `--bench-dir DIR`
    folder: Option<PathBuf>,
    /// `--size NAME`, repeated
    sizes: Vec<String>,
    /// `--precision NAME`
    precision: Option<String>,
    /// `--breakdown`
    breakdown: bool,
    /// `--peer CMD`, repeated
    peers: Vec<String>,
}

/// The result of a benchmark.
#[derive(Default)]
struct BenchOutput {
    /// The tables, as text.
    text: String,
    /// The rows of all tables, as JSON.
    rows: Vec<Value>,
    /// Figures to compare with those of peers.
    ours: Vec<OwnFigure>,
    /// Clips per second, to compare with those of peers.
    clips: Vec<ClipRate>,
    /// Words in the commands of peers, and what they stand for.
    peer_words: Vec<(&'static str, String)>,
    /// A folder that peers read.
    kept: Option<Scratch>,
    /// Promises that were not met.
    broken: Vec<String>,
}

pub(crate) fn command() -> Command {
    let name = Arg::new("name").value_name("NAME").help("Which benchmark; listed below");
    let steps = Arg::new("steps").long("steps").value_name("N").value_parser(count);
    let rows = Arg::new("rows").long("rows").value_name("N").value_parser(count);
    let peer = Arg::new("peer").long("peer").value_name("CMD").action(clap::ArgAction::Append);
    let size = Arg::new("size").long("size").value_name("NAME").value_parser(step::SIZES);
    let bench_dir = args::path("bench-dir", "Folder for files a benchmark leaves: bad_samples.jsonl, the disk cache");
    let precision = Arg::new("precision").long("precision").value_name("NAME").value_parser(step::PRECISIONS);
    Command::new("bench")
        .about("Run a benchmark on this machine")
        .after_help(list())
        .arg(name)
        .arg(steps.help("Steps, rounds or batches to measure [default: depends on the benchmark]"))
        .arg(rows.help("Recordings or manifest rows to generate [default: depends on the benchmark]"))
        .arg(args::switch("no-sweep", "pipeline: skip the sweep over synthetic producers"))
        .arg(
            size.action(clap::ArgAction::Append)
                .help("step: model size; may be repeated [default: depends on the device]"),
        )
        .arg(precision.help("step: precision of the GEMMs [default: bf16 where the device has it]"))
        .arg(args::switch("breakdown", "step: also time each kind of kernel alone"))
        .arg(bench_dir.value_name("DIR"))
        .arg(peer.help("Shell command to run afterwards for comparison; its output is quoted. May be repeated"))
        .arg(args::run_log())
        .arg(args::overwrite())
}

/// Parses the arguments of `bench`; `plan` parses the plan's flags.
pub(crate) fn parse(
    matches: &ArgMatches,
    plan: impl Fn(&ArgMatches) -> Result<PlanArgs, Exit>,
) -> Result<BenchArgs, Exit> {
    let Some(typed) = matches.get_one::<String>("name") else {
        check_name_is_first(matches)?;
        return Err(if matches.get_flag("json") { Exit::Usage(list()) } else { Exit::Text(list()) });
    };
    let Some(entry) = BENCHMARKS.iter().find(|entry| entry.name == typed) else {
        return Err(Exit::Usage(format!("❌ unknown benchmark `{typed}`\n{}", list())));
    };
    let number = |name: &str| matches.get_one::<usize>(name).copied();
    let all = |name: &str| matches.get_many::<String>(name).into_iter().flatten().cloned().collect();
    Ok(BenchArgs {
        benchmark: entry.benchmark,
        plan: plan(matches)?,
        steps: number("steps"),
        rows: number("rows"),
        no_sweep: matches.get_flag("no-sweep"),
        folder: matches.get_one::<PathBuf>("bench-dir").cloned(),
        sizes: all("size"),
        precision: matches.get_one::<String>("precision").cloned(),
        breakdown: matches.get_flag("breakdown"),
        peers: all("peer"),
    })
}

/// Refuses the name of a benchmark behind `--train-data`, which takes it for a name of data.
fn check_name_is_first(matches: &ArgMatches) -> Result<(), Exit> {
    for flag in [Id::TrainData, Id::ValData].map(|id| id.setting().flag) {
        let last = matches.get_many::<String>(flag).and_then(Iterator::last);
        if let Some(entry) = last.and_then(|last| BENCHMARKS.iter().find(|entry| entry.name == last)) {
            let name = entry.name;
            return Err(Exit::Usage(format!(
                "❌ --{flag} takes all names that follow it, and `{name}` is one of them\n   \
                 Give the benchmark first: tandem bench {name} --{flag} …"
            )));
        }
    }
    Ok(())
}

fn list() -> String {
    let lines = BENCHMARKS.iter().map(|entry| format!("  tandem bench {:<10} {}\n", entry.name, entry.about));
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
    let auto_args = match typed.benchmark {
        // Times every mode itself.
        Benchmark::Modes => None,
        _ => auto::choose_mode(&typed.plan, AutoScope::OneProcess, screen)?
            .map(|plan| BenchArgs { plan, ..typed.clone() }),
    };
    let args = auto_args.as_ref().unwrap_or(typed);
    // `_folder` holds a generated corpus until the benchmark ends.
    let (setup, limits, _folder) = match args.benchmark {
        Benchmark::Memory => memory::prepare(args, screen).map(|(setup, limits)| (setup, Some(limits), None))?,
        Benchmark::Training | Benchmark::Ranks => {
            training::prepare(args, screen).map(|(setup, folder)| (setup, None, Some(folder)))?
        }
        Benchmark::Modes => modes::prepare(args, screen).map(|(setup, folder)| (setup, None, Some(folder)))?,
        _ => (BenchSetup::resolve(args, screen)?, None, None),
    };
    setup.print_notes(screen);
    let (log, emitter) = run_log::open(&args.plan)?;
    emitter.emit(RunEvent::RunStarted {
        command: format!("bench {}", args.name()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        plan_json: Some(plan_json(&setup.resolved.plan, &setup.resolved.hardware).to_string()),
    });
    let setup = setup.with_emitter(emitter);
    let outcome = measure(args, &setup, limits.as_ref(), screen);
    let code = if outcome.as_ref().is_ok_and(|(output, _)| output.broken.is_empty()) { 0 } else { FAILED };
    let reason = if code == 0 { "measured" } else { "the benchmark failed" };
    // Drops the emitter, so that the log can close.
    let resolved = setup.into_resolved();
    run_log::close(log, code, reason, screen);
    let (output, peers) = outcome?;
    if args.plan.json {
        screen::write_json(&document(args, &output, &peers, &resolved))?;
    }
    Ok(ExitCode::from(code))
}

/// Measures, then runs the peers. Prints our table first: a peer that hangs or fails must not lose it.
fn measure(
    args: &BenchArgs,
    setup: &BenchSetup,
    limits: Option<&SmallestLimits>,
    screen: &Screen,
) -> Result<(BenchOutput, Vec<Peer>), Exit> {
    screen.progress(&setup.heading(args.name()))?;
    let mut output = match (args.benchmark, limits) {
        (Benchmark::Pipeline, _) => pipeline::measure(args, setup, screen)?,
        (Benchmark::Handoff, _) => handoff::measure(args, setup)?,
        (Benchmark::Mel, _) => mel::measure(args, setup)?,
        (Benchmark::Step, _) => step::measure(args, setup, screen)?,
        (Benchmark::Training, _) => training::measure(args, setup, screen)?,
        (Benchmark::Modes, _) => modes::measure(args, setup, screen)?,
        (Benchmark::Ranks, _) => ranks::measure(args, setup, screen)?,
        (Benchmark::Verdicts, _) => verdicts::measure(args, screen)?,
        (Benchmark::Start, _) => start::measure(args, setup, screen)?,
        (Benchmark::Shards, _) => shards::measure(args, setup, screen)?,
        (Benchmark::Memory, Some(limits)) => memory::measure(args, setup, limits, screen)?,
        (Benchmark::Memory, None) => unreachable!("`memory::prepare` returns the limits"),
    };
    if !args.plan.json {
        screen.print(&output.text)?;
    }
    output.broken.iter().for_each(|line| screen.error(line));
    let peers = args.peers.iter().map(|command| {
        let words = output.peer_words.iter();
        let command = words.fold(command.clone(), |command, (word, meaning)| command.replace(word, meaning));
        screen.progress(&format!("Peer: {command}"))?;
        let peer = Peer::run(&command);
        if !args.plan.json {
            screen.print(&peer.show())?;
        }
        peer.warn(screen);
        Ok(peer)
    });
    let peers = peers.collect::<Result<Vec<_>, Exit>>()?;
    drop(output.kept.take());
    let compared = comparison::compare(&output.ours, &peers).or_else(|| shards::compare(&output.clips, &peers));
    if let Some((text, rows)) = compared {
        output.rows.extend(rows);
        if !args.plan.json {
            screen.print(&text)?;
        }
    }
    Ok((output, peers))
}

fn document(args: &BenchArgs, output: &BenchOutput, peers: &[Peer], resolved: &Resolved) -> Value {
    json!({
        "bench": args.name(),
        "simulated": resolved.plan.simulated,
        "machine": {
            "gpu": resolved.plan.model.card.map(|_| &resolved.plan.model.name),
            "driver": resolved.plan.model.card.map(|_| resolved.machine.driver_version()),
            "cores": host_facts().cores,
        },
        "mode": resolved.plan.mode.slug(),
        "transfer": resolved.plan.transfer.to_string(),
        "rows": output.rows,
        "broken": output.broken,
        "peers": peers.iter().map(Peer::json).collect::<Vec<_>>(),
    })
}

impl BenchArgs {
    fn name(&self) -> &'static str {
        BENCHMARKS.iter().find(|entry| entry.benchmark == self.benchmark).map_or("", |entry| entry.name)
    }
}

/// The exit of a benchmark that could not run.
fn failed(error: BenchError) -> Exit {
    Exit::Failed(anyhow::Error::new(error))
}
