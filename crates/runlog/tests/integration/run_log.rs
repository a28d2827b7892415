//! The run log through its public door, on real files.

use std::path::{Path, PathBuf};

use tandem_events::{Record, Role, RunEvent, TimeSpan, VERSION};
use tandem_pipeline::Worker;
use tandem_runlog::{LogEntry, LogError, LogSummary, ReadError, RunLog, read};

/// A file of its own for each test, in cargo's folder for such.
fn place(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.jsonl"))
}

fn records(path: &Path) -> Vec<Record> {
    read(path)
        .unwrap()
        .map(|entry| match entry.unwrap() {
            LogEntry::Known(record) => record,
            LogEntry::Unknown(other) => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn every_event_reads_back_as_it_was_emitted() {
    let emitted = vec![
        RunEvent::RunStarted {
            command: "validate".into(),
            version: "0.1.0".into(),
            plan_json: Some("{\n  \"mode\": \"dual\"\n}".into()),
        },
        RunEvent::TrainingSet { utterances: 1092, ids: vec!["a0001".into(), "ب \"2\"".into()] },
        RunEvent::DeviceClock { now_ns: 12, devices: "cuda".into() },
        RunEvent::ArenaReserved { role: Role::Data, card: 0, bytes: 1, limit_bytes: 3, driver_bytes: 2 },
        RunEvent::Memory { role: Role::Model, card: 1, used_bytes: 1, limit_bytes: u64::MAX, peak_bytes: 2 },
        RunEvent::MemoryOwners { role: Role::Data, owners: [("slots".to_owned(), 7), ("driver".to_owned(), 0)].into() },
        RunEvent::HostMemory { bytes: 3, accounted_bytes: 1, pinned_bytes: 1, limit_bytes: u64::MAX },
        RunEvent::ProcessMemory { card: 1, bytes: 5, limit_bytes: 6 },
        RunEvent::Refused {
            role: Role::Data,
            asked_bytes: 1,
            limit_bytes: 9,
            in_use_bytes: 9,
            owner: "slot \"7\"\r\n🎯\u{0}".into(),
        },
        RunEvent::Transfer { route: "peer".into(), from: 0, to: 1, bytes: 7 << 20, ns: 131_000 },
        RunEvent::BufferWait { ready: 3, of: 12, ns: 2_000_000_000, cached_from_epoch: Some(1) },
        RunEvent::Step { step: 1, wall_ns: 2, wait_ns: 1 },
        RunEvent::RankWaits { step: 1, waited_ns: vec![2_100_000, 0, u64::MAX] },
        RunEvent::StepWork { step: 1, batch: 0, batches: 1, bucket: 2, busy_ns: 1, wait_ns: 1, began_ns: Some(7) },
        RunEvent::CpuTime { cpu_ns: 9 },
        RunEvent::ModelOnly { bucket: 2, ns: 1 },
        RunEvent::FeedSetting { threads: 4, cores: 8, buffer_size: 12, prefetch: 3, route: "bounce".into() },
        RunEvent::StepMetrics {
            step: 1,
            epoch: 0,
            losses: [("loss".to_owned(), Some(f64::from(0.1_f32))), ("mel".to_owned(), None)].into(),
            gradient_norm: None,
            lr: 1e-3 / 3.0,
            skipped: true,
        },
        RunEvent::Validation { step: 9, utterances: 64, metrics: [("mel".to_owned(), Some(0.249))].into() },
        RunEvent::Checkpoint { step: 9, bytes: 35 << 20, ns: 1 },
        RunEvent::SampleWritten { step: 9, path: "samples/step-00000009-a.wav".into(), seconds: 2.5, ns: 7 },
        RunEvent::Stage {
            stage: "load".into(),
            batch: 0,
            ns: 3,
            busy_ns: 5,
            wait_ns: 1,
            spans: vec![TimeSpan { began_ns: 8, ns: 3 }],
        },
        RunEvent::Check { number: 4, name: "transfer".into(), passed: true, detail: String::new() },
        RunEvent::LimitExceeded { card: 0, bytes: 2, limit_bytes: 1 },
        RunEvent::Note { text: "so far".into() },
        RunEvent::RunEnded { exit_code: 143, reason: "terminated".into() },
    ];
    // Names of version 1 are read and never written.
    let old_names = ["process", "host_work", "headspace", "learned", "validated", "breach"];
    assert_eq!(emitted.len() + old_names.len(), RunEvent::KINDS.len(), "one of each kind");

    let path = place("every_event");
    let (log, emitter) = RunLog::create(&path).unwrap();
    emitted.iter().cloned().for_each(|event| emitter.emit(event));
    assert_eq!(log.finish(), LogSummary { written: emitted.len() as u64, dropped: 0, write_error: None });

    let read = records(&path);
    assert!(read.iter().all(|record| (record.v, record.dropped) == (VERSION, 0)));
    assert!(read.iter().enumerate().all(|(line, record)| record.seq == line as u64));
    assert!(read.is_sorted_by_key(|record| record.t_ns), "one thread emits in order");
    assert_eq!(read.into_iter().map(|record| record.event).collect::<Vec<_>>(), emitted);
}

#[test]
fn threads_share_a_log_and_each_keeps_its_order() {
    const THREADS: u64 = 4;
    const EACH: u64 = 1_000;
    let path = place("threads");
    let (log, emitter) = RunLog::create(&path).unwrap();
    let emitting: Vec<Worker> = (0..THREADS)
        .map(|thread| {
            let emitter = emitter.clone();
            let emit = move |i| emitter.emit(RunEvent::Step { step: thread, wall_ns: i, wait_ns: 0 });
            Worker::spawn(format!("emit-{thread}"), move |_| (0..EACH).for_each(emit)).unwrap()
        })
        .collect();
    for worker in emitting {
        worker.join().unwrap();
    }
    // The queue has room for all of them, so none may be missing.
    assert_eq!(log.finish(), LogSummary { written: THREADS * EACH, dropped: 0, write_error: None });

    let mut next = [0; THREADS as usize];
    for (line, record) in records(&path).into_iter().enumerate() {
        assert_eq!(record.seq, line as u64);
        let RunEvent::Step { step, wall_ns, .. } = record.event else { panic!("{record:?}") };
        assert_eq!(wall_ns, next[step as usize]);
        next[step as usize] += 1;
    }
    assert_eq!(next, [EACH; THREADS as usize]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_stops_nobody() {
    let (log, emitter) = RunLog::create("/dev/full").unwrap();
    for step in 0..100 {
        emitter.emit(RunEvent::Step { step, wall_ns: 0, wait_ns: 0 });
    }
    let summary = log.finish();
    assert_eq!(summary.written, 0);
    assert!(summary.dropped >= 100, "{summary:?}");
    assert!(summary.write_error.is_some_and(|error| error.contains("No space left")));
}

#[test]
fn a_log_that_cannot_be_made_or_read_says_where() {
    let path = place("no such folder").join("run.jsonl");
    let made = RunLog::create(&path).unwrap_err();
    assert!(matches!(made, LogError::Create { .. }) && made.to_string().contains("no such folder"), "{made}");
    let opened = read(&path).unwrap_err();
    assert!(matches!(opened, ReadError::Open { .. }) && opened.to_string().contains("no such folder"), "{opened}");
}
