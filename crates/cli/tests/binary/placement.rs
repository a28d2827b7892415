//! Each role runs on exactly its card, in the requested mode, and no other card is used.

use serde_json::{Value, json};

use crate::command::{SMALL, TandemCommand, contains, tandem, tandem_json, texts};
use crate::machine::TempFolder;
use crate::speech::demo;

/// Contexts, streams and peak bytes of each card.
fn touched(document: &Value) -> Vec<(u64, u64, u64)> {
    let count = |card: &Value, key: &str| card[key].as_u64().unwrap();
    let cards = document["cards"].as_array().unwrap();
    cards.iter().map(|card| (count(card, "contexts"), count(card, "streams"), count(card, "peak_bytes"))).collect()
}

/// The roles of `plan` are on cards `data` and `model`, by number and by identity.
#[track_caller]
fn on_cards(plan: &Value, data: usize, model: usize) {
    for (role, card) in [("data", data), ("model", model)] {
        let (role, gpu) = (&plan["roles"][role], &plan["gpus"][card]);
        assert_eq!((&role["gpu"], &role["uuid"]), (&json!(card), &gpu["uuid"]), "{role}");
        assert!(gpu["uuid"].is_string() && gpu["index"] == card, "{gpu}");
    }
}

const PAIRS: [(usize, usize); 4] = [(2, 3), (1, 3), (3, 1), (1, 0)];

#[test]
fn a_plan_puts_roles_on_their_cards_and_uses_no_other() {
    for (data, model) in PAIRS {
        let (ran, plan) = tandem_json(&format!("plan --sim 4x24GiB --data-gpu {data} --model-gpu {model}"));
        assert_eq!((ran.code, &plan["mode"]), (0, &json!("multi")), "{ran:?}");
        on_cards(&plan, data, model);
        for (card, counts) in touched(&plan).into_iter().enumerate() {
            assert!(card == data || card == model || counts == (0, 0, 0), "GPU {card} has {counts:?}");
        }
        assert_eq!(touched(&plan).len(), 4);
    }
}

#[test]
fn a_validation_uses_both_cards_and_no_other() {
    for (data, model) in PAIRS {
        let line = format!("validate --sim 4x24GiB --data-gpu {data} --model-gpu {model} {SMALL}");
        let (ran, report) = tandem_json(&line);
        assert_eq!((ran.code, &report["passed"]), (0, &json!(true)), "{ran:?}");
        on_cards(&report["plan"], data, model);
        for (card, (contexts, streams, bytes)) in touched(&report).into_iter().enumerate() {
            match card == data || card == model {
                true => assert!(contexts > 0 && streams > 0 && bytes > 0, "GPU {card} was not used"),
                false => assert_eq!((contexts, streams, bytes), (0, 0, 0), "GPU {card}"),
            }
        }
    }
}

#[test]
fn one_card_for_both_roles_uses_no_other() {
    for (flags, mode) in [("--gpu 2", "single"), ("--share-gpu --gpu 2", "shared")] {
        let (ran, report) = tandem_json(&format!("validate --sim 3x24GiB {flags} {SMALL}"));
        assert_eq!((ran.code, &report["plan"]["mode"]), (0, &json!(mode)), "{ran:?}");
        on_cards(&report["plan"], 2, 2);
        let touched = touched(&report);
        assert!(touched[..2].iter().all(|counts| *counts == (0, 0, 0)) && touched[2].0 > 0, "{touched:?}");
    }
}

#[test]
fn modes_have_their_names() {
    let check = |line: &str, mode: &str, isolated: bool, shown: &str| {
        let (ran, plan) = tandem_json(&format!("plan {line}"));
        assert_eq!(
            (ran.code, &plan["mode"], &plan["isolated"]),
            (0, &json!(mode), &json!(isolated)),
            "{line}: {ran:?}"
        );
        contains(&tandem(&format!("plan {line}")).out, &[shown]);
    };
    check("--sim 1x24GiB", "single", false, "Single-GPU Buffered Mode (no GPU flags given)");
    check("--sim 2x24GiB --mode single", "single", false, "Single-GPU Buffered Mode");
    check("--sim 2x24GiB --data-gpu 0 --model-gpu 1", "multi", false, "Multi-GPU Mode (");
    check("--sim 2x24GiB --mode dual --data-gpu 0 --model-gpu 1", "multi", false, "Multi-GPU Mode (");
    let isolated = "--enable-memory-isolation";
    check(&format!("--sim 2x24GiB --data-gpu 0 --model-gpu 1 {isolated}"), "multi", true, "memory-isolated");
    check("--sim 2x24GiB --share-gpu --data-gpu 1 --model-gpu 1", "shared", false, "Shared-GPU Mode (");
    check(&format!("--sim 1x24GiB --share-gpu {isolated}"), "shared", true, "memory-isolated");
    check("--sim 2x24GiB --mode cpu", "cpu", false, "CPU Mode (--mode cpu)");
}

