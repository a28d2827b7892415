//! Fault injection on any kind of device: a skipped wait, a card lost at a step, a memory leak, slow work.
//!
//! Each wait in the pipeline has a name. A clean run collects the names; a test then skips one at a time and must see
//! wrong data. The simulator injects other faults (refused allocations, failed copies, a card lost at a call):
//! [`crate::sim`].
//!
//! A [`Fault`] comes from the environment, so that a complete run of the program fails at a known point, also on a real
//! card.

use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Mutex;

use crate::bytes::MIB;
use crate::error::DeviceError;
use crate::machine::lock;

/// The waits seen so far, and the one that is skipped.
#[derive(Debug, Default)]
pub struct Faults {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    seen: BTreeSet<&'static str>,
    skipped: Option<&'static str>,
}

impl Faults {
    /// From now on the wait of this name is skipped.
    pub fn skip_wait(&self, name: &'static str) {
        lock(&self.state).skipped = Some(name);
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
}

/// The fault that `TANDEM_FAULT` asks for: `trap@step:N` makes the model's card fault in step `N`, `leak:POOL:MiB/STEPS`
/// leaks that much of a pool every so many steps, `slow:WORK:TIMES` repeats some work that many times. For debugging only.
///
/// The step loop checks [`Fault::traps_at`] in each step and queues [`crate::Stream::trap`]; the memory watch lets
/// [`crate::InjectedLeak`] grow; the code that does the work repeats it [`Fault::times`] times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    trap_at_step: Option<u64>,
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
        match std::env::var_os("TANDEM_FAULT") {
            None => Ok(Fault::default()),
            Some(given) => given.to_string_lossy().parse(),
        }
    }

    /// Whether to fault in this step.
    pub fn traps_at(&self, step: u64) -> bool {
        self.trap_at_step == Some(step)
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
        let trap_at_step = given.strip_prefix("trap@step:").and_then(|step| step.parse().ok());
        let leak = given.strip_prefix("leak:").and_then(leak_rate);
        let slow = given.strip_prefix("slow:").and_then(slowness);
        match (trap_at_step, leak, slow) {
            (None, None, None) => Err(DeviceError::Fault { given: given.to_owned() }),
            _ => Ok(Fault { trap_at_step, leak, slow }),
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
    fn a_fault_is_parsed_or_refused_and_never_ignored() {
        let trap: Fault = "trap@step:37".parse().unwrap();
        assert_eq!([36, 37, 38].map(|step| trap.traps_at(step)), [false, true, false]);
        assert!(!Fault::default().traps_at(0) && trap.leak().is_none());
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
            let expected = "expected trap@step:N, leak:POOL:MiB/STEPS (data, model, pinned or host) or slow:WORK:TIMES (decode, \
                            upload, features, transfer or step), e.g. trap@step:37, leak:data:1MiB/100 or slow:decode:8";
            assert_eq!(error, format!("TANDEM_FAULT={given}: {expected}"));
        }
    }
}
