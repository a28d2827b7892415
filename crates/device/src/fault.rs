//! Planted faults that are not the simulator's own: a wait taken away, a card broken at a step, memory that leaks, work that is
//! slow.
//!
//! Each wait in the pipeline has a name. A clean run collects the names; a test then takes one away at a time and
//! must see wrong bytes. Other faults of devices (refused memory, failed copies, cards lost at a call) are the
//! simulator's: [`crate::sim`].
//!
//! A [`Fault`] comes from outside, so that a whole run of the program can be broken at a known point, also on a real card.

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
    /// From now on the wait of this name is not done.
    pub fn skip_wait(&self, site: &'static str) {
        lock(&self.state).skipped = Some(site);
    }

    /// The names of all waits done so far.
    pub fn waits_seen(&self) -> Vec<&'static str> {
        lock(&self.state).seen.iter().copied().collect()
    }

    pub(crate) fn skips(&self, site: &'static str) -> bool {
        let mut state = lock(&self.state);
        state.seen.insert(site);
        state.skipped == Some(site)
    }
}

/// The fault that `TANDEM_FAULT` asks for: `trap@step:N` breaks the model's card in step `N`, `leak:POOL:MiB/STEPS` has
/// a pool lose so much in so many steps, all along, `slow:WORK:TIMES` has some work done so many times over. For debugging
/// only.
///
/// Whoever runs steps asks [`Fault::traps_at`] in each, and queues [`crate::Stream::trap`] there; whoever watches memory
/// has [`crate::InjectedLeak`] grow; whoever does the work asks [`Fault::times`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    trap_at_step: Option<u64>,
    leak: Option<LeakRate>,
    slow: Option<(Slow, u32)>,
}

/// Work that can be made slow: it is done again and again, with the same result. A step that is repeated learns more from
/// its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slow {
    /// Decoding a recording.
    Decode,
    /// Copying a batch to the data device.
    Upload,
    /// Making its features.
    Features,
    /// Copying it to the model device.
    Transfer,
    /// The step.
    Step,
}

/// How fast a planted leak grows, and in what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeakRate {
    /// In what.
    pub pool: Pool,
    /// So many bytes.
    pub bytes: u64,
    /// In so many steps.
    pub steps: u64,
}

/// What memory can leak from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// The data role's arena.
    Data,
    /// The model role's arena.
    Model,
    /// Page-locked memory of the data role's card.
    Pinned,
    /// The process's own memory.
    Host,
}

impl Fault {
    /// What the environment asks for; nothing where the variable is not set. A fault that there is not is an error: a test
    /// that plants nothing would pass.
    pub fn from_env() -> Result<Fault, DeviceError> {
        match std::env::var_os("TANDEM_FAULT") {
            None => Ok(Fault::default()),
            Some(given) => given.to_string_lossy().parse(),
        }
    }

    /// Whether the card is to be broken in this step.
    pub fn traps_at(&self, step: u64) -> bool {
        self.trap_at_step == Some(step)
    }

    /// The leak there is to be, if any.
    pub fn leak(&self) -> Option<LeakRate> {
        self.leak
    }

    /// How many times `work` is to be done: once, unless it is to be slow.
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
    fn a_plant_is_read_or_refused_and_never_left_out() {
        let plant: Fault = "trap@step:37".parse().unwrap();
        assert_eq!([36, 37, 38].map(|step| plant.traps_at(step)), [false, true, false]);
        assert!(!Fault::default().traps_at(0) && plant.leak().is_none());
        let leak = |given: &str| given.parse::<Fault>().unwrap().leak();
        assert_eq!(leak("leak:data:1MiB/100"), Some(LeakRate { pool: Pool::Data, bytes: MIB, steps: 100 }));
        assert_eq!(leak("leak:host:2MiB/5"), Some(LeakRate { pool: Pool::Host, bytes: 2 * MIB, steps: 5 }));
        let slow: Fault = "slow:features:7".parse().unwrap();
        assert_eq!((slow.times(Slow::Features), slow.times(Slow::Decode), plant.times(Slow::Step)), (7, 1, 1));
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
