//! The specification of simulated cards (`2x24GiB`, `8GiB+16GiB`, `2x12GiB,pcie4`, `4x24GiB,nvlink`) and of injected
//! faults.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::bytes::MIB;
use crate::transfer::Route;

/// Simulated cards, and the fault to inject on them.
#[derive(Clone, Debug, PartialEq)]
pub struct SimSpec {
    /// Memory of each card. They may differ.
    pub card_bytes: Vec<u64>,
    /// Their connection.
    pub link: Link,
    /// Whether the cards have peer access to each other; `None`: over NVLink only.
    pub peers: Option<bool>,
    /// Memory of each that other processes use.
    pub held_bytes: u64,
    /// The most memory of each that a desktop allocates and frees meanwhile.
    pub desktop_bytes: u64,
    /// How much faster or slower than the host's clock those of the cards run, in parts per million. They also start at another
    /// time. 0: all clocks are the same.
    pub skew_ppm: u64,
    /// Compute capability of each.
    pub capability: (u32, u32),
    /// Cards that this process may not use, in ascending order.
    pub hidden: Vec<usize>,
    /// Whether the driver does not report memory per process, as inside some containers.
    pub hides_process_memory: bool,
    /// Where `/proc` and `/sys` are that say on which NUMA node each card is; `None` for a machine with one node.
    pub root: Option<PathBuf>,
    /// Decides the order in which queued work runs, and the jitter of the clock.
    pub seed: u64,
    /// The fault to inject.
    pub fault: Option<SimFault>,
}

/// The connection of cards with each other and the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the links")]
pub enum Link {
    Pcie3,
    Pcie4,
    Pcie5,
    Nvlink,
}

/// A fault that is injected once. Counts start at 0 and run over all cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimFault {
    /// This allocation, of device or pinned memory, is refused.
    RefuseAllocation(u64),
    /// This copy fails while it runs.
    FailCopy(u64),
    /// The card of this driver call is lost.
    LoseCard(u64),
    /// Copies by peer access report success and deliver nothing.
    CorruptPeer,
    /// Copies of this route report success and deliver nothing.
    CorruptRoute(Route),
    /// From this copy between two cards on, one bit of each arrives flipped.
    CorruptCopies(u64),
    /// Copies of this route never end.
    StuckRoute(Route),
    /// A copy of this route loses both of its cards.
    TrapOnRoute(Route),
    /// The driver call for a copy of this route never returns.
    FreezeOnRoute(Route),
    /// The driver call for a copy of this route aborts the process.
    AbortOnRoute(Route),
    /// Peer access is offered and cannot be enabled.
    RefusePeerAccess,
    /// Another process allocates this much on every card just before we open it.
    Intruder(u64),
    /// The driver uses this much more on every card than its table says.
    DriverGrows(u64),
    /// The driver keeps this much more after every 64 GEMMs on a card.
    GemmLeak(u64),
}

/// An invalid `--sim` value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "--sim {given}: {problem}; expected COUNTxSIZE with options, e.g. 2x24GiB, 1x80GiB, 2x12GiB,pcie4 or 4x24GiB,nvlink; \
     cards of different sizes: 8GiB+16GiB"
)]
pub struct SimSpecError {
    given: String,
    problem: String,
}

impl SimSpec {
    /// `count` cards of `total_bytes`, connected by PCIe 4, without a fault.
    pub fn new(count: usize, total_bytes: u64) -> SimSpec {
        SimSpec {
            card_bytes: vec![total_bytes; count],
            link: Link::Pcie4,
            peers: None,
            held_bytes: 0,
            desktop_bytes: 0,
            skew_ppm: 0,
            capability: (9, 0),
            hidden: Vec::new(),
            hides_process_memory: false,
            root: None,
            seed: 0,
            fault: None,
        }
    }

    /// The same with another seed.
    pub fn with_seed(self, seed: u64) -> SimSpec {
        SimSpec { seed, ..self }
    }

    /// The same with another connection.
    pub fn with_link(self, link: Link) -> SimSpec {
        SimSpec { link, ..self }
    }

    /// The same with or without peer access, whatever the connection.
    pub fn with_peers(self, peers: bool) -> SimSpec {
        SimSpec { peers: Some(peers), ..self }
    }

