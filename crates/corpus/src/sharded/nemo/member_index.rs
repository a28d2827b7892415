//! The members of an archive by name.

use std::cmp::Ordering;
use std::ops::Range;

use tandem_shards::{TarMember, ValueAddress};

use crate::locator::without_extension;

/// Names and places of members. A member costs 28 bytes beside its name.
#[derive(Default)]
pub(super) struct MemberIndex {
    letters: String,
    places: Vec<Place>,
    /// Places in the order of [`NameParts`]; of members with the same name the last one.
    order: Vec<u32>,
}

struct Place {
    name_end: usize,
    address: ValueAddress,
}

/// What a name is compared by, in this order: so that names with the same last part are neighbours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct NameParts<'a> {
    /// The last part without the ending of a recording.
    stem: &'a str,
    /// The last part.
    base: &'a str,
    name: &'a str,
}

/// What an entry means.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lookup<'a> {
    /// This member.
    Found(usize),
    /// One of these or more.
    Ambiguous([&'a str; 2]),
    Missing,
}

impl MemberIndex {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Adds a member. [`MemberIndex::sort`] comes after the last.
    pub(super) fn push(&mut self, member: &TarMember) {
        self.letters.push_str(&member.name);
        // A larger member is no member.
        let address = ValueAddress { position: member.offset, extent: member.num_bytes as u32 };
        self.places.push(Place { name_end: self.letters.len(), address });
    }

    /// Makes members findable.
    pub(super) fn sort(&mut self) {
        // An archive has a header of 512 bytes for each member: there are no 2^32 of them.
        let mut order: Vec<u32> = (0..self.places.len() as u32).collect();
        order.sort_by(|a, b| self.parts(*a).cmp(&self.parts(*b)).then(b.cmp(a)));
        // The last of those with the same name is the one that unpacking leaves.
        order.dedup_by(|later, first| self.name(*later as usize) == self.name(*first as usize));
        self.order = order;
    }

    pub(super) fn name(&self, place: usize) -> &str {
        let start = place.checked_sub(1).map_or(0, |before| self.places[before].name_end);
        &self.letters[start..self.places[place].name_end]
    }

    pub(super) fn address(&self, place: usize) -> ValueAddress {
        self.places[place].address
    }

    /// The bytes of a member in its archive.
    pub(super) fn span(&self, place: usize) -> Range<u64> {
        let ValueAddress { position, extent } = self.address(place);
        position..position + u64::from(extent)
    }

    /// The member that a manifest calls `name`.
    pub(super) fn find(&self, name: &str) -> Lookup<'_> {
        match (self.find_as_written(name), without_sub(name)) {
            (Lookup::Missing, Some(whole)) => self.find_as_written(&whole),
            (found, _) => found,
        }
    }

    /// The member of that name, else the one with that last part, else the one with that last part and another ending.
    fn find_as_written(&self, name: &str) -> Lookup<'_> {
        let wanted = NameParts::of(name);
        let exact = self.range(|parts| parts.cmp(&wanted));
        let base = || self.range(|parts| (parts.stem, parts.base).cmp(&(wanted.stem, wanted.base)));
        let stem = || self.range(|parts| parts.stem.cmp(wanted.stem));
        let found = [exact].into_iter().chain(std::iter::once_with(base)).chain(std::iter::once_with(stem));
        match found.into_iter().find(|places| !places.is_empty()) {
            Some([place]) => Lookup::Found(*place as usize),
            Some([one, other, ..]) => Lookup::Ambiguous([self.name(*one as usize), self.name(*other as usize)]),
            Some([]) | None => Lookup::Missing,
        }
    }

    /// The neighbours for which `compare`, which follows the order, says that they are equal.
    fn range(&self, compare: impl Fn(NameParts<'_>) -> Ordering) -> &[u32] {
        let start = self.order.partition_point(|place| compare(self.parts(*place)).is_lt());
        let end = self.order.partition_point(|place| compare(self.parts(*place)).is_le());
        &self.order[start..end]
    }

    fn parts(&self, place: u32) -> NameParts<'_> {
        NameParts::of(self.name(place as usize))
    }
}

