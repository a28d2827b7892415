//! How a command ends other than well, and what the shell is told.

use std::process::ExitCode;

use tandem_plan::config::ConfigError;
use tandem_plan::{Refusal, SettingError, refusal_json};

use crate::screen;

/// The check or the run failed.
pub(crate) const FAILED: u8 = 1;
/// Wrong usage, or a plan that cannot be.
pub(crate) const IMPOSSIBLE: u8 = 2;

/// Why a command did not do what was asked.
#[derive(Debug)]
pub(crate) enum Exit {
    /// The plan cannot be; `json` when the answer was asked for as a document.
    Refused { refusal: Box<Refusal>, json: bool, simulated: bool },
    /// The command line or the config is wrong.
    Usage(String),
    /// `--help` and `--version`: nothing is wrong.
    Said(String),
    /// Something failed while it ran.
    Failed(anyhow::Error),
    /// Nobody reads our output any more.
    Closed,
}

impl Exit {
    /// Says what happened, once, and gives the shell its number.
    pub(crate) fn report(self) -> ExitCode {
        match self {
            Exit::Refused { refusal, json: true, .. } => {
                let _ = screen::write_json(&refusal_json(&refusal));
                ExitCode::from(IMPOSSIBLE)
            }
            Exit::Refused { refusal, simulated, .. } => {
                screen::complain(&refusal.to_string(), simulated);
                ExitCode::from(IMPOSSIBLE)
            }
            Exit::Usage(message) => {
                screen::complain(&message, false);
                ExitCode::from(IMPOSSIBLE)
            }
            Exit::Said(text) => {
                let _ = screen::write(&text);
                ExitCode::SUCCESS
            }
            Exit::Failed(error) => {
                screen::complain(&format!("❌ {error:#}"), false);
                ExitCode::from(FAILED)
            }
            Exit::Closed => ExitCode::SUCCESS,
        }
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
