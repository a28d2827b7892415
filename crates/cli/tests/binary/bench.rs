//! `tandem bench`: the list, the document of each benchmark, peers, and unreadable recordings. Speed is not tested.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::command::{Ran, TandemCommand, contains, tandem};
use crate::machine::TempFolder;
use crate::speech::{demo, tone, wav_of};

const NAMES: [&str; 11] =
    ["pipeline", "handoff", "mel", "step", "training", "modes", "ranks", "start", "shards", "memory", "verdicts"];
/// Flags that make a table of clips fast.
const FEW: &str = "--no-sweep --steps 3 --batch-size 2 --buffer-size 4";

#[test]
fn without_a_name_all_are_listed() {
    let ran = tandem("bench");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    for name in NAMES {
        contains(&ran.out, &[&format!("  tandem bench {name} ")]);
    }
    assert_eq!(ran.out.lines().count(), 1 + NAMES.len());
    contains(&tandem("bench --help").out, &[ran.out.trim_end()]);
}

#[test]
fn an_unknown_name_ends_with_the_list() {
    let check = |line: &str, parts: &[&str]| {
        let ran = tandem(line);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{ran:?}");
        contains(&ran.err, parts);
        contains(&ran.err, &["tandem bench pipeline", "tandem bench memory"]);
        let ran = tandem(&format!("{line} --json"));
        assert_eq!((ran.code, &ran.json()["code"]), (2, &2.into()));
    };
    check("bench pipelin", &["❌ unknown benchmark `pipelin`"]);
    for line in
        ["bench handoff --steps 0", "bench start --rows many", "bench step --size huge", "bench step --precision f16"]
    {
        assert_eq!(tandem(line).code, 2, "{line}");
    }
}

#[test]
fn impossible_plans_are_refused_as_everywhere() {
    let ran = tandem("bench pipeline --sim 1x24GiB --data-gpu 0 --model-gpu 1 --json");
    assert_eq!(ran.code, 2, "{ran:?}");
    contains(ran.json()["error"].as_str().unwrap(), &["Multi-GPU requires at least 2 GPUs"]);
}

/// Runs a benchmark with `--json`, and gives its rows.
#[track_caller]
fn rows(command: TandemCommand, name: &str, simulated: bool) -> Vec<Value> {
    let ran = command.arg("--json").run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let document = ran.json();
    assert_eq!((&document["bench"], &document["simulated"]), (&name.into(), &simulated.into()));
    let machine = &document["machine"];
    assert!(machine["cores"].as_u64().unwrap() > 0 && machine["gpu"].is_string() == simulated, "{machine}");
    assert!(machine["driver"].is_string() == simulated && document["peers"].as_array().unwrap().is_empty());
    document["rows"].as_array().unwrap().clone()
}

#[track_caller]
fn has_numbers(row: &Value, keys: &[&str]) {
    for key in keys {
        assert!(row[key].is_number(), "{key} is no number in {row}");
    }
}

#[test]
fn pipeline_sweeps_eight_ratios_on_two_simulated_cards_and_on_the_cpu() {
    let check = |command: TandemCommand, simulated: bool| {
        let rows = rows(command, "pipeline", simulated);
        assert_eq!((rows.len(), &rows[8]["table"]), (9, &"slow_decoder".into()));
        has_numbers(&rows[8], &["threads_at_first", "threads", "stall_at_first", "stall"]);
        for (row, ratio) in rows.iter().zip([0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.6, 2.0]) {
            assert_eq!((&row["table"], &row["ratio"]), (&"sweep".into(), &ratio.into()));
            has_numbers(row, &["model_only_steps_per_s", "steps_per_s", "of_ceiling", "variation"]);
            assert_eq!(row["goal_met"].is_boolean(), simulated && ratio <= 0.8, "{row}");
        }
    };
    check(TandemCommand::new("bench pipeline --steps 3 --sim 2x24GiB --data-gpu 0 --model-gpu 1"), true);
    check(TandemCommand::new("bench pipeline --steps 3").without_gpu(), false);
}

