//! The log of a run, for commands that run something.

use tandem_events::{Emitter, RunEvent};
use tandem_runlog::RunLog;

use crate::args::PlanCall;
use crate::exit::Exit;
use crate::screen::Screen;

/// The log that `--run-log` names, and where to tell it things; without the flag, nobody is told.
pub(crate) fn open(call: &PlanCall) -> Result<(Option<RunLog>, Emitter), Exit> {
    match &call.run_log {
        None => Ok((None, Emitter::none())),
        Some(path) => {
            let (log, emitter) = RunLog::create(path).map_err(|error| Exit::Usage(format!("❌ --run-log: {error}")))?;
            Ok((Some(log), emitter))
        }
    }
}

/// Ends it, and says what is missing in it.
pub(crate) fn close(log: Option<RunLog>, exit_code: u8, reason: &str, screen: &Screen) {
    let reason = reason.to_owned();
    if let Some(summary) = log.map(|log| log.finish_with(RunEvent::RunEnded { exit_code, reason })) {
        if let Some(error) = summary.write_error {
            screen.warn(&format!("the run log is not complete: {error}"));
        }
        if summary.dropped > 0 {
            screen.warn(&format!("the run log is not complete: {} events dropped", summary.dropped));
        }
    }
}
