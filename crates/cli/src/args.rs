//! The command line. The plan's flags are generated from its settings table, so the two cannot disagree.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};
use tandem_device::SimSpec;
use tandem_plan::setting::{SETTINGS, Setting, SettingKind};
use tandem_plan::{Origin, Settings, config};
use tandem_storage::redact;

use crate::bench;
use crate::check_pair;
use crate::completions;
use crate::console::terminal_columns;
use crate::corpus;
use crate::doctor;
use crate::exit::Exit;
use crate::flag_table::{self, FlagGroup, FlagUse};
use crate::help_page;
use crate::launch_command;
use crate::man;
use crate::monitor;
use crate::profile;
use crate::retired_flags;
use crate::style::{COLOR_WORDS, OutputStream};
use crate::synthesize;
use crate::unknown_flag;

/// A parsed command line.
pub(crate) enum Invocation {
    Train(PlanArgs),
    Launch(launch_command::LaunchArgs),
    Plan(PlanArgs),
    Validate(PlanArgs),
    Monitor(monitor::MonitorArgs),
    Doctor(doctor::DoctorArgs),
    Profile(profile::ProfileArgs),
    Synthesize(synthesize::SynthesizeArgs),
    Bench(bench::BenchArgs),
    Corpus(corpus::CorpusCommand),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
    /// Not listed: for child processes.
    CheckPair(check_pair::CheckPairArgs),
}

/// Arguments of a command that resolves a plan.
#[derive(Clone)]
pub(crate) struct PlanArgs {
    /// What the user wrote. Flags override the config file.
    pub(crate) settings: Settings,
    pub(crate) sim: Option<SimSpec>,
    /// The text of `--sim`.
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
    /// `--overwrite`
    pub(crate) overwrite: bool,
    /// `--config FILE`
    pub(crate) config: Option<PathBuf>,
    /// Warnings about retired config keys.
    pub(crate) warnings: Vec<String>,
}

const OVERVIEW: &str = "\
tandem trains text-to-speech models so that the GPU never waits.

To start with:
  tandem train                  train a small model on synthetic speech; --train-data DIR for your own
  tandem plan                   show the GPUs and how a run would use their memory
  tandem validate               run five checks on the real devices
  tandem corpus check DIR       list every problem in a dataset

All commands: tandem --help
";

/// Parses the command line and reads the config file it names.
pub(crate) fn parse(words: Vec<OsString>) -> Result<Invocation, Exit> {
    if words.len() <= 1 {
        return Err(Exit::Text(OVERVIEW.to_owned()));
    }
    if words[1] == check_pair::NAME {
        return check_pair::parse(&words[1..]).map(Invocation::CheckPair);
    }
    let tree = command_tree();
    let with_pages =
        help_page::with_pages(tree.clone(), terminal_columns(OutputStream::Out).unwrap_or(help_page::MAX_COLUMNS));
    let explained = |error: &clap::Error| {
        retired_flags::answer(error, &words).or_else(|| unknown_flag::explain(error, &words, &tree))
    };
    let matches = with_pages.try_get_matches_from(&words).map_err(|error| match error.use_stderr() {
        // It quotes words of the command line, and one of them may be a URL with a password.
        true => Exit::Usage(redact(&explained(&error).unwrap_or_else(|| error.to_string()))),
        false => Exit::Text(error.to_string().trim_start_matches('\n').to_owned()),
    })?;
    match matches.subcommand() {
        Some(("train", matches)) => plan_args(matches).map(Invocation::Train),
        Some(("launch", matches)) => Ok(Invocation::Launch(launch_command::parse(matches))),
        Some(("plan", matches)) => plan_args(matches).map(Invocation::Plan),
        Some(("validate", matches)) => plan_args(matches).map(Invocation::Validate),
        Some(("monitor", matches)) => Ok(Invocation::Monitor(monitor::parse(matches))),
        Some(("doctor", matches)) => plan_args(matches).map(|plan| Invocation::Doctor(doctor::parse(matches, plan))),
        Some(("profile", matches)) => profile::parse(matches, plan_args).map(Invocation::Profile),
        Some(("synthesize", matches)) => synthesize::parse(matches).map(Invocation::Synthesize),
        Some(("bench", matches)) => bench::parse(matches, plan_args).map(Invocation::Bench),
        Some(("corpus", matches)) => {
            corpus::parse(matches).map(Invocation::Corpus).ok_or_else(|| Exit::Text(OVERVIEW.to_owned()))
        }
        Some(("completions", matches)) => {
            completions::parse(matches).map(Invocation::Completions).ok_or_else(|| Exit::Text(OVERVIEW.to_owned()))
        }
        Some(("man", matches)) => Ok(Invocation::Man(man::parse(matches))),
        _ => Err(Exit::Text(OVERVIEW.to_owned())),
    }
}

