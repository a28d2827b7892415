//! Where decoded audio is kept between epochs.

use tandem_device::bytes::show;
use tandem_feed::CacheKind;

use crate::setting::Id;
use crate::settings::Settings;

/// Where decoded audio is kept, how much of it, and why there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachePlan {
    /// What `--cache` says.
    pub asked: &'static str,
    /// Where.
    pub kind: CacheKind,
    /// What it may hold. Recordings past that are decoded again every epoch.
    pub budget_bytes: u64,
    /// Why.
    pub why: String,
}

impl CachePlan {
    /// What `--cache` says; `auto` is in memory where `decoded_bytes` fit a quarter of the `free_bytes` that a run
    /// leaves, and nowhere else.
    pub(crate) fn choose(settings: &Settings, free_bytes: u64, decoded_bytes: Option<u64>) -> CachePlan {
        let quarter = free_bytes / 4;
        let fits = decoded_bytes.is_some_and(|bytes| bytes <= quarter);
        let audio = decoded_bytes.map_or("no corpus was given".to_owned(), |bytes| {
            let verb = if fits { "fit" } else { "do not fit" };
            format!("{} of decoded audio {verb} a quarter of the {} free", show(bytes), show(free_bytes))
        });
        let asked = settings.choice(Id::CachePlan);
        let cache = |kind, budget_bytes, why: &str| CachePlan { asked, kind, budget_bytes, why: why.to_owned() };
        match asked {
            "memory" => cache(CacheKind::Memory, quarter, &format!("--cache memory; {audio}")),
            "disk" => cache(CacheKind::Disk, decoded_bytes.unwrap_or(0), "--cache disk"),
            "none" => cache(CacheKind::None, 0, "--cache none"),
            _ if fits => cache(CacheKind::Memory, quarter, &audio),
            _ => cache(CacheKind::None, 0, &audio),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::settings;
    use tandem_device::bytes::MIB;

    #[test]
    fn auto_is_memory_where_a_quarter_is_enough() {
        let check = |line: &str, decoded_mb: Option<u64>, kind: CacheKind, budget_mb: u64, why: &str| {
            let cache = CachePlan::choose(&settings(line), 1000 * MIB, decoded_mb.map(|mb| mb * MIB));
            assert_eq!((cache.kind, cache.budget_bytes / MIB), (kind, budget_mb), "{line}");
            assert!(cache.why.contains(why), "{}", cache.why);
        };
        let fits = "250 MB of decoded audio fit a quarter of the 1000 MB free";
        check("", Some(250), CacheKind::Memory, 250, fits);
        check("", Some(251), CacheKind::None, 0, "251 MB of decoded audio do not fit a quarter");
        check("", None, CacheKind::None, 0, "no corpus");
        check("--cache memory", Some(900), CacheKind::Memory, 250, "do not fit");
        check("--cache disk", Some(900), CacheKind::Disk, 900, "--cache disk");
        check("--cache none", Some(1), CacheKind::None, 0, "--cache none");
    }
}
