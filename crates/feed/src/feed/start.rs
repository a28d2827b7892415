//! Starting a feed: takes all memory, connects the stages with rings, starts the threads.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use tandem_device::transfer::Measured;
use tandem_device::{Block, Event, Isolation, Route, Transfer, View};
use tandem_pipeline::{CoreSet, Crew, RingHandle, RingSlot, StopFlag, ring};
use tandem_storage::{StorageError, StorageInterrupt};

use super::Feed;
use super::data_thread::DataThread;
use super::messages::Messages;
use super::rings::{BatchFiller, BatchTaker, batch_slots, pinned_slots};
use super::spec::FeedSpec;
use crate::batch::feed_plan::{DATA_SLOTS, MODEL_SLOTS};
use crate::collate::Collator;
use crate::error::FeedError;
use crate::featurize::on_device::FeatureMaker;
use crate::load::context::LoadContext;
use crate::load::decode_threads::DecodeThreads;
use crate::load::input::Input;
use crate::load::loaded::PINNED_RING;
use crate::load::read_ahead::{ReadAheadWalk, ReadAheadWindow};
use crate::load::row_loader::RowLoader;
use crate::load::row_queue::RowQueue;
use crate::load::slow_recordings::SlowRecordings;
use crate::transfer::TransferThread;
use crate::transfer_checks::TransferChecks;
use crate::tune::self_tuning::{SelfTuning, TuningLog, WaitCounters};
use crate::tune::tuner::{Tuner, TuningLimits, TuningState};
use crate::upload::uploader::Uploader;

impl Feed {
    /// Takes all memory, verifies the transfer, and starts every thread. The feed then fills itself.
    ///
    /// With cores in the spec, the memory is taken on a thread that runs there: a driver allocates pinned memory on the NUMA
    /// node of the thread that asks.
    ///
    /// Fails if memory, kernels or threads are not available; memory taken until then is freed.
    pub fn start(roles: &Isolation, spec: FeedSpec) -> Result<Feed, FeedError> {
        let cores = spec.cores.clone();
        CoreSet::run(cores.as_ref(), "feed-start", || Feed::start_here(roles, spec))?
    }

