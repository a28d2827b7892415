//! `tandem launch`: runs a training command as several processes on this machine.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command, value_parser};

use crate::exit::Exit;
use crate::ranks::{self, BY_LAUNCH};
use crate::screen::Screen;
use crate::supervisor::{MAX_RESTARTS, Supervisor, is_rank_command};

/// `tandem launch`
pub(crate) struct LaunchArgs {
    ranks: u32,
    max_restarts: u32,
    words: Vec<OsString>,
}

const MAX_RANKS: i64 = 1024;

pub(crate) fn command() -> Command {
    let ranks = Arg::new("ranks").short('n').long("ranks").value_name("N").required(true);
    let restarts = Arg::new("max-restarts").long("max-restarts").value_name("N");
    let help = format!("How often to start all ranks again when one was killed [default: {MAX_RESTARTS}]");
    Command::new("launch")
        .about("Run `tandem train` as several processes on this machine")
        .override_usage("tandem launch -n N train [FLAGS]...")
        .arg(ranks.value_parser(value_parser!(u32).range(1..=MAX_RANKS)).help("Number of processes (ranks)"))
        .arg(restarts.value_parser(value_parser!(u32)).help(help))
        .arg(
            Arg::new("command")
                .value_name("COMMAND")
                .required(true)
                .num_args(1..)
                .trailing_var_arg(true)
                .allow_hyphen_values(true)
                .value_parser(value_parser!(OsString))
                .help("The command of every rank: train, and its flags"),
        )
}

pub(crate) fn parse(matches: &ArgMatches) -> LaunchArgs {
    LaunchArgs {
        ranks: matches.get_one("ranks").copied().unwrap_or(1),
        max_restarts: matches.get_one("max-restarts").copied().unwrap_or(MAX_RESTARTS),
        words: matches.get_many::<OsString>("command").into_iter().flatten().cloned().collect(),
    }
}

pub(crate) fn run(args: &LaunchArgs, screen: &Screen) -> Result<ExitCode, Exit> {
    if !args.words.first().is_some_and(|word| is_rank_command(word)) {
        let found = args.words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        return Err(Exit::Usage(format!(
            "❌ tandem launch runs `train` only, found `{found}`: tandem launch -n {} train --train-data DIR",
            args.ranks
        )));
    }
    if let Some(environment) = ranks::environment()?.filter(|environment| environment.world.size > 1) {
        return Err(Exit::Usage(format!(
            "❌ This process is already {}, started by {}: run `tandem train` there, without `launch`",
            environment.world, environment.launcher
        )));
    }
    let LaunchArgs { ranks, max_restarts, words } = args;
    Supervisor { ranks: *ranks, words: words.clone(), max_restarts: *max_restarts, command: BY_LAUNCH, gpus: None }
        .run(screen)
}
