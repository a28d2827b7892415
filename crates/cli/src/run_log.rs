//! `--run-log`, for commands that run something.

use tandem_events::{Emitter, RunEvent};
use tandem_runlog::RunLog;

use crate::args::PlanArgs;
use crate::exit::Exit;
use crate::output_guard::{OutputGuard, OutputKind};
use crate::screen::Screen;

/// Opens the log that `--run-log` names. Without the flag, events are discarded.
pub(crate) fn open(args: &PlanArgs) -> Result<(Option<RunLog>, Emitter), Exit> {
    match &args.run_log {
        None => Ok((None, Emitter::none())),
        Some(path) => {
            OutputGuard::of(args).check("--run-log", path, OutputKind::RunLog)?;
            let (log, emitter) = RunLog::create(path).map_err(|error| Exit::Usage(format!("❌ --run-log: {error}")))?;
            Ok((Some(log), emitter))
        }
    }
}

/// Closes the log and warns if it is incomplete.
pub(crate) fn close(log: Option<RunLog>, exit_code: u8, reason: &str, screen: &Screen) {
    let reason = reason.to_owned();
    if let Some(summary) = log.map(|log| log.finish_with(RunEvent::RunEnded { exit_code, reason })) {
        if let Some(error) = summary.write_error {
            screen.warn(&format!("the run log is incomplete: {error}"));
        }
        if summary.dropped > 0 {
            screen.warn(&format!("the run log is incomplete: {} events dropped", summary.dropped));
        }
    }
}
