//! The feed with another consumer than Tandem's trainer: `cargo run -p tandem-feed --example own_consumer [-- CORPUS]`.
//!
//! Runs on the CPU; without a corpus, on a minute of synthetic speech. With `Machine::cuda()` instead of `Machine::cpu()` the
//! same code feeds a GPU.
#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tandem_audio::{Clip, wav};
use tandem_corpus::{Dataset, LengthIndex, OpenOptions, Shard, demo};
use tandem_device::{ArenaSpec, Isolation, Machine, RoleSetup, Route};
use tandem_events::{Emitter, Role};
use tandem_feed::{CacheSpec, Feed, FeedPlan, FeedSpec, FeedState, FromFiles, SPEECH, TrainingSet, TrainingSetOptions};

fn main() -> Result<(), Box<dyn Error>> {
    let scratch = tempfile::tempdir()?;
    let corpus = std::env::args().nth(1).map_or_else(|| synthetic_speech(scratch.path()), |path| Ok(path.into()))?;
    // Open the corpus and measure its recordings.
    let dataset = Dataset::open(corpus, &OpenOptions::default())?;
    let (mut index, _) = LengthIndex::open(&scratch.path().join("lengths"), &dataset);
    let scanned = tandem_feed::scan_lengths(dataset, &mut index, 2, |_| std::ops::ControlFlow::Continue(()))?;
    let rows = scanned.dataset.train_rows();
    let options = TrainingSetOptions { with_text: true, ..TrainingSetOptions::default() };
    let training_set = Arc::new(TrainingSet::survey(Arc::new(scanned.dataset), &rows, &options)?);

    // Plan shapes and memory: two shapes of four utterances.
    let buckets = training_set.bucket_plan(2, 4).ok_or("no row can train")?;
    let plan = FeedPlan {
        schema: SPEECH,
        buckets: buckets.buckets().to_vec(),
        route: Route::Handover,
        data_slots: 4,
        model_slots: 2,
        rates_hz: training_set.rates_hz().to_vec(),
        uploads: 2,
        pinned_uploads: 3,
        table_bytes: training_set.table_bytes(),
        cached_pitches: 0,
        verify_every: None,
    };
    let arena = |role, arena_bytes| ArenaSpec::new(role, arena_bytes);
    let data = arena(Role::Data, plan.data_lines().iter().map(|(_, bytes)| bytes).sum());
    // With a hand-over the feed takes no model memory: this is for the consumer.
    let model = arena(Role::Model, 1 << 20);
    let [data, model] = [data, model].map(|arena| RoleSetup { card: 0, arena });
    let roles = Isolation::set_up(&Machine::cpu(), data, model)?;
    let spec = FeedSpec {
        training_set,
        buckets,
        evaluates: false,
        plan,
        route_why: "both roles are on one device".to_owned(),
        seed: 1234,
        shard: Shard::WHOLE,
        from: FeedState::default(),
        recordings: Arc::new(FromFiles),
        threads: 2,
        max_threads: 2,
        depth_fixed: false,
        cache: CacheSpec::default(),
        // For recordings in object stores: the bytes that may be fetched before they are asked for.
        read_ahead_bytes: 0,
        max_bad_fraction: 0.05,
        bad_samples: None,
        cores: None,
        emitter: Emitter::none(),
    };
    let mut feed = Feed::start(&roles, spec)?;
    let stream = roles.model.device.stream(true)?;
    for _ in 0..6 {
        let batch = feed.lease(&stream)?;
        // Queue the consumer's work here, on its stream. Dropping the batch frees the slot once that work is done.
        let shapes = ["text", "mel"].map(|name| batch.field(name).map(|field| field.shape.to_vec()));
        let frames: Vec<u32> = batch.info().utterances.iter().flatten().map(|utterance| utterance.frames).collect();
        println!("{:?}: text and mel {shapes:?}, frames {frames:?}", batch.info().cursor);
    }
    println!("a feed started from {:?} resumes here", feed.state());
    Ok(feed.stop()?)
}

fn synthetic_speech(folder: &Path) -> Result<PathBuf, Box<dyn Error>> {
    demo::write(folder, 1.0, (1234, 6), |path, samples, rate_hz| {
        let clip = Clip { samples: samples.to_vec(), rate_hz };
        wav::write(&clip, std::fs::File::create(path)?).map_err(std::io::Error::other)
    })?;
    Ok(folder.to_owned())
}