fn plan_args(matches: &ArgMatches) -> Result<PlanArgs, Exit> {
    let mut settings = Settings::new();
    for setting in SETTINGS {
        read_setting(setting, matches, &mut settings)?;
    }
    let warnings = match matches.get_one::<PathBuf>("config") {
        Some(path) => config::load(path, &mut settings)?,
        None => Vec::new(),
    };
    let sim_text = matches.get_one::<String>("sim").cloned();
    let sim = sim_text.as_ref().map(|text| text.parse::<SimSpec>()).transpose();
    let flag = |name: &str| matches.try_get_one::<bool>(name).ok().flatten().copied().unwrap_or(false);
    Ok(PlanArgs {
        settings,
        sim: sim.map_err(|error| Exit::Usage(format!("❌ {error}")))?,
        sim_text,
        json: flag("json"),
        quiet: flag("quiet"),
        verbose: flag("verbose"),
        print_config: flag("print-config"),
        recommend: flag("recommend"),
        run_log: matches.try_get_one::<PathBuf>("run-log").ok().flatten().cloned(),
        overwrite: flag("overwrite"),
        config: matches.get_one::<PathBuf>("config").cloned(),
        warnings,
    })
}

/// Passes the text of one setting to the plan, which parses it.
fn read_setting(setting: &'static Setting, matches: &ArgMatches, settings: &mut Settings) -> Result<(), Exit> {
    // Not every command takes every setting.
    if setting.takes_several() {
        if let Some(texts) = matches.try_get_many::<String>(setting.flag).ok().flatten() {
            settings.set_all(setting.flag, &texts.collect::<Vec<_>>(), Origin::Flag)?;
        }
        return Ok(());
    }
    if setting.value_name().is_some() {
        if let Some(text) = matches.try_get_one::<String>(setting.flag).ok().flatten() {
            settings.set(setting.flag, text, Origin::Flag)?;
        }
        return Ok(());
    }
    for flag in [Some(setting.flag), setting.off_flag()].into_iter().flatten() {
        if matches.try_get_one::<bool>(flag).ok().flatten() == Some(&true) {
            settings.set(flag, "true", Origin::Flag)?;
        }
    }
    Ok(())
}

/// All commands with their flags, without help pages.
pub(crate) fn command_tree() -> Command {
    let plan = Command::new("plan")
        .about("Show how a run would use the GPUs: mode, memory of each role, buckets, threads; runs nothing")
        .arg(switch("print-config", "Print the resolved settings as a complete config file").conflicts_with("json"))
        .arg(
            switch("recommend", "Print recommended settings for one and two GPUs of 6 to 80 GB")
                .conflicts_with_all(["print-config", "sim"]),
        );
    let validate = Command::new("validate")
        .about("Run five checks on the real devices with the real model; PASS or FAIL each")
        .arg(run_log())
        .arg(overwrite());
    let train = Command::new("train")
        .about("Train a model; without --train-data, a small one on synthetic speech")
        .arg(run_log())
        .arg(overwrite());
    Command::new("tandem")
        .about("Trains text-to-speech models so that the GPU never waits")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .subcommand(with_plan_flags(train))
        .subcommand(launch_command::command())
        .subcommand(with_plan_flags(plan))
        .subcommand(with_plan_flags(validate))
        .subcommand(monitor::command())
        .subcommand(with_plan_flags(profile::command()))
        .subcommand(synthesize::command())
        .subcommand(with_plan_flags(bench::command()))
        .subcommand(corpus::command())
        .subcommand(with_plan_flags(doctor::command()))
        .subcommand(completions::command())
        .subcommand(man::command())
        .arg(color())
}