#[test]
fn without_a_gpu_the_plan_is_for_the_cpu_with_the_reason() {
    let ran = TandemCommand::new("plan").without_gpu().run();
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    contains(&ran.out, &["GPUs found: none", "CPU Mode (no NVIDIA device found)"]);
    let plan = TandemCommand::new("plan --json").without_gpu().run().json();
    assert_eq!((&plan["mode"], &plan["simulated"], &plan["gpus"]), (&json!("cpu"), &json!(false), &json!([])));
    for role in ["data", "model"] {
        assert_eq!((&plan["roles"][role]["gpu"], &plan["roles"][role]["uuid"]), (&Value::Null, &Value::Null));
    }
}

#[test]
fn the_json_plan_has_the_documented_keys() {
    let (_, plan) = tandem_json("plan --sim 2x24GiB --data-gpu 0 --model-gpu 1 --enable-memory-isolation");
    for key in ["mode", "simulated", "roles", "buckets", "transfer", "threads", "advice"] {
        assert!(!plan[key].is_null(), "{key}");
    }
    assert_eq!(plan["simulated"], json!(true));
    for role in [&plan["roles"]["data"], &plan["roles"]["model"]] {
        let sum: u64 = role["lines"].as_array().unwrap().iter().map(|line| line["bytes"].as_u64().unwrap()).sum();
        let (planned, limit) = (role["planned_mb"].as_u64().unwrap(), role["limit_mb"].as_u64().unwrap());
        assert_eq!(planned, sum.div_ceil(1 << 20), "{role}");
        assert!(planned <= limit && role["lines"][0]["name"].is_string(), "{role}");
    }
}

#[test]
fn limits_that_were_not_given() {
    let check = |line: &str, data: u64, model: u64| {
        let (ran, plan) = tandem_json(&format!("plan {line} --enable-memory-isolation"));
        assert_eq!(ran.code, 0, "{line}: {ran:?}");
        let limits = (&plan["roles"]["data"]["limit_mb"], &plan["roles"]["model"]["limit_mb"]);
        assert_eq!(limits, (&json!(data), &json!(model)), "{line}");
    };
    let two = "--sim 2x24GiB --data-gpu 0 --model-gpu 1";
    check(two, 8192, 16384);
    check(&format!("{two} --data-gpu-memory auto --model-gpu-memory auto"), 8110, 16465);
    check(&format!("{two} --data-gpu-memory auto:0.40"), 9830, 16384);
    // On one card: shares of what is free less 512 MB, in steps of 32 MB.
    check("--sim 1x24GiB --share-gpu", 7936, 16096);
    check("--sim 1x24GiB --share-gpu --data-gpu-memory auto --model-gpu-memory auto", 7936, 16096);
    check("--sim 1x24GiB,held=4GiB --share-gpu", 6560, 13376);
}

/// Limits of a plan, and its warnings about lowered ones.
fn limits_and_warnings(line: &str) -> ((u64, u64), Vec<String>) {
    let (ran, plan) = tandem_json(&format!("plan --enable-memory-isolation {line}"));
    assert_eq!(ran.code, 0, "{line}: {ran:?}");
    let limit = |role: &str| plan["roles"][role]["limit_mb"].as_u64().unwrap();
    let warnings = texts(&plan["notes"]).into_iter().filter(|note| note.starts_with("⚠️ the ")).map(str::to_owned);
    ((limit("data"), limit("model")), warnings.collect())
}

