//! What a feed serves: a training set, its order, its shapes. Fixed when the feed starts, and shared by every stage.

use std::sync::Arc;

use tandem_audio::FeatureSettings;
use tandem_corpus::{Batch, Cursor, Order, Sample, SampleIndex, Shard};

use super::recordings::Recordings;
use crate::FeedError;
use crate::batch::feed_plan::{FeedPlan, UploadLayout};
use crate::batch::schema::Layout;
use crate::batch::shape::{Bucket, RowShape};
use crate::feed::spec::FeedSpec;
use crate::survey::training_set::TrainingSet;

/// What every stage reads and none changes.
pub(crate) struct Input {
    pub(crate) training_set: Arc<TrainingSet>,
    pub(crate) order: Order,
    /// Which of its batches are served.
    pub(crate) shard: Shard,
    pub(crate) plan: FeedPlan,
    /// One per bucket.
    layouts: Vec<BatchLayout>,
    pub(crate) seed: u64,
    pub(crate) recordings: Arc<dyn Recordings>,
}

/// The memory layouts of a batch of one bucket.
pub(crate) struct BatchLayout {
    /// Index of the bucket in the plan.
    pub(crate) index: usize,
    pub(crate) bucket: Bucket,
    pub(crate) upload: UploadLayout,
    pub(crate) slot: Arc<Layout>,
}

impl Input {
    /// Fails with [`FeedError::Corpus`] if no row fits the shapes, and with [`FeedError::BatchTooLarge`].
    pub(crate) fn new(spec: &FeedSpec) -> Result<Input, FeedError> {
        let FeedSpec { training_set, plan, seed, .. } = spec;
        assert_eq!(plan.buckets, spec.buckets.buckets(), "the memory of the feed is planned for other shapes");
        let order = match spec.evaluates {
            true => evaluation_order(training_set, &plan.buckets)?,
            false => spec.buckets.order(*seed),
        };
        let layout = |(index, bucket): (usize, &Bucket)| BatchLayout {
            index,
            bucket: bucket.clone(),
            upload: plan.upload(bucket),
            slot: Arc::new(plan.schema.layout(bucket)),
        };
        let layouts: Vec<BatchLayout> = plan.buckets.iter().enumerate().map(layout).collect();
        let samples = layouts.iter().map(|layout| layout.upload.audio.bytes / 2).max().unwrap_or(0);
        if samples > u64::from(u32::MAX) {
            return Err(FeedError::BatchTooLarge { samples });
        }
        Ok(Input {
            training_set: Arc::clone(training_set),
            order,
            shard: spec.shard,
            plan: plan.clone(),
            layouts,
            seed: *seed,
            recordings: Arc::clone(&spec.recordings),
        })
    }

    /// Where the next group of batches begins, one for each rank.
    pub(crate) fn next_group(&self, group: Cursor) -> Cursor {
        self.order.advance(group, u64::from(self.shard.world))
    }

    pub(crate) fn layout_of(&self, batch: &Batch) -> &BatchLayout {
        &self.layouts[batch.bucket]
    }

    pub(crate) fn features(&self) -> &FeatureSettings {
        self.training_set.features()
    }

    /// The speaker's number. Rows without a speaker share one number, after all named speakers.
    pub(crate) fn speaker(&self, index: SampleIndex) -> u32 {
        let samples = self.training_set.dataset().samples();
        samples.speaker_number(index).unwrap_or_else(|| samples.speakers().len() as u32)
    }

    /// The row of an index that `order` gave.
    pub(crate) fn sample(&self, index: SampleIndex) -> Sample<'_> {
        match self.training_set.dataset().get(index) {
            Some(sample) => sample,
            None => unreachable!("the order has rows of this corpus only"),
        }
    }
}

/// Every row that fits, once per epoch.
fn evaluation_order(training_set: &TrainingSet, buckets: &[Bucket]) -> Result<Order, FeedError> {
    let rows = |bucket: &Bucket| bucket.rows().iter().map(RowShape::extent).collect();
    let order = Order::evaluation(buckets.iter().map(rows).collect(), training_set.rows().iter().copied());
    order.map(|(order, _)| order).map_err(FeedError::Corpus)
}
