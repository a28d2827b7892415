//! Transfers of batches from the data role's memory to the model role's.
//!
//! - **peer**: card to card by peer access, without the host, as a copy between two addresses.
//! - **peer-copy**: the same by the driver's call for two contexts. Some drivers do only one of the two right.
//! - **staged**: that call without peer access: the driver copies through the host.
//! - **bounce**: through a pinned staging buffer on the host, with a copy stream on each card; always works.
//! - **hand-over**: both roles are on one device; the model reads the batch in place.
//!
//! [`Route::LADDER`] has all that cross from card to card. A route is proven on the memory of the run before it is used, all
//! slots, byte by byte: some cards report peer access and deliver nothing. A [`CopyCheck`] checks single copies later.

mod check;

use std::time::Duration;

use tandem_events::TimeSpan;

use crate::arena::{Arena, View};
use crate::device::Device;
use crate::driver::{PeerCall, TEARDOWN_DEADLINE};
use crate::error::DeviceError;
use crate::fault::{Fault, Slow};
use crate::kernels::pattern_word;
use crate::pinned::Pinned;
use crate::stream::{Event, Stream};

pub use check::{Checksums, CopyCheck};

/// The transfer route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "explained at the top of the file")]
pub enum Route {
    Peer,
    PeerCopy,
    Staged,
    Bounce,
    Handover,
}

impl Route {
    /// The routes from card to card, the one that is usually fastest first. The last always works.
    pub const LADDER: [Route; 4] = [Route::Peer, Route::PeerCopy, Route::Staged, Route::Bounce];

    /// Its name in flags and messages.
    pub fn name(self) -> &'static str {
        match self {
            Route::Peer => "peer",
            Route::PeerCopy => "peer-copy",
            Route::Staged => "staged",
            Route::Bounce => "bounce",
            Route::Handover => "handover",
        }
    }

    /// The route of this name.
    pub fn named(name: &str) -> Option<Route> {
        Route::LADDER.into_iter().chain([Route::Handover]).find(|route| route.name() == name)
    }

    /// Whether it needs peer access between the cards.
    pub fn needs_peer_access(self) -> bool {
        matches!(self, Route::Peer | Route::PeerCopy)
    }

    /// The driver call of a route that the data side's card copies alone.
    fn peer_call(self) -> Option<PeerCall> {
        match self {
            Route::Peer => Some(PeerCall::Unified),
            Route::PeerCopy | Route::Staged => Some(PeerCall::BetweenContexts),
            Route::Bounce | Route::Handover => None,
        }
    }
}

/// The longest that a proof waits for its copies: a link that takes longer for one batch hangs.
const PROOF_DEADLINE: Duration = Duration::from_secs(10);
/// Copies of a proof that are timed.
const TIMED_COPIES: usize = 5;

/// The names of a transfer's waits.
pub mod waits {
    /// The copy waits until the data side has written the batch.
    pub const WRITTEN: &str = "transfer waits for the batch to be written";
    /// The copy waits until the model side has finished with the slot.
    pub const SLOT_FREE: &str = "transfer waits for the slot to be free";
    /// The model side waits for a peer copy.
    pub const CROSSED: &str = "model side waits for the peer copy";
    /// The copy to the host waits until the copy from the host has read the staging buffer.
    pub const STAGING_FREE: &str = "copy to the host waits for the staging buffer to be free";
    /// The copy from the host waits until the copy to the host is done.
    pub const STAGED: &str = "copy from the host waits for the staging buffer to be filled";
}

/// Two staging buffers: one fills while the other empties.
const STAGING: usize = 2;

/// Pinned bytes that a transfer of batches of up to `batch_bytes` takes when it is opened.
pub fn staging_bytes(route: Route, batch_bytes: u64) -> u64 {
    match route {
        Route::Bounce => STAGING as u64 * batch_bytes,
        Route::Peer | Route::PeerCopy | Route::Staged | Route::Handover => 0,
    }
}

