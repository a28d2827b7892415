//! Faults of a store are survived with the same bytes, or named.

use std::time::Duration;

use tandem_storage::{ObjectLocation, ObjectStamp, ReadAt as _, Storage, StorageError, StorageSettings};
use tandem_test_support::object_server::ServerFaults;

use crate::store::{TestBucket, noise};

/// Reads an object in ranges of 1,000 bytes, over S3 and over plain http, and compares every byte.
fn survives(faults: ServerFaults) -> TestBucket {
    survives_with(TestBucket::start(faults))
}

fn survives_with(bucket: TestBucket) -> TestBucket {
    let bytes = noise(20_000);
    for location in bucket.put("a", &bytes) {
        let stamp = bucket.storage.stamp(&location).unwrap();
        for (n, expected) in bytes.chunks(1000).enumerate() {
            let range = n as u64 * 1000..(n as u64 + 1) * 1000;
            let found = bucket.storage.fetch(&location, range, &stamp).wait().unwrap();
            assert!(found == expected, "range {n} of {location}");
        }
    }
    bucket
}

/// 2 stamps and 40 ranges.
const CLEAN_REQUESTS: u64 = 42;

#[test]
fn without_faults_every_request_is_made_once() {
    assert_eq!(survives(ServerFaults::default()).server.requests(), CLEAN_REQUESTS);
}

#[test]
fn every_fault_is_survived_with_the_same_bytes() {
    let every = |seed| ServerFaults { seed, ..ServerFaults::default() };
    for seed in 0..3 {
        let check = |what: &str, faults: ServerFaults| {
            let requests = survives(faults).server.requests();
            assert!(requests > CLEAN_REQUESTS, "{what}: {requests} requests");
        };
        check("503", ServerFaults { unavailable_every: Some(3), ..every(seed) });
        check("cut", ServerFaults { cut_every: Some(3), ..every(seed) });
        check("wrong range", ServerFaults { wrong_range_every: Some(3), ..every(seed) });
        check("wrong length", ServerFaults { wrong_length_every: Some(3), ..every(seed) });
    }
    let all = ServerFaults {
        unavailable_every: Some(5),
        cut_every: Some(7),
        wrong_range_every: Some(11),
        wrong_length_every: Some(13),
        latency: Duration::from_millis(1),
        ..ServerFaults::default()
    };
    survives(all);
}

#[test]
fn a_server_without_stamps_or_ranges_works_too() {
    survives(ServerFaults { no_stamps: true, cut_every: Some(4), ..ServerFaults::default() });
    survives(ServerFaults { ignores_ranges: true, ..ServerFaults::default() });
}

#[test]
fn a_request_that_is_never_answered_is_made_again() {
    let faults = ServerFaults { hang_on: Some(2), ..ServerFaults::default() };
    let bucket = survives_with(TestBucket::with_timeout(faults, Duration::from_millis(500)));
    assert!(bucket.server.requests() > CLEAN_REQUESTS);
    bucket.server.wait_until_closed_early(1);
}

#[test]
fn a_large_object_from_a_server_without_ranges_is_refused() {
    let bucket = TestBucket::start(ServerFaults { ignores_ranges: true, ..ServerFaults::default() });
    for location in bucket.put("large", b"") {
        let file = std::fs::File::create(bucket.folder().join("bucket/large")).unwrap();
        file.set_len((64 << 20) + 1).unwrap();
        let stamp = bucket.storage.stamp(&location).unwrap();
        let before = bucket.server.requests();
        let error = bucket.storage.fetch(&location, 0..10, &stamp).wait().unwrap_err();
        assert!(matches!(error, StorageError::Unsupported { .. }) && error.is_exhausted(), "{error}");
        assert!(error.to_string().contains("ranges"), "{error}");
        assert_eq!(bucket.server.requests(), before + 1);
        // Nothing but the beginning was taken: the server could not send the body.
        assert_eq!(bucket.server.bytes(), 0);
    }
}

#[test]
fn exhausted_attempts_are_an_error_of_the_service() {
    let bucket = TestBucket::start(ServerFaults { unavailable_every: Some(1), ..ServerFaults::default() });
    for (round, location) in (1..).zip(bucket.put("a", b"text")) {
        let error = bucket.storage.stamp(&location).unwrap_err();
        assert!(matches!(error, StorageError::Unreachable { attempts: 5, .. }) && error.is_exhausted(), "{error}");
        assert!(error.to_string().contains("503"), "{error}");
        assert_eq!(bucket.server.requests(), 5 * round);
    }
    let object = bucket.storage.open(&bucket.at("a")[0], Some(&stamp(4))).unwrap();
    let error = object.read_exact_at(0, &mut [0; 4]).unwrap_err();
    assert!(StorageError::inside(&error).is_some_and(StorageError::is_exhausted), "{error}");
}

#[test]
fn a_server_that_is_not_there_is_unreachable() {
    let bucket = TestBucket::start(ServerFaults::default());
    let [object, page] = bucket.at("a");
    let TestBucket { server, storage, .. } = bucket;
    drop(server);
    for location in [object, page] {
        let error = storage.stamp(&location).unwrap_err();
        assert!(matches!(error, StorageError::Unreachable { attempts: 5, .. }), "{error}");
    }
}

