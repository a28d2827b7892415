//! The voices a checkpoint keeps: for each speaker a few seconds of spectrum, from which the model makes the voice.
//!
//! Tensors beside the weights, `[REFERENCE_FRAMES, mels]`, named [`VoiceReferences::PREFIX`] and the speaker. A corpus
//! that names no speakers has one voice, whose name is empty. This is a pure value: who writes files gives it their
//! tensors, who reads them takes theirs from it.

use std::collections::BTreeMap;

use crate::batch_shape::REFERENCE_FRAMES;

/// Reference spectra by speaker, in the recordings' units (not normalised).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VoiceReferences {
    voices: BTreeMap<String, Vec<f32>>,
}

impl VoiceReferences {
    /// Begins the name of a voice's tensor.
    pub const PREFIX: &str = "reference.";
    /// Voices that are kept at most: 32 MB of them.
    pub const MOST: usize = 256;

    /// Keeps the voice of `speaker`, unless there is one already or there are [`VoiceReferences::MOST`]: says whether it
    /// was kept. `mel` is the spectrum of an utterance, of any number of frames but none; see [`reference_of`].
    pub fn add(&mut self, speaker: &str, mel: &[f32], mels: usize) -> bool {
        if self.voices.len() >= VoiceReferences::MOST || self.voices.contains_key(speaker) {
            return false;
        }
        self.voices.insert(speaker.to_owned(), reference_of(mel, mels));
        true
    }

    /// Takes a voice from the tensor `name`; says whether it is one, of `mels` bands.
    pub fn take(&mut self, name: &str, values: Vec<f32>, mels: usize) -> bool {
        let Some(speaker) = name.strip_prefix(VoiceReferences::PREFIX) else { return false };
        let whole = values.len() == REFERENCE_FRAMES as usize * mels;
        if whole {
            self.voices.insert(speaker.to_owned(), values);
        }
        whole
    }

    /// The tensors to write: names, and elements of `[REFERENCE_FRAMES, mels]`.
    pub fn tensors(&self) -> impl Iterator<Item = (String, &[f32])> {
        self.voices.iter().map(|(speaker, mel)| (format!("{}{speaker}", VoiceReferences::PREFIX), mel.as_slice()))
    }

    /// The speakers, in order.
    pub fn speakers(&self) -> impl Iterator<Item = &str> {
        self.voices.keys().map(String::as_str)
    }

    /// The spectrum of a speaker.
    pub fn get(&self, speaker: &str) -> Option<&[f32]> {
        self.voices.get(speaker).map(Vec::as_slice)
    }

    /// The first speaker and its spectrum: whose voice it is when nobody asks for another.
    pub fn first(&self) -> Option<(&str, &[f32])> {
        self.voices.iter().next().map(|(speaker, mel)| (speaker.as_str(), mel.as_slice()))
    }
}

/// A reference out of a spectrum of any number of frames: the [`REFERENCE_FRAMES`] in a row that are loudest on the whole,
/// the earliest of equals; a spectrum of fewer is repeated.
pub fn reference_of(mel: &[f32], mels: usize) -> Vec<f32> {
    let frames = mel.len() / mels;
    assert!(frames > 0 && mel.len() == frames * mels, "a spectrum of {} numbers in {mels} bands", mel.len());
    let wanted = REFERENCE_FRAMES as usize;
    let loudness: Vec<f64> = mel.chunks_exact(mels).map(|frame| frame.iter().map(|x| f64::from(*x)).sum()).collect();
    let mut sum: f64 = loudness.iter().take(wanted).sum();
    let (mut best, mut first) = (sum, 0);
    for next in wanted..frames {
        sum += loudness[next] - loudness[next - wanted];
        if sum > best {
            (best, first) = (sum, next + 1 - wanted);
        }
    }
    mel[first * mels..].iter().cycle().take(wanted * mels).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two bands whose numbers are the frame's, and its loudness.
    fn spectrum(frames: usize, loud: std::ops::Range<usize>) -> Vec<f32> {
        (0..frames).flat_map(|t| [t as f32 * 1e-3, if loud.contains(&t) { 5.0 } else { -5.0 }]).collect()
    }

    #[test]
    fn the_loudest_stretch_is_taken_and_a_short_one_repeated() {
        let check = |frames: usize, loud: std::ops::Range<usize>, expected: [usize; 3]| {
            let reference = reference_of(&spectrum(frames, loud), 2);
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
    fn voices_go_to_tensors_and_back() {
        let mut voices = VoiceReferences::default();
        assert!(voices.add("p2", &spectrum(7, 0..3), 2) && voices.add("", &spectrum(500, 0..3), 2));
        assert!(!voices.add("p2", &spectrum(9, 0..3), 2), "the first utterance stays");
        let mut back = VoiceReferences::default();
        for (name, values) in voices.tensors() {
            assert!(back.take(&name, values.to_vec(), 2), "{name}");
        }
        assert_eq!(back, voices);
        assert_eq!(back.speakers().collect::<Vec<_>>(), ["", "p2"]);
        assert_eq!(back.first().map(|(speaker, _)| speaker), Some(""));
        assert!(!back.take("prior.weight", vec![0.0; 800], 2) && !back.take("reference.p3", vec![0.0; 802], 2));
        let kept = (0..300).filter(|n| voices.add(&n.to_string(), &[0.0, 0.0], 2)).count();
        assert_eq!(kept + 2, VoiceReferences::MOST);
    }
}
