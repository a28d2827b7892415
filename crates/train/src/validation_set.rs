//! The validation set: held-out utterances, laid out as batches of the first bucket.
//!
//! They are computed once, on the CPU, so that every device is validated on the same numbers, and stay in host memory: at
//! most 64 utterances.

use tandem_audio::Clip;
use tandem_corpus::{Dataset, Sample, SampleIndex};
use tandem_engine::NamedLayout;
use tandem_feed::{Features, Featurizer, REFERENCE_FRAMES, Recordings, TrainingSet};
use tandem_model::BatchShape;
use tandem_text::Tokens;

use crate::error::TrainError;

/// The largest validation set.
const MAX_UTTERANCES: usize = 64;

/// A batch of the validation set.
#[derive(Clone, Debug)]
pub struct ValidationBatch {
    /// All fields, in the layout of a slot.
    pub bytes: Vec<u8>,
    /// Frames of each row; 0 for an empty row.
    pub frames: Vec<u32>,
    /// Tokens of each row.
    pub tokens: Vec<u32>,
}

/// The validation set of a run.
#[derive(Clone, Debug, Default)]
pub struct ValidationSet {
    /// The batches.
    pub batches: Vec<ValidationBatch>,
    /// Utterances in all batches.
    pub count: usize,
    /// The first token of each row.
    pub token_starts: Vec<u32>,
    /// Utterances that are longer than every row of the shape, or unreadable.
    pub left_out: usize,
}

/// The corpus of the validation set, and its rows there.
#[derive(Clone, Copy, Debug)]
pub struct ValidationRows<'a> {
    /// The corpus.
    pub dataset: &'a Dataset,
    /// Rows of the corpus.
    pub rows: &'a [SampleIndex],
}

/// An utterance whose features are computed.
struct Prepared {
    speaker: Option<String>,
    mel: Vec<f32>,
    frames: u32,
    tokens: Vec<i32>,
    /// The id of its language.
    language: u32,
}

impl ValidationSet {
    /// Prepares up to 64 of the rows, spread evenly. Texts are tokenized as those of `trained`.
    ///
    /// Fails if the storage of the corpus does: a set with fewer utterances would give other scores.
    pub fn prepare(
        ValidationRows { dataset, rows }: ValidationRows<'_>,
        trained: &TrainingSet,
        recordings: &dyn Recordings,
        shape: &BatchShape,
        layout: &NamedLayout,
    ) -> Result<ValidationSet, TrainError> {
        let step = rows.len().div_ceil(MAX_UTTERANCES).max(1);
        let chosen: Vec<SampleIndex> = rows.iter().step_by(step).copied().collect();
        let mut preparer = Preparer::new(dataset, trained, recordings)?;
        let mut prepared: Vec<Prepared> = Vec::with_capacity(chosen.len());
        for index in &chosen {
            prepared.extend(preparer.prepare(*index)?);
        }
        let token_starts = shape.text.starts().to_vec();
        let left_out = chosen.len() - prepared.len();
        let mut set = ValidationSet { left_out, token_starts, ..ValidationSet::default() };
        prepared.sort_by_key(|utterance| std::cmp::Reverse(utterance.frames));
        let silence = trained.features().silence();
        while !prepared.is_empty() {
            let (placed, rest) = fill(shape, prepared);
            if placed.iter().all(Option::is_none) {
                set.left_out += rest.len();
                break;
            }
            set.count += placed.iter().flatten().count();
            set.batches.push(lay_out(&placed, shape, layout, silence)?);
            prepared = rest;
        }
        Ok(set)
    }
}

/// Puts the longest utterance that fits into each row, starting with the longest row. Returns the rows and the rest.
fn fill(shape: &BatchShape, mut prepared: Vec<Prepared>) -> (Vec<Option<Prepared>>, Vec<Prepared>) {
    let mut by_length: Vec<u32> = (0..shape.count()).collect();
    by_length.sort_by_key(|row| std::cmp::Reverse(shape.mel.length(*row)));
    let mut placed: Vec<Option<Prepared>> = by_length.iter().map(|_| None).collect();
    for row in by_length {
        let (frames, tokens) = (shape.mel.length(row), shape.text.length(row));
        let fits = |utterance: &Prepared| utterance.frames <= frames && utterance.tokens.len() as u32 <= tokens;
        if let Some(at) = prepared.iter().position(fits) {
            placed[row as usize] = Some(prepared.remove(at));
        }
    }
    (placed, prepared)
}

