//! What scanning a shard found, and its bytes in an index.

use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tandem_shards::PageTable;

use super::scan::ShardScan;
use crate::problem::{Problem, ProblemKind};
use crate::sample::Samples;
use crate::sample::bytes::ByteInput;
use crate::shard::ShardKind;

/// The rows of a shard, with the place of each recording.
#[derive(Debug)]
pub struct ScannedShard {
    pub(crate) samples: Samples,
    pub(crate) problems: Vec<Problem>,
    /// Rows whose length is not known, and why.
    pub(crate) unmeasured: Vec<(u32, ProblemKind)>,
    pub(crate) kind: ShardKind,
    /// Recordings that were measured, and those of them that had to be decoded for it.
    pub(crate) num_measured: u64,
    pub(crate) num_decoded: u64,
}

impl ScannedShard {
    pub(crate) fn new(scan: ShardScan<'_>, kind: ShardKind) -> ScannedShard {
        let ShardScan { samples, problems, unmeasured, num_decoded, num_measured, .. } = scan;
        ScannedShard { samples, problems, unmeasured, kind, num_measured, num_decoded }
    }

    /// Utterances found.
    pub fn num_rows(&self) -> usize {
        self.samples.len()
    }

    /// Recordings whose headers have no length: they were decoded from beginning to end.
    pub fn num_decoded(&self) -> u64 {
        self.num_decoded
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let (tag, pages) = match &self.kind {
            ShardKind::Tar => (0, Vec::new()),
            ShardKind::Arrow => (1, Vec::new()),
            ShardKind::Parquet(pages) => (2, pages.encode()),
        };
        let notes = Notes {
            problems: self.problems.iter().map(StoredProblem::of).collect(),
            unmeasured: self.unmeasured.clone(),
            num_measured: self.num_measured,
            num_decoded: self.num_decoded,
        };
        // Numbers and strings always have a JSON form.
        let notes = serde_json::to_vec(&notes).unwrap_or_default();
        out.push(tag);
        for part in [&pages, &notes] {
            out.extend((part.len() as u64).to_le_bytes());
            out.extend(part);
        }
        self.samples.encode(&mut out);
        out
    }

    /// What [`ScannedShard::encode`] wrote, of a shard of `num_bytes` that is called `file`. None for anything else.
    pub(crate) fn decode(bytes: &[u8], file: &Arc<Path>, num_bytes: u64) -> Option<ScannedShard> {
        let (tag, rest) = bytes.split_first()?;
        let mut input = ByteInput(rest);
        let mut part = || {
            let len = usize::try_from(input.u64()?).ok()?;
            input.take(len)
        };
        let (pages, notes) = (part()?, part()?);
        let kind = match tag {
            0 => ShardKind::Tar,
            1 => ShardKind::Arrow,
            2 => {
                let pages = PageTable::decode(pages).ok()?;
                pages.check(num_bytes).ok()?;
                ShardKind::Parquet(pages)
            }
            _ => return None,
        };
        let Notes { problems, unmeasured, num_measured, num_decoded } = serde_json::from_slice(notes).ok()?;
        let problems = problems.into_iter().map(|problem| problem.of_shard(file)).collect();
        let samples = Samples::decode(input.0)?;
        Some(ScannedShard { samples, problems, unmeasured, kind, num_measured, num_decoded })
    }
}

/// What a scan noted beside the rows.
#[derive(Serialize, Deserialize)]
struct Notes {
    problems: Vec<StoredProblem>,
    unmeasured: Vec<(u32, ProblemKind)>,
    num_measured: u64,
    num_decoded: u64,
}

/// A problem, with the name of its file: of the shard, or of the list that describes it.
#[derive(Serialize, Deserialize)]
struct StoredProblem {
    file: String,
    line: Option<u32>,
    kind: ProblemKind,
    detail: String,
}

impl StoredProblem {
    fn of(problem: &Problem) -> StoredProblem {
        let Problem { file, line, kind, detail } = problem;
        StoredProblem { file: file.to_string_lossy().into_owned(), line: *line, kind: *kind, detail: detail.clone() }
    }

    /// Problems of the shard itself share its name.
    fn of_shard(self, shard: &Arc<Path>) -> Problem {
        let StoredProblem { file, line, kind, detail } = self;
        let file = if *file == *shard.to_string_lossy() { Arc::clone(shard) } else { Path::new(&file).into() };
        Problem { file, line, kind, detail }
    }
}