    /// The same with clocks that differ by so many parts per million.
    pub fn with_skew(self, skew_ppm: u64) -> SimSpec {
        SimSpec { skew_ppm, ..self }
    }

    /// The same with a desktop that allocates and frees up to `desktop_bytes` on each card.
    pub fn with_desktop(self, desktop_bytes: u64) -> SimSpec {
        SimSpec { desktop_bytes, ..self }
    }

    /// Whether the cards have peer access to each other.
    pub(super) fn has_peers(&self) -> bool {
        self.peers.unwrap_or(self.link == Link::Nvlink)
    }

    /// The same on a machine whose `/proc` and `/sys` are below `root`.
    pub fn with_root(self, root: &Path) -> SimSpec {
        SimSpec { root: Some(root.to_owned()), ..self }
    }

    /// The same with a fault.
    pub fn with_fault(self, fault: SimFault) -> SimSpec {
        SimSpec { fault: Some(fault), ..self }
    }

    /// The option that hides cards, as it is typed.
    pub(super) fn hidden_option(&self) -> String {
        let cards: Vec<String> = self.hidden.iter().map(ToString::to_string).collect();
        format!("hidden={}", cards.join("+"))
    }

    fn option(&mut self, option: &str) -> Result<(), String> {
        match option.split_once('=').unwrap_or((option, "")) {
            ("pcie3", "") => self.link = Link::Pcie3,
            ("pcie4", "") => self.link = Link::Pcie4,
            ("pcie5", "") => self.link = Link::Pcie5,
            ("nvlink", "") => self.link = Link::Nvlink,
            ("peers", "") => self.peers = Some(true),
            ("no-peers", "") => self.peers = Some(false),
            ("desktop", size) => self.desktop_bytes = bytes(size)?,
            ("skew", ppm) => self.skew_ppm = skew(ppm)?,
            ("held", size) => self.held_bytes = bytes(size)?,
            ("cc", version) => self.capability = capability(version)?,
            ("hidden", list) => self.hidden = card_numbers(list, self.card_bytes.len())?,
            ("no-process-figure", "") => self.hides_process_memory = true,
            ("root", path) if !path.is_empty() => self.root = Some(PathBuf::from(path)),
            ("seed", n) => self.seed = number(n)?,
            ("refuse-allocation", n) => self.fault = Some(SimFault::RefuseAllocation(number(n)?)),
            ("fail-copy", n) => self.fault = Some(SimFault::FailCopy(number(n)?)),
            ("lose-card", n) => self.fault = Some(SimFault::LoseCard(number(n)?)),
            ("corrupt-peer", "") => self.fault = Some(SimFault::CorruptPeer),
            ("corrupt", name) => self.fault = Some(SimFault::CorruptRoute(driver_route(name)?)),
            ("corrupt-after", n) => self.fault = Some(SimFault::CorruptCopies(number(n)?)),
            ("stuck", name) => self.fault = Some(SimFault::StuckRoute(driver_route(name)?)),
            ("trap-on", name) => self.fault = Some(SimFault::TrapOnRoute(driver_route(name)?)),
            ("freeze-on", name) => self.fault = Some(SimFault::FreezeOnRoute(driver_route(name)?)),
            ("abort-on", name) => self.fault = Some(SimFault::AbortOnRoute(driver_route(name)?)),
            ("refuse-peer-access", "") => self.fault = Some(SimFault::RefusePeerAccess),
            ("intruder", size) => self.fault = Some(SimFault::Intruder(bytes(size)?)),
            ("gemm-leak", size) => self.fault = Some(SimFault::GemmLeak(bytes(size)?)),
            ("driver-grows", size) => self.fault = Some(SimFault::DriverGrows(bytes(size)?)),
            _ => {
                return Err(format!(
                    "'{option}' is not an option (pcie3, pcie4, pcie5, nvlink, peers, no-peers, held=SIZE, desktop=SIZE, skew=PPM, cc=MAJOR.MINOR, hidden=N[+N…], no-process-figure, root=PATH, \
                     seed=N, refuse-allocation=N, fail-copy=N, lose-card=N, corrupt-peer, corrupt=ROUTE, corrupt-after=N, stuck=ROUTE, trap-on=ROUTE, \
                     freeze-on=ROUTE, abort-on=ROUTE, refuse-peer-access, intruder=SIZE, driver-grows=SIZE, gemm-leak=SIZE)"
                ));
            }
        }
        Ok(())
    }
}

