//! The rows of one shard, while it is scanned.

use std::path::Path;
use std::sync::Arc;

use tandem_shards::{ShardFault, ValueAddress};

use crate::index::Length;
use crate::problem::{Problem, ProblemKind, excerpt};
use crate::recording_reader::RecordingReader;
use crate::sample::{NewRow, Samples, Subset, check_name};

/// Measures recordings whose length no list gives. This crate knows no audio format.
pub trait LengthProbe: Send + Sync {
    /// The length of a whole recording, or why it has none, in words. The reader is at its beginning.
    fn length(&self, recording: RecordingReader) -> Result<ProbedLength, String>;
}

/// The length of a recording, and what it cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbedLength {
    /// The length.
    pub length: Length,
    /// Its header has no length: it was decoded from beginning to end.
    pub is_decoded: bool,
}

/// An utterance of a shard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardRow<'a> {
    /// Its number in the shard, from 1.
    pub(crate) number: u32,
    pub(crate) id: &'a str,
    pub(crate) text: &'a str,
    pub(crate) speaker: Option<&'a str>,
    pub(crate) lang: Option<&'a str>,
    /// The name of the recording: of the member, or of the file it was.
    pub(crate) key: &'a str,
    /// The place of the recording in the shard; none for a file or an object of its own, whose path or URL is the key.
    pub(crate) address: Option<ValueAddress>,
    /// The part of the recording that is meant; none is all of it.
    pub(crate) offset_s: Option<f64>,
    /// How long the utterance is, if the shard says so.
    pub(crate) duration_s: Option<f64>,
}

/// Opens the recording of a row.
pub(crate) type OpenPiece<'a> = &'a dyn Fn() -> Result<RecordingReader, ShardFault>;

/// Rows and problems of one shard. Rows that cannot be used become problems here, so that all formats have the same rules.
pub(crate) struct ShardScan<'a> {
    pub(crate) samples: Samples,
    pub(crate) problems: Vec<Problem>,
    /// Rows whose length is not known, and why.
    pub(crate) unmeasured: Vec<(u32, ProblemKind)>,
    /// Recordings that were decoded to measure them.
    pub(crate) num_decoded: u64,
    /// Recordings that were measured, those included.
    pub(crate) num_measured: u64,
    file: Arc<Path>,
    probe: Option<&'a dyn LengthProbe>,
    /// Problems that are counted only.
    num_more: u64,
}

/// Problems of one shard that are kept: a shard may claim millions of rows that are none.
const MAX_PROBLEMS: usize = 10_000;

impl<'a> ShardScan<'a> {
    /// No rows yet. `file` is the name of the shard in problems. Without a probe, lengths stay unknown.
    pub(crate) fn new(file: Arc<Path>, probe: Option<&'a dyn LengthProbe>) -> ShardScan<'a> {
        let mut samples = Samples::new(Default::default());
        samples.begin_file(Arc::clone(&file));
        let (problems, unmeasured) = (Vec::new(), Vec::new());
        ShardScan { samples, problems, unmeasured, num_decoded: 0, num_measured: 0, file, probe, num_more: 0 }
    }

    /// Adds a row. `open` gives its recording, and is called only if its length must be measured. Recordings that are files of
    /// their own have none: they are measured later, by their paths.
    ///
    /// A row without an id or a text, with a name that is too long, or with an impossible number becomes a problem. A recording
    /// that cannot be measured is a problem, and its row stays.
    pub(crate) fn row(&mut self, row: &ShardRow<'_>, open: Option<OpenPiece<'_>>) {
        if let Err((kind, detail)) = check(row) {
            return self.problem(Some(row.number), kind, detail);
        }
        let index = self.samples.len() as u32;
        let mut duration_s = row.duration_s;
        if duration_s.is_none()
            && let (Some(probe), Some(open)) = (self.probe, open)
        {
            self.num_measured += 1;
            let measured = open().map_err(|error| error.to_string()).and_then(|recording| probe.length(recording));
            let rest = measured.and_then(|probed| {
                self.num_decoded += u64::from(probed.is_decoded);
                rest_after(probed.length.duration_s(), row.offset_s)
            });
            match rest {
                Ok(seconds) => duration_s = Some(seconds),
                Err(reason) => {
                    let place = row.address.map_or(0, |address| address.position);
                    let detail = format!("{reason} ({}, at {place})", excerpt(row.key));
                    self.problem(Some(row.number), ProblemKind::UndecodableAudio, detail);
                    self.unmeasured.push((index, ProblemKind::UndecodableAudio));
                }
            }
        }
        self.samples.push(&NewRow {
            id: row.id,
            text: row.text.trim(),
            speaker: row.speaker.map(str::trim).filter(|speaker| !speaker.is_empty()),
            lang: row.lang.map(str::trim).filter(|lang| !lang.is_empty()),
            key: row.key,
            offset_s: row.offset_s,
            duration_s,
            part: Subset::Undecided,
            line: row.number,
            address: row.address,
        });
    }

    /// Notes a problem of the utterance `number`, or of the whole shard. Of very many, the last one counts the rest.
    pub(crate) fn problem(&mut self, number: Option<u32>, kind: ProblemKind, detail: impl Into<String>) {
        if self.problems.len() >= MAX_PROBLEMS {
            self.num_more += 1;
            let rest = Problem {
                file: Arc::clone(&self.file),
                line: None,
                kind: ProblemKind::DamagedShard,
                detail: format!("{} more problems", self.num_more),
            };
            self.problems.truncate(MAX_PROBLEMS);
            return self.problems.push(rest);
        }
        self.problems.push(Problem { file: Arc::clone(&self.file), line: number, kind, detail: detail.into() });
    }
}

fn check(row: &ShardRow<'_>) -> Result<(), (ProblemKind, String)> {
    check_name(row.id)?;
    check_name(row.key)?;
    if row.id.trim().is_empty() {
        return Err((ProblemKind::EmptyId, format!("`{}` has no id", excerpt(row.key))));
    }
    if row.text.trim().is_empty() {
        return Err((ProblemKind::EmptyText, format!("`{}` says nothing", excerpt(row.id))));
    }
    if let Some(duration) = row.duration_s.filter(|duration| *duration <= 0.0 || !duration.is_finite()) {
        return Err((ProblemKind::BadNumber, format!("`duration` must be over 0, found {duration}")));
    }
    if let Some(offset) = row.offset_s.filter(|offset| *offset < 0.0 || !offset.is_finite()) {
        return Err((ProblemKind::BadNumber, format!("`offset` must be 0 or more, found {offset}")));
    }
    Ok(())
}

/// What is left of a recording of `seconds` after the offset.
fn rest_after(seconds: f64, offset_s: Option<f64>) -> Result<f64, String> {
    let rest = seconds - offset_s.unwrap_or(0.0);
    match rest > 0.0 || offset_s.is_none() {
        true => Ok(rest),
        false => Err(format!("`offset` {} lies past the end, at {seconds:.3} s", offset_s.unwrap_or(0.0))),
    }
}