fn lay_out(
    placed: &[Option<Prepared>],
    shape: &BatchShape,
    layout: &NamedLayout,
    silence: f32,
) -> Result<ValidationBatch, TrainError> {
    let mut bytes = vec![0; layout.bytes as usize];
    let mut put = |name: &str, first: usize, values: &[u8]| -> Result<(), TrainError> {
        let field = layout.find("input", name)?;
        bytes[field.offset as usize + first..][..values.len()].copy_from_slice(values);
        Ok(())
    };
    let lengths =
        |of: fn(&Prepared) -> u32| -> Vec<i32> { placed.iter().map(|row| row.as_ref().map_or(0, of) as i32).collect() };
    let frames = lengths(|row| row.frames);
    let tokens = lengths(|row| row.tokens.len() as u32);
    // Batches without text have no language.
    if layout.find("input", "language").is_ok() {
        put("language", 0, bytemuck::cast_slice(&lengths(|row| row.language)))?;
    }
    put("mel_lengths", 0, bytemuck::cast_slice(&frames))?;
    put("text_lengths", 0, bytemuck::cast_slice(&tokens))?;
    let references = reference_rows(placed);
    for (row, utterance) in placed.iter().enumerate() {
        let Some(utterance) = utterance else { continue };
        let bands = utterance.mel.len() / utterance.frames.max(1) as usize;
        let first_frame = shape.mel.starts()[row] as usize;
        put("mel", first_frame * bands * 4, bytemuck::cast_slice(&utterance.mel))?;
        put("text", shape.text.starts()[row] as usize * 4, bytemuck::cast_slice(&utterance.tokens))?;
        let reference_len = REFERENCE_FRAMES as usize * bands;
        let mut reference = vec![silence; reference_len];
        if let Some(other) = &placed[references[row]] {
            let len = other.mel.len().min(reference_len);
            reference[..len].copy_from_slice(&other.mel[..len]);
        }
        put("reference", row * reference_len * 4, bytemuck::cast_slice(&reference))?;
    }
    let count = |lengths: &[i32]| lengths.iter().map(|&length| length as u32).collect();
    Ok(ValidationBatch { frames: count(&frames), tokens: count(&tokens), bytes })
}

/// For each row the next one of the same speaker, so that an utterance is its own reference only if it is the only one.
fn reference_rows(placed: &[Option<Prepared>]) -> Vec<usize> {
    let speaker = |row: usize| placed[row].as_ref().map(|utterance| utterance.speaker.as_deref());
    let next = |row: usize| {
        let others = (1..placed.len()).map(|step| (row + step) % placed.len());
        others.into_iter().find(|other| speaker(*other).is_some() && speaker(*other) == speaker(row)).unwrap_or(row)
    };
    (0..placed.len()).map(next).collect()
}

/// Computes utterances on the CPU.
struct Preparer<'a> {
    dataset: &'a Dataset,
    trained: &'a TrainingSet,
    recordings: &'a dyn Recordings,
    featurizer: Featurizer,
    clip: Clip,
    features: Features,
    tokens: Tokens,
}

impl<'a> Preparer<'a> {
    fn new(dataset: &'a Dataset, trained: &'a TrainingSet, recordings: &'a dyn Recordings) -> Result<Self, TrainError> {
        let featurizer = Featurizer::new(trained.features()).map_err(TrainError::features)?;
        let (clip, features, tokens) = (Clip::default(), Features::default(), Tokens::default());
        Ok(Preparer { dataset, trained, recordings, featurizer, clip, features, tokens })
    }

    /// One utterance; `None` if it is unreadable, cannot be tokenized, or is too short for its tokens.
    fn prepare(&mut self, index: SampleIndex) -> Result<Option<Prepared>, TrainError> {
        let Some(sample) = self.dataset.get(index) else { return Ok(None) };
        match self.recordings.load_into(&sample, &mut self.clip) {
            Ok(()) => Ok(self.compute(&sample)),
            Err(error) if error.is_about_storage() => Err(error.into()),
            Err(_) => Ok(None),
        }
    }

