//! The feed: recordings on one end, batches on the model device on the other.
//!
//! ```text
//! order ─> load ══ pinned ring ══> upload ─> featurize ─> collate ══ data ring ══> transfer ══ model ring ══> lease
//!          decode threads          └──────── data thread ───────┘                 its thread                 the step
//! ```
//!
//! Double lines are rings of memory that was taken when the feed started: what is full makes its filler wait, and the
//! waiting is counted. With a hand-over the step leases from the data ring. The feed has no end of its own: epoch
//! follows epoch until it is dropped, which ends every thread and gives all memory back.

pub(crate) mod data_thread;
mod injected_delays;
pub(crate) mod messages;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tandem_corpus::Cursor;
use tandem_device::transfer::Measured;
use tandem_device::{Arena, Block, Device, DeviceError, Event, Isolation, Pinned, Route, Stream, Transfer};
use tandem_events::Emitter;
use tandem_pipeline::{Crew, RingHandle, RingSlot, RingStats, StopFlag, ring};

use crate::batch::feed_plan::{DATA_SLOTS, FeedPlan, MODEL_SLOTS};
use crate::collate::Collator;
use crate::error::FeedError;
use crate::featurize::on_device::FeatureMaker;
use crate::feed::data_thread::{BatchFiller, BatchTaker, DataSide};
use crate::feed::injected_delays::InjectedDelays;
use crate::feed::messages::Notes;
use crate::lease::DeviceBatch;
use crate::load::bad_samples::{BadSamples, Replacements};
use crate::load::cache::{Cache, CacheSpec, CacheStats};
use crate::load::cached_pitch::KeptPitches;
use crate::load::decode_threads::DecodeThreads;
use crate::load::input::{Input, Recordings};
use crate::load::row_loader::{Library, RowLoader};
use crate::load::row_queue::{PINNED_RING, RowQueue, UploadMemory};
use crate::survey::training_set::TrainingSet;
use crate::transfer::carry;
use crate::tune::self_tuning::{SelfTuning, ToldSetting};
use crate::tune::tuner::{Tuner, TuningLimits, TuningState};
use crate::upload::row_tables::RowTables;
use crate::upload::uploader::Uploader;
use crate::{BucketPlan, waits};

/// Everything a feed is told.
pub struct FeedSpec {
    /// The corpus.
    pub material: Arc<TrainingSet>,
    /// Its shapes: those of `plan`.
    pub buckets: BucketPlan,
    /// False to train: full batches in another order every epoch. True to look at every row of `material` that fits
    /// once an epoch, in `buckets` made for the rows that train; rows of a batch may then be empty.
    pub evaluates: bool,
    /// Its memory.
    pub plan: FeedPlan,
    /// Why batches take the plan's route.
    pub route_why: String,
    /// Where all randomness starts.
    pub seed: u64,
    /// Where to begin.
    pub from: FeedState,
    /// How recordings are read: [`crate::FromFiles`].
    pub recordings: Arc<dyn Recordings>,
    /// Decode threads at the start.
    pub threads: usize,
    /// Decode threads at most; `threads` when that number was given by hand.
    pub max_threads: usize,
    /// Whether the number of prefetched batches was given by hand.
    pub depth_fixed: bool,
    /// Decoded audio kept between epochs.
    pub cache: CacheSpec,
    /// The share of an epoch's samples that may be bad.
    pub max_bad_fraction: f64,
    /// Where bad samples are listed.
    pub bad_samples: Option<PathBuf>,
    /// Who is told of stages and changes.
    pub emitter: Emitter,
    /// Holds the data device's streams up by turns for so long, so that a missing wait shows on a real card; 0 in use.
    pub delay_ns: u64,
}

/// What a checkpoint keeps of the data side: with it, a new feed gives exactly the batches this one would have given.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedState {
    /// The batch that comes next.
    pub next: Cursor,
    /// Which samples stand in for bad ones in batches that were made and not leased yet.
    pub replacements: Replacements,
}

/// How full the feed is before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warm {
    /// Batches that are ready.
    pub ready: usize,
    /// Batches there is room for.
    pub of: usize,
}

