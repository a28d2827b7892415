//! A flag that a command does not take, but another one does: the message names that one.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

/// The message for a flag of other commands. None for any other error.
pub(crate) fn explain(error: &Error, words: &[std::ffi::OsString], tree: &Command) -> Option<String> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg) else { return None };
    let name = typed.strip_prefix("--")?.split('=').next()?;
    let takers = takers(tree, "", name);
    if takers.is_empty() {
        return None;
    }
    let command = path_of(words, tree);
    Some(format!(
        "❌ --{name} is not a flag of tandem {command}; it is a flag of {}\n   Leave it out. The flags of this command: \
         tandem {command} --help",
        joined(&takers)
    ))
}

/// The commands that take the flag, in the order of `tandem --help`.
fn takers(command: &Command, path: &str, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for sub in command.get_subcommands() {
        let path = format!("{path} {}", sub.get_name()).trim_start().to_owned();
        let takes = |arg: &clap::Arg| {
            arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
        };
        if sub.get_arguments().any(takes) {
            found.push(path.clone());
        }
        found.extend(takers(sub, &path, name));
    }
    found
}

/// The command that the words name: `corpus check`.
fn path_of(words: &[std::ffi::OsString], tree: &Command) -> String {
    let (mut command, mut path) = (tree, Vec::new());
    for word in words.iter().skip(1).filter_map(|word| word.to_str()) {
        if let Some(sub) = command.find_subcommand(word) {
            path.push(sub.get_name().to_owned());
            command = sub;
        }
    }
    path.join(" ")
}

/// `train`, `train and plan`, `train, plan and validate`.
fn joined(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_joined_as_people_write_them() {
        let check = |names: &[&str], expected: &str| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(joined(&names), expected);
        };
        check(&["train"], "train");
        check(&["train", "plan"], "train and plan");
        check(&["train", "plan", "validate"], "train, plan and validate");
    }
}
