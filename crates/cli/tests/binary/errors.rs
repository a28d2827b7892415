//! Impossible requests: exit code 2, what was found, what to type instead, nothing on standard output.

use serde_json::{Value, json};

use crate::command::{TandemCommand, contains, in_order, texts};
use crate::machine::{FakeDriver, TempFolder, has_driver};

/// Prepares the machine that a command runs on.
type OnMachine<'a> = &'a dyn Fn(TandemCommand) -> TandemCommand;

/// Any machine: the devices are simulated.
const ANYWHERE: OnMachine<'static> = &|command| command;
const NO_GPU: OnMachine<'static> = &TandemCommand::without_gpu;

/// `plan` and `validate` refuse `line`, as text and as JSON, with all of `parts` in the message and all of `typed` in the
/// suggestions.
#[track_caller]
fn check(machine: OnMachine<'_>, line: &str, parts: &[&str], typed: &[&str]) -> Value {
    let mut document = Value::Null;
    for command in ["plan", "validate"] {
        let ran = machine(TandemCommand::new(&format!("{command} {line}"))).run();
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{command} {line}: {ran:?}");
        contains(&ran.err, parts);

        let with_json = machine(TandemCommand::new(&format!("{command} {line} --json"))).run();
        document = with_json.json();
        assert_eq!((with_json.code, &document["code"]), (2, &json!(2)), "{command} {line}: {with_json:?}");
        contains(document["error"].as_str().unwrap(), parts);
        let suggestions = texts(&document["suggestions"]);
        contains(&suggestions.join("\n"), typed);
        contains(&ran.err, &suggestions);
    }
    document
}

#[test]
fn half_a_pair_of_gpu_flags() {
    for line in ["--sim 2x24GiB --data-gpu 0", "--sim 2x24GiB --model-gpu 1", "--sim 2x24GiB --model-gpu 1 --share-gpu"]
    {
        check(ANYWHERE, line, &["--data-gpu and --model-gpu go together"], &["--gpu "]);
    }
    check(NO_GPU, "--data-gpu 0", &["--data-gpu and --model-gpu go together"], &[]);
}

#[test]
fn two_gpus_requested_where_there_are_fewer() {
    let message =
        |n: u32| format!("❌ Multi-GPU requires at least 2 GPUs, found {n} (Insufficient GPUs for Multi-GPU Mode)");
    let pair = "--data-gpu 0 --model-gpu 1";
    let single = ["--gpu 0", "--share-gpu"];
    check(ANYWHERE, &format!("--sim 1x24GiB {pair}"), &[&message(1)], &single);
    check(ANYWHERE, &format!("--sim 1x24GiB --mode dual {pair}"), &[&message(1)], &single);
    check(ANYWHERE, &format!("--sim 1x24GiB {pair} --enable-memory-isolation"), &[&message(1)], &single);
    check(NO_GPU, pair, &[&message(0)], &["--mode cpu"]);
}

#[test]
fn a_gpu_index_that_does_not_exist() {
    let check = |line: &str, message: &str| check(ANYWHERE, &format!("--sim 2x24GiB {line}"), &[message], &[]);
    check("--data-gpu 7 --model-gpu 0", "❌ Invalid data_gpu=7, must be 0-1");
    check("--data-gpu 0 --model-gpu 7", "❌ Invalid model_gpu=7, must be 0-1");
    check("--data-gpu 2 --model-gpu 2", "❌ Invalid data_gpu=2, must be 0-1");
    check("--gpu 2", "❌ Invalid gpu=2, must be 0-1");
    check("--share-gpu --gpu 2", "❌ Invalid gpu=2, must be 0-1");
}

#[test]
fn one_gpu_for_both_roles_unless_shared_on_purpose() {
    let message = "❌ data_gpu and model_gpu must be different (or add --share-gpu)";
    check(ANYWHERE, "--sim 2x24GiB --data-gpu 1 --model-gpu 1", &[message], &["--share-gpu"]);
    let two = "--sim 2x24GiB --share-gpu --data-gpu 0 --model-gpu 1";
    check(ANYWHERE, two, &["--share-gpu puts both roles on one card"], &[]);
}

#[test]
fn isolation_without_gpu_flags() {
    let message = "--enable-memory-isolation requires --data-gpu and --model-gpu (or --share-gpu)";
    check(ANYWHERE, "--sim 2x24GiB --enable-memory-isolation", &[message], &["--share-gpu"]);
    check(ANYWHERE, "--sim 2x24GiB --enable-memory-isolation --gpu 1", &[message], &["--share-gpu"]);
    check(NO_GPU, "--enable-memory-isolation", &[message], &[]);
}

