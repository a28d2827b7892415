//! The text of a plan.

use std::fmt::Write as _;

use tandem_device::bytes::{show, show_apart, show_free};
use tandem_events::Role;
use tandem_feed::{Bucket, CacheSpec, LeftOut, show_hours, show_usage};

use crate::cache::CachePlan;
use crate::corpus::CorpusPlan;
use crate::disk::{describe, describe_free};
use crate::hardware::Hardware;
use crate::memory::device_name;
use crate::numa;
use crate::placement::Precision;
use crate::plan::{Level, Plan, RolePlan};

/// The cards found, then the plan: mode and why, memory per role, shapes, slots, notes, hints and advice.
pub fn show_plan(plan: &Plan, hardware: &Hardware) -> String {
    let mut text = show_gpus(hardware);
    let isolated = if plan.isolated { ", memory-isolated" } else { "" };
    push(&mut text, "Mode", &format!("{}{isolated} ({})", plan.mode, plan.why));
    for role in Role::BOTH {
        push(&mut text, &format!("{role} role"), &device(plan.role(role)));
    }
    if let Some(nodes) = numa::describe(plan) {
        push(&mut text, "NUMA", &nodes);
    }
    for role in Role::BOTH {
        text.push('\n');
        text.push_str(&memory_table(plan.role(role)));
    }
    text.push('\n');
    for (name, value) in rest(plan) {
        push(&mut text, name, &value);
    }
    for (name, lines) in [("Note", &plan.notes), ("Hint", &plan.hints), ("Advice", &plan.advice)] {
        lines.iter().for_each(|line| push(&mut text, name, line));
    }
    text
}

/// The cards found, one line each.
pub fn show_gpus(hardware: &Hardware) -> String {
    if hardware.cards.is_empty() {
        return "GPUs found: none\n".to_owned();
    }
    let mut text = String::from("GPUs found:\n");
    for facts in &hardware.cards {
        let (card, reading) = (&facts.card, &facts.reading);
        let hidden = card.hidden_by.as_ref().map(|by| format!(", hidden by {by}")).unwrap_or_default();
        let (total, free) = (show(reading.total_bytes), show_free(reading.free_bytes));
        let _ = writeln!(text, "  {}  {}  {}  total {total}, free {free}{hidden}", card.index, card.name, card.uuid);
    }
    text
}

/// The plan in one line, for the start of a run.
pub fn show_short(plan: &Plan) -> String {
    let role = |role: Role| {
        let role_plan = plan.role(role);
        let (planned, limit) = (role_plan.planned_mb(), role_plan.limit_mb());
        format!("{role} {planned}/{limit} MB on {}", device_name(role_plan.card))
    };
    format!(
        "Plan: {}, {}; batch {}, {} model, {} prefetched batches + {} slots of {}, transfer {}, {}",
        role(Role::Data),
        role(Role::Model),
        batch(plan),
        plan.model_title(),
        plan.feed.data_slots,
        plan.feed.model_slots,
        show(plan.feed.slot_bytes()),
        plan.transfer.with_bandwidth(),
        decode_threads(plan),
    )
}

fn push(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "{:<12} {value}", format!("{name}:"));
}

fn device(role: &RolePlan) -> String {
    match (&role.uuid, role.card) {
        (Some(uuid), Some(card)) => format!("GPU {card}: {} ({uuid})", role.name),
        _ => role.name.clone(),
    }
}

fn memory_table(role: &RolePlan) -> String {
    let percent = |bytes: u64| 100.0 * bytes as f64 / role.limit_bytes.max(1) as f64;
    let mut text = format!(
        "Memory of the {} role on {}: {} of {} MB, {:.1} % of its limit ({})\n",
        role.role,
        device_name(role.card),
        role.planned_mb(),
        role.limit_mb(),
        percent(role.planned_bytes),
        role.strength,
    );
    for line in &role.lines {
        let _ = writeln!(text, "  {:>10}  {:>5.1} %  {}", show(line.bytes), percent(line.bytes), line.name);
    }
    let _ = writeln!(text, "  {:>10}  {:>5.1} %  planned", show(role.planned_bytes), percent(role.planned_bytes));
    text
}

