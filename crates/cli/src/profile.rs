//! `tandem profile`: runs the real pipeline for some steps, names the bottleneck, the setting to change and the predicted
//! gain.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};
use tandem_bench::profile::{self, Profile, ProfileError, StandaloneTimes, WARM_UP_STEPS, applied};
use tandem_checkpoint::RUN_LOG;
use tandem_diagnosis::{Advice, Diagnosis, Verdict};
use tandem_events::{Emitter, Record, RunEvent};
use tandem_launch::inventory::Resolved;
use tandem_launch::launch::Corpora;
use tandem_plan::{plan_json, show_short};
use tandem_runlog::LogEntry;

use crate::args::{self, PlanArgs};
use crate::auto::{self, AutoScope};
use crate::bench::table::TextTable;
use crate::exit::{Exit, FAILED};
use crate::farewell::verified_text;
use crate::pair_checks;
use crate::run_log;
use crate::scratch::Scratch;
use crate::screen::{self, Screen};
use crate::validate;

/// Arguments of `tandem profile`.
pub(crate) struct ProfileArgs {
    pub(crate) plan: PlanArgs,
    /// `--num-steps N`
    steps: usize,
    /// `--confirm`
    confirm: bool,
    /// `--log FILE|RUN`
    log: Option<PathBuf>,
}

/// A suggested change that was run.
struct TriedChange {
    advice: Advice,
    /// Steps per second with it, or why it could not run.
    outcome: Result<f64, String>,
}

pub(crate) fn command() -> Command {
    let steps = Arg::new("num-steps").long("num-steps").value_name("N").default_value("100");
    Command::new("profile")
        .about("Find the bottleneck of a run, the setting to change and the gain to expect; runs the real pipeline")
        .arg(steps.value_parser(clap::value_parser!(usize)).help("Steps to measure, after 5 warm-up steps"))
        .arg(
            args::switch("confirm", "Run again with each suggested change and print the measured speed")
                .conflicts_with("log"),
        )
        .arg(
            args::path("log", "Diagnose an earlier run, by its log or its folder, instead of running")
                .value_name("PATH")
                .conflicts_with("run-log"),
        )
        .arg(args::run_log())
        .arg(args::overwrite())
}

pub(crate) fn parse(
    matches: &ArgMatches,
    plan: impl Fn(&ArgMatches) -> Result<PlanArgs, Exit>,
) -> Result<ProfileArgs, Exit> {
    Ok(ProfileArgs {
        steps: matches.get_one::<usize>("num-steps").copied().unwrap_or_default(),
        confirm: matches.get_flag("confirm"),
        log: matches.get_one::<PathBuf>("log").cloned(),
        plan: plan(matches)?,
    })
}

pub(crate) fn run(args: &ProfileArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    args.plan.warnings.iter().for_each(|warning| screen.warn(warning));
    if args.steps == 0 {
        return Err(failed(ProfileError::NoSteps));
    }
    match &args.log {
        Some(path) => diagnose_log(path, args, screen),
        None => profile_run(args, screen),
    }
}

