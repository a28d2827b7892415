//! `tandem doctor`: reports the problems of a machine with what to do, and writes a file without user names.

use std::fs;

use serde_json::Value;

use crate::command::{Ran, TandemCommand, contains, in_order};
use crate::machine::{FakeDriver, TempFolder};
use crate::speech::demo;

/// Flags of a plan that runs quickly.
const SMALL: &str = "--model-size nano --batch-size 2 --buffer-size 4";

fn doctor(line: &str, folder: &TempFolder) -> TandemCommand {
    TandemCommand::new(&format!("doctor {SMALL} {line}")).inside(folder)
}

fn report(folder: &TempFolder) -> String {
    fs::read_to_string(folder.path("tandem-doctor.txt")).unwrap()
}

/// Every check of the document, as verdict and text.
fn checks(document: &Value) -> Vec<(String, String)> {
    let sections = document["sections"].as_array().unwrap();
    let checks = sections.iter().flat_map(|section| section["checks"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    checks.map(|check| (text(&check["verdict"]), text(&check["text"]))).collect()
}

#[test]
fn a_healthy_machine_passes_and_is_described_in_one_file() {
    let folder = TempFolder::new();
    let ran = doctor("", &folder).without_gpu().run();
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    let sections = ["1. Computer", "2. GPUs and libraries", "3. Plan", "4. Short profile", "5. Last run"];
    in_order(&ran.out, &sections);
    let lines =
        ["✅ System: Linux ", "✅ Processor: ", "✅ Memory: ", "(ulimit -l)", "✅ Run folder: ", "✅ Terminal: UTF-8"];
    in_order(&ran.out, &lines);
    contains(&ran.out, &["✅ No NVIDIA device", "✅ Plan: data ", "✅ ran ", " steps/s", "none in ./checkpoints"]);
    in_order(&ran.out, &["🎉 No problems found", "For a bug report: tandem-doctor.txt"]);
    let file = report(&folder);
    assert!(file.starts_with("tandem doctor "), "{file}");
    in_order(&file, &sections);
    contains(
        &file,
        &["Flags: --batch-size 2 --model-size nano --buffer-size 4", "Mode:        CPU Mode", "model_size: nano"],
    );
    contains(&file, &["features ", "train ", "Tier: "]);
    // Again, overwriting its own report.
    assert_eq!(doctor("-q", &folder).without_gpu().run().code, 0);
}

#[test]
fn the_file_has_no_user_names_and_no_transcripts() {
    let folder = TempFolder::new();
    let (home, data) = (folder.path("home/zerlina"), folder.path("home/zerlina/recordings"));
    fs::create_dir_all(data.join("wavs")).unwrap();
    for entry in fs::read_dir(demo().join("wavs")).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), data.join("wavs").join(entry.file_name())).unwrap();
    }
    fs::copy(demo().join("metadata.csv"), data.join("metadata.csv")).unwrap();
    let run = home.join("voice");
    let train = format!("train {SMALL} --mode cpu --max-steps 3 --train-data {}", data.display());
    let trained = TandemCommand::new(&train).arg("--checkpoint-dir").arg(&run).run();
    assert_eq!(trained.code, 0, "{trained:?}");

    let command = || {
        let command = doctor("--mode cpu", &folder).without_gpu().env("HOME", &home).env("USER", "zerlina");
        command.arg("--train-data").arg(&data).arg("--checkpoint-dir").arg(&run)
    };
    let ran = command().run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let document = command().arg("--json").run();
    for text in [report(&folder), document.out] {
        contains(&text, &["~/recordings", "~/voice", "ended: done", "run_ended"]);
        assert!(!text.contains("zerlina"), "{text}");
        let metadata = fs::read_to_string(data.join("metadata.csv")).unwrap();
        for line in metadata.lines() {
            let (id, transcript) = (line.split('|').next().unwrap(), line.split('|').nth(1).unwrap());
            assert!(!text.contains(transcript) && !text.contains(id), "{line} is in\n{text}");
        }
    }
}