fn rest(plan: &Plan) -> Vec<(&'static str, String)> {
    let asked = match plan.buffer_size_asked {
        asked if asked == plan.feed.data_slots => String::new(),
        asked => format!(" (--buffer-size {asked}; two GPUs use max(6, N/2))"),
    };
    let mut lines = plan.corpus.as_ref().map_or_else(Vec::new, |corpus| corpus_lines(plan, corpus));
    lines.extend([
        ("Batch", format!("{} utterances per optimizer step", batch(plan))),
        ("Buckets", buckets(&plan.feed.buckets)),
        (
            "Slots",
            format!(
                "{} batches prefetched{asked}, {} slots on the model side, {} each",
                plan.feed.data_slots,
                plan.feed.model_slots,
                show(plan.feed.slot_bytes())
            ),
        ),
        ("Features", format!("{} ({})", plan.arithmetic.arithmetic.name(), plan.arithmetic.why)),
        ("Transfer", transfer(plan)),
        ("Threads", threads(plan)),
        ("Pinned", pinned(plan)),
        ("Cache", cache(&plan.cache)),
    ]);
    if plan.read_ahead_bytes > 0 {
        let bytes = show(plan.read_ahead_bytes);
        lines.push(("Read-ahead", format!("up to {bytes} of recordings from the object store, in host memory")));
    }
    lines.extend([
        ("Model", format!("{} ({}), {}", plan.model_title(), plan.model_name, precision(plan.precision))),
        ("Optimizer", optimizer(plan.level).to_owned()),
        ("Schedule", plan.training.describe()),
        (
            "Checkpoints",
            format!(
                "{}{}: {}",
                describe(&plan.checkpoints),
                describe_free(&plan.checkpoints),
                plan.training.checkpoint_dir
            ),
        ),
        ("Driver", plan.driver_source.clone().unwrap_or_else(|| "none".to_owned())),
        (
            "Start",
            format!("seed {}, waits up to {:.1} s for the data buffer to fill", plan.seed, plan.start_delay_seconds),
        ),
    ]);
    lines
}

/// Number of buckets, shortest and longest row, and total frames and tokens of a batch of each.
fn buckets(buckets: &[Bucket]) -> String {
    let rows = || buckets.iter().flat_map(Bucket::rows).map(|row| row.frames);
    let (shortest, longest) = (rows().min().unwrap_or(0), rows().max().unwrap_or(0));
    let sums: Vec<String> = buckets.iter().map(|b| format!("{}/{}", b.frames(), b.tokens())).collect();
    format!(
        "{} with rows of {shortest} to {longest} frames; {} frames/tokens per batch",
        buckets.len(),
        sums.join(", ")
    )
}

/// The corpus, what a mixture makes of it, the skipped utterances and what they would cost, and the padding.
fn corpus_lines(plan: &Plan, corpus: &CorpusPlan) -> Vec<(&'static str, String)> {
    let CorpusPlan { left_out, padding, .. } = corpus;
    let usage = show_usage(corpus.num_utterances, corpus.seconds, corpus.num_validation, corpus.num_excluded);
    let mut lines = vec![("Corpus", format!("{usage}: {}", corpus.name))];
    if corpus.epoch_utterances != corpus.num_utterances {
        let (count, hours) = (corpus.epoch_utterances, show_hours(corpus.epoch_seconds));
        lines.push(("Epoch", format!("{count} utterances, {hours}: repeated by the weights of the mixture")));
    }
    let reasons = plan.skipped_utterances().join("; ");
    if !reasons.is_empty() {
        lines.push(("Skipped", format!("{reasons}{}", cost_of_longest(plan, left_out, corpus.num_utterances))));
    }
    let tokens = match corpus.exact_tokens {
        true => format!(", {:.1} % of tokens", padding.token_waste() * 100.0),
        false => String::new(),
    };
    let frames = padding.frame_waste() * 100.0;
    lines.push(("Padding", format!("{frames:.1} % of frames{tokens}, {} batches per epoch", padding.batches)));
    lines
}

