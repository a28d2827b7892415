//! `bench pipeline`: how close the pipeline comes to model-only throughput.
//!
//! Two tables. The *sweep* runs a synthetic producer and consumer of known speed and measures the share of the slower
//! one's speed that is reached. The *clips* decode real wav files for a consumer that occupies the card as long as a
//! training step would; there the ceiling is model-only throughput, or on a shared card `1 / (step alone + data work alone)`.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tandem_audio::Clip;
use tandem_corpus::Sample;
use tandem_device::DeviceKind;
use tandem_events::RunEvent;
use tandem_feed::{Bucket, CacheKind, CacheSpec, Feed, FeedError, FeedStats, FromFiles, Recordings, TrainingSet};
use tandem_pipeline::StopFlag;

use super::consumer::{Consumer, RUN_AHEAD, StepEnds};
use super::serve::{BenchContext, RunningFeed, Served};
use super::spread::mean_and_variation;
use super::{BenchError, clips};

/// A row of the sweep.
#[derive(Clone, Copy, Debug)]
pub struct SweepRow {
    /// Time to produce a batch ÷ time to consume one, as set.
    pub ratio: f64,
    /// Steps per second of the consumer with batches already there.
    pub model_only: f64,
    /// Measured steps per second.
    pub steps_per_s: f64,
    /// Relative to the slower of the two alone.
    pub of_ceiling: f64,
    /// Standard deviation of the step ÷ its mean.
    pub variation: f64,
}

/// A consumer as long as a training step.
#[derive(Clone, Debug)]
pub struct StepLoad {
    /// What it is called.
    pub name: String,
    /// Utterances of a batch.
    pub batch: u32,
    /// A step of mean length.
    pub step_ns: f64,
}

/// A row of the clips.
#[derive(Clone, Debug)]
pub struct ClipRow {
    /// The consumer.
    pub load: StepLoad,
    /// Where decoded audio was cached.
    pub cache: CacheKind,
    /// Steps per second with batches already there.
    pub model_only: f64,
    /// Milliseconds of a step alone.
    pub step_ms: f64,
    /// Milliseconds of the data device's work for a batch, alone.
    pub data_ms: f64,
    /// Steps per second that can be at best: model-only throughput, or what a shared card has time for.
    pub ceiling: f64,
    /// Measured steps per second.
    pub steps_per_s: f64,
    /// Standard deviation ÷ mean of (step time ÷ model-only time of its own bucket).
    pub variation: f64,
    /// The share of the time in which the consumer had no batch.
    pub stall: f64,
    /// Decode threads at the end.
    pub threads: usize,
    /// Hours of audio per second.
    pub hours_per_s: f64,
    /// Steps that were measured.
    pub steps: usize,
    /// Recordings that turned out bad.
    pub num_bad: usize,
    /// Messages of the feed.
    pub notes: Vec<String>,
}

impl ClipRow {
    /// Relative to the ceiling.
    pub fn of_ceiling(&self) -> f64 {
        self.steps_per_s / self.ceiling
    }

    /// Relative to model-only throughput.
    pub fn of_model_only(&self) -> f64 {
        self.steps_per_s / self.model_only
    }
}

/// Recordings per batch of the synthetic producer.
const SWEEP_BATCH: u32 = 8;
const SWEEP_THREADS: usize = 4;
const SWEEP_ROWS: usize = 400;
/// Few: a deep buffer would hide a slow producer for many steps.
const SWEEP_SLOTS: [u64; 2] = [4, 3];
/// Steps before anything is measured: the first ones find full rings.
const SWEEP_WARM_UP: usize = 24;
/// Steps with real recordings before anything is measured, and batches that are made alone.
const CLIPS_WARM_UP: usize = 80;
const CLIPS_ALONE: usize = 100;

/// The result with a decoder four times too slow.
#[derive(Clone, Debug)]
pub struct SlowDecoder {
    /// Decode threads at the start and at the end.
    pub threads: [usize; 2],
    /// Whether their number was given by hand.
    pub fixed: bool,
    /// The share of the time in which the consumer had no batch, in the first steps and in the last ones.
    pub stall: [f64; 2],
    /// Messages of self-tuning.
    pub notes: Vec<String>,
}

/// How much slower the decoder is made than what the threads at the start can just feed a consumer with.
const SLOWER: f64 = 4.0;
/// Steps in which self-tuning may find its number of threads.
const TUNING_STEPS: usize = 300;