/// Copies batches between two devices, or between two arenas of one.
pub struct Transfer {
    route: Route,
    why: String,
    from: Device,
    to: Device,
    source_stream: Stream,
    target_stream: Stream,
    staging: Vec<Staging>,
    next: usize,
    /// Recorded after a peer copy, for the target stream to wait for.
    peer_copied: Event,
    /// How often everything is copied: once, unless a slow transfer is injected.
    times: u32,
    /// [`PROOF_DEADLINE`]; shorter in tests.
    pub(crate) proof_deadline: Duration,
}

/// The events around one copy.
struct CopyEvents<'a> {
    /// The source may be read.
    written: &'a Event,
    /// The source may be overwritten.
    sent: &'a Event,
    /// The target may be written.
    free: &'a Event,
    /// The target may be read.
    arrived: &'a Event,
}

struct Staging {
    memory: Pinned,
    filled: Event,
    emptied: Event,
}

/// Timers around one copy at a time. Each leg is timed by the card it runs on, because two cards have two clocks.
pub struct CopyTimers {
    source: LegTimers,
    /// For the second leg of a bounce, which runs on the target card.
    target: Option<LegTimers>,
}

/// Timers at the start and the end of one leg.
struct LegTimers {
    began: Event,
    ended: Event,
}

/// The timers that one copy of a leg records.
#[derive(Clone, Copy)]
struct LegMarks<'a> {
    began: Option<&'a Event>,
    ended: Option<&'a Event>,
}

impl<'a> LegMarks<'a> {
    /// The start timer for the first copy, the end timer for the last.
    fn of(timers: Option<&'a LegTimers>, first: bool, last: bool) -> LegMarks<'a> {
        LegMarks {
            began: timers.filter(|_| first).map(|timers| &timers.began),
            ended: timers.filter(|_| last).map(|timers| &timers.ended),
        }
    }
}

/// When a copy ran, without its waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyTimes {
    /// One leg; through the host two.
    pub legs: Vec<TimeSpan>,
}

impl CopyTimes {
    /// The longer leg: it bounds the throughput, since the legs of consecutive batches overlap.
    pub fn longest_ns(&self) -> u64 {
        self.legs.iter().map(|leg| leg.ns).max().unwrap_or(0)
    }

    /// The sum of all legs.
    pub fn busy_ns(&self) -> u64 {
        self.legs.iter().map(|leg| leg.ns).sum()
    }
}

impl CopyTimers {
    /// The times of the last copy with these timers; `None` while it is in flight. Never waits.
    pub fn read(&self) -> Result<Option<CopyTimes>, DeviceError> {
        let mut legs = Vec::with_capacity(2);
        for leg in std::iter::once(&self.source).chain(&self.target) {
            if !leg.ended.reached()? {
                return Ok(None);
            }
            legs.push(leg.ended.span_since(&leg.began)?);
        }
        Ok(Some(CopyTimes { legs }))
    }
}

/// The measured speed of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of one copy.
    pub bytes: u64,
    /// Nanoseconds of the fastest copy.
    pub ns: u64,
}

impl Measured {
    /// 10⁹ bytes per second.
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / self.ns.max(1) as f64
    }
}

impl Transfer {
    /// Prepares `route` between two arenas for batches of up to `batch_bytes`. `why` is displayed with the route.
    ///
    /// A route that needs peer access enables it in both directions first, and fails if the cards do not support it.
    pub fn open(route: Route, why: &str, from: &Arena, to: &Arena, batch_bytes: u64) -> Result<Transfer, DeviceError> {
        let (source, target) = (from.device(), to.device());
        let same = source.index() == target.index();
        match route {
            Route::Handover if !same => return Err(no_route(route, source, target, "they are two devices")),
            Route::Peer | Route::PeerCopy if !same => open_peer(route, from, to)?,
            // A route that was tried before may have enabled access: with it, the driver would copy as that route does.
            _ => {
                from.deny_peers()?;
                to.deny_peers()?;
            }
        }
        let staging = match route {
            Route::Bounce => {
                (0..STAGING).map(|_| Staging::new(source, target, batch_bytes)).collect::<Result<_, _>>()?
            }
            _ => Vec::new(),
        };
        Ok(Transfer {
            route,
            why: why.to_owned(),
            from: source.clone(),
            to: target.clone(),
            source_stream: source.stream(false)?,
            target_stream: target.stream(false)?,
            staging,
            next: 0,
            peer_copied: source.event()?,
            times: Fault::from_env()?.times(Slow::Transfer),
            proof_deadline: PROOF_DEADLINE,
        })
    }