#[test]
fn handoff_has_four_figures_and_lines_are_marked_as_simulated() {
    let line = "bench handoff --steps 20 --rows 20 --buffer-size 4";
    let check = |command: TandemCommand, simulated: bool| {
        let rows = rows(command, "handoff", simulated);
        let names: Vec<&Value> = rows.iter().map(|row| &row["name"]).collect();
        assert_eq!(names, ["ring", "lease", "wait", "record"]);
        rows.iter().for_each(|row| has_numbers(row, &["p50_us", "p99_us"]));
        assert!(rows[0]["goal_met"].is_boolean() && rows[1]["goal_met"].is_null());
    };
    check(TandemCommand::new(&format!("{line} --sim 2x24GiB --data-gpu 0 --model-gpu 1")), true);
    check(TandemCommand::new(line).without_gpu(), false);
    let ran = tandem(&format!("{line} --sim 2x24GiB"));
    assert!(ran.code == 0 && ran.out.lines().all(|line| line.starts_with("[simulated] ")), "{ran:?}");
    contains(&ran.out, &["p50 µs", "p99 µs", "goal: p50 ≤ 2 µs"]);
}

#[test]
fn mel_times_every_feature() {
    let rows = rows(TandemCommand::new("bench mel --steps 1 --sim 2x24GiB"), "mel", true);
    let work: Vec<&str> = rows.iter().map(|row| row["work"].as_str().unwrap()).collect();
    let [equal, ragged] =
        ["", ", ragged rows"].map(|rows| ["log-mel", "log-mel and energy"].map(|w| format!("{w}{rows}")));
    assert_eq!(work[..5], [&equal[0], &equal[1], "log-mel, two-float", &ragged[0], &ragged[1]]);
    assert_eq!(work[5], "pitch");
    let over_f64 = rows[2]["median_us"].as_f64().unwrap() / rows[0]["median_us"].as_f64().unwrap();
    assert!((rows[2]["over_f64"].as_f64().unwrap() / over_f64 - 1.0).abs() < 1e-9, "{rows:?}");
    assert!(work[6..].iter().all(|work| work.starts_with("resample ")) && work.len() == 10);
    rows.iter().for_each(|row| has_numbers(row, &["median_us", "low_us", "high_us", "audio_hours_per_s"]));
}

#[test]
fn step_trains_a_tiny_transformer_where_there_is_no_card() {
    let numbers = ["median_ms", "low_ms", "high_ms", "first_step_s", "session_s", "arena_bytes", "loss"];
    let check = |command: TandemCommand, simulated: bool, precision: &str| {
        let rows = rows(command, "step", simulated);
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((&row["table"], &row["size"]), (&"step".into(), &"tiny d64 l2 b2 t32".into()));
        assert_eq!((&row["precision"], &row["steps"]), (&precision.into(), &2.into()));
        has_numbers(row, &numbers);
        // Four matrices a block and the head, forward once and backward twice; the embedding is none.
        assert_eq!((&row["gemms"], &row["parameters"]), (&27.into(), &232_192.into()), "{row}");
        assert!(row["launches"].as_u64().unwrap() > 0 && row["loss"].as_f64().unwrap() < 10.0, "{row}");
    };
    check(TandemCommand::new("bench step --steps 2 --sim 1x24GiB"), true, "bf16");
    check(TandemCommand::new("bench step --steps 2 --sim 1x24GiB --precision f32"), true, "f32");
    check(TandemCommand::new("bench step --steps 2 --size tiny").without_gpu(), false, "f32");
}

