//! How a command ends when it does not succeed, and its exit code.

use std::fmt;
use std::process::ExitCode;

use serde_json::json;
use tandem_plan::config::ConfigError;
use tandem_plan::{Refusal, SettingError, refusal_json};

use crate::console::Console;
use crate::ranks;
use crate::screen;
use crate::style::{OutputStream, OutputStyle, with_bold_headings};

/// Exit code: the check or the run failed.
pub(crate) const FAILED: u8 = 1;
/// Exit code: wrong usage, or an impossible plan.
const IMPOSSIBLE: u8 = 2;

/// Why a command ends early.
#[derive(Debug)]
pub(crate) enum Exit {
    /// The plan is impossible.
    Refused(Box<Refusal>),
    /// The command line or the config is wrong.
    Usage(String),
    /// Text to print, with exit code 0: `--help`, `--version`.
    Text(String),
    /// The command failed while it ran.
    Failed(anyhow::Error),
    /// Standard output was closed.
    Closed,
}

impl Exit {
    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Exit::Refused(_) | Exit::Usage(_) => IMPOSSIBLE,
            Exit::Failed(_) => FAILED,
            Exit::Text(_) | Exit::Closed => 0,
        }
    }

    /// Prints the error and returns the exit code.
    pub(crate) fn report(self, style: OutputStyle) -> ExitCode {
        let (code, message, mut document) = match self {
            Exit::Refused(refusal) => (IMPOSSIBLE, refusal.to_string(), refusal_json(&refusal)),
            Exit::Usage(message) => {
                let document = json!({ "error": message, "code": IMPOSSIBLE, "suggestions": [] });
                (IMPOSSIBLE, message, document)
            }
            Exit::Failed(error) => {
                let message = format!("❌ {}", chain(&error));
                let document = json!({ "error": message, "code": FAILED, "passed": false, "suggestions": [] });
                (FAILED, message, document)
            }
            Exit::Text(text) => {
                let is_bold = style.color.is_on(OutputStream::Out);
                // A closed standard output is not a failure.
                let _ = screen::write(&if is_bold { with_bold_headings(&text) } else { text });
                return ExitCode::SUCCESS;
            }
            Exit::Closed => return ExitCode::SUCCESS,
        };
        document["simulated"] = style.simulated.into();
        // Of several ranks, one document is printed: by rank 0, or by the supervisor.
        match style.json && !ranks::is_one_of_several() {
            // If the document cannot be written, the exit code still reports the error.
            true => drop(screen::write_json(&document)),
            // With standard error closed there is nowhere left to report to.
            false => drop(Console::new(style.look()).print(&message, OutputStream::Err)),
        }
        ExitCode::from(code)
    }
}

/// An error and its causes. Many messages already have the system's error in them: it is not said twice.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Exit::Refused(refusal) => refusal.message.clone(),
            Exit::Usage(text) | Exit::Text(text) => text.clone(),
            Exit::Failed(error) => chain(error),
            Exit::Closed => "standard output was closed".to_owned(),
        };
        f.write_str(text.trim_start_matches("❌ "))
    }
}

impl From<anyhow::Error> for Exit {
    fn from(error: anyhow::Error) -> Exit {
        Exit::Failed(error)
    }
}

impl From<SettingError> for Exit {
    fn from(error: SettingError) -> Exit {
        Exit::Usage(format!("❌ {error}"))
    }
}

impl From<ConfigError> for Exit {
    fn from(error: ConfigError) -> Exit {
        Exit::Usage(format!("❌ {error}"))
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_cause_that_is_in_the_message_is_not_repeated() {
        let error = anyhow!("No such file").context("cannot read (No such file): a.txt").context("--train-data");
        assert_eq!(chain(&error), "--train-data: cannot read (No such file): a.txt");
        assert_eq!(chain(&anyhow!("disk full").context("cannot write")), "cannot write: disk full");
    }
}