    /// Its route.
    pub fn route(&self) -> Route {
        self.route
    }

    /// The route and its reason; `peer (same device)` if it was forced on one card.
    pub fn describe(&self) -> String {
        let same = self.from.index() == self.to.index();
        let place = if same && self.route != Route::Handover { " (same device)" } else { "" };
        format!("{}{place}: {}", self.route.name(), self.why)
    }

    /// Queues a copy of `from` to `to` with its waits and records.
    fn send(&mut self, from: View<'_>, to: View<'_>, events: &CopyEvents<'_>) -> Result<(), DeviceError> {
        self.after_written(events.written)?;
        self.after_free(events.free)?;
        self.copy(from, to)?;
        self.record_sent(events.sent)?;
        self.record_arrived(events.arrived)
    }

    /// Makes the next copy wait until the batch is written: `written` is an event of the data side.
    pub fn after_written(&self, written: &Event) -> Result<(), DeviceError> {
        self.source_stream.wait(written, waits::WRITTEN)
    }

    /// Makes the next copy wait until the last reader of its target is done: `free` is an event of the model side.
    pub fn after_free(&self, free: &Event) -> Result<(), DeviceError> {
        let is_bounce = self.route == Route::Bounce;
        let writer = if is_bounce { &self.target_stream } else { &self.source_stream };
        writer.wait(free, waits::SLOT_FREE)?;
        // With an injected slow transfer the first leg would wait for the second in the middle, and its time would
        // include that wait: it starts later instead.
        if is_bounce && self.times > 1 { self.source_stream.wait(free, waits::SLOT_FREE) } else { Ok(()) }
    }

    /// Queues the copy itself, after [`after_written`](Transfer::after_written) and
    /// [`after_free`](Transfer::after_free) of the same batch.
    pub fn copy(&mut self, from: View<'_>, to: View<'_>) -> Result<(), DeviceError> {
        self.copy_between(from, to, None, None)
    }

    /// Timers for [`copy_timed`](Transfer::copy_timed).
    pub fn timers(&self) -> Result<CopyTimers, DeviceError> {
        let leg = |device: &Device| Ok::<_, DeviceError>(LegTimers { began: device.timer()?, ended: device.timer()? });
        let target = (self.route == Route::Bounce).then(|| leg(&self.to)).transpose()?;
        Ok(CopyTimers { source: leg(&self.from)?, target })
    }

    /// [`copy`](Transfer::copy), timed, with checksums of both sides if there is a `check`.
    pub fn copy_timed(
        &mut self,
        from: View<'_>,
        to: View<'_>,
        timers: &CopyTimers,
        check: Option<&mut CopyCheck>,
    ) -> Result<(), DeviceError> {
        self.copy_between(from, to, Some(timers), check)
    }

    fn copy_between(
        &mut self,
        from: View<'_>,
        to: View<'_>,
        timers: Option<&CopyTimers>,
        mut check: Option<&mut CopyCheck>,
    ) -> Result<(), DeviceError> {
        if let Some(check) = &mut check {
            check.queue_sent(&self.source_stream, from)?;
        }
        self.copy_all_times(from, to, timers)?;
        check.map_or(Ok(()), |check| check.queue_arrived(&self.target_stream, to))
    }

