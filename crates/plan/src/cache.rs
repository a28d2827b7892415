//! The cache for decoded audio.

use std::path::{Path, PathBuf};

use tandem_device::bytes::show;
use tandem_feed::CacheSpec;

use crate::setting::Id;
use crate::settings::Settings;

/// The folder of a disk cache, inside the run folder.
pub const AUDIO_CACHE: &str = "audio-cache";

/// Where decoded audio is cached between epochs, how much of it, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachePlan {
    /// The value of `--cache`.
    pub asked: &'static str,
    /// The cache. Recordings that do not fit its budget are decoded again in every epoch.
    pub spec: CacheSpec,
    /// Why it is cached there.
    pub why: String,
}

impl CachePlan {
    /// Moves a disk cache into `folder`: for commands that leave nothing in the run folder.
    pub fn move_into(&mut self, folder: &Path) {
        if let CacheSpec::Disk { folder: cache, .. } = &mut self.spec {
            *cache = folder.join(AUDIO_CACHE);
        }
    }

    /// Follows `--cache`. `auto` caches in memory if `decoded_bytes` fit in a quarter of the `free_bytes` that the run leaves,
    /// and otherwise not at all.
    pub(crate) fn choose(settings: &Settings, free_bytes: u64, decoded_bytes: Option<u64>) -> CachePlan {
        let quarter = free_bytes / 4;
        let fits = decoded_bytes.is_some_and(|bytes| bytes <= quarter);
        let audio = decoded_bytes.map_or("no corpus".to_owned(), |bytes| {
            let verb = if fits { "fits" } else { "does not fit" };
            format!("{} of decoded audio {verb} in a quarter of the {} of free RAM", show(bytes), show(free_bytes))
        });
        let asked = settings.choice(Id::Cache);
        let memory = CacheSpec::Memory { budget_bytes: quarter };
        let cache = |spec, why: &str| CachePlan { asked, spec, why: why.to_owned() };
        match asked {
            "memory" => cache(memory, &format!("--cache memory; {audio}")),
            "disk" => {
                let folder = PathBuf::from(settings.text(Id::CheckpointDir).unwrap_or_default()).join(AUDIO_CACHE);
                cache(CacheSpec::Disk { budget_bytes: decoded_bytes.unwrap_or(0), folder }, "--cache disk")
            }
            "none" => cache(CacheSpec::None, "--cache none"),
            _ if fits => cache(memory, &audio),
            _ => cache(CacheSpec::None, &audio),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::settings;
    use tandem_device::bytes::MIB;
    use tandem_feed::CacheKind;

    #[test]
    fn auto_caches_in_memory_if_a_quarter_of_the_free_ram_is_enough() {
        let check = |line: &str, decoded_mb: Option<u64>, kind: CacheKind, budget_mb: u64, why: &str| {
            let cache = CachePlan::choose(&settings(line), 1000 * MIB, decoded_mb.map(|mb| mb * MIB));
            assert_eq!((cache.spec.kind(), cache.spec.budget_bytes() / MIB), (kind, budget_mb), "{line}");
            assert!(cache.why.contains(why), "{}", cache.why);
        };
        let fits = "250 MB of decoded audio fits in a quarter of the 1000 MB of free RAM";
        check("", Some(250), CacheKind::Memory, 250, fits);
        check("", Some(251), CacheKind::None, 0, "251 MB of decoded audio does not fit in a quarter");
        check("", None, CacheKind::None, 0, "no corpus");
        check("--cache memory", Some(900), CacheKind::Memory, 250, "does not fit");
        check("--cache disk", Some(900), CacheKind::Disk, 900, "--cache disk");
        check("--cache none", Some(1), CacheKind::None, 0, "--cache none");
    }
}
