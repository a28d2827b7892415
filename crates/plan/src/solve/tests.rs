use tandem_device::bytes::MIB;

use super::*;
use crate::corpus::CorpusFacts;
use crate::fixture::{Chains, corpus, cpu_only, gpus, remote_corpus, settings};
use tandem_feed::{Bucket, CacheKind};

fn solve(line: &str, hardware: &Hardware) -> Result<Plan, Refusal> {
    Plan::solve(&settings(line), hardware, &Chains, None)
}

const TWO: &str = "--data-gpu 0 --model-gpu 1 --enable-memory-isolation";

fn names(role: &RolePlan) -> Vec<&str> {
    role.lines.iter().map(|line| line.name.split(" (").next().unwrap()).collect()
}

#[test]
fn every_byte_has_a_line() {
    let plan = solve(TWO, &gpus(2, 24)).unwrap();
    assert_eq!(names(&plan.data), ["driver", "prefetched batches", "upload int16", "feature tables", "row tables"]);
    let model = [
        "driver",
        "input slots",
        "parameters",
        "compute parameters",
        "gradients",
        "optimizer first moment",
        "optimizer second moment",
        "averaged parameters",
        "tables",
        "activations",
    ];
    assert_eq!(names(&plan.model), model);
    assert_eq!(plan.data.lines[1].bytes, 25 * plan.feed.slot_bytes());
    assert_eq!(plan.model.lines[1].bytes, 4 * plan.feed.slot_bytes());
    for role in Role::BOTH {
        let role = plan.role(role);
        assert_eq!(role.lines.iter().map(|line| line.bytes).sum::<u64>(), role.planned_bytes);
    }
}

#[test]
fn a_handover_needs_no_input_slots() {
    let plan = solve("--optimization-level basic --no-mixed-precision", &gpus(1, 24)).unwrap();
    assert_eq!(
        names(&plan.data),
        ["driver", "prefetched batches", "slots handed over", "upload int16", "feature tables", "row tables"]
    );
    let model = [
        "driver",
        "parameters",
        "gradients",
        "optimizer first moment",
        "optimizer second moment",
        "tables",
        "activations",
    ];
    assert_eq!(names(&plan.model), model);
    let peer = solve("--transfer peer", &gpus(1, 24)).unwrap();
    assert!(!names(&peer.data).contains(&"slots handed over") && names(&peer.model).contains(&"input slots"));
    assert!(!names(&solve("", &cpu_only()).unwrap().model).contains(&"driver"));
}

#[test]
fn a_hard_limit_is_reserved_completely() {
    let plan = solve(&format!("{TWO} --data-gpu-memory 1000"), &gpus(2, 24)).unwrap();
    // 1000 - 544 for the driver, in whole granules of 32.
    assert_eq!(plan.data.arena_bytes, 448 * MIB);
    assert_eq!(plan.data.strength, Strength::DriverPoolCap);
    assert!(plan.data.reserved_bytes() <= plan.data.limit_bytes);
    let plain = solve("", &gpus(1, 24)).unwrap();
    assert_eq!(plain.data.reserved_bytes(), plain.data.limit_bytes);
    assert_eq!(plain.data.strength, Strength::PlannedReserved);
    assert_eq!(
        solve("", &cpu_only()).unwrap().data.strength,
        Strength::Planned,
        "host pages are allocated when touched"
    );
}

#[test]
fn a_default_batch_is_lowered_with_a_note_and_a_given_one_never() {
    let plan = solve("", &gpus(1, 2)).unwrap();
    assert_eq!(plan.batch_size, 12);
    assert_eq!(plan.notes, ["batch size lowered from 16 to 12 to fit; a --batch-size you give is never changed"]);
    assert!(plan.advice[0].starts_with("--batch-size 16 --grad-accum 2 keeps 16"), "{:?}", plan.advice);
    let refusal = solve("--batch-size 16", &gpus(1, 2)).unwrap_err();
    assert_eq!(refusal.kind, Reason::TooSmall);
    assert_eq!(refusal.suggestions[0].args(), ["--batch-size", "12"]);
}

