//! The identity of a run: named facts, compared before two runs could be mixed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The facts that identify a run: the fingerprint of its data, its model and size, feature settings, tokens. Two runs
/// with the same facts may share checkpoints. The caller chooses the facts.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunIdentity {
    facts: BTreeMap<String, Value>,
    /// Facts that runs of older versions lack.
    #[serde(skip)]
    newer: BTreeSet<String>,
}

/// A fact in which two runs differ. `None` means that the run has no such fact.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Its name.
    pub name: String,
    /// Its value in the requested run.
    pub expected: Option<Value>,
    /// Its value in the run of the folder.
    pub found: Option<Value>,
}

impl RunIdentity {
    /// An identity without facts.
    pub fn new() -> RunIdentity {
        RunIdentity::default()
    }

    /// Adds a fact, or replaces its value.
    pub fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> RunIdentity {
        self.facts.insert(name.into(), value.into());
        self
    }

    /// Adds a fact that runs of older versions lack, or replaces its value: it is compared only with runs that have it.
    pub fn with_newer(mut self, name: impl Into<String>, value: impl Into<Value>) -> RunIdentity {
        let name = name.into();
        self.newer.insert(name.clone());
        self.with(name, value)
    }

    /// The value of a fact.
    pub fn fact(&self, name: &str) -> Option<&Value> {
        self.facts.get(name)
    }

    /// All facts, sorted by name.
    pub fn facts(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.facts.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Every fact in which `found` differs, sorted by name. A newer fact ([`RunIdentity::with_newer`]) that `found` lacks is
    /// no difference.
    pub fn differences(&self, found: &RunIdentity) -> Vec<Difference> {
        let names: BTreeSet<_> = self.facts.keys().chain(found.facts.keys()).collect();
        let pairs = names.into_iter().map(|name| (name, self.fact(name), found.fact(name)));
        pairs
            .filter(|(name, expected, found)| expected != found && (found.is_some() || !self.newer.contains(*name)))
            .map(|(name, expected, found)| Difference {
                name: name.clone(),
                expected: expected.cloned(),
                found: found.cloned(),
            })
            .collect()
    }
}

/// The same facts: which of them are newer is not stored.
impl PartialEq for RunIdentity {
    fn eq(&self, other: &RunIdentity) -> bool {
        self.facts == other.facts
    }
}

impl Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [expected, found] = [&self.expected, &self.found].map(text_of);
        let same = expected.chars().zip(found.chars()).take_while(|(a, b)| a == b).count();
        // Long values may have a longer common prefix than is shown.
        let from = if same < SHOWN_CHARS { 0 } else { same - SHOWN_CHARS / 2 };
        write!(f, "{}: expected {}, found {}", self.name, part(&expected, from), part(&found, from))
    }
}

/// Characters of a value that a message shows.
const SHOWN_CHARS: usize = 60;

/// A value as a user would type it.
fn text_of(value: &Option<Value>) -> String {
    match value {
        None => "none".into(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    }
}

fn part(text: &str, from: usize) -> String {
    let shown: String = text.chars().skip(from).take(SHOWN_CHARS).collect();
    let before = if from > 0 { "…" } else { "" };
    let after = if text.chars().count() > from + SHOWN_CHARS { "…" } else { "" };
    format!("{before}{shown}{after}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_difference_is_named_with_both_values() {
        let ours = RunIdentity::new().with("model", "tiny").with("hop_samples", 256).with("symbols", json!(["a", "b"]));
        let check = |found: &RunIdentity, expected: &[&str]| {
            let shown: Vec<_> = ours.differences(found).iter().map(Difference::to_string).collect();
            assert_eq!(shown, expected);
        };
        check(&ours, &[]);
        check(&ours.clone().with("model", "nano"), &["model: expected tiny, found nano"]);
        check(&ours.clone().with("speakers", 2), &["speakers: expected none, found 2"]);
        check(
            &RunIdentity::new().with("model", "tiny").with("symbols", json!(["a", "b"])),
            &["hop_samples: expected 256, found none"],
        );
    }

    #[test]
    fn a_newer_fact_is_compared_only_with_runs_that_have_it() {
        let old = RunIdentity::new().with("model", "tiny");
        let ours = old.clone().with_newer("recording_lengths", "a");
        let check = |found: &RunIdentity, expected: &[&str]| {
            // As it is after it was stored.
            let found: RunIdentity = serde_json::from_str(&serde_json::to_string(found).unwrap()).unwrap();
            let shown: Vec<_> = ours.differences(&found).iter().map(Difference::to_string).collect();
            assert_eq!(shown, expected);
        };
        check(&old, &[]);
        check(&ours, &[]);
        check(&old.with_newer("recording_lengths", "b"), &["recording_lengths: expected a, found b"]);
        check(&RunIdentity::new(), &["model: expected tiny, found none"]);
    }

    #[test]
    fn long_values_are_shown_where_they_differ() {
        let check = |expected: &str, found: &str, shown: &str| {
            let [ours, theirs] = [expected, found].map(|value| RunIdentity::new().with("symbols", value));
            assert_eq!(ours.differences(&theirs)[0].to_string(), shown);
        };
        let (long, short) = ("ab".repeat(50), "ab".repeat(30));
        check(&long, "ü", &format!("symbols: expected {short}…, found ü"));
        check(&format!("{long}x"), &format!("{long}y"), &format!("symbols: expected …{0}x, found …{0}y", &long[..30]));
        check(&long, &long[1..], &format!("symbols: expected {short}…, found {}…", &long[1..61]));
    }

    #[test]
    fn facts_read_back_as_written() {
        let facts = [0.1_f64, 1.0 / 3.0, 5e-324, 123_456_789.123_456_79, f64::MAX, 1e-5, -0.0];
        let identity =
            RunIdentity::new().with("floats", json!(facts)).with("count", u64::MAX).with("name", "\u{1F3AF}");
        let text = serde_json::to_string(&identity).unwrap();
        let read: RunIdentity = serde_json::from_str(&text).unwrap();
        assert_eq!(identity.differences(&read), []);
        for (index, fact) in facts.iter().enumerate() {
            let read = read.fact("floats").unwrap()[index].as_f64().unwrap();
            assert_eq!(read.to_bits(), fact.to_bits(), "{fact}");
        }
    }
}
