//! The dataset check: decodes every recording and reports every problem, and which utterances a run would skip.
//!
//! Each recording is decoded once, by one thread, even if many rows name parts of it. Problems do not stop the check. Memory:
//! a clip per thread and a few dozen bytes per row. The [`CorpusReport`] is in file and line order for any number of threads.

mod recording;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use tandem_audio::FeatureSettings;
use tandem_corpus::{
    CorpusError, Dataset, Distribution, Extent, Length, LengthIndex, Problem, ProblemKind, SampleIndex, ScanProgress,
    Subset,
};

use crate::FeedError;
use crate::batch::shape::Bucket;
use crate::survey::buckets::{BucketPlan, NUM_BUCKETS};
use crate::survey::languages::language_hints;
use crate::survey::report::{BucketUse, CorpusReport, OtherPadding, ShapeReport, UsageReport, UtteranceGroup};
use crate::survey::scan::by_recording;
use crate::survey::tokenizer::{TextSettings, Tokenizer};
use crate::survey::training_set::{TrainingSet, TrainingSetOptions};
use crate::survey::worker_pool;
use recording::{CheckedRow, Inspector, Recording};

/// What counts as a problem, and what the shapes are planned for.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckOptions {
    /// Shorter recordings are too short.
    pub min_seconds: f64,
    /// Longer recordings are too long.
    pub max_seconds: f64,
    /// A recording with a larger share of clipped samples is a problem.
    pub max_clipped_share: f64,
    /// The language of rows that name none; none is English.
    pub lang: Option<String>,
    /// Most shapes of batches.
    pub num_buckets: usize,
    /// Utterances of a batch.
    pub batch: u32,
    /// Seed of the epoch whose padding is counted.
    pub seed: u64,
    /// Decode threads.
    pub num_workers: usize,
    /// The features of a recording.
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

/// A checked corpus.
#[derive(Debug)]
pub struct Checked {
    /// The result.
    pub report: CorpusReport,
    dataset: Arc<Dataset>,
    lengths: Vec<(SampleIndex, Length)>,
}

/// Decodes every recording of `dataset` that is not excluded, and reports on the corpus.
///
/// Fails if a thread cannot be started, and if the storage of the corpus fails; problems of the corpus are in the report.
pub fn check(
    dataset: Dataset,
    options: &CheckOptions,
    mut progress: impl FnMut(ScanProgress),
) -> Result<Checked, FeedError> {
    let dataset = Arc::new(dataset);
    let tokenizer = Tokenizer::for_corpus(&dataset, &options.text())?;
    let recordings = recordings(&dataset);
    let total = recordings.len();
    let mut found: Vec<Option<Recording>> = (0..total).map(|_| None).collect();
    let (mut done, mut failed) = (0, None);
    let (corpus, inspector_options) = (Arc::clone(&dataset), options.clone());
    worker_pool::for_each(
        options.num_workers,
        total,
        move || Inspector::new(&inspector_options, tokenizer.clone()),
        move |inspector, item| inspector.inspect(&corpus, &recordings[item]),
        |item, recording| match recording {
            Ok(recording) => {
                found[item] = Some(recording);
                done += 1;
                progress(ScanProgress { done, total });
                ControlFlow::Continue(())
            }
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        },
    )?;
    if let Some(error) = failed {
        return Err(error);
    }
    // The workers are joined: this is the only reference, and nothing is copied.
    let mut dataset = Arc::unwrap_or_clone(dataset);
    let found: Vec<Recording> = found.into_iter().flatten().collect();
    let lengths = fill_in_lengths(&mut dataset, &found);
    let mut rows: Vec<CheckedRow> = found.into_iter().flat_map(|recording| recording.rows).collect();
    rows.sort_unstable_by_key(|row| row.index);
    let split = dataset.split(options.seed);
    let survey = TrainingSetOptions {
        features: options.features.clone(),
        text: options.text(),
        with_text: true,
        ..TrainingSetOptions::default()
    };
    let training_set = TrainingSet::survey(Arc::new(dataset), &split.train, &survey)?;
    let report = report(&training_set, split.eval.len(), rows, options);
    Ok(Checked { report, dataset: Arc::clone(training_set.dataset()), lengths })
}

/// Gives rows without a duration that of their recording, as a run measures it. Returns the lengths of these rows.
fn fill_in_lengths(dataset: &mut Dataset, found: &[Recording]) -> Vec<(SampleIndex, Length)> {
    let mut lengths = Vec::new();
    for recording in found {
        for row in &recording.rows {
            if dataset.get(row.index).is_none_or(|sample| sample.duration_s.is_some()) {
                continue;
            }
            match recording.length {
                Ok(length) => {
                    // The problem of a range past the end is among those of the row.
                    drop(dataset.set_length(row.index, length));
                    lengths.push((row.index, length));
                }
                Err(kind) => dataset.set_unmeasured(row.index, kind),
            }
        }
    }
    lengths
}

impl CheckOptions {
    /// How texts become tokens.
    fn text(&self) -> TextSettings {
        TextSettings { lang: self.lang.clone(), ..TextSettings::default() }
    }
}

impl Checked {
    /// Saves the measured lengths in the index in `folder`, so that a run need not measure them again.
    ///
    /// Fails if the folder cannot be written to; the report does not depend on it.
    pub fn keep_lengths(&mut self, folder: &Path) -> Result<(), CorpusError> {
        let (mut index, _) = LengthIndex::open(folder, &self.dataset);
        for (row, length) in &self.lengths {
            if let Some(sample) = self.dataset.get(*row) {
                index.keep(&sample.audio, *length);
            }
        }
        index.save()
    }
}

