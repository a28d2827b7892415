//! The voices of a checkpoint: one reference recording per speaker, so that synthesis does not need the corpus.

use std::collections::BTreeMap;

use tandem_audio::Clip;
use tandem_corpus::SampleIndex;
use tandem_feed::{Features, Featurizer, REFERENCE_FRAMES, Recordings, TrainingSet};
use tandem_model::VoiceReferences;

use crate::error::TrainError;

/// The utterance that represents a speaker.
struct Chosen {
    index: SampleIndex,
    frames: u64,
}

/// One utterance per speaker: the first that is as long as a reference, else the longest. Speakers with an unreadable
/// utterance are left out. Always on the CPU. Cost: decodes one recording per speaker, at most
/// [`VoiceReferences::MAX_VOICES`]. Fails if the storage of the corpus does.
pub fn gather_voices(set: &TrainingSet, recordings: &dyn Recordings) -> Result<VoiceReferences, TrainError> {
    let mut chosen: BTreeMap<&str, Chosen> = BTreeMap::new();
    for (index, extent) in set.rows() {
        let Some(sample) = set.dataset().get(*index) else { continue };
        // Speaker names live as long as the corpus.
        let speaker = sample.speaker.unwrap_or_default();
        let frames = u64::from(extent.frames);
        let best = chosen.entry(speaker).or_insert(Chosen { index: *index, frames });
        if best.frames < REFERENCE_FRAMES && frames > best.frames {
            *best = Chosen { index: *index, frames };
        }
    }
    let mut featurizer = Featurizer::new(set.features()).map_err(TrainError::features)?;
    let (mut clip, mut features) = (Clip::default(), Features::default());
    let mut voices = VoiceReferences::default();
    for (speaker, Chosen { index, .. }) in chosen.into_iter().take(VoiceReferences::MAX_VOICES) {
        let Some(sample) = set.dataset().get(index) else { continue };
        let is_read = match recordings.load_into(&sample, &mut clip) {
            Err(error) if error.is_about_storage() => return Err(error.into()),
            read => read.is_ok(),
        };
        if is_read && featurizer.clip_into(&clip, false, &mut features).is_ok() && !features.mel.values.is_empty() {
            voices.add(speaker, &features.mel.values, set.features().n_mels);
        }
    }
    Ok(voices)
}
