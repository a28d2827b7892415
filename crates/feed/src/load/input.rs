//! What a feed serves: a corpus, its order, its shapes. Fixed when the feed starts, and seen by every stage.

use std::sync::Arc;

use tandem_audio::{Clip, FeatureSettings};
use tandem_corpus::{Batch, Order, Sample, SampleIndex};
use tandem_device::Fault;

use crate::batch::feed_plan::{FeedPlan, UploadLayout};
use crate::batch::schema::Layout;
use crate::batch::shape::{Bucket, RowShape};
use crate::load::decode::load_into;
use crate::survey::training_set::TrainingSet;
use crate::{BucketPlan, FeedError};

/// Where recordings come from. In use it is [`FromFiles`]; tests and benchmarks bring their own.
pub trait Recordings: Send + Sync {
    /// Decodes what `sample` means into `clip`, whose memory is reused: mono, int16, at the recording's own rate.
    ///
    /// A failure makes the sample a bad one: it is listed, and another takes its place.
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError>;
}

/// Recordings where the corpus says they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct FromFiles;

impl Recordings for FromFiles {
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        load_into(&sample.audio, clip)
    }
}

/// What every stage needs to know, and none of them changes.
pub(crate) struct Input {
    pub(crate) material: Arc<TrainingSet>,
    pub(crate) order: Order,
    pub(crate) plan: FeedPlan,
    /// Of each bucket.
    shapes: Vec<BatchLayout>,
    pub(crate) seed: u64,
    pub(crate) recordings: Arc<dyn Recordings>,
    /// Work that is to be slow.
    pub(crate) plant: Fault,
}

/// Where everything of a batch of one bucket lies.
pub(crate) struct BatchLayout {
    /// Its place in the plan.
    pub(crate) index: usize,
    pub(crate) bucket: Bucket,
    pub(crate) upload: UploadLayout,
    pub(crate) slot: Arc<Layout>,
}

impl Input {
    /// Fails with [`FeedError::Corpus`] when nothing can be looked at, and with [`FeedError::BatchTooLarge`].
    pub(crate) fn new(
        material: Arc<TrainingSet>,
        (buckets, evaluates): (&BucketPlan, bool),
        plan: FeedPlan,
        seed: u64,
        recordings: Arc<dyn Recordings>,
    ) -> Result<Input, FeedError> {
        assert_eq!(plan.buckets, buckets.buckets(), "a feed whose memory was planned for other shapes");
        let order = match evaluates {
            true => evaluation(&material, &plan.buckets)?,
            false => buckets.order(seed),
        };
        let shape = |(index, bucket): (usize, &Bucket)| BatchLayout {
            index,
            bucket: bucket.clone(),
            upload: plan.upload(bucket),
            slot: Arc::new(plan.schema.layout(bucket)),
        };
        let shapes: Vec<BatchLayout> = plan.buckets.iter().enumerate().map(shape).collect();
        let samples = shapes.iter().map(|shape| shape.upload.audio.bytes / 2).max().unwrap_or(0);
        if samples > u64::from(u32::MAX) {
            return Err(FeedError::BatchTooLarge { samples });
        }
        Ok(Input { material, order, plan, shapes, seed, recordings, plant: Fault::from_env()? })
    }

    pub(crate) fn shape(&self, bucket: usize) -> &BatchLayout {
        &self.shapes[bucket]
    }

    pub(crate) fn shape_of(&self, batch: &Batch) -> &BatchLayout {
        self.shape(batch.bucket)
    }

    pub(crate) fn features(&self) -> &FeatureSettings {
        self.material.features()
    }

    /// The number of who speaks; rows that name nobody have one of their own, after all the named ones.
    pub(crate) fn speaker(&self, index: SampleIndex) -> u32 {
        let samples = self.material.dataset().samples();
        samples.speaker_number(index).unwrap_or_else(|| samples.speakers().len() as u32)
    }

    /// The row behind an index that `order` gave.
    pub(crate) fn sample(&self, index: SampleIndex) -> Sample<'_> {
        match self.material.dataset().get(index) {
            Some(sample) => sample,
            None => unreachable!("the order was made of rows of this corpus"),
        }
    }
}

/// Every row of `material` that fits, once.
fn evaluation(material: &TrainingSet, buckets: &[Bucket]) -> Result<Order, FeedError> {
    let rows = |bucket: &Bucket| bucket.rows().iter().map(RowShape::extent).collect();
    let order = Order::evaluation(buckets.iter().map(rows).collect(), material.rows().iter().copied());
    order.map(|(order, _)| order).map_err(FeedError::Corpus)
}
