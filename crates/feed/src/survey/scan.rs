//! Durations that the corpus lists do not give, measured on a few threads and stored in an index.
//!
//! The container header of a recording usually has its length; otherwise the recording is decoded. A recording that cannot
//! be measured becomes a problem of every row that names it.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use tandem_audio::{Clip, probe};
use tandem_corpus::{
    Dataset, Length, LengthIndex, Locator, Problem, ProblemKind, RecordingKey, SampleIndex, ScanProgress,
    UnmeasuredSample,
};

use crate::FeedError;
use crate::load::decode::{load_whole_into, open};
use crate::load::storage_fault::undecodable;
use crate::survey::worker_pool;

/// The result of a scan.
#[derive(Debug)]
pub struct Scanned {
    /// The corpus, with the durations that are known.
    pub dataset: Dataset,
    /// Recordings measured now; a recording with several rows counts once.
    pub measured: usize,
    /// Recordings that are missing or cannot be measured, one problem per row.
    pub problems: Vec<Problem>,
    /// Whether `progress` stopped it early.
    pub stopped: bool,
}

/// Fills in durations from `index`, and measures the missing ones on `num_workers` threads. New lengths are added to
/// `index`, for the caller to save. `progress` can stop the scan; lengths measured until then stay.
///
/// Fails if a thread cannot be started, and if an object store does not answer: lengths measured until then stay in `index`.
pub fn scan_lengths(
    mut dataset: Dataset,
    index: &mut LengthIndex,
    num_workers: usize,
    mut progress: impl FnMut(ScanProgress) -> ControlFlow<()>,
) -> Result<Scanned, FeedError> {
    let mut problems = Vec::new();
    let pending = index.apply(&mut dataset, &mut problems);
    let rows = pending.into_iter().filter_map(|row| Some((dataset.get(row.index)?.audio.recording(), row)));
    let recordings = by_recording(rows);
    let total = recordings.len();
    let firsts: Vec<SampleIndex> = recordings.iter().map(|rows| rows[0].index).collect();
    let mut lengths: Vec<Option<Result<Length, FeedError>>> = (0..total).map(|_| None).collect();
    let (mut measured, mut stopped) = (0, false);
    let shared = Arc::new(dataset);
    let corpus = Arc::clone(&shared);
    worker_pool::for_each(
        num_workers,
        total,
        Clip::default,
        move |clip, item| corpus.get(firsts[item]).map(|sample| measure(&sample.audio, clip)),
        |item, length| {
            let is_failed = matches!(&length, Some(Err(error)) if error.is_about_storage());
            lengths[item] = length;
            measured += 1;
            let flow = progress(ScanProgress { done: measured, total });
            stopped = flow.is_break();
            // The next recording would fail alike.
            if is_failed { ControlFlow::Break(()) } else { flow }
        },
    )?;
    // The workers are joined: this is the only reference, and nothing is copied.
    let mut dataset = Arc::unwrap_or_clone(shared);
    let mut failed = None;
    for (rows, length) in recordings.iter().zip(lengths) {
        match length {
            Some(Ok(length)) => rows.iter().for_each(|row| index.record(&mut dataset, *row, length, &mut problems)),
            Some(Err(error)) if error.is_about_storage() => failed = failed.or(Some(error)),
            Some(Err(error)) => {
                for row in rows {
                    let Some(problem) = problem(&dataset, *row, &error) else { continue };
                    dataset.set_unmeasured(row.index, problem.kind);
                    problems.push(problem);
                }
            }
            None => {}
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    Ok(Scanned { dataset, measured, problems, stopped })
}

/// The length of a whole recording. Cost: reading its header, or decoding it if the header has no length; `clip` is scratch.
///
/// Fails like [`crate::load_into`].
pub fn measure(audio: &Locator<'_>, clip: &mut Clip) -> Result<Length, FeedError> {
    let header = probe(open(audio)?).map_err(|error| undecodable(audio, error))?;
    if let Some(num_samples) = header.num_samples {
        return Ok(Length { num_samples, rate_hz: header.rate_hz });
    }
    load_whole_into(audio, clip)?;
    Ok(Length { num_samples: clip.samples.len() as u64, rate_hz: clip.rate_hz })
}

/// Groups rows by their recording, in the order in which recordings first appear.
pub(super) fn by_recording<'a, T>(rows: impl Iterator<Item = (RecordingKey<'a>, T)>) -> Vec<Vec<T>> {
    let mut positions: HashMap<RecordingKey<'a>, usize> = HashMap::new();
    let mut recordings: Vec<Vec<T>> = Vec::new();
    for (key, row) in rows {
        let position = *positions.entry(key).or_insert(recordings.len());
        match recordings.get_mut(position) {
            Some(rows) => rows.push(row),
            None => recordings.push(vec![row]),
        }
    }
    recordings
}

