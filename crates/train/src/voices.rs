//! The voices a checkpoint keeps, one recording of each speaker: with them a text can be said without the corpus.

use std::collections::BTreeMap;

use tandem_audio::Clip;
use tandem_corpus::SampleIndex;
use tandem_feed::{Features, Featurizer, REFERENCE_FRAMES, Recordings, TrainingSet};
use tandem_model::VoiceReferences;

use crate::error::TrainError;

/// One utterance of each speaker: the first that is as long as a reference, else the longest. Speakers whose utterance cannot be
/// read are left out. Always on the CPU. Cost: a recording per speaker is decoded, at most [`VoiceReferences::MOST`].
pub fn gather(material: &TrainingSet, recordings: &dyn Recordings) -> Result<VoiceReferences, TrainError> {
    let mut chosen: BTreeMap<&str, (SampleIndex, u64)> = BTreeMap::new();
    for (index, extent) in material.rows() {
        let Some(sample) = material.dataset().get(*index) else { continue };
        // Names of speakers live as long as the corpus.
        let speaker = sample.speaker.unwrap_or_default();
        let frames = u64::from(extent.frames);
        let best = chosen.entry(speaker).or_insert((*index, frames));
        if best.1 < REFERENCE_FRAMES && frames > best.1 {
            *best = (*index, frames);
        }
    }
    let mut featurizer = Featurizer::new(material.features()).map_err(TrainError::features)?;
    let (mut clip, mut features) = (Clip::default(), Features::default());
    let mut voices = VoiceReferences::default();
    for (speaker, (index, _)) in chosen.into_iter().take(VoiceReferences::MOST) {
        let Some(sample) = material.dataset().get(index) else { continue };
        let is_read = recordings.load_into(&sample, &mut clip).is_ok();
        if is_read && featurizer.clip_into(&clip, false, &mut features).is_ok() && !features.mel.values.is_empty() {
            voices.add(speaker, &features.mel.values, material.features().n_mels);
        }
    }
    Ok(voices)
}
