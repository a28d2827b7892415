//! Recordings for a benchmark: noise of lengths as sentences have them, in wav files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tandem_audio::{Clip, FeatureSettings, RATE_HZ, wav};
use tandem_corpus::{Dataset, OpenOptions};
use tandem_feed::{TrainingSet, TrainingSetOptions};
use tandem_random::SplitMix;

use super::BenchError;

/// Seconds of the shortest and of the longest.
const SHORTEST_S: f64 = 1.5;
const LONGEST_S: f64 = 10.0;

/// Writes `count` recordings and a list of them with durations into `folder`, which is made. Their lengths are
/// gamma-distributed (shape 9, scale 0.73 s), 6.5 s in the mean.
pub fn write(folder: &Path, count: usize) -> Result<PathBuf, BenchError> {
    let failed = |error: std::io::Error| BenchError::Clips(format!("{error}: {}", folder.display()));
    fs::create_dir_all(folder).map_err(failed)?;
    let mut random = SplitMix::new(0x5EED);
    let mut list = String::new();
    for number in 0..count {
        let seconds = gamma_9(&mut random, 0.73).clamp(SHORTEST_S, LONGEST_S);
        let num_samples = (seconds * f64::from(RATE_HZ)) as usize;
        let samples = (0..num_samples).map(|_| (random.unit() * 18_000.0 - 9_000.0) as i16).collect();
        let name = format!("{number}.wav");
        let mut file = Vec::new();
        wav::write(&Clip { samples, rate_hz: RATE_HZ }, &mut file)
            .map_err(|error| BenchError::Clips(error.to_string()))?;
        fs::write(folder.join(&name), file).map_err(failed)?;
        let duration_s = num_samples as f64 / f64::from(RATE_HZ);
        list += &format!("{{\"audio_filepath\":\"{name}\",\"text\":\"noise\",\"duration\":{duration_s:.6}}}\n");
    }
    let path = folder.join("clips.jsonl");
    fs::write(&path, list).map_err(failed)?;
    Ok(path)
}

/// The recordings of a list, all of them, without their texts.
pub fn open(list: &Path) -> Result<Arc<TrainingSet>, BenchError> {
    let failed = |error: &dyn std::error::Error| BenchError::Clips(error.to_string());
    let dataset = Dataset::open(list, &OpenOptions::default()).map_err(|error| failed(&error))?;
    let rows: Vec<_> = dataset.samples().iter().map(|(index, _)| index).collect();
    let options = TrainingSetOptions {
        features: FeatureSettings::default(),
        max_frames: Some(u32::MAX),
        with_text: false,
        ..TrainingSetOptions::default()
    };
    Ok(Arc::new(TrainingSet::survey(Arc::new(dataset), &rows, &options)?))
}

/// A sum of nine exponential times is gamma-distributed of shape 9.
fn gamma_9(random: &mut SplitMix, scale: f64) -> f64 {
    (0..9).map(|_| -(1.0 - random.unit()).ln() * scale).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_are_as_long_as_sentences_and_can_be_served() {
        let folder = tempfile::tempdir().unwrap();
        let list = write(folder.path(), 200).unwrap();
        let training_set = open(&list).unwrap();
        assert_eq!(training_set.rows().len(), 200);
        let mean_s = training_set.audio_seconds() / 200.0;
        assert!((6.0..7.0).contains(&mean_s), "{mean_s}");
        let plan = training_set.bucket_plan(2, 16).unwrap();
        assert!(plan.buckets().iter().all(|bucket| bucket.longest_frames() <= 868));
    }
}
