//! The file through JSON's own parser: every slice where it belongs, and whole wherever it is cut.

use std::collections::BTreeMap;

use tandem_events::VERSION;

use super::*;

/// The trace of a run whose events were reported at these times, and the errors of closing it.
fn trace(reported: impl IntoIterator<Item = (u64, RunEvent)>, largest_bytes: u64) -> (Vec<u8>, Vec<io::Error>) {
    let mut trace = Trace::new(Vec::new(), largest_bytes);
    let taken =
        reported.into_iter().map(|(t_ns, event)| trace.take(&Record { v: VERSION, seq: 0, t_ns, dropped: 0, event }));
    let errors = taken.collect::<Vec<_>>().into_iter().filter_map(Result::err).collect();
    trace.finish().unwrap();
    (std::mem::take(trace.spool.file()), errors)
}

fn events_of(reported: impl IntoIterator<Item = (u64, RunEvent)>) -> Vec<Value> {
    let (file, errors) = trace(reported, u64::MAX);
    assert!(errors.is_empty(), "{errors:?}");
    serde_json::from_slice(&file).unwrap()
}

/// Name, begin and end in nanoseconds of every slice of a track, in the order of the file.
fn slices(events: &[Value], group: TrackGroup, track: &str) -> Vec<(String, u64, u64)> {
    let of_group = |event: &&Value| event["pid"] == group as u32;
    let named = |event: &&Value| event["name"] == "thread_name" && event["args"]["name"] == track;
    let number = events.iter().filter(of_group).find(named).map(|event| event["tid"].clone());
    let is_slice = |event: &&Value| event["ph"] == "X" && Some(&event["tid"]) == number.as_ref();
    let slice = |event: &Value| {
        let [begin, length] = ["ts", "dur"].map(|field| (event[field].as_f64().unwrap() * 1000.0).round() as u64);
        (event["name"].as_str().unwrap().to_owned(), begin, begin + length)
    };
    events.iter().filter(of_group).filter(is_slice).map(slice).collect()
}

fn step(step: u64, wall_ns: u64, wait_ns: u64) -> RunEvent {
    RunEvent::Step { step, wall_ns, wait_ns }
}

fn stage(stage: &str, batch: u64, ns: u64) -> RunEvent {
    RunEvent::Stage { stage: stage.into(), batch, ns, busy_ns: ns, wait_ns: 0, spans: Vec::new() }
}

fn named(name: &str, begin_ns: u64, end_ns: u64) -> (String, u64, u64) {
    (name.to_owned(), begin_ns, end_ns)
}

#[test]
fn a_step_ends_when_it_was_reported_and_begins_with_its_wait() {
    let events = events_of([(1_000_123, step(1, 1_000_000, 0)), (1_900_123, step(2, 900_000, 250_001))]);
    let expected = [
        named("step", 123, 1_000_123),
        named("step", 1_000_123, 1_900_123),
        named("waiting for a batch", 1_000_123, 1_250_124),
    ];
    assert_eq!(slices(&events, TrackGroup::Model, "steps"), expected);
    let numbers: Vec<_> =
        events.iter().filter(|event| event["ph"] == "X").map(|event| &event["args"]["step"]).collect();
    assert_eq!(numbers, [1, 2, 2]);
}

#[test]
fn steps_reported_late_or_together_keep_their_lengths_and_do_not_overlap() {
    // The third was reported together with the second, the fourth on time.
    let events =
        events_of([(100, step(1, 100, 0)), (250, step(2, 100, 0)), (250, step(3, 100, 0)), (400, step(4, 100, 0))]);
    let expected = [named("step", 0, 100), named("step", 150, 250), named("step", 250, 350), named("step", 350, 450)];
    assert_eq!(slices(&events, TrackGroup::Model, "steps"), expected);
}

