//! A running loader: opens, serves batches, says where it is, continues from there.

use std::ops::ControlFlow;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tandem_corpus::{Cursor, Shard};
use tandem_device::{Isolation, Machine, RoleSetup, Route};
use tandem_diagnosis::Diagnosis;
use tandem_events::{Emitter, Role, RunEvent};
use tandem_feed::{Feed, FeedSpec, FeedState, FromFiles};

use crate::batch::{TensorBatch, TensorStyle};
use crate::held::HeldBatches;
use crate::log::{LoaderLog, LoaderMessages, push};
use crate::plan::Prepared;
use crate::recent_events::RecentEvents;
use crate::report;
use crate::state::OrderIdentity;
use crate::{LoaderError, LoaderOptions};

/// How long the program may hold every slot before a message names what it holds.
const LONGEST_STARVING: Duration = Duration::from_secs(5);

/// What comes next.
pub enum Next {
    /// A batch.
    Batch(TensorBatch),
    /// The epoch is over: the next call gives the first batch of the next one.
    EpochEnd,
    /// No batch yet.
    NotReady,
}

/// A loader. It makes batches ahead, on threads of its own, until it is closed or dropped.
pub struct Loader {
    // Dropped before the arenas that own its memory.
    feed: Option<Feed>,
    roles: Option<Isolation>,
    prepared: Prepared,
    route: Route,
    identity: OrderIdentity,
    events: Arc<RecentEvents>,
    log: Option<LoaderLog>,
    messages: LoaderMessages,
    held: HeldBatches,
    epoch: u64,
    /// The next batch; with several ranks, the first of their next group.
    next: Cursor,
    /// Whether the end of an epoch is to be reported before the next batch.
    at_epoch_end: bool,
    steps: u64,
    /// When the batch before was handed out, and how long the program has waited since.
    last_batch: Option<Instant>,
    waited: Duration,
    /// How long the program has waited while it held every slot; none after the message about it.
    starved: Option<Duration>,
}

impl Loader {
    /// Opens the corpus, takes all memory, and starts to make batches.
    ///
    /// Cost: measures recordings whose length no list gives, once. Fails if an option cannot be met, with what would work.
    pub fn open(options: LoaderOptions) -> Result<Loader, LoaderError> {
        Loader::open_watched(options, &mut || ControlFlow::Continue(()))
    }

