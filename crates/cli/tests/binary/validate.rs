//! `validate`: five checks that pass on every kind of machine and name what fails.

use serde_json::json;

use crate::command::{Ran, SMALL, TandemCommand, contains, in_order, tandem, tandem_json};

const HEADINGS: [&str; 5] = [
    "1. Checking prerequisites...\n",
    "2. Validating device placement configuration...\n",
    "3. Testing model creation on GPU:1...\n",
    "4. Testing data transfer between GPUs...\n",
    "5. Simulating training pipeline...\n",
];

const PASSED: &str = "🎉 All validation checks passed!";

#[track_caller]
fn passed(ran: &Ran, parts: &[&str]) {
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    contains(&ran.out, parts);
    contains(&ran.out, &[PASSED]);
    assert!(!ran.out.contains('❌'), "{ran:?}");
}

#[test]
fn two_gpus_pass_under_the_five_headings() {
    let ran = tandem(&format!("validate --sim 2x24GiB,pcie4 --data-gpu 0 --model-gpu 1 {SMALL}"));
    let parts = [
        "✅ GPU indices valid: data_gpu=0, model_gpu=1",
        "✅ A byte past the data reservation of ",
        "✅ A byte past the model reservation of ",
        "✅ Model created successfully on GPU:1",
        "✅ Data transfer successful",
        "GB/s (bounce",
        "✅ Pipeline simulation successful",
        "✅ The optimizer changed ",
        "✅ 0 device and 0 pinned allocations after warm-up",
        "(2 GPUs)",
    ];
    passed(&ran, &parts);
    in_order(&ran.out.replace("[simulated] ", ""), &[&HEADINGS[..], &[PASSED]].concat());
    let plan = tandem_json("plan --sim 2x24GiB").1;
    contains(&ran.out, &[plan["gpus"][0]["uuid"].as_str().unwrap(), plan["gpus"][1]["uuid"].as_str().unwrap()]);
}

#[test]
fn broken_peer_copies_are_replaced_with_a_warning() {
    let line = "--sim 2x24GiB,nvlink,corrupt-peer --data-gpu 0 --model-gpu 1";
    let ran = tandem(&format!("validate {line} {SMALL}"));
    let refused = "peer refused: peer: the copy from GPU 0 to GPU 1 changed";
    passed(&ran, &["⚠️ bounce (peer-copy does not work)", refused, "peer-copy refused: ", "GB/s (bounce"]);
    let (_, plan) = tandem_json(&format!("plan {line}"));
    assert_eq!(plan["transfer"], "bounce");
    let (_, document) = tandem_json(&format!("validate {line} {SMALL}"));
    assert_eq!(document["plan"]["transfer"], "bounce", "the document names the route that ran");
    assert!(document["plan"]["transfer_mb_per_s"].is_number());
    contains(plan["notes"][0].as_str().unwrap(), &["⚠️ bounce (peer does not work)", refused]);
    let tried: Vec<&str> =
        plan["transfer_tried"].as_array().unwrap().iter().map(|tried| tried["route"].as_str().unwrap()).collect();
    assert_eq!(tried, ["peer", "peer-copy", "staged", "bounce"]);
    assert!(plan["transfer_tried"][2]["mb_per_s"].is_number(), "{plan}");
    // An explicit --transfer peer has no fallback.
    let forced = tandem(&format!("validate {line} {SMALL} --transfer peer"));
    assert_eq!(forced.code, 1, "{forced:?}");
    contains(&forced.out, &["❌ peer: the copy from GPU 0 to GPU 1 changed", "Try --transfer bounce"]);
}

