use tandem_ranks::World;

use super::*;
use crate::fixture::{cpu_only, gpus, restricted, settings};

fn choose(line: &str, hardware: &Hardware) -> Result<Placement, Refusal> {
    Placement::choose(&settings(line), hardware)
}

#[test]
fn modes_and_cards() {
    let check = |line: &str, hardware: &Hardware, mode: Mode, cards: (Option<usize>, Option<usize>)| {
        let placement = choose(line, hardware).unwrap();
        assert_eq!((placement.mode, (placement.data, placement.model)), (mode, cards), "{line}");
    };
    check("", &cpu_only(), Mode::Cpu, (None, None));
    check("--mode cpu", &gpus(2, 24), Mode::Cpu, (None, None));
    check("", &gpus(1, 24), Mode::Single, (Some(0), Some(0)));
    check("--mode single", &gpus(2, 24), Mode::Single, (Some(0), Some(0)));
    check("--gpu 1", &gpus(2, 24), Mode::Single, (Some(1), Some(1)));
    check("--data-gpu 1 --model-gpu 0", &gpus(2, 24), Mode::Multi, (Some(1), Some(0)));
    check("--data-gpu 2 --model-gpu 3", &gpus(4, 24), Mode::Multi, (Some(2), Some(3)));
    check("--share-gpu", &gpus(1, 24), Mode::SharedGpu, (Some(0), Some(0)));
    check("--share-gpu --data-gpu 1 --model-gpu 1", &gpus(2, 24), Mode::SharedGpu, (Some(1), Some(1)));
}

#[test]
fn the_card_with_the_most_free_memory_is_chosen_and_the_plan_says_why() {
    let mut hardware = gpus(3, 24);
    hardware.cards[0].reading.free_bytes /= 2;
    let placement = choose("", &hardware).unwrap();
    assert_eq!(placement.model, Some(1));
    assert_eq!(placement.why, "no GPU flags given; GPU 1 has the most free memory, 24576 MB");
    hardware.cards[1].card.hidden_by = Some("CUDA_VISIBLE_DEVICES=0,2".to_owned());
    assert_eq!(choose("", &hardware).unwrap().model, Some(2));
}

#[test]
fn two_gpus_and_no_flags_get_one_hint() {
    let hints = choose("", &gpus(2, 24)).unwrap().hints;
    assert_eq!(hints.len(), 1);
    assert!(
        hints[0].contains("--data-gpu 0 --model-gpu 1") && hints[0].contains("--gpus all trains on all of them"),
        "{hints:?}"
    );
    assert!(choose("", &gpus(1, 24)).unwrap().hints.is_empty());
    assert!(choose("--gpu 0", &gpus(2, 24)).unwrap().hints.is_empty());
}

#[test]
fn requests_that_cannot_be_met() {
    let check = |line: &str, hardware: &Hardware, expected: &str| {
        let refusal = choose(line, hardware).unwrap_err();
        assert!(refusal.to_string().contains(expected), "{line}: {refusal}");
        for suggestion in &refusal.suggestions {
            assert!(Placement::choose(&suggestion.apply(&settings(line)), hardware).is_ok(), "{refusal}");
        }
    };
    let pair = "--data-gpu 0 --model-gpu 1";
    check("--data-gpu 0", &cpu_only(), "❌ --data-gpu and --model-gpu go together");
    let one = "❌ Multi-GPU requires at least 2 GPUs, found 1 (Insufficient GPUs for Multi-GPU Mode)";
    check(pair, &gpus(1, 24), one);
    check(pair, &gpus(1, 24), "\n     --gpu 0 (without");
    check(pair, &gpus(1, 24), "\n     --share-gpu --data-gpu 0 --model-gpu 0");
    check(pair, &cpu_only(), "❌ Multi-GPU requires at least 2 GPUs, found 0");
    check(pair, &cpu_only(), "--mode cpu works");
    check("--data-gpu 7 --model-gpu 1", &gpus(2, 24), "❌ Invalid data_gpu=7, must be 0-1");
    check("--data-gpu 0 --model-gpu 2", &gpus(2, 24), "❌ Invalid model_gpu=2, must be 0-1");
    check("--gpu 1", &gpus(1, 24), "❌ Invalid gpu=1, must be 0-0");
    check("--share-gpu --data-gpu 7 --model-gpu 7", &gpus(2, 24), "❌ Invalid data_gpu=7, must be 0-1");
    check("--gpu 0", &cpu_only(), "--mode cpu works");
    check("--mode single", &cpu_only(), "--mode cpu works");
    check("--share-gpu", &cpu_only(), "--mode cpu works");
    let differ = "--share-gpu puts both roles on one card, but --data-gpu 0 and --model-gpu 1 differ";
    check("--share-gpu --data-gpu 0 --model-gpu 1", &gpus(2, 24), differ);
    let same = "❌ data_gpu and model_gpu must be different (or add --share-gpu)";
    check("--data-gpu 1 --model-gpu 1", &gpus(2, 24), same);
}