    fn start_here(roles: &Isolation, mut spec: FeedSpec) -> Result<Feed, FeedError> {
        spec.recordings = SlowRecordings::wrap(spec.recordings)?;
        let input = Arc::new(Input::new(&spec)?);
        let messages = Messages::default();
        let context = Arc::new(LoadContext::open(Arc::clone(&input), &spec, &messages)?);
        let (device, arena, plan) = (&roles.data.device, &roles.data.arena, &input.plan);

        let (pinned_filler, loaded) = ring(PINNED_RING, pinned_slots(device, plan)?);
        let handover = plan.route == Route::Handover;
        let num_data_slots = plan.data_slots + if handover { plan.model_slots } else { 0 };
        let data_slots = batch_slots(arena, DATA_SLOTS, num_data_slots, plan)?;
        let stream = Arc::new(device.stream(false)?);
        // Fields have gaps between them, and whole slots are copied: no byte is copied that was never written.
        data_slots.iter().try_for_each(|slot| stream.fill(slot.memory.view(), 0))?;
        let uploader = Uploader::create(device, arena, plan)?;
        let features = FeatureMaker::create(device, arena, &stream, &input)?;
        let collator = Collator::create(device, input.features())?;
        let link = if handover { None } else { Some(ModelLink::open(roles, &spec, &data_slots)?) };
        let checks = link.as_ref().and_then(|link| link.checks.clone());
        let (slots, data_taker) = ring("data ring", data_slots);

        let threads = Arc::new(DecodeThreads::new(spec.threads));
        let waits = WaitCounters::default();
        let tuner = tuner_for(&spec, num_data_slots as usize);
        let depth = tuner.setting().depth;
        slots.set_depth(depth);
        let log = TuningLog {
            emitter: spec.emitter.clone(),
            messages: messages.clone(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            model_slots: plan.model_slots,
            route: plan.route,
        };
        let tuning = SelfTuning::new(tuner, Arc::clone(&threads), waits.clone(), log);
        let (next, slot_wait_ns) = (spec.from.next, Arc::clone(&waits.slot_wait_ns));
        let read_ahead = read_ahead(&spec, &input);
        let queue = RowQueue::new(Arc::clone(&input), pinned_filler, next, slot_wait_ns);
        let queue = Arc::new(queue.with_read_ahead(read_ahead.clone()));
        let mut rings = vec![loaded.handle(), data_taker.handle()];
        let data_stream = Arc::clone(&stream);
        let emitter = spec.emitter.clone();
        let data =
            DataThread { input, loaded, uploader, stream, features, collator, slots, tuning, emitter: emitter.clone() };

        let (taker, transfer, measured) = match link {
            None => (data_taker, None, None),
            Some(ModelLink { transfer, filler, taker, measured, .. }) => {
                rings.push(taker.handle());
                let checks = checks.clone();
                let thread = TransferThread { transfer, from: data_taker, to: filler, emitter, checks };
                (taker, Some(thread), Some(measured))
            }
        };
        let shutdown = Shutdown {
            first_error: Arc::default(),
            rings: rings.clone(),
            threads: Arc::clone(&threads),
            read_ahead: read_ahead.clone(),
            storage_waits: StorageInterrupt::new(),
        };
        let mut crew = Crew::new("feed").on_cores(spec.cores);
        let closing = shutdown.clone();
        crew.on_stop(move || closing.close());
        let mut feed = Feed {
            taker,
            rings,
            crew: None,
            shutdown: shutdown.clone(),
            data_stream,
            threads: Arc::clone(&threads),
            context: Arc::clone(&context),
            read_ahead: read_ahead.clone(),
            stall_ns: waits.stall_ns,
            leased: 0,
            next,
            forgotten_before: next,
            messages,
            list_error_reported: AtomicBool::new(false),
            transfer: measured,
            checks,
            crosses_cards: roles.data.device.index() != roles.model.device.index(),
            consumer: roles.model.device.clone(),
            returns: None,
            late: None,
            warm_slots: depth,
        };
        if let Some(window) = read_ahead {
            let walk = ReadAheadWalk::new(Arc::clone(&context), window, next);
            let storage_waits = shutdown.storage_waits.clone();
            crew.spawn("read-ahead", move |_| storage_waits.run(|| walk.run()))?;
        }
        let decode = Decoding { queue, context, threads, max_threads: spec.max_threads };
        let started = start_threads(&mut crew, data, transfer, &decode, &shutdown);
        feed.crew = Some(crew);
        started.map(|()| feed)
    }
}

/// The transfer to the model role's memory, and the ring there.
struct ModelLink {
    transfer: Transfer,
    filler: BatchFiller,
    taker: BatchTaker,
    measured: Measured,
    checks: Option<Arc<TransferChecks>>,
}

impl ModelLink {
    fn open(roles: &Isolation, spec: &FeedSpec, data: &[RingSlot<Block, Event>]) -> Result<ModelLink, FeedError> {
        let (plan, to) = (&spec.plan, &roles.model.arena);
        let slots = batch_slots(to, MODEL_SLOTS, plan.model_slots, plan)?;
        let (from, why) = (&roles.data.arena, &spec.route_why);
        let mut transfer = Transfer::open(plan.route, why, from, to, plan.slot_bytes())?;
        if data.is_empty() || slots.is_empty() {
            return Err(FeedError::Ended);
        }
        let measured = transfer.prove(&views(data), &views(&slots))?;
        let checks = TransferChecks::create(roles, plan, slots.iter().map(|slot| &slot.memory))?;
        let (filler, taker) = ring("model ring", slots);
        Ok(ModelLink { transfer, filler, taker, measured, checks: checks.map(Arc::new) })
    }
}

/// The memory of every slot.
fn views(slots: &[RingSlot<Block, Event>]) -> Vec<View<'_>> {
    slots.iter().map(|slot| slot.memory.view()).collect()
}

/// The default prefetch depth at the start: enough for a steady producer. Bursts increase it, up to all slots.
const FIRST_DEPTH: usize = 12;