/// A look at a feed that runs.
#[derive(Clone, Debug)]
pub struct FeedStats {
    /// The rings in the order of the flow.
    pub rings: Vec<RingStats>,
    /// What the consumer waited for batches in all.
    pub stall_ns: u64,
    /// Batches leased.
    pub leased: u64,
    /// Decode threads at work.
    pub threads: usize,
    /// Bad samples so far.
    pub num_bad: usize,
    /// The cache.
    pub cache: CacheStats,
}

/// A running feed. Dropping it stops and joins its threads.
pub struct Feed {
    // Before the crew: threads that wait for it to take end when it is gone.
    taker: BatchTaker,
    rings: Vec<RingHandle>,
    crew: Option<Crew<()>>,
    ending: Ending,
    data_stream: Arc<Stream>,
    threads: Arc<DecodeThreads>,
    library: Arc<Library>,
    stall_ns: Arc<AtomicU64>,
    leased: u64,
    next: Cursor,
    notes: Notes,
    list_trouble_said: AtomicBool,
    transfer: Option<Measured>,
    warm_slots: usize,
}

/// How a feed ends: whoever finds something wrong keeps the first error and closes everything, so that nobody is left
/// waiting.
#[derive(Clone)]
struct Ending {
    first: Arc<Mutex<Option<FeedError>>>,
    rings: Vec<RingHandle>,
    threads: Arc<DecodeThreads>,
}

