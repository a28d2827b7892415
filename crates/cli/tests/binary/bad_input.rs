//! Wrong flags and config files: exit code 2, what was expected, what was found, and where.

use serde_json::json;

use tandem_plan::{RETIRED, Retired};

use crate::command::{Ran, TandemCommand, contains, in_order, tandem, tandem_json};
use crate::machine::TempFolder;
use crate::speech::demo;

const TWO: &str = "plan --sim 2x24GiB --data-gpu 0 --model-gpu 1";

/// Wrong usage, reported on standard error only, without a panic.
#[track_caller]
fn refused(ran: &Ran, parts: &[&str]) {
    assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{ran:?}");
    contains(&ran.err, parts);
    assert!(!ran.err.contains("panicked"), "{ran:?}");
}

/// Wrong usage, reported as a JSON document.
#[track_caller]
fn refused_json(ran: &Ran, part: &str) {
    assert_eq!(ran.code, 2, "{ran:?}");
    let refusal = ran.json();
    assert_eq!(refusal["code"], json!(2), "{refusal}");
    contains(refusal["error"].as_str().unwrap(), &[part]);
    assert!(refusal["suggestions"].is_array(), "{refusal}");
}

const LIMITS: [&str; 11] =
    ["0", "-5", "abc", "99999999", "99999999999999999999", "auto:2", "auto:x", "auto:", "auto:-0.1", "8GB", "4096.5"];

#[test]
fn invalid_limits() {
    for flag in ["--data-gpu-memory", "--model-gpu-memory"] {
        for limit in LIMITS {
            let ran = tandem(&format!("{TWO} --enable-memory-isolation {flag} {limit}"));
            refused(&ran, &[flag, "expected a limit from 1 to 16777216 MB", &format!("found `{limit}`")]);
        }
    }
}

#[test]
fn an_empty_address_is_refused_with_one_that_works() {
    let ran = TandemCommand::new("train --mode cpu --max-steps 1 --prometheus").arg("").run();
    refused(
        &ran,
        &["--prometheus: expected a port or an address to listen at, found ``; for example --prometheus 9090"],
    );
}

#[test]
fn a_limit_of_more_than_any_card_has_is_over_what_is_free() {
    for limit in ["24577", "9999999"] {
        let ran = tandem(&format!("{TWO} --enable-memory-isolation --model-gpu-memory {limit}"));
        refused(&ran, &[&format!("limit of {limit} MB exceeds"), "The largest limit that fits: 24576 MB"]);
    }
}

#[test]
fn invalid_counts() {
    for flag in ["--batch-size", "--grad-accum", "--buffer-size", "--prefetch-buffer-size", "--num-workers"] {
        for count in ["0", "-1", "x", "1.5", "99999999999999999999"] {
            refused(&tandem(&format!("{TWO} {flag} {count}")), &[flag, "expected a whole number", count]);
        }
    }
    for name in ["-1", "x", "0.5", "1024", "GPU-", "GPU-8f2d/"] {
        let expected = "expected a GPU number from 0 to 1023, or a UUID or the start of one (`GPU-8f2d`)";
        refused(&tandem(&format!("plan --sim 2x24GiB --gpu {name}")), &["--gpu", expected, name]);
    }
}

#[test]
fn invalid_words_and_times() {
    refused(&tandem(&format!("{TWO} --model-size huge")), &["--model-size", "nano, tiny, small, normal, big", "huge"]);
    refused(&tandem(&format!("{TWO} --mode duel")), &["--mode", "`duel`", "for example --mode dual"]);
    refused(&tandem(&format!("{TWO} --transfer pigeon")), &["--transfer", "peer, peer-copy, staged, bounce, handover"]);
    for time in ["-1", "x", "NaN", "inf", "4000"] {
        refused(&tandem(&format!("{TWO} --model-start-delay {time}")), &["--model-start-delay", "seconds", time]);
    }
    let both = tandem(&format!("{TWO} --mixed-precision --no-mixed-precision"));
    refused(&both, &["--mixed-precision", "cannot be used with"]);
}

#[test]
fn invalid_simulated_machines() {
    let cards = "x 2 2x x24GiB 0x24GiB 65x24GiB -1x24GiB 2x24 2xGiB 2x1MiB 2x0GiB 2x99999999999999999999GiB 2x24gib \
                 8GiB 8GiB+ +8GiB 8GiB+16 8GiB+1MiB 60x8GiB+5x8GiB";
    let options =
        ", ,warp ,held= ,held=25GiB ,seed=x ,skew=10001 ,hidden=2 ,peers=1 ,cc=8 ,fail-copy=-1 ,nvlink=2 ,,pcie4";
    let options = options.split(' ').map(|option| format!("2x24GiB{option}"));
    for spec in cards.split(' ').map(str::to_owned).chain(options).chain([String::new(), "２x24GiB".to_owned()]) {
        let ran = TandemCommand::new("plan").arg("--sim").arg(&spec).run();
        refused(&ran, &["--sim", "expected COUNTxSIZE", "2x24GiB"]);
    }
}

