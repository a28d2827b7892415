//! Where a loader is in its corpus: enough to continue with exactly the batches that it would have made.

use std::hash::Hasher as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tandem_feed::FeedState;
use twox_hash::XxHash3_64;

use crate::LoaderError;
use crate::plan::Prepared;

/// The version of stored states.
const VERSION: u32 = 1;

/// A stored state. The number of ranks is not a part of it: any number continues with the same batches.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoaderState {
    version: u32,
    order: OrderIdentity,
    pub(crate) feed: FeedState,
}

/// What decides which samples batch k of an epoch holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OrderIdentity {
    seed: u64,
    batch_size: u32,
    buckets: usize,
    utterances: usize,
    /// A hash of ids and lengths.
    corpus: String,
    /// Batches of an epoch.
    batches: u64,
}

impl OrderIdentity {
    pub(crate) fn of(prepared: &Prepared) -> OrderIdentity {
        let rows = &prepared.opened.rows;
        let mut hash = XxHash3_64::with_seed(0);
        for (index, extent) in rows.epoch_rows().iter() {
            // States name rows by their index.
            hash.write(&index.0.to_le_bytes());
            let id = rows.dataset().get(*index).map_or("", |sample| sample.id);
            hash.write(id.as_bytes());
            hash.write(&[0]);
            hash.write(&extent.frames.to_le_bytes());
            hash.write(&extent.tokens.to_le_bytes());
        }
        OrderIdentity {
            seed: prepared.options.given.seed,
            batch_size: prepared.buckets.batch(),
            buckets: prepared.buckets.buckets().len(),
            utterances: rows.rows().len(),
            corpus: format!("{:016x}", hash.finish()),
            batches: prepared.num_batches(),
        }
    }

    /// The state of a feed in this order.
    pub(crate) fn state(&self, feed: FeedState) -> Value {
        let state = LoaderState { version: VERSION, order: self.clone(), feed };
        serde_json::to_value(state).unwrap_or(Value::Null)
    }

    /// The feed's state in `stored`. Fails with the first fact that is another.
    pub(crate) fn read(&self, stored: &Value) -> Result<FeedState, LoaderError> {
        let foreign = |why: String| LoaderError::ForeignState(why);
        let version = stored.get("version").and_then(Value::as_u64);
        if version.is_some_and(|version| version != u64::from(VERSION)) {
            return Err(foreign(format!("it has version {}, this is version {VERSION}", version.unwrap_or(0))));
        }
        let LoaderState { order, feed, .. } = serde_json::from_value(stored.clone())
            .map_err(|error| foreign(format!("it is not the state of a feed ({error})")))?;
        let differs = |name: &str, found: &dyn std::fmt::Display, own: &dyn std::fmt::Display| {
            Err(foreign(format!("it was made with {name} {found}, this feed has {own}")))
        };
        if order.seed != self.seed {
            return differs("seed", &order.seed, &self.seed);
        }
        if order.batch_size != self.batch_size {
            return differs("batch_size", &order.batch_size, &self.batch_size);
        }
        if order.buckets != self.buckets {
            return differs("buckets", &order.buckets, &self.buckets);
        }
        if order.utterances != self.utterances {
            let (found, own) = (order.utterances, self.utterances);
            return Err(foreign(format!("its corpus has {found} usable utterances, this one {own}")));
        }
        if order.corpus != self.corpus {
            return Err(foreign("its corpus has other utterances, or lengths, than this one".to_owned()));
        }
        if feed.next.k >= self.batches {
            let (k, batches) = (feed.next.k, self.batches);
            return Err(foreign(format!("it is at batch {k} of an epoch of {batches}")));
        }
        Ok(feed)
    }
}
