//! The feed's part of the plan: how many bytes its stages will take from the two arenas and from page-locked memory.
//!
//! A pure function of shapes, slots and rates. The stages ask here for every size, so that what is planned is what is
//! taken, to the byte.

use std::ops::Range;
use std::sync::OnceLock;

use tandem_audio::{DeviceFeatures, FeatureSettings};
use tandem_device::bytes::{BLOCK_ALIGN, round_up};
use tandem_device::{DType, Route};

use crate::batch::schema::{BatchSchema, HOP_SAMPLES};
use crate::batch::shape::{Bucket, starts};

/// Rate of the features: what everything is resampled to.
pub const RATE_HZ: u32 = 22_050;

/// Rows of an upload start at a multiple of so many samples: one vector load of int16.
const STEP_SAMPLES: u64 = 8;

/// Pitch that is kept at most: 16 000 recordings of ten seconds.
const MOST_KEPT_BYTES: u64 = 64 << 20;

/// What the feed holds, and in how many pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedPlan {
    /// What a batch is made of.
    pub schema: BatchSchema,
    /// Every shape a batch can have.
    pub buckets: Vec<Bucket>,
    /// How batches cross.
    pub route: Route,
    /// Batches that wait on the data side.
    pub data_slots: u64,
    /// Slots towards the model.
    pub model_slots: u64,
    /// Rates of recordings that are resampled on the data device.
    pub rates_hz: Vec<u32>,
    /// Uploads on the data device: one is filled while features are made of another.
    pub uploads: u64,
    /// Uploads in page-locked memory, which threads decode into.
    pub pinned_uploads: u64,
    /// Bytes of the tables features are made with: [`TrainingSet::table_bytes`](crate::TrainingSet::table_bytes).
    pub table_bytes: u64,
    /// Recordings whose pitch is kept on the data device once it was found: those with the lowest indices.
    pub kept_pitches: u64,
}

/// A part of an upload, in bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSpan {
    /// Where it starts: a multiple of the block size.
    pub offset: u64,
    /// How long it is, without the gap to the next.
    pub bytes: u64,
}

/// Where the parts of one bucket's upload lie: one region, which one copy brings up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadLayout {
    /// int16: recordings at their own rates, row after row.
    pub audio: ByteSpan,
    /// The sample at which each row begins there, and behind the last one the end.
    pub audio_starts: Vec<u32>,
    /// The same at the features' rate, where a batch is resampled.
    pub resampled_starts: Vec<u32>,
    /// The frame at which each row begins in features, and behind the last one the end.
    pub frame_starts: Vec<u32>,
    /// u32 `[batch]`: samples of each recording.
    pub in_lengths: ByteSpan,
    /// u32 `[batch]`: samples of each once it is at the features' rate.
    pub out_lengths: ByteSpan,
    /// u32 `[batch]`: the rate of each.
    pub rates: ByteSpan,
    /// u32 `[batch]`: where the pitch of each is kept. Only where it is.
    pub pitch_places: Option<ByteSpan>,
    /// The field of this name, as it will lie in the slot; none where the schema has none. The next three alike.
    pub text: Option<ByteSpan>,
    /// `text_lengths`.
    pub text_lengths: Option<ByteSpan>,
    /// `mel_lengths`.
    pub mel_lengths: Option<ByteSpan>,
    /// `speaker`.
    pub speaker: Option<ByteSpan>,
    /// u32 `[batch, 2]`: the row, and its first frame, that each reference is taken from. With a `reference` only.
    pub picks: Option<ByteSpan>,
    /// All of it, in whole blocks.
    pub bytes: u64,
}

/// Bytes of the tables when every recording has the features' rate. Computed once.
pub fn plain_table_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| match DeviceFeatures::table_bytes(&FeatureSettings::default(), &[]) {
        Ok(bytes) => bytes,
        Err(error) => unreachable!("the default settings are served: {error}"),
    })
}

impl ByteSpan {
    /// Its bytes.
    pub fn range(self) -> Range<u64> {
        self.offset..self.offset + self.bytes
    }
}

