//! Counters and the diagnosis of a loader, as documents.

use serde_json::{Value, json};
use tandem_device::{Isolation, RoleMemory, Route};
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
pub(crate) fn profile_json(diagnosis: &Diagnosis, held: u64, route: Route) -> Value {
    let mut document = diagnosis.json();
    let verdicts = diagnosis.verdicts.iter().zip(document["verdicts"].as_array_mut().into_iter().flatten());
    for (verdict, shown) in verdicts {
        let Some(advice) = verdict.advice else { continue };
        let (option, value, spelled) = match advice.change {
            SettingChange::NumWorkers(workers) => ("workers", json!(workers), format!("workers={workers}")),
            SettingChange::CacheMemory => ("cache", json!("memory"), "cache=\"memory\"".to_owned()),
            SettingChange::BufferSize(slots) => {
                // It counts the slots that the program holds if nothing is copied, and twice the buffer of two cards.
                let ahead = match route {
                    Route::Handover => (slots as u64).saturating_sub(held),
                    _ => slots as u64 / 2,
                };
                ("prefetch", json!(ahead.max(1)), format!("prefetch={}", ahead.max(1)))
            }
            SettingChange::ShareGpu(_) => ("data_device", Value::Null, "no data_device".to_owned()),
            SettingChange::SecondCard(_) => ("data_device", Value::Null, "a second GPU as data_device".to_owned()),
            SettingChange::OtherDataCard(_) => ("data_device", Value::Null, "another GPU as data_device".to_owned()),
            // The loader takes the first route that works.
            SettingChange::TransferHandover | SettingChange::TransferPeer => {
                shown["change"] = Value::Null;
                continue;
            }
        };
        shown["text"] = verdict.to_string().replace(&advice.change.to_string(), &spelled).into();
        shown["change"] = spelled.into();
        shown["option"] = option.into();
        shown["value"] = value;
    }
    document
}
