//! `tandem doctor`: looks at this machine step by step, and puts what it finds into one file for a bug report.
//!
//! Every line has its answer and, where that is bad, what to do. A check that fails ends nothing: the ones behind it say
//! what they can. The file has no transcripts and no names of people or their folders.

mod cards;
mod examination;
mod host;
mod last_run;
mod private;
mod short_profile;

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgMatches, Command as Clap};
use serde_json::{Value, json};
use tandem_launch::inventory::{Inventory, Resolved};
use tandem_plan::{plan_json, print_config, quoted, show_plan, show_short};

use crate::args::{PlanCall, path};
use crate::data;
use crate::exit::{Exit, FAILED};
use crate::plan::details;
use crate::scratch::Scratch;
use crate::screen::{self, Screen};

use self::examination::Examination;
use self::private::Private;

/// The first words of every file: one that begins otherwise is somebody else's, and is not replaced.
const HEADER: &str = "tandem doctor";
const USUAL_FILE: &str = "tandem-doctor.txt";

/// One call of `tandem doctor`.
pub(crate) struct DoctorArgs {
    pub(crate) plan: PlanCall,
    output: Option<PathBuf>,
}

pub(crate) fn grammar() -> Clap {
    Clap::new("doctor")
        .about("Look at this machine step by step, and write one file for a bug report")
        .arg(path("output", "The file [default: tandem-doctor.txt; none with --json]").short('o'))
}

pub(crate) fn read(given: &ArgMatches, plan: PlanCall) -> DoctorArgs {
    DoctorArgs { plan, output: given.get_one::<PathBuf>("output").cloned() }
}

pub(crate) fn run(call: &DoctorArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    call.plan.warnings.iter().for_each(|warning| screen.warn(warning));
    let file = match (&call.output, call.plan.json) {
        (None, true) => None,
        (output, _) => Some(output.clone().unwrap_or_else(|| USUAL_FILE.into())),
    };
    // Before minutes are spent on it.
    file.as_deref().map_or(Ok(()), may_be_written)?;
    let mut examination = Examination::new(screen);
    let plan = examine(&call.plan, screen, &mut examination)?;
    let private = Private::from_env();
    if let Some(file) = &file {
        let text = examination.page(&format!("{HEADER} {}", env!("CARGO_PKG_VERSION")), &typed(&call.plan));
        fs::write(file, private.hide(&text)).map_err(|error| cannot_write(file, &error))?;
    }
    let code = if examination.has_passed() { 0 } else { FAILED };
    if call.plan.json {
        let document = document(call, &examination, plan);
        screen::write_json(&private.hide_in(document))?;
    } else {
        conclude(&examination, file.as_deref(), screen)?;
    }
    Ok(ExitCode::from(code))
}

/// All of it; the plan, where there is one.
fn examine(call: &PlanCall, screen: &Screen, examination: &mut Examination<'_>) -> Result<Option<Value>, Exit> {
    let folder = PathBuf::from(call.settings.text(tandem_plan::setting::Id::CheckpointDir).unwrap_or_default());
    examination.section("Computer")?;
    host::look(&folder, screen.is_plain(), examination)?;
    examination.section("GPUs and libraries")?;
    let site = Inventory::survey(call.sim.clone());
    cards::look(call.sim.is_some(), &site, examination)?;
    examination.section("Plan")?;
    let planned = match site {
        Ok(site) => plan(call, site, screen, examination)?,
        // Its section has said it.
        Err(_) => None,
    };
    examination.section("Short profile")?;
    match &planned {
        Some((resolved, corpora)) => short_profile::look(resolved, corpora, examination)?,
        None => examination.note("left out: there is no plan to run")?,
    }
    examination.section("Last run")?;
    last_run::look(&folder, examination)?;
    Ok(planned.map(|(resolved, _)| plan_json(&resolved.plan, &resolved.hardware)))
}