impl Ending {
    /// A thread ended so. The end of a ring is no error.
    fn note(&self, outcome: Result<(), FeedError>) {
        if let Some(error) = outcome.err().filter(|error| !matches!(error, FeedError::Closed(_))) {
            self.first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
        self.close();
    }

    fn close(&self) {
        self.threads.end();
        self.rings.iter().for_each(RingHandle::close);
    }

    fn take(&self) -> Option<FeedError> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Feed {
    /// Takes all memory, proves the way across, and starts every thread: from here on the feed fills itself.
    ///
    /// Fails when memory, kernels or threads cannot be had; what was taken is given back.
    pub fn start(roles: &Isolation, spec: FeedSpec) -> Result<Feed, FeedError> {
        let FeedSpec { material, buckets, evaluates, plan, seed, recordings, .. } = &spec;
        let shapes = (buckets, *evaluates);
        let input = Input::new(Arc::clone(material), shapes, plan.clone(), *seed, Arc::clone(recordings))?;
        let input = Arc::new(input);
        let (device, arena) = (&roles.data.device, &roles.data.arena);
        let notes = Notes::default();
        let library = Arc::new(open_library(&input, &spec, &notes)?);

        let (host_filler, loaded) = ring(PINNED_RING, host_slots(device, &input.plan)?);
        let handover = plan.route == Route::Handover;
        let in_data = plan.data_slots + if handover { plan.model_slots } else { 0 };
        let data_memory = batch_slots(device, arena, DATA_SLOTS, in_data, &input.plan)?;
        let stream = Arc::new(device.stream(false)?);
        // Fields have gaps between them, and whole slots are copied: nothing that was never written is.
        data_memory.iter().try_for_each(|slot| stream.fill(slot.memory.view(), 0))?;
        let tables = RowTables::create(device, arena, &stream, &input.plan)?;
        let features = FeatureMaker::create(device, arena, &stream, &input)?;
        let uploader = Uploader::create(device, arena, &input.plan)?;
        let collator = Collator::create(device, input.features().floor)?;
        let injected_delays = InjectedDelays::create(device, spec.delay_ns)?;
        let crossing = match handover {
            true => None,
            false => Some(Crossing::open(roles, &spec, &data_memory)?),
        };
        let (slots, data_taker) = ring("data ring", data_memory);

        let threads = Arc::new(DecodeThreads::new(spec.threads));
        let [slot_wait_ns, stall_ns]: [Arc<AtomicU64>; 2] = Default::default();
        let tuner = tuner_for(&spec, in_data as usize);
        let depth = tuner.setting().depth;
        slots.set_depth(depth);
        let heard = (notes.clone(), spec.emitter.clone());
        let waits = [&slot_wait_ns, &stall_ns].map(Arc::clone);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let told = ToldSetting { cores, model_slots: plan.model_slots, route: plan.route };
        let tuning = SelfTuning::new(tuner, Arc::clone(&threads), waits, heard, told);
        let mut rings = vec![loaded.handle(), data_taker.handle()];
        let data_stream = Arc::clone(&stream);
        let [emitter, carried] = [spec.emitter.clone(), spec.emitter.clone()];
        let dealer = Arc::new(RowQueue::new(Arc::clone(&input), host_filler, spec.from.next, slot_wait_ns));
        let side = DataSide {
            input,
            loaded,
            uploader,
            stream,
            tables,
            features,
            collator,
            slots,
            tuning,
            injected_delays,
            emitter,
        };

        let (taker, carrier, measured) = match crossing {
            None => (data_taker, None, None),
            Some(Crossing { transfer, filler, taker, measured }) => {
                rings.push(taker.handle());
                (taker, Some((transfer, data_taker, filler, carried)), Some(measured))
            }
        };
        let ending = Ending { first: Arc::default(), rings: rings.clone(), threads: Arc::clone(&threads) };
        let mut crew = Crew::new("feed");
        let closing = ending.clone();
        crew.on_stop(move || closing.close());
        let mut feed = Feed {
            taker,
            rings,
            crew: None,
            ending: ending.clone(),
            data_stream,
            threads: Arc::clone(&threads),
            library: Arc::clone(&library),
            stall_ns,
            leased: 0,
            next: spec.from.next,
            notes,
            list_trouble_said: AtomicBool::new(false),
            transfer: measured,
            warm_slots: depth,
        };
        let started = start_threads(&mut crew, (side, carrier), (dealer, library, threads), spec.max_threads, &ending);
        feed.crew = Some(crew);
        started.map(|()| feed)
    }

    /// Waits until every slot of the data side holds a batch, for `longest` at most. Says how many do.
    ///
    /// Fails with what ended the feed, if that is what happened.
    pub fn wait_warm(&mut self, longest: Duration) -> Result<Warm, FeedError> {
        self.wait_for_rings(1, longest)
    }

    /// [`wait_warm`](Feed::wait_warm), and until what was decoded beyond that has no room left either: then nothing of the
    /// feed is at work.
    pub fn wait_full(&mut self, longest: Duration) -> Result<Warm, FeedError> {
        self.wait_for_rings(0, longest)
    }

    fn wait_for_rings(&mut self, first: usize, longest: Duration) -> Result<Warm, FeedError> {
        let deadline = Instant::now() + longest;
        let mut ready = 0;
        // From the step's side inwards: the nearer ring is the one that fills first.
        for ring in self.rings.iter().skip(first).rev() {
            let left = deadline.saturating_duration_since(Instant::now());
            ready += ring.wait_ready(usize::MAX, left);
        }
        if self.threads.has_ended() {
            return Err(self.why_it_ended());
        }
        // They are queued; now they are made.
        self.data_stream.drain()?;
        Ok(Warm { ready: ready.min(self.warm_slots), of: self.warm_slots })
    }

    /// The next batch, for work on `stream`, which is made to wait for it; the host waits only when none is queued.
    ///
    /// Fails with what ended the feed.
    pub fn lease<'s>(&mut self, stream: &'s Stream) -> Result<DeviceBatch<'s>, FeedError> {
        let (ready, wait_ns) = match self.taker.try_take() {
            Ok(Some(ready)) => (Some(ready), 0),
            _ => {
                let waiting = Instant::now();
                let ready = self.taker.take();
                (ready, waiting.elapsed().as_nanos() as u64)
            }
        };
        self.stall_ns.fetch_add(wait_ns, Ordering::Relaxed);
        let Some(ready) = ready else { return Err(self.why_it_ended()) };
        let slot = ready.lease(|arrived| stream.wait(arrived, waits::ARRIVED))?;
        self.leased += 1;
        if self.leased.is_multiple_of(64) {
            self.library.made.lock().unwrap_or_else(PoisonError::into_inner).drop_before(self.next);
        }
        let info = slot.payload();
        self.next = self.library.input.order.after(info.cursor);
        Ok(DeviceBatch::new(slot, stream, wait_ns))
    }

