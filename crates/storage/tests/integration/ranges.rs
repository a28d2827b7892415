//! Bytes from a store are the bytes of the file.

use std::io::{Read, Seek, SeekFrom};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tandem_storage::{ObjectFetch, ObjectStamp, ReadAt as _, StorageError};
use tandem_test_support::object_server::ServerFaults;

use crate::store::{TestBucket, noise};

#[test]
fn any_range_is_what_the_file_has_there() {
    let bucket = TestBucket::start(ServerFaults::default());
    let bytes = noise(100_000);
    let objects = bucket.put("dir/a b%+é.bin", &bytes).map(|location| bucket.storage.open(&location, None).unwrap());
    let mut runner = TestRunner::new(ProptestConfig { cases: 64, failure_persistence: None, ..Default::default() });
    let ranges = (0..110_000_u64, 0..20_000_u64);
    let outcome = runner.run(&ranges, |(start, length)| {
        for object in &objects {
            prop_assert_eq!(object.num_bytes(), 100_000);
            let mut buffer = vec![0; length as usize];
            let expected = bytes.get(start as usize..(start + length) as usize);
            let result = object.read_exact_at(start, &mut buffer);
            prop_assert_eq!(result.is_ok(), expected.is_some());
            prop_assert!(expected.is_none_or(|expected| expected == buffer), "bytes {}+{}", start, length);
        }
        Ok(())
    });
    outcome.unwrap();
}

#[test]
fn a_whole_object_streams_in_blocks_with_one_ahead() {
    let bucket = TestBucket::start(ServerFaults::default());
    let bytes = noise((20 << 20) + 12_345);
    for location in bucket.put("large", &bytes) {
        let object = bucket.storage.open(&location, None).unwrap();
        let before = bucket.server.requests();
        let mut found = Vec::new();
        let mut reader = object.reader(77..u64::MAX);
        reader.read_to_end(&mut found).unwrap();
        assert!(found == bytes[77..]);
        // 20 MiB are three blocks of 8 MiB.
        assert_eq!(bucket.server.requests() - before, 3);
        // A seek within the block asks for nothing; one out of it asks for one block, without one ahead.
        reader.seek(SeekFrom::End(-10)).unwrap();
        let mut ten = [0; 10];
        reader.read_exact(&mut ten).unwrap();
        assert_eq!(ten, bytes[bytes.len() - 10..]);
        assert_eq!(bucket.server.requests() - before, 3);
        reader.seek(SeekFrom::Start(1 << 20)).unwrap();
        reader.read_exact(&mut ten).unwrap();
        assert_eq!(ten, bytes[77 + (1 << 20)..][..10]);
        assert_eq!(bucket.server.requests() - before, 4);
    }
}

#[test]
fn the_next_block_is_on_its_way_while_one_is_read() {
    // No answer comes before two requests are in flight, and no timeout makes a second one of the first.
    let faults = ServerFaults { gather: 2, ..ServerFaults::default() };
    let bucket = TestBucket::with_timeout(faults, Duration::from_secs(3600));
    let bytes = noise((8 << 20) + 1);
    let [location, _] = bucket.put("large", &bytes);
    let object = bucket.storage.open(&location, Some(&stamp(bytes.len()))).unwrap();
    let mut first = [0];
    object.reader(0..u64::MAX).read_exact(&mut first).unwrap();
    assert_eq!(first[0], bytes[0]);
}

#[test]
fn many_fetches_are_in_flight_at_the_same_time() {
    const COUNT: u64 = 40;
    // No answer comes before all are in flight: one after the other would never end.
    let bucket = TestBucket::start(ServerFaults { gather: COUNT, ..ServerFaults::default() });
    let bytes = noise(COUNT as usize * 100);
    let [location, _] = bucket.put("a", &bytes);
    let stamp = stamp(bytes.len());
    let fetches = (0..COUNT).map(|n| bucket.storage.fetch(&location, n * 100..(n + 1) * 100, &stamp));
    let mut fetches: Vec<_> = fetches.collect();
    assert_eq!(bucket.server.requests(), 0, "fetches that are not started make no request");
    fetches.iter_mut().for_each(ObjectFetch::start);
    for (fetch, expected) in fetches.into_iter().zip(bytes.chunks(100)) {
        assert_eq!(fetch.num_bytes(), 100);
        assert_eq!(fetch.wait().unwrap(), expected);
    }
    assert_eq!((bucket.server.requests(), bucket.server.max_in_flight()), (COUNT, COUNT));
}

#[test]
fn a_dropped_fetch_closes_its_request() {
    // No timeout closes the request in place of the drop.
    let faults = ServerFaults { hang_on: Some(1), ..ServerFaults::default() };
    let bucket = TestBucket::with_timeout(faults, Duration::from_secs(3600));
    let [location, _] = bucket.put("a", b"text");
    let stamp = stamp(4);
    let mut fetch = bucket.storage.fetch(&location, 0..4, &stamp);
    // Started once, however often it is asked to.
    (0..3).for_each(|_| fetch.start());
    bucket.server.wait_until_requests(1);
    drop(fetch);
    bucket.server.wait_until_closed_early(1);
    assert_eq!(bucket.storage.fetch(&location, 0..4, &stamp).wait().unwrap(), "text");
    assert_eq!(bucket.server.requests(), 2);
}

#[test]
fn an_open_object_outlives_its_storage() {
    let bucket = TestBucket::start(ServerFaults::default());
    let [location, _] = bucket.put("a", b"text");
    let stamp = bucket.storage.stamp(&location).unwrap();
    let TestBucket { server, storage, .. } = &bucket;
    let other = storage.clone();
    let mut fetches = [0, 1].map(|_| other.fetch(&location, 1..3, &stamp));
    fetches[0].start();
    drop(other);
    fetches.into_iter().for_each(|fetch| assert_eq!(fetch.wait().unwrap(), "ex"));
    // With a stamp, opening asks for nothing.
    let before = server.requests();
    let object = storage.open(&location, Some(&stamp)).unwrap();
    assert_eq!(server.requests(), before);
    assert_eq!((object.stamp(), object.location()), (&stamp, &location));
}

#[test]
fn empty_objects_and_empty_ranges_need_no_request_for_bytes() {
    let bucket = TestBucket::start(ServerFaults::default());
    for location in bucket.put("empty", b"") {
        let object = bucket.storage.open(&location, None).unwrap();
        let before = bucket.server.requests();
        assert!(bucket.storage.fetch(&location, 0..0, object.stamp()).wait().unwrap().is_empty());
        assert_eq!(object.reader(0..100).read(&mut [0; 4]).unwrap(), 0);
        #[expect(clippy::reversed_empty_ranges, reason = "a caller can make one")]
        let backwards = bucket.storage.fetch(&location, 5..2, object.stamp()).wait();
        assert!(matches!(backwards, Err(StorageError::Io { .. })));
        assert_eq!(bucket.server.requests(), before);
    }
}

fn stamp(num_bytes: usize) -> ObjectStamp {
    ObjectStamp { num_bytes: num_bytes as u64, modified_ns: 0, etag: None }
}