    fn copy_all_times(&mut self, from: View<'_>, to: View<'_>, timers: Option<&CopyTimers>) -> Result<(), DeviceError> {
        let last = self.times - 1;
        // An injected slow transfer repeats the copy; the timers span from the first copy to the last.
        (0..self.times).try_for_each(|time| {
            let (first, last) = (time == 0, time == last);
            let source = LegMarks::of(timers.map(|timers| &timers.source), first, last);
            let target = LegMarks::of(timers.and_then(|timers| timers.target.as_ref()), first, last);
            self.copy_once(from, to, source, target)
        })
    }

    /// Copies once; `source` and `target` are the timers of the two legs.
    fn copy_once(
        &mut self,
        from: View<'_>,
        to: View<'_>,
        source: LegMarks<'_>,
        target: LegMarks<'_>,
    ) -> Result<(), DeviceError> {
        match self.route {
            Route::Handover => Err(no_route(self.route, &self.from, &self.to, "a hand-over copies nothing")),
            Route::Peer | Route::PeerCopy | Route::Staged => {
                let Some(call) = self.route.peer_call() else { unreachable!("copied by one card") };
                timed(&self.source_stream, source, |stream| stream.copy_peer(from, to, call))?;
                // An event can be recorded on its own card only: the target stream waits for this one, and then records
                // the event that its readers wait for.
                self.source_stream.record(&self.peer_copied)?;
                self.target_stream.wait(&self.peer_copied, waits::CROSSED)
            }
            Route::Bounce => {
                let turn = self.next % STAGING;
                self.next += 1;
                let staging = &mut self.staging[turn];
                self.source_stream.wait(&staging.emptied, waits::STAGING_FREE)?;
                timed(&self.source_stream, source, |stream| {
                    stream.download(from, &mut staging.memory, 0..from.bytes())
                })?;
                self.source_stream.record(&staging.filled)?;
                self.target_stream.wait(&staging.filled, waits::STAGED)?;
                timed(&self.target_stream, target, |stream| stream.upload(&staging.memory, 0..to.bytes(), to))?;
                self.target_stream.record(&staging.emptied)
            }
        }
    }

    /// Records that the source of the last copy may be overwritten: an event of the data side.
    pub fn record_sent(&self, sent: &Event) -> Result<(), DeviceError> {
        self.source_stream.record(sent)
    }

    /// Records that the target of the last copy may be read: an event of the model side.
    pub fn record_arrived(&self, arrived: &Event) -> Result<(), DeviceError> {
        self.target_stream.record(arrived)
    }

    /// Blocks the host until every copy queued so far has arrived. Copies that do not end in time are an error, and nothing waits
    /// for either card any more.
    pub fn drain(&self) -> Result<(), DeviceError> {
        for stream in [&self.source_stream, &self.target_stream] {
            let end = stream.device().event()?;
            stream.record(&end)?;
            self.await_within(&end, TEARDOWN_DEADLINE)?;
        }
        Ok(())
    }

    /// Sends a pattern through every slot of both sides, compares every byte that arrives, and times a few more copies.
    ///
    /// Fails with [`DeviceError::Corrupt`] for wrong bytes and with [`DeviceError::TimedOut`] for copies that do not end.
    pub fn prove(&mut self, from: &[View<'_>], to: &[View<'_>]) -> Result<Measured, DeviceError> {
        assert!(!from.is_empty() && !to.is_empty(), "a proof needs a slot on each side");
        let mut fastest: Option<Measured> = None;
        // As many copies as the longer side has slots: each slot of both is used at least once.
        for slot in 0..from.len().max(to.len()) {
            let measured = self.prove_slot(from[slot % from.len()], to[slot % to.len()], slot == 0)?;
            fastest = fastest.or(measured);
        }
        Ok(fastest.unwrap_or(Measured { bytes: 0, ns: 1 }))
    }