#[test]
fn grad_accum_divides_the_batch() {
    let plan = solve("--batch-size 24 --grad-accum 3", &gpus(1, 24)).unwrap();
    assert_eq!(plan.largest_bucket().unwrap().batch(), 8);
    let plan = solve("--grad-accum 3", &gpus(1, 24)).unwrap();
    // Notes on the batch and on the slots: a step holds its three micro-batches at once.
    assert_eq!((plan.batch_size, plan.feed.model_slots, plan.notes.len()), (15, 5, 2));
    assert_eq!(solve("--grad-accum 40", &gpus(1, 24)).unwrap().batch_size, 40);
    let refusal = solve("--batch-size 16 --grad-accum 3", &gpus(1, 24)).unwrap_err();
    assert!(refusal.message.contains("--grad-accum 3 must divide --batch-size 16"), "{refusal}");
    let typed: Vec<String> = refusal.suggestions.iter().map(|s| s.args().join(" ")).collect();
    assert_eq!(typed, ["--grad-accum 2", "--batch-size 15"]);
}

#[test]
fn threads_follow_the_cores_unless_given() {
    let mut hardware = gpus(1, 24);
    let mut check = |line: &str, cores: usize, expected: (u64, u64)| {
        hardware.host.cores = cores;
        let plan = solve(line, &hardware).unwrap();
        assert_eq!((plan.threads, plan.max_threads), expected, "{line} {cores}");
    };
    check("", 1, (1, 8));
    check("", 2, (2, 8));
    check("", 16, (8, 32));
    check("", 200, (8, 64));
    check("--num-workers 5", 2, (5, 5));
    check("--num-workers 99", 2, (99, 99));
}

#[test]
fn the_refusal_of_a_small_limit_has_the_table_and_settings_that_fit() {
    let line = format!("{TWO} --batch-size 64 --model-gpu-memory 2048");
    let refusal = solve(&line, &gpus(2, 24)).unwrap_err();
    let model = refusal.demands.iter().find(|demand| !demand.is_met()).unwrap();
    assert_eq!(model.role, Role::Model);
    assert!(model.lines.windows(2).all(|w| w[0].bytes >= w[1].bytes));
    assert!(model.lines[0].name.starts_with("activations"), "{:?}", model.lines);
    let typed: Vec<String> = refusal.suggestions.iter().map(|s| s.args().join(" ")).collect();
    for flag in ["--batch-size", "--grad-accum", "--max-mel-frames", "--model-size", "--model-gpu-memory"] {
        assert!(typed.iter().any(|line| line.starts_with(flag)), "{flag}: {typed:?}");
    }
}

#[test]
fn if_one_change_is_not_enough_several_are_suggested_together() {
    let line = format!("{TWO} --batch-size 64 --model-size big --max-mel-frames 4000 --model-gpu-memory 900");
    let refusal = solve(&line, &gpus(2, 24)).unwrap_err();
    let keeps_limit = |suggestion: &&Suggestion| !suggestion.args().contains(&"--model-gpu-memory".to_owned());
    let together = refusal.suggestions.iter().find(keeps_limit).unwrap();
    assert!(together.args().len() >= 4, "{refusal}");
    assert!(Plan::solve(&together.apply(&settings(&line)), &gpus(2, 24), &Chains, None).is_ok());
}

#[test]
fn the_refusal_of_a_tiny_limit_names_the_smallest_that_fits() {
    let refusal = solve(&format!("{TWO} --model-gpu-memory 64"), &gpus(2, 24)).unwrap_err();
    assert_eq!(refusal.suggestions.len(), 1, "{refusal}");
    assert!(refusal.suggestions[0].args()[0] == "--model-gpu-memory", "{refusal}");
}

#[test]
fn there_is_a_suggestion_even_if_no_limit_is_large_enough() {
    let line = format!("{TWO} --model-gpu-memory 64 --batch-size 64 --model-size big");
    let refusal = solve(&line, &gpus(2, 12)).unwrap_err();
    let typed: Vec<String> = refusal.suggestions.iter().map(|s| s.args().join(" ")).collect();
    assert!(typed[0].contains("--model-gpu-memory auto") && typed[0].contains("--model-size"), "{refusal}");
}

#[test]
fn the_advice_can_be_typed() {
    let plan = solve("--share-gpu --enable-memory-isolation", &gpus(1, 80)).unwrap();
    assert!(plan.advice.len() <= 3);
    assert!(plan.advice.iter().any(|line| line.starts_with("--batch-size 64 also fits")), "{:?}", plan.advice);
    assert!(plan.advice.iter().any(|line| line.starts_with("--data-gpu-memory ")), "{:?}", plan.advice);
    let cpu = solve("", &cpu_only()).unwrap();
    assert_eq!(cpu.advice, ["--model-size nano is the preset for CPUs"]);
}