#[test]
fn step_shows_where_its_time_goes() {
    let rows = rows(TandemCommand::new("bench step --steps 2 --sim 1x24GiB --breakdown"), "step", true);
    let of = |table: &str| rows.iter().filter(|row| row["table"] == table).collect::<Vec<&Value>>();
    let (groups, floor) = (of("group"), of("floor")[0]);
    groups.iter().for_each(|group| has_numbers(group, &["count", "us", "share", "giga_bytes_per_s"]));
    let named = |part: &str| groups.iter().filter(|group| group["name"].as_str().unwrap().contains(part)).count();
    assert!(named("gemm ") >= 9 && named("attention_gradient") == 1 && named("adamw") == 1, "{groups:?}");
    let counted = |part: &str| {
        let of = groups.iter().filter(|group| group["name"].as_str().unwrap().starts_with(part));
        of.map(|group| group["count"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(Some(counted("gemm ")), of("step")[0]["gemms"].as_u64());
    let share: f64 = groups.iter().map(|group| group["share"].as_f64().unwrap()).sum();
    assert!((share - 1.0).abs() < 1e-6, "{share}");
    has_numbers(floor, &["us", "all_us", "step_over_floor"]);
    let ran = tandem("bench step --steps 1 --sim 1x24GiB --breakdown");
    contains(&ran.out, &["One training step", "TFLOP/s", "GEMMs and attention alone", "a step takes"]);
}

#[test]
fn step_compares_figures_of_peers_and_reports_which_failed() {
    let label = "tiny d64 l2 b2 t32";
    let command = || {
        TandemCommand::new("bench step --steps 1 --sim 1x24GiB").args([
            "--peer".to_owned(),
            format!("echo 'torch autocast compile=False {label}: first 0.52s median 10.125 ms min 9.9'; echo noise"),
            "--peer".to_owned(),
            format!("echo 'floor {label} gemm: 0.500 ms'; echo 'floor {label} attn: 0.250 ms'; exit 3"),
        ])
    };
    let ran = command().arg("--json").run();
    let document = ran.json();
    assert_eq!(ran.code, 0, "{ran:?}");
    let rows = document["rows"].as_array().unwrap();
    let ours = rows[0]["median_ms"].as_f64().unwrap();
    let peers: Vec<(&str, f64)> = rows[1..]
        .iter()
        .map(|row| {
            assert_eq!((&row["table"], &row["goal_met"]), (&"peer".into(), &Value::Null));
            let ms = row["median_ms"].as_f64().unwrap();
            assert!((row["ours_over_peer"].as_f64().unwrap() / (ours / ms) - 1.0).abs() < 1e-9, "{row}");
            (row["name"].as_str().unwrap(), ms)
        })
        .collect();
    let names = ["torch autocast compile=False", "gemm", "attn", "GEMMs and attention"];
    assert_eq!(peers.iter().map(|peer| peer.1).collect::<Vec<_>>(), [10.125, 0.5, 0.25, 0.75]);
    assert!(peers.iter().zip(names).all(|(peer, name)| peer.0.contains(name) && peer.0.contains(label)), "{peers:?}");
    assert!(document["peers"][0]["failed"].is_null());
    contains(document["peers"][1]["failed"].as_str().unwrap(), &["3"]);
    let ran = command().run();
    contains(&ran.out, &["Compared with peers", "ours ÷ peer", "  | noise"]);
    contains(&ran.err, &["failed (exit status: 3); Tandem's figures are unaffected"]);
}

#[test]
fn start_reports_its_parts_and_the_scan_separately() {
    let rows = rows(TandemCommand::new("bench start --rows 2000 --buffer-size 4").without_gpu(), "start", false);
    let [first, scan] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!((&first["rows"], &scan["recordings"]), (&2000.into(), &2000.into()));
    let parts = first["parts"].as_array().unwrap();
    let sum: f64 = parts.iter().map(|part| part["seconds"].as_f64().unwrap()).sum();
    assert!(parts.len() == 7 && (sum - first["total_seconds"].as_f64().unwrap()).abs() < 1e-9, "{first}");
    assert!(first["goal_met"].is_null(), "the goal is for a million rows");
}

#[test]
fn shards_are_indexed_opened_resumed_and_counted() {
    let line = "bench shards --rows 300 --batch-size 4 --buffer-size 4";
    let rows = rows(TandemCommand::new(line).without_gpu(), "shards", false);
    let tables: Vec<&Value> = rows.iter().map(|row| &row["table"]).collect();
    assert_eq!(tables, ["index", "index", "index", "ready", "resume", "clips", "clips"]);
    assert!(rows.iter().all(|row| row["goal_met"].is_null()), "the goals are for a million rows: {rows:?}");
    let [headers, listed, clips, ready, resume, samples, log_mel] = &rows[..] else { panic!("{rows:?}") };
    assert_eq!([&headers["durations"], &listed["durations"], &clips["durations"]], ["headers", "JSON", "headers"]);
    assert_eq!([&headers["rows"], &listed["rows"], &clips["rows"], &ready["rows"]], [300, 30, 16, 300]);
    [headers, listed, clips]
        .iter()
        .for_each(|row| has_numbers(row, &["bytes", "sequential_seconds", "index_seconds", "of_sequential"]));
    has_numbers(ready, &["seconds", "string_bytes_per_row", "index_bytes"]);
    let parts = resume["parts"].as_array().unwrap();
    let sum: f64 = parts.iter().map(|part| part["seconds"].as_f64().unwrap()).sum();
    assert!(parts.len() == 6 && (sum - resume["total_seconds"].as_f64().unwrap()).abs() < 1e-9, "{resume}");
    assert_eq!(resume["epoch"], 3);
    assert!(resume["batch"].as_u64().unwrap() > 0, "{resume}");
    assert_eq!([&samples["fields"], &log_mel["fields"]], ["samples", "log-mel"]);
    assert!([samples, log_mel].iter().all(|row| row["clips_per_s"].as_f64().unwrap() > 0.0), "{rows:?}");
}

#[test]
fn peers_of_shards_read_the_same_files_which_are_removed_afterwards() {
    let folder = TempFolder::new();
    let ran = TandemCommand::new("bench shards --rows 100 --batch-size 4 --buffer-size 4 --json --bench-dir")
        .arg(folder.path("disk"))
        .arg("--peer")
        .arg("set -- $(eval ls {shards}); echo \"$# shards of {batch}\"; echo \"tar, samples: 2 workers, 0.5 clips/s\"")
        .without_gpu()
        .run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let document = ran.json();
    assert_eq!(document["peers"][0]["lines"][0], "16 shards of 4", "{document}");
    let compared = document["rows"].as_array().unwrap().iter().find(|row| row["table"] == "peer").unwrap();
    assert_eq!((&compared["clips_per_s"], &compared["goal_met"]), (&0.5.into(), &true.into()));
    assert_eq!(fs::read_dir(folder.path("disk")).unwrap().count(), 0, "the shards are removed");
}

#[test]
fn memory_stays_inside_the_smallest_limits_and_does_not_grow() {
    let work = "--steps 3 --model-size nano --batch-size 2 --buffer-size 4";
    let check = |devices: &str, cards: usize| {
        let rows = rows(TandemCommand::new(&format!("bench memory {work} {devices}")), "memory", true);
        let of = |table: &str| rows.iter().filter(|row| row["table"] == table).cloned().collect::<Vec<Value>>();
        for role in of("roles") {
            assert_eq!((&role["refused_32_mb_below"], &role["goal_met"]), (&true.into(), &true.into()));
            assert!(role["peak_bytes"].as_u64() <= role["limit_bytes"].as_u64(), "{role}");
        }
        assert_eq!((of("roles").len(), of("cards").len()), (2, cards));
        assert!(of("cards").iter().all(|card| card["samples"].as_u64().unwrap() > 0));
        let growth = &of("growth")[0];
        assert_eq!((&growth["device_allocations"], &growth["pinned_allocations"]), (&0.into(), &0.into()));
        assert_eq!(growth["free_bytes_before"], growth["free_bytes_after"]);
    };
    check("--sim 1x24GiB", 1);
    check("--sim 2x24GiB --data-gpu 0 --model-gpu 1", 2);
    let ran = TandemCommand::new(&format!("bench memory {work}")).without_gpu().run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["limits are for GPUs", "0 device and 0 page-locked allocations"]);
}

#[test]
fn a_run_is_measured_against_its_model_only_throughput() {
    let work = "--steps 4 --model-size nano --batch-size 4 --buffer-size 6";
    for (devices, simulated) in
        [("--sim 2x24GiB --data-gpu 0 --model-gpu 1", true), ("--mode cpu --grad-accum 2", false)]
    {
        let command = TandemCommand::new(&format!("bench training {work} {devices}")).arg("--train-data").arg(demo());
        let row = &rows(command, "training", simulated)[0];
        let number = |name: &str| row[name].as_f64().unwrap();
        assert_eq!((number("steps"), &row["goal_met"]), (4.0, &Value::Null));
        assert!(
            ["steps_per_s", "model_only_steps_per_s", "model_only_ms", "gemms_ms"]
                .iter()
                .all(|name| number(name) > 0.0),
            "{row}"
        );
        // A step is its GEMMs and more.
        assert!(number("gemms_ms") < number("model_only_ms"), "{row}");
        assert!(
            (number("steps_per_s") / number("model_only_steps_per_s") - number("of_model_only")).abs() < 1e-9,
            "{row}"
        );
    }
}

#[test]
fn every_mode_is_run_on_one_corpus_and_one_is_chosen() {
    let work = "--model-size nano --batch-size 2 --buffer-size 4 --max-mel-frames 200 --steps 2";
    let command = TandemCommand::new(&format!("bench modes {work} --sim 2x24GiB")).arg("--train-data").arg(demo());
    let rows = rows(command, "modes", true);
    let modes: Vec<(&str, bool)> =
        rows.iter().map(|row| (row["mode"].as_str().unwrap(), row["isolated"].as_bool().unwrap())).collect();
    let open = [("cpu", false), ("single", false), ("shared", false), ("multi", false), ("data_parallel", false)];
    assert_eq!(modes, [&open[..], &[("shared", true), ("multi", true), ("data_parallel", true)]].concat());
    for row in &rows {
        assert!(row["why"].is_null(), "{row}");
        assert!(["steps_per_s", "of_best", "model_mb"].iter().all(|name| row[name].as_f64().unwrap() > 0.0), "{row}");
        assert_eq!(row["of_open"].is_number(), row["isolated"] == true, "{row}");
    }
    let chosen: Vec<&Value> = rows.iter().filter(|row| row["taken"] == true).collect();
    assert_eq!(chosen.len(), 1);
    assert!(chosen[0]["isolated"] == false && chosen[0]["mode"] != "cpu", "{chosen:?}");
    // Without a card there is one mode.
    let ran = TandemCommand::new(&format!("bench modes {work}")).arg("--train-data").arg(demo()).without_gpu().run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["Modes of this machine", "Fastest on this machine: cpu", "chosen"]);
}

#[test]
fn peers_are_run_and_quoted_and_may_fail() {
    let command = || {
        TandemCommand::new("bench handoff --steps 5 --rows 20 --buffer-size 4 --sim 1x24GiB").args([
            "--peer",
            "echo '{\"steps_per_s\": 70}'; echo plain",
            "--peer",
            "echo half; exit 3",
        ])
    };
    let ran = command().run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["  | {\"steps_per_s\": 70}", "  | plain", "  | half", "Hand-over of a ready batch"]);
    contains(&ran.err, &["the peer `echo half; exit 3` failed (exit status: 3); Tandem's figures are unaffected"]);
    let ran = command().arg("--json").run();
    let document = ran.json();
    let peers = document["peers"].as_array().unwrap();
    assert_eq!((ran.code, peers.len(), document["rows"].as_array().unwrap().len()), (0, 2, 4));
    assert_eq!(peers[0]["json"][0]["steps_per_s"], 70);
    assert_eq!((&peers[0]["lines"][1], &peers[0]["failed"]), (&"plain".into(), &Value::Null));
    contains(peers[1]["failed"].as_str().unwrap(), &["3"]);
}