/// The rows of each recording, without excluded rows.
fn recordings(dataset: &Dataset) -> Vec<Vec<SampleIndex>> {
    let included = dataset.samples().iter().filter(|(_, sample)| sample.part != Subset::Excluded);
    by_recording(included.map(|(index, sample)| (sample.audio.recording(), index)))
}

fn report(
    training_set: &TrainingSet,
    num_validation: usize,
    mut rows: Vec<CheckedRow>,
    options: &CheckOptions,
) -> CorpusReport {
    let dataset = training_set.dataset();
    let trained: HashSet<SampleIndex> = training_set.rows().iter().map(|(index, _)| *index).collect();
    let mut problems = dataset.problems().to_vec();
    let mut trained_on: BTreeMap<ProblemKind, usize> = BTreeMap::new();
    for row in &mut rows {
        let Some(sample) = dataset.get(row.index) else { continue };
        for (kind, detail) in std::mem::take(&mut row.problems) {
            if trained.contains(&row.index) {
                *trained_on.entry(kind).or_default() += 1;
            }
            problems.push(Problem { file: sample.file.into(), line: Some(sample.line), kind, detail });
        }
    }
    problems.sort_by(|a, b| (&a.file, a.line, a.kind).cmp(&(&b.file, b.line, b.kind)));
    let samples = || rows.iter().filter_map(|row| Some((row, dataset.get(row.index)?)));
    CorpusReport {
        path: dataset.path().to_owned(),
        format: dataset.format(),
        layout: dataset.describe(),
        not_read: dataset.not_read().to_vec(),
        hints: hints(dataset, &problems, options),
        problems,
        num_utterances: rows.len(),
        num_excluded: dataset.num_excluded(),
        seconds: Distribution::new(rows.iter().filter_map(|row| row.seconds)),
        tokens: Distribution::new(rows.iter().filter_map(|row| row.tokens).map(f64::from)),
        speakers: groups(samples().map(|(row, sample)| (sample.speaker, row.seconds))),
        langs: groups(samples().map(|(row, sample)| (sample.lang, row.seconds))),
        training: UsageReport {
            num_utterances: training_set.rows().len(),
            seconds: training_set.audio_seconds(),
            num_validation,
            rejected: dataset.rejected(),
            left_out: *training_set.left_out(),
            max_frames: training_set.max_frames(),
            max_tokens: training_set.max_tokens(),
        },
        trained_on,
        shapes: shapes(&training_set.epoch_rows(), options),
    }
}

/// Utterances and seconds by name, in the order of first appearance.
fn groups<'a>(rows: impl Iterator<Item = (Option<&'a str>, Option<f64>)>) -> Vec<UtteranceGroup> {
    let mut positions: HashMap<Option<&str>, usize> = HashMap::new();
    let mut groups: Vec<UtteranceGroup> = Vec::new();
    for (name, seconds) in rows {
        let position = *positions.entry(name).or_insert_with(|| {
            groups.push(UtteranceGroup { name: name.map(str::to_owned), num_utterances: 0, seconds: 0.0 });
            groups.len() - 1
        });
        groups[position].num_utterances += 1;
        groups[position].seconds += seconds.unwrap_or(0.0);
    }
    groups
}

/// The shapes for the rows of an epoch; none without rows.
fn shapes(rows: &[(SampleIndex, Extent)], options: &CheckOptions) -> Option<ShapeReport> {
    let plan = BucketPlan::solve(rows, options.num_buckets, options.batch)?;
    let members = |shape: usize, row: usize| plan.parts().members(shape, row).len();
    let used = |(shape, bucket): (usize, &Bucket)| BucketUse {
        bucket: bucket.clone(),
        num_utterances: (0..plan.parts().batch()).map(|row| members(shape, row)).sum(),
    };
    Some(ShapeReport {
        buckets: plan.buckets().iter().enumerate().map(used).collect(),
        batch: plan.batch(),
        padding: plan.padding(options.seed),
        others: other_paddings(rows, options),
    })
}

/// The padding of usual numbers of shapes.
fn other_paddings(rows: &[(SampleIndex, Extent)], options: &CheckOptions) -> Vec<OtherPadding> {
    let padding = |num_buckets: usize| {
        let plan = BucketPlan::solve(rows, num_buckets, options.batch)?;
        let padding = plan.padding(options.seed);
        (plan.buckets().len() == num_buckets).then_some(OtherPadding { num_buckets, padding })
    };
    [1, 2, 4, 8].into_iter().filter_map(padding).collect()
}

/// What would solve many problems at once.
fn hints(dataset: &Dataset, problems: &[Problem], options: &CheckOptions) -> Vec<String> {
    let found = language_hints(dataset, &options.text());
    if !found.is_empty() {
        return found;
    }
    // Languages that the detector does not know.
    let unnamed = dataset.samples().iter().filter(|(_, sample)| sample.lang.is_none()).count();
    let unknown = problems.iter().filter(|problem| problem.kind == ProblemKind::UnknownSymbol).count();
    if options.lang.is_none() && 2 * unknown > unnamed && unnamed > 0 {
        return vec![format!(
            "{unnamed} rows name no language and were read as English; for another language, give it: --lang fa"
        )];
    }
    Vec::new()
}

#[cfg(test)]
mod tests;