    /// The proof for one slot of each side; timed if `is_timed`.
    fn prove_slot(&mut self, from: View<'_>, to: View<'_>, is_timed: bool) -> Result<Option<Measured>, DeviceError> {
        let mut source = self.from.pinned(from.bytes())?;
        let words = source.bytes_mut()?.chunks_exact_mut(4).enumerate();
        words.for_each(|(i, word)| word.copy_from_slice(&pattern_word(from.bytes(), i as u64).to_le_bytes()));
        let (written, sent) = (self.from.event()?, self.from.event()?);
        let (free, arrived) = (self.to.event()?, self.to.event()?);
        let events = CopyEvents { written: &written, sent: &sent, free: &free, arrived: &arrived };
        self.source_stream.upload(&source, 0..from.bytes(), from)?;
        self.source_stream.record(&written)?;
        self.target_stream.fill(to, 0)?;
        self.target_stream.record(&free)?;
        self.send(from, to, &events)?;
        let mut target = self.to.pinned(to.bytes())?;
        self.target_stream.wait(&arrived, "the proof waits for its copy")?;
        self.target_stream.download(to, &mut target, 0..to.bytes())?;
        self.target_stream.record(&arrived)?;
        self.await_proof(&arrived)?;
        self.compare(source.bytes()?, target.bytes()?)?;
        if !is_timed {
            return Ok(None);
        }
        let mut fastest = u64::MAX;
        for _ in 0..TIMED_COPIES {
            let start = self.from.machine().now_ns();
            self.send(from, to, &events)?;
            self.await_proof(&arrived)?;
            fastest = fastest.min(self.from.machine().now_ns() - start);
        }
        Ok(Some(Measured { bytes: from.bytes(), ns: fastest }))
    }

    /// Waits for an event of a proof.
    fn await_proof(&self, arrived: &Event) -> Result<(), DeviceError> {
        self.await_within(arrived, self.proof_deadline)
    }

    fn await_within(&self, arrived: &Event, longest: Duration) -> Result<(), DeviceError> {
        let card = self.from.index();
        match arrived.synchronize_within(longest)? {
            true => Ok(()),
            false => {
                self.from.abandon();
                self.to.abandon();
                let seconds = longest.as_secs();
                Err(DeviceError::TimedOut { card, during: "copying a batch to the other card", seconds })
            }
        }
    }

    fn compare(&self, sent: &[u8], arrived: &[u8]) -> Result<(), DeviceError> {
        let wrong = sent.iter().zip(arrived).filter(|(a, b)| a != b).count() as u64;
        match wrong {
            0 => Ok(()),
            wrong => Err(DeviceError::Corrupt {
                route: self.route.name().to_owned(),
                from: self.from.index(),
                to: self.to.index(),
                wrong,
                bytes: sent.len() as u64,
            }),
        }
    }
}

impl Staging {
    fn new(source: &Device, target: &Device, bytes: u64) -> Result<Staging, DeviceError> {
        Ok(Staging { memory: source.pinned(bytes)?, filled: source.event()?, emptied: target.event()? })
    }
}

/// Queries peer access in both directions, then enables it in both.
fn open_peer(route: Route, from: &Arena, to: &Arena) -> Result<(), DeviceError> {
    let (source, target) = (from.device(), to.device());
    let machine = source.machine();
    let both = machine.can_access_peer(target.index(), source.index())?
        && machine.can_access_peer(source.index(), target.index())?;
    if !both {
        return Err(no_route(route, source, target, "the driver reports no peer access between them"));
    }
    from.allow_peer(target)?;
    to.allow_peer(source)
}

/// Queues work on `stream` between the timers of its leg.
fn timed(
    stream: &Stream,
    timers: LegMarks<'_>,
    work: impl FnOnce(&Stream) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    let record = |timer: Option<&Event>| timer.map_or(Ok(()), |timer| stream.record(timer));
    record(timers.began)?;
    work(stream)?;
    record(timers.ended)
}

fn no_route(route: Route, from: &Device, to: &Device, why: &str) -> DeviceError {
    DeviceError::NoRoute { route: route.name(), from: from.index(), to: to.index(), why: why.to_owned() }
}
