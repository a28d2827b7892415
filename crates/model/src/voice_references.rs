//! The voices of a checkpoint: for each speaker a reference mel spectrogram of a few seconds, the input of the reference
//! encoder.
//!
//! They are tensors beside the weights, `[REFERENCE_FRAMES, mels]`, named [`VoiceReferences::PREFIX`] and the speaker. A
//! corpus without speaker names has one voice, whose name is empty. This is a pure value: others read and write the files.

use std::collections::BTreeMap;

use tandem_audio::REFERENCE_FRAMES;

/// Reference mel spectrograms by speaker, not normalised.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VoiceReferences {
    voices: BTreeMap<String, Vec<f32>>,
}

impl VoiceReferences {
    /// Prefix of the names of the tensors.
    pub const PREFIX: &str = "reference.";
    /// Maximum number of voices: 32 MB.
    pub const MAX_VOICES: usize = 256;

    /// Adds the voice of `speaker`, unless it is there already or there are [`VoiceReferences::MAX_VOICES`]; returns whether it was
    /// added. `mel` is the mel spectrogram of an utterance with at least one frame; see [`reference_of`].
    pub fn add(&mut self, speaker: &str, mel: &[f32], mels: usize) -> bool {
        if self.voices.len() >= VoiceReferences::MAX_VOICES || self.voices.contains_key(speaker) {
            return false;
        }
        self.voices.insert(speaker.to_owned(), reference_of(mel, mels));
        true
    }

    /// Adds a voice from the tensor `name`; returns whether the tensor is a voice of `mels` bands.
    pub fn take(&mut self, name: &str, values: Vec<f32>, mels: usize) -> bool {
        let Some(speaker) = name.strip_prefix(VoiceReferences::PREFIX) else { return false };
        let complete = values.len() == REFERENCE_FRAMES as usize * mels;
        if complete {
            self.voices.insert(speaker.to_owned(), values);
        }
        complete
    }

    /// The tensors: names, and elements of `[REFERENCE_FRAMES, mels]`.
    pub fn tensors(&self) -> impl Iterator<Item = (String, &[f32])> {
        self.voices.iter().map(|(speaker, mel)| (format!("{}{speaker}", VoiceReferences::PREFIX), mel.as_slice()))
    }

    /// The speakers, in order.
    pub fn speakers(&self) -> impl Iterator<Item = &str> {
        self.voices.keys().map(String::as_str)
    }

    /// The reference of a speaker.
    pub fn get(&self, speaker: &str) -> Option<&[f32]> {
        self.voices.get(speaker).map(Vec::as_slice)
    }

    /// The first speaker and its reference: the default voice.
    pub fn first(&self) -> Option<(&str, &[f32])> {
        self.voices.iter().next().map(|(speaker, mel)| (speaker.as_str(), mel.as_slice()))
    }
}

/// A reference from a mel spectrogram of any length: the loudest [`REFERENCE_FRAMES`] consecutive frames, the earliest of
/// equals; a shorter one is repeated.
pub fn reference_of(mel: &[f32], mels: usize) -> Vec<f32> {
    let frames = mel.len() / mels;
    assert!(frames > 0 && mel.len() == frames * mels, "a mel spectrogram of {} elements in {mels} bands", mel.len());
    let length = REFERENCE_FRAMES as usize;
    let loudness: Vec<f64> = mel.chunks_exact(mels).map(|frame| frame.iter().map(|x| f64::from(*x)).sum()).collect();
    let mut sum: f64 = loudness.iter().take(length).sum();
    let (mut best, mut first) = (sum, 0);
    for next in length..frames {
        sum += loudness[next] - loudness[next - length];
        if sum > best {
            (best, first) = (sum, next + 1 - length);
        }
    }
    mel[first * mels..].iter().cycle().take(length * mels).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two bands: the index of the frame, and its loudness.
    fn mel(frames: usize, loud: std::ops::Range<usize>) -> Vec<f32> {
        (0..frames).flat_map(|t| [t as f32 * 1e-3, if loud.contains(&t) { 5.0 } else { -5.0 }]).collect()
    }

    #[test]
    fn the_reference_is_the_loudest_section_and_a_short_one_is_repeated() {
        let check = |frames: usize, loud: std::ops::Range<usize>, expected: [usize; 3]| {
            let reference = reference_of(&mel(frames, loud), 2);
            assert_eq!(reference.len(), 800);
            let at = |frame: usize| (reference[2 * frame] * 1e3).round() as usize;
            assert_eq!([at(0), at(1), at(399)], expected, "{frames}");
        };
        check(400, 0..400, [0, 1, 399]);
        check(1000, 500..900, [500, 501, 899]);
        check(1000, 950..1000, [600, 601, 999]);
        check(3, 0..3, [0, 1, 0]);
        check(1, 0..1, [0, 0, 0]);
    }

    #[test]
    fn voices_round_trip_through_tensors() {
        let mut voices = VoiceReferences::default();
        assert!(voices.add("p2", &mel(7, 0..3), 2) && voices.add("", &mel(500, 0..3), 2));
        assert!(!voices.add("p2", &mel(9, 0..3), 2), "the first utterance stays");
        let mut back = VoiceReferences::default();
        for (name, values) in voices.tensors() {
            assert!(back.take(&name, values.to_vec(), 2), "{name}");
        }
        assert_eq!(back, voices);
        assert_eq!(back.speakers().collect::<Vec<_>>(), ["", "p2"]);
        assert_eq!(back.first().map(|(speaker, _)| speaker), Some(""));
        assert!(!back.take("prior.weight", vec![0.0; 800], 2) && !back.take("reference.p3", vec![0.0; 802], 2));
        let added = (0..300).filter(|n| voices.add(&n.to_string(), &[0.0, 0.0], 2)).count();
        assert_eq!(added + 2, VoiceReferences::MAX_VOICES);
    }
}
