//! Fault injection on any kind of device: a skipped wait, a card lost at a step, a memory leak, slow work.
//!
//! Each wait in the pipeline has a name. A clean run collects the names; a test then skips one at a time and must see
//! wrong data. The simulator injects other faults (refused allocations, failed copies, a card lost at a call):
//! [`crate::sim`].
//!
//! A [`Fault`] comes from the environment, so that a complete run of the program fails at a known point, also on a real
//! card.

use std::collections::BTreeSet;
use std::ops::Range;
use std::str::FromStr;
use std::sync::{Mutex, OnceLock};

use tandem_events::Role;

use crate::arena::View;
use crate::bytes::MIB;
use crate::error::DeviceError;
use crate::kernels::Checks;
use crate::machine::lock;
use crate::pinned::Pinned;
use crate::stream::Stream;

/// The waits seen so far, and the one that is skipped.
#[derive(Debug, Default)]
pub struct Faults {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Streams that another library captures.
    captured: BTreeSet<u64>,
    seen: BTreeSet<&'static str>,
    skipped: Option<&'static str>,
    delays: Vec<Delay>,
}

/// A delay on purpose, before a named wait of a stream.
#[derive(Debug)]
struct Delay {
    name: &'static str,
    ns: u64,
    is_due: fn(u64) -> bool,
    /// How often a stream has passed the wait.
    passes: u64,
}

impl Faults {
    /// Another library begins, or ends, to capture a graph on its stream.
    pub fn capture_foreign_stream(&self, handle: u64, is_captured: bool) {
        let captured = &mut lock(&self.state).captured;
        if is_captured {
            captured.insert(handle)
        } else {
            captured.remove(&handle)
        };
    }

    pub(crate) fn is_captured(&self, handle: u64) -> bool {
        lock(&self.state).captured.contains(&handle)
    }

    /// From now on the wait of this name is skipped.
    pub fn skip_wait(&self, name: &'static str) {
        lock(&self.state).skipped = Some(name);
    }

    /// From now on a stream that passes the wait of this name is delayed by `ns` before it, in every pass for which
    /// `is_due` says so, counted from 0. On a real card this makes a missing wait visible. Delays of two streams at the same
    /// time hide each other: choose passes in which only one of them is late.
    pub fn delay_before_wait(&self, name: &'static str, ns: u64, is_due: fn(u64) -> bool) {
        lock(&self.state).delays.push(Delay { name, ns, is_due, passes: 0 });
    }

    /// The names of all waits so far.
    pub fn waits_seen(&self) -> Vec<&'static str> {
        lock(&self.state).seen.iter().copied().collect()
    }

    pub(crate) fn skips(&self, name: &'static str) -> bool {
        let mut state = lock(&self.state);
        state.seen.insert(name);
        state.skipped == Some(name)
    }

    /// A stream passes the wait: counts the pass.
    pub(crate) fn pass(&self, name: &'static str) -> PassedWait {
        let mut state = lock(&self.state);
        state.seen.insert(name);
        let mut delay_ns = 0;
        for delay in state.delays.iter_mut().filter(|delay| delay.name == name) {
            delay_ns += if (delay.is_due)(delay.passes) { delay.ns } else { 0 };
            delay.passes += 1;
        }
        PassedWait { is_skipped: state.skipped == Some(name), delay_ns }
    }
}

/// What is injected at a wait of a stream.
pub(crate) struct PassedWait {
    pub(crate) is_skipped: bool,
    /// The delay before it; 0 for none.
    pub(crate) delay_ns: u64,
}

/// Where faults are injected into the work of a stream. Callers queue their work as they would without faults.
impl Stream {
    /// [`upload`](Stream::upload) of a whole batch. `TANDEM_FAULT=slow:upload:TIMES` copies it so many times.
    pub fn upload_batch(&self, from: &Pinned, range: Range<u64>, to: View<'_>) -> Result<(), DeviceError> {
        let times = Fault::from_env()?.times(Slow::Upload);
        (0..times).try_for_each(|_| self.upload(from, range.clone(), to))
    }