#[test]
fn what_devices_did_lies_where_their_clocks_put_it() {
    let span = |began_ns, ns| TimeSpan { began_ns, ns };
    let at = |name: &str, spans: Vec<TimeSpan>| {
        let ns = spans.iter().map(|span| span.ns).max().unwrap();
        RunEvent::Stage { stage: name.into(), batch: 0, ns, busy_ns: ns, wait_ns: 0, spans }
    };
    let work = |step, began_ns, busy_ns| {
        let began_ns = Some(began_ns);
        RunEvent::StepWork { step, batch: step, batches: 1, bucket: 0, busy_ns, wait_ns: 0, began_ns }
    };
    // The devices' clock is 900 behind the log's. Everything is reported late, and at once.
    let events = events_of([
        (1000, RunEvent::DeviceClock { now_ns: 100, devices: "cuda".into() }),
        (9000, at("upload", vec![span(200, 30)])),
        (9000, at("features", vec![span(240, 60)])),
        (9000, at("transfer", vec![span(310, 20), span(340, 25)])),
        (9000, at("transfer", vec![span(330, 20), span(365, 25)])),
        (9000, work(1, 380, 100)),
        (9000, step(1, 150, 40)),
        (9000, work(2, 485, 90)),
        (9000, step(2, 95, 3)),
    ]);
    let check =
        |group, track: &str, expected: &[(String, u64, u64)]| assert_eq!(slices(&events, group, track), expected);
    check(TrackGroup::Data, "upload", &[named("upload", 1100, 1130)]);
    check(TrackGroup::Data, "features", &[named("features", 1140, 1200)]);
    check(TrackGroup::Links, "transfer to the host", &[named("transfer", 1210, 1230), named("transfer", 1230, 1250)]);
    check(TrackGroup::Links, "transfer from the host", &[named("transfer", 1240, 1265), named("transfer", 1265, 1290)]);
    let expected = [
        named("step", 1230, 1380),
        named("waiting for a batch", 1240, 1280),
        named("work", 1280, 1380),
        named("step", 1380, 1475),
        named("waiting for a batch", 1382, 1385),
        named("work", 1385, 1475),
    ];
    check(TrackGroup::Model, "steps", &expected);
}

#[test]
fn batches_that_are_loaded_at_once_lie_side_by_side() {
    let loads = [(100, stage("load", 0, 90)), (120, stage("load", 1, 100)), (130, stage("load", 2, 20))];
    let events = events_of(loads);
    assert_eq!(slices(&events, TrackGroup::Data, "load"), [named("load", 10, 100), named("load", 110, 130)]);
    assert_eq!(slices(&events, TrackGroup::Data, "load 2"), [named("load", 20, 120)]);
}

#[test]
fn everything_has_its_track() {
    let reserved =
        RunEvent::ArenaReserved { role: Role::Data, card: 3, bytes: 1, limit_bytes: 64 << 20, driver_bytes: 0 };
    let memory = |role| RunEvent::Memory { role, card: 0, used_bytes: 3 << 19, limit_bytes: 9, peak_bytes: 9 };
    let transfer = RunEvent::Transfer { route: "pe\"er".into(), from: 0, to: 1, bytes: 7, ns: 5 };
    let metrics: BTreeMap<_, _> = [("mel".to_owned(), None)].into();
    let sample = RunEvent::SampleWritten { step: 9, path: "samples/a.wav".into(), seconds: 1.0, ns: 30 };
    let events = events_of([
        (1, reserved),
        (10, stage("upload", 0, 4)),
        (11, stage("features", 0, 4)),
        (12, stage("transfer", 0, 4)),
        (13, transfer),
        (14, memory(Role::Data)),
        (14, memory(Role::Model)),
        (15, RunEvent::ProcessMemory { card: 1, bytes: 5 << 20, limit_bytes: 6 }),
        (60, RunEvent::Validation { step: 9, utterances: 1, metrics }),
        (70, RunEvent::Checkpoint { step: 9, bytes: 1, ns: 9 }),
        (99, sample),
        (99, RunEvent::Note { text: "a\nb".into() }),
    ]);
    let check = |group, track, slice| assert_eq!(slices(&events, group, track), [slice], "{track}");
    check(TrackGroup::Data, "upload", named("upload", 6, 10));
    check(TrackGroup::Data, "features", named("features", 7, 11));
    check(TrackGroup::Links, "transfer", named("transfer", 8, 12));
    check(TrackGroup::Links, "pe\"er 0 to 1", named("transfer", 8, 13));
    check(TrackGroup::Model, "checkpoints", named("checkpoint", 61, 70));
    check(TrackGroup::Host, "samples", named("sample", 69, 99));
    let names: Vec<_> =
        events.iter().filter(|event| event["name"] == "process_name").map(|event| &event["args"]["name"]).collect();
    assert_eq!(names, ["data role, card 3, limit 64 MB", "links", "model role", "host"]);
    let counters: Vec<_> =
        events.iter().filter(|event| event["ph"] == "C").map(|event| (&event["name"], &event["args"]["MB"])).collect();
    let expected =
        [("memory of the data role", 1.5), ("memory of the model role", 1.5), ("memory of the process on card 1", 5.0)];
    assert_eq!(counters.len(), 3);
    assert!(
        counters.iter().zip(expected).all(|(counter, (name, mb))| counter.0 == name && *counter.1 == mb),
        "{counters:?}"
    );
    let moments: Vec<_> = events.iter().filter(|event| event["ph"] == "i").map(|event| &event["name"]).collect();
    assert_eq!(moments, ["validation", "note"]);
}

