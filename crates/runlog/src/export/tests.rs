//! Exporters that hang, fail or panic: what happens to the run, the log and the other exporters. Nothing may.

use std::sync::Mutex;

use tandem_events::{RunEvent, VERSION};

use super::*;
use crate::RunLog;

/// Long enough that only a deadlock outlasts it.
const PATIENCE: Duration = Duration::from_secs(60);

fn record(seq: u64) -> Record {
    Record { v: VERSION, seq, t_ns: seq, dropped: 0, event: RunEvent::Note { text: seq.to_string() } }
}

/// What an exporter was given, and how often it was finished.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<(Vec<Record>, u32)>>);

impl Exporter for Collector {
    fn name(&self) -> &'static str {
        "collector"
    }

    fn take(&mut self, record: &Record) -> io::Result<()> {
        self.0.lock().unwrap().0.push(record.clone());
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        self.0.lock().unwrap().1 += 1;
        Ok(())
    }
}

/// An exporter that does something else for every record.
struct Doing<F>(F);

impl<F: FnMut() -> io::Result<()> + Send> Exporter for Doing<F> {
    fn name(&self) -> &'static str {
        "doing"
    }

    fn take(&mut self, _: &Record) -> io::Result<()> {
        (self.0)()
    }

    fn flush(&mut self) -> io::Result<()> {
        (self.0)()
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn handing_on_returns_while_an_exporter_hangs() {
    let (entered, at_work) = sync_channel(100);
    let (go, release) = sync_channel::<()>(1);
    let hanging = Doing(move || {
        let _ = entered.try_send(());
        let _ = release.recv();
        Ok(())
    });
    let collected = Collector::default();
    let exporters = Exporters::start_with(vec![Box::new(hanging), Box::new(collected.clone())], |_| (), 2).unwrap();
    let mut listener = exporters.listener();
    listener(record(0));
    at_work.recv_timeout(PATIENCE).unwrap();
    let (done, returned) = sync_channel(1);
    let emitting = Worker::spawn("emitting", move |_| {
        (1..10).for_each(|seq| listener(record(seq)));
        done.send(()).unwrap();
    });
    // The exporter is released only after this, so a listener that waited for it would never return.
    let in_time = returned.recv_timeout(PATIENCE);
    drop(go);
    emitting.unwrap().join().unwrap();
    let summary = exporters.finish();
    in_time.expect("the listener waits for an exporter");
    assert_eq!(summary, ExportSummary { taken: 3, dropped: 7, problems: vec![] });
    let numbers: Vec<u64> = collected.0.lock().unwrap().0.iter().map(|record| record.seq).collect();
    assert_eq!(numbers, [0, 1, 2]);
}

#[test]
fn a_problem_is_reported_once_and_does_not_affect_other_exporters() {
    let failing = Doing(|| Err(io::ErrorKind::StorageFull.into()));
    let (collected, (reported, problems)) = (Collector::default(), sync_channel(100));
    let report = move |problem: &ExportProblem| reported.send(problem.to_string()).unwrap();
    let exporters = Exporters::start(vec![Box::new(failing), Box::new(collected.clone())], report).unwrap();
    (0..50).for_each({
        let mut listener = exporters.listener();
        move |seq| listener(record(seq))
    });
    let summary = exporters.finish();
    assert_eq!((summary.taken, summary.problems.len()), (50, 1));
    assert_eq!(problems.iter().collect::<Vec<_>>(), ["doing: no storage space"]);
    let collected = collected.0.lock().unwrap();
    assert_eq!((collected.0.len(), collected.1), (50, 1));
}

#[test]
fn what_was_taken_is_shown_while_the_run_goes_on() {
    let (done, shown) = sync_channel(100);
    let counting = Doing(move || {
        let _ = done.try_send(());
        Ok(())
    });
    let exporters = Exporters::start(vec![Box::new(counting)], |_| ()).unwrap();
    exporters.listener()(record(0));
    // Once for the record, then again and again although nothing follows it.
    (0..3).for_each(|_| shown.recv_timeout(PATIENCE).unwrap());
}

#[test]
fn an_exporter_that_panics_harms_nobody() {
    let exporters = Exporters::start(vec![Box::new(Doing(|| panic!("broken")))], |_| ()).unwrap();
    let mut listener = exporters.listener();
    (0..100).for_each(|seq| listener(record(seq)));
    let summary = exporters.finish();
    assert_eq!(summary.problems[0].error, "thread exporters panicked: broken");
}

#[test]
fn a_run_and_its_finished_log_show_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let live = Collector::default();
    let exporters = Exporters::start(vec![Box::new(live.clone())], |_| ()).unwrap();
    let (log, emitter) = RunLog::create_with_listener(&path, exporters.listener(), |_| ()).unwrap();
    (1..=20).for_each(|step| emitter.emit(RunEvent::Step { step, wall_ns: 1, wait_ns: 0 }));
    log.finish_with(RunEvent::RunEnded { exit_code: 0, reason: "done".into() });
    assert_eq!(exporters.finish(), ExportSummary { taken: 21, ..ExportSummary::default() });

    let later = Collector::default();
    let summary = export_log(&path, vec![Box::new(later.clone())]).unwrap();
    assert_eq!(summary, ExportSummary { taken: 21, ..ExportSummary::default() });
    assert_eq!(*live.0.lock().unwrap(), *later.0.lock().unwrap());

    let last = Duration::from_nanos(live.0.lock().unwrap().0[20].t_ns);
    let written = fs::metadata(&path).unwrap().modified().unwrap();
    assert_eq!(log_began(&path).unwrap(), written - last);
}

#[test]
fn lines_that_are_no_records_are_counted_and_newer_ones_stepped_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.jsonl");
    let known = serde_json::to_string(&record(0)).unwrap();
    let newer = r#"{"v":9,"seq":1,"t_ns":5,"dropped":0,"event":"mood"}"#;
    fs::write(&path, format!("{known}\nno record\n{newer}\n{known}\n{}", &known[..9])).unwrap();
    let summary = export_log(&path, vec![]).unwrap();
    assert_eq!(summary, ExportSummary { taken: 2, dropped: 1, problems: vec![] });
    assert!(matches!(export_log(folder.path().join("none"), vec![]), Err(ExportError::Read(_))));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_under_the_log_is_nothing_to_the_exporters() {
    let collected = Collector::default();
    let exporters = Exporters::start(vec![Box::new(collected.clone())], |_| ()).unwrap();
    let (complain_to, complaints) = std::sync::mpsc::sync_channel(1);
    let complain = move |error: &str| complain_to.send(error.to_owned()).unwrap();
    let (log, emitter) = RunLog::create_with_listener("/dev/full", exporters.listener(), complain).unwrap();
    (1..=10).for_each(|step| emitter.emit(RunEvent::Step { step, wall_ns: 1, wait_ns: 0 }));
    assert!(complaints.recv().unwrap().contains("No space left"), "reported while the log is open");
    assert_eq!(log.finish().write_error, None, "and once");
    exporters.finish();
    let steps =
        collected.0.lock().unwrap().0.iter().filter(|record| matches!(record.event, RunEvent::Step { .. })).count();
    assert_eq!(steps, 10);
}