/// An upper bound on the slot size with the utterances that are too long, as if all were as long as the longest.
fn cost_of_longest(plan: &Plan, skipped: &LeftOut, num_utterances: usize) -> String {
    let last = plan.feed.buckets.iter().max_by_key(|bucket| bucket.longest_frames());
    let Some(last) = last.filter(|_| skipped.too_long > 0) else { return String::new() };
    // They would fill the longest rows, in proportion to their number.
    let all = (skipped.too_long + num_utterances) as u64;
    let longest = (skipped.too_long as u64 * last.batch()).div_ceil(all.max(1));
    let mut rows = last.rows().to_vec();
    for row in rows.iter_mut().rev().take(longest as usize) {
        row.frames = row.frames.max(skipped.longest_frames.into());
        row.tokens = row.tokens.max(skipped.longest_tokens.into());
    }
    let now = plan.feed.slot_bytes();
    let then = plan.feed.schema.layout(&Bucket::new(rows)).bytes;
    if then <= now {
        return String::new();
    }
    let (then, now) = show_apart(then, now);
    format!("; without this limit, slots would need up to {then} instead of {now}")
}

/// The route, and how many batches are verified after it.
fn transfer(plan: &Plan) -> String {
    let verified = match plan.feed.verify_every.filter(|_| plan.feed.num_checks() > 0) {
        None => String::new(),
        Some(1) => ", every batch verified".to_owned(),
        Some(every) => format!(", one in {every} batches verified"),
    };
    plan.transfer.describe() + &verified
}

/// Pinned host memory, and what it is for.
fn pinned(plan: &Plan) -> String {
    let lines = plan.feed.pinned_lines();
    let parts: Vec<String> = lines.iter().map(|(name, bytes)| format!("{name} {}", show(*bytes))).collect();
    format!("{} of host memory: {}", show(plan.feed.pinned_bytes()), parts.join(", "))
}

fn threads(plan: &Plan) -> String {
    let more = match plan.max_threads {
        max if max == plan.threads => String::new(),
        max => format!(" (up to {max} if decoding is too slow)"),
    };
    let (uploads, bytes) = (plan.feed.pinned_uploads, show(plan.feed.upload_bytes()));
    format!("{}{more}, {uploads} pinned upload buffers of {bytes}", decode_threads(plan))
}

fn decode_threads(plan: &Plan) -> String {
    format!("{} decode thread{}", plan.threads, if plan.threads == 1 { "" } else { "s" })
}

fn cache(cache: &CachePlan) -> String {
    let why = &cache.why;
    match &cache.spec {
        CacheSpec::None => format!("none ({why})"),
        CacheSpec::Memory { budget_bytes } => format!("memory, up to {} ({why})", show(*budget_bytes)),
        CacheSpec::Disk { budget_bytes, folder } => {
            format!("disk, up to {} in {} ({why})", show(*budget_bytes), folder.display())
        }
    }
}

fn batch(plan: &Plan) -> String {
    match plan.grad_accum {
        1 => plan.batch_size.to_string(),
        accum => format!("{} ({accum} x {})", plan.batch_size, plan.batch_size / accum),
    }
}

fn precision(precision: Precision) -> &'static str {
    match precision {
        Precision::Full => "f32",
        Precision::Mixed => "bf16 compute with f32 master weights",
    }
}

