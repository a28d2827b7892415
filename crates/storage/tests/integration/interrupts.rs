//! Waits that end before the store answers.

use std::io::Read as _;
use std::time::Duration;

use tandem_storage::{ObjectLocation, ObjectStamp, Storage, StorageError, StorageInterrupt, StorageSettings};
use tandem_test_support::object_server::ServerFaults;

use crate::store::TestBucket;

/// A wait that nothing ends but an interrupt. A test that waits so long has failed: the next attempt succeeds.
const HANGS: Duration = Duration::from_secs(60);

fn first_request_hangs() -> (TestBucket, ObjectLocation, ObjectStamp) {
    let faults = ServerFaults { hang_on: Some(1), ..ServerFaults::default() };
    let bucket = TestBucket::with_timeout(faults, HANGS);
    let [location, _] = bucket.put("dir/a", b"text");
    (bucket, location, ObjectStamp { num_bytes: 4, modified_ns: 0, etag: None })
}

/// What `wait` gives on a thread whose waits are ended once the first request has come.
fn interrupted<T: Send>(bucket: &TestBucket, wait: impl FnOnce() -> T + Send) -> T {
    let interrupt = StorageInterrupt::new();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| interrupt.run(wait));
        bucket.server.wait_until_requests(1);
        interrupt.raise();
        waits.join().unwrap()
    })
}

fn check<T: Send>(wait: impl FnOnce(&Storage, &ObjectLocation, &ObjectStamp) -> Result<T, StorageError> + Send) {
    let (bucket, location, stamp) = first_request_hangs();
    let result = interrupted(&bucket, || wait(&bucket.storage, &location, &stamp));
    let error = result.err().unwrap();
    assert!(matches!(error, StorageError::Interrupted { .. }), "{error}");
    assert!(error.to_string().contains("s3://bucket/dir"), "{error}");
    bucket.server.wait_until_closed_early(1);
    // Whoever shares the storage reads on.
    assert_eq!(bucket.storage.fetch(&location, 0..4, &stamp).wait().unwrap(), "text");
    assert_eq!(bucket.server.requests(), 2, "the request that was interrupted is not made again");
}

#[test]
fn every_wait_ends_and_the_storage_stays_usable() {
    check(|storage, location, stamp| storage.fetch(location, 0..4, stamp).wait());
    check(|storage, location, _| storage.stamp(location));
    check(|storage, location, _| storage.list(&location.parent()));
    check(|storage, location, _| storage.expand(&location.parent().join("*").to_string()));
    check(|storage, location, stamp| {
        let mut text = String::new();
        let object = storage.open(location, Some(stamp))?;
        // A reader tries again after some errors, and not after this one.
        let error = object.reader(0..4).read_to_string(&mut text).unwrap_err();
        Err::<(), _>(error.downcast::<StorageError>().unwrap())
    });
}

#[test]
fn a_pause_between_two_attempts_ends() {
    let bucket = TestBucket::start(ServerFaults { unavailable_every: Some(1), ..ServerFaults::default() });
    let [location, _] = bucket.put("a", b"text");
    let settings = StorageSettings { max_attempts: 2, first_wait: HANGS, max_wait: HANGS, request_timeout: HANGS };
    let storage = Storage::with_variables(settings, bucket.server.variables());
    let error = interrupted(&bucket, || storage.stamp(&location)).unwrap_err();
    assert!(matches!(error, StorageError::Interrupted { .. }), "{error}");
    assert_eq!(bucket.server.requests(), 1);
}

#[test]
fn after_an_interrupt_nothing_is_asked_for() {
    let bucket = TestBucket::start(ServerFaults::default());
    let [location, _] = bucket.put("a", b"text");
    let stamp = bucket.storage.stamp(&location).unwrap();
    let interrupt = StorageInterrupt::new();
    let mut started = bucket.storage.fetch(&location, 0..4, &stamp);
    started.start();
    bucket.server.wait_until_requests(2);
    interrupt.raise();
    interrupt.run(|| {
        let planned = bucket.storage.fetch(&location, 0..4, &stamp);
        for error in [started.wait().err(), planned.wait().err(), bucket.storage.stamp(&location).err()] {
            assert!(matches!(error, Some(StorageError::Interrupted { .. })), "{error:?}");
        }
        // Files are no store.
        let file = ObjectLocation::file(bucket.folder().join("bucket/a"));
        assert_eq!(bucket.storage.stamp(&file).unwrap().num_bytes, 4);
    });
    assert_eq!(bucket.server.requests(), 2);
    assert_eq!(bucket.storage.fetch(&location, 0..4, &stamp).wait().unwrap(), "text");
}
