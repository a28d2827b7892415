//! Every suggestion of every refusal is accepted when it is typed.

use serde_json::Value;

use crate::command::{Ran, TandemCommand, contains, tandem, tandem_json, texts};

/// Flags that determine the mode and the limits.
const MODE_AND_LIMITS: [&str; 8] = [
    "--mode",
    "--data-gpu",
    "--model-gpu",
    "--gpu",
    "--share-gpu",
    "--enable-memory-isolation",
    "--data-gpu-memory",
    "--model-gpu-memory",
];

/// The smallest possible run: if it is refused, only a larger limit helps.
const SMALLEST: &str = "--model-size nano --batch-size 1 --max-mel-frames 8 --max-text-length 1 --buffer-size 1 \
                        --prefetch-buffer-size 3 --optimization-level basic";

/// `line` with the suggestion applied: its flags replace the given ones, and the flags it names are removed.
fn typed(line: &str, suggestion: &Value) -> String {
    let (args, left_out) = (texts(&suggestion["args"]), texts(&suggestion["instead_of"]));
    let flags = args.iter().filter(|word| word.starts_with("--"));
    let removed: Vec<String> = flags.chain(&left_out).map(|flag| flag.replace("--no-", "--")).collect();
    let mut words = Vec::new();
    let mut dropping = false;
    for word in line.split_whitespace() {
        // A word that is not a flag is the value of the flag before it.
        dropping = if word.starts_with("--") { removed.contains(&word.replace("--no-", "--")) } else { dropping };
        if !dropping {
            words.push(word);
        }
    }
    [words, args].concat().join(" ")
}

fn details(refusal: &Value) -> &Vec<Value> {
    refusal["suggestion_details"].as_array().unwrap()
}

/// Applies every suggestion of the refusal of `line`; there is at least one.
#[track_caller]
fn check_all(command: impl Fn(&str) -> Ran, line: &str) -> Value {
    let ran = command(&format!("plan {line} --json"));
    assert_eq!(ran.code, 2, "{line}: {ran:?}");
    let refusal = ran.json();
    assert!(!details(&refusal).is_empty(), "{line} suggests nothing: {refusal:#}");
    for suggestion in details(&refusal) {
        let again = typed(line, suggestion);
        let accepted = command(&format!("plan {again}"));
        assert_eq!(accepted.code, 0, "{line}\nsuggests {suggestion}\ntyped as {again}\n{}", accepted.err);
    }
    refusal
}

fn limits(plan: &Value) -> (&Value, &Value, &Value) {
    (&plan["mode"], &plan["roles"]["data"]["limit_mb"], &plan["roles"]["model"]["limit_mb"])
}

/// The mode and limits of a command line.
struct RequestedLimits {
    mode: &'static str,
    data_mb: u64,
    model_mb: u64,
}

/// If `line` has too small a limit, its suggestions work, and one of them keeps the requested mode and limits. Returns whether
/// it was refused.
#[track_caller]
fn check_too_small(line: &str, requested: &RequestedLimits) -> bool {
    let (ran, refusal) = tandem_json(&format!("plan {line}"));
    if ran.code == 0 {
        return false;
    }
    assert_eq!(refusal["reason"], "limit-too-small", "{line}: {refusal:#}");
    check_all(tandem, line);
    let setting = |suggestion: &&Value| {
        let touched = [texts(&suggestion["args"]), texts(&suggestion["instead_of"])].concat();
        !touched.iter().any(|word| MODE_AND_LIMITS.contains(word))
    };
    let Some(suggestion) = details(&refusal).iter().find(setting) else {
        let smallest = typed(line, &serde_json::json!({ "args": texts_of(SMALLEST), "instead_of": ["--grad-accum"] }));
        let ran = tandem(&format!("plan {smallest}"));
        assert_eq!(ran.code, 2, "{line} suggests nothing within its limits, yet {smallest} fits");
        return true;
    };
    let (_, plan) = tandem_json(&format!("plan {}", typed(line, suggestion)));
    let RequestedLimits { mode, data_mb, model_mb } = *requested;
    assert_eq!(limits(&plan), (&mode.into(), &data_mb.into(), &model_mb.into()), "{line}\n{suggestion}");
    true
}