/// Runs a decoder four times slower than the starting threads can compensate, and lets the feed tune itself: measures the
/// stall of the first `steps` steps and, some hundreds later, of `steps` more.
pub fn slow_decoder(
    context: &BenchContext,
    folder: &Path,
    step: Duration,
    steps: usize,
) -> Result<SlowDecoder, BenchError> {
    let step_ns = step.as_nanos() as f64;
    let per_clip_ns = SLOWER * FED * step_ns * context.threads[0] as f64 / f64::from(SWEEP_BATCH);
    let recordings = Arc::new(SyntheticRecordings { per_clip_ns, loaded: AtomicU64::new(0) });
    let served =
        Served { training_set: synthetic_list(folder)?, recordings, batch: SWEEP_BATCH, cache: CacheSpec::default() };
    let context = BenchContext { slots: SWEEP_SLOTS, depth_fixed: false, ..context.clone() };
    let mut serving = context.serve(&served, |plan| Consumer::bytes(plan.slot_bytes()))?;
    let consumer = Consumer::create(&serving.roles, serving.plan.slot_bytes())?;
    let Some(mut feed) = serving.feed.take() else { return Err(FeedError::Ended.into()) };
    let first = fed_steps(&context, &mut feed, &consumer, &|_| step_ns, 0, steps)?;
    let last = fed_steps(&context, &mut feed, &consumer, &|_| step_ns, TUNING_STEPS.min(4 * steps), steps)?;
    let (threads, notes) = (feed.stats().threads, feed.take_messages());
    feed.stop()?;
    Ok(SlowDecoder {
        threads: [context.threads[0], threads],
        fixed: context.threads[0] == context.threads[1],
        stall: [&first, &last].map(|turn| turn.stall_ns as f64 / turn.wall_ns),
        notes,
    })
}

/// A producer that feeds its consumer takes this share of its time.
const FED: f64 = 0.8;

/// Sweeps the ratio of producer and consumer time, with a consumer of `step` and a list in `folder` to serve from.
pub fn sweep(
    context: &BenchContext,
    folder: &Path,
    ratios: &[f64],
    step: Duration,
    steps: usize,
) -> Result<Vec<SweepRow>, BenchError> {
    let training_set = synthetic_list(folder)?;
    let context = BenchContext { slots: SWEEP_SLOTS, threads: [SWEEP_THREADS; 2], ..context.clone() };
    ratios.iter().map(|ratio| sweep_one(&context, &training_set, *ratio, step, steps)).collect()
}

/// A manifest of recordings that do not exist: the synthetic producer makes them.
fn synthetic_list(folder: &Path) -> Result<Arc<TrainingSet>, BenchError> {
    let mut list = String::new();
    for number in 0..SWEEP_ROWS {
        let _ = writeln!(list, "{{\"audio_filepath\":\"{number}.wav\",\"text\":\"synthetic\",\"duration\":0.2}}");
    }
    let path = folder.join("synthetic.jsonl");
    std::fs::write(&path, list).map_err(|error| BenchError::Clips(format!("{error}: {}", path.display())))?;
    clips::open(&path)
}

fn sweep_one(
    context: &BenchContext,
    training_set: &Arc<TrainingSet>,
    ratio: f64,
    step: Duration,
    steps: usize,
) -> Result<SweepRow, BenchError> {
    let step_ns = step.as_nanos() as f64;
    let per_clip_ns = ratio * step_ns * SWEEP_THREADS as f64 / f64::from(SWEEP_BATCH);
    let recordings = Arc::new(SyntheticRecordings { per_clip_ns, loaded: AtomicU64::new(0) });
    let cache = CacheSpec::None;
    let served = Served { training_set: Arc::clone(training_set), recordings, batch: SWEEP_BATCH, cache };
    // A slow producer's full rings last for longer than they hold: while they are emptied, it goes on filling them.
    let held = (context.slots.iter().sum::<u64>() + context.pinned_uploads) as f64;
    let settle = if ratio > 1.0 { 1.5 * held * ratio / (ratio - 1.0) } else { held } as usize;
    let run = run(context, &served, &|_| step_ns, [SWEEP_WARM_UP.max(settle), settle], steps)?;
    let times: Vec<f64> = run.fed.times.iter().map(|(_, ns)| *ns as f64).collect();
    let (mean_ns, variation) = mean_and_variation(&times);
    let alone: Vec<f64> = run.alone.iter().map(|(_, ns)| *ns as f64).collect();
    let (alone_ns, _) = mean_and_variation(&alone);
    Ok(SweepRow {
        ratio,
        model_only: 1e9 / alone_ns,
        steps_per_s: 1e9 / mean_ns,
        of_ceiling: alone_ns.max(ratio * step_ns) / mean_ns,
        variation,
    })
}

/// A decoder that takes a set time, plus or minus a fifth.
struct SyntheticRecordings {
    per_clip_ns: f64,
    loaded: AtomicU64,
}