    /// Queues the kernels that make the features of a batch. `TANDEM_FAULT=slow:features:TIMES` queues them so many times.
    pub fn queue_features(&self, queue: impl Fn(&Stream) -> Result<(), DeviceError>) -> Result<(), DeviceError> {
        let times = Fault::from_env()?.times(Slow::Features);
        (0..times).try_for_each(|_| queue(self))
    }

    /// Keeps the stream busy for `ns`; does nothing for 0.
    pub(crate) fn delay(&self, ns: u64) -> Result<(), DeviceError> {
        if ns == 0 { Ok(()) } else { Checks::load(&self.device())?.delay(self, ns) }
    }
}

/// The fault that `TANDEM_FAULT` asks for: `trap@step:N` makes the model's card fault in step `N`, `trap-data@step:N` the
/// data role's card before that step, `drift@step:N` changes a weight after step `N`, `leak:POOL:MiB/STEPS` leaks that much of a pool every so many steps, `slow:WORK:TIMES`
/// repeats some work that many times. For debugging only.
///
/// The step loop checks [`Fault::traps_model_at`] and [`Fault::traps_data_at`] in each step and queues [`crate::Stream::trap`]; the memory watch lets
/// [`crate::InjectedLeak`] grow; the code that does the work repeats it [`Fault::times`] times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    trap: Option<(Role, u64)>,
    drift: Option<u64>,
    leak: Option<LeakRate>,
    slow: Option<(Slow, u32)>,
}

/// Work that can be slowed down by repeating it with the same result. Only a repeated step differs: it trains on its batch
/// several times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slow {
    /// Decoding an audio file.
    Decode,
    /// Copying a batch to the data device.
    Upload,
    /// Computing its features.
    Features,
    /// Copying it to the model device.
    Transfer,
    /// The step.
    Step,
}

/// How fast an injected leak grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakRate {
    /// The pool that leaks.
    pub pool: Pool,
    /// Bytes per `steps` steps.
    pub bytes: u64,
    /// The number of steps.
    pub steps: u64,
}

/// A pool that can leak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// The data role's arena.
    Data,
    /// The model role's arena.
    Model,
    /// Pinned memory of the data role's card.
    Pinned,
    /// Pageable memory of the process.
    Host,
}

impl Fault {
    /// The fault that the environment asks for; none if the variable is not set. An unknown fault is an error, because a
    /// test that injects nothing would pass.
    pub fn from_env() -> Result<Fault, DeviceError> {
        // Asked for every batch: parsed once.
        static PARSED: OnceLock<Fault> = OnceLock::new();
        if let Some(fault) = PARSED.get() {
            return Ok(*fault);
        }
        let fault = match std::env::var_os("TANDEM_FAULT") {
            None => Fault::default(),
            Some(given) => given.to_string_lossy().parse()?,
        };
        Ok(*PARSED.get_or_init(|| fault))
    }

    /// Whether the model's card faults in this step.
    pub fn traps_model_at(&self, step: u64) -> bool {
        self.trap == Some((Role::Model, step))
    }

    /// Whether the data role's card faults before this step.
    pub fn traps_data_at(&self, step: u64) -> bool {
        self.trap == Some((Role::Data, step))
    }

    /// Whether a weight changes on its own after this step, as by a memory error of the card.
    pub fn drifts_at(&self, step: u64) -> bool {
        self.drift == Some(step)
    }

    /// The leak to inject, if any.
    pub fn leak(&self) -> Option<LeakRate> {
        self.leak
    }

    /// How many times to do `work`: once, unless it is slowed down.
    pub fn times(&self, work: Slow) -> u32 {
        self.slow.filter(|(slow, _)| *slow == work).map_or(1, |(_, times)| times)
    }
}

impl FromStr for Fault {
    type Err = DeviceError;

    fn from_str(given: &str) -> Result<Fault, DeviceError> {
        let trap_of = |prefix, role| Some((role, given.strip_prefix(prefix)?.parse().ok()?));
        let trap = trap_of("trap@step:", Role::Model).or_else(|| trap_of("trap-data@step:", Role::Data));
        let drift = given.strip_prefix("drift@step:").and_then(|step| step.parse().ok());
        let leak = given.strip_prefix("leak:").and_then(leak_rate);
        let slow = given.strip_prefix("slow:").and_then(slowness);
        match (trap, drift, leak, slow) {
            (None, None, None, None) => Err(DeviceError::Fault { given: given.to_owned() }),
            _ => Ok(Fault { trap, drift, leak, slow }),
        }
    }
}