/// Adds the flags of a command that resolves a plan.
fn with_plan_flags(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let taken = SETTINGS.iter().filter(|setting| flag_table::use_of(setting.id, &name) != FlagUse::Refused);
    let config =
        path("config", "YAML file with any of these settings; flags override it, and it overrides the defaults");
    let command = command
        .arg(config.help_heading(FlagGroup::Data.heading()))
        .args(taken.flat_map(flags_of))
        .arg(sim().help_heading(FlagGroup::Devices.heading()))
        .arg(json())
        .arg(quiet().conflicts_with("verbose"));
    let verbose = switch("verbose", "Also print the libraries, the state of each GPU and peer access").short('v');
    command.arg(verbose.help_heading(FlagGroup::Output.heading()))
}

fn flags_of(setting: &'static Setting) -> Vec<Arg> {
    let off = setting.off_flag().map(|off| format!("; --{off} turns it off")).unwrap_or_default();
    let help = format!("{}{off} [default: {}]", setting.help_text(), setting.default_text());
    let heading = flag_table::group(setting.id).heading();
    let arg = Arg::new(setting.flag).long(setting.flag).help(help).aliases(setting.aliases.to_vec());
    let arg = arg.help_heading(heading).value_hint(hint(setting.kind));
    match (setting.value_name(), setting.bare_value()) {
        (Some(name), Some(bare)) => vec![arg.value_name(name).num_args(0..=1).default_missing_value(bare)],
        // What follows a name and begins with a dash is the next flag.
        (Some(name), None) if setting.takes_several() => vec![arg.value_name(name).num_args(1..)],
        // A negative number is a value, not a flag: the plan refuses it with its own message.
        (Some(name), None) => vec![values_of(setting.kind, arg).value_name(name).allow_hyphen_values(true)],
        (None, _) => {
            let on = arg.action(ArgAction::SetTrue);
            let off = setting.off_flag().map(|off| {
                let help = format!("Turn off --{}", setting.flag);
                let arg = Arg::new(off).long(off).action(ArgAction::SetTrue).help(help).help_heading(heading);
                arg.conflicts_with(setting.flag)
            });
            [Some(on), off].into_iter().flatten().collect()
        }
    }
}

/// The words of a choice, for help and completions. The plan refuses other words with its own message.
fn values_of(kind: SettingKind, arg: Arg) -> Arg {
    match kind {
        SettingKind::Choice(words) => arg.value_parser(SuggestedWords(words)),
        _ => arg,
    }
}

/// Any text; the words are what help and completions list.
#[derive(Clone)]
struct SuggestedWords(&'static [&'static str]);

impl TypedValueParser for SuggestedWords {
    type Value = String;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(|word| PossibleValue::new(*word))))
    }
}

/// What a shell completes the value with.
fn hint(kind: SettingKind) -> ValueHint {
    match kind {
        SettingKind::Path | SettingKind::Sources => ValueHint::AnyPath,
        _ => ValueHint::Unknown,
    }
}

