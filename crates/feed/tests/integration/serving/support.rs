//! A small corpus, a machine to serve it on, and the bytes of its batches.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tandem_audio::{Clip, wav};
use tandem_corpus::{Cursor, Dataset, LengthIndex, OpenOptions, Sample, Shard};
use tandem_device::bytes::{POOL_GRANULE, round_up};
use tandem_device::kernels::Checks;
use tandem_device::sim::Link;
use tandem_device::{ArenaSpec, Event, Isolation, Machine, Pinned, RoleSetup, Route, SimSpec, Stream, View};
use tandem_events::{Emitter, Role};
use tandem_feed::{
    BatchInfo, BatchSchema, BucketPlan, CacheSpec, DeviceBatch, Feed, FeedError, FeedPlan, FeedSpec, FeedState,
    FromFiles, Placed, Recordings, SPEECH, TextSettings, TrainingSet, TrainingSetOptions, scan_lengths, waits,
};
use tandem_pipeline::{CoreSet, StopFlag};
use tandem_text::Phonemizer;
use tempfile::TempDir;

/// Recordings of a few tenths of a second, at several sample rates, by three speakers.
pub(crate) struct Corpus {
    pub(crate) folder: TempDir,
    pub(crate) training_set: Arc<TrainingSet>,
}

pub(crate) const BATCH: u32 = 4;