type Planned = (Resolved, tandem_launch::launch::Corpora);

/// The plan of a run with these flags, on the corpus they name or on synthetic speech.
fn plan(call: &PlanCall, site: Inventory, screen: &Screen, to: &mut Examination<'_>) -> Result<Option<Planned>, Exit> {
    let folder = Scratch::new()?;
    let corpus = match data::open_or_make(call, &folder, screen) {
        Ok(corpus) => corpus,
        Err(exit) => return to.bad(&said(&exit), "see `tandem corpus check`").map(|()| None),
    };
    let mut resolved = match site.resolve(&call.settings, Some(&corpus.facts)) {
        Ok(resolved) => resolved,
        Err(refusal) => {
            let said = refusal.to_string();
            let (first, rest) = said.split_once('\n').unwrap_or((&said, ""));
            to.text(rest);
            return to
                .bad(first.trim_start_matches("❌ "), "`tandem plan` with the same flags says what would work")
                .map(|()| None);
        }
    };
    match resolved.try_transfer() {
        Ok(()) => to.good(show_short(&resolved.plan).trim())?,
        Err(error) => to.bad(&format!("the transfer between the roles failed: {error}"), "try --transfer bounce")?,
    }
    to.text(&show_plan(&resolved.plan, &resolved.hardware));
    to.text(&details(&resolved.machine, &resolved.hardware));
    to.text("Settings, as --config reads them:");
    to.text(&print_config(&resolved.plan));
    to.keep(folder);
    Ok(Some((resolved, corpus.corpora)))
}

/// What an exit would have said.
fn said(exit: &Exit) -> String {
    match exit {
        Exit::Usage(said) | Exit::Said(said) => said.trim_start_matches("❌ ").to_owned(),
        Exit::Refused(refusal) => refusal.to_string(),
        Exit::Failed(error) => format!("{error:#}"),
        Exit::Closed => "nobody reads".to_owned(),
    }
}

/// The flags as they were typed.
fn typed(call: &PlanCall) -> String {
    let sim = call.sim_text.as_ref().map(|spec| format!("--sim {} ", quoted(spec))).unwrap_or_default();
    format!("Flags: {sim}{}", call.settings)
}

fn conclude(examination: &Examination<'_>, file: Option<&Path>, screen: &Screen) -> Result<(), Exit> {
    let failed = examination.num_failed();
    match failed {
        0 => screen.say("🎉 Nothing is wrong with this machine")?,
        1 => screen.say("❌ One thing is wrong: see above for what to do")?,
        many => screen.say(&format!("❌ {many} things are wrong: see above for what to do"))?,
    }
    match file {
        Some(file) => screen.say(&format!("   For a bug report: {}", quoted(&file.display().to_string()))),
        None => Ok(()),
    }
}

fn document(call: &DoctorArgs, examination: &Examination<'_>, plan: Option<Value>) -> Value {
    json!({
        "passed": examination.has_passed(),
        "simulated": call.plan.sim.is_some(),
        "version": env!("CARGO_PKG_VERSION"),
        "flags": call.plan.settings.to_string(),
        "sections": examination.json(),
        "plan": plan,
    })
}

/// Whether a report can go there: nothing is there yet, or an earlier report.
fn may_be_written(file: &Path) -> Result<(), Exit> {
    let mut head = Vec::new();
    match fs::File::open(file).and_then(|found| found.take(HEADER.len() as u64).read_to_end(&mut head)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(cannot_write(file, &error)),
        Ok(_) if head == HEADER.as_bytes() || head.is_empty() => {}
        Ok(_) => {
            return Err(Exit::Usage(format!(
                "❌ --output: this file is no report of tandem doctor and stays as it is; give another: {}",
                file.display()
            )));
        }
    }
    // Tried without leaving anything there: the report comes later, or not at all.
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
    Exit::Usage(format!("❌ --output: the report cannot be written ({error}); give another file: {}", file.display()))
}
