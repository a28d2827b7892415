//! The run log as its owner and its emitters see it.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Instant;

use tandem_events::{Emitter, Record, RunEvent, Sink};
use tandem_pipeline::{Worker, WorkerError};

use crate::nonblocking_writer::NonBlockingWriter;
use crate::writer::{Complaint, Listener, PendingEvent, Writer, WriterMessage};

/// How many events wait for the writer at most: a few seconds of a busy run, about a megabyte.
const QUEUE_EVENTS: usize = 8192;

/// A run log could not be started. Once it has started, nothing about it fails.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file could not be made: another place, or the rights to this one.
    #[error("the run log could not be created ({source}): {}", path.display())]
    Create {
        /// Where it should have been.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// There was no thread to write it.
    #[error(transparent)]
    Writer(#[from] WorkerError),
}

/// What became of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogSummary {
    /// Records that are whole in the file.
    pub written: u64,
    /// Events that are not: the queue was full, or the file took no more.
    pub dropped: u64,
    /// The first error of the file, unless it was reported when it happened. Writing was retried after it.
    pub write_error: Option<String>,
}

/// Holding one of these means that events are being written. [`finish`](RunLog::finish) it to learn what became of
/// them; dropping it writes them too, without a summary.
#[derive(Debug)]
pub struct RunLog {
    queue: SyncSender<WriterMessage>,
    since: Instant,
    dropped: Arc<AtomicU64>,
    /// Gone only once the log is closed.
    writer: Option<Worker<LogSummary>>,
}

impl RunLog {
    /// Makes the file at `path`, whose folder exists, and starts writing to it. A file of that name is replaced.
    ///
    /// The emitter and its clones never wait: what finds the queue full is dropped and counted, and the next record
    /// carries the count. Times in the log are since this call.
    pub fn create(path: impl AsRef<Path>) -> Result<(RunLog, Emitter), LogError> {
        Ok(Self::start(open(path.as_ref())?, QUEUE_EVENTS, Box::new(drop), None)?)
    }

    /// [`create`](RunLog::create), with a `listener` that gets every record as well, in the order of the log and also
    /// when the file takes no more. It runs on the thread that writes the log: it must not wait, and it must not panic.
    /// [`Exporters::listener`](crate::Exporters::listener) is one. It is dropped when the log ends. The first thing that goes
    /// wrong with the file is reported to `complain` at once, on the same thread.
    pub fn create_with_listener(
        path: impl AsRef<Path>,
        listener: impl FnMut(Record) + Send + 'static,
        complain: impl FnOnce(&str) + Send + 'static,
    ) -> Result<(RunLog, Emitter), LogError> {
        Ok(Self::start(open(path.as_ref())?, QUEUE_EVENTS, Box::new(listener), Some(Box::new(complain)))?)
    }

    /// Waits until everything accepted so far is in the file, or the file has refused it. Emitters may live on; what
    /// they emit from now on goes nowhere.
    pub fn finish(mut self) -> LogSummary {
        self.close(None)
    }

    /// [`finish`](RunLog::finish) with a last word, which a full queue cannot drop: it is the last line of the file.
    pub fn finish_with(mut self, last: RunEvent) -> LogSummary {
        let last = PendingEvent::new(last, self.since, &self.dropped);
        self.close(Some(last))
    }

    fn start(
        out: impl Write + Send + 'static,
        queue_events: usize,
        listener: Listener,
        complain: Option<Complaint>,
    ) -> Result<(RunLog, Emitter), WorkerError> {
        let (queue, events) = sync_channel(queue_events);
        let since = Instant::now();
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Writer::new(events, out, since, dropped.clone()).with_listener(listener, complain);
        // The stop flag is not used: the writer sleeps on its queue, so it is stopped through its queue.
        let writer = Worker::spawn("run-log", move |_| writer.run())?;
        let sink = Arc::new(LogSink { queue: queue.clone(), since, dropped: dropped.clone() });
        Ok((RunLog { queue, since, dropped, writer: Some(writer) }, Emitter::to(sink)))
    }

    fn close(&mut self, last: Option<PendingEvent>) -> LogSummary {
        let Some(writer) = self.writer.take() else { return LogSummary::default() };
        // The owner may wait for room, emitters may not. An error means the writer has panicked: `join` says so.
        let _ = self.queue.send(WriterMessage::Close(last));
        writer.join().unwrap_or_else(|error| LogSummary {
            written: 0,
            dropped: self.dropped.load(Ordering::Relaxed),
            write_error: Some(error.to_string()),
        })
    }
}

fn open(path: &Path) -> Result<NonBlockingWriter, LogError> {
    File::create(path)
        .and_then(NonBlockingWriter::new)
        .map_err(|source| LogError::Create { path: path.to_owned(), source })
}

impl Drop for RunLog {
    fn drop(&mut self) {
        // Not left to the worker's own drop: that raises a flag the writer does not look at.
        self.close(None);
    }
}

/// The emitters' end of the queue.
struct LogSink {
    queue: SyncSender<WriterMessage>,
    since: Instant,
    dropped: Arc<AtomicU64>,
}

impl Sink for LogSink {
    fn emit(&self, event: RunEvent) {
        // An event that finds no room comes back in the error, and counts itself as dropped there.
        let _ = self.queue.try_send(WriterMessage::RunEvent(PendingEvent::new(event, self.since, &self.dropped)));
    }
}

#[cfg(test)]
mod tests;
