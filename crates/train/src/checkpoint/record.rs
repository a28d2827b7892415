//! `state.json`: where a run stood, and what the other files of its checkpoint must be.
//!
//! ```json
//! { "format": "tandem checkpoint", "version": 1, "checksum": "…",
//!   "record": { "step": 1000, "score": 0.42, "state": {},
//!               "files": { "weights.safetensors": { "bytes": 80, "xxh3": "…" } } } }
//! ```
//!
//! The checksum is of the record as JSON without spaces. A changed digit would otherwise be a different run.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use twox_hash::XxHash3_64;

use super::STATE_FILE;
use crate::disk::unusable;
use crate::error::TrainError;

const FORMAT: &str = "tandem checkpoint";
/// The format that is written, and the newest that is read.
const VERSION: u64 = 1;

/// What a file was when it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileFacts {
    pub(super) bytes: u64,
    /// XXH3, 64 bits, seed 0, as `xxhsum -H3` prints it.
    pub(super) xxh3: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StateFile {
    pub(super) step: u64,
    pub(super) score: Option<f64>,
    pub(super) files: BTreeMap<String, FileFacts>,
    pub(super) state: Value,
}

#[derive(Serialize, Deserialize)]
struct Envelope {
    format: String,
    version: u64,
    checksum: String,
    record: Value,
}

impl FileFacts {
    pub(super) fn of(bytes: &[u8]) -> FileFacts {
        FileFacts { bytes: bytes.len() as u64, xxh3: checksum(bytes) }
    }
}

impl StateFile {
    /// As it is written.
    pub(super) fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        let record = serde_json::to_value(self)?;
        let checksum = checksum(&serde_json::to_vec(&record)?);
        let mut json =
            serde_json::to_vec_pretty(&Envelope { format: FORMAT.into(), version: VERSION, checksum, record })?;
        json.push(b'\n');
        Ok(json)
    }

    /// The record of the checkpoint at `folder`, which has a state file.
    pub(super) fn read(folder: &Path) -> Result<StateFile, TrainError> {
        let path = folder.join(STATE_FILE);
        let bytes = fs::read(&path).map_err(unusable("read", &path))?;
        StateFile::parse(&bytes, &path)
    }

    /// What a file of the checkpoint must be.
    pub(super) fn facts(&self, name: &str, folder: &Path) -> Result<&FileFacts, TrainError> {
        let missing = || TrainError::Damaged {
            reason: format!("the state does not say what {name} must be"),
            path: folder.join(STATE_FILE),
        };
        self.files.get(name).ok_or_else(missing)
    }

    /// Whether all files are there and as long as they must be: what can be known without reading them.
    pub(super) fn lengths_hold(&self, folder: &Path) -> bool {
        let holds = |(name, facts): (&String, &FileFacts)| {
            fs::metadata(folder.join(name)).is_ok_and(|found| found.is_file() && found.len() == facts.bytes)
        };
        self.files.iter().all(holds)
    }

    fn parse(bytes: &[u8], path: &Path) -> Result<StateFile, TrainError> {
        let damaged = |reason| TrainError::Damaged { reason, path: path.to_owned() };
        let whole: Value =
            serde_json::from_slice(bytes).map_err(|error| damaged(format!("the state is no JSON ({error})")))?;
        // Before anything else: another version may look different in all the rest.
        if whole["format"] != FORMAT {
            return Err(damaged(format!("expected the state of a checkpoint (\"format\": \"{FORMAT}\")")));
        }
        match whole["version"].as_u64() {
            Some(found) if found > VERSION => {
                return Err(TrainError::NewerFormat { found, known: VERSION, path: path.to_owned() });
            }
            Some(VERSION) => {}
            _ => return Err(damaged(format!("expected version {VERSION}, found {}", whole["version"]))),
        }
        let incomplete = |error| damaged(format!("the state is incomplete ({error})"));
        let envelope: Envelope = serde_json::from_value(whole).map_err(incomplete)?;
        let found = checksum(&serde_json::to_vec(&envelope.record).map_err(incomplete)?);
        if found != envelope.checksum {
            return Err(damaged(format!("expected checksum {}, found {found}", envelope.checksum)));
        }
        serde_json::from_value(envelope.record).map_err(incomplete)
    }
}

fn checksum(bytes: &[u8]) -> String {
    format!("{:016x}", XxHash3_64::oneshot(bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn record(state: Value) -> StateFile {
        let files = BTreeMap::from([("weights.safetensors".to_owned(), FileFacts::of(b"weights"))]);
        StateFile { step: 1000, score: Some(0.1 + 0.2), files, state }
    }

    #[test]
    fn what_is_wrong_with_a_state_is_said() {
        let good = String::from_utf8(record(json!({ "cursor": 17 })).to_json().unwrap()).unwrap();
        let check = |text: &str, part: &str| {
            let error = StateFile::parse(text.as_bytes(), Path::new("c/state.json")).unwrap_err().to_string();
            assert!(error.contains(part) && error.ends_with(": c/state.json"), "{error}");
        };
        check("", "no JSON");
        check(&good[..good.len() / 2], "no JSON");
        check("[1, 2]", "expected the state of a checkpoint");
        check("{\"format\": \"another\"}", "expected the state of a checkpoint");
        check(&good.replace("\"version\": 1", "\"version\": 0"), "expected version 1, found 0");
        check(&good.replace("\"version\": 1", "\"version\": \"x\""), "expected version 1, found \"x\"");
        check(
            &good.replace("\"version\": 1", "\"version\": 2"),
            "newer version (format 2, this program reads up to 1)",
        );
        check("{\"format\": \"tandem checkpoint\", \"version\": 7, \"all\": \"new\"}", "newer version (format 7");
        check(&good.replace("\"checksum\"", "\"sum\""), "incomplete");
        check(&good.replace("17", "18"), "expected checksum");
        check(&good.replace("1000", "1001"), "expected checksum");
    }

    #[test]
    fn checksums_are_what_other_programs_compute() {
        // From the published reference of XXH3 (64 bits, seed 0).
        assert_eq!(FileFacts::of(b"").xxh3, "2d06800538d394c2");
    }

    proptest! {
        #[test]
        fn a_record_comes_back_to_the_last_bit(numbers in prop::collection::vec(any::<u64>(), 0..20), text in ".*") {
            let floats: Vec<f64> = numbers.iter().map(|bits| f64::from_bits(*bits)).filter(|x| x.is_finite()).collect();
            let record = record(json!({ "whole": numbers, "floats": floats, "text": text }));
            let read = StateFile::parse(&record.to_json().unwrap(), Path::new("state.json")).unwrap();
            let bits = |record: &StateFile| -> Vec<u64> {
                record.state["floats"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap().to_bits()).collect()
            };
            prop_assert_eq!(bits(&read), floats.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
            prop_assert_eq!(read, record);
        }
    }
}
