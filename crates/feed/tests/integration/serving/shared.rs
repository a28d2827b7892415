//! Batches that another program reads: what their readers may do, and when their slots are free.

use std::time::Duration;

use tandem_feed::{Feed, FeedError, SharedBatch};

use super::support::{Corpus, PATIENCE, Serving};

fn next(feed: &mut Feed) -> SharedBatch {
    feed.lease_shared(PATIENCE).unwrap().expect("a batch in time")
}

fn leased(feed: &Feed) -> usize {
    feed.stats().rings.last().map_or(0, |ring| ring.leased)
}

#[test]
fn a_stream_that_is_captured_cannot_read_and_a_batch_dropped_meanwhile_is_released_afterwards() {
    let corpus = Corpus::new(8, 30);
    let serving = Serving::single(3);
    let served = serving.serve(&corpus.training_set, |feed, roles| {
        let stream = roles.model.device.stream(true)?;
        let faults = serving.machine.faults();
        let (read, refused) = (next(feed), next(feed));
        read.read_on(stream.handle())?;
        faults.capture_foreign_stream(stream.handle(), true);
        assert!(matches!(refused.read_on(stream.handle()), Err(FeedError::CapturedReader)));
        drop((read, refused));
        assert_eq!(leased(feed), 1, "the slot that was read is set aside, the other is free");
        let during = next(feed);
        assert_eq!(leased(feed), 2);
        faults.capture_foreign_stream(stream.handle(), false);
        drop(during);
        drop(next(feed));
        assert_eq!(leased(feed), 0, "the capture is over");
        Ok(())
    });
    served.unwrap();
}

#[test]
fn a_batch_may_outlive_its_feed_and_its_arenas() {
    let corpus = Corpus::new(9, 30);
    let serving = Serving::single(4);
    let mut remaining = None;
    serving
        .serve(&corpus.training_set, |feed, _| {
            remaining = Some(next(feed));
            Ok(())
        })
        .unwrap();
    assert!(serving.machine.is_open(0), "a batch is still there");
    let batch = remaining.take().expect("a batch");
    batch.synchronize().unwrap();
    assert!(batch.field("mel").is_some());
    drop(batch);
    assert!(!serving.machine.is_open(0), "the last batch closes the card");
}

#[test]
fn a_lease_that_is_not_ready_in_time_takes_nothing() {
    let corpus = Corpus::new(10, 30);
    let serving = Serving { slots: [1, 2], ..Serving::single(5) };
    let served = serving.serve(&corpus.training_set, |feed, _| {
        let remaining: Vec<SharedBatch> = (0..3).map(|_| next(feed)).collect();
        let at = feed.next();
        assert!(feed.lease_shared(Duration::from_millis(1))?.is_none(), "every slot is held");
        assert_eq!(feed.next(), at);
        drop(remaining);
        assert_eq!(next(feed).info().cursor, at);
        Ok(())
    });
    served.unwrap();
}
