//! Archives in memory, and what scanning one finds.

use std::path::Path;
use std::sync::Arc;

use tandem_shards::{ShardFault, TarWriter, ValueAddress};
use tandem_storage::{ObjectLocation, ObjectStamp, ReadAt, Storage, StorageSettings};

use crate::problem::ProblemKind;
use crate::sample::Samples;
use crate::shard::{ShardFile, ShardKind};
use crate::sharded::scan::{LengthProbe, ShardScan};

/// An archive with these members.
pub(crate) fn tar_of(members: &[(impl AsRef<str>, impl AsRef<[u8]>)]) -> Vec<u8> {
    let mut writer = TarWriter::new(Vec::new());
    for (name, bytes) in members {
        writer.append(name.as_ref(), bytes.as_ref()).unwrap();
    }
    writer.finish().unwrap()
}

/// A row as it came out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FoundRow {
    pub(crate) number: u32,
    pub(crate) id: String,
    pub(crate) text: String,
    pub(crate) speaker: Option<String>,
    pub(crate) lang: Option<String>,
    pub(crate) key: String,
    pub(crate) offset_s: Option<f64>,
    pub(crate) duration_s: Option<f64>,
    pub(crate) address: ValueAddress,
}

/// What a scan found.
#[derive(Debug)]
pub(crate) struct ScanOutcome {
    pub(crate) rows: Vec<FoundRow>,
    pub(crate) problems: Vec<(Option<u32>, ProblemKind, String)>,
    pub(crate) fault: Option<ShardFault>,
    pub(crate) num_measured: u64,
}

impl ScanOutcome {
    /// Number, id, text and key of each row.
    pub(crate) fn brief(&self) -> Vec<(u32, &str, &str, &str)> {
        self.rows.iter().map(|row| (row.number, &*row.id, &*row.text, &*row.key)).collect()
    }

    /// Number and kind of each problem.
    pub(crate) fn kinds(&self) -> Vec<(Option<u32>, ProblemKind)> {
        self.problems.iter().map(|(number, kind, _)| (*number, *kind)).collect()
    }

    /// Fails unless the only problem is this one, and its detail has `part`.
    pub(crate) fn assert_problem(&self, number: Option<u32>, kind: ProblemKind, part: &str) {
        assert_eq!(self.kinds(), [(number, kind)], "{:?}", self.problems);
        assert!(self.problems[0].2.contains(part), "{:?}", self.problems);
    }
}

/// Scans `archive` with `scan`.
pub(crate) fn outcome_of(
    archive: &[u8],
    probe: Option<&dyn LengthProbe>,
    scan: impl FnOnce(&Arc<dyn ReadAt>, &mut ShardScan<'_>) -> Result<(), ShardFault>,
) -> ScanOutcome {
    let file: Arc<Path> = Path::new("shard.tar").into();
    let bytes: Arc<dyn ReadAt> = Arc::new(archive.to_vec());
    let mut found = ShardScan::new(Arc::clone(&file), probe);
    let fault = scan(&bytes, &mut found).err();
    let (num_measured, problems) = (found.num_measured, found.problems);
    let location = ObjectLocation::file("shard.tar");
    let stamp = ObjectStamp { num_bytes: archive.len() as u64, modified_ns: 0, etag: None };
    let shard = ShardFile::new(location, stamp, ShardKind::Tar, Storage::new(StorageSettings::default()));
    let mut samples = Samples::new(Default::default());
    samples.append_shard(found.samples, Arc::new(shard), file);
    let rows = samples.iter().map(|(_, sample)| FoundRow {
        number: sample.line,
        id: sample.id.to_owned(),
        text: sample.text.to_owned(),
        speaker: sample.speaker.map(str::to_owned),
        lang: sample.lang.map(str::to_owned),
        key: sample.audio.key.to_owned(),
        offset_s: sample.audio.range.map(|range| range.offset_s),
        duration_s: sample.duration_s,
        address: sample.audio.piece.unwrap().address,
    });
    let problems = problems.into_iter().map(|problem| (problem.line, problem.kind, problem.detail)).collect();
    ScanOutcome { rows: rows.collect(), problems, fault, num_measured }
}

/// The bytes of a row's recording.
pub(crate) fn recording_of<'a>(archive: &'a [u8], row: &FoundRow) -> &'a [u8] {
    let start = row.address.position as usize;
    &archive[start..start + row.address.extent as usize]
}
