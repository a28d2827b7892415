//! The feed's part of the plan: the bytes its stages take from the two arenas and from pinned memory.
//!
//! A pure function of shapes, slots and sample rates. The stages get every size from here, so that the plan is exact to the
//! byte.

use std::ops::Range;
use std::sync::OnceLock;

use tandem_audio::{DeviceFeatures, FeatureSettings, TILE_SAMPLES};
use tandem_device::bytes::{BLOCK_ALIGN, round_up};
use tandem_device::transfer::{CopyCheck, staging_bytes};
use tandem_device::{DType, Route};
use tandem_events::Role;

use super::schema::BatchSchema;
use super::shape::{Bucket, starts};

/// Rows of an upload start at a multiple of this many samples: one vector load of int16.
const STEP_SAMPLES: u64 = 8;

/// Most bytes of cached pitch: 16 000 recordings of ten seconds.
const MAX_CACHED_PITCH_BYTES: u64 = 64 << 20;

/// The memory of a feed: how many blocks of which sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedPlan {
    /// The fields of a batch.
    pub schema: BatchSchema,
    /// Every shape of a batch.
    pub buckets: Vec<Bucket>,
    /// The route of batches to the model device.
    pub route: Route,
    /// Batch slots on the data side.
    pub data_slots: u64,
    /// Batch slots on the model side.
    pub model_slots: u64,
    /// Sample rates that the data device resamples from.
    pub rates_hz: Vec<u32>,
    /// Uploads on the data device: one is filled while features are made from another.
    pub uploads: u64,
    /// Uploads in pinned memory, which decode threads fill.
    pub pinned_uploads: u64,
    /// Bytes of the feature tables: [`TrainingSet::table_bytes`](crate::TrainingSet::table_bytes).
    pub table_bytes: u64,
    /// Recordings whose pitch stays cached on the data device: those with the lowest indices.
    pub cached_pitches: u64,
    /// One in so many batches is verified after its transfer; none if no batch is.
    pub verify_every: Option<u64>,
}

/// A byte range of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSpan {
    /// Offset of its first byte: a multiple of the block size.
    pub offset: u64,
    /// Its length, without the gap before the next span.
    pub bytes: u64,
}

/// The layout of one bucket's upload: one region, uploaded by one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UploadLayout {
    /// int16: recordings at their own sample rates, row after row.
    pub audio: ByteSpan,
    /// The sample at which each row of `audio` starts, then the end of the last row.
    pub audio_starts: Vec<u32>,
    /// The same after resampling to the features' rate.
    pub resampled_starts: Vec<u32>,
    /// The frame at which each row of the features starts, then the end of the last row.
    pub frame_starts: Vec<u32>,
    /// u32 `[batch]`: samples of each recording.
    pub in_lengths: ByteSpan,
    /// u32 `[batch]`: samples of each recording after resampling.
    pub out_lengths: ByteSpan,
    /// u32 `[batch]`: the sample rate of each, as an index into the plan's rates.
    pub rates: ByteSpan,
    /// u32 `[batch]`: the offset of each recording's cached pitch. Only if pitch is cached.
    pub pitch_offsets: Option<ByteSpan>,
    /// The field `text`, as in the slot; none if the schema has no such field. The same for the next five.
    pub text: Option<ByteSpan>,
    /// `text_lengths`.
    pub text_lengths: Option<ByteSpan>,
    /// `mel_lengths`.
    pub mel_lengths: Option<ByteSpan>,
    /// `waveform_lengths`; also with a field `waveform` alone, whose kernel reads them.
    pub waveform_lengths: Option<ByteSpan>,
    /// `speaker`.
    pub speaker: Option<ByteSpan>,
    /// `language`.
    pub language: Option<ByteSpan>,
    /// u32 `[batch, 2]`: the source row and first frame of each voice reference. Only with a `reference` field.
    pub picks: Option<ByteSpan>,
    /// Bytes of the upload, a multiple of the block size.
    pub bytes: u64,
}

/// Bytes of the feature tables if every recording has the features' rate. Computed once.
pub fn plain_table_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| match DeviceFeatures::table_bytes(&FeatureSettings::default(), &[]) {
        Ok(bytes) => bytes,
        Err(error) => unreachable!("the default settings are supported: {error}"),
    })
}

impl ByteSpan {
    /// Its bytes.
    pub fn range(self) -> Range<u64> {
        self.offset..self.offset + self.bytes
    }
}

impl FeedPlan {
    /// Bytes of a slot: enough for a batch of any bucket.
    pub fn slot_bytes(&self) -> u64 {
        self.schema.slot_bytes(&self.buckets)
    }

