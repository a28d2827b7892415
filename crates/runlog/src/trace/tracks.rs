//! Which tracks a trace has, and up to where each is taken.

use std::collections::{BTreeMap, BTreeSet};

/// Tracks of one owner, which a viewer folds up together. What the format calls a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TrackGroup {
    /// The data role's card.
    Data = 1,
    /// The model role's card.
    Model = 2,
    /// What lies between them.
    Links = 3,
    /// Everything else.
    Host = 4,
}

/// Lanes of one stage at most: more threads than that load nothing at once.
const MOST_LANES: usize = 64;

impl TrackGroup {
    fn name(self) -> &'static str {
        match self {
            TrackGroup::Data => "data role",
            TrackGroup::Model => "model role",
            TrackGroup::Links => "links",
            TrackGroup::Host => "host",
        }
    }
}

/// Where something begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrackPosition {
    pub(super) group: TrackGroup,
    /// The track's number in its group, from 1.
    pub(super) track: u32,
    pub(super) begin_ns: u64,
}

/// Every track so far. They do not grow with the run.
#[derive(Default)]
pub(super) struct TraceTracks {
    /// A track's number, and up to where it is taken.
    taken: BTreeMap<(TrackGroup, String), (u32, u64)>,
    /// The last moment of each counter.
    counted: BTreeMap<(TrackGroup, String), u64>,
    /// Groups that have a name.
    named: BTreeSet<TrackGroup>,
    /// Groups and tracks whose names are not written yet, newest first.
    new: Vec<(TrackGroup, Option<u32>, String)>,
}

impl TraceTracks {
    /// Takes `ns` of a track, `ns` before `t_ns` at the earliest and behind everything that is on it.
    pub(super) fn place(&mut self, group: TrackGroup, track: &str, t_ns: u64, ns: u64) -> TrackPosition {
        let key = (group, track.to_owned());
        if !self.taken.contains_key(&key) {
            self.add(group, track);
        }
        let (number, free_ns) = self.taken.entry(key).or_default();
        let begin_ns = t_ns.saturating_sub(ns).max(*free_ns);
        *free_ns = begin_ns.saturating_add(ns);
        TrackPosition { group, track: *number, begin_ns }
    }

    /// The first track named `stage`, `stage 2`, … on which nothing lies behind `begin_ns`.
    pub(super) fn free_lane(&self, group: TrackGroup, stage: &str, begin_ns: u64) -> String {
        let name = |lane| if lane == 1 { stage.to_owned() } else { format!("{stage} {lane}") };
        let is_free = |name: &String| self.taken.get(&(group, name.clone())).is_none_or(|(_, free)| *free <= begin_ns);
        (1..=MOST_LANES).map(name).find(is_free).unwrap_or_else(|| name(MOST_LANES))
    }

    /// When a counter changes: at `t_ns`, and never before its last change.
    pub(super) fn count(&mut self, group: TrackGroup, counter: &str, t_ns: u64) -> u64 {
        let last_ns = self.counted.entry((group, counter.to_owned())).or_default();
        *last_ns = t_ns.max(*last_ns);
        *last_ns
    }

    /// Gives a group another name.
    pub(super) fn rename(&mut self, group: TrackGroup, name: String) {
        self.named.insert(group);
        self.new.push((group, None, name));
    }

    /// A group (without a number) or a track whose name is not written yet.
    pub(super) fn next_new(&mut self) -> Option<(TrackGroup, Option<u32>, String)> {
        self.new.pop()
    }

    fn add(&mut self, group: TrackGroup, track: &str) {
        let others = self.taken.keys().filter(|(of, _)| *of == group).count() as u32;
        self.taken.insert((group, track.to_owned()), (others + 1, 0));
        self.new.push((group, Some(others + 1), track.to_owned()));
        if !self.named.contains(&group) {
            self.rename(group, group.name().to_owned());
        }
    }
}