/// A flag of every command. Its value is read by [`OutputStyle`](crate::style::OutputStyle).
fn color() -> Arg {
    let help = "Colour the output; auto: on a terminal, unless NO_COLOR is set";
    let arg = Arg::new("color").long("color").value_name("WHEN").value_parser(COLOR_WORDS).global(true);
    arg.help(format!("{help} [default: auto]")).help_heading(FlagGroup::Output.heading())
}

pub(crate) fn sim() -> Arg {
    let help = "Simulate these GPUs instead of using real ones, e.g. 2x24GiB";
    Arg::new("sim").long("sim").value_name("SPEC").allow_hyphen_values(true).help(help)
}

pub(crate) fn json() -> Arg {
    let help = "Print one JSON document to standard output; everything else goes to standard error";
    switch("json", help).help_heading(FlagGroup::Output.heading())
}

pub(crate) fn run_log() -> Arg {
    path("run-log", "Write every event of the run to this JSONL file").help_heading(FlagGroup::Output.heading())
}

pub(crate) fn overwrite() -> Arg {
    let help = "Let output files replace files that tandem did not write";
    switch("overwrite", help).help_heading(FlagGroup::Output.heading())
}

pub(crate) fn quiet() -> Arg {
    let help = "Print only the result, warnings and errors";
    switch("quiet", help).short('q').help_heading(FlagGroup::Output.heading())
}

pub(crate) fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

pub(crate) fn path(name: &'static str, help: &'static str) -> Arg {
    let arg = Arg::new(name).long(name).value_name("FILE").value_hint(ValueHint::AnyPath);
    arg.value_parser(clap::value_parser!(PathBuf)).help(help)
}

#[cfg(test)]
mod tests {
    use tandem_plan::setting::Id;

    use super::*;

    fn parse_words(words: &[&str]) -> Result<Invocation, String> {
        let words = [&["tandem"], words].concat().into_iter().map(OsString::from).collect();
        parse(words).map_err(|exit| match exit {
            Exit::Usage(text) => text,
            Exit::Refused(refusal) => refusal.to_string(),
            _ => "another kind of exit".to_owned(),
        })
    }

    #[test]
    fn a_flag_for_data_takes_all_names_up_to_the_next_flag() {
        let check = |words: &[&str], train: &[&str], val: &[&str]| {
            let Ok(Invocation::Plan(args)) = parse_words(words) else { panic!("{words:?}") };
            assert_eq!(
                (args.settings.texts(Id::TrainData), args.settings.texts(Id::ValData)),
                (
                    train.iter().map(|name| (*name).to_owned()).collect(),
                    val.iter().map(|name| (*name).to_owned()).collect(),
                )
            );
            assert_eq!(args.settings.given_count(Id::BatchSize), Some(8), "{words:?}");
        };
        check(&["plan", "--train-data", "a", "b", "--batch-size", "8"], &["a", "b"], &[]);
        check(&["plan", "--batch-size=8", "--val-data", "v", "w", "--train-data=a"], &["a"], &["v", "w"]);
        check(&["plan", "--data-path", "s3://b/{0..9}.tar", "--batch-size", "8"], &["s3://b/{0..9}.tar"], &[]);
    }

    #[test]
    fn an_error_has_no_secrets() {
        let url = "https://anna:SECRET@host/a.tar?sig=SECRET";
        for words in
            [&["plan", url][..], &["plan", "--seed", url], &["plan", "--train-data", "a", "--lexicon", url, url]]
        {
            let Err(text) = parse_words(words) else { panic!("{words:?}") };
            assert!(text.contains("https://…@host/a.tar?…") && !text.contains("SECRET"), "{text}");
        }
    }

    #[test]
    fn the_name_of_a_benchmark_behind_data_is_refused_with_its_place() {
        let Err(text) = parse_words(&["bench", "--train-data", "voice", "handoff"]) else { panic!("accepted") };
        assert!(text.contains("tandem bench handoff --train-data"), "{text}");
        assert!(parse_words(&["bench", "handoff", "--train-data", "voice", "other"]).is_ok());
    }
}
