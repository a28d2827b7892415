//! The specification of simulated cards (`2x24GiB`, `8GiB+16GiB`, `2x12GiB,pcie4`, `4x24GiB,nvlink`) and of injected
//! faults.

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
    /// Memory of each that other processes use.
    pub held_bytes: u64,
    /// Compute capability of each.
    pub capability: (u32, u32),
    /// A card that this process may not use.
    pub hidden: Option<usize>,
    /// Whether the driver does not report memory per process, as inside some containers.
    pub hides_process_memory: bool,
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
    /// Copies of this route never end.
    StuckRoute(Route),
    /// Peer access is offered and cannot be enabled.
    RefusePeerAccess,
    /// Another process allocates this much on every card just before we open it.
    Intruder(u64),
    /// The driver uses this much more on every card than its table says.
    DriverGrows(u64),
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
            held_bytes: 0,
            capability: (9, 0),
            hidden: None,
            hides_process_memory: false,
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

    /// The same with a fault.
    pub fn with_fault(self, fault: SimFault) -> SimSpec {
        SimSpec { fault: Some(fault), ..self }
    }

    fn option(&mut self, option: &str) -> Result<(), String> {
        match option.split_once('=').unwrap_or((option, "")) {
            ("pcie3", "") => self.link = Link::Pcie3,
            ("pcie4", "") => self.link = Link::Pcie4,
            ("pcie5", "") => self.link = Link::Pcie5,
            ("nvlink", "") => self.link = Link::Nvlink,
            ("held", size) => self.held_bytes = bytes(size)?,
            ("cc", version) => self.capability = capability(version)?,
            ("hidden", n) => self.hidden = Some(number(n)? as usize),
            ("no-process-figure", "") => self.hides_process_memory = true,
            ("seed", n) => self.seed = number(n)?,
            ("refuse-allocation", n) => self.fault = Some(SimFault::RefuseAllocation(number(n)?)),
            ("fail-copy", n) => self.fault = Some(SimFault::FailCopy(number(n)?)),
            ("lose-card", n) => self.fault = Some(SimFault::LoseCard(number(n)?)),
            ("corrupt-peer", "") => self.fault = Some(SimFault::CorruptPeer),
            ("corrupt", name) => self.fault = Some(SimFault::CorruptRoute(driver_route(name)?)),
            ("stuck", name) => self.fault = Some(SimFault::StuckRoute(driver_route(name)?)),
            ("refuse-peer-access", "") => self.fault = Some(SimFault::RefusePeerAccess),
            ("intruder", size) => self.fault = Some(SimFault::Intruder(bytes(size)?)),
            ("driver-grows", size) => self.fault = Some(SimFault::DriverGrows(bytes(size)?)),
            _ => {
                return Err(format!(
                    "'{option}' is not an option (pcie3, pcie4, pcie5, nvlink, held=SIZE, cc=MAJOR.MINOR, hidden=N, no-process-figure, seed=N, \
                     refuse-allocation=N, fail-copy=N, lose-card=N, corrupt-peer, corrupt=ROUTE, stuck=ROUTE, refuse-peer-access, intruder=SIZE, driver-grows=SIZE)"
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
            match spec.held_bytes > smallest {
                true => Err("held is more than a card has".to_owned()),
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
        check("2x24GiB,fail-copy=3", SimSpec::new(2, 24 * gib).with_fault(SimFault::FailCopy(3)));
        check("2x24GiB,stuck=peer-copy", SimSpec::new(2, 24 * gib).with_fault(SimFault::StuckRoute(Route::PeerCopy)));
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
            "２x24GiB",
        ] {
            let error = text.parse::<SimSpec>().expect_err(text).to_string();
            assert!(error.contains("expected COUNTxSIZE"), "{text}: {error}");
        }
    }
}