/// Some drivers do one of the two calls for a peer copy wrong; others offer peer access and refuse it.
#[test]
fn the_other_peer_copy_is_used_if_only_one_works() {
    let check = |fault: &str, route: &str| {
        let line = format!("--sim 2x24GiB,nvlink,{fault} --data-gpu 0 --model-gpu 1");
        let (_, plan) = tandem_json(&format!("plan {line}"));
        assert_eq!(plan["transfer"], route, "{fault}: {plan}");
        let (ran, document) = tandem_json(&format!("validate {line} {SMALL}"));
        assert_eq!((ran.code, &document["plan"]["transfer"]), (0, &json!(route)), "{fault}");
    };
    check("corrupt=peer", "peer-copy");
    check("corrupt=peer-copy", "peer");
    check("corrupt=staged", "peer");
    check("refuse-peer-access", "bounce");
}

/// The copy may still write later: the process ends, with what to type.
#[test]
fn a_copy_that_never_ends_is_an_error_in_time() {
    let ran = tandem(&format!("validate --sim 2x24GiB,nvlink,stuck=peer --data-gpu 0 --model-gpu 1 {SMALL}"));
    assert_eq!(ran.code, 1, "{ran:?}");
    contains(
        &ran.out,
        &["GPU 0 did not finish within 10 s: copying a batch to the other card", "Try --transfer bounce"],
    );
    let other = tandem(&format!(
        "validate --sim 2x24GiB,nvlink,stuck=peer --data-gpu 0 --model-gpu 1 --transfer bounce {SMALL}"
    ));
    assert_eq!(other.code, 0, "{other:?}");
}

#[test]
fn a_lost_card_is_not_taken_for_a_broken_peer_copy() {
    for command in [120, 150, 180, 200] {
        let ran =
            tandem(&format!("validate --sim 2x24GiB,nvlink,lose-card={command} --data-gpu 0 --model-gpu 1 {SMALL}"));
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(!ran.out.contains("does not work"), "{ran:?}");
    }
}

#[test]
fn a_driver_that_uses_more_than_planned_fails_with_what_to_do() {
    let ran =
        tandem(&format!("validate --sim 1x24GiB,driver-grows=200MiB --share-gpu --enable-memory-isolation {SMALL}"));
    assert_eq!(ran.code, 1, "{ran:?}");
    contains(&ran.out, &["❌ this process uses", "over its limit", "raise the limits by 64 MB"]);
    let unlimited = tandem(&format!("validate --sim 1x24GiB,driver-grows=200MiB {SMALL}"));
    assert_eq!(unlimited.code, 1, "{unlimited:?}");
    contains(&unlimited.out, &["❌ the driver uses 7", "raise the limits by 64 MB"]);
}

#[test]
fn without_a_figure_per_process_the_free_memory_of_the_card_is_printed() {
    let line = "--sim 1x24GiB,no-process-figure --share-gpu --enable-memory-isolation";
    let ran = tandem(&format!("validate {line} {SMALL}"));
    passed(&ran, &["The driver gives no figure for this process on GPU 0: free memory fell by "]);
    assert!(!ran.out.contains("Process use"), "{ran:?}");
}

/// A desktop on the card, which is not the process that is validated.
#[test]
fn a_desktop_that_allocates_and_frees_meanwhile_fails_nothing() {
    for seed in 1..4 {
        let cards = format!("--sim 2x24GiB,desktop=512MiB,seed={seed} --data-gpu 0 --model-gpu 1");
        let ran = tandem(&format!("validate {cards} {SMALL}"));
        passed(&ran, &["Process memory on GPU 0 did not grow", "Process memory on GPU 1 did not grow"]);
    }
    let without_figure = "--sim 1x24GiB,desktop=512MiB,no-process-figure,seed=1 --gpu 0";
    let ran = tandem(&format!("validate {without_figure} {SMALL}"));
    let warning = "⚠️ The driver gives no figure for this process on GPU 0: free memory went from ";
    passed(&ran, &[warning, "during the steps, other processes included"]);
}

#[test]
fn memory_that_this_process_leaks_outside_its_arenas_fails_with_a_desktop_too() {
    for desktop in ["", ",desktop=512MiB"] {
        let ran = tandem(&format!("validate --sim 1x24GiB,gemm-leak=1MiB{desktop} --gpu 0 {SMALL}"));
        assert_eq!(ran.code, 1, "{ran:?}");
        contains(
            &ran.out,
            &["❌ Process memory on GPU 0 grew during the steps: from ", "Memory leaks outside the arenas"],
        );
    }
}

