//! The fields of a batch, and their layout in a slot.

use std::borrow::Cow;

use tandem_audio::FeatureSettings;
use tandem_device::bytes::{BLOCK_ALIGN, round_up};
use tandem_device::{Block, DType, View};

use crate::batch::shape::Bucket;

/// Mel bands of a frame.
pub const MELS: u64 = tandem_audio::N_MELS as u64;
/// Frames of the voice reference: 4.6 s.
pub const REFERENCE_FRAMES: u64 = tandem_audio::REFERENCE_FRAMES as u64;
/// Audio samples from one frame to the next.
pub const HOP_SAMPLES: u64 = tandem_audio::HOP_SAMPLES as u64;

/// One dimension of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dim {
    /// Utterances of the micro-batch.
    B,
    /// Tokens of all rows, back to back: row starts are in [`Bucket::token_starts`].
    Tokens,
    /// Frames of all rows, back to back: row starts are in [`Bucket::frame_starts`].
    Frames,
    /// Audio samples of all rows at the rate of the features, back to back: a hop for every frame.
    Samples,
    /// Frames of the voice reference.
    TRef,
    /// Mel bands of a frame.
    Mels,
}

impl Dim {
    fn size(self, bucket: &Bucket, sizes: FeatureSizes) -> u64 {
        match self {
            Dim::B => bucket.batch(),
            Dim::Tokens => bucket.tokens(),
            Dim::Frames => bucket.frames(),
            Dim::Samples => bucket.frames() * sizes.hop_samples,
            Dim::TRef => REFERENCE_FRAMES,
            Dim::Mels => sizes.mels,
        }
    }
}

/// The sizes that the shapes of a batch take from its features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureSizes {
    /// Mel bands of a frame.
    pub mels: u64,
    /// Samples from one frame to the next.
    pub hop_samples: u64,
    /// Samples per second.
    pub rate_hz: u32,
}

impl FeatureSizes {
    /// Those of the default features.
    pub const DEFAULT: FeatureSizes =
        FeatureSizes { mels: MELS, hop_samples: HOP_SAMPLES, rate_hz: tandem_audio::RATE_HZ };
}

impl From<&FeatureSettings> for FeatureSizes {
    fn from(settings: &FeatureSettings) -> FeatureSizes {
        let FeatureSettings { n_mels, hop_samples, rate_hz, .. } = *settings;
        FeatureSizes { mels: n_mels as u64, hop_samples: hop_samples as u64, rate_hz }
    }
}

/// A field of every batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldSpec {
    /// Its name.
    pub name: &'static str,
    /// Type of its elements.
    pub dtype: DType,
    /// Its shape, outermost first.
    pub dims: &'static [Dim],
}

/// The fields of a batch, in the order they are stored in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSchema {
    /// The fields.
    pub fields: Cow<'static, [FieldSpec]>,
    /// The sizes of their features.
    pub sizes: FeatureSizes,
}

/// A speech batch: text, log-mel, voice reference, speaker, language, pitch and energy.
pub const SPEECH: BatchSchema = BatchSchema {
    sizes: FeatureSizes::DEFAULT,
    fields: Cow::Borrowed(&[
        FieldSpec { name: "text", dtype: DType::I32, dims: &[Dim::Tokens] },
        FieldSpec { name: "text_lengths", dtype: DType::I32, dims: &[Dim::B] },
        FieldSpec { name: "mel", dtype: DType::F32, dims: &[Dim::Frames, Dim::Mels] },
        FieldSpec { name: "mel_lengths", dtype: DType::I32, dims: &[Dim::B] },
        FieldSpec { name: "reference", dtype: DType::F32, dims: &[Dim::B, Dim::TRef, Dim::Mels] },
        FieldSpec { name: "speaker", dtype: DType::I32, dims: &[Dim::B] },
        FieldSpec { name: "language", dtype: DType::I32, dims: &[Dim::B] },
        FieldSpec { name: "pitch", dtype: DType::F32, dims: &[Dim::Frames] },
        FieldSpec { name: "energy", dtype: DType::F32, dims: &[Dim::Frames] },
    ]),
};

