//! The threads of a feed stay on the cores that it is given, and batches do not depend on them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use tandem_audio::Clip;
use tandem_corpus::Sample;
use tandem_device::Route;
use tandem_events::{Emitter, RunEvent, Sink};
use tandem_feed::{FeedError, FromFiles, Recordings};
use tandem_pipeline::CoreSet;

use super::support::{Corpus, Serving};

/// The cores that each thread of a feed may use, by the name of the thread.
#[derive(Clone, Default)]
struct SeenCores(Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>);

impl SeenCores {
    fn see(&self) {
        let name = std::thread::current().name().unwrap_or_default().to_owned();
        self.0.lock().unwrap().entry(name).or_default().insert(allowed_list());
    }
}

/// Decode threads load recordings, the data thread and the transfer thread emit the times of their stages, and the thread that
/// takes the memory emits the first settings.
impl Recordings for SeenCores {
    fn load_into(&self, sample: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        self.see();
        FromFiles.load_into(sample, clip)
    }
}

impl Sink for SeenCores {
    fn emit(&self, _: RunEvent) {
        self.see();
    }
}

/// The cores that the calling thread may use, as the system writes them.
fn allowed_list() -> String {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim().to_owned()
}

/// The numbers of the first and the last of them; the same for a process with one core.
fn two_cores() -> [usize; 2] {
    let list = allowed_list();
    let number = |text: Option<&str>| text.unwrap().parse().unwrap();
    [number(list.split([',', '-']).next()), number(list.split([',', '-']).next_back())]
}

#[test]
fn every_thread_of_a_feed_runs_on_its_cores_and_batches_do_not_depend_on_them() {
    let corpus = Corpus::new(41, 30);
    let before = allowed_list();
    let expected = Serving::cpu().batches(&corpus.training_set, 12).unwrap();
    for (core, route) in two_cores().into_iter().zip([Route::Peer, Route::Bounce]) {
        let seen = SeenCores::default();
        let serving = Serving {
            cores: CoreSet::new(&[core]),
            recordings: Arc::new(seen.clone()),
            emitter: Emitter::to(Arc::new(seen.clone())),
            ..Serving::pair(3, route)
        };
        assert_eq!(serving.batches(&corpus.training_set, 12).unwrap(), expected, "{}", route.name());
        let seen = seen.0.lock().unwrap();
        // One decode thread may have been fast enough for all.
        for name in ["feed-start", "feed-decode-", "feed-data", "feed-transfer"] {
            assert!(seen.keys().any(|thread| thread.starts_with(name)), "{name}: {seen:?}");
        }
        assert!(seen.values().all(|cores| *cores == BTreeSet::from([core.to_string()])), "{core}: {seen:?}");
    }
    assert_eq!(allowed_list(), before, "the consumer stays where it is");
}