#[test]
fn a_limit_is_named_where_there_is_one() {
    let ran = tandem(&format!("validate --sim 1x24GiB --share-gpu --enable-memory-isolation {SMALL}"));
    passed(
        &ran,
        &["✅ A byte past the data limit of 7936 MB refused, by the driver's pool too; model role keeps working"],
    );
}

#[test]
fn split_arenas_claim_no_reservation() {
    let line = format!("validate --sim 1x24GiB --share-gpu --enable-memory-isolation {SMALL}");
    let ran = TandemCommand::new(&line).env("TANDEM_ARENA", "split").run();
    passed(&ran, &["Split arena for the data role"]);
    assert!(!ran.out.contains("Isolation configured"), "{ran:?}");
    let pair = format!("validate --sim 2x24GiB,nvlink --data-gpu 0 --model-gpu 1 {SMALL}");
    passed(&TandemCommand::new(&pair).env("TANDEM_ARENA", "split").run(), &["GB/s (peer: "]);
    assert!(!ran.out.contains("Reserved ") && !ran.out.contains("driver's pool"), "{ran:?}");
}

#[test]
fn every_mode_and_every_transfer_route_passes() {
    let two = "--data-gpu 1 --model-gpu 0";
    let shared = "--sim 1x24GiB --share-gpu --enable-memory-isolation";
    for (line, route) in [
        ("--sim 1x24GiB".to_owned(), "handover"),
        ("--sim 1x24GiB --share-gpu".to_owned(), "handover"),
        (shared.to_owned(), "handover"),
        (format!("{shared} --transfer handover"), "handover"),
        (format!("{shared} --transfer peer"), "(peer"),
        (format!("{shared} --transfer bounce"), "(bounce"),
        (format!("--sim 2x24GiB,nvlink {two}"), "(peer"),
        (format!("--sim 2x24GiB,nvlink {two} --transfer bounce"), "(bounce"),
        (format!("--sim 2x24GiB,pcie3 {two} --enable-memory-isolation"), "(bounce"),
    ] {
        let ran = tandem(&format!("validate {line} {SMALL}"));
        passed(&ran, &["✅ Pipeline simulation successful", route]);
        let isolated = ["refused, by the driver's pool too", "✅ GPU Memory Isolation configured successfully"];
        contains(&ran.out, if line.contains("isolation") { &isolated } else { &[] });
        contains(
            &ran.out.replace("[simulated] ", ""),
            &[HEADINGS[0], HEADINGS[1], "\n4. Testing data transfer ", HEADINGS[4]],
        );
    }
}

#[test]
fn the_cpu_passes_and_mentions_no_gpu() {
    let ran = TandemCommand::new(&format!("validate {SMALL}")).without_gpu().run();
    passed(&ran, &["3. Testing model creation on the CPU...", "🚀 Intelligent GPU Pipeline: CPU Mode"]);
    for part in ["GPU 0", "GPU:0", "GPU indices"] {
        assert!(!ran.out.contains(part), "{part} in\n{}", ran.out);
    }
}

#[test]
fn the_headings_name_the_device_in_force() {
    let heading = |line: &str, part: &str| {
        contains(&tandem(&format!("validate {line} {SMALL}")).out, &["3. Testing model creation on ", part]);
    };
    heading("--sim 1x24GiB", "model creation on GPU:0...");
    heading("--sim 1x24GiB --share-gpu", "model creation on GPU:1...");
    heading("--sim 1x24GiB --mode cpu", "model creation on the CPU...");
}

