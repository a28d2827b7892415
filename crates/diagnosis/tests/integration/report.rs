//! The report of a diagnosis, and jitter warnings.

use tandem_diagnosis::{Diagnosis, DiagnosisError, Jitter, JitterWarning, Stage, StepPart, VerdictKind};
use tandem_events::{Record, Role, RunEvent, VERSION};
use tandem_runlog::{LogEntry, Reader};

use crate::simulator::SimPipeline;

fn records(events: impl IntoIterator<Item = (u64, RunEvent)>) -> Vec<Record> {
    let record = |(seq, (t_ns, event))| Record { v: VERSION, seq: seq as u64, t_ns, dropped: 0, event };
    events.into_iter().enumerate().map(record).collect()
}

/// The jitter warnings of a log.
fn warnings(records: &[Record]) -> Vec<JitterWarning> {
    let mut jitter = Jitter::default();
    records.iter().filter_map(|record| jitter.observe(record)).collect()
}

/// Steps of 10 ms plus `slow(step)`; the event of `after(step)` follows each.
fn steps(count: u64, slow: impl Fn(u64) -> u64, after: impl Fn(u64) -> Option<RunEvent>) -> Vec<Record> {
    let mut t_ns = 0;
    let mut events = Vec::new();
    for step in 1..=count {
        let wall_ns = 10_000_000 + slow(step);
        t_ns += wall_ns;
        events.push((t_ns, RunEvent::Step { step, wall_ns, wait_ns: 0 }));
        events.extend(after(step).map(|event| (t_ns, event)));
    }
    records(events)
}

#[test]
fn a_good_pipeline_has_no_bottleneck() {
    let line = SimPipeline { features_ms: 0.3, upload_ms: 0.1, ..SimPipeline::quick(10.0) };
    let report = Diagnosis::of(&line.run(1, 105)).unwrap().lines();
    assert!(report.contains(&"✅ NO MAJOR BOTTLENECKS DETECTED".to_owned()), "{report:#?}");
    let tier = "Tier: excellent (data: 3 % busy, never waited for; model: 100 % busy; variation 0 %)";
    assert_eq!(report.last().unwrap(), tier);
    assert!(report[0].contains(" steps/s over 100 steps; model-only throughput "), "{}", report[0]);
}

#[test]
fn a_slow_decoder_is_reported_with_the_flag_to_type() {
    let line = SimPipeline { load_ms: 116.0, threads: 4, ..SimPipeline::quick(10.0) };
    let report = Diagnosis::of(&line.run(1, 300)).unwrap().lines();
    let verdict = report.iter().find(|line| line.starts_with("DATA_LOADING: ")).unwrap();
    let begin = "DATA_LOADING: 66 % of the step waits for read and decode. Try --num-workers 15: ";
    assert!(verdict.starts_with(begin), "{verdict}");
    assert!(verdict.ends_with(" steps/s predicted"), "{verdict}");
    assert!(!report.iter().any(|line| line.contains("NO MAJOR")));
}

/// As measured on an H200: features of 5.9 ms and steps of 2.8 ms overlap, and the step is busy all the time.
#[test]
fn a_step_that_features_on_its_card_slow_down_waits_for_them() {
    let check = |features_ms: u64, wall_ms: u64, expected: bool| {
        let [features_ns, wall_ns, alone_ns] = [features_ms, wall_ms, 280].map(|ms| ms * 10_000);
        let arena = |role| (0, RunEvent::ArenaReserved { role, card: 0, bytes: 1, limit_bytes: 2, driver_bytes: 1 });
        let mut events: Vec<(u64, RunEvent)> = Role::BOTH.map(arena).into();
        events.push((0, RunEvent::ModelOnly { bucket: 0, ns: alone_ns }));
        for step in 1..=60 {
            let (t_ns, batch, stage) = (step * wall_ns, step - 1, "features".to_owned());
            events.push((
                t_ns,
                RunEvent::Stage { stage, batch, ns: features_ns, busy_ns: features_ns, wait_ns: 0, spans: Vec::new() },
            ));
            let busy_ns = wall_ns;
            events.push((
                t_ns,
                RunEvent::StepWork { step, batch, batches: 1, bucket: 0, busy_ns, wait_ns: 0, began_ns: None },
            ));
            events.push((t_ns, RunEvent::Step { step, wall_ns, wait_ns: 0 }));
        }
        let report = Diagnosis::of(&records(events)).unwrap().lines();
        assert_eq!(report.iter().any(|line| line.starts_with("GPU_PREPROCESS: ")), expected, "{report:#?}");
    };
    // In hundredths of a millisecond.
    check(590, 600, true);
    check(20, 290, false);
}

