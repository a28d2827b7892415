//! Named facts that must be the same on every rank.

use crate::RankError;
use crate::wire::{FrameReader, FrameWriter, Malformed};

/// The value of a fact that a rank does not have.
const ABSENT: &str = "absent";

type Fact = (String, String);

/// The bytes of `facts`.
pub(crate) fn encode(facts: &[Fact]) -> Vec<u8> {
    let frame = FrameWriter::new().u32(facts.len() as u32);
    facts.iter().fold(frame, |frame, (name, value)| frame.bytes(name.as_bytes()).bytes(value.as_bytes())).content()
}

fn decode(bytes: &[u8]) -> Result<Vec<Fact>, Malformed> {
    let mut reader = FrameReader::new(bytes);
    let count = reader.u32()?;
    let mut facts = Vec::new();
    for _ in 0..count {
        facts.push((long_text(&mut reader)?, long_text(&mut reader)?));
    }
    reader.end().map(|()| facts)
}

fn long_text(reader: &mut FrameReader<'_>) -> Result<String, Malformed> {
    String::from_utf8(reader.bytes()?.to_vec()).map_err(|_| Malformed("a fact is not UTF-8"))
}

/// Compares the facts of every rank with those of rank 0. All ranks have the same parts, so all find the same difference.
pub(crate) fn compare(what: &str, parts: &[Vec<u8>]) -> Result<(), RankError> {
    let mut by_rank = Vec::new();
    for (rank, part) in (0u32..).zip(parts) {
        let malformed = |error: Malformed| RankError::Protocol { rank, reason: error.to_string() };
        by_rank.push((rank, decode(part).map_err(malformed)?));
    }
    let Some(((_, expected), others)) = by_rank.split_first() else { return Ok(()) };
    for (rank, found) in others {
        if let Some((fact, expected, found)) = difference(expected, found) {
            return Err(RankError::Different { what: what.to_owned(), rank: *rank, fact, expected, found });
        }
    }
    Ok(())
}

/// The first fact that differs, and both values.
fn difference(expected: &[Fact], found: &[Fact]) -> Option<(String, String, String)> {
    let value = |facts: &[Fact], name: &str| {
        facts.iter().find(|(other, _)| other == name).map_or_else(|| ABSENT.to_owned(), |(_, value)| value.clone())
    };
    let names = expected.iter().chain(found).map(|(name, _)| name);
    let values = names.map(|name| (name.clone(), value(expected, name), value(found, name)));
    values.into_iter().find(|(_, expected, found)| expected != found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn facts(list: &[(&str, &str)]) -> Vec<u8> {
        let owned: Vec<Fact> = list.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        encode(&owned)
    }

    #[test]
    fn the_first_difference_names_the_rank_the_fact_and_both_values() {
        let check = |others: &[&[(&str, &str)]], expected: Option<(u32, &str, &str, &str)>| {
            let mut parts = vec![facts(&[("seed", "1"), ("corpus", "a")])];
            parts.extend(others.iter().map(|other| facts(other)));
            let different = |(rank, fact, expected, found): (u32, &str, &str, &str)| RankError::Different {
                what: "start".into(),
                rank,
                fact: fact.into(),
                expected: expected.into(),
                found: found.into(),
            };
            assert_eq!(compare("start", &parts).err(), expected.map(different));
        };
        check(&[], None);
        check(&[&[("corpus", "a"), ("seed", "1")]], None);
        check(&[&[("seed", "1"), ("corpus", "a")], &[("seed", "2"), ("corpus", "b")]], Some((2, "seed", "1", "2")));
        check(&[&[("seed", "1")]], Some((1, "corpus", "a", "absent")));
        check(&[&[("seed", "1"), ("corpus", "a"), ("steps", "9")]], Some((1, "steps", "absent", "9")));
    }

    proptest! {
        #[test]
        fn any_bytes_are_facts_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..60), count in 0u32..4) {
            let _ = decode(&bytes);
            let _ = decode(&[&count.to_le_bytes()[..], &bytes].concat());
        }

        #[test]
        fn facts_are_read_as_they_were_written(facts in prop::collection::vec((".{0,9}", ".{0,9}"), 0..5)) {
            prop_assert_eq!(decode(&encode(&facts)), Ok(facts));
        }
    }
}
