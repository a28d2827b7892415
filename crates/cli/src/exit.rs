//! How a command ends other than well, and what the shell is told.

use std::ffi::OsString;
use std::process::ExitCode;

use serde_json::json;
use tandem_plan::config::ConfigError;
use tandem_plan::{Refusal, SettingError, refusal_json};

use crate::screen;

/// The check or the run failed.
pub(crate) const FAILED: u8 = 1;
/// Wrong usage, or a plan that cannot be.
const IMPOSSIBLE: u8 = 2;

/// Why a command did not do what was asked.
#[derive(Debug)]
pub(crate) enum Exit {
    /// The plan cannot be.
    Refused(Box<Refusal>),
    /// The command line or the config is wrong.
    Usage(String),
    /// `--help` and `--version`: nothing is wrong.
    Said(String),
    /// Something failed while it ran.
    Failed(anyhow::Error),
    /// Nobody reads our output any more.
    Closed,
}

/// How an answer is wanted. Read off the raw command line: it holds for one that cannot be read, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputStyle {
    json: bool,
    simulated: bool,
}

impl OutputStyle {
    pub(crate) fn of(args: &[OsString]) -> OutputStyle {
        let is_sim = |arg: &OsString| arg == "--sim" || arg.to_string_lossy().starts_with("--sim=");
        OutputStyle { json: args.iter().any(|arg| arg == "--json"), simulated: args.iter().any(is_sim) }
    }
}

impl Exit {
    /// The shell's number for it.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Exit::Refused(_) | Exit::Usage(_) => IMPOSSIBLE,
            Exit::Failed(_) => FAILED,
            Exit::Said(_) | Exit::Closed => 0,
        }
    }

    /// Says what happened, once, and gives the shell its number.
    pub(crate) fn report(self, manner: OutputStyle) -> ExitCode {
        let (code, message, mut document) = match self {
            Exit::Refused(refusal) => (IMPOSSIBLE, refusal.to_string(), refusal_json(&refusal)),
            Exit::Usage(message) => {
                let document = json!({ "error": message, "code": IMPOSSIBLE, "suggestions": [] });
                (IMPOSSIBLE, message, document)
            }
            Exit::Failed(error) => {
                let message = format!("❌ {error:#}");
                let document = json!({ "error": message, "code": FAILED, "passed": false, "suggestions": [] });
                (FAILED, message, document)
            }
            Exit::Said(text) => {
                // Nobody reading is no failure.
                let _ = screen::write(&text);
                return ExitCode::SUCCESS;
            }
            Exit::Closed => return ExitCode::SUCCESS,
        };
        document["simulated"] = manner.simulated.into();
        match manner.json {
            // The exit code says it all the same.
            true => drop(screen::write_json(&document)),
            false => screen::complain(&message, manner.simulated),
        }
        ExitCode::from(code)
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
