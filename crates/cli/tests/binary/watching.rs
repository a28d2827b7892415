//! Monitoring of a run: device times and memory in the log, one warning for each leak with its owner, none in a clean run.
//! Stalled readers never block or end a run.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

use rustix::fs::OFlags;
use rustix::pipe::fcntl_setpipe_size;
use serde_json::Value;

use crate::command::{Ran, TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::eight_tones;

fn command(flags: &str, corpus: &TempFolder) -> TandemCommand {
    let batch = if flags.contains("--batch-size") { "" } else { "--batch-size 1" };
    let line = format!("train --model-size nano {batch} --buffer-size 4 --num-workers 1 {flags}");
    TandemCommand::new(&line).arg("--train-data").arg(corpus.path("")).arg("--checkpoint-dir").arg(corpus.path("run"))
}

/// The log of a run.
fn records(corpus: &TempFolder) -> Vec<Value> {
    let log = fs::read_to_string(corpus.path("run/run.jsonl")).unwrap();
    log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The notes of the log, each with the last step before it.
fn notes(corpus: &TempFolder) -> Vec<(u64, String)> {
    let (mut step, mut notes) = (0, Vec::new());
    for record in records(corpus) {
        match record["event"].as_str().unwrap() {
            "step" => step = record["step"].as_u64().unwrap(),
            "note" => notes.push((step, record["text"].as_str().unwrap().to_owned())),
            _ => {}
        }
    }
    notes
}

#[test]
fn the_log_has_device_times_and_the_owners_of_memory() {
    for (mode, route, copies) in [
        ("--mode cpu", "handover", 0),
        ("--sim 2x24GiB --data-gpu 0 --model-gpu 1 --transfer bounce", "bounce", 2),
        ("--sim 2x24GiB,nvlink --data-gpu 0 --model-gpu 1 --grad-accum 2 --batch-size 2", "peer", 1),
    ] {
        let corpus = eight_tones();
        let ran = command(&format!("{mode} --max-steps 20"), &corpus).run();
        assert_eq!(ran.code, 0, "{mode}: {ran:?}");
        let records = records(&corpus);
        let of_kind = |kind: &str| records.iter().filter(|record| record["event"] == kind).collect::<Vec<_>>();
        let number =
            |record: &Value, field: &str| record[field].as_u64().unwrap_or_else(|| panic!("{field}: {record}"));

        assert_eq!(of_kind("feed_setting")[0]["route"], route, "{mode}");
        let (works, steps) = (of_kind("step_work"), of_kind("step"));
        assert_eq!((works.len(), steps.len()), (20, 20), "{mode}");
        let batches = if mode.contains("--grad-accum 2") { 2 } else { 1 };
        for (i, (work, step)) in works.iter().zip(steps).enumerate() {
            assert_eq!((&work["step"], &work["wait_ns"]), (&step["step"], &step["wait_ns"]), "{mode}");
            assert_eq!([number(work, "batch"), number(work, "batches")], [batches * i as u64, batches], "{mode}");
            assert!(number(work, "busy_ns") > 0, "{work}");
            assert!(number(work, "busy_ns") + number(work, "wait_ns") <= number(step, "wall_ns"), "{work} {step}");
        }
        let transfers: Vec<_> = of_kind("stage").into_iter().filter(|stage| stage["stage"] == "transfer").collect();
        assert_eq!(transfers.is_empty(), copies == 0, "{mode}");
        for stage in transfers {
            let (ns, busy_ns) = (number(stage, "ns"), number(stage, "busy_ns"));
            assert!(0 < ns && ns * copies >= busy_ns && busy_ns > ns * (copies - 1), "{stage}");
        }

        // Every ten of 20 steps, for two roles.
        let (memory, owners) = (of_kind("memory"), of_kind("memory_owners"));
        assert_eq!((memory.len(), owners.len()), (4, 4), "{mode}");
        for (memory, owners) in memory.iter().zip(owners) {
            let sum: u64 = owners["owners"].as_object().unwrap().values().map(|bytes| bytes.as_u64().unwrap()).sum();
            assert_eq!((&memory["role"], number(memory, "used_bytes")), (&owners["role"], sum), "{mode}");
        }
        let host = of_kind("host_memory");
        assert_eq!(host.len(), 2, "{mode}");
        for host in host {
            let of = ["pinned_bytes", "accounted_bytes", "bytes", "limit_bytes"].map(|field| number(host, field));
            assert!(0 < of[0] && of.is_sorted(), "{host}");
        }
    }
}

/// Trains with a leak of `mib` in 100 steps in `pool`. Within 500 steps there is one warning, which names `owner`.
fn check(pool: &str, mib: u32, mode: &str, owner: &str) {
    let corpus = eight_tones();
    let ran = command(&format!("{mode} --max-steps 500"), &corpus)
        .env("TANDEM_FAULT", format!("leak:{pool}:{mib}MiB/100"))
        .run();
    assert_eq!(ran.code, 0, "{pool}: {ran:?}");
    let grows = format!("memory leak in {owner}: ");
    let warnings: Vec<&str> = ran.err.lines().filter(|line| line.contains("memory leak in ")).collect();
    assert_eq!(warnings.len(), 1, "{pool}: {ran:?}");
    contains(warnings[0], &["⚠️ ", &grows, " MB per 100 steps", "reaches the limit of ", " MB in "]);
    let rate: f64 = warnings[0].split(&grows).nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    assert!((0.75..1.25).contains(&(rate / f64::from(mib))), "{pool}: {}", warnings[0]);
    let noted: Vec<(u64, String)> =
        notes(&corpus).into_iter().filter(|(_, text)| text.starts_with("memory leak in")).collect();
    let [(step, text)] = noted.as_slice() else { panic!("{pool}: {noted:?}") };
    assert!(*step <= 500 && warnings[0].contains(text), "{pool}: step {step}, {text}");
}

#[test]
fn a_leak_in_the_data_role_is_named() {
    check("data", 1, "--mode cpu", "data role (injected leak)");
}

#[test]
fn a_leak_in_the_model_role_is_named() {
    check("model", 1, "--mode cpu", "model role (injected leak)");
}

#[test]
fn a_leak_of_page_locked_memory_is_named() {
    check("pinned", 1, "--mode cpu", "host process (pinned memory)");
}

#[test]
fn a_leak_in_the_process_itself_is_named() {
    // More than what the allocator holds back for itself, which counts as the process's too.
    check("host", 8, "--mode cpu", "host process");
}

#[test]
fn a_run_without_a_leak_has_no_memory_warning() {
    let corpus = eight_tones();
    let ran = command("--mode cpu --max-steps 450 -q", &corpus).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(!ran.both().contains("memory of") && !ran.out.contains("[Step "), "{ran:?}");
    assert!(notes(&corpus).iter().all(|(_, text)| !text.starts_with("memory leak in")));
}

/// Start and end of each batch's slice on a track of `group`, in microseconds. Step N has batch N − 1.
fn slices(trace: &[Value], group: &str, track: &str, name: &str) -> BTreeMap<u64, (f64, f64)> {
    let named = |kind: &str, name: &str| {
        let name = name.to_owned();
        let is_it = move |event: &&Value| event["args"]["name"].as_str().is_some_and(|found| found.starts_with(&name));
        trace.iter().filter(|event| event["name"] == kind).filter(is_it).cloned().collect::<Vec<_>>()
    };
    let groups: Vec<Value> = named("process_name", group).into_iter().map(|event| event["pid"].clone()).collect();
    let tracks = named("thread_name", track);
    let track = tracks.iter().find(|event| groups.contains(&event["pid"])).unwrap_or_else(|| panic!("no {track}"));
    let on_it = |event: &&Value| event["ph"] == "X" && event["pid"] == track["pid"] && event["tid"] == track["tid"];
    let slice = |event: &Value| {
        let args = &event["args"];
        let batch = args["batch"].as_u64().unwrap_or_else(|| args["step"].as_u64().unwrap() - 1);
        let [begin, length] = ["ts", "dur"].map(|field| event[field].as_f64().unwrap());
        (batch, (begin, begin + length))
    };
    trace.iter().filter(on_it).filter(|event| event["name"] == name).map(slice).collect()
}

#[test]
fn in_the_trace_a_batch_goes_through_its_stages_one_after_another() {
    for (mode, legs) in [
        ("--mode cpu", &[][..]),
        ("--sim 2x24GiB,nvlink --data-gpu 0 --model-gpu 1", &["transfer"]),
        (
            "--sim 2x24GiB --data-gpu 0 --model-gpu 1 --transfer bounce",
            &["transfer to the host", "transfer from the host"],
        ),
        // Each card has a clock of its own, some seconds off, and they drift apart by 200 ppm.
        ("--sim 2x24GiB,nvlink,skew=100 --data-gpu 0 --model-gpu 1", &["transfer"]),
        (
            "--sim 2x24GiB,skew=100 --data-gpu 0 --model-gpu 1 --transfer bounce",
            &["transfer to the host", "transfer from the host"],
        ),
        ("--sim 1x24GiB --share-gpu", &[]),
    ] {
        let corpus = eight_tones();
        let ran =
            command(&format!("{mode} --max-steps 30"), &corpus).arg("--trace").arg(corpus.path("trace.json")).run();
        assert_eq!(ran.code, 0, "{mode}: {ran:?}");
        let trace: Vec<Value> = serde_json::from_slice(&fs::read(corpus.path("trace.json")).unwrap()).unwrap();
        let transfers = legs.iter().map(|leg| ("links", *leg, "transfer"));
        let before = [("data role", "upload", "upload"), ("data role", "features", "features")];
        let stages = before.into_iter().chain(transfers).chain([("model role", "steps", "work")]);
        let stages: Vec<_> = stages.map(|(group, track, name)| slices(&trace, group, track, name)).collect();
        let works = &stages[stages.len() - 1];
        assert_eq!(works.len(), 30, "{mode}");
        for (from, to) in stages.iter().zip(&stages[1..]) {
            let both: Vec<_> =
                from.iter().filter_map(|(batch, from)| Some((batch, from.1, to.get(batch)?.0))).collect();
            assert!(both.len() >= 20, "{mode}: {both:?}");
            // The format has nanoseconds; a clock may be rounded to one. The 30 steps take less than 100 ms.
            let most_us = if mode.contains("skew") { 20.0 } else { 0.002 };
            assert!(both.iter().all(|(_, ended, began)| *ended <= began + most_us), "{mode}: {both:?}");
            // No batch is prefetched for a second: clocks that are compared without a common time are seconds apart.
            assert!(both.iter().all(|(_, ended, began)| began - ended < 1e6), "{mode}: {both:?}");
        }
        let found = TandemCommand::new("profile --json --log").arg(corpus.path("run")).run();
        let share = serde_json::from_str::<Value>(&found.out).unwrap()["copy_overlap"].as_f64().unwrap();
        assert!((0.0..=1.0).contains(&share), "{mode}: {share}");
    }
}

#[test]
fn the_next_batch_transfers_when_a_step_starts_not_when_it_ends() {
    let corpus = eight_tones();
    let flags = "--sim 2x24GiB --data-gpu 0 --model-gpu 1 --transfer bounce --max-steps 40";
    let ran = command(flags, &corpus).arg("--trace").arg(corpus.path("trace.json")).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let trace: Vec<Value> = serde_json::from_slice(&fs::read(corpus.path("trace.json")).unwrap()).unwrap();
    let works = slices(&trace, "model role", "steps", "work");
    let copies = slices(&trace, "links", "transfer from the host", "transfer");
    // How much of a step was over when the copy into a returned slot started.
    let starts: Vec<f64> = copies
        .values()
        .skip(10)
        .filter_map(|(began, _)| {
            let (from, to) = works.values().find(|(from, to)| (from..to).contains(&began))?;
            Some((began - from) / (to - from))
        })
        .collect();
    assert!(starts.len() >= 20 && starts.iter().all(|part| *part < 0.5), "{starts:?}");
}

#[test]
fn both_roles_are_shown_against_their_limits_every_hundred_steps() {
    let pair = "--sim 2x24GiB --data-gpu 0 --model-gpu 1 --enable-memory-isolation --data-gpu-memory 2048";
    let ran = command(&format!("{pair} --max-steps 105"), &eight_tones()).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let lines: Vec<&str> = ran.out.lines().filter(|line| line.contains("[Step ")).collect();
    let [line] = lines.as_slice() else { panic!("{lines:?}") };
    contains(line, &["[simulated] [Step 100] Data GPU 0: ", "/2048MB (", "%), Model GPU 1: ", "/16384MB ("]);
}

/// A short run with `flags`, which must succeed and warn once.
fn continues_with(flags: &str, warning: &str) -> Ran {
    let ran = command(&format!("--mode cpu --max-steps 20 {flags}"), &eight_tones()).run();
    assert_eq!(ran.code, 0, "{flags}: {ran:?}");
    contains(&ran.out, &["✅ Training finished: 20 steps"]);
    assert_eq!(ran.err.matches(warning).count(), 1, "{flags}: {ran:?}");
    ran
}

/// A long run warns at once that the disk of its log is full.
fn warns_during_the_run() {
    let corpus = eight_tones();
    let command = command("--mode cpu --max-steps 1000000 --checkpoint-every 1000000 --run-log /dev/full", &corpus);
    let mut child = command.into_std().stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let warning = lines.find(|line| line.contains("the run log is incomplete"));
    assert!(child.try_wait().unwrap().is_none(), "the run ended: {warning:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    contains(&warning.unwrap(), &["⚠️ ", "No space left", "Training continues"]);
}

#[test]
fn training_continues_with_one_warning_when_the_disk_is_full_or_a_port_is_in_use() {
    continues_with("--run-log /dev/full", "the run log is incomplete: No space left");
    warns_during_the_run();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let ran = continues_with(&format!("--prometheus {address}"), "Training continues without it");
    contains(&ran.err, &["⚠️ --prometheus: ", &address.to_string(), "give another port"]);
    assert!(!ran.out.contains("Prometheus: http"), "{ran:?}");
}

#[test]
fn a_stalled_log_reader_gets_one_warning_and_never_blocks_training() {
    let corpus = eight_tones();
    let pipe = corpus.path("log");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Open, so that the run can write, and never read during the run.
    let mut reader = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(&pipe).unwrap();
    let ran = command("--mode cpu --max-steps 400", &corpus).arg("--run-log").arg(&pipe).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["✅ Training finished: 400 steps"]);
    let warning = "the run log is incomplete: its reader is stalled. Training continues";
    assert_eq!(ran.err.matches(warning).count(), 1, "{ran:?}");
    let mut lines = Vec::new();
    reader.read_to_end(&mut lines).unwrap();
    let complete = lines.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
    let read: Vec<Value> = complete.map(|line| serde_json::from_slice(line).unwrap()).collect();
    assert!(read.len() > 100, "{read:?}");
}

/// Reads the output up to the first step, then nothing until the warning appears.
#[test]
fn a_stalled_terminal_gets_one_warning_and_never_blocks_training() {
    let corpus = eight_tones();
    let (reader, writer) = std::io::pipe().unwrap();
    // One page: after one line the pipe is full.
    fcntl_setpipe_size(&writer, 4096).unwrap();
    let command =
        command("--sim 2x24GiB --data-gpu 0 --model-gpu 1 --enable-memory-isolation --max-steps 450", &corpus);
    let mut child = command.into_std().stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let mut printed = BufReader::with_capacity(1, reader).lines().map_while(Result::ok);
    printed.find(|line| line.contains("Training on ")).unwrap();
    let mut warnings = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let warning = warnings.find(|line| line.contains("standard output is blocked")).unwrap();
    contains(&warning, &["⚠️ ", "progress lines are dropped. Training continues"]);
    let printed: Vec<String> = printed.collect();
    assert!(child.wait().unwrap().success(), "{printed:?}");
    contains(&printed.join("\n"), &["✅ Training finished: 450 steps"]);
    assert!(warnings.all(|line| !line.contains("standard output is blocked")), "warned again");
}

#[test]
fn stalled_prometheus_clients_never_block_training() {
    let corpus = eight_tones();
    let command = command("--mode cpu --max-steps 60 --prometheus 127.0.0.1:0", &corpus);
    let mut child = command.into_std().stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let place = lines.find_map(|line| line.split_once("http://").map(|(_, rest)| rest.to_owned())).unwrap();
    let address = place.split('/').next().unwrap().to_owned();
    // More silent clients than the server takes: they neither send nor read nor close.
    let silent: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let rest: Vec<String> = lines.collect();
    let mut warnings = String::new();
    child.stderr.take().unwrap().read_to_string(&mut warnings).unwrap();
    assert!(child.wait().unwrap().success(), "{rest:?} {warnings}");
    contains(&rest.join("\n"), &["✅ Training finished: 60 steps"]);
    drop(silent);
}
