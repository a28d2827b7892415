//! Ids of rows where no column has them: the names of their recordings, or their numbers.

use std::collections::HashSet;
use std::ops::ControlFlow;

use tandem_random::keyed;

use super::layout::TableLayout;
use crate::locator::without_extension;

/// Where the ids of rows come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdSource {
    /// A column.
    Column,
    /// The file names of the recordings, which all differ. A row without one has its number.
    Stem,
    /// The number of the row.
    Number,
}

impl IdSource {
    /// What the ids are, once the names of all recordings went through `stems`.
    pub(super) fn of(layout: &TableLayout, stems: &StemCheck) -> IdSource {
        match (&layout.id, layout.stem_column()) {
            (Some(_), _) => IdSource::Column,
            (None, Some(_)) if !stems.has_repeats => IdSource::Stem,
            (None, _) => IdSource::Number,
        }
    }
}

/// Finds out whether the names of recordings differ. Two that differ and have one hash count as the same: ids are numbers then,
/// which is never wrong.
#[derive(Default)]
pub(super) struct StemCheck {
    hashes: HashSet<u64>,
    has_repeats: bool,
}

impl StemCheck {
    /// Adds the path of a recording. Breaks once a name was there before.
    pub(super) fn add(&mut self, path: Option<&str>) -> ControlFlow<()> {
        let Some(stem) = path.and_then(stem_of) else { return ControlFlow::Continue(()) };
        if self.has_repeats || !self.hashes.insert(keyed::hash(0, stem.as_bytes())) {
            self.has_repeats = true;
            // No longer needed.
            self.hashes = HashSet::new();
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

/// The file name of a path; none if it has none.
pub(super) fn base_name(path: &str) -> Option<&str> {
    path.trim().rsplit('/').next().filter(|name| !name.is_empty())
}

/// The file name of a path without its ending; none if nothing is left.
pub(super) fn stem_of(path: &str) -> Option<&str> {
    base_name(path).map(without_extension).filter(|stem| !stem.is_empty())
}

/// The name of a shard without folder and ending. Other dots are part of the name: `train.00` and `train.01` are two shards.
pub(super) fn shard_stem(name: &str) -> &str {
    let name = name.rsplit('/').next().unwrap_or(name);
    match name.rsplit_once('.') {
        Some((stem, "parquet" | "arrow")) => stem,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_repeat_are_found() {
        let check = |paths: &[&str], repeats: bool| {
            let mut stems = StemCheck::default();
            let broke = paths.iter().filter(|path| stems.add(Some(path)).is_break()).count() > 0;
            assert_eq!((stems.has_repeats, broke), (repeats, repeats), "{paths:?}");
        };
        check(&["a.wav", "b.wav", "c"], false);
        check(&["x/a.wav", "y/a.flac"], true);
        check(&["", " ", ".wav", "", "x/"], false);
        check(&["a.wav", "b.wav", "a.wav", "c.wav"], true);
    }

    #[test]
    fn stems() {
        let check = |path: &str, name: Option<&str>, stem: Option<&str>| {
            assert_eq!((base_name(path), stem_of(path)), (name, stem), "{path}");
        };
        check("wavs/a.wav", Some("a.wav"), Some("a"));
        check("a.b.FLAC", Some("a.b.FLAC"), Some("a.b"));
        check("LJ001.0002", Some("LJ001.0002"), Some("LJ001.0002"));
        check(".wav", Some(".wav"), None);
        check("wavs/", None, None);
        check("", None, None);
        assert_eq!(shard_stem("data/train-00000-of-00002.parquet"), "train-00000-of-00002");
        assert_eq!(shard_stem("train.00.arrow"), "train.00");
        assert_eq!(shard_stem("train.00"), "train.00");
    }
}
