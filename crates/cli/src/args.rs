//! The command line. Flags of the plan come from its own table, so that no flag exists that the plan does not know.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command as Clap};
use tandem_device::SimSpec;
use tandem_plan::setting::{SETTINGS, Setting};
use tandem_plan::{Origin, Settings, config};

use crate::bench;
use crate::corpus;
use crate::doctor;
use crate::exit::Exit;
use crate::monitor;
use crate::profile;
use crate::synthesize;

/// One call of the program, read.
pub(crate) enum Invocation {
    Train(PlanCall),
    Plan(PlanCall),
    Validate(PlanCall),
    Monitor(monitor::MonitorArgs),
    Doctor(doctor::DoctorArgs),
    Profile(profile::ProfileArgs),
    Synthesize(synthesize::SynthesizeArgs),
    Bench(bench::BenchArgs),
    Corpus(corpus::CorpusCommand),
}

/// A call of a command that resolves a plan.
#[derive(Clone)]
pub(crate) struct PlanCall {
    /// What the user wrote, flags over config.
    pub(crate) settings: Settings,
    pub(crate) sim: Option<SimSpec>,
    /// The same, as it was typed.
    pub(crate) sim_text: Option<String>,
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    /// `plan -v`
    pub(crate) verbose: bool,
    /// `plan --print-config`
    pub(crate) print_config: bool,
    /// `plan --recommend`
    pub(crate) recommend: bool,
    /// `--run-log FILE`
    pub(crate) run_log: Option<PathBuf>,
    /// Config keys that no longer do anything.
    pub(crate) warnings: Vec<String>,
}

const START: &str = "\
tandem trains speech models so that the GPU never waits.

To start with:
  tandem train                  train a small model on speech made here; --train-data DIR for your own
  tandem plan                   what this machine has, and how a run would use it
  tandem validate               five checks on the real devices
  tandem corpus check DIR       everything wrong with a dataset, in one pass

Everything else: tandem --help
";

/// Reads the command line and the config file it names.
pub(crate) fn parse(args: Vec<OsString>) -> Result<Invocation, Exit> {
    if args.len() <= 1 {
        return Err(Exit::Said(START.to_owned()));
    }
    let matches = grammar().try_get_matches_from(args).map_err(|error| match error.use_stderr() {
        true => Exit::Usage(error.to_string()),
        false => Exit::Said(error.to_string()),
    })?;
    match matches.subcommand() {
        Some(("train", given)) => read(given).map(Invocation::Train),
        Some(("plan", given)) => read(given).map(Invocation::Plan),
        Some(("validate", given)) => read(given).map(Invocation::Validate),
        Some(("monitor", given)) => Ok(Invocation::Monitor(monitor::read(given))),
        Some(("doctor", given)) => read(given).map(|plan| Invocation::Doctor(doctor::read(given, plan))),
        Some(("profile", given)) => profile::read(given, read).map(Invocation::Profile),
        Some(("synthesize", given)) => synthesize::read(given).map(Invocation::Synthesize),
        Some(("bench", given)) => bench::read(given, read).map(Invocation::Bench),
        Some(("corpus", given)) => {
            corpus::read(given).map(Invocation::Corpus).ok_or_else(|| Exit::Said(START.to_owned()))
        }
        _ => Err(Exit::Said(START.to_owned())),
    }
}

fn read(given: &ArgMatches) -> Result<PlanCall, Exit> {
    let mut settings = Settings::new();
    for setting in SETTINGS {
        take(setting, given, &mut settings)?;
    }
    let warnings = match given.get_one::<PathBuf>("config") {
        Some(path) => config::load(path, &mut settings)?,
        None => Vec::new(),
    };
    let sim_text = given.get_one::<String>("sim").cloned();
    let sim = sim_text.as_ref().map(|text| text.parse::<SimSpec>()).transpose();
    let flag = |name: &str| given.try_get_one::<bool>(name).ok().flatten().copied().unwrap_or(false);
    Ok(PlanCall {
        settings,
        sim: sim.map_err(|error| Exit::Usage(format!("❌ {error}")))?,
        sim_text,
        json: flag("json"),
        quiet: flag("quiet"),
        verbose: flag("verbose"),
        print_config: flag("print-config"),
        recommend: flag("recommend"),
        run_log: given.try_get_one::<PathBuf>("run-log").ok().flatten().cloned(),
        warnings,
    })
}