#[test]
fn limits_without_isolation() {
    let pair = "--sim 2x24GiB --data-gpu 0 --model-gpu 1";
    for limit in ["--data-gpu-memory 4096", "--model-gpu-memory auto"] {
        let flag = limit.split(' ').next().unwrap();
        let line = format!("{pair} {limit}");
        check(ANYWHERE, &line, &[flag, "add --enable-memory-isolation"], &["--enable-memory-isolation"]);
    }
}

#[test]
fn modes_that_contradict_the_gpu_flags() {
    let check = |line: &str, part: &str, typed: &str| {
        check(ANYWHERE, &format!("--sim 2x24GiB {line}"), &[part], &[typed]);
    };
    check("--mode dual", "--mode dual needs --data-gpu and --model-gpu", "--data-gpu 0 --model-gpu 1");
    check("--mode single --data-gpu 0 --model-gpu 1", "--mode single", "--mode single");
    check("--mode single --share-gpu", "--mode single", "--mode single");
    check("--mode cpu --data-gpu 0 --model-gpu 1", "--mode cpu", "--mode cpu");
    check("--mode cpu --gpu 0", "--mode cpu", "--mode cpu");
}

#[test]
fn a_limit_over_the_free_memory_names_total_free_its_users_and_the_largest_limit_that_fits() {
    let held = ["total 24576 MB", "free 4096 MB", "20480 MB by another process (pid "];
    let largest = "The largest limit that fits: 4096 MB";
    let two = "--sim 2x24GiB,held=20GiB --data-gpu 0 --model-gpu 1 --enable-memory-isolation";
    let data = format!("{two} --data-gpu-memory 4097 --model-gpu-memory 2048");
    check(ANYWHERE, &data, &[&held[..], &["data limit of 4097 MB", largest]].concat(), &["--data-gpu-memory 4096"]);
    let model = format!("{two} --data-gpu-memory 2048 --model-gpu-memory 16384");
    check(ANYWHERE, &model, &[&held[..], &["model limit of 16384 MB", largest]].concat(), &["--model-gpu-memory 4096"]);
    let one = "--sim 1x24GiB,held=20GiB --share-gpu --enable-memory-isolation";
    let both = format!("{one} --data-gpu-memory 1024 --model-gpu-memory 3073");
    check(ANYWHERE, &both, &[&held[..], &["4096 MB together"]].concat(), &["--model-gpu-memory 3072"]);
}

#[test]
fn given_limits_over_the_free_memory_have_a_suggestion_with_gpus() {
    let line = "--sim 2x24GiB,held=20GiB --data-gpu 0 --model-gpu 1 --enable-memory-isolation";
    let line = &format!("{line} --data-gpu-memory 8192 --model-gpu-memory 16384");
    check(ANYWHERE, line, &["total 24576 MB", "free 4096 MB"], &["--model-gpu-memory"]);
}

#[test]
fn a_limit_too_small_shows_the_memory_table_largest_first_and_what_would_fit() {
    let two = "--sim 2x24GiB --data-gpu 0 --model-gpu 1 --enable-memory-isolation --batch-size 64";
    let line = format!("{two} --model-gpu-memory 2048");
    let families = ["--batch-size ", "--grad-accum ", "--max-mel-frames ", "--model-size ", "--model-gpu-memory "];
    let document = check(ANYWHERE, &line, &["The model role is ", " MB short on GPU 1"], &families);
    table_of(&document, &line, "model");
    let line = format!("{two} --data-gpu-memory 900");
    let document = check(ANYWHERE, &line, &["The data role is ", " MB short on GPU 0"], &["--buffer-size "]);
    table_of(&document, &line, "data");
    let line = "--sim 1x24GiB --share-gpu --enable-memory-isolation --model-size big --model-gpu-memory 4096";
    table_of(&check(ANYWHERE, line, &["The model role is "], &["--model-size "]), line, "model");
}