#[test]
fn a_default_limit_is_lowered_to_what_is_free_with_a_warning() {
    let check = |line: &str, limits: (u64, u64), lowered: &[&str]| {
        let (found, warnings) = limits_and_warnings(line);
        assert_eq!((found, warnings.len()), (limits, lowered.len()), "{line}: {warnings:?}");
        for (warning, part) in warnings.iter().zip(lowered) {
            contains(warning, &[part, "you give is never changed"]);
        }
        let shown = tandem(&format!("plan --enable-memory-isolation {line}")).out;
        contains(&shown, &warnings.iter().map(String::as_str).collect::<Vec<_>>());
    };
    let small_pair = "model limit is 10240 MB instead of the default 16384 MB: GPU 1 has no more free memory";
    check("--sim 2x10GiB --data-gpu 0 --model-gpu 1", (8192, 10240), &[small_pair]);
    check("--sim 2x16GiB,held=1GiB --data-gpu 0 --model-gpu 1", (8192, 15360), &["model limit is 15360 MB"]);
    check("--sim 8GiB+16GiB --data-gpu 0 --model-gpu 1", (8192, 16384), &[]);
    check("--sim 8GiB+16GiB,pcie4 --data-gpu 1 --model-gpu 0", (8192, 8192), &["model limit is 8192 MB"]);
    let both = ["data limit is 4096 MB instead of the default 8192 MB: GPU 0", "model limit is 4096 MB"];
    check("--sim 2x24GiB,held=20GiB --data-gpu 0 --model-gpu 1", (4096, 4096), &both);
    check("--sim 2x10GiB --data-gpu 0 --model-gpu 1 --model-gpu-memory 4096", (8192, 4096), &[]);
    // A limit that was typed, here or in a config, stays a limit.
    for (cards, flag, largest) in [
        ("2x10GiB --data-gpu 0 --model-gpu 1", "--model-gpu-memory 16384", "--model-gpu-memory 10240"),
        ("8GiB+16GiB --data-gpu 1 --model-gpu 0", "--model-gpu-memory 16384", "--model-gpu-memory 8192"),
        ("8GiB+16GiB --data-gpu 0 --model-gpu 1", "--data-gpu-memory 8193", "--data-gpu-memory 8192"),
    ] {
        let ran = tandem(&format!("plan --enable-memory-isolation --sim {cards} {flag}"));
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{ran:?}");
        contains(&ran.err, &["exceeds the free memory of GPU ", largest]);
    }
    let folder = TempFolder::new();
    let config = folder.file("c.yaml", "data:\n  model_gpu_memory: 16384\n");
    let pair = "--sim 2x10GiB --data-gpu 0 --model-gpu 1 --enable-memory-isolation";
    assert_eq!(TandemCommand::new(&format!("plan {pair}")).config(&config).run().code, 2);
}

#[test]
fn a_run_reserves_the_lowered_default() {
    let folder = TempFolder::new();
    let ran = TandemCommand::new(&format!("train --sim 2x10GiB --data-gpu 0 --model-gpu 1 {SMALL} --max-steps 1"))
        .args(["--enable-memory-isolation", "--train-data"])
        .arg(demo())
        .arg("--checkpoint-dir")
        .arg(folder.path("run"))
        .run();
    assert_eq!(ran.code, 0, "{ran:?}");
    contains(
        &ran.out,
        &[
            "Limit of the model role on GPU 1 is 10240 MB",
            "⚠️ the model limit is 10240 MB instead of the default 16384 MB",
        ],
    );
}