/// Hands one setting's text over to the plan, which alone knows what it means.
fn take(setting: &'static Setting, given: &ArgMatches, settings: &mut Settings) -> Result<(), Exit> {
    if setting.value_name().is_some() {
        if let Some(text) = given.get_one::<String>(setting.flag) {
            settings.set(setting.flag, text, Origin::Flag)?;
        }
        return Ok(());
    }
    for flag in [Some(setting.flag), setting.off_flag()].into_iter().flatten() {
        if given.get_flag(flag) {
            settings.set(flag, "true", Origin::Flag)?;
        }
    }
    Ok(())
}

fn grammar() -> Clap {
    let plan = Clap::new("plan")
        .about("List the GPUs found; resolve and print the plan without running")
        .arg(switch("print-config", "Write the resolved settings as a complete config file").conflicts_with("json"))
        .arg(
            switch("recommend", "Print settings for cards of 6 to 80 GB, one and two of them")
                .conflicts_with_all(["print-config", "sim"]),
        );
    let validate = Clap::new("validate").about("Five checks on the real devices; PASS or FAIL each").arg(run_log());
    let train =
        Clap::new("train").about("Train; with no data given, a small model on speech that is made here").arg(run_log());
    Clap::new("tandem")
        .about("Trains speech models so that the GPU never waits")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .subcommand(shared(train))
        .subcommand(shared(plan))
        .subcommand(shared(validate))
        .subcommand(monitor::grammar())
        .subcommand(shared(profile::grammar()))
        .subcommand(synthesize::grammar())
        .subcommand(shared(bench::grammar()))
        .subcommand(corpus::grammar())
        .subcommand(shared(doctor::grammar()))
}

/// What every command that resolves a plan takes.
fn shared(command: Clap) -> Clap {
    let command = command
        .arg(path("config", "YAML file; flags beat it, it beats the defaults"))
        .arg(sim())
        .arg(json())
        .arg(quiet().conflicts_with("verbose"))
        .arg(switch("verbose", "Also say what the cards, libraries and links are").short('v'));
    SETTINGS.iter().fold(command, |command, setting| command.args(flags_of(setting)))
}

fn flags_of(setting: &'static Setting) -> Vec<Arg> {
    let help = format!("{} [default: {}]", setting.help, setting.default_text());
    let arg = Arg::new(setting.flag).long(setting.flag).help(help).aliases(setting.aliases.to_vec());
    match (setting.value_name(), setting.bare_value()) {
        (Some(name), Some(bare)) => vec![arg.value_name(name).num_args(0..=1).default_missing_value(bare)],
        // A negative number is a value too: the plan says what is wrong with it.
        (Some(name), None) => vec![arg.value_name(name).allow_hyphen_values(true)],
        (None, _) => {
            let on = arg.action(ArgAction::SetTrue);
            let off = setting.off_flag().map(|off| {
                let help = format!("Turns --{} off", setting.flag);
                Arg::new(off).long(off).action(ArgAction::SetTrue).help(help).conflicts_with(setting.flag)
            });
            [Some(on), off].into_iter().flatten().collect()
        }
    }
}

pub(crate) fn sim() -> Arg {
    let help = "Simulated GPUs instead of real ones, e.g. 2x24GiB";
    Arg::new("sim").long("sim").value_name("SPEC").allow_hyphen_values(true).help(help)
}

pub(crate) fn json() -> Arg {
    switch("json", "Print one JSON document on standard output, and nothing else there")
}

pub(crate) fn run_log() -> Arg {
    path("run-log", "Write what happens, event by event, to this JSONL file")
}

pub(crate) fn quiet() -> Arg {
    switch("quiet", "Say only what matters most").short('q')
}

pub(crate) fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

pub(crate) fn path(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("FILE").value_parser(clap::value_parser!(PathBuf)).help(help)
}
