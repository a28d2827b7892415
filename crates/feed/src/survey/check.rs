//! The dataset check: everything is read once, everything wrong is reported, nothing stops it.
//!
//! In comes a corpus whose lists have been read, out goes a [`CorpusReport`]. Every recording is decoded from beginning to
//! end, each on one thread, once even when many rows name parts of it. Memory: a clip per thread and a few dozen bytes
//! per row. The report is in the order of files and lines, whatever the number of threads.

mod recording;
mod text;

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use tandem_audio::FeatureSettings;
use tandem_corpus::{
    CorpusError, Dataset, Distribution, Extent, Length, LengthIndex, SampleIndex, ScanProgress, Subset,
};
use tandem_corpus::{Problem, ProblemKind};

use crate::FeedError;
use crate::batch::shape::Bucket;
use crate::survey::buckets::{BucketPlan, NUM_BUCKETS, Padding};
use crate::survey::pool;
use crate::survey::report::{BucketUse, CorpusReport, ShapeReport, UtteranceGroup};
use recording::{CheckedRow, Inspector, Recording};

/// What counts as wrong, and what the shapes are planned for.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckOptions {
    /// Shorter recordings are too short.
    pub min_seconds: f64,
    /// Longer recordings are too long.
    pub max_seconds: f64,
    /// A recording with a larger share of its samples cut off at full scale clips.
    pub max_clipped_share: f64,
    /// The language of rows that name none; none is English.
    pub lang: Option<String>,
    /// Shapes of batches, at most.
    pub num_buckets: usize,
    /// Utterances of a batch.
    pub batch: u32,
    /// Fixes which batches the padding is counted over.
    pub seed: u64,
    /// Threads that decode.
    pub num_workers: usize,
    /// What recordings become.
    pub features: FeatureSettings,
}

impl Default for CheckOptions {
    fn default() -> Self {
        CheckOptions {
            min_seconds: 0.2,
            max_seconds: 30.0,
            max_clipped_share: 0.001,
            lang: None,
            num_buckets: NUM_BUCKETS,
            batch: 16,
            seed: 1234,
            num_workers: 1,
            features: FeatureSettings::default(),
        }
    }
}

/// A corpus that was checked.
#[derive(Debug)]
pub struct Checked {
    /// What was found.
    pub report: CorpusReport,
    dataset: Dataset,
    lengths: HashMap<SampleIndex, Length>,
}

/// The share of utterances that training keeps when nobody says otherwise: longer ones are left out.
const INCLUDED_PERCENT: f64 = 99.5;

/// Checks `dataset`: reads every recording that is not excluded, and reports on all of it.
///
/// Fails when a thread cannot be started; what is wrong with the corpus is in the report.
pub fn check(
    dataset: Dataset,
    options: &CheckOptions,
    mut progress: impl FnMut(ScanProgress),
) -> Result<Checked, FeedError> {
    let dataset = Arc::new(dataset);
    let recordings = recordings(&dataset);
    let total = recordings.len();
    let mut found: Vec<Option<Recording>> = (0..total).map(|_| None).collect();
    let mut done = 0;
    let (corpus, made_with) = (Arc::clone(&dataset), options.clone());
    pool::for_each(
        options.num_workers,
        total,
        move || Inspector::new(&made_with),
        move |inspector, item| inspector.inspect(&corpus, &recordings[item]),
        |item, recording| {
            found[item] = Some(recording);
            done += 1;
            progress(ScanProgress { done, total });
            ControlFlow::Continue(())
        },
    )?;
    // The workers are gone, so nobody else holds it and nothing is copied.
    let dataset = Arc::unwrap_or_clone(dataset);
    let found: Vec<Recording> = found.into_iter().flatten().collect();
    let lengths = found.iter().flat_map(|recording| {
        recording.length.into_iter().flat_map(|length| recording.rows.iter().map(move |row| (row.index, length)))
    });
    let lengths = lengths.collect();
    let mut rows: Vec<CheckedRow> = found.into_iter().flat_map(|recording| recording.rows).collect();
    rows.sort_unstable_by_key(|row| row.index);
    Ok(Checked { report: report(&dataset, rows, options), dataset, lengths })
}

impl Checked {
    /// Keeps the lengths that were found in the index in `folder`, so that a run need not look for them again.
    ///
    /// Fails when the folder cannot be written to; the report does not depend on it.
    pub fn keep_lengths(&mut self, folder: &Path) -> Result<(), CorpusError> {
        let (mut index, _) = LengthIndex::open(folder, &self.dataset);
        // What is wrong has been reported already.
        let mut said = Vec::new();
        for pending in index.apply(&mut self.dataset, &mut said) {
            if let Some(length) = self.lengths.get(&pending.index) {
                index.record(&mut self.dataset, pending, *length, &mut said);
            }
        }
        index.save()
    }
}