    /// The layout of an upload of `bucket`.
    pub fn upload(&self, bucket: &Bucket) -> UploadLayout {
        let num_samples = self.row_samples(bucket).sum::<u64>();
        let fields = self.schema.layout(bucket).fields;
        let mut bytes = 0;
        let mut span = |length: u64| {
            let offset = bytes;
            bytes = round_up(offset + length, BLOCK_ALIGN);
            ByteSpan { offset, bytes: length }
        };
        let field = |name: &str| fields.iter().find(|placed| placed.field.name == name).map(|placed| placed.bytes);
        let row_bytes = bucket.batch() * DType::U32.bytes();
        UploadLayout {
            audio: span(num_samples * DType::I16.bytes()),
            audio_starts: narrow(starts(self.row_samples(bucket))),
            resampled_starts: narrow(starts(self.resampled_samples(bucket))),
            frame_starts: narrow(bucket.frame_starts()),
            in_lengths: span(row_bytes),
            out_lengths: span(row_bytes),
            rates: span(row_bytes),
            pitch_offsets: (self.cached_pitch_bytes() > 0).then(|| span(row_bytes)),
            text: field("text").map(&mut span),
            text_lengths: field("text_lengths").map(&mut span),
            mel_lengths: field("mel_lengths").map(&mut span),
            waveform_lengths: field("waveform_lengths").or(field("waveform").map(|_| row_bytes)).map(&mut span),
            speaker: field("speaker").map(&mut span),
            language: field("language").map(&mut span),
            picks: field("reference").map(|_| span(2 * row_bytes)),
            bytes,
        }
    }

    /// Bytes of the largest upload. Every upload block has this size.
    pub fn upload_bytes(&self) -> u64 {
        self.buckets.iter().map(|bucket| self.upload(bucket).bytes).max().unwrap_or(0)
    }

    /// Bytes of the buffer for one resampled batch; 0 if no recording needs resampling.
    pub fn resampled_bytes(&self) -> u64 {
        if self.rates_hz.is_empty() {
            return 0;
        }
        let bytes = |bucket: &Bucket| self.resampled_samples(bucket).sum::<u64>() * DType::I16.bytes();
        round_up(self.buckets.iter().map(bytes).max().unwrap_or(0), BLOCK_ALIGN)
    }

    /// Frames reserved for each recording's cached pitch: those of the longest row.
    pub(crate) fn pitch_stride_frames(&self) -> u64 {
        longest_row(&self.buckets)
    }

    /// Bytes of the cached pitch; 0 if batches have no pitch.
    pub fn cached_pitch_bytes(&self) -> u64 {
        let frames = if self.schema.has("pitch") { self.cached_pitches * self.pitch_stride_frames() } else { 0 };
        round_up(frames * DType::F32.bytes(), BLOCK_ALIGN)
    }

    /// How many of so many recordings have their pitch cached: as many as fit in 64 MB.
    pub fn pitches_worth_caching(buckets: &[Bucket], recordings: u64) -> u64 {
        recordings.min(MAX_CACHED_PITCH_BYTES / (longest_row(buckets) * DType::F32.bytes()).max(1))
    }

    /// Bytes of the row start tables: three per shape, each with one number more than the shape has rows.
    pub fn row_table_bytes(&self) -> u64 {
        let words: u64 = self.buckets.iter().map(|bucket| 3 * (bucket.batch() + 1)).sum();
        round_up(words * DType::U32.bytes(), BLOCK_ALIGN)
    }

    /// Verified batches that can be in flight at once: those among the slots of the model side.
    pub fn num_checks(&self) -> u64 {
        match (self.route, self.verify_every) {
            // Nothing is copied.
            (Route::Handover, _) | (_, None) => 0,
            (_, Some(every)) => self.model_slots.div_ceil(every.max(1)),
        }
    }

    fn checksum_bytes(&self) -> u64 {
        self.num_checks() * CopyCheck::ARENA_BYTES
    }