/// The lines of the role that does not fit are in the document and in the text, largest first.
#[track_caller]
fn table_of(document: &Value, line: &str, role: &str) {
    let demands = document["demands"].as_array().unwrap();
    let demand = demands.iter().find(|demand| demand["role"] == role).unwrap();
    assert!(demand["needed_bytes"].as_u64() > demand["limit_bytes"].as_u64(), "{demand}");
    let lines = demand["lines"].as_array().unwrap();
    let sizes: Vec<u64> = lines.iter().map(|line| line["bytes"].as_u64().unwrap()).collect();
    assert!(sizes.len() > 2 && sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
    let names: Vec<String> = lines.iter().map(|line| format!("  {}\n", line["name"].as_str().unwrap())).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    in_order(&TandemCommand::new(&format!("plan {line}")).run().err, &names);
}

#[test]
fn gpu_flags_on_a_machine_without_a_gpu_name_the_library_and_the_searched_folders() {
    let pair = "--data-gpu 0 --model-gpu 1";
    for line in [pair, "--gpu 0", "--mode single", "--share-gpu", "--share-gpu --enable-memory-isolation"] {
        check(NO_GPU, line, &["libcuda.so.1", "searched", "--mode cpu works"], &["--mode cpu"]);
    }
}

#[test]
fn a_gpu_without_a_driver_does_not_fall_back_to_the_cpu_silently() {
    let machine = TempFolder::with_card();
    // A file that is not a library is skipped, as by the system's loader.
    machine.file("libcuda.so.1", "not a library");
    if has_driver() {
        // The real driver would be found next; an unusable one has the same effect.
        FakeDriver { init: 999, version: 13000 }.install(&machine);
    }
    for line in ["", "--gpu 0", "--data-gpu 0 --model-gpu 1", "--share-gpu"] {
        let folder = machine.path("libcuda.so.1");
        let parts = ["libcuda.so.1", folder.to_str().unwrap(), "--mode cpu works"];
        check(&|command| command.on(&machine), line, &parts, &["--mode cpu"]);
    }
    assert_works_on_the_cpu(&machine);
}

#[test]
fn a_gpu_whose_driver_is_missing_lists_every_searched_folder() {
    if has_driver() {
        let what = "the message about a missing driver";
        return tandem_test_support::skip("TANDEM_REQUIRE_NO_DRIVER", what, "this machine has a driver");
    }
    let machine = TempFolder::with_card();
    let parts = ["libcuda.so.1 was not found", "searched", "/usr/lib/x86_64-linux-gnu", "--mode cpu works"];
    check(&|command| command.on(&machine), "", &parts, &["--mode cpu"]);
    assert_works_on_the_cpu(&machine);
}

#[test]
fn a_driver_too_old_is_refused_with_the_version_found_and_the_one_needed() {
    let machine = TempFolder::with_card();
    FakeDriver { init: 0, version: 11040 }.install(&machine);
    let path = machine.path("libcuda.so.1");
    let parts = ["libcuda.so.1", "too old", "11.4", "12.2", "535", "--mode cpu works", path.to_str().unwrap()];
    check(&|command| command.on(&machine), "", &parts, &["--mode cpu"]);
    assert_works_on_the_cpu(&machine);
}

#[track_caller]
fn assert_works_on_the_cpu(machine: &TempFolder) {
    let ran = TandemCommand::new("plan --mode cpu --json").on(machine).run();
    assert_eq!((ran.code, &ran.json()["mode"]), (0, &json!("cpu")), "{ran:?}");
}

#[test]
fn cards_that_are_too_old_are_refused_with_found_and_needed() {
    check(ANYWHERE, "--sim 2x24GiB,cc=7.0", &["7.0", "7.5", "--mode cpu"], &["--mode cpu"]);
    let bf16 = "--sim 1x24GiB,cc=7.5 --mixed-precision";
    check(ANYWHERE, bf16, &["7.5", "bf16 needs 8.0"], &["--no-mixed-precision"]);
    let ran = TandemCommand::new("plan --sim 1x24GiB,cc=7.5 --json").run();
    assert_eq!((ran.code, &ran.json()["mixed_precision"]), (0, &json!(false)), "{ran:?}");
}

#[test]
fn transfer_routes_that_are_not_available() {
    let pair = "--sim 2x24GiB,pcie4 --data-gpu 0 --model-gpu 1";
    check(ANYWHERE, &format!("{pair} --transfer peer"), &["--transfer peer"], &["--transfer bounce"]);
    check(ANYWHERE, &format!("{pair} --transfer handover"), &["--transfer handover"], &["--transfer auto"]);
    check(NO_GPU, "--transfer bounce", &["--transfer bounce"], &["--transfer auto"]);
}

#[test]
fn a_batch_that_does_not_divide_is_never_changed() {
    let line = "--sim 1x24GiB --batch-size 10 --grad-accum 4";
    check(ANYWHERE, line, &["--grad-accum 4 must divide --batch-size 10"], &["--grad-accum 2", "--batch-size 8"]);
}
