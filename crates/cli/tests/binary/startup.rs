//! The exact start-up lines of `tandem train` in every mode, and that none is printed before it is true.

use crate::command::{Ran, TandemCommand, contains};
use crate::machine::TempFolder;
use crate::speech::demo;

const SMALL: &str = "train --model-size nano --batch-size 2 --max-mel-frames 300 --max-steps 2";
const LAST: &str = "✅ Model training starting now";

fn command(flags: &str, folder: &TempFolder) -> TandemCommand {
    TandemCommand::new(&format!("{SMALL} {flags}"))
        .arg("--train-data")
        .arg(demo())
        .arg("--checkpoint-dir")
        .arg(folder.path("run"))
        .without_gpu()
}

/// The lines up to the first step, without the short plan and its notes, and without the lines that only a slow start
/// prints.
fn start(ran: &Ran, prefix: &str) -> Vec<String> {
    let lines = ran.out.lines().map(|line| line.strip_prefix(prefix).unwrap_or_else(|| panic!("{line}")));
    let mut start: Vec<String> = Vec::new();
    let mut in_plan = false;
    for line in lines {
        in_plan = line.starts_with("Plan: ") || (in_plan && line != LAST);
        let slow = line.starts_with("   Warm-up: ") || line.starts_with("   Data buffer: ");
        if !in_plan && !slow {
            start.push(line.to_owned());
        }
        if line == LAST {
            break;
        }
    }
    start
}

/// Whether the line matches the pattern, where `#` stands for a number.
fn matches_pattern(line: &str, pattern: &str) -> bool {
    if !pattern.contains('#') {
        return line == pattern;
    }
    let mut masked = String::new();
    for character in line.chars() {
        let character = if character.is_ascii_digit() { '#' } else { character };
        if character != '#' || !masked.ends_with('#') {
            masked.push(character);
        }
    }
    masked == pattern
}

/// A run with `flags` starts with exactly these lines, and then trains two steps.
#[track_caller]
fn check(flags: &str, expected: &str) {
    let folder = TempFolder::new();
    let ran = command(flags, &folder).run();
    assert_eq!(ran.code, 0, "{flags}: {ran:?}");
    let prefix = if flags.contains("--sim") { "[simulated] " } else { "" };
    let found = start(&ran, prefix);
    let expected: Vec<&str> = expected.trim_matches('\n').lines().collect();
    let same = found.len() == expected.len()
        && found.iter().zip(&expected).all(|(line, pattern)| matches_pattern(line, pattern));
    assert!(same, "{flags}: expected\n{}\nfound\n{}", expected.join("\n"), found.join("\n"));
    contains(&ran.out, &["Step 2/2  loss ", "✅ Training finished: 2 steps"]);
}

#[test]
fn without_a_gpu() {
    check(
        "",
        "
🚀 Intelligent GPU Pipeline: CPU Mode
   - Buffer Size: 50
   - Smart Prefetching: Enabled
   - Prefetching to /CPU:0 with buffer_size=50
Creating model on device: /CPU:0
🕐 CPU Mode: Waiting up to 2.0s for data pipeline to warm up...
✅ Model training starting now
",
    );
}

#[test]
fn on_one_gpu() {
    check(
        "--sim 1x24GiB --model-start-delay 1.5",
        "
🚀 Intelligent GPU Pipeline: Single-GPU Buffered Mode
   - Buffer Size: 50
   - Smart Prefetching: Enabled
   - Prefetching to /GPU:0 with buffer_size=50
Creating model on device: /GPU:0
🕐 Single-GPU Buffered Mode: Waiting up to 1.5s for data pipeline to warm up...
✅ Model training starting now
",
    );
}

#[test]
fn on_two_gpus_of_four() {
    check(
        "--sim 4x24GiB --data-gpu 2 --model-gpu 3",
        "
🎯 Configuring Multi-GPU Mode...
   Data Processing GPU: 2
   Model Training GPU: 3
   Set visible devices: GPU 2 and GPU 3
   Reserved # MB for data GPU
   Reserved # MB for model GPU
✅ Multi-GPU configuration completed successfully
🚀 Intelligent GPU Pipeline: Multi-GPU Mode
   - Data Processing GPU: 2
   - Model Training GPU: 3
   - Prefetching to /GPU:0 with buffer_size=25
🎯 Multi-GPU Mode: Model will be placed on /GPU:1
   (Original GPU 3 is now mapped to GPU:1) SIM-00000003-0000-0000-0000-000000006000
Creating model on device: /GPU:1
🕐 Multi-GPU Mode: Waiting up to 2.0s for data pipeline to warm up...
✅ Model training starting now
",
    );
}