fn texts_of(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

const WORKS: [&str; 5] = [
    "",
    "--batch-size 64",
    "--batch-size 12 --grad-accum 2 --buffer-size 200",
    "--batch-size 7 --no-mixed-precision --prefetch-buffer-size 16",
    "--batch-size 16 --max-mel-frames 3000 --optimization-level basic",
];

/// Every model and every kind of work with too small a limit of either role; most of them are refused.
fn sweep(devices: &str, mode: &'static str, limits: &[(u64, u64)]) {
    let mut refused = 0;
    // The time of a refusal grows with its buckets and the model: the largest model has one kind of work.
    for (size, works) in [("nano", &WORKS[..]), ("normal", &WORKS[..2]), ("big", &WORKS[..1])] {
        for work in works {
            for (data, model) in limits {
                let limits = format!("--data-gpu-memory {data} --model-gpu-memory {model}");
                let line = format!("{devices} --enable-memory-isolation {limits} --model-size {size} {work}");
                let requested = RequestedLimits { mode, data_mb: *data, model_mb: *model };
                refused += u32::from(check_too_small(&line, &requested));
            }
        }
    }
    assert!(refused >= 12, "only {refused} were refused: the sweep uses the wrong limits");
}

#[test]
fn two_gpus_with_too_small_limits() {
    sweep("--sim 2x24GiB --data-gpu 0 --model-gpu 1", "multi", &[(8192, 700), (8192, 1536), (640, 16384), (640, 800)]);
}

#[test]
fn a_shared_gpu_with_too_small_limits() {
    sweep("--sim 1x24GiB --share-gpu", "shared", &[(4096, 700), (4096, 1536), (128, 8192)]);
}

#[test]
fn a_limit_below_the_drivers_share_suggests_a_larger_one() {
    let two = "--sim 2x24GiB --data-gpu 0 --model-gpu 1 --enable-memory-isolation";
    for limit in ["--data-gpu-memory 1", "--model-gpu-memory 512", "--data-gpu-memory 32 --model-gpu-memory 32"] {
        let refusal = check_all(tandem, &format!("{two} {limit}"));
        assert!(refusal["suggestions"].to_string().contains("-gpu-memory "), "{refusal:#}");
    }
}

#[test]
fn cards_too_small_without_any_limit() {
    for devices in ["2x1GiB", "2x700MiB", "2x2GiB"] {
        let line = format!("--sim {devices} --data-gpu 0 --model-gpu 1 --batch-size 32 --model-size normal");
        check_all(tandem, &line);
    }
    check_all(tandem, "--sim 1x1GiB --model-size normal");
    check_all(tandem, "--sim 1x2GiB --share-gpu --batch-size 64");
}

#[test]
fn every_other_refusal_with_something_to_type() {
    let pair = "--data-gpu 0 --model-gpu 1";
    let isolated = format!("{pair} --enable-memory-isolation");
    let held = format!("--sim 2x24GiB,held=20GiB {isolated}");
    for line in [
        format!("--sim 1x24GiB {pair}"),
        format!("--sim 1x24GiB --mode dual {pair}"),
        format!("--sim 1x24GiB {isolated} --data-gpu-memory 8192 --model-gpu-memory 20000"),
        format!("--sim 1x24GiB {pair} --transfer bounce"),
        "--sim 2x24GiB --data-gpu 1".to_owned(),
        "--sim 2x24GiB --model-gpu 1 --share-gpu".to_owned(),
        "--sim 2x24GiB --model-gpu 1 --enable-memory-isolation --model-gpu-memory 4096".to_owned(),
        "--sim 2x24GiB --data-gpu 1 --model-gpu 1".to_owned(),
        "--sim 2x24GiB --data-gpu 1 --model-gpu 1 --enable-memory-isolation".to_owned(),
        format!("--sim 2x24GiB --share-gpu {pair}"),
        format!("--sim 2x24GiB --gpu 0 {pair}"),
        "--sim 2x24GiB --enable-memory-isolation".to_owned(),
        "--sim 2x24GiB --enable-memory-isolation --mode single --data-gpu-memory 4096".to_owned(),
        format!("--sim 2x24GiB {pair} --data-gpu-memory 4096"),
        "--sim 2x24GiB --mode dual".to_owned(),
        "--sim 2x24GiB --mode dual --share-gpu".to_owned(),
        format!("--sim 2x24GiB --mode single {isolated} --data-gpu-memory 4096"),
        format!("--sim 2x24GiB --mode single {pair}"),
        format!("--sim 2x24GiB --mode cpu {pair}"),
        format!("--sim 2x24GiB --mode cpu {isolated}"),
        format!("--sim 2x24GiB {pair} --transfer handover"),
        format!("--sim 2x24GiB {pair} --transfer peer"),
        "--sim 2x24GiB,cc=7.0 --gpu 1".to_owned(),
        "--sim 2x24GiB,cc=7.5 --mixed-precision".to_owned(),
        "--sim 1x24GiB --batch-size 10 --grad-accum 4".to_owned(),
        "--sim 1x24GiB --batch-size 3 --grad-accum 4".to_owned(),
        format!("{held} --model-gpu-memory 16384"),
        format!("{held} --data-gpu-memory 2048 --model-gpu-memory auto"),
        format!("{held} --data-gpu-memory 2048 --model-gpu-memory 5000 --model-size big"),
        format!("{held} --data-gpu-memory 5000 --model-gpu-memory 700"),
        "--sim 1x24GiB --share-gpu --enable-memory-isolation --model-gpu-memory 25000".to_owned(),
        "--sim 1x24GiB,held=23GiB --share-gpu --enable-memory-isolation --data-gpu-memory 8192".to_owned(),
    ] {
        check_all(tandem, &line);
    }
}

#[test]
fn refusals_on_a_machine_without_a_gpu() {
    let command = |line: &str| TandemCommand::new(line).without_gpu().run();
    let isolated = "--enable-memory-isolation --data-gpu-memory 4096";
    for line in [
        "--gpu 0",
        "--mode single",
        "--data-gpu 0 --model-gpu 1",
        "--share-gpu --mixed-precision",
        "--mixed-precision",
        "--transfer peer",
        &format!("--share-gpu {isolated}"),
        &format!("--data-gpu 0 --model-gpu 1 --transfer bounce {isolated}"),
    ] {
        check_all(command, line);
    }
}

#[test]
fn every_recommended_row_is_accepted() {
    for wish in ["", "--model-size normal", "--model-size big --grad-accum 2", "--max-mel-frames 2000"] {
        let line = format!("plan --recommend {wish}");
        let command = |line: &str| TandemCommand::new(line).without_gpu();
        let ran = command(&format!("{line} --json")).run();
        let rows = ran.json();
        let rows = rows["rows"].as_array().unwrap();
        let (cards, text) = ([6, 8, 10, 12, 16, 24, 48, 80], command(&line).run().out);
        let sizes = rows.iter().map(|row| (row["cards"].as_u64().unwrap(), row["card_gb"].as_u64().unwrap()));
        assert!(sizes.eq([1, 2].into_iter().flat_map(|n| cards.map(|gb| (n, gb)))), "{ran:?}");
        contains(&text, &["cards       batch  data MB  model MB  prefetch  buffer  arguments\n"]);
        for row in rows.iter().filter(|row| !row["args"].is_null()) {
            let args = row["args"].as_str().unwrap();
            let sim = format!("{}x{}GiB", row["cards"], row["card_gb"]);
            // Cards that are not there are simulated.
            assert!(row["sim"] == sim && args.starts_with(&format!("--sim {sim} ")), "{row}");
            let shown = text.lines().find(|line| line.ends_with(&format!("  {args}"))).unwrap();
            let columns: Vec<&str> = shown.split_whitespace().collect();
            assert_eq!(columns[8], row["buffer_size"].to_string(), "{shown}");
            let (ran, plan) = tandem_json(&format!("plan {args}"));
            assert_eq!(ran.code, 0, "{args}: {ran:?}");
            let found = (&plan["batch_size"], &plan["prefetch"], &limits(&plan).1, &limits(&plan).2);
            let expected = (&row["batch_size"], &row["prefetch"], &&row["data_limit_mb"], &&row["model_limit_mb"]);
            assert_eq!(found, expected, "{args}");
            assert_eq!(plan["buffer_size"], row["buffer_size"], "{args}");
        }
        assert!(rows.iter().filter(|row| !row["args"].is_null()).count() >= 4, "{rows:?}");
    }
}

#[test]
fn two_cards_of_usual_sizes_get_the_documented_settings() {
    let rows = TandemCommand::new("plan --recommend --json").without_gpu().run().json();
    let check = |gb: u64, batches: &[u64], data: u64, model: u64, slots: &[u64]| {
        let mut rows = rows["rows"].as_array().unwrap().iter();
        let row = rows.find(|row| row["cards"] == 2 && row["card_gb"] == gb).unwrap();
        assert!(batches.contains(&row["batch_size"].as_u64().unwrap()), "{row}");
        assert_eq!((&row["data_limit_mb"], &row["model_limit_mb"]), (&data.into(), &model.into()), "{row}");
        assert!(slots.contains(&row["prefetch"].as_u64().unwrap()), "{row}");
    };
    check(10, &[8], 4096, 8192, &[6, 7, 8]);
    check(12, &[8], 4096, 8192, &[6, 7, 8]);
    check(16, &[12], 6144, 10240, &[4, 5, 6]);
    check(24, &[16, 24], 8192, 16384, &[3, 4]);
}