#[test]
fn wrong_values_are_reported_as_json_with_the_json_flag() {
    refused_json(&tandem("plan --batch-size 0 --json"), "--batch-size");
    refused_json(&tandem("plan --sim 2x24 --json"), "--sim 2x24");
    refused_json(&tandem("validate --model-size huge --json"), "--model-size");
    refused_json(&tandem("plan --config /nonexistent.yaml --json"), "/nonexistent.yaml");
}

#[test]
fn unknown_flags_and_commands() {
    refused(&tandem("plan --frobnicate"), &["--frobnicate"]);
    refused(&tandem("plan --bach-size 8"), &["--bach-size", "--batch-size"]);
    refused(&tandem("plan 7"), &["7"]);
    refused(&tandem("plan --batch-size"), &["--batch-size"]);
    refused(&tandem("plan --batch-size 4 --batch-size 8"), &["--batch-size"]);
    refused(&tandem("plam"), &["plam", "plan"]);
    refused(&tandem("--sim 2x24GiB"), &["--sim"]);
}

/// Runs `plan` on one simulated card with this text as its config.
fn with_config(text: impl AsRef<[u8]>) -> Ran {
    let folder = TempFolder::new();
    TandemCommand::new("plan --sim 1x24GiB --json").config(&folder.file("c.yaml", text)).run()
}

#[test]
fn invalid_configs() {
    let check = |text: &[u8], parts: &[&str]| {
        let folder = TempFolder::new();
        let file = folder.file("c.yaml", text);
        let ran = TandemCommand::new("plan --sim 1x24GiB").config(&file).run();
        refused(&ran, &[parts, &[file.to_str().unwrap()]].concat());
    };
    check(b"data: [1, 2\n", &["not YAML"]);
    check(b"data:\n\t- x\n", &["c.yaml:2", "not YAML"]);
    check(b"- a\n- b\n", &["c.yaml:1", "expected sections, found a list"]);
    check(b"data: 5\n", &["c.yaml:1", "data"]);
    check(b"data:\n  gpu: [0, 1]\n", &["c.yaml:2: data.gpu: expected a GPU number", "found a list"]);
    check(b"training:\n  batch_size: many\n", &["c.yaml:2: training.batch_size: expected a whole number", "`many`"]);
    check(b"training:\n  batch_size: 0\n", &["c.yaml:2: training.batch_size", "`0`"]);
    check(b"data:\n  share_gpu: perhaps\n", &["c.yaml:2: data.share_gpu: expected true or false"]);
    check(b"data:\n  gpu: 0\n  gpu: 1\n", &["c.yaml:3", "set twice"]);
    check(b"a: b\n---\nc: d\n", &["one YAML document"]);
    check(b"data:\n  gpu: \xff\n", &["UTF-8", "byte 13"]);
    check(&[b'#'; 1 << 20], &["a few KB of YAML"]);
}

#[test]
fn an_unknown_key_is_named_with_its_line_and_the_nearest_one() {
    let check = |text: &str, parts: &[&str]| {
        let folder = TempFolder::new();
        refused(&TandemCommand::new("plan --sim 1x24GiB").config(&folder.file("c.yaml", text)).run(), parts);
    };
    check("training:\n  batchsize: 8\n", &["c.yaml:2", "`training.batchsize`", "`training.batch_size`"]);
    check("data:\n  num_worker: 8\n", &["c.yaml:2", "`data.num_worker`", "`data.num_workers`"]);
    check("\n\ntrainig:\n  seed: 1\n", &["c.yaml:3", "`trainig`", "`training`"]);
}

#[test]
fn all_errors_of_a_config_are_reported_at_once() {
    let folder = TempFolder::new();
    let text = "data:\n  num_worker: 8\n  cashe: none\ntrainig:\n  seed: 1\nmodel:\n  model_size: huge\n  sise: big\n";
    let file = folder.file("c.yaml", text);
    let ran = TandemCommand::new("train --sim 1x24GiB").config(&file).run();
    let parts = [
        "5 problems in the config file\n",
        "c.yaml:2: unknown key `data.num_worker`; did you mean `data.num_workers`?",
        "c.yaml:3: unknown key `data.cashe`; did you mean `data.cache`?",
        "c.yaml:4: unknown section `trainig`; did you mean `training`?",
        "c.yaml:7: model.model_size: expected one of nano, tiny, small, normal, big, found `huge`",
        "c.yaml:8: unknown key `model.sise`; did you mean `",
    ];
    refused(&ran, &parts);
    in_order(&ran.err, &parts);
    refused_json(&TandemCommand::new("plan --sim 1x24GiB --json").config(&file).run(), parts[4]);
}