fn problem(dataset: &Dataset, row: UnmeasuredSample, error: &FeedError) -> Option<Problem> {
    let sample = dataset.get(row.index)?;
    let kind = match error {
        FeedError::Missing { .. } => ProblemKind::MissingAudio,
        _ => ProblemKind::UndecodableAudio,
    };
    Some(Problem { file: sample.file.into(), line: Some(sample.line), kind, detail: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{FeedFolder, sine};
    use tandem_corpus::{IndexState, OpenOptions};

    fn scan(folder: &FeedFolder, num_workers: usize, stop_after: usize) -> (IndexState, Scanned) {
        let dataset = Dataset::open(folder.path(), &OpenOptions::default()).unwrap();
        let (mut index, state) = LengthIndex::open(&folder.path().join("run"), &dataset);
        let scanned = scan_lengths(dataset, &mut index, num_workers, |progress| {
            if progress.done == stop_after { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        index.save().unwrap();
        (state, scanned.unwrap())
    }

    fn durations(dataset: &Dataset) -> Vec<Option<f64>> {
        dataset.samples().iter().map(|(_, sample)| sample.duration_s).collect()
    }

    #[test]
    fn lengths_are_measured_once_with_any_number_of_workers() {
        for num_workers in [1, 3] {
            let folder = FeedFolder::new(&format!("scan-{num_workers}"));
            folder.write("metadata.csv", "a|one\nb|two\nc|three\nd|four\n");
            folder.wav("wavs/a.wav", &sine(22_050, 0.5));
            folder.write("wavs/b.wav", "no audio at all");
            folder.wav("wavs/c.wav", &sine(8_000, 2.0));
            folder.wav("wavs/d.wav", &sine(44_100, 1.0));
            let (state, first) = scan(&folder, num_workers, usize::MAX);
            assert_eq!((state, first.measured, first.stopped), (IndexState::New, 4, false));
            assert_eq!(durations(&first.dataset), [Some(0.5), None, Some(2.0), Some(1.0)]);
            let [problem] = &first.problems[..] else { panic!("{:?}", first.problems) };
            assert_eq!((problem.kind, problem.line), (ProblemKind::UndecodableAudio, Some(2)));
            assert!(problem.detail.contains("wavs/b.wav"), "{problem}");

            let (state, second) = scan(&folder, num_workers, usize::MAX);
            assert_eq!((state, second.measured), (IndexState::Loaded(3), 1));
            assert_eq!(durations(&second.dataset), durations(&first.dataset));
        }
    }

    #[test]
    fn a_stopped_scan_saves_what_it_measured() {
        let folder = FeedFolder::new("scan-stopped");
        let rows: String = (0..50).map(|i| format!("u{i}|text\n")).collect();
        folder.write("metadata.csv", rows);
        (0..50).for_each(|i| folder.wav(&format!("wavs/u{i}.wav"), &sine(8_000, 0.5)));
        let (_, stopped) = scan(&folder, 2, 5);
        assert_eq!((stopped.stopped, stopped.measured), (true, 5));
        assert_eq!(durations(&stopped.dataset).iter().flatten().count(), 5);
        let (state, rest) = scan(&folder, 2, usize::MAX);
        assert_eq!((state, rest.measured), (IndexState::Loaded(5), 45));
    }

    #[test]
    fn a_recording_of_many_parts_is_measured_once() {
        let folder = FeedFolder::new("scan-parts");
        folder.wav("long.wav", &sine(8_000, 3.0));
        let rows = [0.0, 1.0, 2.5, 7.0]
            .map(|offset| format!("{{\"audio_filepath\":\"long.wav\",\"text\":\"x\",\"offset\":{offset}}}\n"));
        folder.write("list.jsonl", rows.concat());
        let dataset = Dataset::open(folder.path().join("list.jsonl"), &OpenOptions::default()).unwrap();
        let (mut index, _) = LengthIndex::open(&folder.path().join("run"), &dataset);
        let scanned = scan_lengths(dataset, &mut index, 2, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(scanned.measured, 1);
        assert_eq!(durations(&scanned.dataset), [Some(3.0), Some(2.0), Some(0.5), None]);
        assert_eq!(scanned.problems[0].line, Some(4));
    }
}