#[test]
fn memory_on_the_cpu_is_limited_too() {
    let mut hardware = cpu_only();
    hardware.host.available_bytes = 2 << 30;
    let plan = solve("", &hardware).unwrap();
    assert!(plan.batch_size < 16 && plan.model.limit_bytes + plan.data.limit_bytes <= 2 << 30);
    hardware.host.available_bytes = 1 << 20;
    assert_eq!(solve("", &hardware).unwrap_err().kind, Reason::TooSmall);
}

fn solve_with(line: &str, hardware: &Hardware, facts: &CorpusFacts) -> Result<Plan, Refusal> {
    Plan::solve(&settings(line), hardware, &Chains, Some(facts))
}

#[test]
fn shapes_and_their_memory_follow_from_the_corpus() {
    let facts = corpus(1000);
    let plan = solve_with("", &gpus(1, 24), &facts).unwrap();
    assert_eq!((plan.max_mel_frames, plan.max_text_length), (1079, 107));
    let longest = |plan: &Plan| plan.feed.buckets.iter().map(Bucket::longest_frames).max().unwrap();
    assert_eq!((plan.feed.buckets.len(), longest(&plan)), (2, 1080));
    let corpus = plan.corpus.as_ref().unwrap();
    assert_eq!((corpus.num_utterances, corpus.padding.batches), (1000, 62));
    assert!(corpus.padding.frame_waste() < 0.05, "{:?}", corpus.padding);

    let shorter = solve_with("--max-mel-frames 500", &gpus(1, 24), &facts).unwrap();
    assert_eq!(longest(&shorter), 504);
    assert!(shorter.data.planned_bytes < plan.data.planned_bytes);
    assert_eq!(shorter.corpus.unwrap().left_out.too_long, 579);

    // Recordings at another rate need longer upload rows and a resampling buffer.
    let mut faster = facts.clone();
    faster.rates_hz = vec![44_100];
    let faster = solve_with("", &gpus(1, 24), &faster).unwrap();
    assert!(names(&faster.data).contains(&"resampled int16"), "{:?}", faster.data.lines);
    assert!(faster.feed.upload_bytes() > 19 * plan.feed.upload_bytes() / 10);
}

#[test]
fn pitch_is_cached_unless_the_cache_is_off() {
    let cached = |line: &str, rows: u32| {
        let plan = Plan::solve(&settings(line), &gpus(1, 24), &Chains, Some(&corpus(rows))).unwrap();
        let line = plan.data.lines.iter().find(|line| line.name == "cached pitch");
        (plan.feed.cached_pitches, line.map_or(0, |line| line.bytes))
    };
    let (entries, bytes) = cached("", 1000);
    assert!(entries == 1000 && bytes >= 4000, "{entries} entries in {bytes} bytes");
    assert_eq!(cached("--cache none", 1000), (0, 0));
    let (entries, bytes) = cached("", 200_000);
    assert!(entries < 200_000 && bytes > 60 * MIB && bytes <= 64 * MIB, "{entries} entries in {bytes} bytes");
}

#[test]
fn a_batch_larger_than_the_corpus_is_refused_if_given_and_lowered_if_default() {
    let facts = corpus(10);
    let plan = solve_with("", &gpus(1, 24), &facts).unwrap();
    assert_eq!(
        (plan.batch_size, plan.notes.as_slice()),
        (10, &["batch size 10 instead of 16: the corpus has 10 usable utterances".to_owned()][..])
    );
    assert_eq!(solve_with("--grad-accum 4", &gpus(1, 24), &facts).unwrap().batch_size, 8);
    let check = |line: &str, message: &str, typed: &[&str]| {
        let refusal = solve_with(line, &gpus(1, 24), &facts).unwrap_err();
        assert_eq!(refusal.kind, Reason::Corpus);
        assert!(refusal.message.contains(message), "{refusal}");
        assert_eq!(refusal.suggestions.iter().map(|s| s.args().join(" ")).collect::<Vec<_>>(), typed);
    };
    let given = "❌ --batch-size 16 is more than the 10 usable utterances: corpus";
    check("--batch-size 16", given, &["--batch-size 10"]);
    check("--batch-size 16 --grad-accum 4", given, &["--batch-size 8", "--batch-size 10 --grad-accum 1"]);
    check("--grad-accum 12", "--grad-accum 12 is more than the 10", &["--batch-size 10 --grad-accum 1"]);
    check("--max-mel-frames 50", "No usable utterances: corpus\n   Skipped: 10 over 50 frames or 8 tokens", &[]);
}