impl FeedPlan {
    /// Bytes of a slot: it takes a batch of any bucket.
    pub fn slot_bytes(&self) -> u64 {
        self.schema.slot_bytes(&self.buckets)
    }

    /// Where the parts of an upload of `bucket` lie.
    pub fn upload(&self, bucket: &Bucket) -> UploadLayout {
        let [audio_starts, resampled_starts, frame_starts] = self.starts(bucket);
        let num_samples = self.row_samples(bucket).sum::<u64>();
        let fields = self.schema.layout(bucket).fields;
        let mut bytes = 0;
        let mut span = |length: u64| {
            let offset = bytes;
            bytes = round_up(offset + length, BLOCK_ALIGN);
            ByteSpan { offset, bytes: length }
        };
        let field = |name: &str| fields.iter().find(|placed| placed.field.name == name).map(|placed| placed.bytes);
        // A u32 is as wide as an i32.
        let row_bytes = bucket.batch() * DType::I32.bytes();
        UploadLayout {
            audio: span(num_samples * DType::I16.bytes()),
            audio_starts,
            resampled_starts,
            frame_starts,
            in_lengths: span(row_bytes),
            out_lengths: span(row_bytes),
            rates: span(row_bytes),
            pitch_places: (self.cached_pitch_bytes() > 0).then(|| span(row_bytes)),
            text: field("text").map(&mut span),
            text_lengths: field("text_lengths").map(&mut span),
            mel_lengths: field("mel_lengths").map(&mut span),
            speaker: field("speaker").map(&mut span),
            picks: field("reference").map(|_| span(2 * row_bytes)),
            bytes,
        }
    }

    /// Bytes of the largest upload: what each of them is given.
    pub fn upload_bytes(&self) -> u64 {
        self.buckets.iter().map(|bucket| self.upload(bucket).bytes).max().unwrap_or(0)
    }

    /// Bytes of the one buffer for a batch of recordings at the features' rate; 0 when all have it already.
    pub fn resampled_bytes(&self) -> u64 {
        if self.rates_hz.is_empty() {
            return 0;
        }
        let bytes = |bucket: &Bucket| resampled_samples(bucket).sum::<u64>() * DType::I16.bytes();
        round_up(self.buckets.iter().map(bytes).max().unwrap_or(0), BLOCK_ALIGN)
    }

    /// Frames of the place that each recording's pitch is kept in: as many as the longest row has.
    pub(crate) fn pitch_place_frames(&self) -> u64 {
        self.buckets.iter().flat_map(|bucket| bucket.rows()).map(|row| row.frames).max().unwrap_or(0)
    }

    /// Bytes of the pitch that is kept; 0 where batches have none.
    pub fn cached_pitch_bytes(&self) -> u64 {
        let has_pitch = self.schema.fields.iter().any(|field| field.name == "pitch");
        let frames = if has_pitch { self.kept_pitches * self.pitch_place_frames() } else { 0 };
        round_up(frames * DType::F32.bytes(), BLOCK_ALIGN)
    }

    /// The most recordings whose pitch is worth keeping, of so many: 64 MB of it.
    pub fn pitches_worth_keeping(buckets: &[Bucket], recordings: u64) -> u64 {
        recordings.min(MOST_KEPT_BYTES / (longest_row(buckets) * DType::F32.bytes()).max(1))
    }

    /// Bytes of the tables of where rows begin: three of one number more than a shape has rows, for every shape.
    pub fn row_table_bytes(&self) -> u64 {
        let words: u64 = self.buckets.iter().map(|bucket| 3 * (bucket.batch() + 1)).sum();
        round_up(words * DType::U32.bytes(), BLOCK_ALIGN)
    }

    /// What the feed takes from the data role's arena.
    pub fn data_lines(&self) -> Vec<(&'static str, u64)> {
        let handed_over = if self.route == Route::Handover { self.model_slots * self.slot_bytes() } else { 0 };
        let lines = [
            (DATA_SLOTS, self.data_slots * self.slot_bytes()),
            (HANDED_OVER, handed_over),
            (UPLOADS, self.uploads * self.upload_bytes()),
            (RESAMPLED, self.resampled_bytes()),
            (TABLES, round_up(self.table_bytes, BLOCK_ALIGN)),
            (ROW_TABLES, self.row_table_bytes()),
            (KEPT_PITCH, self.cached_pitch_bytes()),
        ];
        lines.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// What the feed takes from the model role's arena.
    pub fn model_lines(&self) -> Vec<(&'static str, u64)> {
        match self.route {
            Route::Handover => Vec::new(),
            Route::Peer | Route::Bounce => vec![(MODEL_SLOTS, self.model_slots * self.slot_bytes())],
        }
    }

    /// Page-locked bytes that threads decode into.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned_uploads * self.upload_bytes()
    }

