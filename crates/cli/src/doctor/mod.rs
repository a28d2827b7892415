//! `tandem doctor`: checks this machine step by step and writes one report file for a bug report.
//!
//! With `--pair` it measures two cards instead: [`pair`].
//!
//! Every failed check says what to do. A failed check does not stop the ones after it. The file has no transcripts, no user
//! names and no home folders.

mod cards;
mod host;
mod last_run;
mod pair;
mod pair_table;
mod pci;
mod private;
mod report;
mod short_profile;

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command};
use serde_json::{Value, json};
use tandem_launch::inventory::{Inventory, Resolved};
use tandem_plan::{plan_json, print_config, quoted, show_plan, show_short};

use crate::args::{PlanArgs, path};
use crate::data;
use crate::exit::{Exit, FAILED};
use crate::pair_checks;
use crate::plan::details;
use crate::scratch::Scratch;
use crate::screen::{self, Screen};
use crate::whole_file::write_whole;

use self::private::Private;
use self::report::DoctorReport;

/// The first words of every report. A file with another start is not a report and is never overwritten.
const HEADER: &str = "tandem doctor";
const DEFAULT_FILE: &str = "tandem-doctor.txt";
const PAIR_HELP: &str = "Measure two GPUs as a pair instead, by number or UUID, e.g. 0,1 [file: tandem-pair.json]";
/// More than any report has.
const LONGEST_REPORT: u64 = 16 << 20;

/// Arguments of `tandem doctor`.
pub(crate) struct DoctorArgs {
    pub(crate) plan: PlanArgs,
    output: Option<PathBuf>,
    /// `--pair A,B`
    pair: Option<String>,
}

pub(crate) fn command() -> Command {
    Command::new("doctor")
        .about("Check this machine step by step and write one report file for a bug report")
        .arg(path("output", "Report file [default: tandem-doctor.txt; none with --json]").short('o'))
        .arg(Arg::new("pair").long("pair").value_name("A,B").allow_hyphen_values(true).help(PAIR_HELP))
}

pub(crate) fn parse(matches: &ArgMatches, plan: PlanArgs) -> DoctorArgs {
    let (output, pair) = (matches.get_one::<PathBuf>("output").cloned(), matches.get_one::<String>("pair").cloned());
    DoctorArgs { plan, output, pair }
}

pub(crate) fn run(args: &DoctorArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    args.plan.warnings.iter().for_each(|warning| screen.warn(warning));
    if let Some(text) = &args.pair {
        return pair::run(&pair::parse(text)?, &args.plan, args.output.as_deref(), screen);
    }
    let file = match (&args.output, args.plan.json) {
        (None, true) => None,
        (output, _) => Some(output.clone().unwrap_or_else(|| DEFAULT_FILE.into())),
    };
    // Checked now, before minutes are spent on the report.
    file.as_deref().map_or(Ok(()), |file| check_writable(file, |bytes| bytes.starts_with(HEADER.as_bytes())))?;
    let mut report = DoctorReport::new(screen);
    let plan = examine(&args.plan, screen, &mut report)?;
    let private = Private::from_env();
    if let Some(file) = &file {
        let text = report.page(&format!("{HEADER} {}", env!("CARGO_PKG_VERSION")), &flags_line(&args.plan));
        write_whole(file, private.hide(&text).as_bytes()).map_err(|error| cannot_write(file, &error))?;
    }
    let code = if report.has_passed() { 0 } else { FAILED };
    if args.plan.json {
        let document = document(args, &report, plan);
        screen::write_json(&private.hide_in(document))?;
    } else {
        conclude(&report, file.as_deref(), screen)?;
    }
    Ok(ExitCode::from(code))
}

/// Runs all sections. Returns the plan, if there is one.
fn examine(args: &PlanArgs, screen: &Screen, report: &mut DoctorReport<'_>) -> Result<Option<Value>, Exit> {
    let folder = PathBuf::from(args.settings.text(tandem_plan::setting::Id::CheckpointDir).unwrap_or_default());
    report.section("Computer")?;
    host::examine(&folder, screen.is_plain(), report)?;
    report.section("GPUs and libraries")?;
    let inventory = pair_checks::survey(args);
    cards::examine(args.sim.is_some(), &inventory, report)?;
    report.section("Plan")?;
    let planned = match inventory {
        Ok(inventory) => plan(args, inventory, screen, report)?,
        // Reported in the section above.
        Err(_) => None,
    };
    report.section("Short profile")?;
    match &planned {
        Some((resolved, corpora)) => short_profile::examine(resolved, corpora, report)?,
        None => report.note("skipped: there is no plan to run")?,
    }
    report.section("Last run")?;
    last_run::examine(&folder, report)?;
    Ok(planned.map(|(resolved, _)| plan_json(&resolved.plan, &resolved.hardware)))
}