#[test]
fn cards_of_different_sizes_are_simulated_by_every_command() {
    let pair = "--data-gpu 0 --model-gpu 1";
    let (ran, plan) = tandem_json(&format!("plan --sim 8GiB+16GiB,nvlink {pair}"));
    assert_eq!(ran.code, 0, "{ran:?}");
    let totals: Vec<u64> =
        plan["gpus"].as_array().unwrap().iter().map(|gpu| gpu["total_bytes"].as_u64().unwrap()).collect();
    assert_eq!((totals, &plan["transfer"]), (vec![8 << 30, 16 << 30], &json!("peer")));
    // Without isolation: 90 % of what each has free.
    let limit = |role: &str| plan["roles"][role]["limit_mb"].as_u64().unwrap();
    assert_eq!((limit("data"), limit("model")), (8192 * 9 / 10, 16384 * 9 / 10));
    let (_, three) = tandem_json("plan --sim 2x8GiB+16GiB");
    assert_eq!((three["gpus"].as_array().unwrap().len(), &three["roles"]["model"]["gpu"]), (3, &json!(2)));
    // The smaller card is too small for a limit that the larger one holds.
    let ran = tandem(&format!("plan --sim 8GiB+16GiB {pair} --enable-memory-isolation --data-gpu-memory 9000"));
    assert_eq!(ran.code, 2, "{ran:?}");
    let folder = TempFolder::new();
    let run = folder.path("run");
    let check = |line: &str, args: &[&std::ffi::OsStr]| {
        let ran = TandemCommand::new(line).args(args).args(["--sim", "1GiB+2GiB,pcie3"]).inside(&folder).run();
        assert_eq!(ran.code, 0, "{line}: {ran:?}");
    };
    let data = [std::ffi::OsStr::new("--train-data"), demo().as_os_str()];
    check(&format!("validate {pair} {SMALL}"), &data);
    check(&format!("train {pair} {SMALL} --max-steps 2 --checkpoint-dir run"), &data);
    check(&format!("profile {pair} {SMALL} --num-steps 2"), &data);
    check(&format!("doctor {pair} {SMALL} -o report.md"), &data);
    check("synthesize --gpu 1 --text hello -o out.wav --checkpoint", &[run.as_os_str()]);
}

#[test]
fn without_isolation_the_limit_is_90_percent_of_the_free_memory() {
    let (_, plan) = tandem_json("plan --sim 2x24GiB,held=4GiB --data-gpu 0 --model-gpu 1");
    for role in ["data", "model"] {
        assert_eq!(plan["roles"][role]["limit_mb"], json!(20480 * 9 / 10), "{role}");
    }
}

#[test]
fn slots_of_the_model_role() {
    let check = |line: &str, slots: u64, expected: &[&str]| {
        let (_, plan) = tandem_json(&format!("plan {line}"));
        assert_eq!(plan["prefetch"], json!(slots), "{line}");
        let notes = texts(&plan["notes"]);
        contains(&notes.join("\n"), expected);
        assert_eq!(notes.is_empty(), expected.is_empty(), "{line}: {notes:?}");
    };
    check("--sim 1x24GiB --prefetch-buffer-size 2", 3, &["--prefetch-buffer-size 2 raised to 3"]);
    check("--sim 2x24GiB --data-gpu 0 --model-gpu 1 --prefetch-buffer-size 2", 3, &["raised to 3"]);
    check("--sim 1x24GiB --prefetch-buffer-size 5", 5, &[]);
    check("--sim 1x24GiB --mode cpu --prefetch-buffer-size 2", 2, &[]);
    for (batch, slots) in [(1, 8), (8, 8), (12, 5), (16, 4), (32, 3), (64, 3)] {
        check(&format!("--sim 1x80GiB --batch-size {batch}"), slots, &[]);
    }
}

#[test]
fn two_gpus_keep_half_the_buffer_and_at_least_six() {
    let check = |line: &str, batches: u64| {
        assert_eq!(tandem_json(&format!("plan {line}")).1["buffer_size"], json!(batches), "{line}");
    };
    let two = "--sim 2x24GiB --data-gpu 0 --model-gpu 1";
    check(two, 25);
    check(&format!("{two} --buffer-size 100"), 50);
    check(&format!("{two} --buffer-size 9"), 6);
    check(&format!("{two} --buffer-size 1"), 6);
    check("--sim 1x24GiB", 50);
    check("--sim 1x24GiB --share-gpu --buffer-size 9", 9);
}

#[test]
fn a_default_batch_is_lowered_with_a_warning_and_a_given_one_never() {
    let two = "--sim 2x24GiB --data-gpu 0 --model-gpu 1 --enable-memory-isolation --model-gpu-memory 1024";
    let (ran, plan) = tandem_json(&format!("plan {two}"));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(plan["batch_size"].as_u64().unwrap() < 16, "{plan:#}");
    contains(&texts(&plan["notes"]).join("\n"), &["batch size lowered from 16 to"]);
    assert_eq!(tandem(&format!("plan {two} --batch-size 16")).code, 2);
}