    /// The same; `watch` is called after each recording that is measured, on this thread, and can stop it
    /// ([`LoaderError::Stopped`]).
    pub fn open_watched(
        options: LoaderOptions,
        watch: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Loader, LoaderError> {
        let prepared = Prepared::new(options, watch)?;
        let machine = prepared.placement.machine.clone();
        let _thread = machine.enter_foreign_thread();
        let messages = LoaderMessages::default();
        prepared.notes().into_iter().for_each(|note| push(&messages, note));
        let (log, further) = LoaderLog::open(&prepared.options, &messages)?;
        let events = RecentEvents::new(further);
        let identity = OrderIdentity::of(&prepared);
        let (route, roles, feed) = start(&prepared, &events.emitter(), FeedState::default(), &messages)?;
        let emitter = events.emitter();
        emitter.emit(RunEvent::RunStarted {
            command: "feed".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            plan_json: Some(prepared.json(route).to_string()),
        });
        emitter.emit(RunEvent::DeviceClock { now_ns: machine.now_ns(), devices: machine.kind().name().to_owned() });
        Role::BOTH.iter().for_each(|role| emitter.emit(roles.partition(*role).reserved_event()));
        Ok(Loader {
            feed: Some(feed),
            roles: Some(roles),
            route,
            identity,
            events,
            log,
            messages,
            held: HeldBatches::default(),
            epoch: 0,
            next: Cursor::START,
            at_epoch_end: false,
            steps: 0,
            last_batch: None,
            waited: Duration::ZERO,
            starved: Some(Duration::ZERO),
            prepared,
        })
    }

    /// The next batch, or the end of an epoch. Waits on the host for `longest` at most until a batch is queued; on the CPU it is
    /// made then.
    ///
    /// Fails with what ended the feed: a store that does not answer, too many bad recordings, a lost card. Fails once if a batch
    /// could not be released because a stream that read it is gone.
    pub fn next_batch(&mut self, longest: Duration) -> Result<Next, LoaderError> {
        let machine = self.machine();
        let _thread = machine.enter_foreign_thread();
        let feed = self.feed.as_mut().ok_or(LoaderError::Closed)?;
        if std::mem::take(&mut self.at_epoch_end) {
            self.epoch = self.next.epoch;
            return Ok(Next::EpochEnd);
        }
        let asked = Instant::now();
        let Some(shared) = feed.lease_shared(longest)? else {
            self.waited += asked.elapsed();
            self.count_starving(asked.elapsed());
            return Ok(Next::NotReady);
        };
        self.starved = Some(Duration::ZERO);
        let waited = std::mem::take(&mut self.waited) + Duration::from_nanos(shared.wait_ns());
        let group = shared.info().group;
        let next = feed.next();
        self.next = next;
        self.at_epoch_end = next.epoch > group.epoch && !self.prepared.options.given.endless;
        self.epoch = if self.at_epoch_end { group.epoch } else { next.epoch };
        let given = &self.prepared.options.given;
        let style = TensorStyle { channels_first: given.channels_first, static_shapes: given.static_shapes };
        let (sequence, bucket) = (shared.info().sequence, shared.info().bucket_index);
        let batch = TensorBatch::new(shared, &self.prepared.opened.rows, &self.held, style)?;
        self.count_step(sequence, bucket, waited);
        Ok(Next::Batch(batch))
    }

    /// A step of the program ends when it has the next batch: that is all that can be seen of it here.
    fn count_step(&mut self, batch: u64, bucket: usize, waited: Duration) {
        let now = Instant::now();
        if let Some(last) = self.last_batch.replace(now) {
            self.steps += 1;
            let (step, emitter) = (self.steps, self.events.emitter());
            let wall_ns = (now - last).as_nanos() as u64;
            let wait_ns = (waited.as_nanos() as u64).min(wall_ns);
            let (busy_ns, bucket) = (wall_ns - wait_ns, bucket as u32);
            emitter.emit(RunEvent::StepWork { step, batch, batches: 1, bucket, busy_ns, wait_ns, began_ns: None });
            emitter.emit(RunEvent::Step { step, wall_ns, wait_ns });
        }
    }

    /// Says once what the program holds, if it has held every slot for long.
    fn count_starving(&mut self, waited: Duration) {
        let Some(feed) = &self.feed else { return };
        // The ring that the program takes from.
        let Some(ring) = feed.stats().rings.pop() else { return };
        let is_starved = ring.leased > 0 && ring.leased + ring.retired >= ring.slots;
        match (&mut self.starved, is_starved) {
            (Some(so_far), true) => {
                *so_far += waited;
                if *so_far >= LONGEST_STARVING {
                    push(&self.messages, self.held.message(ring.slots));
                    self.starved = None;
                }
            }
            (Some(so_far), false) => *so_far = Duration::ZERO,
            (None, _) => {}
        }
    }

    /// Batches of this rank in the current epoch, those handed out included: the same number on every rank. With several ranks,
    /// epochs differ by one if their batches cannot be divided: ranks take turns without a gap, and the batches that they take at
    /// the same time belong to the epoch of the first.
    pub fn batches_per_epoch(&self) -> u64 {
        let (all, world) = (self.prepared.num_batches(), u64::from(self.prepared.options.given.world_size));
        // The position in the endless order, modulo the number of ranks: groups begin at every so many batches.
        let place = |epoch: u64, k: u64| ((epoch % world) * (all % world) + k % world) % world;
        let before_first = (place(self.next.epoch, self.next.k) + world - place(self.epoch, 0)) % world;
        all.saturating_sub(before_first).div_ceil(world)
    }

    /// The current epoch, from 0: the next one begins when the end of this one was reported.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Where it is: after the last batch that was handed out.
    pub fn state(&self) -> Result<Value, LoaderError> {
        let feed = self.feed.as_ref().ok_or(LoaderError::Closed)?;
        Ok(self.identity.state(feed.state()))
    }

    /// Continues from `state`, of this loader or of another with the same corpus and options, with any number of ranks.
    ///
    /// Fails with [`LoaderError::ForeignState`], and with [`LoaderError::InUse`] while batches are held: their memory is the
    /// loader's. After any other error, such as memory that another library has taken meanwhile, the loader is closed.
    pub fn restore(&mut self, state: &Value) -> Result<(), LoaderError> {
        let machine = self.machine();
        let _thread = machine.enter_foreign_thread();
        if self.feed.is_none() {
            return Err(LoaderError::Closed);
        }
        let state = self.identity.read(state)?;
        match self.held.count() {
            0 => {}
            held => return Err(LoaderError::InUse { held }),
        }
        // The memory goes to the next one: nothing is served in between.
        drop(self.feed.take());
        drop(self.roles.take());
        self.events.forget_batches();
        self.next = state.next;
        let epoch = state.next.epoch;
        let (route, roles, feed) = start(&self.prepared, &self.events.emitter(), state, &self.messages)?;
        (self.route, self.roles, self.feed) = (route, Some(roles), Some(feed));
        (self.epoch, self.at_epoch_end, self.last_batch, self.waited) = (epoch, false, None, Duration::ZERO);
        Ok(())
    }

    /// Its counters: batches, stalls, rings, cache, memory.
    pub fn stats(&self) -> Result<Value, LoaderError> {
        match (&self.feed, &self.roles) {
            (Some(feed), Some(roles)) => Ok(report::stats_json(&feed.stats(), roles, self.held.count())),
            _ => Err(LoaderError::Closed),
        }
    }

    /// What limits the training loop so far: stall share, verdicts, and the option to change with the predicted throughput.
    /// Of the last steps, some thousands.
    pub fn profile(&self) -> Result<Value, LoaderError> {
        let diagnosis = Diagnosis::of(&self.events.records());
        let diagnosis = diagnosis.map_err(|error| LoaderError::NotMeasured(error.to_string()))?;
        Ok(report::profile_json(&diagnosis, self.prepared.options.given.held, self.route))
    }

    /// Its plan, as [`plan`](crate::plan()) gives it, with the route that is in use.
    pub fn plan(&self) -> Value {
        self.prepared.json(self.route)
    }

    /// The speakers of the corpus. A position is the id in the tensor `speaker`; rows without a speaker have the id after the
    /// last.
    pub fn speakers(&self) -> Vec<String> {
        let speakers = self.prepared.opened.rows.dataset().samples().speakers();
        speakers.map(str::to_owned).collect()
    }

    /// The languages of the corpus, that of most rows first. A position is the id in the tensor `language`.
    pub fn languages(&self) -> Vec<String> {
        let tokenizer = self.prepared.opened.rows.tokenizer();
        let languages = tokenizer.map(|tokenizer| tokenizer.languages()).unwrap_or_default();
        languages.iter().map(|language| language.tag.clone()).collect()
    }

    /// The symbols of texts. A position is the id in the tensor `text`. Empty with a tokenizer of the program's own.
    pub fn symbols(&self) -> Vec<String> {
        let custom = self.prepared.options.encoder.is_some();
        let tokenizer = self.prepared.opened.rows.tokenizer().filter(|_| !custom);
        tokenizer.map(|tokenizer| tokenizer.table().symbols().to_vec()).unwrap_or_default()
    }

    /// Lines for people since the last call: remarks about the corpus, what is held too long, changes of self-tuning.
    pub fn take_messages(&self) -> Vec<String> {
        let mut lines = std::mem::take(&mut *self.messages.lock().unwrap_or_else(PoisonError::into_inner));
        lines.extend(self.feed.iter().flat_map(Feed::take_messages));
        lines
    }

    /// Ends it: joins every thread, and frees all memory. While a batch is held, the memory of the device that it is on stays, all
    /// of it: it is one reservation. Fails with what ended the feed before, if anything did. A second call does nothing.
    pub fn close(&mut self) -> Result<(), LoaderError> {
        let machine = self.machine();
        let _thread = machine.enter_foreign_thread();
        let stopped = self.feed.take().map_or(Ok(()), Feed::stop);
        drop(self.roles.take());
        if let Some(log) = self.log.take() {
            log.close(stopped.as_ref().err().map(ToString::to_string));
        }
        Ok(stopped?)
    }

    fn machine(&self) -> Machine {
        self.prepared.placement.machine.clone()
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // An error has no receiver here.
        let _ = self.close();
    }
}

/// Takes the memory and starts the feed, over the first route that works there.
fn start(
    prepared: &Prepared,
    emitter: &Emitter,
    from: FeedState,
    messages: &LoaderMessages,
) -> Result<(Route, Isolation, Feed), LoaderError> {
    let placement = &prepared.placement;
    let mut refused: Vec<String> = Vec::new();
    let mut routes = placement.routes()?.into_iter().peekable();
    while let Some(route) = routes.next() {
        prepared.check_limits(route)?;
        let [data, model] = prepared.arenas(route);
        let roles = Isolation::set_up(
            &placement.machine,
            RoleSetup { card: placement.data, arena: data },
            RoleSetup { card: placement.consumer, arena: model },
        )?;
        let why = if placement.is_one_device() { "both are on one device" } else { "the first route that works" };
        let error = match Feed::start(&roles, feed_spec(prepared, route, why, emitter, from.clone())) {
            Ok(feed) => {
                refused.into_iter().for_each(|line| push(messages, line));
                return Ok((route, roles, feed));
            }
            Err(error) => error,
        };
        let is_about_route = error.device_error().is_some_and(|error| error.is_about_route());
        match routes.peek().filter(|_| is_about_route) {
            Some(next) => {
                refused.push(format!("transfer {} does not work ({error}); trying {}", route.name(), next.name()));
            }
            None => return Err(error.into()),
        }
    }
    unreachable!("there is always a route, and the last one returns")
}

fn feed_spec(prepared: &Prepared, route: Route, why: &str, emitter: &Emitter, from: FeedState) -> FeedSpec {
    let given = &prepared.options.given;
    FeedSpec {
        training_set: Arc::clone(&prepared.opened.rows),
        buckets: prepared.buckets.clone(),
        evaluates: false,
        plan: prepared.feed_plan(route),
        route_why: why.to_owned(),
        seed: given.seed,
        shard: Shard { rank: given.rank, world: given.world_size },
        from,
        recordings: Arc::new(FromFiles),
        threads: prepared.threads[0],
        max_threads: prepared.threads[1],
        depth_fixed: true,
        cache: prepared.cache.clone(),
        read_ahead_bytes: if prepared.opened.is_remote { given.read_ahead_mb << 20 } else { 0 },
        max_bad_fraction: given.max_bad_fraction,
        bad_samples: given.log_dir.as_ref().map(|folder| folder.join("bad_samples.jsonl")),
        cores: None,
        emitter: emitter.clone(),
    }
}
