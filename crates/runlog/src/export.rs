//! Exporters: readers of a run's records that show them to somebody else's program.
//!
//! Records come from the thread that writes the run log, through a bounded queue, to one thread that steps behind all
//! others and feeds every exporter. What finds the queue full is dropped and counted: neither training nor the log ever
//! waits for an exporter, and none of them can fail a run. The same exporters read a finished log with [`export_log`].

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use tandem_events::Record;
use tandem_pipeline::{Worker, WorkerError};

use crate::{LogEntry, ReadError, read};

/// How many records wait for the exporters at most: as many as wait for the log.
const QUEUE_RECORDS: usize = 8192;

/// How long what was exported may wait before others can see it.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

/// An exporter could not be started, or a finished log not be read. Training goes on without it.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The file could not be made: another place, or the rights to this one.
    #[error("{what} could not be created ({source}): {}", path.display())]
    Create {
        /// Which file it would have been.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// An address that is none.
    #[error("expected an address like 9090, :9090 or 0.0.0.0:9090, found \"{text}\"")]
    Address {
        /// What was given.
        text: String,
    },

    /// Nobody can be served there: mostly another program is.
    #[error("{address} cannot be listened at ({source}); give another port, or stop what listens there")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },

    /// There was no thread for it.
    #[error(transparent)]
    Worker(#[from] WorkerError),

    /// The finished log could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Someone who shows records to another program.
///
/// An error of a method is reported once; the next record is still offered.
pub trait Exporter: Send {
    /// What people call it, for messages.
    fn name(&self) -> &'static str;

    /// Takes a record. May keep it back until [`flush`](Exporter::flush).
    fn take(&mut self, record: &Record) -> io::Result<()>;

    /// Makes everything taken so far visible. Called about once a second.
    fn flush(&mut self) -> io::Result<()>;

    /// The run is over: nothing follows.
    fn finish(&mut self) -> io::Result<()>;
}

/// The first thing that went wrong with an exporter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportProblem {
    /// Which.
    pub exporter: &'static str,
    /// What, in a sentence.
    pub error: String,
}

impl std::fmt::Display for ExportProblem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.exporter, self.error)
    }
}

/// What became of the records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportSummary {
    /// Records that every exporter was offered.
    pub taken: u64,
    /// Records that none was: the queue was full; of a finished log, lines that are no records.
    pub dropped: u64,
    /// The first problem of each exporter that had one.
    pub problems: Vec<ExportProblem>,
}

/// Holding one of these means that exporters are at work. [`finish`](Exporters::finish) it after the log to learn what
/// became of the records; dropping it waits for them just as well.
#[derive(Debug)]
pub struct Exporters {
    queue: SyncSender<WriterMessage>,
    dropped: Arc<AtomicU64>,
    /// Gone only once they are finished.
    worker: Option<Worker<ExportSummary>>,
}

/// What the queue carries.
enum WriterMessage {
    /// In a box: most of the room in the queue is never used, and a record is large.
    Record(Box<Record>),
    /// The last message.
    Close,
}

impl Exporters {
    /// Starts the thread that feeds `exporters`. `tell` is called there with the first problem of each.
    pub fn start(
        exporters: Vec<Box<dyn Exporter>>,
        tell: impl FnMut(&ExportProblem) + Send + 'static,
    ) -> Result<Self, ExportError> {
        Self::start_with(exporters, tell, QUEUE_RECORDS)
    }

