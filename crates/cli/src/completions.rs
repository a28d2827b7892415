//! `tandem completions`: a script that lets a shell complete commands, flags and their values.

use std::process::ExitCode;

use clap::{Arg, ArgMatches, Command};
use clap_complete::{Shell, generate};

use crate::args::command_tree;
use crate::exit::Exit;
use crate::screen;

/// The shells, by name.
const SHELLS: [(&str, Shell); 4] =
    [("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish), ("elvish", Shell::Elvish)];

/// Arguments of `tandem completions`.
pub(crate) struct CompletionsArgs {
    shell: Shell,
}

pub(crate) fn command() -> Command {
    Command::new("completions").about("Print a script with which a shell completes commands, flags and values").arg(
        Arg::new("shell")
            .value_name("SHELL")
            .required(true)
            .value_parser(SHELLS.map(|(name, _)| name))
            .help("The shell to complete in"),
    )
}

pub(crate) fn parse(matches: &ArgMatches) -> Option<CompletionsArgs> {
    let typed = matches.get_one::<String>("shell")?;
    let (_, shell) = SHELLS.into_iter().find(|(name, _)| name == typed)?;
    Some(CompletionsArgs { shell })
}

pub(crate) fn run(args: &CompletionsArgs) -> Result<ExitCode, Exit> {
    let mut script = Vec::new();
    generate(args.shell, &mut command_tree(), "tandem", &mut script);
    screen::write(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