    fn why_it_ended(&mut self) -> FeedError {
        let joined = self.crew.take().map(|crew| {
            crew.stop();
            crew.join()
        });
        match (self.ending.take(), joined) {
            (Some(error), _) => error,
            (None, Some(Err(panic))) => FeedError::Worker(panic),
            (None, _) => FeedError::Ended,
        }
    }

    /// What a checkpoint made now must keep.
    pub fn state(&self) -> FeedState {
        let mut replacements = self.library.replayed.clone();
        let mut made = self.library.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.drop_before(self.next);
        made.iter().for_each(|instead| replacements.insert(instead));
        replacements.drop_before(self.next);
        FeedState { next: self.next, replacements }
    }

    /// Lines for people since it was last asked: changes of self-tuning, trouble with the cache or with the list of bad
    /// samples.
    pub fn take_notes(&self) -> Vec<String> {
        let mut lines = self.notes.take();
        let trouble = self.library.bad.write_error().filter(|_| !self.list_trouble_said.swap(true, Ordering::Relaxed));
        lines.extend(trouble.map(|error| format!("the list of bad samples is not whole ({error})")));
        lines
    }

    /// What the proof of the way across measured; none for a hand-over.
    pub fn transfer(&self) -> Option<Measured> {
        self.transfer
    }

    /// Bytes of decoded audio that are kept in memory now: none where they are kept on a disk.
    pub fn cached_bytes(&self) -> u64 {
        self.library.cache.memory_bytes()
    }

    /// Batches of an epoch.
    pub fn batches_per_epoch(&self) -> u64 {
        self.library.input.order.num_batches()
    }

    /// What it was started with.
    pub fn plan(&self) -> &FeedPlan {
        &self.library.input.plan
    }

    /// Where everything is.
    pub fn stats(&self) -> FeedStats {
        FeedStats {
            rings: self.rings.iter().map(RingHandle::stats).collect(),
            stall_ns: self.stall_ns.load(Ordering::Relaxed),
            leased: self.leased,
            threads: self.threads.active(),
            num_bad: self.library.bad.total(),
            cache: self.library.cache.stats(),
        }
    }