#[test]
fn flags_about_data_require_train_data() {
    for flag in ["--val-data v", "--exclude-ids x", "--columns text=t"] {
        let refusal = solve(flag, &gpus(1, 24)).unwrap_err();
        assert!(refusal.message.contains("requires --train-data"), "{refusal}");
        assert!(solve_with(&format!("{flag} --train-data t"), &gpus(1, 24), &corpus(100)).is_ok());
    }
}

#[test]
fn only_recordings_in_an_object_store_are_read_ahead() {
    let check = |line: &str, facts: Option<&CorpusFacts>, mb: u64, is_noted: bool| {
        let plan = Plan::solve(&settings(line), &gpus(1, 24), &Chains, facts).unwrap();
        assert_eq!(plan.read_ahead_bytes, mb * MIB, "{line}");
        let is_note = |note: &String| note.starts_with("--read-ahead-mb has no effect");
        assert_eq!(plan.notes.iter().any(is_note), is_noted, "{line}: {:?}", plan.notes);
    };
    check("", Some(&remote_corpus(100)), 256, false);
    check("--read-ahead-mb 10", Some(&remote_corpus(100)), 10, false);
    check("--read-ahead-mb 0", Some(&remote_corpus(100)), 0, false);
    check("", Some(&corpus(100)), 0, false);
    check("--read-ahead-mb 0", Some(&corpus(100)), 0, false);
    check("--read-ahead-mb 10", Some(&corpus(100)), 0, true);
    check("--read-ahead-mb 10", None, 0, true);
}

#[test]
fn what_is_read_ahead_is_not_left_to_the_cache() {
    let budget = |line: &str, facts: &CorpusFacts, hardware: &Hardware| {
        solve_with(&format!("--cache memory --batch-size 2 {line}"), hardware, facts).unwrap().cache.spec.budget_bytes()
    };
    for hardware in [gpus(1, 24), cpu_only()] {
        let local = budget("", &corpus(100), &hardware);
        assert_eq!(local - budget("--read-ahead-mb 1024", &remote_corpus(100), &hardware), 256 * MIB);
        assert_eq!(local - budget("--read-ahead-mb 0", &remote_corpus(100), &hardware), 0);
    }
}

#[test]
fn a_read_ahead_that_does_not_fit_is_refused_with_one_that_does() {
    for line in ["--model-size nano --batch-size 2", "--model-size nano --batch-size 2 --mode cpu"] {
        let refusal =
            solve_with(&format!("{line} --read-ahead-mb 70000"), &gpus(1, 24), &remote_corpus(100)).unwrap_err();
        assert_eq!(refusal.kind, Reason::TooSmall);
        assert!(refusal.message.contains(", recordings read ahead 70000 MB"), "{refusal}");
        let typed = refusal.suggestions[0].args().join(" ");
        let (flag, mb) = typed.split_once(' ').unwrap();
        let mb: u64 = mb.parse().unwrap();
        assert!(flag == "--read-ahead-mb" && mb > 60_000, "{refusal}");
        assert!(solve_with(&format!("{line} {typed}"), &gpus(1, 24), &remote_corpus(100)).is_ok());
        assert!(
            solve_with(&format!("{line} --read-ahead-mb {}", mb + 200), &gpus(1, 24), &remote_corpus(100)).is_err()
        );
    }
    // Nothing is read ahead of a corpus on this machine.
    assert!(solve_with("--read-ahead-mb 70000", &gpus(1, 24), &corpus(100)).is_ok());
}

#[test]
fn the_cache_is_in_memory_if_the_run_leaves_enough() {
    let mut facts = corpus(1000);
    let kind = |hardware: &Hardware, facts: &CorpusFacts| solve_with("", hardware, facts).unwrap().cache.spec.kind();
    assert_eq!(kind(&gpus(1, 24), &facts), CacheKind::Memory);
    facts.decoded_bytes = (159 << 30) / 10;
    assert_eq!(kind(&gpus(1, 24), &facts), CacheKind::Memory);
    // On the CPU the roles use the same 64 GB.
    assert_eq!(kind(&cpu_only(), &facts), CacheKind::None);
    facts.decoded_bytes = 17 << 30;
    assert_eq!(kind(&gpus(1, 24), &facts), CacheKind::None);
    assert_eq!(solve("", &gpus(1, 24)).unwrap().cache.spec.kind(), CacheKind::None);
}