impl FromStr for SimSpec {
    type Err = SimSpecError;

    fn from_str(given: &str) -> Result<SimSpec, SimSpecError> {
        let parse = || {
            let mut parts = given.split(',');
            let card_bytes = cards(parts.next().unwrap_or_default())?;
            let smallest = card_bytes.iter().copied().min().unwrap_or(0);
            let mut spec = SimSpec { card_bytes, ..SimSpec::new(0, 0) };
            for option in parts {
                spec.option(option)?;
            }
            match spec.held_bytes.saturating_add(spec.desktop_bytes) > smallest {
                true => Err("held and desktop are more than a card has".to_owned()),
                false => Ok(spec),
            }
        };
        parse().map_err(|problem| SimSpecError { given: given.to_owned(), problem })
    }
}

/// The memory of each card of `2x24GiB`, or of cards of different sizes: `8GiB+16GiB`, `2x8GiB+16GiB`.
fn cards(text: &str) -> Result<Vec<u64>, String> {
    let groups: Vec<&str> = text.split('+').collect();
    let mut card_bytes = Vec::new();
    for group in &groups {
        let (count, size) = match group.split_once('x') {
            Some((count, size)) => (number(count)?, size),
            // Beside others, a size alone is one card.
            None if groups.len() > 1 => (1, *group),
            None => return Err(format!("'{group}' has no 'x' between count and size")),
        };
        let total_bytes = bytes(size)?;
        if total_bytes < MIN_CARD_BYTES {
            return Err(format!("cards of {size}; 64 MiB is the least"));
        }
        let all = count.saturating_add(card_bytes.len() as u64);
        if count == 0 || all > MAX_CARDS {
            return Err(format!("{all} cards; 1 to {MAX_CARDS} can be simulated"));
        }
        card_bytes.resize(all as usize, total_bytes);
    }
    Ok(card_bytes)
}

const MAX_CARDS: u64 = 64;
const MIN_CARD_BYTES: u64 = 64 * MIB;

/// `0+2`: the numbers of some of `count` cards, in ascending order.
fn card_numbers(text: &str, count: usize) -> Result<Vec<usize>, String> {
    let mut cards = text.split('+').map(|n| number(n).map(|n| n as usize)).collect::<Result<Vec<_>, _>>()?;
    cards.sort_unstable();
    cards.dedup();
    match cards.iter().find(|card| **card >= count) {
        Some(card) => Err(format!("there is no card {card}: the last is {}", count.saturating_sub(1))),
        None => Ok(cards),
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("'{text}' is not a whole number"))
}

fn bytes(text: &str) -> Result<u64, String> {
    let units = [("GiB", 1024 * MIB), ("GB", 1024 * MIB), ("MiB", MIB), ("MB", MIB)];
    let unit = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)));
    let (digits, scale) = unit.ok_or_else(|| format!("size '{text}' does not end in GiB or MiB"))?;
    match number(digits)?.checked_mul(scale) {
        Some(bytes) if bytes <= 1 << 44 => Ok(bytes),
        _ => Err(format!("size '{text}' is too large")),
    }
}

/// Real oscillators differ by some parts per million; more than 1 % is no clock.
const MAX_SKEW_PPM: u64 = 10_000;

fn skew(text: &str) -> Result<u64, String> {
    match number(text)? {
        ppm if ppm <= MAX_SKEW_PPM => Ok(ppm),
        ppm => Err(format!("a skew of {ppm} parts per million; {MAX_SKEW_PPM} is the most")),
    }
}

/// A route between two cards that the driver copies.
fn driver_route(name: &str) -> Result<Route, String> {
    let known = Route::named(name).filter(|route| !matches!(route, Route::Bounce | Route::Handover));
    known.ok_or_else(|| format!("'{name}' is not a route between cards (peer, peer-copy, staged)"))
}