/// A number that depends on all of `parts`.
pub(crate) fn noise(parts: &[u64]) -> u64 {
    parts.iter().fold(0x243F_6A88_85A3_08D3, |state, part| {
        let x = (state ^ part).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (x ^ (x >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ (x >> 31)
    })
}

pub(crate) fn clip(seed: u64, number: u64) -> Clip {
    let rate_hz = [22_050, 22_050, 16_000, 44_100, 96_000][(noise(&[seed, number, 1]) % 5) as usize];
    let num_samples = u64::from(rate_hz) / 5 + noise(&[seed, number, 2]) % (u64::from(rate_hz) / 2);
    let sample = |i: u64| ((noise(&[seed, number, i]) >> 40) as i32 % 9000) as i16;
    Clip { samples: (0..num_samples).map(sample).collect(), rate_hz }
}

pub(crate) fn write_corpus(folder: &Path, seed: u64, count: u64) {
    std::fs::create_dir_all(folder.join("wavs")).unwrap();
    let mut rows = String::new();
    for number in 0..count {
        let words = ["one", "two", "three", "four", "five"];
        let text: Vec<&str> = (0..1 + number % 5).map(|i| words[((number + i) % 5) as usize]).collect();
        rows += &format!("u{number:03}|{0}|{0}|voice{1}\n", text.join(" "), number % 3);
        let mut file = Vec::new();
        wav::write(&clip(seed, number), &mut file).unwrap();
        std::fs::write(folder.join(format!("wavs/u{number:03}.wav")), file).unwrap();
    }
    std::fs::write(folder.join("metadata_train.csv"), rows).unwrap();
}

impl Corpus {
    pub(crate) fn new(seed: u64, count: u64) -> Corpus {
        let folder = tempfile::Builder::new().prefix("tandem-feed-").tempdir().unwrap();
        write_corpus(folder.path(), seed, count);
        let training_set = open(folder.path());
        Corpus { folder, training_set }
    }

    pub(crate) fn wav(&self, number: u64) -> std::path::PathBuf {
        self.folder.path().join(format!("wavs/u{number:03}.wav"))
    }

    pub(crate) fn id(&self, sample: tandem_corpus::SampleIndex) -> String {
        self.training_set.dataset().get(sample).unwrap().id.to_owned()
    }
}

pub(crate) fn open(folder: &Path) -> Arc<TrainingSet> {
    survey(Dataset::open(folder, &OpenOptions::default()).unwrap(), &folder.join("run"))
}

/// All rows of a dataset, measured.
pub(crate) fn survey(dataset: Dataset, index_folder: &Path) -> Arc<TrainingSet> {
    let (mut index, _) = LengthIndex::open(index_folder, &dataset);
    let scanned = scan_lengths(dataset, &mut index, 2, |_| std::ops::ControlFlow::Continue(())).unwrap();
    let rows = scanned.dataset.train_rows();
    let longest = TrainingSetOptions { max_frames: Some(1000), max_tokens: Some(200), ..options() };
    Arc::new(TrainingSet::survey(Arc::new(scanned.dataset), &rows, &longest).unwrap())
}

pub(crate) fn options() -> TrainingSetOptions {
    // As characters: short recordings have room for them.
    let text = TextSettings { phonemizer: Some(Phonemizer::Characters), ..TextSettings::default() };
    TrainingSetOptions { with_text: true, text, ..TrainingSetOptions::default() }
}

/// Two cards that reach each other.
pub(crate) fn two_cards(seed: u64) -> SimSpec {
    SimSpec::new(2, 4 << 30).with_link(Link::Nvlink).with_seed(seed)
}

/// How to serve a corpus.
#[derive(Clone)]
pub(crate) struct Serving {
    pub(crate) machine: Machine,
    pub(crate) cards: [usize; 2],
    pub(crate) route: Route,
    pub(crate) threads: usize,
    pub(crate) max_threads: usize,
    pub(crate) cache: CacheSpec,
    /// Bytes of recordings that are fetched ahead.
    pub(crate) read_ahead_bytes: u64,
    /// Recordings whose pitch is cached on the data device.
    pub(crate) cached_pitches: u64,
    pub(crate) shard: Shard,
    pub(crate) from: FeedState,
    pub(crate) seed: u64,
    pub(crate) recordings: Arc<dyn Recordings>,
    pub(crate) bad_samples: Option<std::path::PathBuf>,
    pub(crate) max_bad_fraction: f64,
    /// Slots on the data side, and on the model side.
    pub(crate) slots: [u64; 2],
    /// One in so many batches is verified.
    pub(crate) verify_every: Option<u64>,
    /// Delays the streams in turn, so that a missing wait shows on a real card; 0 for no delay.
    pub(crate) delay_ns: u64,
    pub(crate) emitter: Emitter,
    /// The cores of the feed's threads.
    pub(crate) cores: Option<CoreSet>,
    /// Whether batches are read on another stream than that of their lease.
    pub(crate) reads_elsewhere: bool,
    /// The fields of a batch.
    pub(crate) schema: BatchSchema,
    /// Whether batches are shared: read on two streams of a consumer that names them by their handles.
    pub(crate) shares: bool,
    /// The set to evaluate in the shapes of the corpus; none to train on the corpus.
    pub(crate) evaluates: Option<Arc<TrainingSet>>,
}

impl Serving {
    pub(crate) fn on(machine: Machine, cards: [usize; 2], route: Route) -> Serving {
        Serving {
            machine,
            cards,
            route,
            threads: 2,
            max_threads: 2,
            cache: CacheSpec::None,
            read_ahead_bytes: 0,
            cached_pitches: 0,
            shard: Shard::WHOLE,
            from: FeedState::default(),
            seed: 7,
            recordings: Arc::new(FromFiles),
            bad_samples: None,
            max_bad_fraction: 0.05,
            slots: [3, 3],
            verify_every: None,
            delay_ns: 0,
            emitter: Emitter::none(),
            cores: None,
            reads_elsewhere: false,
            schema: SPEECH,
            shares: false,
            evaluates: None,
        }
    }

    pub(crate) fn cpu() -> Serving {
        Serving::on(Machine::cpu(), [0, 0], Route::Handover)
    }

    pub(crate) fn pair(seed: u64, route: Route) -> Serving {
        Serving::on(Machine::simulated(two_cards(seed)), [0, 1], route)
    }

    pub(crate) fn single(seed: u64) -> Serving {
        Serving::on(Machine::simulated(SimSpec::new(1, 4 << 30).with_seed(seed)), [0, 0], Route::Handover)
    }

    pub(crate) fn workers(mut self, count: usize) -> Serving {
        (self.threads, self.max_threads) = (count, count);
        self
    }

    /// Starts the feed in arenas of exactly the planned size, and calls `with`.
    pub(crate) fn serve<T>(
        &self,
        corpus: &TrainingSet,
        with: impl FnOnce(&mut Feed, &Isolation) -> Result<T, FeedError>,
    ) -> Result<T, FeedError> {
        let buckets = corpus.bucket_plan(3, BATCH).unwrap();
        let plan = self.plan(corpus, &buckets);
        let bytes = |lines: Vec<(&str, u64)>| lines.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let is_peer = self.route.needs_peer_access() && self.cards[0] != self.cards[1];
        let arena = |role, bytes: u64| {
            let slots_bytes = if is_peer { plan.slots_bytes(role) } else { 0 };
            let peer_bytes = round_up(slots_bytes, POOL_GRANULE);
            let arena_bytes = bytes - slots_bytes + peer_bytes;
            ArenaSpec { peer_bytes, ..ArenaSpec::new(role, arena_bytes) }
        };
        let data = RoleSetup { card: self.cards[0], arena: arena(Role::Data, bytes(plan.data_lines())) };
        let model_bytes = bytes(plan.model_lines()) + (1 << 20);
        let model = RoleSetup { card: self.cards[1], arena: arena(Role::Model, model_bytes) };
        let roles = Isolation::set_up(&self.machine, data, model)?;
        self.delay_streams(&roles)?;
        let mut feed = Feed::start(&roles, self.spec(corpus, buckets, plan))?;
        let result = with(&mut feed, &roles)?;
        feed.stop().map(|()| result)
    }

    /// Delays each stream of the data device in some batches. Two delays at once would hide each other: each stream is
    /// sometimes the only one that is late. Batch 1 delays the start.
    fn delay_streams(&self, roles: &Isolation) -> Result<(), FeedError> {
        if self.delay_ns == 0 {
            return Ok(());
        }
        // Loaded before anything runs: the first delay must not wait for a compiler.
        Checks::load(&roles.data.device)?;
        let faults = self.machine.faults();
        faults.delay_before_wait(waits::CONSUMED, self.delay_ns, |batch| batch % 7 == 3);
        for wait in [waits::SENT, waits::RELEASED] {
            faults.delay_before_wait(wait, self.delay_ns, |batch| batch == 1 || batch % 8 == 6);
        }
        Ok(())
    }

    fn plan(&self, corpus: &TrainingSet, buckets: &BucketPlan) -> FeedPlan {
        FeedPlan {
            schema: self.schema.clone(),
            buckets: buckets.buckets().to_vec(),
            route: self.route,
            data_slots: self.slots[0],
            model_slots: self.slots[1],
            rates_hz: corpus.rates_hz().to_vec(),
            uploads: 2,
            pinned_uploads: 3,
            table_bytes: corpus.table_bytes(),
            cached_pitches: self.cached_pitches,
            verify_every: self.verify_every,
        }
    }

    fn spec(&self, corpus: &TrainingSet, buckets: BucketPlan, plan: FeedPlan) -> FeedSpec {
        FeedSpec {
            training_set: self.evaluates.clone().unwrap_or_else(|| Arc::new(corpus.clone())),
            buckets,
            evaluates: self.evaluates.is_some(),
            plan,
            route_why: "a test".to_owned(),
            seed: self.seed,
            shard: self.shard,
            from: self.from.clone(),
            recordings: Arc::clone(&self.recordings),
            threads: self.threads,
            max_threads: self.max_threads,
            depth_fixed: false,
            cache: self.cache.clone(),
            read_ahead_bytes: self.read_ahead_bytes,
            max_bad_fraction: self.max_bad_fraction,
            bad_samples: self.bad_samples.clone(),
            cores: self.cores.clone(),
            emitter: self.emitter.clone(),
        }
    }

    /// The first `count` batches, byte for byte. The host reads the copies a few batches later, as a trainer does: until then
    /// they are queued behind the waits of the streams.
    pub(crate) fn batches(&self, corpus: &TrainingSet, count: usize) -> Result<Vec<Bytes>, FeedError> {
        if self.shares {
            return self.shared_batches(corpus, count);
        }
        self.serve(corpus, |feed, roles| {
            let stream = roles.model.device.stream(true)?;
            let (elsewhere, arrived) = (roles.model.device.stream(true)?, roles.model.device.event()?);
            let checks = Checks::load(&roles.model.device)?;
            // Allocated before any delay: allocating pinned memory synchronizes the card.
            let mut idle = readers(&stream, feed.plan().slot_bytes())?;
            let mut in_flight = VecDeque::new();
            let mut read = Vec::new();
            for number in 0..count {
                let batch = feed.lease(&stream)?;
                if self.delay_ns > 0 && number % 5 == 2 {
                    // Longer than those of the data side: two equal delays that start together hide each other.
                    checks.delay(&stream, 4 * self.delay_ns)?;
                }
                let mut reader: Reader = idle.pop().unwrap();
                if self.reads_elsewhere {
                    stream.record(&arrived)?;
                    elsewhere.wait(&arrived, "the reader waits for the lease")?;
                    reader.start(&batch, &elsewhere)?;
                    batch.release(&elsewhere)?;
                } else {
                    reader.start(&batch, &stream)?;
                    drop(batch);
                }
                in_flight.push_back(reader);
                if in_flight.len() > LAG {
                    let mut reader = in_flight.pop_front().unwrap();
                    read.push(reader.finish()?);
                    idle.push(reader);
                }
            }
            for mut reader in in_flight {
                read.push(reader.finish()?);
            }
            Ok(read)
        })
    }
}

impl Serving {
    /// The same through shared leases. Two streams read each batch, and either may be the later one: the bytes of both count.
    fn shared_batches(&self, corpus: &TrainingSet, count: usize) -> Result<Vec<Bytes>, FeedError> {
        self.serve(corpus, |feed, roles| {
            let streams = [roles.model.device.stream(true)?, roles.model.device.stream(true)?];
            let mut idle =
                [readers(&streams[0], feed.plan().slot_bytes())?, readers(&streams[1], feed.plan().slot_bytes())?];
            let mut in_flight = VecDeque::new();
            let mut read = Vec::new();
            let mut finish = |(first, second): (Reader, Reader), idle: &mut [Vec<Reader>; 2]| {
                let mut pair = [first, second];
                let [one, other] = [pair[0].finish()?, pair[1].finish()?];
                // Two copies of one batch are one batch, if both are right.
                read.push(if one == other { one } else { Bytes { fields: Vec::new(), ..one } });
                idle.iter_mut().zip(pair).for_each(|(idle, reader)| idle.push(reader));
                Ok::<(), FeedError>(())
            };
            let checks = Checks::load(&roles.model.device)?;
            for number in 0..count {
                let batch = loop {
                    if let Some(batch) = feed.lease_shared(PATIENCE)? {
                        break batch;
                    }
                };
                let mut pair = [idle[0].pop().unwrap(), idle[1].pop().unwrap()];
                for (stream, reader) in streams.iter().zip(&mut pair) {
                    batch.read_on(stream.handle())?;
                    if self.delay_ns > 0 && number % 5 == 2 {
                        checks.delay(stream, 4 * self.delay_ns)?;
                    }
                    reader.start_fields(batch.info(), stream, |name| batch.field(name).unwrap().view)?;
                }
                drop(batch);
                let [first, second] = pair;
                in_flight.push_back((first, second));
                if in_flight.len() > LAG {
                    finish(in_flight.pop_front().unwrap(), &mut idle)?;
                }
            }
            while let Some(pair) = in_flight.pop_front() {
                finish(pair, &mut idle)?;
            }
            Ok(read)
        })
    }
}

/// Generated recordings: each takes `pause` to load, and has a quarter of a second.
pub(crate) struct Generated {
    pub(crate) pause: Duration,
}

impl Recordings for Generated {
    fn load_into(&self, _: &Sample<'_>, clip: &mut Clip) -> Result<(), FeedError> {
        StopFlag::new().wait_timeout(self.pause);
        (clip.rate_hz, clip.samples) = (22_050, vec![7; 6000]);
        Ok(())
    }
}

/// Batches whose copies are queued and not read yet.
const LAG: usize = 4;

/// Copies a batch to the host.
struct Reader {
    host: Pinned,
    done: Event,
    of: Option<Arc<BatchInfo>>,
}

fn readers(stream: &Stream, slot_bytes: u64) -> Result<Vec<Reader>, FeedError> {
    let device = stream.device();
    let reader = |_| Ok(Reader { host: device.pinned(slot_bytes)?, done: device.event()?, of: None });
    (0..=LAG).map(reader).collect()
}

impl Reader {
    fn start(&mut self, batch: &DeviceBatch<'_>, stream: &Stream) -> Result<(), FeedError> {
        self.start_fields(batch.info(), stream, |name| batch.field(name).unwrap().view)
    }

    fn start_fields<'b>(
        &mut self,
        info: &Arc<BatchInfo>,
        stream: &Stream,
        field: impl Fn(&str) -> View<'b>,
    ) -> Result<(), FeedError> {
        for placed in &info.layout.fields {
            stream.download(field(placed.field.name), &mut self.host, placed.offset..placed.offset + placed.bytes)?;
        }
        stream.record(&self.done)?;
        self.of = Some(Arc::clone(info));
        Ok(())
    }

    fn finish(&mut self) -> Result<Bytes, FeedError> {
        self.done.synchronize("the test reads a batch")?;
        let (info, bytes) = (self.of.take().unwrap(), self.host.bytes()?);
        let field = |placed: &Placed| {
            let value = &bytes[placed.offset as usize..][..placed.bytes as usize];
            (placed.field.name.to_owned(), placed.shape.clone(), value.to_vec())
        };
        let rows: Vec<Option<u32>> = info.utterances.iter().map(|row| row.map(|row| row.sample.0)).collect();
        Ok(Bytes {
            cursor: info.cursor,
            samples: rows.iter().flatten().copied().collect(),
            rows,
            frame_starts: info.bucket.frame_starts().map(|start| start as usize).collect(),
            token_starts: info.bucket.token_starts().map(|start| start as usize).collect(),
            fields: info.layout.fields.iter().map(field).collect(),
        })
    }
}

/// A batch, copied to the host.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bytes {
    pub(crate) cursor: Cursor,
    pub(crate) samples: Vec<u32>,
    /// The same, row by row.
    pub(crate) rows: Vec<Option<u32>>,
    pub(crate) frame_starts: Vec<usize>,
    pub(crate) token_starts: Vec<usize>,
    pub(crate) fields: Vec<(String, Vec<u64>, Vec<u8>)>,
}

/// Longer than anything that does not hang.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