#[test]
fn a_broken_driver_is_never_mistaken_for_no_gpu() {
    let mut hardware = cpu_only();
    hardware.driver_error = Some("libcuda.so.1 was not found; searched /usr/lib".to_owned());
    for line in ["", "--gpu 0", "--data-gpu 0 --model-gpu 1", "--share-gpu"] {
        let text = choose(line, &hardware).unwrap_err().to_string();
        assert!(text.contains("searched /usr/lib") && text.contains("--mode cpu works"), "{text}");
    }
    assert_eq!(choose("--mode cpu", &hardware).unwrap().mode, Mode::Cpu);
}

#[test]
fn hidden_and_old_cards_are_refused_by_name() {
    let mut hardware = gpus(2, 24);
    hardware.cards[1].card.hidden_by = Some("CUDA_VISIBLE_DEVICES=0".to_owned());
    let text = choose("--data-gpu 0 --model-gpu 1", &hardware).unwrap_err().to_string();
    assert!(text.contains("GPU 1: Simulated GPU (GPU-simulated-1) is hidden by CUDA_VISIBLE_DEVICES=0"), "{text}");
    hardware.cards[0].card.capability = (6, 1);
    let text = choose("", &hardware).unwrap_err().to_string();
    assert!(text.contains("compute capability 6.1; needed: 7.5") && text.contains("is hidden by"), "{text}");
}

#[test]
fn a_hidden_or_missing_card_is_answered_with_both_numbers_and_pairs_that_work() {
    let check = |line: &str, suggested: &[&str]| {
        let hardware = restricted(4, &[3, 1]);
        let refusal = choose(line, &hardware).unwrap_err();
        let text = refusal.to_string();
        let numbers = "GPU 3 is device 0, GPU 1 is device 1; GPUs 0, 2 are hidden\n   To use all GPUs: unset CUDA";
        assert!(text.contains(numbers), "{line}: {text}");
        let found: Vec<String> = refusal.suggestions.iter().map(|suggestion| suggestion.args().join(" ")).collect();
        assert_eq!(found, suggested, "{line}: {text}");
        for suggestion in &refusal.suggestions {
            assert!(Placement::choose(&suggestion.apply(&settings(line)), &hardware).is_ok(), "{text}");
        }
    };
    let both = ["--data-gpu 1 --model-gpu 3", "--data-gpu 3 --model-gpu 1"];
    check("--data-gpu 0 --model-gpu 2", &both);
    check("--data-gpu 0 --model-gpu 4", &both);
    // A card that can be used keeps its role.
    check("--data-gpu 0 --model-gpu 1", &both[1..].iter().chain(&both[..1]).copied().collect::<Vec<_>>());
    check("--data-gpu 1 --model-gpu 7", &both);
    check("--gpu 2", &["--gpu 1", "--gpu 3"]);
    check("--share-gpu --data-gpu 0 --model-gpu 0", &["--gpu 1", "--gpu 3"]);
    let one = choose("--data-gpu 0 --model-gpu 1", &restricted(2, &[1])).unwrap_err();
    assert_eq!(one.suggestions.iter().map(|s| s.args().join(" ")).collect::<Vec<_>>(), ["--gpu 1"], "{one}");
    let none = choose("", &restricted(2, &[])).unwrap_err().to_string();
    assert!(none.contains("it has no device; GPUs 0, 1 are hidden") && none.contains("--mode cpu"), "{none}");
}

#[test]
fn a_card_is_named_by_its_uuid_or_a_unique_start_of_it() {
    let mut hardware = gpus(3, 24);
    for (facts, uuid) in hardware.cards.iter_mut().zip(["GPU-8f2d4c9e-1", "GPU-8f2d77aa-2", "GPU-c0ffee00-3"]) {
        facts.card.uuid = uuid.to_owned();
    }
    let check = |line: &str, cards: [usize; 2]| {
        let placement = choose(line, &hardware).unwrap();
        assert_eq!([placement.data, placement.model], cards.map(Some), "{line}");
    };
    check("--gpu GPU-c0ffee00-3", [2, 2]);
    check("--gpu gpu-C", [2, 2]);
    check("--data-gpu GPU-8f2d7 --model-gpu 0", [1, 0]);
    check("--data-gpu GPU-8f2d4 --model-gpu GPU-c0", [0, 2]);
    check("--share-gpu --data-gpu GPU-c0 --model-gpu 2", [2, 2]);
    let refused = |line: &str, parts: &[&str]| {
        let refusal = choose(line, &hardware).unwrap_err();
        parts.iter().for_each(|part| assert!(refusal.to_string().contains(part), "{line}: {refusal}"));
        assert!(!refusal.suggestions.is_empty(), "{line}");
    };
    let list = ["\n   GPU 0: Simulated GPU (GPU-8f2d4c9e-1)", "\n   GPU 2: Simulated GPU (GPU-c0ffee00-3)"];
    refused("--gpu GPU-dead", &["❌ Invalid gpu=GPU-dead, no GPU has a UUID that begins like this", list[0], list[1]]);
    let several = "❌ Invalid model_gpu=GPU-8f2d, 2 GPUs have a UUID that begins like this: type more of it";
    refused("--data-gpu 2 --model-gpu GPU-8f2d", &[several, list[0], list[1]]);
    refused("--data-gpu GPU-c0 --model-gpu 2", &["data_gpu and model_gpu must be different"]);
    refused("--share-gpu --data-gpu GPU-c0 --model-gpu 1", &["--data-gpu GPU-c0 and --model-gpu 1 differ"]);
    refused("--mode cpu --gpu GPU-dead", &["--mode cpu uses no GPU"]);
    let text = choose("--gpu GPU-dead", &cpu_only()).unwrap_err().to_string();
    assert!(text.contains("❌ GPU-dead was requested, but there is no GPU"), "{text}");
}