#[test]
fn the_start_up_lines_come_in_order() {
    let line = format!(
        "validate --sim 4x24GiB --data-gpu 2 --model-gpu 3 --buffer-size 50 {}",
        SMALL.replace("--buffer-size 4", "")
    );
    let lines = [
        "🎯 Configuring Multi-GPU Mode...",
        "   Data Processing GPU: 2",
        "   Model Training GPU: 3",
        "   Set visible devices: GPU 2 and GPU 3",
        "   Reserved ",
        " MB for data GPU",
        "   Reserved ",
        " MB for model GPU",
        "✅ Multi-GPU configuration completed successfully",
        "🚀 Intelligent GPU Pipeline: Multi-GPU Mode",
        "   - Data Processing GPU: 2",
        "   - Model Training GPU: 3",
        "   - Prefetching to /GPU:0 with buffer_size=25",
        "🎯 Multi-GPU Mode: Model will be placed on /GPU:1",
        "   (Original GPU 3 is now mapped to GPU:1)",
        "Creating model on device: /GPU:1",
        "🕐 Multi-GPU Mode: Waiting up to 2.0s for data pipeline to warm up...",
        "✅ Model training starting now",
    ];
    let ran = tandem(&line);
    contains(&ran.out, &lines);
    let isolated = tandem(&format!("{line} --enable-memory-isolation"));
    let limits = [
        "🎯 Setting up GPU Memory Isolation...",
        "   Reserved 8192 MB for data GPU",
        "   Reserved 16384 MB for model GPU",
        "✅ GPU Memory Isolation configured successfully",
    ];
    in_order(&isolated.out, &limits);
    in_order(&ran.out, &lines);
}

#[test]
fn one_gpu_prints_its_buffering() {
    let ran = tandem(&format!("validate --sim 1x24GiB {SMALL}"));
    let lines = [
        "🚀 Intelligent GPU Pipeline: Single-GPU Buffered Mode",
        "   - Buffer Size: 4",
        "   - Smart Prefetching: Enabled",
        "   - Prefetching to /GPU:0 with buffer_size=4",
    ];
    in_order(&ran.out, &lines);
}

#[test]
fn a_passed_validation_prints_the_command_to_run() {
    let ran = tandem(&format!("validate --sim 2x24GiB --data-gpu 0 --model-gpu 1 {SMALL}"));
    let (_, after) = ran.out.split_once(PASSED).unwrap();
    contains(after, &["tandem ", "--data-gpu 0", "--model-gpu 1", "--batch-size 2"]);
}

/// With `fault` injected, the validation names it and ends with exit code 1, as text and as JSON.
#[track_caller]
fn check_fault(devices: &str, fault: &str, named: &[&str]) -> Ran {
    let (machine, flags) = devices.split_once(' ').unwrap();
    let line = format!("validate --sim {machine},{fault} {flags} {SMALL}");
    let ran = tandem(&line);
    assert_eq!(ran.code, 1, "{line}: {ran:?}");
    assert!(!ran.both().contains('🎉') && !ran.err.contains("panicked"), "{line}: {ran:?}");
    let printed = ran.both();
    let errors: Vec<&str> = printed.lines().filter(|line| line.contains('❌')).collect();
    assert!(
        named.iter().any(|name| errors.iter().any(|error| error.contains(name))),
        "{line}: {named:?} in {errors:?}"
    );

    let with_json = tandem(&format!("{line} --json"));
    assert_eq!((with_json.code, &with_json.json()["passed"]), (1, &json!(false)), "{line}: {with_json:?}");
    assert!(!with_json.err.contains("panicked"), "{line}: {with_json:?}");
    ran
}

const TWO: &str = "2x24GiB --data-gpu 0 --model-gpu 1";
const SHARED: &str = "1x24GiB --share-gpu --enable-memory-isolation --transfer bounce";

#[test]
fn refused_memory_is_named() {
    for number in [0, 1, 2, 3, 5, 7, 9] {
        let named = ["GPU 0 is out of memory", "GPU 1 is out of memory", "pinned (page-locked) memory"];
        check_fault(TWO, &format!("refuse-allocation={number}"), &named);
    }
    for number in [0, 1, 4] {
        check_fault(
            SHARED,
            &format!("refuse-allocation={number}"),
            &["GPU 0 is out of memory", "pinned (page-locked) memory"],
        );
    }
}