/// A run as a busy feed tells it: late, in bursts, several loads at once. Deterministic.
fn busy_run() -> Vec<(u64, RunEvent)> {
    let mut draw = 1_u64;
    let mut below = move |bound: u64| {
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (draw >> 33) % bound
    };
    let mut reported = Vec::new();
    let mut t_ns = 1_000_000;
    for number in 0..300 {
        let wall_ns = 50_000 + below(50_000);
        t_ns += wall_ns;
        let late_ns = below(3) * below(100_000);
        reported.push((t_ns + late_ns, step(number + 1, wall_ns, below(wall_ns))));
        for (name, longest_ns) in [("load", 400_000), ("upload", 9_000), ("features", 30_000), ("transfer", 20_000)] {
            reported.push((t_ns + below(200_000), stage(name, number, below(longest_ns))));
        }
        let role = Role::BOTH[below(2) as usize];
        reported.push((
            t_ns + below(9_000),
            RunEvent::Memory { role, card: 0, used_bytes: 1, limit_bytes: 1, peak_bytes: 1 },
        ));
    }
    reported
}

#[test]
fn slices_of_a_track_nest_and_never_overlap_and_times_go_forward() {
    let events = events_of(busy_run());
    let mut tracks: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for event in events.iter().filter(|event| event["ph"] != "M") {
        let track = if event["ph"] == "C" { &event["name"] } else { &event["tid"] };
        tracks.entry(format!("{} {track}", event["pid"])).or_default().push(event);
    }
    assert!(tracks.len() >= 7, "{:?}", tracks.keys());
    let ns = |event: &Value, field: &str| (event[field].as_f64().unwrap_or(0.0) * 1000.0).round() as u64;
    for (track, events) in tracks {
        assert!(events.is_sorted_by_key(|event| ns(event, "ts")), "{track}");
        let mut open: Vec<u64> = Vec::new();
        for event in events.into_iter().filter(|event| event["ph"] == "X") {
            let (begin, end) = (ns(event, "ts"), ns(event, "ts") + ns(event, "dur"));
            open.retain(|&outer| outer > begin);
            assert!(open.iter().all(|&outer| end <= outer), "{track}: {event} reaches over the end of its neighbour");
            open.push(end);
        }
    }
    let steps = busy_run().into_iter().filter_map(|(_, event)| match event {
        RunEvent::Step { wall_ns, .. } => Some(wall_ns),
        _ => None,
    });
    let shown = slices(&events, TrackGroup::Model, "steps").into_iter().filter(|slice| slice.0 == "step");
    assert!(shown.map(|(_, begin, end)| end - begin).eq(steps));
}

#[test]
fn wherever_it_is_cut_only_the_cut_line_is_lost() {
    let (file, _) = trace(busy_run().into_iter().take(40), u64::MAX);
    let whole = serde_json::from_slice::<Vec<Value>>(&file).unwrap().len();
    let lines = file.iter().filter(|&&byte| byte == b'\n').count();
    assert_eq!(lines, whole + 2, "one event per line, and the brackets");
    for cut in 2..file.len() - 2 {
        let end = file[..cut].iter().rposition(|&byte| byte == b'\n').unwrap();
        let mended = [&file[..=end], b"]"].concat();
        let events: Vec<Value> = serde_json::from_slice(&mended).unwrap();
        assert_eq!(events.len(), file[..=end].iter().filter(|&&byte| byte == b'\n').count() - 1);
    }
}

#[test]
fn a_run_without_events_is_an_empty_trace() {
    assert_eq!(events_of([]), Vec::<Value>::new());
}

#[test]
fn a_trace_that_is_full_is_closed_and_says_so_once() {
    let (file, errors) = trace(busy_run(), 10_000);
    assert!(file.len() <= 10_002);
    assert!(!serde_json::from_slice::<Vec<Value>>(&file).unwrap().is_empty());
    assert_eq!(errors.len(), 1, "{errors:?}");
}