/// The rows of each recording, in the order in which recordings come up first; excluded rows are nobody's business.
fn recordings(dataset: &Dataset) -> Vec<Vec<SampleIndex>> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut recordings: Vec<Vec<SampleIndex>> = Vec::new();
    for (index, sample) in dataset.samples().iter().filter(|(_, sample)| sample.part != Subset::Excluded) {
        let place = *places.entry(sample.audio.key).or_insert(recordings.len());
        match recordings.get_mut(place) {
            Some(rows) => rows.push(index),
            None => recordings.push(vec![index]),
        }
    }
    recordings
}

fn report(dataset: &Dataset, mut rows: Vec<CheckedRow>, options: &CheckOptions) -> CorpusReport {
    let mut problems = dataset.problems().to_vec();
    for row in &mut rows {
        let Some(sample) = dataset.get(row.index) else { continue };
        problems.extend(std::mem::take(&mut row.problems).into_iter().map(|(kind, detail)| Problem {
            file: sample.file.into(),
            line: Some(sample.line),
            kind,
            detail,
        }));
    }
    problems.sort_by(|a, b| (&a.file, a.line, a.kind).cmp(&(&b.file, b.line, b.kind)));
    let samples = || rows.iter().filter_map(|row| Some((row, dataset.get(row.index)?)));
    CorpusReport {
        path: dataset.path().to_owned(),
        hints: hints(dataset, &problems, options),
        problems,
        num_utterances: rows.len(),
        num_excluded: dataset.num_excluded(),
        seconds: Distribution::new(rows.iter().filter_map(|row| row.seconds)),
        tokens: Distribution::new(rows.iter().filter_map(|row| row.tokens).map(f64::from)),
        speakers: groups(samples().map(|(row, sample)| (sample.speaker, row.seconds))),
        langs: groups(samples().map(|(row, sample)| (sample.lang, row.seconds))),
        shapes: shapes(&rows, options),
    }
}

/// Utterances and seconds by name, in the order of first appearance.
fn groups<'a>(rows: impl Iterator<Item = (Option<&'a str>, Option<f64>)>) -> Vec<UtteranceGroup> {
    let mut places: HashMap<Option<&str>, usize> = HashMap::new();
    let mut groups: Vec<UtteranceGroup> = Vec::new();
    for (name, seconds) in rows {
        let place = *places.entry(name).or_insert_with(|| {
            groups.push(UtteranceGroup { name: name.map(str::to_owned), num_utterances: 0, seconds: 0.0 });
            groups.len() - 1
        });
        groups[place].num_utterances += 1;
        groups[place].seconds += seconds.unwrap_or(0.0);
    }
    groups
}

/// The shapes for the rows that could train. None when there are none.
fn shapes(rows: &[CheckedRow], options: &CheckOptions) -> Option<ShapeReport> {
    let usable: Vec<(SampleIndex, Extent)> =
        rows.iter().filter_map(|row| row.extent().map(|extent| (row.index, extent))).collect();
    let longest = |of: fn(&Extent) -> u32| {
        Distribution::new(usable.iter().map(|(_, extent)| f64::from(of(extent)))).percentile(INCLUDED_PERCENT)
    };
    let (max_frames, max_tokens) = (longest(|extent| extent.frames)?, longest(|extent| extent.tokens)?);
    let fits = |extent: &Extent| f64::from(extent.frames) <= max_frames && f64::from(extent.tokens) <= max_tokens;
    let kept: Vec<_> = usable.iter().copied().filter(|(_, extent)| fits(extent)).collect();
    let plan = BucketPlan::solve(&kept, options.num_buckets, options.batch)?;
    let members = |shape: usize, row: usize| plan.parts().members(shape, row).len();
    let used = |(shape, bucket): (usize, &Bucket)| BucketUse {
        bucket: bucket.clone(),
        num_utterances: (0..plan.parts().batch()).map(|row| members(shape, row)).sum(),
    };
    Some(ShapeReport {
        buckets: plan.buckets().iter().enumerate().map(used).collect(),
        batch: plan.batch(),
        padding: plan.padding(options.seed),
        others: others(&kept, options),
        num_left_out: usable.len() - kept.len(),
        max_frames: max_frames as u32,
        max_tokens: max_tokens as u32,
    })
}

/// What numbers of shapes that people ask for would pad.
fn others(kept: &[(SampleIndex, Extent)], options: &CheckOptions) -> Vec<(usize, Padding)> {
    let padding = |num_buckets: usize| {
        let plan = BucketPlan::solve(kept, num_buckets, options.batch)?;
        (plan.buckets().len() == num_buckets).then(|| (num_buckets, plan.padding(options.seed)))
    };
    [1, 2, 4, 8].into_iter().filter_map(padding).collect()
}

/// Whole sets of problems that one flag would settle.
fn hints(dataset: &Dataset, problems: &[Problem], options: &CheckOptions) -> Vec<String> {
    let unnamed = dataset.samples().iter().filter(|(_, sample)| sample.lang.is_none()).count();
    let unknown = problems.iter().filter(|problem| problem.kind == ProblemKind::UnknownSymbol).count();
    if options.lang.is_none() && 2 * unknown > unnamed && unnamed > 0 {
        return vec![format!(
            "{unnamed} rows name no language and were read as English; if they are not, give theirs: --lang fa"
        )];
    }
    Vec::new()
}

#[cfg(test)]
mod tests;