    /// The utterance of the clip.
    fn compute(&mut self, sample: &Sample<'_>) -> Option<Prepared> {
        self.featurizer.clip_into(&self.clip, false, &mut self.features).ok()?;
        self.tokens.ids.clear();
        let tokenizer = self.trained.tokenizer()?;
        tokenizer.encode_into(sample, &mut self.tokens).ok()?;
        let frames = self.features.mel.num_frames() as u32;
        let tokens: Vec<i32> = self.tokens.ids.iter().map(|&id| id as i32).collect();
        let (speaker, mel) = (sample.speaker.map(str::to_owned), self.features.mel.values.clone());
        let language = tokenizer.language_of(sample);
        let is_usable = !tokens.is_empty() && tokens.len() as u32 <= frames;
        is_usable.then_some(Prepared { speaker, mel, frames, tokens, language })
    }
}

#[cfg(test)]
mod tests {
    use tandem_engine::{Rows, TensorType};

    use super::*;

    const BANDS: u32 = 2;

    fn prepared(speaker: &str, frames: u32, tokens: &[i32]) -> Prepared {
        let mel = (0..frames * BANDS).map(|i| (100 * frames + i) as f32).collect();
        let language = 10 + frames;
        Prepared { speaker: Some(speaker.to_owned()), mel, frames, tokens: tokens.to_vec(), language }
    }

    fn shape() -> BatchShape {
        BatchShape::new(Rows::new(&[2, 4, 3]), Rows::new(&[3, 6, 9]))
    }

    fn layout() -> NamedLayout {
        let mut layout = NamedLayout::default();
        let reference = 3 * REFERENCE_FRAMES as u32;
        for (name, dtype, dims) in [
            ("text", tandem_device::DType::I32, &[9][..]),
            ("text_lengths", tandem_device::DType::I32, &[3]),
            ("mel", tandem_device::DType::F32, &[18, BANDS]),
            ("mel_lengths", tandem_device::DType::I32, &[3]),
            ("reference", tandem_device::DType::F32, &[reference, BANDS]),
            ("language", tandem_device::DType::I32, &[3]),
        ] {
            layout.place(name, TensorType::new(dtype, dims)).unwrap();
        }
        layout
    }

    fn field<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(batch: &ValidationBatch, name: &str) -> Vec<T> {
        let layout = layout();
        let field = layout.find("input", name).unwrap();
        bytemuck::pod_collect_to_vec(&batch.bytes[field.offset as usize..][..field.ty.bytes() as usize])
    }

    #[test]
    fn every_utterance_has_its_own_row_of_text_and_spectrogram() {
        // Longest first, as they are sorted; one has too much text for the longest row, and goes into the next.
        let longest_first = vec![prepared("a", 6, &[1, 2, 3, 4]), prepared("b", 5, &[5, 6, 7]), prepared("a", 4, &[8])];
        let (placed, rest) = fill(&shape(), longest_first);
        assert_eq!(rest.len(), 1, "two rows hold more than three frames");
        let batch = lay_out(&placed, &shape(), &layout(), -9.0).unwrap();
        assert_eq!((&batch.frames, &batch.tokens), (&vec![0, 6, 5], &vec![0, 4, 3]));
        assert_eq!(field::<i32>(&batch, "text"), [0, 0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(field::<i32>(&batch, "text_lengths"), [0, 4, 3]);
        assert_eq!(field::<i32>(&batch, "mel_lengths"), [0, 6, 5]);
        assert_eq!(field::<i32>(&batch, "language"), [0, 16, 15]);
        let mel = field::<f32>(&batch, "mel");
        let row = |first: usize, frames: u32| mel[2 * first..][..2 * frames as usize].to_vec();
        assert_eq!((row(3, 6), row(9, 5)), (prepared("", 6, &[]).mel, prepared("", 5, &[]).mel));
    }

    #[test]
    fn a_reference_is_another_recording_of_the_speaker_if_there_is_one() {
        let placed = [Some(prepared("a", 1, &[1])), Some(prepared("b", 2, &[1])), Some(prepared("a", 3, &[1])), None];
        assert_eq!(reference_rows(&placed)[..3], [2, 1, 0]);
        let batch = lay_out(&placed[..3], &shape(), &layout(), -9.0).unwrap();
        let reference = field::<f32>(&batch, "reference");
        assert_eq!((reference[..6].to_vec(), reference[6]), (prepared("", 3, &[]).mel, -9.0));
    }
}
