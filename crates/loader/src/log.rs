//! The run log of a loader, and TensorBoard's event files beside it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tandem_events::{Emitter, RunEvent};
use tandem_runlog::{Exporter, Exporters, RunLog, TensorBoard};

use crate::{LoaderError, LoaderOptions};

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
        let (path, sink) = (new_log(folder, options.given.rank), Arc::clone(messages));
        let log =
            RunLog::create_with_listener(&path, exporters.listener(), move |error| push(&sink, error.to_string()));
        let (log, emitter) = log.map_err(|error| error.to_string()).map_err(refused(&path))?;
        Ok((Some(LoaderLog { log, exporters }), emitter))
    }

    /// Writes the end of the log and waits for its writers. `error` is what ended the feed before it was closed.
    pub(crate) fn close(self, error: Option<String>) {
        let exit_code = u8::from(error.is_some());
        let reason = error.unwrap_or_else(|| "the feed was closed".to_owned());
        self.log.finish_with(RunEvent::RunEnded { exit_code, reason });
        self.exporters.finish();
    }
}

/// A name in `folder` that is not taken: `feed.jsonl`, with a rank `feed-rank-3.jsonl`, later ones `feed-2.jsonl`. Logs of
/// before stay, and so does that of a training run in the same folder.
fn new_log(folder: &Path, rank: u32) -> PathBuf {
    let rank = if rank == 0 { String::new() } else { format!("-rank-{rank}") };
    let name = |number: u32| match number {
        1 => format!("feed{rank}.jsonl"),
        number => format!("feed{rank}-{number}.jsonl"),
    };
    let free = (1..u32::MAX).map(|number| folder.join(name(number))).find(|path| !path.exists());
    free.unwrap_or_else(|| folder.join(name(u32::MAX)))
}