    /// For [`RunLog::create_with_listener`](crate::RunLog::create_with_listener): hands records on and never waits.
    pub fn listener(&self) -> impl FnMut(Record) + Send + 'static {
        let (queue, dropped) = (self.queue.clone(), Arc::clone(&self.dropped));
        move |record| {
            if queue.try_send(WriterMessage::Record(Box::new(record))).is_err() {
                dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Waits until every record that was taken is exported. Finish the log first: its last records are still to come.
    pub fn finish(mut self) -> ExportSummary {
        self.close()
    }

    fn start_with(
        exporters: Vec<Box<dyn Exporter>>,
        tell: impl FnMut(&ExportProblem) + Send + 'static,
        queue_records: usize,
    ) -> Result<Self, ExportError> {
        let (queue, records) = sync_channel(queue_records);
        let crowd = Crowd::new(exporters, tell);
        let worker = Worker::spawn_background("exporters", move |_| export(&records, crowd))?;
        Ok(Self { queue, dropped: Arc::default(), worker: Some(worker) })
    }

    fn close(&mut self) -> ExportSummary {
        let Some(worker) = self.worker.take() else { return ExportSummary::default() };
        // The owner may wait for room. An error means an exporter has panicked: `join` says so.
        let _ = self.queue.send(WriterMessage::Close);
        let ended = worker.join().unwrap_or_else(|error| ExportSummary {
            problems: vec![ExportProblem { exporter: "exporters", error: error.to_string() }],
            ..ExportSummary::default()
        });
        ExportSummary { dropped: self.dropped.load(Ordering::Relaxed), ..ended }
    }
}

impl Drop for Exporters {
    fn drop(&mut self) {
        self.close();
    }
}

fn export(records: &Receiver<WriterMessage>, mut crowd: Crowd<impl FnMut(&ExportProblem)>) -> ExportSummary {
    let mut flushed = Instant::now();
    loop {
        match records.recv_timeout(FLUSH_EVERY.saturating_sub(flushed.elapsed())) {
            Ok(WriterMessage::Record(record)) => crowd.take(&record),
            Err(RecvTimeoutError::Timeout) => {}
            Ok(WriterMessage::Close) | Err(RecvTimeoutError::Disconnected) => return crowd.finish(),
        }
        if flushed.elapsed() >= FLUSH_EVERY {
            crowd.each(|exporter| exporter.flush());
            flushed = Instant::now();
        }
    }
}

/// Shows the finished log at `path` to `exporters`, from beginning to end.
///
/// Records of newer versions are stepped over; lines that are no records are counted as dropped. Fails when the file
/// cannot be read; what went wrong with an exporter is in the summary.
pub fn export_log(path: impl AsRef<Path>, exporters: Vec<Box<dyn Exporter>>) -> Result<ExportSummary, ExportError> {
    let mut crowd = Crowd::new(exporters, |_: &ExportProblem| ());
    let mut dropped = 0;
    for entry in read(path)? {
        match entry {
            Ok(LogEntry::Known(record)) => crowd.take(&record),
            Ok(LogEntry::Unknown(_)) => {}
            Err(ReadError::Malformed { .. }) => dropped += 1,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(ExportSummary { dropped, ..crowd.finish() })
}

/// About when the log at `path` was begun: when its file was last written, less the time of its last record. A log has
/// no date of its own.
pub fn log_began(path: impl AsRef<Path>) -> Result<SystemTime, ExportError> {
    let path = path.as_ref();
    let last_ns = read(path)?
        .filter_map(|entry| match entry.ok()? {
            LogEntry::Known(record) => Some(record.t_ns),
            LogEntry::Unknown(record) => Some(record.t_ns),
        })
        .max();
    let open = |source| ReadError::Open { path: path.to_owned(), source };
    let written = fs::metadata(path).and_then(|file| file.modified()).map_err(open)?;
    let lasted = Duration::from_nanos(last_ns.unwrap_or(0));
    Ok(written.checked_sub(lasted).unwrap_or(SystemTime::UNIX_EPOCH))
}

/// Exporters side by side: what happens to one is nothing to the others.
struct Crowd<F> {
    members: Vec<Box<dyn Exporter>>,
    tell: F,
    summary: ExportSummary,
}

impl<F: FnMut(&ExportProblem)> Crowd<F> {
    fn new(members: Vec<Box<dyn Exporter>>, tell: F) -> Self {
        Self { members, tell, summary: ExportSummary::default() }
    }

    fn take(&mut self, record: &Record) {
        self.each(|exporter| exporter.take(record));
        self.summary.taken += 1;
    }

    fn finish(mut self) -> ExportSummary {
        self.each(|exporter| exporter.finish());
        self.summary
    }

    fn each(&mut self, mut done: impl FnMut(&mut dyn Exporter) -> io::Result<()>) {
        for member in &mut self.members {
            let Err(error) = done(member.as_mut()) else { continue };
            let exporter = member.name();
            if self.summary.problems.iter().all(|problem| problem.exporter != exporter) {
                let problem = ExportProblem { exporter, error: error.to_string() };
                (self.tell)(&problem);
                self.summary.problems.push(problem);
            }
        }
    }
}

#[cfg(test)]
mod tests;