#[test]
fn two_gpus_and_no_flags_get_one_hint() {
    let hints = |line: &str| tandem_json(&format!("plan {line}")).1["hints"].clone();
    let two = hints("--sim 2x24GiB");
    assert_eq!(two.as_array().unwrap().len(), 1, "{two}");
    contains(two[0].as_str().unwrap(), &["--data-gpu 0 --model-gpu 1", "--gpus all trains on all of them"]);
    let shown = tandem("plan --sim 2x24GiB").out;
    contains(&shown, &[two[0].as_str().unwrap()]);
    for line in ["--sim 1x24GiB", "--sim 2x24GiB --data-gpu 0 --model-gpu 1", "--sim 2x24GiB --mode single"] {
        assert_eq!(hints(line), json!([]), "{line}");
    }
}

#[test]
fn single_mode_uses_the_card_with_the_most_free_memory_and_names_it() {
    contains(&tandem("plan --sim 2x24GiB").out, &["GPU 0 has the most free memory"]);
    contains(&tandem("plan --sim 2x24GiB").out, &["  0  Simulated ", "  1  Simulated ", "total 24576 MB"]);
}

#[test]
fn the_speed_of_the_transfer_is_measured() {
    let mb_per_s = |line: &str| tandem_json(&format!("plan {line}")).1["transfer_mb_per_s"].clone();
    let pair = "--data-gpu 0 --model-gpu 1";
    assert!((10_000..13_000).contains(&mb_per_s(&format!("--sim 2x24GiB,pcie4 {pair}")).as_u64().unwrap()));
    assert!((150_000..211_000).contains(&mb_per_s(&format!("--sim 2x24GiB,nvlink {pair}")).as_u64().unwrap()));
    assert!((20_000..26_000).contains(&mb_per_s(&format!("--sim 2x24GiB,pcie4,peers {pair}")).as_u64().unwrap()));
    assert!(mb_per_s("--sim 1x24GiB").is_null(), "a hand-over copies nothing");
    contains(&tandem(&format!("plan --sim 2x24GiB {pair}")).out, &["GB/s measured"]);
}

#[test]
fn a_hidden_card_is_refused_by_name_and_only_when_asked_for() {
    let plan = tandem_json("plan --sim 3x24GiB,hidden=1").1;
    assert_eq!(plan["roles"]["model"]["gpu"], 0, "{plan}");
    assert_eq!(tandem("plan --sim 3x24GiB,hidden=1 --data-gpu 0 --model-gpu 2").code, 0);
    assert_eq!(tandem("plan --sim 3x24GiB,hidden=1 --mode cpu").code, 0);
    let refused = tandem("plan --sim 3x24GiB,hidden=1 --data-gpu 0 --model-gpu 1");
    assert_eq!(refused.code, 2, "{refused:?}");
    contains(&refused.err, &["GPU 1: ", "SIM-00000001", "is hidden by --sim hidden"]);
}

#[test]
fn hidden_cards_are_answered_with_both_numbers_and_with_pairs_that_work() {
    let cards = "--sim 4x24GiB,hidden=0+2";
    for asked in ["--data-gpu 0 --model-gpu 2", "--data-gpu 0 --model-gpu 9"] {
        let refused = tandem(&format!("plan {cards} {asked}"));
        assert_eq!(refused.code, 2, "{refused:?}");
        let numbers = "With --sim hidden=0+2, CUDA numbers them differently: GPU 1 is device 0, GPU 3 is device 1; GPUs 0, 2 are hidden";
        contains(
            &refused.err,
            &[numbers, "To use all GPUs: remove hidden=0+2 from --sim", "--data-gpu 1 --model-gpu 3"],
        );
    }
    assert_eq!(tandem(&format!("plan {cards} --data-gpu 1 --model-gpu 3")).code, 0);
    let folder = TempFolder::new();
    let doctor = TandemCommand::new(&format!("doctor {cards} --gpu 1 {SMALL}")).inside(&folder).run();
    contains(&doctor.out, &["hidden by --sim hidden=0+2", "remove hidden=0+2 from --sim", "GPU 3 is device 1"]);
}