/// `decode:8`
fn slowness(given: &str) -> Option<(Slow, u32)> {
    let (work, times) = given.split_once(':')?;
    let work = match work {
        "decode" => Slow::Decode,
        "upload" => Slow::Upload,
        "features" => Slow::Features,
        "transfer" => Slow::Transfer,
        "step" => Slow::Step,
        _ => return None,
    };
    times.parse().ok().filter(|times| *times > 0).map(|times| (work, times))
}

/// `data:1MiB/100`
fn leak_rate(given: &str) -> Option<LeakRate> {
    let (pool, rate) = given.split_once(':')?;
    let pool = match pool {
        "data" => Pool::Data,
        "model" => Pool::Model,
        "pinned" => Pool::Pinned,
        "host" => Pool::Host,
        _ => return None,
    };
    let (size, steps) = rate.split_once("MiB/")?;
    let (mib, steps) = (size.parse::<u16>().ok()?, steps.parse().ok()?);
    (mib > 0 && steps > 0).then_some(LeakRate { pool, bytes: u64::from(mib) * MIB, steps })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_comes_in_the_passes_that_were_chosen() {
        let faults = Faults::default();
        faults.delay_before_wait("upload", 7, |pass| pass % 3 == 1);
        faults.skip_wait("features");
        let passes = |wait| [(); 5].map(|()| faults.pass(wait)).map(|passed| (passed.delay_ns, passed.is_skipped));
        assert_eq!(passes("upload"), [0, 7, 0, 0, 7].map(|ns| (ns, false)));
        assert_eq!(passes("features"), [(0, true); 5]);
        assert_eq!(faults.waits_seen(), ["features", "upload"]);
    }

    #[test]
    fn a_fault_is_parsed_or_refused_and_never_ignored() {
        let trap: Fault = "trap@step:37".parse().unwrap();
        assert_eq!([36, 37, 38].map(|step| trap.traps_model_at(step)), [false, true, false]);
        assert!(!Fault::default().traps_model_at(0) && trap.leak().is_none());
        let trap_data: Fault = "trap-data@step:37".parse().unwrap();
        assert!(trap_data.traps_data_at(37) && !trap_data.traps_model_at(37) && !trap.traps_data_at(37));
        let drift: Fault = "drift@step:3".parse().unwrap();
        assert!(drift.drifts_at(3) && !drift.drifts_at(4) && !trap.drifts_at(37));
        let leak = |given: &str| given.parse::<Fault>().unwrap().leak();
        assert_eq!(leak("leak:data:1MiB/100"), Some(LeakRate { pool: Pool::Data, bytes: MIB, steps: 100 }));
        assert_eq!(leak("leak:host:2MiB/5"), Some(LeakRate { pool: Pool::Host, bytes: 2 * MIB, steps: 5 }));
        let slow: Fault = "slow:features:7".parse().unwrap();
        assert_eq!((slow.times(Slow::Features), slow.times(Slow::Decode), trap.times(Slow::Step)), (7, 1, 1));
        for given in
            ["", "trap", "trap@step:", "trap@step:-1", "trap@37", "Trap@step:1", "trap@step:1 "].into_iter().chain([
                "slow:",
                "slow:decode",
                "slow:decode:0",
                "slow:decode:1.5",
                "slow:read:2",
                "leak:",
                "leak:disk:1MiB/100",
                "leak:data:1/100",
                "leak:data:0MiB/100",
                "leak:data:1MiB/0",
            ])
        {
            let error = given.parse::<Fault>().unwrap_err().to_string();
            let expected = "expected trap@step:N, trap-data@step:N, drift@step:N, leak:POOL:MiB/STEPS (data, model, pinned or host) or slow:WORK:TIMES (decode, \
                            upload, features, transfer or step), e.g. trap@step:37, leak:data:1MiB/100 or slow:decode:8";
            assert_eq!(error, format!("TANDEM_FAULT={given}: {expected}"));
        }
    }
}