fn capability(text: &str) -> Result<(u32, u32), String> {
    let (major, minor) = text.split_once('.').ok_or_else(|| format!("'{text}' is not like 8.0"))?;
    Ok((number(major)? as u32, number(minor)? as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documented_specs_are_parsed() {
        let check = |text: &str, want: SimSpec| assert_eq!(text.parse(), Ok(want), "{text}");
        let gib = 1024 * MIB;
        check("2x24GiB", SimSpec::new(2, 24 * gib));
        check("1x80GiB", SimSpec::new(1, 80 * gib));
        check("2x12GiB,pcie4", SimSpec::new(2, 12 * gib));
        check("4x24GiB,nvlink,seed=7", SimSpec::new(4, 24 * gib).with_link(Link::Nvlink).with_seed(7));
        let unequal = |card_bytes: &[u64]| SimSpec { card_bytes: card_bytes.to_vec(), ..SimSpec::new(0, 0) };
        check("8GiB+16GiB", unequal(&[8 * gib, 16 * gib]));
        check("16GiB+8192MiB,nvlink", unequal(&[16 * gib, 8 * gib]).with_link(Link::Nvlink));
        check("2x8GiB+1x16GiB+24GiB", unequal(&[8 * gib, 8 * gib, 16 * gib, 24 * gib]));
        let hidden = |cards: &[usize]| SimSpec { hidden: cards.to_vec(), ..SimSpec::new(4, 24 * gib) };
        check("4x24GiB,hidden=1", hidden(&[1]));
        check("4x24GiB,hidden=2+0", hidden(&[0, 2]));
        check("2x24GiB,pcie5,peers", SimSpec::new(2, 24 * gib).with_link(Link::Pcie5).with_peers(true));
        check("2x24GiB,nvlink,no-peers", SimSpec::new(2, 24 * gib).with_link(Link::Nvlink).with_peers(false));
        check("2x24GiB,skew=100,desktop=1GiB", SimSpec::new(2, 24 * gib).with_skew(100).with_desktop(gib));
        check("2x24GiB,fail-copy=3", SimSpec::new(2, 24 * gib).with_fault(SimFault::FailCopy(3)));
        check("2x24GiB,root=/tmp/two-nodes", SimSpec::new(2, 24 * gib).with_root(Path::new("/tmp/two-nodes")));
        check("2x24GiB,corrupt-after=40", SimSpec::new(2, 24 * gib).with_fault(SimFault::CorruptCopies(40)));
        let on_route = |text: &str, fault| check(text, SimSpec::new(2, 24 * gib).with_fault(fault));
        on_route("2x24GiB,stuck=peer-copy", SimFault::StuckRoute(Route::PeerCopy));
        on_route("2x24GiB,trap-on=peer", SimFault::TrapOnRoute(Route::Peer));
        on_route("2x24GiB,freeze-on=staged", SimFault::FreezeOnRoute(Route::Staged));
        on_route("2x24GiB,abort-on=peer", SimFault::AbortOnRoute(Route::Peer));
    }

    #[test]
    fn an_invalid_spec_is_refused_with_the_expected_form() {
        for text in [
            "",
            "x",
            "2",
            "2x",
            "0x24GiB",
            "65x24GiB",
            "-1x24GiB",
            "2x24",
            "2xGiB",
            "2x1MiB",
            "2x24GiB,",
            "2x24GiB,warp",
            "2x99999999999999999999GiB",
            "2x24GiB,held=25GiB",
            "8GiB+16GiB,held=9GiB",
            "8GiB",
            "8GiB+",
            "+8GiB",
            "8GiB+16",
            "8GiB+1MiB",
            "8GiB+0x16GiB",
            "60x8GiB+5x16GiB",
            "18446744073709551615x8GiB+1x8GiB",
            "2x24GiB,seed=x",
            "2x24GiB,stuck=bounce",
            "2x24GiB,corrupt=",
            "2x24GiB,hidden=2",
            "2x24GiB,skew=10001",
            "2x24GiB,peers=1",
            "2x24GiB,held=20GiB,desktop=5GiB",
            "2x24GiB,hidden=0+",
            "2x24GiB,corrupt-after=",
            "2x24GiB,root=",
            "２x24GiB",
        ] {
            let error = text.parse::<SimSpec>().expect_err(text).to_string();
            assert!(error.contains("expected COUNTxSIZE"), "{text}: {error}");
        }
    }
}
