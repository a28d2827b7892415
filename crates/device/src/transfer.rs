//! How a batch crosses from the data role's memory to the model role's.
//!
//! - **peer**: card to card without the host; needs cards that can reach each other.
//! - **bounce**: down to page-locked host memory on one card's copy stream, up on the other's; always works.
//! - **hand-over**: both roles on one device; the model reads the batch where it is.
//!
//! The first use compares bytes: cards have been seen to claim peer access and deliver garbage.

use tandem_events::TimeSpan;

use crate::arena::{Arena, View};
use crate::device::Device;
use crate::error::DeviceError;
use crate::fault::{Fault, Slow};
use crate::kernels::pattern_word;
use crate::pinned::Pinned;
use crate::stream::{Event, Stream};

/// The way batches cross.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "explained at the top of the file")]
pub enum Route {
    Peer,
    Bounce,
    Handover,
}

impl Route {
    /// The word for it in flags and messages.
    pub fn name(self) -> &'static str {
        match self {
            Route::Peer => "peer",
            Route::Bounce => "bounce",
            Route::Handover => "handover",
        }
    }
}

/// The waits of a transfer, by name.
pub mod waits {
    /// The copy waits until the batch is whole on the data side.
    pub const WRITTEN: &str = "transfer waits for the batch to be written";
    /// The copy waits until the model side has finished with the slot.
    pub const SLOT_FREE: &str = "transfer waits for the slot to be free";
    /// The far side waits until the copy has crossed.
    pub const CROSSED: &str = "far side waits for the copy to have crossed";
    /// The way down waits until the staging memory has been read by the way up.
    pub const STAGING_FREE: &str = "bounce down waits for the staging memory to be free";
    /// The way up waits until the way down is done.
    pub const STAGED: &str = "bounce up waits for the bytes to be staged";
}

/// Two staging buffers: one fills while the other empties.
const STAGING: usize = 2;

/// Copies batches between two devices, or between two arenas of one.
pub struct Transfer {
    route: Route,
    why: String,
    from: Device,
    to: Device,
    down: Stream,
    up: Stream,
    staging: Vec<Staging>,
    next: usize,
    /// Recorded behind the last copy to another card, for the far side to wait for.
    crossed: Event,
    /// How often everything is copied: once, unless a slow way is planted.
    times: u32,
}

struct Staging {
    memory: Pinned,
    filled: Event,
    emptied: Event,
}

/// Timers around one copy at a time. Each leg is timed by the card it runs on: two cards have two clocks.
pub struct CopyTimers {
    down: [Event; 2],
    /// Of a bounce, whose second leg runs on the far card.
    up: Option<[Event; 2]>,
}

/// When a copy was under way, without what it waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyTimes {
    /// One leg; over the host two.
    pub legs: Vec<TimeSpan>,
}

impl CopyTimes {
    /// The longer leg: what the way is taken for by a batch, since the legs of two batches overlap.
    pub fn longest_ns(&self) -> u64 {
        self.legs.iter().map(|leg| leg.ns).max().unwrap_or(0)
    }

    /// All legs.
    pub fn busy_ns(&self) -> u64 {
        self.legs.iter().map(|leg| leg.ns).sum()
    }
}

impl CopyTimers {
    /// What the copy they were last given to took; none while it is under way. Asks, and never waits.
    pub fn read(&self) -> Result<Option<CopyTimes>, DeviceError> {
        let mut legs = Vec::with_capacity(2);
        for [began, ended] in std::iter::once(&self.down).chain(&self.up) {
            if !ended.reached()? {
                return Ok(None);
            }
            legs.push(ended.span_since(began)?);
        }
        Ok(Some(CopyTimes { legs }))
    }
}

/// What the first copies showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of one copy.
    pub bytes: u64,
    /// Nanoseconds of one copy, the fastest of those timed.
    pub ns: u64,
}

impl Measured {
    /// 10⁹ bytes per second.
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / self.ns.max(1) as f64
    }
}