/// A plan, and the corpus to run it on.
type Planned = (Resolved, tandem_launch::launch::Corpora);

/// The plan of a run with these flags, on their corpus or on synthetic speech.
fn plan(
    args: &PlanArgs,
    inventory: Inventory,
    screen: &Screen,
    report: &mut DoctorReport<'_>,
) -> Result<Option<Planned>, Exit> {
    let folder = Scratch::new()?;
    let corpus = match data::open_or_generate(args, &folder, screen) {
        Ok(corpus) => corpus,
        Err(exit) => return report.bad(&message_of(&exit), "see `tandem corpus check`").map(|()| None),
    };
    let mut resolved = match inventory.resolve(&args.settings, Some(&corpus.facts)) {
        Ok(resolved) => resolved,
        Err(refusal) => {
            let message = refusal.to_string();
            let (first, rest) = message.split_once('\n').unwrap_or((&message, ""));
            report.text(rest);
            let advice = "`tandem plan` with the same flags suggests flags that work";
            return report.bad(first.trim_start_matches("❌ "), advice).map(|()| None);
        }
    };
    match resolved.try_transfer() {
        Ok(()) => report.good(show_short(&resolved.plan).trim())?,
        Err(error) => {
            report.bad(&format!("the transfer between the roles failed: {error}"), "try --transfer bounce")?
        }
    }
    report.text(&show_plan(&resolved.plan, &resolved.hardware));
    report.text(&details(&resolved.machine, &resolved.hardware));
    report.text("Settings, as a config file:");
    report.text(&print_config(&resolved.plan));
    resolved.plan.cache.move_into(folder.path());
    report.keep_until_end(folder);
    Ok(Some((resolved, corpus.corpora)))
}

/// The message of an exit, without its sign.
fn message_of(exit: &Exit) -> String {
    match exit {
        Exit::Usage(text) | Exit::Text(text) => text.trim_start_matches("❌ ").to_owned(),
        Exit::Refused(refusal) => refusal.to_string(),
        Exit::Failed(error) => format!("{error:#}"),
        Exit::Closed => "standard output was closed".to_owned(),
    }
}

/// The flags as typed.
fn flags_line(args: &PlanArgs) -> String {
    let sim = args.sim_text.as_ref().map(|spec| format!("--sim {} ", quoted(spec))).unwrap_or_default();
    format!("Flags: {sim}{}", args.settings)
}

fn conclude(report: &DoctorReport<'_>, file: Option<&Path>, screen: &Screen) -> Result<(), Exit> {
    let failed = report.num_failed();
    match failed {
        0 => screen.print("🎉 No problems found")?,
        1 => screen.print("❌ 1 problem found: see above for what to do")?,
        many => screen.print(&format!("❌ {many} problems found: see above for what to do"))?,
    }
    match file {
        Some(file) => screen.print(&format!("   For a bug report: {}", quoted(&file.display().to_string()))),
        None => Ok(()),
    }
}

fn document(args: &DoctorArgs, report: &DoctorReport<'_>, plan: Option<Value>) -> Value {
    json!({
        "passed": report.has_passed(),
        "simulated": args.plan.sim.is_some(),
        "version": env!("CARGO_PKG_VERSION"),
        "flags": args.plan.settings.to_string(),
        "sections": report.json(),
        "plan": plan,
    })
}

/// Checks that the report can be written: the file does not exist, is empty, or is an earlier report.
fn check_writable(file: &Path, is_report: impl Fn(&[u8]) -> bool) -> Result<(), Exit> {
    let mut bytes = Vec::new();
    match fs::File::open(file).and_then(|found| found.take(LONGEST_REPORT).read_to_end(&mut bytes)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(cannot_write(file, &error)),
        Ok(_) if bytes.is_empty() || is_report(&bytes) => {}
        Ok(_) => {
            return Err(Exit::Usage(format!(
                "❌ --output: this file exists and is not a report of tandem doctor; give another: {}",
                file.display()
            )));
        }
    }
    // Tested without creating the file: the report may fail later.
    let tried = match file.exists() {
        true => fs::OpenOptions::new().append(true).open(file).map(drop),
        false => {
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            tempfile::tempfile_in(folder).map(drop)
        }
    };
    tried.map_err(|error| cannot_write(file, &error))
}

fn cannot_write(file: &Path, error: &io::Error) -> Exit {
    Exit::Usage(format!("❌ --output: cannot write the report ({error}); give another file: {}", file.display()))
}
