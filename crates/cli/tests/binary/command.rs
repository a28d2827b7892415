//! Runs the program in a clean environment: a GPU on this machine does not affect simulated runs.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::machine::TempFolder;

/// A command line of the program, to be run.
pub(crate) struct TandemCommand(Command);

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Ran {
    /// The exit code, or -1 after a signal.
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Flags of a run that starts in a fraction of a second.
pub(crate) const SMALL: &str = "--model-size nano --batch-size 2 --buffer-size 4 --max-mel-frames 200";

/// Runs the program with the words of `line` as its arguments.
pub(crate) fn tandem(line: &str) -> Ran {
    TandemCommand::new(line).run()
}

/// The same with `--json`. Returns the document, too.
pub(crate) fn tandem_json(line: &str) -> (Ran, Value) {
    let ran = tandem(&format!("{line} --json"));
    let document = ran.json();
    (ran, document)
}

impl TandemCommand {
    pub(crate) fn new(line: &str) -> TandemCommand {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
        command.args(line.split_whitespace()).env_clear().env("LANG", "C.UTF-8").stdin(Stdio::null());
        TandemCommand(command)
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> TandemCommand {
        self.0.arg(arg);
        self
    }

    pub(crate) fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> TandemCommand {
        self.0.args(args);
        self
    }

    /// Runs inside `folder`.
    pub(crate) fn inside(mut self, folder: &TempFolder) -> TandemCommand {
        self.0.current_dir(folder.path(""));
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> TandemCommand {
        self.0.env(name, value);
        self
    }

    pub(crate) fn without_env(mut self, name: &str) -> TandemCommand {
        self.0.env_remove(name);
        self
    }

    pub(crate) fn config(self, file: &Path) -> TandemCommand {
        self.arg("--config").arg(file)
    }

    pub(crate) fn run(mut self) -> Ran {
        let output = self.0.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).expect("output is text");
        Ran { code: output.status.code().unwrap_or(-1), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Runs it behind a line of the shell that sets limits and ends with a word that starts a program, such as `exec`.
    pub(crate) fn run_behind(self, shell: &str) -> Ran {
        let mut limited = Command::new("sh");
        limited.args(["-c", &format!("{shell} \"$@\""), "sh"]).arg(self.0.get_program()).args(self.0.get_args());
        limited.env_clear().env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
        limited.envs(self.0.get_envs().filter_map(|(name, value)| Some((name, value?))));
        TandemCommand(limited).run()
    }

    /// The command of the standard library, for what `run` does not do.
    pub(crate) fn into_std(self) -> Command {
        self.0
    }
}

impl Ran {
    /// The JSON document on standard output.
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Standard output and error, in that order.
    pub(crate) fn both(&self) -> String {
        format!("{}{}", self.out, self.err)
    }
}

/// Fails unless `text` holds every one of `parts`.
#[track_caller]
pub(crate) fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
}

/// Fails unless `parts` come in this order in `text`.
#[track_caller]
pub(crate) fn in_order(text: &str, parts: &[&str]) {
    let mut rest = text;
    for part in parts {
        let Some(at) = rest.find(part) else { panic!("{part:?} is missing, or too early, in\n{text}") };
        rest = &rest[at + part.len()..];
    }
}

/// The entries of a list of texts.
pub(crate) fn texts(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}
