//! The run log against writers that stall or fail: what a real disk does too rarely to be tested with.

use std::io::{BufReader, Cursor, ErrorKind};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use super::*;
use crate::{LogEntry, Reader};

/// Long enough that only a deadlock outlasts it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A file in memory that outlives its writer.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Page {
    /// Every record, and that their numbers have no gap.
    fn records(&self) -> Vec<tandem_events::Record> {
        let bytes = self.0.lock().unwrap().clone();
        let mut reader = Reader::new(BufReader::new(Cursor::new(bytes)));
        let records: Vec<_> = reader
            .by_ref()
            .map(|entry| match entry.unwrap() {
                LogEntry::Known(record) => record,
                LogEntry::Unknown(other) => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(reader.torn_bytes(), 0);
        assert!(records.iter().enumerate().all(|(line, record)| record.seq == line as u64));
        records
    }

    fn texts(&self) -> Vec<String> {
        self.records().into_iter().map(|record| text_of(record.event)).collect()
    }
}

/// A file whose first write stalls: sends on `entered` when it begins, and continues once `release` receives or closes.
struct Stalling {
    page: Page,
    entered: SyncSender<()>,
    release: Receiver<()>,
    stalled: bool,
}

impl Write for Stalling {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !std::mem::replace(&mut self.stalled, true) {
            let _ = self.entered.try_send(());
            let _ = self.release.recv();
        }
        self.page.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn note(text: impl ToString) -> RunEvent {
    RunEvent::Note { text: text.to_string() }
}

fn text_of(event: RunEvent) -> String {
    match event {
        RunEvent::Note { text } => text,
        other => panic!("{other:?}"),
    }
}

/// A log with room for `queue_events` whose writer hangs in the middle of writing the note `first`, the page it
/// writes on, and what releases it.
fn stalled(queue_events: usize) -> (RunLog, Emitter, Page, SyncSender<()>) {
    let page = Page::default();
    let (entered, at_work) = sync_channel(1);
    let (go, release) = sync_channel(1);
    let out = Stalling { page: page.clone(), entered, release, stalled: false };
    let (log, emitter) = RunLog::start(out, queue_events, Box::new(drop), None).unwrap();
    emitter.emit(note("first"));
    at_work.recv_timeout(PATIENCE).unwrap();
    (log, emitter, page, go)
}

#[test]
fn emitting_returns_while_the_writer_hangs() {
    let (log, emitter, _page, go) = stalled(2);
    let (done, returned) = sync_channel(1);
    let emitting = Worker::spawn("emitting", move |_| {
        for i in 0..100 {
            emitter.emit(note(i));
        }
        done.send(()).unwrap();
    })
    .unwrap();
    // The writer is released only after this, so an emitter that waited for it would never return.
    let in_time = returned.recv_timeout(PATIENCE);
    go.send(()).unwrap();
    emitting.join().unwrap();
    log.finish();
    in_time.expect("emit waits for the writer");
}

#[test]
fn what_finds_the_queue_full_is_counted_in_the_next_record() {
    let (log, emitter, page, go) = stalled(3);
    for i in 0..10 {
        emitter.emit(note(i));
    }
    go.send(()).unwrap();
    let summary = log.finish_with(note("last"));
    assert_eq!(summary, LogSummary { written: 5, dropped: 7, write_error: None });
    assert_eq!(page.texts(), ["first", "0", "1", "2", "last"]);
    let counts: Vec<u64> = page.records().iter().map(|record| record.dropped).collect();
    assert_eq!(counts, [0, 7, 7, 7, 7]);
}

#[test]
fn everything_accepted_is_written_before_finish_returns() {
    let (log, emitter, page, go) = stalled(100);
    for i in 0..50 {
        emitter.emit(note(i));
    }
    go.send(()).unwrap();
    assert_eq!(log.finish(), LogSummary { written: 51, dropped: 0, write_error: None });
    assert_eq!(page.records().len(), 51);
    emitter.emit(note("after the end"));
    assert_eq!(page.records().len(), 51);
}

#[test]
fn dropping_the_log_writes_what_was_accepted() {
    let (log, emitter, page, go) = stalled(100);
    emitter.emit(note("second"));
    go.send(()).unwrap();
    drop(log);
    assert_eq!(page.texts(), ["first", "second"]);
}

#[test]
fn no_event_is_lost_uncounted_when_the_log_ends_under_busy_emitters() {
    for _ in 0..50 {
        let page = Page::default();
        let (log, emitter) = RunLog::start(page.clone(), 8, Box::new(drop), None).unwrap();
        let dropped = log.dropped.clone();
        let (busy, started) = sync_channel(2);
        let emitting = [0, 1].map(|_| {
            let (emitter, busy) = (emitter.clone(), busy.clone());
            Worker::spawn("emitting", move |stop| {
                let mut emitted = 0;
                while !stop.is_raised() {
                    emitter.emit(note(emitted));
                    emitted += 1;
                    let _ = busy.try_send(());
                }
                emitted
            })
            .unwrap()
        });
        started.recv_timeout(PATIENCE).unwrap();
        let summary = log.finish_with(note("last"));
        let emitted: u64 = emitting
            .map(|worker| {
                worker.stop();
                worker.join().unwrap()
            })
            .iter()
            .sum();
        assert_eq!(page.records().len() as u64, summary.written);
        assert_eq!(summary.written + dropped.load(Ordering::Relaxed), emitted + 1);
        assert_eq!(page.texts().last().map(String::as_str), Some("last"));
    }
}

#[test]
fn a_full_disk_is_reported_in_the_summary_when_there_is_no_listener() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (log, emitter) = RunLog::start(Full, 10_000, Box::new(drop), None).unwrap();
    // Enough to overflow what the writer keeps for a disk that may recover.
    for i in 0..2_000 {
        emitter.emit(note(format!("{i:0100}")));
    }
    let summary = log.finish();
    assert_eq!(summary.written, 0);
    assert!(summary.dropped >= 2_000, "{summary:?}");
    assert!(summary.write_error.unwrap().contains("no storage space"));
}

#[test]
fn a_writer_that_panics_harms_nobody() {
    struct Broken;
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            panic!("broken writer")
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (log, emitter) = RunLog::start(Broken, 4, Box::new(drop), None).unwrap();
    for i in 0..100 {
        emitter.emit(note(i));
    }
    let summary = log.finish();
    assert_eq!(summary.write_error.as_deref(), Some("thread run-log panicked: broken writer"));
}