#[test]
fn failed_copies_are_named() {
    for number in [0, 1, 2, 3, 6, 10, 25, 50] {
        check_fault(TWO, &format!("fail-copy={number}"), &["copy failed on GPU "]);
    }
    for number in [0, 8, 30] {
        check_fault(SHARED, &format!("fail-copy={number}"), &["copy failed on GPU 0"]);
    }
}

#[test]
fn lost_cards_are_named() {
    for number in [2, 3, 6, 10, 15, 30, 60, 120, 250, 500] {
        check_fault(TWO, &format!("lose-card={number}"), &["GPU 0 was lost", "GPU 1 was lost"]);
    }
    for number in [1, 20, 200] {
        check_fault(SHARED, &format!("lose-card={number}"), &["GPU 0 was lost"]);
    }
}

#[test]
fn a_card_lost_during_the_survey_is_named() {
    check_fault(TWO, "lose-card=0", &["GPU 0 was lost"]);
}

#[test]
fn memory_taken_by_another_process_is_named() {
    let isolated = "2x24GiB --data-gpu 0 --model-gpu 1 --enable-memory-isolation";
    check_fault(isolated, "intruder=20GiB", &["GPU 0 is out of memory", "GPU 1 is out of memory"]);
    check_fault("1x24GiB --share-gpu --enable-memory-isolation", "intruder=20GiB", &["GPU 0 is out of memory"]);
    check_fault(TWO, "intruder=24GiB", &["GPU 0 is out of memory", "GPU 1 is out of memory"]);
}

#[test]
fn a_fault_that_is_never_reached_changes_nothing() {
    for fault in ["refuse-allocation", "fail-copy", "lose-card"] {
        let ran = tandem(&format!("validate --sim 2x24GiB,{fault}=1000000 --data-gpu 0 --model-gpu 1 {SMALL}"));
        passed(&ran, &[]);
    }
}

#[test]
fn a_failed_first_check_skips_the_rest_with_a_message() {
    let ran = check_fault(TWO, "lose-card=3", &["GPU 1 was lost"]);
    contains(&ran.out, &["1. Checking prerequisites...", "Skipped checks 2 to 5"]);
    assert!(!ran.out.contains("2. Validating"), "{ran:?}");
}

#[test]
fn a_failed_validation_lists_the_failed_checks_and_what_to_do() {
    let ran = tandem(&format!("validate --sim 2x24GiB,refuse-allocation=0 --data-gpu 0 --model-gpu 1 {SMALL} -q"));
    let lines: Vec<&str> = ran.out.lines().collect();
    contains(&ran.out, &["❌ Validation failed:", "2. GPU 0 is out of memory"]);
    assert!(lines.len() > 2, "no line has advice: {lines:?}");
}

#[test]
fn the_document_has_every_check_and_no_limit_was_exceeded() {
    let (ran, report) = tandem_json(&format!("validate --sim {TWO} --enable-memory-isolation {SMALL}"));
    let checks = report["checks"].as_array().unwrap();
    assert!((1..=5).all(|number| checks.iter().any(|check| check["number"] == number)), "{report:#}");
    assert!(checks.iter().all(|check| check["passed"] == true), "{report:#}");
    for check in checks {
        contains(&ran.err, &[check["text"].as_str().unwrap()]);
    }
    for (card, role) in ["data", "model"].into_iter().enumerate() {
        let (peak, limit) = (&report["cards"][card]["peak_bytes"], &report["plan"]["roles"][role]["limit_bytes"]);
        assert!(peak.as_u64() <= limit.as_u64(), "{role}: {peak} of {limit}");
    }
}

#[test]
fn an_optimizer_without_effect_is_a_failure() {
    // So small that only weights of 0 change when it is added.
    let ran = tandem(&format!("validate --mode cpu {SMALL} --lr 1e-30"));
    assert_eq!(ran.code, 1, "{ran:?}");
    contains(&ran.out, &["❌ The optimizer has too little effect: 1 % of the weights changed", "Raise --lr"]);
}