/// A manifest of short recordings; those of `bad` cannot be decoded.
fn corpus(folder: &TempFolder, count: usize, bad: impl Fn(usize) -> bool) -> PathBuf {
    let mut list = String::new();
    for number in 0..count {
        let file = if bad(number) { b"RIFF no wav at all".to_vec() } else { wav_of(&tone(22_050, 0.3)) };
        folder.file(&format!("{number}.wav"), file);
        list += &format!("{{\"audio_filepath\":\"{number}.wav\",\"text\":\"hm\",\"duration\":0.3}}\n");
    }
    folder.file("list.jsonl", list)
}

fn clips(line: &str, list: &PathBuf, folder: &TempFolder) -> Ran {
    let command = TandemCommand::new(&format!("bench pipeline {FEW} --sim 1x24GiB {line} --train-data")).arg(list);
    command.arg("--val-data").arg(demo()).arg("--bench-dir").arg(folder.path("left")).run()
}

#[test]
fn a_corpus_is_fed_on_any_device_and_given_threads_stay() {
    let folder = TempFolder::new();
    let list = corpus(&folder, 40, |_| false);
    let ran = clips("--num-workers 2 --json", &list, &folder);
    assert_eq!(ran.code, 0, "{ran:?}");
    let document = ran.json();
    let rows = document["rows"].as_array().unwrap();
    let loads: Vec<(&str, &str)> =
        rows.iter().map(|row| (row["load"].as_str().unwrap(), row["cache"].as_str().unwrap())).collect();
    assert_eq!(loads, [("small", "none"), ("small", "memory"), ("middle", "none"), ("middle", "memory")]);
    for row in rows {
        assert_eq!((&row["threads"], &row["batch"], &row["bad_samples"]), (&2.into(), &2.into(), &0.into()));
        has_numbers(row, &["model_only_steps_per_s", "ceiling_steps_per_s", "steps_per_s", "variation", "stall"]);
    }
    assert!(!folder.path("left/bad_samples.jsonl").exists());
    let disk = clips("--cache disk --json", &list, &folder).json();
    assert_eq!((disk["rows"].as_array().unwrap().len(), &disk["rows"][0]["cache"]), (2, &"disk".into()));
    assert!(folder.path("left/cache").is_dir());
}

