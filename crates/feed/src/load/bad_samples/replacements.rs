//! What took the place of bad samples: part of a checkpoint.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tandem_corpus::{Cursor, SampleIndex};

/// At one position of one batch, another sample was used than the order says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replacement {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The batch in it, from 0.
    pub k: u64,
    /// The place in the batch, from 0.
    pub position: usize,
    /// What was used.
    pub sample: SampleIndex,
    /// Which try it was, as whoever chose it counts.
    pub attempt: u32,
}

/// Replacements by their places, at most one for each. As JSON, a list in the order of the places.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<Replacement>", into = "Vec<Replacement>")]
pub struct Replacements {
    by_place: BTreeMap<(u64, u64, usize), (SampleIndex, u32)>,
}

impl Replacements {
    /// None.
    pub fn new() -> Replacements {
        Replacements::default()
    }

    /// Keeps `replacement`, in place of what was at its place.
    pub fn insert(&mut self, replacement: Replacement) {
        let Replacement { epoch, k, position, sample, attempt } = replacement;
        self.by_place.insert((epoch, k, position), (sample, attempt));
    }

    /// What was used at `position` of batch `k` of `epoch`, if it was not what the order says.
    pub fn get(&self, epoch: u64, k: u64, position: usize) -> Option<Replacement> {
        let (sample, attempt) = *self.by_place.get(&(epoch, k, position))?;
        Some(Replacement { epoch, k, position, sample, attempt })
    }

    /// Forgets the batches before `cursor`, which nobody will ask for again.
    pub fn drop_before(&mut self, cursor: Cursor) {
        self.by_place = self.by_place.split_off(&(cursor.epoch, cursor.k, 0));
    }

    /// All of them, in the order of their places.
    pub fn iter(&self) -> impl Iterator<Item = Replacement> {
        self.by_place.iter().map(|(&(epoch, k, position), &(sample, attempt))| Replacement {
            epoch,
            k,
            position,
            sample,
            attempt,
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_place.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_place.is_empty()
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
    fn a_checkpoint_gives_back_what_it_was_given() {
        let list = vec![at(0, 7, 3, 40), at(1, 0, 0, 41), at(1, 0, 2, 42)];
        let kept = Replacements::from(list.iter().rev().copied().chain([at(0, 7, 3, 40)]).collect::<Vec<_>>());
        let json = serde_json::to_string(&kept).unwrap();
        assert!(json.starts_with(r#"[{"epoch":0,"k":7,"position":3,"sample":40,"attempt":1},"#), "{json}");
        assert_eq!(serde_json::from_str::<Replacements>(&json).unwrap(), kept);
        assert_eq!(kept.iter().collect::<Vec<_>>(), list);
        assert_eq!((kept.get(1, 0, 2), kept.get(1, 0, 1)), (Some(list[2]), None));
        assert!(serde_json::from_str::<Replacements>(r#"[{"epoch":0}]"#).is_err());
    }

    #[test]
    fn what_lies_behind_the_cursor_is_forgotten() {
        let check = |cursor: Cursor, left: usize| {
            let mut kept = Replacements::from(vec![at(0, 9, 3, 1), at(1, 4, 0, 2), at(1, 5, 0, 3), at(2, 0, 7, 4)]);
            kept.drop_before(cursor);
            assert_eq!(kept.len(), left, "{cursor:?}");
            assert_eq!(kept.is_empty(), left == 0);
            assert!(kept.iter().all(|one| (one.epoch, one.k) >= (cursor.epoch, cursor.k)));
        };
        check(Cursor::START, 4);
        check(Cursor { epoch: 1, k: 0 }, 3);
        check(Cursor { epoch: 1, k: 5 }, 2);
        check(Cursor { epoch: 3, k: 0 }, 0);
    }
}
