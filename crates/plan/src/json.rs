//! A plan or a refusal as JSON. The keys are an interface: add keys, never rename them.

use serde_json::{Value, json};
use tandem_events::Role;
use tandem_feed::CacheSpec;

use crate::corpus::CorpusPlan;
use crate::hardware::Hardware;
use crate::placement::Precision;
use crate::plan::{Plan, RolePlan};
use crate::refusal::{Refusal, Suggestion};
use crate::transfer::TriedRoute;

fn tried_route(tried: &TriedRoute) -> Value {
    match &tried.result {
        Ok(mb_per_s) => json!({ "route": tried.route.name(), "mb_per_s": mb_per_s }),
        Err(why) => json!({ "route": tried.route.name(), "refused": why }),
    }
}

/// The plan and the cards of the machine.
pub fn plan_json(plan: &Plan, hardware: &Hardware) -> Value {
    let mut document = json!({
        "mode": plan.mode.slug(),
        "isolated": plan.isolated,
        "simulated": plan.simulated,
        "why": plan.why,
        "roles": { "data": role(plan.role(Role::Data)), "model": role(plan.role(Role::Model)) },
        "buckets": plan.feed.buckets.iter().map(|bucket| json!({
            "frames": bucket.longest_frames(), "tokens": bucket.longest_tokens(), "batch": bucket.batch(),
            "total_frames": bucket.frames(), "total_tokens": bucket.tokens(),
            "row_frames": bucket.rows().iter().map(|row| row.frames).collect::<Vec<_>>(),
            "row_tokens": bucket.rows().iter().map(|row| row.tokens).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "slot_bytes": plan.feed.slot_bytes(),
        "buffer_size": plan.feed.data_slots,
        "prefetch": plan.feed.model_slots,
        "feature_arithmetic": plan.arithmetic.arithmetic.name(),
        "feature_arithmetic_why": plan.arithmetic.why,
        "transfer": plan.transfer.to_string(),
        "transfer_why": plan.transfer.why,
        "transfer_mb_per_s": plan.transfer.mb_per_s,
        "transfer_tried": plan.transfer.tried.iter().map(tried_route).collect::<Vec<_>>(),
        "threads": plan.threads,
        "max_threads": plan.max_threads,
        "pinned_bytes": plan.feed.pinned_bytes(),
        "pinned_lines": plan.feed.pinned_lines().iter().map(|(name, bytes)| json!({ "name": name, "bytes": bytes }))
            .collect::<Vec<_>>(),
        "verify_transfers": plan.feed.verify_every,
        "corpus": plan.corpus.as_ref().map(corpus),
        "cache": {
            "kind": plan.cache.spec.kind().slug(), "budget_bytes": plan.cache.spec.budget_bytes(),
            "folder": cache_folder(plan), "why": plan.cache.why,
        },
        "rates_hz": plan.feed.rates_hz,
        "max_mel_frames": plan.max_mel_frames,
        "static_shapes": plan.static_shapes,
        "max_text_length": plan.max_text_length,
        "max_bad_fraction": plan.max_bad_fraction,
        "batch_size": plan.batch_size,
        "grad_accum": plan.grad_accum,
        "mixed_precision": plan.precision == Precision::Mixed,
        "model_size": plan.model_title(),
        "optimization_level": plan.level.slug(),
        "training": {
            "checkpoint_dir": plan.training.checkpoint_dir,
            "epochs": plan.training.epochs,
            "max_steps": plan.training.max_steps,
            "peak_lr": plan.training.peak_lr,
            "cosine": plan.training.cosine,
            "clip": plan.training.clip,
            "ema_decay": plan.training.ema_decay,
        },
        "checkpoints": {
            "each_bytes": plan.checkpoints.each_bytes,
            "kept_bytes": plan.checkpoints.kept_bytes,
            "peak_bytes": plan.checkpoints.peak_bytes,
            "present": plan.checkpoints.space.num_checkpoints,
            "present_bytes": plan.checkpoints.space.checkpoint_bytes,
            "needed_bytes": plan.checkpoints.needed_bytes,
            "free_bytes": plan.checkpoints.space.free_bytes,
        },
        "driver_source": plan.driver_source,
        "seed": plan.seed,
        "model_start_delay": plan.start_delay_seconds,
        "notes": plan.notes,
        "hints": plan.hints,
        "advice": plan.advice,
        "gpus": gpus(hardware),
    });
    // Added here because the macro's recursion limit is reached above.
    document["ranks"] = json!({ "rank": plan.world.rank, "size": plan.world.size });
    document["read_ahead_bytes"] = plan.read_ahead_bytes.into();
    document["micro_batches_per_rank"] = plan.local_micro_batches().into();
    document
}

/// The refusal. The flags of a suggestion are added to the command line or replace those on it; `instead_of` lists the flags
/// to remove.
pub fn refusal_json(refusal: &Refusal) -> Value {
    let typed = |suggestion: &Suggestion| suggestion.args().join(" ");
    json!({
        "error": refusal.message,
        "code": Refusal::CODE,
        "reason": refusal.kind.slug(),
        "suggestions": refusal.suggestions.iter().map(typed).collect::<Vec<_>>(),
        "suggestion_details": refusal.suggestions.iter().map(|suggestion| json!({
            "args": suggestion.args(), "instead_of": suggestion.left_out(), "text": suggestion.text,
        })).collect::<Vec<_>>(),
        "demands": refusal.demands.iter().map(|demand| json!({
            "role": demand.role,
            "limit_bytes": demand.limit_bytes,
            "needed_bytes": demand.needed_bytes,
            "lines": lines(&demand.lines),
        })).collect::<Vec<_>>(),
    })
}

/// The folder of a disk cache.
fn cache_folder(plan: &Plan) -> Option<String> {
    match &plan.cache.spec {
        CacheSpec::Disk { folder, .. } => Some(folder.display().to_string()),
        CacheSpec::None | CacheSpec::Memory { .. } => None,
    }
}

fn corpus(corpus: &CorpusPlan) -> Value {
    let padding = &corpus.padding;
    json!({
        "path": corpus.name,
        "utterances": corpus.num_utterances,
        "hours": corpus.seconds / 3600.0,
        "epoch_utterances": corpus.epoch_utterances,
        "epoch_hours": corpus.epoch_seconds / 3600.0,
        "validation": corpus.num_validation,
        "excluded": corpus.num_excluded,
        "rejected": corpus.rejected,
        "left_out": corpus.left_out.json(),
        "decoded_bytes": corpus.decoded_bytes,
        "batches": padding.batches,
        "padding_waste": padding.frame_waste(),
        // Upper bounds on token counts say nothing about padding.
        "symbol_padding_waste": corpus.exact_tokens.then(|| padding.token_waste()),
    })
}

fn role(role: &RolePlan) -> Value {
    json!({
        "gpu": role.card,
        "uuid": role.uuid,
        "name": role.name,
        "numa": role.numa.as_ref().map(|numa| json!({ "node": numa.node, "cores": numa.core_list() })),
        "limit_mb": role.limit_mb(),
        "planned_mb": role.planned_mb(),
        "limit_bytes": role.limit_bytes,
        "planned_bytes": role.planned_bytes,
        "arena_bytes": role.arena_bytes,
        "driver_bytes": role.driver_bytes,
        "strength": role.strength.to_string(),
        "lines": lines(&role.lines),
    })
}

fn lines(lines: &[crate::model_memory::PlanLine]) -> Vec<Value> {
    lines.iter().map(|line| json!({ "name": line.name, "bytes": line.bytes })).collect()
}

fn gpus(hardware: &Hardware) -> Vec<Value> {
    let gpu = |facts: &crate::hardware::CardFacts| {
        json!({
            "index": facts.card.index,
            "name": facts.card.name,
            "uuid": facts.card.uuid,
            "total_bytes": facts.reading.total_bytes,
            "free_bytes": facts.reading.free_bytes,
            "hidden_by": facts.card.hidden_by,
        })
    };
    hardware.cards.iter().map(gpu).collect()
}

#[cfg(test)]
mod tests {
    use tandem_ranks::World;

    use super::*;
    use crate::corpus::CorpusFacts;
    use crate::fixture::{Chains, cpu_only, gpus, remote_corpus, settings};

    fn plan(line: &str, hardware: &Hardware) -> Value {
        plan_json(&Plan::solve(&settings(line), hardware, &Chains, None).unwrap(), hardware)
    }

    #[test]
    fn a_plan_has_the_keys_of_the_interface() {
        let json = plan("--data-gpu 0 --model-gpu 1 --enable-memory-isolation", &gpus(2, 24));
        for key in ["mode", "simulated", "roles", "buckets", "transfer", "threads", "advice"] {
            assert!(json.get(key).is_some(), "{key}");
        }
        assert_eq!(
            (&json["mode"], &json["isolated"], &json["simulated"]),
            (&json!("multi"), &json!(true), &json!(true))
        );
        let data = &json["roles"]["data"];
        assert_eq!((&data["gpu"], &data["uuid"]), (&json!(0), &json!("GPU-simulated-0")));
        assert_eq!((&data["limit_mb"], &data["lines"][0]["name"]), (&json!(8192), &json!("driver")));
        let sum: u64 =
            json["roles"]["model"]["lines"].as_array().unwrap().iter().map(|l| l["bytes"].as_u64().unwrap()).sum();
        assert_eq!(json["roles"]["model"]["planned_bytes"], json!(sum));
    }

    #[test]
    fn a_plan_has_its_rank_and_the_micro_batches_of_a_rank() {
        let check = |hardware: &Hardware, ranks: Value, per_rank: u64| {
            let json = plan("--mode cpu --batch-size 8 --grad-accum 4", hardware);
            assert_eq!((&json["ranks"], &json["grad_accum"]), (&ranks, &json!(4)));
            assert_eq!(json["micro_batches_per_rank"], json!(per_rank));
        };
        check(&cpu_only(), json!({ "rank": 0, "size": 1 }), 4);
        let second = World { rank: 1, size: 2, local_rank: 1, local_size: 2 };
        check(&cpu_only().with_world(second), json!({ "rank": 1, "size": 2 }), 2);
    }

    #[test]
    fn a_plan_has_the_bytes_of_its_read_ahead_and_no_secret_of_its_corpus() {
        assert_eq!(plan("", &cpu_only())["read_ahead_bytes"], json!(0));
        let url = "https://anna:SECRET@host/a.tar?X-Amz-Signature=SECRET";
        let mut facts = CorpusFacts::new(url, remote_corpus(100).rows().to_vec());
        facts.is_remote = true;
        let settings = settings(&format!("--train-data {url} --val-data {url}"));
        let json = plan_json(&Plan::solve(&settings, &cpu_only(), &Chains, Some(&facts)).unwrap(), &cpu_only());
        assert_eq!(json["read_ahead_bytes"], json!(256 << 20));
        assert_eq!(json["corpus"]["path"], json!("https://…@host/a.tar?…"));
        assert!(!json.to_string().contains("SECRET"), "{json:#}");
    }

    #[test]
    fn a_cpu_plan_has_null_for_the_gpu() {
        let json = plan("", &cpu_only());
        assert_eq!((&json["mode"], &json["simulated"]), (&json!("cpu"), &json!(false)));
        assert_eq!((&json["roles"]["model"]["gpu"], &json["roles"]["model"]["uuid"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn a_refusal_lists_suggestions_to_type() {
        let line = "--batch-size 64 --data-gpu 0 --model-gpu 1 --enable-memory-isolation --model-gpu-memory 2048";
        let refusal = Plan::solve(&settings(line), &gpus(2, 24), &Chains, None).unwrap_err();
        let json = refusal_json(&refusal);
        assert_eq!(json["code"], json!(2));
        assert!(json["error"].as_str().unwrap().starts_with("❌ "));
        assert!(json["suggestions"].as_array().unwrap().contains(&json!("--grad-accum 4")), "{json:#}");
    }
}