/// A step of 100 ms waits for 216 ms of decoding by one thread, on two cores that do 316 ms of work in a step.
#[test]
fn more_threads_are_not_advised_if_all_cores_are_busy() {
    let ms = 1_000_000;
    let log = |devices: &str, with_host_work: bool| {
        let feed =
            RunEvent::FeedSetting { threads: 1, cores: 2, buffer_size: 4, prefetch: 2, route: "handover".into() };
        let mut events = vec![(0, RunEvent::DeviceClock { now_ns: 0, devices: devices.into() }), (0, feed)];
        for step in 1..=60_u64 {
            let (t_ns, batch) = (step * 216 * ms, step - 1);
            for (stage, ns) in [("load", 216 * ms), ("features", 60 * ms)] {
                let (stage, spans) = (stage.to_owned(), Vec::new());
                events.push((t_ns, RunEvent::Stage { stage, batch, ns, busy_ns: ns, wait_ns: 0, spans }));
            }
            let (busy_ns, wait_ns) = (100 * ms, 116 * ms);
            events.push((
                t_ns,
                RunEvent::StepWork { step, batch, batches: 1, bucket: 0, busy_ns, wait_ns, began_ns: None },
            ));
            events.push((t_ns, RunEvent::Step { step, wall_ns: 216 * ms, wait_ns }));
            if with_host_work && step % 10 == 0 {
                events.push((t_ns, RunEvent::CpuTime { cpu_ns: step * 316 * ms }));
            }
        }
        Diagnosis::of(&records(events)).unwrap()
    };
    let advice = |diagnosis: &Diagnosis| {
        let verdict = diagnosis.verdicts.iter().find(|verdict| verdict.kind == VerdictKind::DataLoading).unwrap();
        verdict.advice.map(|advice| (advice.change.to_string(), advice.steps_per_s.round()))
    };
    // Without CPU times: a second thread halves the decoding time.
    assert_eq!(advice(&log("cpu", false)), Some(("--num-workers 2".to_owned(), 9.0)));
    // Both cores are busy for 158 ms per step, with any number of threads; without decoding, the step of 100 ms is the slowest.
    assert_eq!(advice(&log("cpu", true)), Some(("--cache memory".to_owned(), 10.0)));
}

#[test]
fn the_waits_by_stage_add_up() {
    let line = SimPipeline { load_ms: 120.0, transfer_ms: 18.0, cv: 0.15, ..SimPipeline::quick(10.0) };
    let stalls = Diagnosis::of(&line.run(1, 300)).unwrap().stalls;
    for step in &stalls.steps {
        assert!((step.by_stage_ns.iter().sum::<f64>() - step.wait_ns).abs() < 1.0, "{step:?}");
    }
    assert!((stalls.stages.iter().map(|stall| stall.share).sum::<f64>() - stalls.share).abs() < 1e-9);
    let by_share = stalls.stages.map(|stall| stall.share);
    assert!(by_share[Stage::Load as usize] > by_share[Stage::Transfer as usize], "{by_share:?}");
}

#[test]
fn the_slowest_of_several_ranks_has_a_line_after_the_verdicts() {
    let check = |waited_ms: Option<[u64; 3]>, expected: Option<&str>| {
        let waits = |step| Some(RunEvent::RankWaits { step, waited_ns: waited_ms?.map(|ms| ms * 1_000_000).into() });
        let report = Diagnosis::of(&steps(60, |_| 0, waits)).unwrap().lines();
        let found = report.iter().position(|line| line.starts_with("Ranks: "));
        assert_eq!(found.map(|at| report[at].as_str()), expected, "{report:#?}");
        assert!(found.is_none_or(|at| report[at + 1].starts_with("Tier: ")), "{report:#?}");
    };
    check(Some([2, 0, 3]), Some("Ranks: 3; rank 1 is the slowest: the others wait for it 25 % of each step"));
    check(Some([1, 1, 1]), Some("Ranks: 3; they wait for each other 10 % of each step"));
    check(None, None);
}

#[test]
fn a_log_without_steps_is_refused() {
    assert_eq!(Diagnosis::of(&[]), Err(DiagnosisError::NoTiming { warm_up: 5 }));
    assert!(Diagnosis::of(&steps(5, |_| 0, |_| None)).is_err());
    assert!(Diagnosis::of(&steps(6, |_| 0, |_| None)).is_ok());
}

