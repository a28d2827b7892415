//! Kernels that check other work: patterns, checksums, and a delay that makes stream races visible. Beside them the one
//! that carries a few words, the one that helps GEMMs, and the one that breaks a card.

pub(crate) mod copy_small;
pub(crate) mod gemm_base;
pub(crate) mod trap;

use crate::arena::View;
use crate::device::{Device, LoadedKernel};
use crate::error::DeviceError;
use crate::kernel::{Arg, DType, Grid, HostArgs, Kernel, Param, Source};
use crate::stream::Stream;

/// The CUDA sources of this crate.
pub static SOURCES: &[&Source] = &[&CHECKS, &copy_small::SOURCE, &gemm_base::SOURCE, &trap::SOURCE];

/// The kernels of this crate.
pub static KERNELS: &[&Kernel] = &[&FILL_PATTERN, &COUNT_WRONG, &CHECKSUM, &DELAY];

static CHECKS: Source = Source { file: "device/checks.cu", text: include_str!("checks.cu") };

static FILL_PATTERN: Kernel = Kernel {
    name: "fill_pattern",
    source: &CHECKS,
    params: &[Param::Out(DType::U32), Param::U64, Param::U64],
    host: &|args: &mut HostArgs<'_>| {
        let (words, seed) = (args.u64(1), args.u64(2));
        let out = args.write::<u32>(0);
        for (i, word) in out[..words as usize].iter_mut().enumerate() {
            *word = pattern_word(seed, i as u64);
        }
    },
};

static COUNT_WRONG: Kernel = Kernel {
    name: "count_wrong",
    source: &CHECKS,
    params: &[Param::In(DType::U32), Param::Out(DType::U64), Param::U64, Param::U64],
    host: &|args: &mut HostArgs<'_>| {
        let (words, seed) = (args.u64(2), args.u64(3));
        let differs = |(i, word): (usize, &u32)| u64::from(*word != pattern_word(seed, i as u64));
        let wrong: u64 = args.read::<u32>(0)[..words as usize].iter().enumerate().map(differs).sum();
        args.write::<u64>(1)[0] += wrong;
    },
};

static CHECKSUM: Kernel = Kernel {
    name: "checksum",
    source: &CHECKS,
    params: &[Param::In(DType::U32), Param::Out(DType::U64), Param::U64],
    host: &|args: &mut HostArgs<'_>| {
        let words = args.u64(2) as usize;
        args.write::<u64>(1)[0] = checksum_words(&args.read::<u32>(0)[..words]);
    },
};

static DELAY: Kernel = Kernel {
    name: "delay",
    source: &CHECKS,
    params: &[Param::U64],
    // Simulated work runs in any order as it is, and work on the CPU has nothing to delay.
    host: &|_: &mut HostArgs<'_>| {},
};

/// Word `i` of the pattern of `seed`.
pub fn pattern_word(seed: u64, i: u64) -> u32 {
    let mut z = seed.wrapping_add((i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((z ^ (z >> 31)) >> 32) as u32
}

/// What [`Checks::checksum`] computes, on the host.
pub fn checksum_words(words: &[u32]) -> u64 {
    let term = |(i, word): (usize, &u32)| u64::from(*word).wrapping_mul(2 * i as u64 + 1);
    words.iter().enumerate().map(term).fold(0, u64::wrapping_add)
}

/// The checking kernels, loaded on one card.
pub struct Checks {
    fill: LoadedKernel,
    count: LoadedKernel,
    checksum: LoadedKernel,
    delay: LoadedKernel,
}

/// Enough threads to fill any card; the kernels stride over the rest.
const WIDE: Grid = Grid { blocks: [1024, 1, 1], threads: 256, shared_bytes: 0 };
const ONE_BLOCK: Grid = Grid { blocks: [1, 1, 1], threads: 256, shared_bytes: 0 };

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
        stream.launch(&self.fill, WIDE, &[Arg::write::<u32>(out), Arg::U64(words), Arg::U64(seed)])
    }

    /// Adds to the number in `wrong` how many words of `data` are not the pattern of `seed`.
    pub fn count_wrong(&self, stream: &Stream, data: View<'_>, wrong: View<'_>, seed: u64) -> Result<(), DeviceError> {
        let words = data.bytes() / 4;
        let args = [Arg::read::<u32>(data), Arg::write::<u64>(wrong), Arg::U64(words), Arg::U64(seed)];
        stream.launch(&self.count, WIDE, &args)
    }

    /// Writes the checksum of all whole words of `data` to `out`.
    pub fn checksum(&self, stream: &Stream, data: View<'_>, out: View<'_>) -> Result<(), DeviceError> {
        let words = data.bytes() / 4;
        stream.launch(&self.checksum, ONE_BLOCK, &[Arg::read::<u32>(data), Arg::write::<u64>(out), Arg::U64(words)])
    }

    /// Keeps `stream` busy for about `ns` nanoseconds (on a real card).
    pub fn delay(&self, stream: &Stream, ns: u64) -> Result<(), DeviceError> {
        let single = Grid { threads: 1, ..ONE_BLOCK };
        stream.launch(&self.delay, single, &[Arg::U64(ns)])
    }
}