    /// What the feed takes from the data role's arena.
    pub fn data_lines(&self) -> Vec<(&'static str, u64)> {
        let handed_over = if self.route == Route::Handover { self.slots_bytes(Role::Model) } else { 0 };
        let lines = [
            (DATA_SLOTS, self.slots_bytes(Role::Data)),
            (HANDED_OVER, handed_over),
            (UPLOADS, self.uploads * self.upload_bytes()),
            (RESAMPLED, self.resampled_bytes()),
            (TABLES, round_up(self.table_bytes, BLOCK_ALIGN)),
            (ROW_TABLES, self.row_table_bytes()),
            (CACHED_PITCH, self.cached_pitch_bytes()),
            (CHECKSUMS, self.checksum_bytes()),
        ];
        lines.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// What the feed takes from the model role's arena.
    pub fn model_lines(&self) -> Vec<(&'static str, u64)> {
        let slots = match self.route {
            Route::Handover => 0,
            Route::Peer | Route::PeerCopy | Route::Staged | Route::Bounce => self.slots_bytes(Role::Model),
        };
        let lines = [(MODEL_SLOTS, slots), (CHECKSUMS, self.checksum_bytes())];
        lines.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Bytes of the slots of `role`: what the other role's card accesses over a peer route.
    pub fn slots_bytes(&self, role: Role) -> u64 {
        let slots = match role {
            Role::Data => self.data_slots,
            Role::Model => self.model_slots,
        };
        slots * self.slot_bytes()
    }

    /// What the feed takes of pinned memory.
    pub fn pinned_lines(&self) -> Vec<(&'static str, u64)> {
        let lines = [
            (PINNED_UPLOADS, self.pinned_uploads * self.upload_bytes()),
            (STAGING, staging_bytes(self.route, self.slot_bytes())),
            (CHECKSUMS, self.num_checks() * CopyCheck::PINNED_BYTES),
        ];
        lines.into_iter().filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Pinned bytes of the feed: the sum of [`pinned_lines`](FeedPlan::pinned_lines).
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned_lines().into_iter().map(|(_, bytes)| bytes).sum()
    }

    /// The same over another route, for a transfer that may fall back to it.
    pub fn pinned_bytes_over(&self, route: Route) -> u64 {
        FeedPlan { route, ..self.clone() }.pinned_bytes()
    }

    /// Samples reserved for each row of `audio`: enough at every rate of the plan.
    fn row_samples(&self, bucket: &Bucket) -> impl Iterator<Item = u64> {
        let features_hz = self.schema.sizes.rate_hz;
        let rate_hz = self.rates_hz.iter().copied().max().unwrap_or(features_hz).max(features_hz);
        self.resampled_samples(bucket).map(move |samples| {
            let at_rate = (samples * u64::from(rate_hz)).div_ceil(features_hz.into());
            round_up(at_rate, STEP_SAMPLES)
        })
    }

    /// Samples reserved for each row at the features' rate: its frames cover all but less than one hop of its recording.
    fn resampled_samples(&self, bucket: &Bucket) -> impl Iterator<Item = u64> {
        let hop_samples = self.schema.sizes.hop_samples;
        bucket.rows().iter().map(move |row| round_up((row.frames + 1) * hop_samples, TILE_SAMPLES.into()))
    }
}

/// Names of the lines. The arenas use the same names.
pub(crate) const DATA_SLOTS: &str = "prefetched batches";
pub(crate) const HANDED_OVER: &str = "slots handed over";
pub(crate) const UPLOADS: &str = "upload int16";
pub(crate) const RESAMPLED: &str = "resampled int16";
pub(crate) const TABLES: &str = "feature tables";
pub(crate) const ROW_TABLES: &str = "row tables";
pub(crate) const CACHED_PITCH: &str = "cached pitch";
pub(crate) const MODEL_SLOTS: &str = "input slots";
pub(crate) const CHECKSUMS: &str = "transfer checksums";
/// Pinned memory has no owners by name: these are for people.
const PINNED_UPLOADS: &str = "pinned uploads";
const STAGING: &str = "bounce staging";

/// Frames of the longest row of any shape.
fn longest_row(buckets: &[Bucket]) -> u64 {
    buckets.iter().map(Bucket::longest_frames).max().unwrap_or(0)
}

/// Start offsets as kernels read them. Saturates at eight gigabytes of samples, more than any card has room for.
fn narrow(starts: impl Iterator<Item = u64>) -> Vec<u32> {
    starts.map(|start| u32::try_from(start).unwrap_or(u32::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::schema::{Dim, FeatureSizes, FieldSpec, SPEECH};
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
            cached_pitches: 0,
            verify_every: None,
        }
    }

    /// Rows of 104 to 504 frames.
    fn ragged() -> Bucket {
        Bucket::new((1..=16).map(|i| RowShape { frames: 104 + i / 2 * 50 / 8 * 8, tokens: 5 + 5 * i }))
    }

    fn parts(upload: &UploadLayout) -> Vec<ByteSpan> {
        let UploadLayout { audio, in_lengths, out_lengths, rates, .. } = *upload;
        let (speaker, language) = (upload.speaker, upload.language);
        let fields = [upload.text, upload.text_lengths, upload.mel_lengths, speaker, language, upload.picks];
        [audio, in_lengths, out_lengths, rates].into_iter().chain(fields.into_iter().flatten()).collect()
    }

    #[test]
    fn parts_of_an_upload_are_aligned_and_do_not_overlap() {
        for rates_hz in [&[][..], &[8_000, 44_100]] {
            let plan = plan(rates_hz, Route::Peer);
            for bucket in &plan.buckets {
                let upload = plan.upload(bucket);
                let parts = parts(&upload);
                assert_eq!(parts.len(), 10);
                assert!(parts.iter().all(|part| part.offset.is_multiple_of(BLOCK_ALIGN) && part.bytes > 0));
                assert!(parts.windows(2).all(|pair| pair[0].range().end <= pair[1].offset));
                assert!(parts.last().unwrap().range().end <= upload.bytes && upload.bytes.is_multiple_of(BLOCK_ALIGN));
                assert!(upload.bytes <= plan.upload_bytes());
            }
        }
    }

    #[test]
    fn a_field_is_uploaded_only_if_the_schema_has_it() {
        const MEL: &[FieldSpec] = &[FieldSpec { name: "mel", dtype: DType::F32, dims: &[Dim::Frames] }];
        let mut plan = plan(&[], Route::Peer);
        let speech = plan.upload(&plan.buckets[1]);
        assert_eq!(speech.text.unwrap().bytes, 16 * 200 * 4);
        assert_eq!((speech.speaker.unwrap().bytes, speech.picks.unwrap().bytes), (64, 128));
        plan.schema.fields = MEL.into();
        assert_eq!(parts(&plan.upload(&plan.buckets[1])).len(), 4);
    }

    #[test]
    fn the_longest_recording_of_a_part_fits_its_row_at_every_rate() {
        let settings = FeatureSettings::default();
        assert_eq!(FeatureSizes::from(&settings), SPEECH.sizes);
        for rate_hz in [8_000, 16_000, 22_050, 24_000, 44_100, 47_999, 48_000] {
            let rates: &[u32] = if rate_hz == settings.rate_hz { &[] } else { &[rate_hz] };
            let plan = plan(rates, Route::Peer);
            let upload = plan.upload(&plan.buckets[0]);
            let frames = |samples: usize| crate::featurize::on_host::num_frames(samples, rate_hz, &settings) as u64;
            for (row, bounds) in plan.buckets[0].rows().iter().zip(upload.audio_starts.windows(2)).step_by(5) {
                // The most samples whose frames fit the row.
                let longest = (1..).take_while(|samples| frames(*samples) <= row.frames).last().unwrap();
                let room = bounds[1] - bounds[0];
                assert!(longest as u32 <= room && bounds[0].is_multiple_of(8), "{rate_hz}: {longest} {room}");
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
        // Spans of 64 bytes take a block each, and so do the picks of 128.
        assert_eq!(plan.upload_bytes(), 16 * 1001 * 256 * 2 + 12_800 + 8 * 256);
        assert_eq!(plan.pinned_bytes(), 3 * plan.upload_bytes() + 2 * plan.slot_bytes());
    }

    #[test]
    fn a_bounce_is_staged_in_pinned_memory_and_no_other_route_is() {
        for route in Route::LADDER.into_iter().chain([Route::Handover]) {
            let plan = plan(&[], route);
            let staging = if route == Route::Bounce { 2 * plan.slot_bytes() } else { 0 };
            assert_eq!(plan.pinned_bytes(), 3 * plan.upload_bytes() + staging, "{}", route.name());
            assert_eq!(plan.pinned_bytes_over(Route::Bounce), 3 * plan.upload_bytes() + 2 * plan.slot_bytes());
        }
    }

    #[test]
    fn checksums_are_planned_for_the_verified_batches_among_the_slots_of_the_model_side() {
        for (every, checks) in [(1, 4), (2, 2), (3, 2), (4, 1), (1000, 1)] {
            let off = plan(&[], Route::Peer);
            let on = FeedPlan { verify_every: Some(every), ..off.clone() };
            let line = ("transfer checksums", checks * 256);
            assert_eq!((on.data_lines().last(), on.model_lines().last()), (Some(&line), Some(&line)), "{every}");
            assert_eq!(on.pinned_bytes() - off.pinned_bytes(), checks * 512);
        }
        let handed_over = FeedPlan { verify_every: Some(1), ..plan(&[], Route::Handover) };
        assert_eq!(handed_over.data_lines(), plan(&[], Route::Handover).data_lines(), "nothing is copied");
    }
}