impl Recordings for SyntheticRecordings {
    fn load_into(&self, _: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        let number = self.loaded.fetch_add(1, Ordering::Relaxed);
        let drawn = (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as f64 / (1_u64 << 24) as f64;
        let ns = self.per_clip_ns * (0.8 + 0.4 * drawn);
        StopFlag::new().wait_timeout(Duration::from_nanos(ns as u64));
        clip.rate_hz = 22_050;
        clip.samples.clear();
        clip.samples.extend((0..4410).map(|i: i32| (i * 7919 % 4001) as i16));
        Ok(())
    }
}

/// Serves real recordings to each of `loads`, with each of `caches`.
pub fn from_clips(
    context: &BenchContext,
    training_set: &Arc<TrainingSet>,
    loads: &[StepLoad],
    caches: &[CacheSpec],
    steps: usize,
) -> Result<Vec<ClipRow>, BenchError> {
    let mut rows = Vec::new();
    for load in loads {
        for cache in caches {
            rows.push(from_clips_one(context, training_set, load, cache, steps)?);
        }
    }
    Ok(rows)
}

fn from_clips_one(
    context: &BenchContext,
    training_set: &Arc<TrainingSet>,
    load: &StepLoad,
    cache: &CacheSpec,
    steps: usize,
) -> Result<ClipRow, BenchError> {
    let recordings = Arc::new(FromFiles);
    let served = Served { training_set: Arc::clone(training_set), recordings, batch: load.batch, cache: cache.clone() };
    let data_ns = data_alone_ns(context, &served, CLIPS_ALONE.min(4 * steps))?;
    let epoch = training_set.rows().len() / load.batch as usize;
    // Everything is in the cache after an epoch; without one, the number of threads has settled by then.
    let settled = if *cache == CacheSpec::None { CLIPS_WARM_UP.min(4 * steps) } else { epoch + 1 };
    let warm_up = context.slots.iter().sum::<u64>() as usize + settled;
    let frames: f64 = training_set.rows().iter().map(|(_, extent)| f64::from(extent.frames)).sum();
    let mean_frames = frames / training_set.rows().len().max(1) as f64;
    let step_ns = |frames: f64| load.step_ns * frames / mean_frames;
    let run = run(context, &served, &step_ns, [warm_up, context.slots.iter().sum::<u64>() as usize], steps)?;
    Ok(run.row(load, cache.kind(), data_ns, context, training_set))
}

/// What the data device takes for a batch when nobody else works on it, in the mean.
fn data_alone_ns(context: &BenchContext, served: &Served, batches: usize) -> Result<f64, BenchError> {
    let mut serving = context.serve(served, |_| 0)?;
    let stream = serving.roles.model.device.stream(true)?;
    let Some(feed) = serving.feed.as_mut() else { return Ok(0.0) };
    for _ in 0..batches {
        drop(feed.lease(&stream)?);
        stream.drain()?;
    }
    let times: Vec<f64> = serving.stages.of("features").iter().skip(batches / 5).map(|(_, ns)| *ns as f64).collect();
    Ok(mean_and_variation(&times).0)
}

/// What a run measured: bucket and nanoseconds of every step, with the feed and without.
#[derive(Default)]
struct Steps {
    times: Vec<(usize, u64)>,
    wall_ns: f64,
    stall_ns: u64,
}

struct Run {
    fed: Steps,
    alone: Vec<(usize, u64)>,
    stats: FeedStats,
    notes: Vec<String>,
}

/// Turns of steps with the feed and without: a card's clock drifts by some percent within seconds, and both are to
/// feel the same drift.
const TURNS: usize = 4;

fn run(
    context: &BenchContext,
    served: &Served,
    step_ns: &dyn Fn(f64) -> f64,
    [warm_up, settle]: [usize; 2],
    steps: usize,
) -> Result<Run, BenchError> {
    let mut serving = context.serve(served, |plan| Consumer::bytes(plan.slot_bytes()))?;
    let consumer = Consumer::create(&serving.roles, serving.plan.slot_bytes())?;
    let Some(mut feed) = serving.feed.take() else { return Err(FeedError::Ended.into()) };
    let mut fed = Steps::default();
    let mut alone = Vec::new();
    for turn in 0..TURNS {
        // After a turn without the feed the rings are full: they are used up before the next turn counts.
        let uncounted = if turn == 0 { warm_up } else { settle };
        let turn = fed_steps(context, &mut feed, &consumer, step_ns, uncounted, steps.div_ceil(TURNS))?;
        // Full rings: then the data side stands still, and alone means alone.
        feed.wait_warm(PATIENCE)?;
        alone.extend(replay(&serving, &consumer, &turn.times, step_ns)?);
        fed.times.extend(turn.times);
        fed.wall_ns += turn.wall_ns;
        fed.stall_ns += turn.stall_ns;
    }
    let (stats, notes) = (feed.stats(), feed.take_messages());
    feed.stop()?;
    Ok(Run { fed, alone, stats, notes })
}

/// Longer than any ring takes to fill.
const PATIENCE: Duration = Duration::from_secs(60);

/// `settle` steps that do not count, and `steps` that do.
fn fed_steps(
    context: &BenchContext,
    feed: &mut Feed,
    consumer: &Consumer,
    step_ns: &dyn Fn(f64) -> f64,
    settle: usize,
    steps: usize,
) -> Result<Steps, BenchError> {
    let mut ends = StepEnds::new(&consumer.stream.device())?;
    let (mut buckets, mut times) = (Vec::new(), Vec::new());
    let (mut started, mut stall_before) = (Instant::now(), 0);
    for number in 0..settle + steps + RUN_AHEAD {
        if number == settle {
            (started, stall_before) = (Instant::now(), feed.stats().stall_ns);
        }
        let batch = feed.lease(&consumer.stream)?;
        let (info, wait_ns) = (Arc::clone(batch.info()), batch.wait_ns());
        consumer.take_in(batch.memory())?;
        drop(batch);
        consumer.work(step_ns(mean_frames(&info.bucket)))?;
        buckets.push(info.bucket_index);
        if let Some((done, ns)) = ends.mark(&consumer.stream, number)?.filter(|(done, _)| *done >= settle) {
            times.push((buckets[done], ns));
            context.emitter.emit(RunEvent::Step { step: info.sequence + 1, wall_ns: ns, wait_ns });
        }
    }
    let wall_ns = started.elapsed().as_nanos() as f64;
    Ok(Steps { times, wall_ns, stall_ns: feed.stats().stall_ns - stall_before })
}

/// Frames of a row, padding included, in the mean of a shape.
fn mean_frames(bucket: &Bucket) -> f64 {
    bucket.frames() as f64 / bucket.batch().max(1) as f64
}

/// The same steps with batches that are there already.
fn replay(
    serving: &RunningFeed,
    consumer: &Consumer,
    times: &[(usize, u64)],
    step_ns: &dyn Fn(f64) -> f64,
) -> Result<Vec<(usize, u64)>, BenchError> {
    let mut ends = StepEnds::new(&serving.roles.model.device)?;
    let mut alone = Vec::new();
    let sequence: Vec<usize> = times.iter().map(|(bucket, _)| *bucket).collect();
    let extended = sequence.iter().chain(sequence.iter().take(RUN_AHEAD + 1));
    for (number, bucket) in extended.enumerate() {
        let shape = &serving.plan.buckets[*bucket];
        consumer.take_in(consumer.standing(serving.plan.schema.layout(shape).bytes))?;
        consumer.work(step_ns(mean_frames(shape)))?;
        if let Some((done, ns)) = ends.mark(&consumer.stream, number)? {
            alone.push((sequence[done % sequence.len()], ns));
        }
    }
    Ok(alone)
}

impl Run {
    fn row(
        &self,
        load: &StepLoad,
        cache: CacheKind,
        data_ns: f64,
        context: &BenchContext,
        training_set: &TrainingSet,
    ) -> ClipRow {
        let mean = |times: &[(usize, u64)], bucket: Option<usize>| {
            let chosen = times.iter().filter(|(of, _)| bucket.is_none_or(|bucket| bucket == *of));
            mean_and_variation(&chosen.map(|(_, ns)| *ns as f64).collect::<Vec<_>>()).0
        };
        let (step_ns, mean_ns) = (mean(&self.alone, None), mean(&self.fed.times, None));
        let relative = |(bucket, ns): &(usize, u64)| *ns as f64 / mean(&self.alone, Some(*bucket)).max(1.0);
        let relative: Vec<f64> = self.fed.times.iter().map(relative).collect();
        let shared = context.cards[0] == context.cards[1] && context.machine.kind() == DeviceKind::Cuda;
        let seconds = training_set.audio_seconds() / training_set.rows().len().max(1) as f64 * f64::from(load.batch);
        let steps_per_s = 1e9 / mean_ns;
        ClipRow {
            load: load.clone(),
            cache,
            model_only: 1e9 / step_ns,
            step_ms: step_ns / 1e6,
            data_ms: data_ns / 1e6,
            ceiling: 1e9 / (step_ns + if shared { data_ns } else { 0.0 }),
            steps_per_s,
            variation: mean_and_variation(&relative).1,
            stall: self.fed.stall_ns as f64 / self.fed.wall_ns,
            threads: self.stats.threads,
            hours_per_s: seconds * steps_per_s / 3600.0,
            steps: self.fed.times.len(),
            num_bad: self.stats.num_bad,
            notes: self.notes.clone(),
        }
    }
}