#[test]
fn a_missing_object_is_missing_at_once() {
    let bucket = TestBucket::start(ServerFaults::default());
    for (round, location) in (1..).zip(bucket.at("nothing")) {
        for error in
            [bucket.storage.stamp(&location).err(), bucket.storage.fetch(&location, 0..1, &stamp(1)).wait().err()]
        {
            assert!(matches!(error, Some(StorageError::Missing { .. })), "{error:?}");
        }
        assert_eq!(bucket.server.requests(), 2 * round);
    }
}

#[test]
fn a_changed_object_is_never_read_as_the_old_one() {
    // The first request is for the stamp, the second for the old object.
    let bucket = TestBucket::start(ServerFaults { new_etags_from: Some(3), ..ServerFaults::default() });
    let [location, _] = bucket.put("a", b"text");
    let stamp = bucket.storage.stamp(&location).unwrap();
    assert_eq!(bucket.storage.fetch(&location, 0..4, &stamp).wait().unwrap(), "text");
    let error = bucket.storage.fetch(&location, 0..4, &stamp).wait().unwrap_err();
    assert!(matches!(error, StorageError::Changed { .. }) && !error.is_exhausted(), "{error}");
    assert_eq!(bucket.server.requests(), 3);
}

#[test]
fn an_object_of_another_size_is_changed() {
    let bucket = TestBucket::start(ServerFaults { no_stamps: true, ..ServerFaults::default() });
    for location in bucket.put("a", &noise(1000)) {
        // Longer, shorter, and so short that the range is gone.
        for (expected, range) in [(900, 0..10), (1100, 900..1100), (3000, 2000..2010)] {
            let error = bucket.storage.fetch(&location, range, &stamp(expected)).wait().unwrap_err();
            assert!(matches!(error, StorageError::Changed { .. }), "{error}");
            assert!(error.to_string().contains("found 1000 bytes"), "{error}");
        }
    }
}

#[test]
fn a_store_that_refuses_says_which_variables_count() {
    let bucket = TestBucket::start(ServerFaults { header: Some("x-none: 1".into()), ..ServerFaults::default() });
    let [object, page] = bucket.put("a", b"text");
    let error = bucket.storage.stamp(&object).unwrap_err();
    assert!(matches!(error, StorageError::Denied { .. }) && error.is_exhausted(), "{error}");
    assert!(error.to_string().contains("AWS_ACCESS_KEY_ID"), "{error}");
    assert!(matches!(bucket.storage.stamp(&page), Err(StorageError::Denied { .. })));
    assert_eq!(bucket.server.requests(), 2);
}

#[test]
fn a_url_that_signs_only_reads_can_be_read() {
    let bucket = TestBucket::start(ServerFaults { signature: Some("sig=a b".into()), ..ServerFaults::default() });
    let [_, page] = bucket.put("dir/a", b"text");
    assert!(matches!(bucket.storage.stamp(&page), Err(StorageError::Denied { .. })));
    let signed = ObjectLocation::parse(&format!("{}/bucket/dir?sig=a%20b", bucket.server.url())).unwrap().join("a");
    let object = bucket.storage.open(&signed, None).unwrap();
    let mut buffer = [0; 4];
    object.read_exact_at(0, &mut buffer).unwrap();
    assert_eq!(&buffer, b"text");
    let error = bucket.storage.stamp(&signed.parent().join("missing")).unwrap_err();
    assert!(matches!(error, StorageError::Missing { .. }), "{error}");
    let unsigned = ObjectLocation::parse(&format!("{}/bucket/dir/a?sig=secret", bucket.server.url())).unwrap();
    let error = bucket.storage.stamp(&unsigned).unwrap_err();
    assert!(matches!(error, StorageError::Denied { .. }), "{error}");
    assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
}

#[test]
fn user_and_password_of_a_url_are_sent_as_a_header() {
    let header = Some("Authorization: Basic dXNlcjpwYXNz".into());
    let bucket = TestBucket::start(ServerFaults { header, ..ServerFaults::default() });
    bucket.put("a", b"text");
    let url = format!("{}/bucket/a", bucket.server.url());
    let signed = ObjectLocation::parse(&url.replace("http://", "http://user:pass@")).unwrap();
    let stamp = bucket.storage.stamp(&signed).unwrap();
    assert_eq!(bucket.storage.fetch(&signed, 0..4, &stamp).wait().unwrap(), "text");
}

#[test]
fn signed_requests_work() {
    let bucket = TestBucket::start(ServerFaults::default());
    let [location, _] = bucket.put("a", b"text");
    let mut variables = bucket.server.variables();
    variables.push(("AWS_ACCESS_KEY_ID".into(), "id".into()));
    variables.push(("AWS_SECRET_ACCESS_KEY".into(), "key".into()));
    let storage = Storage::with_variables(StorageSettings::default(), variables);
    assert_eq!(storage.stamp(&location).unwrap(), bucket.storage.stamp(&location).unwrap());
}

fn stamp(num_bytes: u64) -> ObjectStamp {
    ObjectStamp { num_bytes, modified_ns: 0, etag: None }
}
