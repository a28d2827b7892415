//! The run log of a loader, and TensorBoard's event files beside it.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tandem_events::{Emitter, RunEvent};
use tandem_runlog::{Exporter, Exporters, RunLog, TensorBoard};

use crate::{LoaderError, LoaderOptions};

/// The name of the log in its folder: what `tandem monitor` looks for.
const LOG_FILE: &str = "run.jsonl";

/// An open log. Closing it writes its end.
pub(crate) struct LoaderLog {
    log: RunLog,
    exporters: Exporters,
}

/// Problems of writers, for [`Loader::take_messages`](crate::Loader::take_messages).
pub(crate) type LoaderMessages = Arc<Mutex<Vec<String>>>;

pub(crate) fn push(messages: &LoaderMessages, line: String) {
    messages.lock().unwrap_or_else(PoisonError::into_inner).push(line);
}

impl LoaderLog {
    /// Opens the log that the options ask for; none without a folder.
    pub(crate) fn open(
        options: &LoaderOptions,
        messages: &LoaderMessages,
    ) -> Result<(Option<LoaderLog>, Emitter), LoaderError> {
        let Some(folder) = &options.given.log_dir else {
            return match options.given.tensorboard_dir {
                None => Ok((None, Emitter::none())),
                Some(_) => Err(LoaderError::Option("tensorboard_dir: it is made from the log: add log_dir".to_owned())),
            };
        };
        let refused = |path: &Path| {
            let path = path.display().to_string();
            move |error: String| LoaderError::Log { path, error }
        };
        std::fs::create_dir_all(folder).map_err(|error| error.to_string()).map_err(refused(folder))?;
        let default = folder.join("tensorboard");
        let board_dir = options.given.tensorboard_dir.as_deref().unwrap_or(&default);
        let board = TensorBoard::create(board_dir, folder, SystemTime::now());
        let board: Box<dyn Exporter> = Box::new(board.map_err(|error| error.to_string()).map_err(refused(board_dir))?);
        let sink = Arc::clone(messages);
        let exporters = Exporters::start(vec![board], move |problem| push(&sink, problem.to_string()));
        let exporters = exporters.map_err(|error| error.to_string()).map_err(refused(board_dir))?;
        let (path, sink) = (folder.join(LOG_FILE), Arc::clone(messages));
        let log =
            RunLog::create_with_listener(&path, exporters.listener(), move |error| push(&sink, error.to_string()));
        let (log, emitter) = log.map_err(|error| error.to_string()).map_err(refused(&path))?;
        Ok((Some(LoaderLog { log, exporters }), emitter))
    }

    /// Writes the end of the log and waits for its writers.
    pub(crate) fn close(self) {
        self.log.finish_with(RunEvent::RunEnded { exit_code: 0, reason: "the feed was closed".to_owned() });
        self.exporters.finish();
    }
}