#[test]
fn one_recording_in_a_hundred_may_be_bad_and_is_listed() {
    let folder = TempFolder::new();
    let list = corpus(&folder, 200, |number| number % 100 == 50);
    let ran = clips("", &list, &folder);
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(&ran.out, &["2 unreadable recordings were replaced; listed in "]);
    let listed = fs::read_to_string(folder.path("left/bad_samples.jsonl")).unwrap();
    let mut ids: Vec<String> = listed
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned())
        .collect();
    ids.sort();
    assert_eq!(ids, ["150", "50"]);
}

#[test]
fn where_all_recordings_are_bad_the_run_ends_with_the_list() {
    let folder = TempFolder::new();
    let list = corpus(&folder, 40, |_| true);
    let ran = clips("", &list, &folder);
    assert_eq!(ran.code, 1, "{ran:?}");
    contains(&ran.err, &["cannot be used, and only 5 % may be bad", "data.max_bad_fraction", "bad_samples.jsonl"]);
    assert!(ran.err.lines().count() > 3, "{}", ran.err);
    assert!(fs::read_to_string(folder.path("left/bad_samples.jsonl")).unwrap().lines().count() > 1);
}

#[test]
fn events_go_to_the_run_log() {
    let folder = TempFolder::new();
    let list = corpus(&folder, 40, |_| false);
    let log = folder.path("run.jsonl");
    let ran = clips(&format!("--run-log {}", log.display()), &list, &folder);
    assert_eq!(ran.code, 0, "{ran:?}");
    let lines = fs::read_to_string(log).unwrap();
    contains(&lines, &["\"bench pipeline\"", "\"stage\":\"features\"", "\"run_ended\""]);
}