    /// Samples that each row has room for, at whatever rate.
    fn row_samples(&self, bucket: &Bucket) -> impl Iterator<Item = u64> {
        let rate_hz = self.rates_hz.iter().copied().max().unwrap_or(RATE_HZ).max(RATE_HZ);
        resampled_samples(bucket).map(move |samples| {
            let at_rate = (samples * u64::from(rate_hz)).div_ceil(RATE_HZ.into());
            round_up(at_rate, STEP_SAMPLES)
        })
    }

    /// Where rows begin in the upload, resampled, and in features.
    fn starts(&self, bucket: &Bucket) -> [Vec<u32>; 3] {
        // No card has room for so many samples that this would saturate: eight gigabytes of them.
        let narrow = |start: u64| u32::try_from(start).unwrap_or(u32::MAX);
        [
            starts(self.row_samples(bucket)).map(narrow).collect(),
            starts(resampled_samples(bucket)).map(narrow).collect(),
            bucket.frame_starts().map(narrow).collect(),
        ]
    }
}

/// Names of the lines, as the arenas know them too.
pub(crate) const DATA_SLOTS: &str = "prefetched batches";
pub(crate) const HANDED_OVER: &str = "slots handed over";
pub(crate) const UPLOADS: &str = "upload int16";
pub(crate) const RESAMPLED: &str = "resampled int16";
pub(crate) const TABLES: &str = "feature tables";
pub(crate) const ROW_TABLES: &str = "row tables";
pub(crate) const KEPT_PITCH: &str = "kept pitch";
pub(crate) const MODEL_SLOTS: &str = "input slots";

/// Frames of the longest row of any shape.
fn longest_row(buckets: &[Bucket]) -> u64 {
    buckets.iter().flat_map(|bucket| bucket.rows()).map(|row| row.frames).max().unwrap_or(0)
}

