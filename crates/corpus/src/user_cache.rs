//! Folders for what is measured once and used by many runs: in the user's cache, never in the dataset.

use std::path::PathBuf;

/// The folder of measured lengths. None for a user without a home.
pub fn lengths() -> Option<PathBuf> {
    folder("lengths")
}

/// The folder of the indexes of shards. None for a user without a home.
pub fn shards() -> Option<PathBuf> {
    folder("shards")
}

fn folder(name: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("tandem").join(name))
}