/// The layout of a batch of one bucket in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Each field, in order.
    pub fields: Vec<Placed>,
    /// Bytes of all fields, a multiple of the block size.
    pub bytes: u64,
    /// The sizes of their features.
    pub sizes: FeatureSizes,
}

/// A field and its place in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The field.
    pub field: FieldSpec,
    /// Its shape in this bucket, outermost first.
    pub shape: Vec<u64>,
    /// Offset of its first byte: a multiple of the block size.
    pub offset: u64,
    /// Its length, without the gap before the next field.
    pub bytes: u64,
}

impl Layout {
    /// The layout of the same fields for a batch of another shape.
    pub(crate) fn reshaped(&self, bucket: &Bucket) -> Layout {
        Layout::of(self.fields.iter().map(|placed| placed.field), bucket, self.sizes)
    }

    fn of(specs: impl Iterator<Item = FieldSpec>, bucket: &Bucket, sizes: FeatureSizes) -> Layout {
        let (mut offset, mut fields) = (0, Vec::new());
        for field in specs {
            let shape: Vec<u64> = field.dims.iter().map(|dim| dim.size(bucket, sizes)).collect();
            let bytes = shape.iter().product::<u64>() * field.dtype.bytes();
            fields.push(Placed { field, shape, offset, bytes });
            offset = round_up(offset + bytes, BLOCK_ALIGN);
        }
        Layout { fields, bytes: offset, sizes }
    }
}

impl BatchSchema {
    /// The layout of a batch of `bucket`.
    pub fn layout(&self, bucket: &Bucket) -> Layout {
        Layout::of(self.fields.iter().copied(), bucket, self.sizes)
    }

    /// Whether it has a field of this name.
    pub fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field.name == name)
    }

    /// Bytes of a slot: enough for a batch of any bucket.
    pub fn slot_bytes(&self, buckets: &[Bucket]) -> u64 {
        buckets.iter().map(|bucket| self.layout(bucket).bytes).max().unwrap_or(0)
    }
}

/// The memory of field `name` of a batch stored in `slot`; none if the schema has no such field.
pub(crate) fn field_in<'a>(layout: &Layout, slot: &'a Block, name: &str) -> Option<View<'a>> {
    let placed = layout.fields.iter().find(|placed| placed.field.name == name)?;
    Some(slot.part(placed.offset, placed.bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::shape::RowShape;

    #[test]
    fn fields_are_aligned_and_do_not_overlap() {
        let row = |frames, tokens| RowShape { frames, tokens };
        let ragged = Bucket::new([row(8, 3), row(24, 1), row(504, 90)]);
        for bucket in [Bucket::even(1000, 200, 16), Bucket::even(8, 1, 1), ragged] {
            let layout = SPEECH.layout(&bucket);
            let mut end = 0;
            for placed in &layout.fields {
                assert_eq!(placed.offset % BLOCK_ALIGN, 0);
                assert!(placed.offset >= end, "{}", placed.field.name);
                end = placed.offset + placed.bytes;
            }
            assert!(layout.bytes >= end && layout.bytes.is_multiple_of(BLOCK_ALIGN));
        }
    }

    #[test]
    fn a_usual_batch_has_the_expected_size() {
        let bucket = Bucket::even(1000, 200, 16);
        let layout = SPEECH.layout(&bucket);
        let mel = layout.fields.iter().find(|placed| placed.field.name == "mel").unwrap();
        assert_eq!((mel.shape.as_slice(), mel.bytes), (&[16_000, 80][..], 5_120_000));
        assert_eq!(layout.bytes, 12_800 + 256 + 5_120_000 + 256 + 2_048_000 + 256 + 256 + 64_000 + 64_000);
    }
}
