//! `state.json`: the step and state of a run, and the digests of the other files of its checkpoint.
//!
//! ```json
//! { "format": "tandem checkpoint", "version": 2, "checksum": "…",
//!   "record": { "step": 1000, "run": {}, "score": 0.42, "state": {},
//!               "files": { "weights.safetensors": { "bytes": 80, "xxh3": "…" } } } }
//! ```
//!
//! The checksum is of the record as JSON without spaces: one changed digit would be a different run.
//!
//! | version | change |
//! |---|---|
//! | 1 | first |
//! | 2 | `tandem-train` renamed keys inside `state`; version 1 is still read |

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tandem_files::read_bounded;
use twox_hash::XxHash3_64;

use crate::disk::unusable;
use crate::error::CheckpointError;
use crate::file_names::STATE_FILE;
use crate::run_identity::RunIdentity;

const FORMAT: &str = "tandem checkpoint";
/// The version that is written, and the newest that is read.
const VERSION: u64 = 2;
/// The most bytes: the replacements of bad samples are part of it.
const MAX_BYTES: u64 = 256 << 20;
/// The oldest version that is read.
const OLDEST_VERSION: u64 = 1;

/// Size and checksum of a file when it was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FileDigest {
    pub(crate) bytes: u64,
    /// XXH3, 64 bits, seed 0, as `xxhsum -H3` prints it.
    pub(crate) xxh3: String,
}

/// The record of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StateFile {
    pub(crate) step: u64,
    /// The run that wrote it. Checkpoints from before this was written have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<RunIdentity>,
    pub(crate) score: Option<f64>,
    pub(crate) files: BTreeMap<String, FileDigest>,
    pub(crate) state: Value,
}

#[derive(Serialize, Deserialize)]
struct Envelope {
    format: String,
    version: u64,
    checksum: String,
    record: Value,
}

impl FileDigest {
    pub(crate) fn of(bytes: &[u8]) -> FileDigest {
        FileDigest { bytes: bytes.len() as u64, xxh3: checksum(bytes) }
    }
}

impl StateFile {
    /// The bytes of the file.
    pub(crate) fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        let record = serde_json::to_value(self)?;
        let checksum = checksum(&serde_json::to_vec(&record)?);
        let mut json =
            serde_json::to_vec_pretty(&Envelope { format: FORMAT.into(), version: VERSION, checksum, record })?;
        json.push(b'\n');
        Ok(json)
    }

    /// The record of the checkpoint at `folder`.
    pub(crate) fn read(folder: &Path) -> Result<StateFile, CheckpointError> {
        let path = folder.join(STATE_FILE);
        let bytes = read_bounded(&path, MAX_BYTES).map_err(unusable("read", &path))?;
        StateFile::parse(&bytes, &path)
    }

    /// The digest of a file of the checkpoint.
    pub(crate) fn digest(&self, name: &str, folder: &Path) -> Result<&FileDigest, CheckpointError> {
        let missing = || CheckpointError::Damaged {
            reason: format!("the state has no checksum of {name}"),
            path: folder.join(STATE_FILE),
        };
        self.files.get(name).ok_or_else(missing)
    }

    /// Whether all files exist with the right length. Cheap: the files are not read.
    pub(crate) fn lengths_match(&self, folder: &Path) -> bool {
        let matches = |(name, digest): (&String, &FileDigest)| {
            fs::metadata(folder.join(name)).is_ok_and(|found| found.is_file() && found.len() == digest.bytes)
        };
        self.files.iter().all(matches)
    }

    fn parse(bytes: &[u8], path: &Path) -> Result<StateFile, CheckpointError> {
        let damaged = |reason| CheckpointError::Damaged { reason, path: path.to_owned() };
        let value: Value =
            serde_json::from_slice(bytes).map_err(|error| damaged(format!("the state is not valid JSON ({error})")))?;
        // First: everything else may differ in another version.
        if value["format"] != FORMAT {
            return Err(damaged(format!("expected the state of a checkpoint (\"format\": \"{FORMAT}\")")));
        }
        match value["version"].as_u64() {
            Some(found) if found > VERSION => {
                return Err(CheckpointError::NewerFormat { found, known: VERSION, path: path.to_owned() });
            }
            Some(OLDEST_VERSION..=VERSION) => {}
            _ => {
                let expected = format!("expected version {OLDEST_VERSION} to {VERSION}");
                return Err(damaged(format!("{expected}, found {}", value["version"])));
            }
        }
        let incomplete = |error| damaged(format!("the state is incomplete ({error})"));
        let envelope: Envelope = serde_json::from_value(value).map_err(incomplete)?;
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
        let files = BTreeMap::from([("weights.safetensors".to_owned(), FileDigest::of(b"weights"))]);
        let run = Some(RunIdentity::new().with("seed", 7));
        StateFile { step: 1000, run, score: Some(0.1 + 0.2), files, state }
    }

    #[test]
    fn a_bad_state_is_refused_with_the_reason() {
        let good = String::from_utf8(record(json!({ "cursor": 17 })).to_json().unwrap()).unwrap();
        let check = |text: &str, part: &str| {
            let error = StateFile::parse(text.as_bytes(), Path::new("c/state.json")).unwrap_err().to_string();
            assert!(error.contains(part) && error.ends_with(": c/state.json"), "{error}");
        };
        check("", "not valid JSON");
        check(&good[..good.len() / 2], "not valid JSON");
        check("[1, 2]", "expected the state of a checkpoint");
        check("{\"format\": \"another\"}", "expected the state of a checkpoint");
        let version = |other: &str| good.replace("\"version\": 2", &format!("\"version\": {other}"));
        check(&version("0"), "expected version 1 to 2, found 0");
        check(&version("\"x\""), "expected version 1 to 2, found \"x\"");
        check(&version("3"), "newer version of Tandem: expected format 2 or older, found 3");
        assert!(StateFile::parse(version("1").as_bytes(), Path::new("c")).is_ok(), "version 1 is still read");
        check("{\"format\": \"tandem checkpoint\", \"version\": 7, \"all\": \"new\"}", "format 2 or older, found 7");
        check(&good.replace("\"checksum\"", "\"sum\""), "incomplete");
        check(&good.replace("17", "18"), "expected checksum");
        check(&good.replace("1000", "1001"), "expected checksum");
    }

    #[test]
    fn checksums_are_standard_xxh3() {
        // From the published reference of XXH3 (64 bits, seed 0).
        assert_eq!(FileDigest::of(b"").xxh3, "2d06800538d394c2");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]
        #[test]
        fn a_record_reads_back_bit_exactly(numbers in prop::collection::vec(any::<u64>(), 0..20), text in ".*") {
            let floats: Vec<f64> = numbers.iter().map(|bits| f64::from_bits(*bits)).filter(|x| x.is_finite()).collect();
            let record = record(json!({ "integers": numbers, "floats": floats, "text": text }));
            let read = StateFile::parse(&record.to_json().unwrap(), Path::new("state.json")).unwrap();
            let bits = |record: &StateFile| -> Vec<u64> {
                record.state["floats"].as_array().unwrap().iter().map(|x| x.as_f64().unwrap().to_bits()).collect()
            };
            prop_assert_eq!(bits(&read), floats.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
            prop_assert_eq!(read, record);
        }
    }
}