#[test]
fn bf16_is_refused_on_a_device_without_it() {
    let mut old = gpus(1, 24);
    old.cards[0].card.capability = (7, 5);
    for hardware in [&old, &cpu_only()] {
        assert_eq!(choose("", hardware).unwrap().precision, Precision::Full);
        let text = choose("--mixed-precision", hardware).unwrap_err().to_string();
        assert!(text.contains("--mixed-precision needs bf16") && text.contains("--no-mixed-precision"), "{text}");
    }
    assert_eq!(choose("", &gpus(1, 24)).unwrap().precision, Precision::Mixed);
    assert_eq!(choose("--no-mixed-precision", &gpus(1, 24)).unwrap().precision, Precision::Full);
}

#[test]
fn a_mode_chosen_by_timing_says_so() {
    let check = |changes: &[(&str, &str)], mode: Mode| {
        let placement = Placement::choose(&settings("").with_measured(changes).unwrap(), &gpus(2, 24)).unwrap();
        assert_eq!((placement.mode, placement.why.as_str()), (mode, "--mode auto"));
        assert!(placement.hints.is_empty(), "auto mode has considered both cards: {:?}", placement.hints);
    };
    check(&[("mode", "single"), ("gpu", "1")], Mode::Single);
    check(&[("share-gpu", ""), ("gpu", "1")], Mode::SharedGpu);
    check(&[("data-gpu", "1"), ("model-gpu", "0")], Mode::Multi);
    check(&[("mode", "cpu")], Mode::Cpu);
}

#[test]
fn every_rank_has_a_card_of_its_own_for_both_roles() {
    let rank = |local_rank| World { rank: 4 + local_rank, size: 8, local_rank, local_size: 2 };
    let check = |line: &str, local_rank: u32, expected: usize| {
        let placement = choose(line, &gpus(4, 24).with_world(rank(local_rank))).unwrap();
        assert_eq!(
            (placement.mode, placement.data, placement.model),
            (Mode::SharedGpu, Some(expected), Some(expected))
        );
        assert!(placement.why.contains(&format!("rank {} of 8", 4 + local_rank)), "{}", placement.why);
    };
    check("--gpus all", 1, 1);
    check("--gpus 3,1", 0, 3);
    check("--gpus 3,1", 1, 1);
    // A launcher's ranks take the cards in order.
    check("", 1, 1);
    assert_eq!(choose("--mode cpu", &gpus(4, 24).with_world(rank(1))).unwrap().mode, Mode::Cpu);
    assert_eq!(choose("", &cpu_only().with_world(rank(1))).unwrap().mode, Mode::Cpu);
    // A launcher has shown the rank one card.
    let shown = choose("", &restricted(4, &[2]).with_world(rank(1))).unwrap();
    assert_eq!((shown.data, shown.model), (Some(2), Some(2)));
    // Fewer cards than ranks, and flags for one process.
    for (line, part) in [
        ("--gpus 2", "This machine runs 2 ranks, usable GPUs: 1"),
        ("--gpus 0,1,2", "--gpus 0,1,2 names 3 GPUs, and this machine runs 2 ranks"),
        ("--gpu 1", "This is rank 5 of 8: each rank has a GPU of its own"),
        ("--data-gpu 0 --model-gpu 1", "each rank has a GPU of its own"),
        ("--share-gpu", "each rank has a GPU of its own"),
    ] {
        let refusal = choose(line, &gpus(4, 24).with_world(rank(1))).unwrap_err();
        assert!(refusal.message.contains(part), "{line}: {refusal}");
    }
}

#[test]
fn a_rank_gets_its_share_of_the_machine() {
    let whole = gpus(2, 24);
    let rank = whole.clone().with_world(World { rank: 0, size: 4, local_rank: 0, local_size: 4 });
    assert_eq!(rank.host.available_bytes, whole.host.available_bytes / 4);
    assert_eq!(rank.host.cores, (whole.host.cores / 4).max(1));
}
