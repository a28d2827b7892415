//! The writing half of the run log: takes events from the queue, numbers them, and makes them lines.
//!
//! Runs on a thread of its own, the only one that ever waits for the disk.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use tandem_events::{Record, RunEvent, VERSION};

use crate::LogSummary;
use crate::lines::LineBuffer;

/// What the queue carries.
pub(crate) enum WriterMessage {
    /// An event that found room.
    RunEvent(PendingEvent),
    /// The last message: write what was accepted and end, this event being the last line.
    Close(Option<PendingEvent>),
}

/// An event that is not in the file yet. Wherever it is let go of before [`take`](PendingEvent::take), it counts itself
/// as dropped: refused by a full queue, left behind in a closed one, or sent to nobody.
pub(crate) struct PendingEvent {
    t_ns: u64,
    event: Option<RunEvent>,
    dropped: Arc<AtomicU64>,
}

impl PendingEvent {
    pub(crate) fn new(event: RunEvent, since: Instant, dropped: &Arc<AtomicU64>) -> Self {
        // A u64 of nanoseconds lasts 584 years.
        let t_ns = since.elapsed().as_nanos() as u64;
        Self { t_ns, event: Some(event), dropped: dropped.clone() }
    }

    fn take(mut self) -> Option<(u64, RunEvent)> {
        self.event.take().map(|event| (self.t_ns, event))
    }
}

impl Drop for PendingEvent {
    fn drop(&mut self) {
        if self.event.is_some() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Owns the receiving end and the file.
pub(crate) struct Writer<W> {
    queue: Receiver<WriterMessage>,
    lines: LineBuffer<W>,
    line: Vec<u8>,
    next_seq: u64,
    since: Instant,
    dropped: Arc<AtomicU64>,
    /// The count that the last record carried.
    reported_dropped: u64,
    listener: Listener,
    /// `None` once it was called.
    complain: Option<Complaint>,
    is_error_reported: bool,
}

/// Receives every record once it is a line, in the order of the log and also when the file takes no more. It is called
/// on the writer's thread: it must not wait, and it must not panic.
pub(crate) type Listener = Box<dyn FnMut(Record) + Send>;

/// Receives the first error of the file when it happens, on the writer's thread.
pub(crate) type Complaint = Box<dyn FnOnce(&str) + Send>;

impl<W: Write> Writer<W> {
    pub(crate) fn new(queue: Receiver<WriterMessage>, out: W, since: Instant, dropped: Arc<AtomicU64>) -> Self {
        Self {
            queue,
            lines: LineBuffer::new(out),
            line: Vec::new(),
            next_seq: 0,
            since,
            dropped,
            reported_dropped: 0,
            listener: Box::new(drop),
            complain: None,
            is_error_reported: false,
        }
    }

    /// The same with a `listener` for every record; the first file error goes to `complain`.
    pub(crate) fn with_listener(self, listener: Listener, complain: Option<Complaint>) -> Self {
        Self { listener, complain, ..self }
    }

    /// Writes until the close message, or until every sender is gone.
    pub(crate) fn run(mut self) -> LogSummary {
        let mut last = None;
        while let Some(message) = self.next_message() {
            match message {
                WriterMessage::RunEvent(event) => self.write(event),
                WriterMessage::Close(event) => {
                    last = event;
                    break;
                }
            }
        }
        self.close(last)
    }

    /// The next message. When there is none yet, what was written so far goes to the file before the wait: a reader
    /// that follows the log lags behind only while the run is busy.
    fn next_message(&mut self) -> Option<WriterMessage> {
        match self.queue.try_recv() {
            Ok(message) => Some(message),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => {
                self.lines.flush();
                self.report_error();
                self.queue.recv().ok()
            }
        }
    }

    fn close(mut self, last: Option<PendingEvent>) -> LogSummary {
        // Emitters may still be about. What they got in up to here is written; the rest counts itself as dropped.
        while let Ok(WriterMessage::RunEvent(event)) = self.queue.try_recv() {
            self.write(event);
        }
        let (_, closed) = std::sync::mpsc::sync_channel(0);
        drop(std::mem::replace(&mut self.queue, closed));

        match last {
            Some(event) => self.write(event),
            None => self.report_dropped(),
        }
        self.lines.flush();
        self.report_error();
        let dropped = self.dropped.fetch_add(self.lines.unwritten(), Ordering::Relaxed) + self.lines.unwritten();
        let written = self.lines.written();
        let write_error = self.lines.into_first_error().filter(|_| !self.is_error_reported);
        LogSummary { written, dropped, write_error }
    }

    /// Records carry the count of what was lost before them. Losses after the last one need a record of their own.
    fn report_dropped(&mut self) {
        let unreported = self.dropped.load(Ordering::Relaxed) - self.reported_dropped;
        if unreported > 0 {
            let text = format!("events dropped at the end of this log: {unreported}");
            self.write(PendingEvent::new(RunEvent::Note { text }, self.since, &self.dropped));
        }
    }

    fn write(&mut self, pending: PendingEvent) {
        let Some((t_ns, event)) = pending.take() else { return };
        let dropped = self.dropped.load(Ordering::Relaxed);
        let record = Record { v: VERSION, seq: self.next_seq, t_ns, dropped, event };
        self.line.clear();
        let made = serde_json::to_writer(&mut self.line, &record);
        self.line.push(b'\n');
        if let Err(error) = &made {
            self.lines.failed(error);
        }
        if made.is_ok() && self.lines.push(&self.line) {
            self.next_seq += 1;
            self.reported_dropped = dropped;
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.report_error();
        (self.listener)(record);
    }

    fn report_error(&mut self) {
        if let Some(error) = self.lines.first_error()
            && let Some(complain) = self.complain.take()
        {
            complain(error);
            self.is_error_reported = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn losses_that_no_record_could_carry_get_one_of_their_own() {
        let (queue, events) = sync_channel(1);
        let (since, dropped) = (Instant::now(), Arc::new(AtomicU64::new(0)));
        let mut page = Vec::new();
        let writer = Writer::new(events, &mut page, since, dropped.clone());
        queue.send(WriterMessage::Close(None)).unwrap();
        drop(PendingEvent::new(RunEvent::Note { text: "lost".into() }, since, &dropped));
        assert_eq!(writer.run(), LogSummary { written: 1, dropped: 1, write_error: None });
        let record: Record = serde_json::from_slice(&page).unwrap();
        let text = "events dropped at the end of this log: 1".into();
        assert_eq!((record.seq, record.dropped, record.event), (0, 1, RunEvent::Note { text }));
    }

    #[test]
    fn a_log_that_lost_nothing_ends_without_a_remark() {
        let (queue, events) = sync_channel(1);
        let mut page = Vec::new();
        let writer = Writer::new(events, &mut page, Instant::now(), Arc::default());
        queue.send(WriterMessage::Close(None)).unwrap();
        assert_eq!(writer.run(), LogSummary::default());
        assert!(page.is_empty());
    }
}
