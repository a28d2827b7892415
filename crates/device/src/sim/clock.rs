//! The duration of simulated work, on the simulated clock.

use tandem_random::SplitMix;

use crate::driver::{CopyPath, RawArg};
use crate::gemm::RawGemm;
use crate::host_exec::{AccessRange, accessed};
use crate::kernel::DType;
use crate::sim::spec::Link;

/// The start-up cost of a copy or a kernel.
const LAUNCH_NS: u64 = 4_000;
/// The host's time for one driver call.
pub(crate) const CALL_NS: u64 = 1_000;
/// How long a host wait goes on after a card is lost, if the work waits for that card. As on real cards.
pub(crate) const LOSS_GRACE_NS: u64 = 5_000_000_000;
/// How far apart the clocks of two neighbouring cards start, if they are skewed.
const CLOCK_OFFSET_NS: i64 = 5_000_000_000;
/// Memory bandwidth of a simulated card.
const CARD_GB_PER_S: f64 = 900.0;

impl Link {
    /// Bandwidth between host and card, in one direction.
    fn host_gb_per_s(self) -> f64 {
        match self {
            Link::Pcie3 => 12.0,
            Link::Pcie4 => 24.0,
            Link::Pcie5 | Link::Nvlink => 50.0,
        }
    }

    /// Bandwidth between two cards with peer access, in one direction. Over PCIe it is that of the slots.
    fn peer_gb_per_s(self) -> f64 {
        match self {
            Link::Nvlink => 200.0,
            pcie => pcie.host_gb_per_s(),
        }
    }
}

/// The clock of one card. It measures intervals a little longer or shorter than they are, and starts at another time than the
/// clocks of the host and of other cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SimClock {
    offset_ns: i64,
    ppm: i64,
}

impl SimClock {
    /// The clock of card `index`: every second one is slow, and later cards differ more.
    pub(crate) fn new(index: usize, skew_ppm: u64) -> SimClock {
        if skew_ppm == 0 {
            return SimClock { offset_ns: 0, ppm: 0 };
        }
        let (number, ppm) = (index as i64 + 1, skew_ppm as i64);
        let ppm = ppm * ((number + 1) / 2) * if index.is_multiple_of(2) { 1 } else { -1 };
        SimClock { offset_ns: number * CLOCK_OFFSET_NS, ppm }
    }

    /// What it shows when the host's clock shows `host_ns`.
    pub(crate) fn shows_ns(self, host_ns: u64) -> i64 {
        let host_ns = host_ns as i64;
        self.offset_ns + host_ns + host_ns / 1000 * self.ppm / 1000
    }
}

/// `is_peer`: the cards have access to the memory of each other.
pub(crate) fn copy_ns(path: &CopyPath, link: Link, is_peer: bool, rng: &mut SplitMix) -> u64 {
    let gb_per_s = match path {
        CopyPath::HostToDevice { .. } | CopyPath::DeviceToHost { .. } => link.host_gb_per_s(),
        CopyPath::WithinDevice { .. } => CARD_GB_PER_S / 2.0,
        CopyPath::Peer { from, to, .. } if from.card == to.card => CARD_GB_PER_S / 2.0,
        CopyPath::Peer { .. } if is_peer => link.peer_gb_per_s(),
        // Through memory of the driver, one leg after the other.
        CopyPath::Peer { .. } => link.host_gb_per_s() / 2.5,
    };
    with_jitter(LAUNCH_NS + (path.bytes() as f64 / gb_per_s) as u64, rng)
}

pub(crate) fn fill_ns(bytes: u64, rng: &mut SplitMix) -> u64 {
    with_jitter(LAUNCH_NS + (bytes as f64 / CARD_GB_PER_S) as u64, rng)
}

/// A kernel is assumed to read and write its arguments once.
pub(crate) fn kernel_ns(args: &[RawArg], rng: &mut SplitMix) -> u64 {
    let bytes: u64 = accessed(args).iter().map(AccessRange::bytes).sum();
    fill_ns(bytes, rng)
}

/// A GEMM takes the longer of its arithmetic and its memory traffic.
pub(crate) fn gemm_ns(gemm: &RawGemm, rng: &mut SplitMix) -> u64 {
    let bytes: u64 = accessed(&gemm.args()).iter().map(AccessRange::bytes).sum();
    let arithmetic_ns = gemm.shape.flops() / (1e3 * tflop_per_s(gemm.shape.dtype));
    with_jitter(LAUNCH_NS + arithmetic_ns.max(bytes as f64 / CARD_GB_PER_S) as u64, rng)
}

/// GEMM throughput of a simulated card.
fn tflop_per_s(dtype: DType) -> f64 {
    match dtype {
        DType::BF16 => 100.0,
        DType::F64 => 0.5,
        _ => 20.0,
    }
}

/// Up to 5 % more or less.
fn with_jitter(ns: u64, rng: &mut SplitMix) -> u64 {
    let tenths_of_percent = rng.below(101) as i64 - 50;
    (ns as i64 + ns as i64 * tenths_of_percent / 1000) as u64
}
