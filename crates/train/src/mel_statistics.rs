//! What spectra of a corpus look like on the whole: models learn from spectra of mean 0 and deviation 1.

use serde::{Deserialize, Serialize};
use tandem_audio::Clip;
use tandem_feed::{Features, Featurizer, Recordings, TrainingSet};

use crate::error::TrainError;

/// Recordings that are looked at: enough that more would change the third digit.
const LOOKED_AT: usize = 64;

/// Mean and deviation of a corpus's log-mel spectra.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MelStatistics {
    /// The mean of all numbers.
    pub mean: f32,
    /// Their deviation.
    pub deviation: f32,
    /// The mean of each band.
    pub bands: Vec<f32>,
}

impl MelStatistics {
    /// Looks at recordings spread evenly over the corpus. Those that cannot be read are passed over; with none that can,
    /// that is the error. Always on the CPU, so that every device trains on the same numbers.
    pub fn measure(material: &TrainingSet, recordings: &dyn Recordings) -> Result<MelStatistics, TrainError> {
        let rows = material.rows();
        let mut featurizer = Featurizer::new(material.features()).map_err(TrainError::features)?;
        let (mut clip, mut features) = (Clip::default(), Features::default());
        let (mut sums, mut squares, mut frames) = (vec![0.0_f64; material.features().n_mels], 0.0_f64, 0_usize);
        let mut last_error = None;
        let step = rows.len().div_ceil(LOOKED_AT).max(1);
        for (index, _) in rows.iter().step_by(step) {
            let Some(sample) = material.dataset().get(*index) else { continue };
            let made = recordings.load_into(&sample, &mut clip).map_err(TrainError::from);
            let made =
                made.and_then(|()| featurizer.clip_into(&clip, false, &mut features).map_err(TrainError::features));
            if let Err(error) = made {
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
        let numbers = (frames * sums.len()) as f64;
        let mean = sums.iter().sum::<f64>() / numbers;
        let deviation = (squares / numbers - mean * mean).max(1e-12).sqrt();
        let bands = sums.iter().map(|sum| (sum / frames as f64) as f32).collect();
        Ok(MelStatistics { mean: mean as f32, deviation: deviation as f32, bands })
    }

    /// The mean of each band, normalised like the spectra.
    pub fn normalised_bands(&self) -> Vec<f32> {
        self.bands.iter().map(|band| (band - self.mean) / self.deviation).collect()
    }
}