#[test]
fn a_log_of_an_earlier_version_is_diagnosed() {
    let step = |i: u64| {
        let t_ns = i * 20_000_000;
        format!(
            r#"{{"v":1,"seq":{},"t_ns":{t_ns},"dropped":0,"event":"stage","stage":"load","batch":{},"ns":60000000,"busy_ns":60000000,"wait_ns":15000000}}
{{"v":1,"seq":{},"t_ns":{t_ns},"dropped":0,"event":"step","step":{i},"wall_ns":20000000,"wait_ns":10000000}}
"#,
            2 * i,
            i - 1,
            2 * i + 1
        )
    };
    let text: String = (1..=100).map(step).collect();
    let records: Vec<Record> = Reader::new(text.as_bytes())
        .filter_map(|entry| match entry.unwrap() {
            LogEntry::Known(record) => Some(record),
            LogEntry::Unknown(_) => None,
        })
        .collect();
    let report = Diagnosis::of(&records).unwrap().lines();
    // The decoding work fills three threads in the time of a step; eight have a quarter to spare.
    let line = "DATA_LOADING: 50 % of the step waits for read and decode. Try --num-workers 8: 100.0 steps/s predicted";
    assert!(report.contains(&line.to_owned()), "{report:#?}");
}

#[test]
fn validations_samples_and_checkpoints_are_no_jitter() {
    let every_20 = |step: u64| step.is_multiple_of(20);
    let validated = |step| RunEvent::Validation { step, utterances: 1, metrics: [].into() };
    let checkpoint = |step| RunEvent::Checkpoint { step, bytes: 1, ns: 1 };
    let sample = |step| RunEvent::SampleWritten { step, path: String::new(), seconds: 1.0, ns: 1 };
    let check = |event: &dyn Fn(u64) -> RunEvent| {
        // The pause is part of the time of the next step.
        let log =
            steps(400, |step| 300_000_000 * u64::from(every_20(step - 1)), |step| every_20(step).then(|| event(step)));
        assert_eq!(warnings(&log), []);
        assert!(Diagnosis::of(&log).unwrap().jitter.variation < 0.01);
    };
    check(&validated);
    check(&checkpoint);
    check(&sample);
    let unexplained = steps(400, |step| 300_000_000 * u64::from(every_20(step - 1)), |_| None);
    assert_eq!(warnings(&unexplained).len(), 1, "without the records it is jitter");
}

/// 100 steps an epoch. While the cache fills, every second step waits for decoding.
#[test]
fn a_cache_that_fills_is_no_jitter() {
    let metrics = |step: u64| RunEvent::StepMetrics {
        step,
        epoch: (step - 1) / 100,
        losses: [].into(),
        gradient_norm: None,
        lr: 1e-3,
        skipped: false,
    };
    let check = |cached_from_epoch, slow_epoch: u64, expected: usize| {
        let is_slow = |step: u64| (step - 1) / 100 == slow_epoch && step.is_multiple_of(2);
        let mut log = records([(0, RunEvent::BufferWait { ready: 4, of: 4, ns: 1, cached_from_epoch })]);
        log.extend(steps(300, |step| 20_000_000 * u64::from(is_slow(step)), |step| Some(metrics(step))));
        assert_eq!(warnings(&log).len(), expected, "{cached_from_epoch:?}, epoch {slow_epoch}");
    };
    check(Some(1), 0, 0);
    check(Some(1), 1, 1);
    check(None, 0, 1);
}

#[test]
fn a_long_sample_covers_the_steps_during_it() {
    // Synthesised during steps 200 to 209, logged at the end of them.
    let during = |step: u64| (200..210).contains(&step);
    let sample = RunEvent::SampleWritten { step: 190, path: String::new(), seconds: 1.0, ns: 10 * 40_000_000 };
    let log = steps(400, |step| 30_000_000 * u64::from(during(step)), |step| (step == 209).then(|| sample.clone()));
    assert!(Diagnosis::of(&log).unwrap().jitter.variation < 0.01);
}

#[test]
fn jitter_raises_one_warning_that_names_the_stage() {
    let line = SimPipeline { burst: Some((40, 90.0)), load_ms: 10.0, ahead: 3, cv: 0.05, ..SimPipeline::quick(10.0) };
    let warnings = warnings(&line.run(3, 600));
    let [JitterWarning(window)] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert_eq!(window.varies, StepPart::Waiting(Stage::Load));
    assert!(window.variation > 0.30 && window.step_ns.count <= 100);
    let message = warnings[0].to_string();
    assert!(message.starts_with("step time varies by ") && message.ends_with(": load varies most"), "{message}");
}

#[test]
fn long_and_short_buckets_are_no_jitter() {
    let line = SimPipeline::quick(10.0);
    let log = line.run(1, 300);
    assert_eq!(warnings(&log), []);
    let mut jitter = Jitter::default();
    assert_eq!(jitter.window(), None);
    assert!(log.iter().all(|record| jitter.observe(record).is_none()));
    let window = jitter.window().unwrap();
    assert!(window.step_ns.variation() > 0.2 && window.variation < 0.01, "{window:?}");
    assert_eq!((window.step, window.step_ns.count, window.varies), (300, 100, StepPart::Train));
}