#[test]
fn problems_are_reported_with_what_to_do() {
    let check = |ran: &Ran, parts: &[&str]| {
        assert_eq!(ran.code, 1, "{ran:?}");
        in_order(&ran.out, parts);
        contains(&ran.out, &["For a bug report: tandem-doctor.txt"]);
    };
    let machine = TempFolder::with_card();
    FakeDriver { init: 999, version: 13000 }.install(&machine);
    let ran = doctor("", &machine).on(&machine).run();
    check(
        &ran,
        &[
            "❌ libcuda.so.1 ",
            "What to do: ",
            "--mode cpu works until then",
            "3. Plan",
            "❌ ",
            "5. Last run",
            " found: see above",
        ],
    );
    // The other sections still run, and `--mode cpu` gives a plan.
    let ran = doctor("--mode cpu", &machine).on(&machine).run();
    check(&ran, &["❌ libcuda.so.1 ", "3. Plan", "✅ Plan: data ", "✅ ran ", "problem"]);
    let old = TempFolder::with_card();
    FakeDriver { init: 0, version: 12000 }.install(&old);
    check(&doctor("", &old).on(&old).run(), &["❌ libcuda.so.1 is too old", "What to do: update it; --mode cpu works"]);

    let folder = TempFolder::new();
    let refused = doctor("--sim 1x24GiB --data-gpu 0 --model-gpu 1", &folder).run();
    check(
        &refused,
        &[
            "3. Plan",
            "❌ Multi-GPU requires at least 2 GPUs",
            "What to do: `tandem plan`",
            "skipped: there is no plan to run",
            "❌ 1 problem found",
        ],
    );
    let nowhere = doctor("--mode cpu --train-data nowhere", &folder).without_gpu().run();
    check(&nowhere, &["3. Plan", "❌ --train-data: ", "nowhere"]);
    let lost = doctor("--sim 2x24GiB,lose-card=40 --data-gpu 0 --model-gpu 1", &folder).run();
    check(&lost, &["❌ ", "What to do: "]);
}

#[test]
fn simulated_cards_are_examined_like_real_ones() {
    let folder = TempFolder::new();
    let line = "--sim 2x24GiB,nvlink --data-gpu 0 --model-gpu 1";
    let ran = doctor(line, &folder).run();
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.lines().all(|line| line.starts_with("[simulated] ")), "{ran:?}");
    in_order(
        &ran.out,
        &[
            "✅ Simulated driver",
            "✅ GPU 0: ",
            "(SIM-00000000-0000-0000-0000-000000006000), compute capability 9.0, 24576 MB of 24576 MB free",
            "✅ GPU 1: ",
            "Peer access: GPU 0 can access GPU 1",
            "✅ Plan: data ",
            "✅ ran ",
        ],
    );
    let document = doctor(&format!("{line} --json"), &TempFolder::new()).run().json();
    assert_eq!((&document["passed"], &document["simulated"]), (&true.into(), &true.into()));
    assert_eq!(document["plan"]["roles"]["model"]["gpu"], 1);
}

#[test]
fn programs_get_one_document_and_no_file() {
    let folder = TempFolder::new();
    let ran = doctor("--mode cpu --json", &folder).without_gpu().run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let document = ran.json();
    assert_eq!((&document["passed"], &document["simulated"]), (&true.into(), &false.into()));
    let checks = checks(&document);
    assert!(checks.iter().any(|(verdict, text)| verdict == "good" && text.starts_with("Memory: ")), "{checks:?}");
    assert_eq!(document["plan"]["mode"], "cpu");
    assert!(!folder.path("tandem-doctor.txt").exists());
    // With `-o` the file is written, too.
    assert_eq!(doctor("--mode cpu --json -o report.txt", &folder).without_gpu().run().code, 0);
    assert!(folder.path("report.txt").is_file());
    let bad = doctor("--sim 1x24GiB --data-gpu 0 --model-gpu 1 --json", &folder).run();
    assert_eq!((bad.code, &bad.json()["passed"]), (1, &false.into()), "{bad:?}");
}

#[test]
fn other_files_and_wrong_flags_are_refused_before_anything_runs() {
    let folder = TempFolder::new();
    folder.file("thesis.txt", "chapter one");
    let refused = |line: &str, parts: &[&str]| {
        let ran = doctor(line, &folder).without_gpu().run();
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{ran:?}");
        contains(&ran.err, parts);
    };
    refused("-o thesis.txt", &["❌ --output: ", "not a report of tandem doctor", "thesis.txt"]);
    assert_eq!(fs::read_to_string(folder.path("thesis.txt")).unwrap(), "chapter one");
    refused("-o nowhere/report.txt", &["❌ --output: cannot write the report", "nowhere/report.txt"]);
    refused("--grad-accum 0", &["❌ ", "--grad-accum"]);
    refused("--frobnicate", &["--frobnicate"]);
}

#[test]
fn a_terminal_without_utf8_gets_ascii() {
    let folder = TempFolder::new();
    let ran = doctor("--mode cpu", &folder).without_gpu().env("LANG", "C").run();
    assert_eq!(ran.code, 0, "{ran:?}");
    let odd: String = ran.both().chars().filter(|c| !c.is_ascii()).collect();
    assert!(odd.is_empty(), "{odd:?}: {ran:?}");
    contains(&ran.out, &["[ok] Memory: ", "Terminal: not UTF-8"]);
}

#[test]
fn a_kernel_cache_that_others_can_write_to_is_reported() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = TempFolder::new();
    let cache = folder.path("kernels");
    fs::create_dir(&cache).unwrap();
    for (mode, expected) in [(0o700, "✅ Kernel cache: "), (0o777, "⚠️ Kernel cache: not used, because other users")]
    {
        fs::set_permissions(&cache, fs::Permissions::from_mode(mode)).unwrap();
        let ran = doctor("", &folder).without_gpu().env("TANDEM_CACHE_DIR", &cache).run();
        contains(&ran.out, &[expected]);
    }
}
