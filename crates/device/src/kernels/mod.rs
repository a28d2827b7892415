//! The kernels of this crate: checks of memory (patterns, checksums, and a delay that exposes stream races), small copies,
//! the initial output of GEMMs, and an injected trap.

pub(crate) mod copy_small;
pub(crate) mod gemm_init;
pub(crate) mod trap;

use tandem_random::SplitMix;

use crate::arena::View;
use crate::device::{Device, LoadedKernel};
use crate::error::DeviceError;
use crate::kernel::{Grid, HostArgs, Kernel, Source};
use crate::kernel_args;
use crate::stream::Stream;

/// The CUDA sources of this crate.
pub static SOURCES: &[&Source] = &[&CHECKS, &copy_small::SOURCE, &gemm_init::SOURCE, &trap::SOURCE];

/// The kernels of this crate.
pub static KERNELS: &[&Kernel] = &[
    &FILL_PATTERN,
    &COUNT_WRONG,
    &CHECKSUM,
    &DELAY,
    &copy_small::KERNEL,
    &gemm_init::F32,
    &gemm_init::BF16,
    &trap::KERNEL,
];

static CHECKS: Source = Source { file: "device/checks.cu", text: include_str!("checks.cu") };

kernel_args! {
    /// Arguments of `fill_pattern`.
    struct FillPatternArgs { out: out u32, words: u64, seed: u64 }
}

kernel_args! {
    /// Arguments of `count_wrong`.
    struct CountWrongArgs { data: in u32, wrong: out u64, words: u64, seed: u64 }
}

kernel_args! {
    /// Arguments of `checksum`.
    struct ChecksumArgs { data: in u32, out: out u64, words: u64 }
}

kernel_args! {
    /// Arguments of `delay`.
    struct DelayArgs { ns: u64 }
}

static FILL_PATTERN: Kernel = Kernel {
    name: "fill_pattern",
    source: &CHECKS,
    params: FillPatternArgs::params(),
    host: &|args: &mut HostArgs<'_>| {
        let FillPatternArgs { out, words, seed } = FillPatternArgs::host(args);
        for (i, word) in out[..words as usize].iter_mut().enumerate() {
            *word = pattern_word(seed, i as u64);
        }
    },
};

static COUNT_WRONG: Kernel = Kernel {
    name: "count_wrong",
    source: &CHECKS,
    params: CountWrongArgs::params(),
    host: &|args: &mut HostArgs<'_>| {
        let CountWrongArgs { data, wrong, words, seed } = CountWrongArgs::host(args);
        let differs = |(i, word): (usize, &u32)| u64::from(*word != pattern_word(seed, i as u64));
        wrong[0] += data[..words as usize].iter().enumerate().map(differs).sum::<u64>();
    },
};

static CHECKSUM: Kernel = Kernel {
    name: "checksum",
    source: &CHECKS,
    params: ChecksumArgs::params(),
    host: &|args: &mut HostArgs<'_>| {
        let ChecksumArgs { data, out, words } = ChecksumArgs::host(args);
        // The sum of all parts is the checksum, however it is divided among them.
        out.fill(0);
        out[0] = checksum_words(&data[..words as usize]);
    },
};

static DELAY: Kernel = Kernel {
    name: "delay",
    source: &CHECKS,
    params: DelayArgs::params(),
    // Simulated work runs in any order as it is, and work on the CPU has nothing to delay.
    host: &|_: &mut HostArgs<'_>| {},
};

/// Word `i` of the pattern of `seed`.
pub fn pattern_word(seed: u64, i: u64) -> u32 {
    (SplitMix::skip(seed, i).next_u64() >> 32) as u32
}

/// The checksum of [`Checks::checksum`], computed on the host. A changed word always changes it; other differences do so
/// in all but one of 2⁶⁴ cases.
pub fn checksum_words(words: &[u32]) -> u64 {
    let term = |(i, word): (usize, &u32)| SplitMix::skip((*word).into(), i as u64).next_u64();
    words.iter().enumerate().map(term).fold(0, u64::wrapping_add)
}

/// The checksum from the parts that [`Checks::checksum`] wrote.
pub fn sum_of_parts(parts: &[u8]) -> u64 {
    let (parts, _) = parts.as_chunks::<8>();
    parts.iter().map(|part| u64::from_le_bytes(*part)).fold(0, u64::wrapping_add)
}

/// The checking kernels, loaded on one card.
pub struct Checks {
    fill: LoadedKernel,
    count: LoadedKernel,
    checksum: LoadedKernel,
    delay: LoadedKernel,
}

/// Enough threads to fill any card; the kernels are grid-stride loops.
const FULL_GRID: Grid = Grid { blocks: [1024, 1, 1], threads: 256, shared_bytes: 0 };
const SINGLE_THREAD: Grid = Grid { blocks: [1, 1, 1], threads: 1, shared_bytes: 0 };
/// Parts of a checksum, one for each block: enough blocks to read a batch in a few microseconds, and the parts fill one
/// block of an arena.
const CHECKSUM_PARTS: u64 = 32;
/// Bytes of the parts of a checksum.
pub const CHECKSUM_BYTES: u64 = 8 * CHECKSUM_PARTS;
const CHECKSUM_GRID: Grid = Grid { blocks: [CHECKSUM_PARTS as u32, 1, 1], threads: 256, shared_bytes: 0 };

impl Checks {
    /// Loads them.
    pub fn load(device: &Device) -> Result<Checks, DeviceError> {
        Ok(Checks {
            fill: device.load(&FILL_PATTERN)?,
            count: device.load(&COUNT_WRONG)?,
            checksum: device.load(&CHECKSUM)?,
            delay: device.load(&DELAY)?,
        })
    }

    /// Writes the pattern of `seed` over all whole words of `out`.
    pub fn fill_pattern(&self, stream: &Stream, out: View<'_>, seed: u64) -> Result<(), DeviceError> {
        let words = out.bytes() / 4;
        stream.launch(&self.fill, FULL_GRID, FillPatternArgs { out, words, seed })
    }

    /// Adds to the number in `wrong` how many words of `data` are not the pattern of `seed`.
    pub fn count_wrong(&self, stream: &Stream, data: View<'_>, wrong: View<'_>, seed: u64) -> Result<(), DeviceError> {
        let words = data.bytes() / 4;
        stream.launch(&self.count, FULL_GRID, CountWrongArgs { data, wrong, words, seed })
    }

    /// Writes the parts of the checksum of all whole words of `data` to `out`, [`CHECKSUM_BYTES`] long; [`sum_of_parts`]
    /// adds them. Deterministic: sums of integers do not depend on their order.
    pub fn checksum(&self, stream: &Stream, data: View<'_>, out: View<'_>) -> Result<(), DeviceError> {
        assert_eq!(out.bytes(), CHECKSUM_BYTES, "the parts of a checksum");
        let words = data.bytes() / 4;
        stream.launch(&self.checksum, CHECKSUM_GRID, ChecksumArgs { data, out, words })
    }

    /// Keeps `stream` busy for about `ns` nanoseconds (on a real card).
    pub fn delay(&self, stream: &Stream, ns: u64) -> Result<(), DeviceError> {
        stream.launch(&self.delay, SINGLE_THREAD, DelayArgs { ns })
    }
}