#[test]
fn on_two_gpus_in_reverse_order_with_limits() {
    check(
        "--sim 4x24GiB --data-gpu 3 --model-gpu 2 --enable-memory-isolation",
        "
🎯 Configuring Multi-GPU Mode...
   Data Processing GPU: 3
   Model Training GPU: 2
   Set visible devices: GPU 3 and GPU 2
🎯 Setting up GPU Memory Isolation...
   Reserved 8192 MB for data GPU
   Limit of the data role on GPU 3 is 8192 MB (planned+reserved, driver pool cap)
   Reserved 16384 MB for model GPU
   Limit of the model role on GPU 2 is 16384 MB (planned+reserved, driver pool cap)
✅ GPU Memory Isolation configured successfully
✅ Multi-GPU configuration completed successfully
🚀 Intelligent GPU Pipeline: Multi-GPU Mode
   - Data Processing GPU: 3
   - Model Training GPU: 2
   - Prefetching to /GPU:0 with buffer_size=25
🎯 Multi-GPU Mode: Model will be placed on /GPU:1
   (Original GPU 2 is now mapped to GPU:1) SIM-00000002-0000-0000-0000-000000006000
Creating model on device: /GPU:1
🕐 Multi-GPU Mode: Waiting up to 2.0s for data pipeline to warm up...
✅ Model training starting now
",
    );
}

#[test]
fn on_one_gpu_in_two_partitions() {
    check(
        "--sim 1x24GiB --share-gpu",
        "
🎯 Configuring Shared-GPU Mode...
   Single card, two partitions: GPU 0
   Set visible devices: GPU 0
   Reserved # MB for data partition
   Reserved # MB for model partition
✅ Shared-GPU configuration completed successfully
🚀 Intelligent GPU Pipeline: Shared-GPU Mode
   - Single card, two partitions: GPU 0
   - Prefetching to /GPU:0 with buffer_size=50
🎯 Shared-GPU Mode: Model will be placed on /GPU:1
   (Original GPU 0 is now mapped to GPU:1) SIM-00000000-0000-0000-0000-000000006000
Creating model on device: /GPU:1
🕐 Shared-GPU Mode: Waiting up to 2.0s for data pipeline to warm up...
✅ Model training starting now
",
    );
}

#[test]
fn on_one_gpu_in_two_partitions_with_limits() {
    check(
        "--sim 2x24GiB --data-gpu 1 --model-gpu 1 --share-gpu --enable-memory-isolation --data-gpu-memory 1024 \
         --model-gpu-memory 4096 --buffer-size 12",
        "
🎯 Configuring Shared-GPU Mode...
   Single card, two partitions: GPU 1
   Set visible devices: GPU 1
🎯 Setting up GPU Memory Isolation...
   Reserved 1024 MB for data partition
   Limit of the data role on GPU 1 is 1024 MB (planned+reserved, driver pool cap)
   Reserved 4096 MB for model partition
   Limit of the model role on GPU 1 is 4096 MB (planned+reserved, driver pool cap)
✅ GPU Memory Isolation configured successfully
✅ Shared-GPU configuration completed successfully
🚀 Intelligent GPU Pipeline: Shared-GPU Mode
   - Single card, two partitions: GPU 1
   - Prefetching to /GPU:0 with buffer_size=12
🎯 Shared-GPU Mode: Model will be placed on /GPU:1
   (Original GPU 1 is now mapped to GPU:1) SIM-00000001-0000-0000-0000-000000006000
Creating model on device: /GPU:1
🕐 Shared-GPU Mode: Waiting up to 2.0s for data pipeline to warm up...
✅ Model training starting now
",
    );
}

/// A failed start prints only lines of what was done.
#[test]
fn no_line_is_printed_before_it_is_true() {
    let check = |flags: &str, code: i32, error: &str, not_printed: &[&str]| {
        let folder = TempFolder::new();
        let ran = command(flags, &folder).run();
        assert_eq!(ran.code, code, "{flags}: {ran:?}");
        contains(&ran.err, &[error]);
        for line in not_printed {
            assert!(!ran.out.contains(line), "{flags}: {line:?} in\n{}", ran.out);
        }
    };
    let pair = "--data-gpu 0 --model-gpu 1 --enable-memory-isolation";
    let shared = "--share-gpu --enable-memory-isolation";
    let not_reserved = ["✅", "Reserved", "Limit of", "🚀", "Creating model"];
    // Without a plan, nothing is printed.
    let nothing = ["🎯", "✅", "🚀", "🕐", "GPU"];
    let small = "--model-gpu-memory 600";
    check(&format!("--sim 2x24GiB {pair} {small}"), 2, "The model role is ", &nothing);
    check("--sim 2x24GiB --data-gpu 0", 2, "go together", &nothing);
    // Another process took the memory first.
    check(&format!("--sim 2x24GiB,intruder=20GiB {pair}"), 1, "MB free", &not_reserved);
    // The allocation of the data role fails, then that of the model role.
    check(&format!("--sim 1x24GiB,refuse-allocation=0 {shared}"), 1, "MB free", &not_reserved);
    check(&format!("--sim 1x24GiB,refuse-allocation=1 {shared}"), 1, "MB free", &not_reserved);
    // The driver uses more than planned, which is known once the model is created.
    let grown = format!("--sim 2x24GiB,driver-grows=200MiB {pair}");
    check(&grown, 1, "over its limit of", &["🕐", LAST, "Step "]);
}