fn tuner_for(spec: &FeedSpec, slots: usize) -> Tuner {
    let limits = TuningLimits {
        min_threads: 1,
        max_threads: spec.max_threads,
        threads_fixed: spec.max_threads == spec.threads,
        // With a hand-over the step leases from the data ring, and may hold as many as the model has slots.
        min_depth: if spec.plan.route == Route::Handover { slots.min(spec.plan.model_slots as usize + 1) } else { 1 },
        max_depth: slots,
        depth_fixed: spec.depth_fixed,
    };
    let depth = if spec.depth_fixed { slots } else { slots.min(FIRST_DEPTH) };
    Tuner::new(limits, TuningState { threads: spec.threads, depth })
}

/// The window of recordings that are fetched ahead, if there is a budget for it.
fn read_ahead(spec: &FeedSpec, input: &Input) -> Option<Arc<ReadAheadWindow>> {
    let max_batches = ReadAheadWalk::max_batches(input.order.num_batches(), input.shard.world);
    (spec.read_ahead_bytes > 0).then(|| Arc::new(ReadAheadWindow::new(spec.read_ahead_bytes, max_batches)))
}

/// What decode threads run on.
struct Decoding {
    queue: Arc<RowQueue>,
    context: Arc<LoadContext>,
    threads: Arc<DecodeThreads>,
    max_threads: usize,
}

fn start_threads(
    crew: &mut Crew<()>,
    data: DataThread,
    transfer: Option<TransferThread>,
    decode: &Decoding,
    shutdown: &Shutdown,
) -> Result<(), FeedError> {
    let on_end = shutdown.clone();
    let machine = data.stream.device().machine().clone();
    let on_machine = machine.clone();
    crew.spawn("data", move |_| {
        on_machine.ignore_foreign_captures();
        on_end.thread_ended(data.run());
    })?;
    if let Some(transfer) = transfer {
        let on_end = shutdown.clone();
        let on_machine = machine.clone();
        crew.spawn("transfer", move |_| {
            on_machine.ignore_foreign_captures();
            on_end.thread_ended(transfer.run());
        })?;
    }
    for number in 0..decode.max_threads.max(1) {
        let (queue, threads) = (Arc::clone(&decode.queue), Arc::clone(&decode.threads));
        let (context, on_end) = (Arc::clone(&decode.context), shutdown.clone());
        let load = move || RowLoader::new(context).run(number, &queue, &threads);
        let on_machine = machine.clone();
        let body = move |_: &StopFlag| {
            on_machine.ignore_foreign_captures();
            on_end.thread_ended(on_end.storage_waits.run(load));
        };
        crew.spawn(format!("decode-{number}"), body)?;
    }
    Ok(())
}

/// How a feed ends: the first thread that fails stores its error, closes every ring and ends every wait for a store, so that no
/// thread waits forever, or for a network that is gone.
#[derive(Clone)]
pub(super) struct Shutdown {
    first_error: Arc<Mutex<Option<FeedError>>>,
    rings: Vec<RingHandle>,
    threads: Arc<DecodeThreads>,
    read_ahead: Option<Arc<ReadAheadWindow>>,
    /// Of the threads of this feed. Other feeds of the same corpus share its storage, and read on.
    storage_waits: StorageInterrupt,
}

impl Shutdown {
    /// A thread has ended. That the feed ends is no error.
    fn thread_ended(&self, outcome: Result<(), FeedError>) {
        if let Some(error) = outcome.err().filter(|error| !is_end_of_feed(error)) {
            self.first_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
        self.close();
    }

    fn close(&self) {
        self.threads.end();
        self.read_ahead.iter().for_each(|window| window.end());
        self.storage_waits.raise();
        self.rings.iter().for_each(RingHandle::close);
    }

    pub(super) fn take_error(&self) -> Option<FeedError> {
        self.first_error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Whether a thread failed only because the feed ends: a ring was closed, or a wait for a store was ended.
fn is_end_of_feed(error: &FeedError) -> bool {
    matches!(error, FeedError::Closed(_) | FeedError::StorageUnreachable { error: StorageError::Interrupted { .. } })
}