    /// Stops every thread and waits for them; what went wrong before, if anything did.
    ///
    /// All memory goes home. The feed's own streams are done with it by then; whoever has work queued on leased batches
    /// drains that stream first.
    pub fn stop(mut self) -> Result<(), FeedError> {
        match self.why_it_ended() {
            FeedError::Ended => Ok(()),
            error => Err(error),
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        // Dropping a crew stops and joins it; nobody is left to be told of an error.
        self.crew.take();
    }
}

/// The way to another device or arena, and the ring on its far side.
struct Crossing {
    transfer: Transfer,
    filler: BatchFiller,
    taker: BatchTaker,
    measured: Measured,
}

impl Crossing {
    fn open(roles: &Isolation, spec: &FeedSpec, data: &[RingSlot<Block, Event>]) -> Result<Crossing, FeedError> {
        let (plan, to) = (&spec.plan, &roles.model.arena);
        let slots = batch_slots(&roles.model.device, to, MODEL_SLOTS, plan.model_slots, plan)?;
        let (from, why) = (&roles.data.arena, &spec.route_why);
        let mut transfer = Transfer::open(plan.route, why, from, to, plan.slot_bytes())?;
        let (Some(source), Some(target)) = (data.first(), slots.first()) else {
            return Err(FeedError::Ended);
        };
        let measured = transfer.prove(source.memory.view(), target.memory.view())?;
        let (filler, taker) = ring("model ring", slots);
        Ok(Crossing { transfer, filler, taker, measured })
    }
}

fn open_library(input: &Arc<Input>, spec: &FeedSpec, notes: &Notes) -> Result<Library, FeedError> {
    let num_samples = input.material.dataset().samples().len();
    if let Some(foreign) = spec.from.replacements.iter().find(|instead| instead.sample.at() >= num_samples) {
        return Err(FeedError::ForeignState { sample: foreign.sample.0, num_samples });
    }
    let told = notes.clone();
    let per_epoch = input.order.num_samples() - input.order.sitting_out(0).len();
    Ok(Library {
        input: Arc::clone(input),
        cache: Cache::open(&spec.cache, move |line| told.say(line))?,
        pitches: KeptPitches::new(&input.plan),
        bad: BadSamples::new(spec.bad_samples.clone(), spec.max_bad_fraction, per_epoch)?,
        replayed: spec.from.replacements.clone(),
        made: Mutex::default(),
    })
}

fn host_slots(device: &Device, plan: &FeedPlan) -> Result<Vec<RingSlot<UploadMemory, Event>>, DeviceError> {
    let slot = |_| {
        let memory: Pinned = device.pinned(plan.upload_bytes())?;
        Ok(RingSlot { memory: Some(memory), written: device.event()?, freed: device.event()? })
    };
    (0..plan.pinned_uploads).map(slot).collect()
}

fn batch_slots(
    device: &Device,
    arena: &Arena,
    owner: &'static str,
    count: u64,
    plan: &FeedPlan,
) -> Result<Vec<RingSlot<Block, Event>>, DeviceError> {
    let slot = |_| {
        let memory = arena.take(owner, plan.slot_bytes())?;
        Ok(RingSlot { memory, written: device.event()?, freed: device.event()? })
    };
    (0..count).map(slot).collect()
}

/// Batches that are made ahead at first, unless a number was given by hand: enough for any steady producer. Bursts make
/// it more, up to all there is memory for.
const FIRST_DEPTH: usize = 12;

fn tuner_for(spec: &FeedSpec, slots: usize) -> Tuner {
    let limits = TuningLimits {
        min_threads: 1,
        max_threads: spec.max_threads,
        threads_fixed: spec.max_threads == spec.threads,
        // With a hand-over the step leases from this ring, and may hold all that the model's slots are for.
        min_depth: if spec.plan.route == Route::Handover { slots.min(spec.plan.model_slots as usize + 1) } else { 1 },
        max_depth: slots,
        depth_fixed: spec.depth_fixed,
    };
    let depth = if spec.depth_fixed { slots } else { slots.min(FIRST_DEPTH) };
    Tuner::new(limits, TuningState { threads: spec.threads, depth })
}

type Carrier = Option<(Transfer, BatchTaker, BatchFiller, Emitter)>;

fn start_threads(
    crew: &mut Crew<()>,
    (side, carrier): (DataSide, Carrier),
    (dealer, library, threads): (Arc<RowQueue>, Arc<Library>, Arc<DecodeThreads>),
    max_threads: usize,
    ending: &Ending,
) -> Result<(), FeedError> {
    let told = ending.clone();
    crew.spawn("data", move |_| told.note(side.run()))?;
    if let Some((transfer, from, to, emitter)) = carrier {
        let told = ending.clone();
        crew.spawn("transfer", move |_| told.note(carry(transfer, &from, &to, &emitter)))?;
    }
    for number in 0..max_threads.max(1) {
        let (dealer, library, threads) = (Arc::clone(&dealer), Arc::clone(&library), Arc::clone(&threads));
        let told = ending.clone();
        let body = move |_: &StopFlag| told.note(decode(number, &dealer, library, &threads));
        crew.spawn(format!("decode-{number}"), body)?;
    }
    Ok(())
}

/// The life of a decode thread.
fn decode(number: usize, dealer: &RowQueue, library: Arc<Library>, threads: &DecodeThreads) -> Result<(), FeedError> {
    let mut loader = RowLoader::new(Arc::clone(&library));
    while threads.may_work(number) {
        let mut task = dealer.deal()?;
        let row = loader.load(&mut task)?;
        dealer.finish(task, row)?;
    }
    Ok(())
}