impl Transfer {
    /// Prepares `route` between two arenas for batches of up to `batch_bytes`. `why` is said wherever the route is.
    ///
    /// A peer route opens the memory of both sides to each other first, and fails where the cards cannot do that.
    pub fn open(route: Route, why: &str, from: &Arena, to: &Arena, batch_bytes: u64) -> Result<Transfer, DeviceError> {
        let (source, target) = (from.device(), to.device());
        let same = source.index() == target.index();
        match route {
            Route::Handover if !same => return Err(no_route(route, source, target, "they are two devices")),
            Route::Peer if !same => open_peer(from, to)?,
            _ => {}
        }
        let staging = match route {
            Route::Bounce => {
                (0..STAGING).map(|_| Staging::new(source, target, batch_bytes)).collect::<Result<_, _>>()?
            }
            Route::Peer | Route::Handover => Vec::new(),
        };
        Ok(Transfer {
            route,
            why: why.to_owned(),
            from: source.clone(),
            to: target.clone(),
            down: source.stream(false)?,
            up: target.stream(false)?,
            staging,
            next: 0,
            crossed: source.event()?,
            times: Fault::from_env()?.times(Slow::Transfer),
        })
    }

    /// The way batches take.
    pub fn route(&self) -> Route {
        self.route
    }

    /// The route for people: `peer (same device)` when it was forced on one card.
    pub fn describe(&self) -> String {
        let same = self.from.index() == self.to.index();
        let place = if same && self.route != Route::Handover { " (same device)" } else { "" };
        format!("{}{place}: {}", self.route.name(), self.why)
    }