/// Diagnoses an earlier run from its log.
fn diagnose_log(path: &Path, args: &ProfileArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    let file = if path.is_dir() { path.join(RUN_LOG) } else { path.to_owned() };
    let reader = tandem_runlog::read(&file).map_err(|error| Exit::Usage(format!("❌ --log: {error}")))?;
    let (mut records, mut unread): (Vec<Record>, usize) = (Vec::new(), 0);
    for entry in reader {
        match entry {
            Ok(LogEntry::Known(record)) => records.push(record),
            // Events of a newer version are not needed here; a line that is not a record is counted.
            Ok(LogEntry::Unknown(_)) => {}
            Err(_) => unread += 1,
        }
    }
    if unread > 0 {
        screen.warn(&format!("{unread} lines of the log are not valid records: {}", file.display()));
    }
    let diagnosis = Diagnosis::of(&records).map_err(|error| failed(error.into()))?;
    match args.plan.json {
        true => screen::write_json(&document(&diagnosis, &[], &[], &[], None))?,
        false if args.plan.quiet => screen.print(&conclusion(&diagnosis))?,
        false => screen.print(&diagnosis.lines().join("\n"))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn profile_run(typed: &ProfileArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    let auto_args = auto::choose_mode(&typed.plan, AutoScope::OneProcess, screen)?;
    let args = auto_args.as_ref().unwrap_or(&typed.plan);
    // Holds the generated corpus until the profile ends.
    let folder = Scratch::new()?;
    let (mut resolved, corpora) = validate::resolve(args, &folder, screen)?;
    resolved.try_transfer().map_err(|error| Exit::Failed(anyhow::Error::new(error)))?;
    // Opened only now: a refused plan must not overwrite the log of an earlier run.
    let (log, emitter) = run_log::open(args)?;
    emitter.emit(RunEvent::RunStarted {
        command: "profile".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        plan_json: Some(plan_json(&resolved.plan, &resolved.hardware).to_string()),
    });
    let outcome = measure(typed, args, &resolved, &corpora, &folder, &emitter, screen);
    let (code, reason) = if outcome.is_ok() { (0, "profiled") } else { (FAILED, "the run failed") };
    run_log::close(log, code, reason, screen);
    let (profile, tried) = outcome?;
    if args.json {
        let Profile { diagnosis, alone, cards, .. } = &profile;
        screen::write_json(&document(diagnosis, alone, cards, &tried, Some(&resolved)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn measure(
    typed: &ProfileArgs,
    args: &PlanArgs,
    resolved: &Resolved,
    corpora: &Corpora,
    folder: &Scratch,
    emitter: &Emitter,
    screen: &Screen,
) -> Result<(Profile, Vec<TriedChange>), Exit> {
    screen.progress(&show_short(&resolved.plan))?;
    let steps = typed.steps;
    screen
        .progress(&format!("Profiling {steps} steps after {WARM_UP_STEPS} warm-up steps, then each stage alone..."))?;
    let profile = profile::run(resolved, corpora, steps, emitter).map_err(failed)?;
    if !args.json {
        screen.print(&if args.quiet { conclusion(&profile.diagnosis) } else { show(&profile) })?;
    }
    let suggested = if typed.confirm { distinct(&profile.diagnosis.verdicts) } else { Vec::new() };
    let mut tried = Vec::new();
    for advice in suggested {
        screen.progress(&format!("Trying {}...", advice.change))?;
        let change = TriedChange { advice, outcome: try_change(advice, args, corpora, steps, folder) };
        if !args.json {
            screen.print(&show_tried(&change))?;
        }
        tried.push(change);
    }
    Ok((profile, tried))
}

/// Each suggested change once, in the order of the verdicts.
fn distinct(verdicts: &[Verdict]) -> Vec<Advice> {
    let mut found: Vec<Advice> = Vec::new();
    for advice in verdicts.iter().filter_map(|verdict| verdict.advice) {
        if found.iter().all(|known| known.change != advice.change) {
            found.push(advice);
        }
    }
    found
}

/// Steps per second with the change. A change that cannot run does not fail the profile: the reason is returned.
fn try_change(
    advice: Advice,
    args: &PlanArgs,
    corpora: &Corpora,
    steps: usize,
    folder: &Scratch,
) -> Result<f64, String> {
    let settings = applied(advice.change, &args.settings).ok_or("no setting does that on this machine")?;
    let settings = settings.map_err(|error| error.to_string())?;
    let facts = tandem_plan::CorpusFacts::of("", &corpora.train);
    let inventory = pair_checks::survey(args).map_err(|error| error.to_string())?;
    let first_line = |text: String| text.lines().next().unwrap_or_default().trim_start_matches("❌ ").to_owned();
    let mut resolved = inventory.resolve(&settings, Some(&facts)).map_err(|refusal| first_line(refusal.message))?;
    resolved.plan.cache.move_into(folder.path());
    let profile = profile::run(&resolved, corpora, steps, &Emitter::none()).map_err(|error| error.to_string())?;
    Ok(profile.diagnosis.steps_per_s)
}

fn failed(error: ProfileError) -> Exit {
    Exit::Failed(anyhow::Error::new(error))
}

fn show(profile: &Profile) -> String {
    let Profile { diagnosis, alone, cards, is_cache_filling, verified } = profile;
    let mut lines = diagnosis.times();
    if *is_cache_filling {
        lines.push("The audio cache is still filling: later epochs decode less".to_owned());
    }
    lines.extend(verified.map(verified_text));
    lines.push(show_alone(alone));
    lines.push(show_busy(diagnosis, cards));
    lines.extend(diagnosis.findings());
    lines.join("\n")
}

/// What `-q` prints: the speed, the verdicts and the tier.
fn conclusion(diagnosis: &Diagnosis) -> String {
    let speed = diagnosis.times().into_iter().next();
    speed.into_iter().chain(diagnosis.findings()).collect::<Vec<_>>().join("\n")
}

fn show_alone(alone: &[StandaloneTimes]) -> String {
    let mut table =
        TextTable::new("Each stage alone, ms per step", &["", "mean", "std", "min", "max", "p95", "steps/s"]);
    for stage in alone {
        let [mean, std, min, max, p95] = stage.time_ns.in_ms().map(|ms| format!("{ms:.2}"));
        table.row(vec![stage.name.to_owned(), mean, std, min, max, p95, format!("{:.1}", stage.steps_per_s())]);
    }
    table.show().trim_end().to_owned()
}

fn show_busy(diagnosis: &Diagnosis, cards: &[(usize, Option<u32>)]) -> String {
    let [data, model] = [diagnosis.busy.data, diagnosis.busy.model].map(|share| 100.0 * share);
    let mut line = format!("Busy (device events): data role {data:.0} %, model role {model:.0} %");
    for (card, busy) in cards {
        if let Some(busy) = busy {
            line += &format!("; all of GPU {card} (NVML): {busy} %");
        }
    }
    line
}

fn show_tried(tried: &TriedChange) -> String {
    let (change, at_most) = (tried.advice.change, if tried.advice.is_upper_bound { "at most " } else { "" });
    let predicted = tried.advice.steps_per_s;
    match &tried.outcome {
        Ok(measured) => format!(
            "Confirmed: {change}: {at_most}{predicted:.1} steps/s predicted, {measured:.1} measured ({:+.0} %)",
            100.0 * (measured / predicted - 1.0)
        ),
        Err(reason) => format!("Not confirmed: {change}: {reason}"),
    }
}

fn document(
    diagnosis: &Diagnosis,
    alone: &[StandaloneTimes],
    cards: &[(usize, Option<u32>)],
    tried: &[TriedChange],
    resolved: Option<&Resolved>,
) -> Value {
    let alone = alone.iter().map(|stage| {
        let mut row = stage.time_ns.json(stage.name);
        row["steps_per_s"] = stage.steps_per_s().into();
        row
    });
    let card = |(card, busy): &(usize, Option<u32>)| json!({ "gpu": card, "busy_percent": busy });
    let mut document = diagnosis.json();
    document["simulated"] = resolved.is_some_and(|resolved| resolved.plan.simulated).into();
    document["mode"] = resolved.map(|resolved| resolved.plan.mode.slug()).into();
    document["alone"] = alone.collect();
    document["busy"]["nvml"] = cards.iter().map(card).collect();
    let shown = document["verdicts"].as_array_mut().into_iter().flatten();
    for (verdict, shown) in diagnosis.verdicts.iter().zip(shown) {
        let change = verdict.advice.map(|advice| advice.change);
        let tried = tried.iter().find(|tried| Some(tried.advice.change) == change);
        shown["measured_steps_per_s"] = tried.and_then(|tried| tried.outcome.as_ref().ok().copied()).into();
        shown["not_confirmed"] = tried.and_then(|tried| tried.outcome.as_ref().err().cloned()).into();
    }
    document
}
