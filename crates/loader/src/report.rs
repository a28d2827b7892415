//! Counters and the diagnosis of a loader, as documents.

use serde_json::{Value, json};
use tandem_device::{Isolation, RoleMemory};
use tandem_diagnosis::{Diagnosis, SettingChange};
use tandem_feed::FeedStats;
use tandem_pipeline::RingStats;

/// The counters.
pub(crate) fn stats_json(stats: &FeedStats, roles: &Isolation, held: usize) -> Value {
    let ring = |ring: &RingStats| {
        json!({
            "name": ring.name,
            "slots": ring.slots,
            "ready": ring.ready,
            "held": ring.leased,
            "free": ring.free,
            "filler_wait_s": ring.filler_wait_ns as f64 / 1e9,
            "taker_wait_s": ring.taker_wait_ns as f64 / 1e9,
        })
    };
    let role = |memory: &RoleMemory| json!({ "used_bytes": memory.used_bytes, "peak_bytes": memory.peak_bytes, "limit_bytes": memory.limit_bytes });
    let [data, model] = roles.memory_stats();
    json!({
        "batches": stats.leased,
        "held": held,
        "stall_s": stats.stall_ns as f64 / 1e9,
        "workers": stats.threads,
        "bad_samples": stats.num_bad,
        "cache": { "hits": stats.cache.hits, "misses": stats.cache.misses, "bytes": stats.cache.bytes },
        "read_ahead": { "bytes": stats.read_ahead.bytes, "peak_bytes": stats.read_ahead.peak_bytes },
        "rings": stats.rings.iter().map(ring).collect::<Vec<_>>(),
        "memory": { "data": role(&data), "model": role(&model) },
    })
}

/// The diagnosis, with changes as options of a loader.
pub(crate) fn profile_json(diagnosis: &Diagnosis) -> Value {
    let mut document = diagnosis.json();
    let verdicts = diagnosis.verdicts.iter().zip(document["verdicts"].as_array_mut().into_iter().flatten());
    for (verdict, shown) in verdicts {
        let Some(advice) = verdict.advice else { continue };
        let option = match advice.change {
            SettingChange::NumWorkers(workers) => Some(("workers", json!(workers))),
            SettingChange::CacheMemory => Some(("cache", json!("memory"))),
            SettingChange::BufferSize(slots) => Some(("prefetch", json!(slots))),
            SettingChange::ShareGpu(_) => Some(("data_device", Value::Null)),
            _ => None,
        };
        if let Some((name, value)) = option {
            let spelled = if value.is_null() { format!("no {name}") } else { format!("{name}={value}") };
            let text = verdict.to_string().replace(&advice.change.to_string(), &spelled);
            shown["text"] = text.into();
            shown["change"] = spelled.into();
            shown["option"] = name.into();
            shown["value"] = value;
        }
    }
    document
}