#[test]
fn ranks_are_summed_over_tcp_and_larger_machines_predicted() {
    let work = "--model-size nano --batch-size 2 --buffer-size 4 --max-mel-frames 200 --steps 2";
    let command =
        |device: &str| TandemCommand::new(&format!("bench ranks {work} {device}")).arg("--train-data").arg(demo());
    let table = |rows: Vec<Value>, name: &str| rows.into_iter().filter(|row| row["table"] == name).collect::<Vec<_>>();
    let tcp = table(rows(command("--mode cpu"), "ranks", false), "tcp");
    assert_eq!(tcp.iter().map(|row| row["ranks"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 4]);
    for row in &tcp {
        assert!(["bytes", "ms", "gb_per_s"].iter().all(|name| row[name].as_f64().unwrap() > 0.0), "{row}");
    }
    // Two cards have a link to measure.
    let predicted = table(rows(command("--sim 2x24GiB,nvlink"), "ranks", true), "predicted");
    let measured: Vec<&Value> = predicted.iter().filter(|row| row["link_measured"] == true).collect();
    assert_eq!(measured.iter().map(|row| row["gpus"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 8, 64]);
    for row in &predicted {
        let number = |name: &str| row[name].as_f64().unwrap();
        let expected = number("step_ms") / (number("step_ms") + number("sum_ms"));
        assert!((number("efficiency") - expected).abs() < 1e-9 && expected < 1.0, "{row}");
    }
}