/// A config as a trainer of XTTS models in Python has it: what has a counterpart works, the rest has one warning per line.
#[test]
fn the_config_of_a_python_trainer_works() {
    let text = "model:\n  text_encoder_dim: 512\n  max_text_length: 500\n  use_gst: true\n  languages: [en, fa]\n\
                data:\n  dataset_path: DEMO\n  language: en\n  batch_size: 6\n  mixed_precision: false\n  \
                num_workers: 3\n  text_cleaners:\n    - english_cleaners\n  prefetch_to_gpu: true\n  \
                train_subset_size: 100\n  pad_to_fixed_length: true\n\
                training:\n  learning_rate: 1.0e-4\n  epochs: 7\n  scheduler_params: {}\n  save_step: 40\n\
                gpu:\n  gpu_memory_growth: true\n  enable_xla: true\ntrainer:\n  output_path: runs\n";
    let folder = TempFolder::new();
    let file = folder.file("c.yaml", text.replace("DEMO", demo().to_str().unwrap()));
    let ran = TandemCommand::new("plan --sim 1x24GiB --model-size nano --json").config(&file).run();
    let plan = ran.json();
    let found = ["batch_size", "mixed_precision", "threads"].map(|key| &plan[key]);
    assert_eq!(found, [&json!(6), &json!(false), &json!(3)], "{ran:?}");
    let training = &plan["training"];
    let found = ["epochs", "peak_lr", "checkpoint_dir"].map(|key| &training[key]);
    assert_eq!(found, [&json!(7), &json!(1e-4), &json!("runs")], "{training}");
    assert_eq!(plan["corpus"]["path"], json!(demo().to_str().unwrap()));
    let warned: Vec<&str> = ran.err.lines().filter(|line| line.contains(" has no effect: ")).collect();
    assert_eq!(warned.len(), 10, "{ran:?}");
    contains(&ran.err, &["c.yaml:15: `train_subset_size` has no effect: data.exclude_ids leaves utterances out"]);
}

#[test]
fn flags_of_python_trainers_without_a_meaning_have_an_answer_each() {
    let flags: Vec<String> = RETIRED.iter().flat_map(Retired::flags).collect();
    assert!(flags.len() > 100, "{}", flags.len());
    let answer = |flag: &str| {
        let retired = Retired::of_flag(flag).unwrap();
        format!("❌ --{flag} has no meaning here: {}", retired.instead)
    };
    // One flag of every answer alone, with and without a value; then all of them together, with one line each.
    for flag in RETIRED.iter().filter_map(|retired| retired.flags().next()) {
        for line in [format!("train --{flag}"), format!("plan --sim 1x24GiB --{flag}=1 --batch-size 4")] {
            let ran = tandem(&line);
            refused(&ran, &[&answer(&flag)]);
            assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
        }
    }
    let all = flags.iter().map(|flag| format!("--{flag}")).collect::<Vec<_>>().join(" ");
    let ran = tandem(&format!("train {all}"));
    refused(
        &ran,
        &flags.iter().map(|flag| answer(flag)).collect::<Vec<_>>().iter().map(String::as_str).collect::<Vec<_>>(),
    );
    assert_eq!(ran.err.lines().count(), flags.len());
    refused(
        &tandem("profile --gpu_memory_growth"),
        &["--gpu_memory_growth has no meaning here: memory is reserved once"],
    );
    refused_json(&tandem("plan --xla --json"), "--xla has no meaning here");
    // Others are unknown as before.
    refused(&tandem("train --frobnicate"), &["unexpected argument '--frobnicate'"]);
}

#[test]
fn configs_that_cannot_be_read() {
    let folder = TempFolder::new();
    for path in [folder.path("absent.yaml"), folder.path("")] {
        let ran = TandemCommand::new("plan --sim 1x24GiB").config(&path).run();
        refused(&ran, &["cannot read the config file", path.to_str().unwrap()]);
    }
    // It has no end.
    refused(
        &TandemCommand::new("plan --sim 1x24GiB --config /dev/zero").run(),
        &["cannot read the config file (not a regular file)", "/dev/zero"],
    );
}

#[test]
fn an_empty_config_changes_nothing() {
    // Other programs change the free disk meanwhile.
    let without_disk = |mut plan: serde_json::Value| {
        plan["checkpoints"]["free_bytes"].take();
        plan
    };
    let plain = without_disk(tandem_json("plan --sim 1x24GiB").1);
    for text in ["", "# nothing\n", "---\n", "data:\nmodel:\ntraining:\n", "data:\n  gpu: null\n"] {
        let ran = with_config(text);
        assert_eq!((ran.code, without_disk(ran.json())), (0, plain.clone()), "{text:?}: {ran:?}");
    }
}