impl<'a> NameParts<'a> {
    fn of(name: &'a str) -> NameParts<'a> {
        let base = name.rsplit('/').next().unwrap_or(name);
        NameParts { stem: without_extension(base), base, name }
    }
}

/// `a.wav` for `a-sub1.wav`: NeMo's name for another entry of the same recording.
fn without_sub(name: &str) -> Option<String> {
    let base_at = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = name[base_at..].rfind('.').map_or(name.len(), |dot| base_at + dot);
    let (stem, ending) = name.split_at(dot);
    let number_at = stem.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let whole = stem[..number_at].strip_suffix("-sub").filter(|whole| whole.len() > base_at && number_at < dot)?;
    Some(format!("{whole}{ending}"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn index(names: &[&str]) -> MemberIndex {
        let mut index = MemberIndex::default();
        for (place, name) in names.iter().enumerate() {
            let (offset, name) = (1024 * place as u64, (*name).to_owned());
            index.push(&TarMember { name, offset, num_bytes: 7, header_offset: 0 });
        }
        index.sort();
        index
    }

    #[test]
    fn a_member_is_found_by_name_then_last_part_then_stem() {
        let check = |names: &[&str], wanted: &str, expected: Lookup<'_>| {
            assert_eq!(index(names).find(wanted), expected, "{wanted} in {names:?}");
        };
        let names = ["x/a.wav", "a.wav", "y/a.flac", "b.flac", "./c.wav", "b.json"];
        check(&names, "a.wav", Lookup::Found(1));
        check(&names, "x/a.wav", Lookup::Found(0));
        check(&names, "/data/a.flac", Lookup::Found(2));
        check(&names, "/data/b.wav", Lookup::Found(3));
        check(&names, "b", Lookup::Found(3));
        check(&names, "c.wav", Lookup::Found(4));
        check(&names, "/data/a.wav", Lookup::Ambiguous(["a.wav", "x/a.wav"]));
        check(&names, "a.mp3", Lookup::Ambiguous(["y/a.flac", "a.wav"]));
        check(&names, "d.wav", Lookup::Missing);
        check(&names, "", Lookup::Missing);
        check(&[], "a.wav", Lookup::Missing);
        check(&["a.wav", "a-sub1.wav"], "a-sub1.wav", Lookup::Found(1));
        check(&["a.wav"], "a-sub12.wav", Lookup::Found(0));
        check(&["a.flac"], "/data/a-sub12.wav", Lookup::Found(0));
        check(&["a.wav"], "a-sub.wav", Lookup::Missing);
        // Unpacking would leave the second.
        check(&["a.wav", "a.wav"], "a.wav", Lookup::Found(1));
        check(&["a.wav", "a.wav"], "/data/a.wav", Lookup::Found(1));
    }

    #[test]
    fn a_number_of_an_entry_is_cut_off() {
        let check = |name: &str, whole: Option<&str>| assert_eq!(without_sub(name).as_deref(), whole, "{name}");
        check("a-sub1.wav", Some("a.wav"));
        check("x/a-sub10", Some("x/a"));
        check("a-sub1-sub2.opus", Some("a-sub1.opus"));
        check("x.y-sub3/a.wav", None);
        check("a-sub.wav", None);
        check("a1.wav", None);
        check("-sub1.wav", None);
        check("x/-sub1.wav", None);
        check("a-sub١.wav", None);
    }

    proptest! {
        #[test]
        fn a_member_is_found_under_its_own_name(
            names in prop::collection::vec("[ab./é-]{0,3}(-sub[0-9]{0,2})?(\\.wav|\\.FLAC|\\.x)?", 0..30),
            other in "\\PC{0,12}",
        ) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let index = index(&names);
            for name in &names {
                let last = names.iter().rposition(|known| known == name).unwrap();
                prop_assert_eq!(index.find(name), Lookup::Found(last));
                prop_assert_eq!(index.address(last).position, 1024 * last as u64);
            }
            let _ = index.find(&other);
        }
    }
}
