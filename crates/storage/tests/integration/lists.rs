//! Lists and patterns of a store.

use tandem_storage::{ObjectLocation, StorageError};
use tandem_test_support::object_server::ServerFaults;

use crate::store::TestBucket;

fn shards(faults: ServerFaults) -> TestBucket {
    let bucket = TestBucket::start(faults);
    for n in 0..12 {
        bucket.put(&format!("shards/train-{n:03}.tar"), &vec![0; n]);
    }
    for key in ["shards/dev.tar", "shards/x/1.tar", "shards/y/1.tar", "shards/y/2.tar", "top & <bottom>.tar"] {
        bucket.put(key, b"x");
    }
    bucket
}

fn names(locations: &[ObjectLocation]) -> Vec<String> {
    locations.iter().map(|location| location.to_string().replace("s3://bucket/", "")).collect()
}

#[test]
fn a_list_has_the_objects_of_a_folder_and_their_stamps() {
    // Pages of five, and every third request fails.
    let bucket = shards(ServerFaults { page_entries: 5, unavailable_every: Some(3), ..ServerFaults::default() });
    let folder = ObjectLocation::parse("s3://bucket/shards/").unwrap();
    let listed = bucket.storage.list(&folder).unwrap();
    let found: Vec<_> = listed.iter().map(|(location, stamp)| (location.name(), stamp.num_bytes)).collect();
    let expected: Vec<_> = (0..12).map(|n| (format!("train-{n:03}.tar"), n)).collect();
    assert_eq!(found[0], ("dev.tar", 1));
    assert!(found[1..].iter().map(|(name, size)| (name.to_string(), *size)).eq(expected), "{found:?}");
    for (location, stamp) in &listed {
        assert_eq!(bucket.storage.stamp(location).unwrap(), *stamp, "{location}");
    }
    assert!(bucket.storage.list(&folder.join("nothing")).unwrap().is_empty());
    let root = bucket.storage.list(&ObjectLocation::parse("s3://bucket").unwrap()).unwrap();
    assert_eq!(root.iter().map(|(location, _)| location.name()).collect::<Vec<_>>(), ["top & <bottom>.tar"]);
}

#[test]
fn patterns_find_objects() {
    let bucket = shards(ServerFaults { page_entries: 3, ..ServerFaults::default() });
    let check = |pattern: &str, expected: &[&str]| {
        let found = bucket.storage.expand(&format!("s3://bucket/{pattern}")).unwrap();
        assert_eq!(names(&found), expected, "{pattern}");
    };
    check("shards/train-00[0-2].tar", &["shards/train-000.tar", "shards/train-001.tar", "shards/train-002.tar"]);
    check("shards/?/*.tar", &["shards/x/1.tar", "shards/y/1.tar", "shards/y/2.tar"]);
    check("shards/*/2.tar", &["shards/y/2.tar"]);
    check("shards/{d*,train-01*}.tar", &["shards/dev.tar", "shards/train-010.tar", "shards/train-011.tar"]);
    check("shards/{train-{010..011},missing}", &["shards/missing", "shards/train-010", "shards/train-011"]);
    check("*", &["top & <bottom>.tar"]);
    for pattern in ["s3://bucket/*.wav", "s3://other/*", "s3://bucket/shards/train-000.tar/*"] {
        assert!(matches!(bucket.storage.expand(pattern), Err(StorageError::NoMatch { .. })), "{pattern}");
    }
    // A prefix before the wildcard keeps the rest of a bucket out of the answer.
    let before = bucket.server.requests();
    check("shards/dev*", &["shards/dev.tar"]);
    assert_eq!(bucket.server.requests(), before + 1);
}

#[test]
fn plain_http_has_no_lists() {
    let bucket = shards(ServerFaults::default());
    let folder = ObjectLocation::parse(&format!("{}/bucket/shards", bucket.server.url())).unwrap();
    assert!(matches!(bucket.storage.list(&folder), Err(StorageError::Unsupported { .. })));
    let error = bucket.storage.expand(&format!("{folder}/*.tar")).unwrap_err();
    assert!(error.to_string().contains("{000..127}"), "{error}");
    assert_eq!(bucket.server.requests(), 0);
    let found = bucket.storage.expand(&format!("{folder}/train-{{000..011}}.tar")).unwrap();
    assert_eq!(bucket.storage.stamp(&found[7]).unwrap().num_bytes, 7);
}

#[test]
fn a_list_that_never_comes_is_an_error_of_the_service() {
    let bucket = shards(ServerFaults { unavailable_every: Some(1), ..ServerFaults::default() });
    let error = bucket.storage.expand("s3://bucket/*").unwrap_err();
    assert!(matches!(error, StorageError::Unreachable { attempts: 5, .. }), "{error}");
}