#[test]
fn a_retired_key_warns_with_what_took_its_place_and_works() {
    let ran = with_config("data:\n  use_tf_native_loading: true\ntraining:\n  batch_size: 4\n");
    assert_eq!((ran.code, &ran.json()["batch_size"]), (0, &json!(4)), "{ran:?}");
    contains(&ran.err, &["c.yaml:2", "`use_tf_native_loading` has no effect", "num_workers"]);
}

#[test]
fn flags_override_the_config_which_overrides_defaults() {
    let folder = TempFolder::new();
    let text = "data:\n  pipeline_buffer_size: 20\n  num_workers: 3\nmodel:\n  model_size: nano\n\
                training:\n  batch_size: 4\n  seed: 5\n";
    let file = folder.file("c.yaml", text);
    let plan =
        TandemCommand::new("plan --sim 1x24GiB --json --batch-size 8 --num-workers 2").config(&file).run().json();
    let found = ["batch_size", "threads", "buffer_size", "seed", "model_size", "grad_accum"].map(|key| &plan[key]);
    assert_eq!(found, [&json!(8), &json!(2), &json!(20), &json!(5), &json!("nano"), &json!(1)]);
}

#[test]
fn a_config_can_be_refused_as_flags_can() {
    let folder = TempFolder::new();
    let file = folder.file("c.yaml", "data:\n  data_gpu: 0\n  model_gpu: 0\n");
    let ran = TandemCommand::new("plan --sim 2x24GiB").config(&file).run();
    refused(&ran, &["❌ data_gpu and model_gpu must be different (or add --share-gpu)"]);
    assert_eq!(TandemCommand::new("plan --sim 2x24GiB --share-gpu").config(&file).run().code, 0);
}

#[test]
fn flag_names_of_python_trainers_work() {
    let aliases =
        "--gradient-accumulation-steps 2 --pipeline-buffer-size 20 --use-mixed-precision --max-mel-length 504";
    let (ran, plan) = tandem_json(&format!("plan --sim 1x24GiB {aliases}"));
    assert_eq!((&plan["grad_accum"], &plan["buffer_size"]), (&json!(2), &json!(20)), "{ran:?}");
}

#[test]
fn without_arguments_there_are_four_commands_to_start_with() {
    let ran = tandem("");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    let commands: Vec<&str> = ran.out.lines().filter(|line| line.starts_with("  tandem ")).collect();
    assert_eq!(commands.len(), 4, "{commands:?}");
    for command in commands {
        // The description follows the command after two or more spaces.
        let typed = command.trim().split("  ").next().unwrap();
        let line = typed.strip_prefix("tandem ").unwrap();
        let line =
            line.replace("train", "train --help").replace("validate", "validate --help").replace("DIR", "--help");
        assert_eq!(TandemCommand::new(&line).without_gpu().run().code, 0, "{typed}");
    }
}

#[test]
fn version_and_help() {
    let check = |line: &str, parts: &[&str]| {
        let ran = tandem(line);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
        contains(&ran.out, parts);
    };
    check("--version", &[env!("CARGO_PKG_VERSION")]);
    check("--help", &["train", "plan", "validate", "bench", "corpus", "Usage"]);
    check("corpus --help", &["check", "demo", "features"]);
    check("corpus check --help", &["--max-seconds", "--exclude-ids", "{speaker}_*"]);
    check("plan --help", &["--sim", "--config", "--json", "--batch-size", "[default: 16]", "--print-config"]);
    check("train --help", &["--checkpoint-dir", "--max-steps", "--resume", "--reset-training", "--run-log"]);
    check("validate --help", &["--run-log", "--enable-memory-isolation", "--transfer"]);
}

#[test]
fn flags_that_would_be_ignored_are_refused() {
    for line in [
        "plan --print-config --json",
        "plan --recommend --print-config",
        "plan --recommend --sim 2x24GiB",
        "plan -q -v",
    ] {
        let ran = tandem(line);
        assert_eq!(ran.code, 2, "{line}: {ran:?}");
    }
}

#[test]
fn a_switch_of_the_config_can_be_switched_off() {
    let folder = TempFolder::new();
    let file = folder.file("c.yaml", "data:\n  share_gpu: true\n  enable_memory_isolation: true\n");
    let shared = TandemCommand::new("plan --sim 1x24GiB --json").config(&file).run().json();
    assert_eq!((&shared["mode"], &shared["isolated"]), (&"shared".into(), &true.into()));
    let line = "plan --sim 1x24GiB --json --no-share-gpu --no-enable-memory-isolation";
    let single = TandemCommand::new(line).config(&file).run().json();
    assert_eq!((&single["mode"], &single["isolated"]), (&"single".into(), &false.into()));
}
