//! Measures the mean and standard deviation of a corpus's log-mel spectrograms.

use tandem_audio::Clip;
use tandem_checkpoint::MelStatistics;
use tandem_feed::{Features, Featurizer, Recordings, TrainingSet};

use crate::error::TrainError;

/// Recordings that are measured: more would only change the third digit.
const MEASURED: usize = 64;

/// Measures recordings spread evenly over the corpus. Unreadable ones are skipped; if none can be read, the last error is
/// returned. Always on the CPU, so that every device trains on the same numbers. An error of the corpus's storage is returned at
/// once: recordings are never skipped because of it.
pub fn measure_mel_statistics(set: &TrainingSet, recordings: &dyn Recordings) -> Result<MelStatistics, TrainError> {
    let rows = set.rows();
    let mut featurizer = Featurizer::new(set.features()).map_err(TrainError::features)?;
    let (mut clip, mut features) = (Clip::default(), Features::default());
    let (mut sums, mut squares, mut frames) = (vec![0.0_f64; set.features().n_mels], 0.0_f64, 0_usize);
    let mut last_error = None;
    let step = rows.len().div_ceil(MEASURED).max(1);
    for (index, _) in rows.iter().step_by(step) {
        let Some(sample) = set.dataset().get(*index) else { continue };
        let loaded = match recordings.load_into(&sample, &mut clip) {
            Err(error) if error.is_about_storage() => return Err(error.into()),
            loaded => loaded.map_err(TrainError::from),
        };
        let computed =
            loaded.and_then(|()| featurizer.clip_into(&clip, false, &mut features).map_err(TrainError::features));
        if let Err(error) = computed {
            last_error = Some(error);
            continue;
        }
        for row in features.mel.values.chunks_exact(sums.len()) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
            squares += row.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
            frames += 1;
        }
    }
    if frames == 0 {
        return Err(last_error.unwrap_or(TrainError::NothingToTrainOn));
    }
    let count = (frames * sums.len()) as f64;
    let mean = sums.iter().sum::<f64>() / count;
    let std = (squares / count - mean * mean).max(1e-12).sqrt();
    let band_means = sums.iter().map(|sum| (sum / frames as f64) as f32).collect();
    Ok(MelStatistics { mean: mean as f32, std: std as f32, band_means })
}