fn optimizer(level: Level) -> &'static str {
    match level {
        Level::Basic => "basic: AdamW",
        Level::Enhanced => "enhanced: AdamW with an EMA of the weights",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Chains, corpus, cpu_only, gpus, remote_corpus, settings};

    fn check(line: &str, hardware: &Hardware, parts: &[&str]) {
        let text = show_plan(&Plan::solve(&settings(line), hardware, &Chains, None).unwrap(), hardware);
        for part in parts {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
    }

    #[test]
    fn what_a_plan_shows() {
        check(
            "--data-gpu 0 --model-gpu 1 --enable-memory-isolation --prefetch-buffer-size 2 --verify-transfers 2",
            &gpus(2, 24),
            &[
                "GPUs found:\n  0  Simulated GPU  GPU-simulated-0  total 24576 MB, free 24576 MB\n",
                "Mode:        Multi-GPU Mode, memory-isolated (--data-gpu 0 --model-gpu 1)\n",
                "data role:   GPU 0: Simulated GPU (GPU-simulated-0)\n",
                "Memory of the data role on GPU 0: ",
                " of 8192 MB, ",
                "(planned+reserved, driver pool cap)",
                "input slots",
                "Buckets:     2 with rows of 32 to 1000 frames; 8312/1656, 8312/1656 frames/tokens per batch\n",
                "25 batches prefetched (--buffer-size 50; two GPUs use max(6, N/2)), 3 slots on the model side, 4.6 MB each\n",
                "Features:    f64 (GPU 0 computes f64 fast: compute capability 8.0)\n",
                "Transfer:    bounce (the GPUs have no peer access), one in 2 batches verified\n",
                "MB of host memory: pinned uploads ",
                ", bounce staging 9.1 MB, transfer checksums 1.0 KB\n",
                " 512 bytes    0.0 %  transfer checksums\n",
                "Note:        --prefetch-buffer-size 2 raised to 3",
                "Driver:      table: test\n",
                "Advice:      ",
            ],
        );
        check("", &gpus(2, 24), &["Hint:        2 GPUs found: --gpus all trains on all of them", "slots handed over"]);
        let mut facts = corpus(1000);
        (facts.num_validation, facts.num_excluded) = (7, 3);
        let plan = Plan::solve(&settings("--max-mel-frames 500"), &gpus(1, 24), &Chains, Some(&facts)).unwrap();
        let text = show_plan(&plan, &gpus(1, 24));
        for part in [
            "Corpus:      421 utterances, 0.39 hours; 7 for validation, 3 excluded: corpus\n",
            "Skipped:     579 over 500 frames or 107 tokens; without this limit, slots would need up to 5.7 MB instead of 3.5 MB\n",
            "Padding:     3.2 % of frames, 2.2 % of tokens, 26 batches per epoch\n",
            "Cache:       memory, up to ",
            "Threads:     8 decode threads (up to 32 if decoding is too slow), 4 pinned upload buffers of 2.3 MB\n",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        let repeated = facts.rows().iter().flat_map(|row| [*row, *row]).collect();
        let mixture = facts.with_epoch_rows(repeated);
        let plan = Plan::solve(&settings("--max-mel-frames 500"), &gpus(1, 24), &Chains, Some(&mixture)).unwrap();
        let text = show_plan(&plan, &gpus(1, 24));
        for part in [
            "Corpus:      421 utterances, 0.39 hours; 7 for validation, 3 excluded: corpus\n",
            "Epoch:       842 utterances, 0.79 hours: repeated by the weights of the mixture\n",
            " 52 batches per epoch\n",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        check(
            "",
            &cpu_only(),
            &["GPUs found: none\n", "Mode:        CPU Mode (no NVIDIA device found)", "model role:  CPU\n"],
        );
    }

    #[test]
    fn what_is_read_ahead_is_shown_if_there_is_any() {
        let line = "Read-ahead:  up to 256 MB of recordings from the object store, in host memory\n";
        for (facts, is_remote) in [(corpus(100), false), (remote_corpus(100), true)] {
            let plan = Plan::solve(&settings("--mode cpu"), &gpus(1, 24), &Chains, Some(&facts)).unwrap();
            let text = show_plan(&plan, &gpus(1, 24));
            assert_eq!(text.contains(line), is_remote, "{text}");
            assert_eq!(text.contains("Read-ahead"), is_remote, "{text}");
        }
    }

    #[test]
    fn the_short_form_is_one_line() {
        let plan = Plan::solve(&settings("--gpu 0"), &gpus(1, 24), &Chains, None).unwrap();
        let text = show_short(&plan);
        assert!(text.starts_with("Plan: data ") && text.contains(" MB on GPU 0; batch 16, tiny model"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
}
