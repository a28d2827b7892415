//! Peers: other programs, run in the same call so that the figures are comparable.

use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::screen::Screen;

/// A peer, after it ran.
pub(super) struct Peer {
    command: String,
    lines: Vec<String>,
    /// Why it failed, if it did.
    problem: Option<String>,
}

impl Peer {
    /// Runs it in a shell and waits. It shares our standard error. Its failure is recorded and does not fail the benchmark.
    pub(super) fn run(command: &str) -> Peer {
        let ran = Command::new("sh").arg("-c").arg(command).stdin(Stdio::null()).stderr(Stdio::inherit()).output();
        let (lines, problem) = match ran {
            Ok(ran) => {
                let lines = String::from_utf8_lossy(&ran.stdout).lines().map(str::to_owned).collect();
                (lines, (!ran.status.success()).then(|| ran.status.to_string()))
            }
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        Peer { command: command.to_owned(), lines, problem }
    }

    /// Its output.
    pub(super) fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Its output, quoted.
    pub(super) fn show(&self) -> String {
        let lines = self.lines.iter().map(|line| format!("  | {line}\n"));
        lines.fold(format!("Peer `{}`\n", self.command), |text, line| text + &line)
    }

    /// Warns if it failed.
    pub(super) fn warn(&self, screen: &Screen) {
        if let Some(problem) = &self.problem {
            screen.warn(&format!("the peer `{}` failed ({problem}); Tandem's figures are unaffected", self.command));
        }
    }

    /// The JSON document's entry. Lines that are JSON are included parsed, too.
    pub(super) fn json(&self) -> Value {
        let parsed = self.lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        json!({
            "command": self.command,
            "failed": self.problem,
            "lines": self.lines,
            "json": parsed.filter(|value| value.is_object() || value.is_array()).collect::<Vec<_>>(),
        })
    }
}