/// A recording of so many frames has less than a hop more than they cover.
fn resampled_samples(bucket: &Bucket) -> impl Iterator<Item = u64> {
    bucket.rows().iter().map(|row| (row.frames + 1) * HOP_SAMPLES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::schema::{Dim, FieldSpec, SPEECH};
    use crate::batch::shape::RowShape;
    use tandem_audio::FeatureSettings;

    fn plan(rates_hz: &[u32], route: Route) -> FeedPlan {
        FeedPlan {
            schema: SPEECH,
            buckets: vec![ragged(), Bucket::even(1000, 200, 16)],
            route,
            data_slots: 25,
            model_slots: 4,
            rates_hz: rates_hz.to_vec(),
            uploads: 2,
            pinned_uploads: 3,
            table_bytes: 1000,
            kept_pitches: 0,
        }
    }

    /// Rows of 104 to 504 frames.
    fn ragged() -> Bucket {
        Bucket::new((1..=16).map(|i| RowShape { frames: 104 + i / 2 * 50 / 8 * 8, tokens: 5 + 5 * i }))
    }

    fn parts(upload: &UploadLayout) -> Vec<ByteSpan> {
        let UploadLayout { audio, in_lengths, out_lengths, rates, .. } = *upload;
        let fields = [upload.text, upload.text_lengths, upload.mel_lengths, upload.speaker, upload.picks];
        [audio, in_lengths, out_lengths, rates].into_iter().chain(fields.into_iter().flatten()).collect()
    }

    #[test]
    fn parts_of_an_upload_are_aligned_and_do_not_overlap() {
        for rates_hz in [&[][..], &[8_000, 44_100]] {
            let plan = plan(rates_hz, Route::Peer);
            for bucket in &plan.buckets {
                let upload = plan.upload(bucket);
                let parts = parts(&upload);
                assert_eq!(parts.len(), 9);
                assert!(parts.iter().all(|part| part.offset.is_multiple_of(BLOCK_ALIGN) && part.bytes > 0));
                assert!(parts.windows(2).all(|pair| pair[0].range().end <= pair[1].offset));
                assert!(parts.last().unwrap().range().end <= upload.bytes && upload.bytes.is_multiple_of(BLOCK_ALIGN));
                assert!(upload.bytes <= plan.upload_bytes());
            }
        }
    }

    #[test]
    fn a_field_is_uploaded_exactly_when_the_schema_has_it() {
        const MEL: BatchSchema =
            BatchSchema { fields: &[FieldSpec { name: "mel", dtype: DType::F32, dims: &[Dim::Frames] }] };
        let mut plan = plan(&[], Route::Peer);
        let speech = plan.upload(&plan.buckets[1]);
        assert_eq!(speech.text.unwrap().bytes, 16 * 200 * 4);
        assert_eq!((speech.speaker.unwrap().bytes, speech.picks.unwrap().bytes), (64, 128));
        plan.schema = MEL;
        assert_eq!(parts(&plan.upload(&plan.buckets[1])).len(), 4);
    }

    #[test]
    fn the_longest_recording_of_a_part_fits_its_row_at_every_rate() {
        let settings = FeatureSettings::default();
        assert_eq!((settings.rate_hz, settings.hop_samples as u64), (RATE_HZ, HOP_SAMPLES));
        for rate_hz in [8_000, 16_000, 22_050, 24_000, 44_100, 47_999, 48_000] {
            let rates: &[u32] = if rate_hz == RATE_HZ { &[] } else { &[rate_hz] };
            let plan = plan(rates, Route::Peer);
            let upload = plan.upload(&plan.buckets[0]);
            let frames = |samples: usize| crate::featurize::on_host::num_frames(samples, rate_hz, &settings) as u64;
            for (row, place) in plan.buckets[0].rows().iter().zip(upload.audio_starts.windows(2)).step_by(5) {
                // The most samples that still make no more frames than the row has.
                let longest = (1..).take_while(|samples| frames(*samples) <= row.frames).last().unwrap();
                let room = place[1] - place[0];
                assert!(longest as u32 <= room && place[0].is_multiple_of(8), "{rate_hz}: {longest} {room}");
            }
            assert!(upload.resampled_starts.iter().all(|start| start.is_multiple_of(tandem_audio::TILE_SAMPLES)));
        }
    }

    #[test]
    fn lines_are_what_the_stages_take() {
        let check = |rates_hz: &[u32], route: Route, data: &[&str], model: &[&str]| {
            let plan = plan(rates_hz, route);
            let names = |lines: &[(&'static str, u64)]| lines.iter().map(|(name, _)| *name).collect::<Vec<_>>();
            let (data_lines, model_lines) = (plan.data_lines(), plan.model_lines());
            assert_eq!((names(&data_lines), names(&model_lines)), (data.to_vec(), model.to_vec()));
            assert!(data_lines.iter().chain(&model_lines).all(|(_, bytes)| bytes.is_multiple_of(BLOCK_ALIGN)));
            assert_eq!(data_lines[0].1, 25 * plan.slot_bytes());
        };
        let plain = ["prefetched batches", "upload int16", "feature tables", "row tables"];
        check(&[], Route::Peer, &plain, &["input slots"]);
        check(
            &[16_000],
            Route::Handover,
            &[
                "prefetched batches",
                "slots handed over",
                "upload int16",
                "resampled int16",
                "feature tables",
                "row tables",
            ],
            &[],
        );
        let plan = plan(&[], Route::Bounce);
        assert_eq!(plan.upload(&plan.buckets[1]).audio.bytes, 16 * 1001 * 256 * 2);
        // Rows of 64 bytes take a block each, and so do the pairs.
        assert_eq!(plan.upload_bytes(), 16 * 1001 * 256 * 2 + 12_800 + 7 * 256);
        assert_eq!(plan.pinned_bytes(), 3 * plan.upload_bytes());
    }
}