#[test]
fn a_card_is_named_by_its_uuid_in_every_command_and_in_a_config() {
    let folder = TempFolder::new();
    let run = folder.path("run");
    let cards = ["--sim", "1GiB+2GiB,pcie3"];
    let ok = |line: &str, args: &[&std::ffi::OsStr]| {
        let ran = TandemCommand::new(line).args(args).args(cards).inside(&folder).run();
        assert_eq!(ran.code, 0, "{line}: {ran:?}");
        ran
    };
    let data = [std::ffi::OsStr::new("--train-data"), demo().as_os_str()];
    let pair = "--data-gpu SIM-00000001 --model-gpu sim-00000000-0000-0000-0000-000000000400";
    let plan = ok(&format!("plan {pair} --json"), &data);
    let plan: serde_json::Value = serde_json::from_str(&plan.out).unwrap();
    assert_eq!((&plan["roles"]["data"]["gpu"], &plan["roles"]["model"]["gpu"]), (&json!(1), &json!(0)));
    ok(&format!("validate {pair} {SMALL}"), &data);
    ok(&format!("train {pair} {SMALL} --max-steps 2 --checkpoint-dir run"), &data);
    ok(&format!("profile {pair} {SMALL} --num-steps 2"), &data);
    ok(&format!("doctor {pair} {SMALL} -o report.md"), &data);
    ok("bench memory --gpu SIM-00000001", &[]);
    ok("synthesize --gpu SIM-00000001 --text hello -o out.wav --checkpoint", &[run.as_os_str()]);
    let config = folder.file("c.yaml", "data:\n  gpu: SIM-00000001\n");
    let planned = TandemCommand::new("plan").args(cards).config(&config).run();
    contains(&planned.out, &["one GPU requested: GPU 1"]);
    for (flags, part) in [
        ("--gpu SIM-0000000", "❌ Invalid gpu=SIM-0000000, 2 GPUs have a UUID that begins like this: type more of it"),
        ("--data-gpu 0 --model-gpu SIM-2", "❌ Invalid model_gpu=SIM-2, no GPU has a UUID that begins like this"),
    ] {
        let refused = TandemCommand::new(&format!("plan {flags}")).args(cards).run();
        assert_eq!(refused.code, 2, "{refused:?}");
        contains(&refused.err, &[part, "GPU 0: Simulated 1024 MB (SIM-00000000-", "GPU 1: ", "What would work:"]);
    }
    let refused =
        TandemCommand::new("synthesize --gpu SIM-2 --text hello -o no.wav --checkpoint").arg(&run).args(cards);
    assert_eq!(refused.inside(&folder).run().code, 2);
}

#[test]
fn quiet_is_one_line() {
    let quiet = tandem("plan --sim 2x24GiB -q").out;
    assert_eq!(quiet.lines().count(), 1, "{quiet}");
    contains(&quiet, &["Plan: data ", "model "]);
}

#[test]
fn verbose_lists_peer_access() {
    // Other programs change the free disk, on the line of the checkpoints, meanwhile.
    let plan = |flags: &str| {
        let out = tandem(&format!("plan --sim 2x24GiB,nvlink {flags}")).out;
        out.split_inclusive('\n').filter(|line| !line.contains("Checkpoints:")).collect::<String>()
    };
    let (plain, verbose) = (plan(""), plan("-v"));
    assert!(verbose.starts_with(&plain) && verbose.len() > plain.len(), "{verbose}");
    contains(&verbose, &["Peer access: GPU 0 can access GPU 1", "Driver:      simulated"]);
}

#[test]
fn the_transfer_route_follows_the_links() {
    let check = |line: &str, route: &str| {
        assert_eq!(tandem_json(&format!("plan {line}")).1["transfer"], json!(route), "{line}");
    };
    check("--sim 2x24GiB,pcie4 --data-gpu 0 --model-gpu 1", "bounce");
    check("--sim 2x24GiB,nvlink --data-gpu 0 --model-gpu 1", "peer");
    check("--sim 2x24GiB,pcie4,peers --data-gpu 0 --model-gpu 1", "peer");
    check("--sim 2x24GiB,nvlink,no-peers --data-gpu 0 --model-gpu 1", "bounce");
    check("--sim 2x24GiB,nvlink --data-gpu 0 --model-gpu 1 --transfer bounce", "bounce");
    check("--sim 1x24GiB --share-gpu", "handover");
    check("--sim 1x24GiB", "handover");
}