    /// Queues a copy of `from` to `to`. It starts once `written` and `free` have been reached; `sent` is recorded
    /// when the source may be overwritten, `arrived` when the target may be read.
    pub fn send(
        &mut self,
        (from, written, sent): (View<'_>, &Event, &Event),
        (to, free, arrived): (View<'_>, &Event, &Event),
    ) -> Result<(), DeviceError> {
        self.after_written(written)?;
        self.after_free(free)?;
        self.copy(from, to)?;
        self.record_sent(sent)?;
        self.record_arrived(arrived)
    }

    /// The next copy starts only once the batch is whole: `written` is an event of the data side.
    pub fn after_written(&self, written: &Event) -> Result<(), DeviceError> {
        self.down.wait(written, waits::WRITTEN)
    }

    /// The next copy writes its target only once its last reader is done: `free` is an event of the model side.
    pub fn after_free(&self, free: &Event) -> Result<(), DeviceError> {
        let is_bounce = self.route == Route::Bounce;
        let writer = if is_bounce { &self.up } else { &self.down };
        writer.wait(free, waits::SLOT_FREE)?;
        // The first leg of a slow way would stop half-way for the second, and be timed with that: it begins later.
        if is_bounce && self.times > 1 { self.down.wait(free, waits::SLOT_FREE) } else { Ok(()) }
    }

    /// Queues the copy itself, after [`after_written`](Transfer::after_written) and
    /// [`after_free`](Transfer::after_free) of its own batch.
    pub fn copy(&mut self, from: View<'_>, to: View<'_>) -> Result<(), DeviceError> {
        self.copy_between(from, to, None)
    }

    /// Timers for [`copy_timed`](Transfer::copy_timed).
    pub fn timers(&self) -> Result<CopyTimers, DeviceError> {
        let pair = |device: &Device| Ok::<_, DeviceError>([device.timer()?, device.timer()?]);
        let up = (self.route == Route::Bounce).then(|| pair(&self.to)).transpose()?;
        Ok(CopyTimers { down: pair(&self.from)?, up })
    }

    /// [`copy`](Transfer::copy), timed.
    pub fn copy_timed(&mut self, from: View<'_>, to: View<'_>, timers: &CopyTimers) -> Result<(), DeviceError> {
        self.copy_between(from, to, Some(timers))
    }

    fn copy_between(&mut self, from: View<'_>, to: View<'_>, timers: Option<&CopyTimers>) -> Result<(), DeviceError> {
        let last = self.times - 1;
        // A slow way is the same way so many times over, each behind the one before: one copy is its first and its last.
        (0..self.times).try_for_each(|time| {
            let marks = |of: fn(&CopyTimers) -> Option<&[Event; 2]>| {
                let [began, ended] = timers.and_then(of).map_or([None; 2], |[began, ended]| [Some(began), Some(ended)]);
                [began.filter(|_| time == 0), ended.filter(|_| time == last)]
            };
            self.copy_once((from, marks(|timers| Some(&timers.down))), (to, marks(|timers| timers.up.as_ref())))
        })
    }

    /// Each leg with the timers that are to be recorded before and behind it.
    fn copy_once(
        &mut self,
        (from, down): (View<'_>, [Option<&Event>; 2]),
        (to, up): (View<'_>, [Option<&Event>; 2]),
    ) -> Result<(), DeviceError> {
        match self.route {
            Route::Handover => Err(no_route(self.route, &self.from, &self.to, "a hand-over copies nothing")),
            Route::Peer => {
                timed(&self.down, down, |stream| stream.copy_peer(from, to))?;
                // An event is recorded on its own card only: the far side waits, and then tells its readers.
                self.down.record(&self.crossed)?;
                self.up.wait(&self.crossed, waits::CROSSED)
            }
            Route::Bounce => {
                let turn = self.next % STAGING;
                self.next += 1;
                let staging = &mut self.staging[turn];
                self.down.wait(&staging.emptied, waits::STAGING_FREE)?;
                timed(&self.down, down, |stream| stream.download(from, &mut staging.memory, 0..from.bytes()))?;
                self.down.record(&staging.filled)?;
                self.up.wait(&staging.filled, waits::STAGED)?;
                timed(&self.up, up, |stream| stream.upload(&staging.memory, 0..to.bytes(), to))?;
                self.up.record(&staging.emptied)
            }
        }
    }

    /// Marks that the source of the last copy may be overwritten: an event of the data side.
    pub fn record_sent(&self, sent: &Event) -> Result<(), DeviceError> {
        self.down.record(sent)
    }

    /// Marks that the target of the last copy may be read: an event of the model side.
    pub fn record_arrived(&self, arrived: &Event) -> Result<(), DeviceError> {
        self.up.record(arrived)
    }

    /// Blocks the host until every copy queued so far has arrived.
    pub fn drain(&self) -> Result<(), DeviceError> {
        self.down.drain()?;
        self.up.drain()
    }

    /// Sends a pattern from `from` to `to`, compares every byte that arrives, and times a few more copies.
    pub fn prove(&mut self, from: View<'_>, to: View<'_>) -> Result<Measured, DeviceError> {
        let mut source = self.from.pinned(from.bytes())?;
        let words = source.bytes_mut()?.chunks_exact_mut(4).enumerate();
        words.for_each(|(i, word)| word.copy_from_slice(&pattern_word(from.bytes(), i as u64).to_le_bytes()));
        let (written, sent) = (self.from.event()?, self.from.event()?);
        let (free, arrived) = (self.to.event()?, self.to.event()?);
        self.down.upload(&source, 0..from.bytes(), from)?;
        self.down.record(&written)?;
        self.up.fill(to, 0)?;
        self.up.record(&free)?;
        self.send((from, &written, &sent), (to, &free, &arrived))?;
        let mut target = self.to.pinned(to.bytes())?;
        self.up.wait(&arrived, "the proof waits for its copy")?;
        self.up.download(to, &mut target, 0..to.bytes())?;
        self.up.drain()?;
        self.compare(source.bytes()?, target.bytes()?)?;
        let mut fastest = u64::MAX;
        for _ in 0..5 {
            let start = self.from.machine().now_ns();
            self.send((from, &written, &sent), (to, &free, &arrived))?;
            arrived.synchronize("the proof waits for a timed copy")?;
            fastest = fastest.min(self.from.machine().now_ns() - start);
        }
        Ok(Measured { bytes: from.bytes(), ns: fastest })
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

/// The sequence two cards need: ask both ways, then open both sides' memory to the other.
fn open_peer(from: &Arena, to: &Arena) -> Result<(), DeviceError> {
    let (source, target) = (from.device(), to.device());
    let machine = source.machine();
    let both = machine.can_access_peer(target.index(), source.index())?
        && machine.can_access_peer(source.index(), target.index())?;
    if !both {
        return Err(no_route(Route::Peer, source, target, "the driver reports no peer access between them"));
    }
    from.allow_peer(target)?;
    to.allow_peer(source)
}

/// Queues work on `stream`, between those timers that are there.
fn timed(
    stream: &Stream,
    [began, ended]: [Option<&Event>; 2],
    work: impl FnOnce(&Stream) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    let record = |timer: Option<&Event>| timer.map_or(Ok(()), |timer| stream.record(timer));
    record(began)?;
    work(stream)?;
    record(ended)
}

fn no_route(route: Route, from: &Device, to: &Device, why: &str) -> DeviceError {
    DeviceError::NoRoute { route: route.name(), from: from.index(), to: to.index(), why: why.to_owned() }
}
