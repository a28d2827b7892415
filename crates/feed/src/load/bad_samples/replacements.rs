//! The replacements of bad samples: part of a checkpoint.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tandem_corpus::{Cursor, SampleIndex};

/// A row of a batch that holds another sample than the order asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replacement {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The batch in it, from 0.
    pub k: u64,
    /// The row of the batch, from 0.
    pub position: usize,
    /// The sample that is used.
    pub sample: SampleIndex,
    /// Which attempt found it, from 0.
    pub attempt: u32,
}

/// Replacements by row, at most one for each. As JSON, a list in the order of epoch, batch and row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Replacement>", into = "Vec<Replacement>")]
pub struct Replacements {
    by_row: BTreeMap<BatchRow, Replacement>,
}

/// The key of a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BatchRow {
    epoch: u64,
    k: u64,
    position: usize,
}

impl Replacements {
    /// No replacements.
    pub fn new() -> Replacements {
        Replacements::default()
    }

    /// Adds `replacement`, or replaces the one of its row.
    pub fn insert(&mut self, replacement: Replacement) {
        let Replacement { epoch, k, position, .. } = replacement;
        self.by_row.insert(BatchRow { epoch, k, position }, replacement);
    }

    /// The replacement in row `position` of batch `k` of `epoch`, if there is one.
    pub fn get(&self, epoch: u64, k: u64, position: usize) -> Option<Replacement> {
        self.by_row.get(&BatchRow { epoch, k, position }).copied()
    }

    /// Removes the replacements of batches before `cursor`.
    pub fn drop_before(&mut self, cursor: Cursor) {
        self.by_row = self.by_row.split_off(&BatchRow { epoch: cursor.epoch, k: cursor.k, position: 0 });
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Replacement> {
        self.by_row.values().copied()
    }

    /// Number of replacements.
    pub fn len(&self) -> usize {
        self.by_row.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_row.is_empty()
    }
}

impl From<Vec<Replacement>> for Replacements {
    fn from(list: Vec<Replacement>) -> Replacements {
        let mut replacements = Replacements::new();
        list.into_iter().for_each(|replacement| replacements.insert(replacement));
        replacements
    }
}

impl From<Replacements> for Vec<Replacement> {
    fn from(replacements: Replacements) -> Vec<Replacement> {
        replacements.iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(epoch: u64, k: u64, position: usize, sample: u32) -> Replacement {
        Replacement { epoch, k, position, sample: SampleIndex(sample), attempt: 1 }
    }

    #[test]
    fn a_checkpoint_restores_replacements() {
        let list = vec![at(0, 7, 3, 40), at(1, 0, 0, 41), at(1, 0, 2, 42)];
        let replacements = Replacements::from(list.iter().rev().copied().chain([at(0, 7, 3, 40)]).collect::<Vec<_>>());
        let json = serde_json::to_string(&replacements).unwrap();
        assert!(json.starts_with(r#"[{"epoch":0,"k":7,"position":3,"sample":40,"attempt":1},"#), "{json}");
        assert_eq!(serde_json::from_str::<Replacements>(&json).unwrap(), replacements);
        assert_eq!(replacements.iter().collect::<Vec<_>>(), list);
        assert_eq!((replacements.get(1, 0, 2), replacements.get(1, 0, 1)), (Some(list[2]), None));
        assert!(serde_json::from_str::<Replacements>(r#"[{"epoch":0}]"#).is_err());
    }

    #[test]
    fn replacements_before_the_cursor_are_removed() {
        let check = |cursor: Cursor, left: usize| {
            let mut replacements =
                Replacements::from(vec![at(0, 9, 3, 1), at(1, 4, 0, 2), at(1, 5, 0, 3), at(2, 0, 7, 4)]);
            replacements.drop_before(cursor);
            assert_eq!(replacements.len(), left, "{cursor:?}");
            assert_eq!(replacements.is_empty(), left == 0);
            assert!(replacements.iter().all(|one| (one.epoch, one.k) >= (cursor.epoch, cursor.k)));
        };
        check(Cursor::START, 4);
        check(Cursor { epoch: 1, k: 0 }, 3);
        check(Cursor { epoch: 1, k: 5 }, 2);
        check(Cursor { epoch: 3, k: 0 }, 0);
    }
}
