//! The kernels of attention: which one a call takes, and how its frames are cut into blocks.
//!
//! bf16 with heads of 32, 64, 96 or 128 columns runs on tensor cores, with a source for each size, so that only what a model
//! uses is compiled (2 to 5 s). Everything else runs in plain arithmetic. Their Rust halves are the same.

use half::bf16;
use tandem_device::{DType, Element, Grid, Kernel, Param, Source, host};

use super::{backward, forward};
use crate::error::EngineError;
use crate::ops::NOT_ON_CUDA;
use crate::real::Real;
use crate::rows::Rows;
use crate::{for_real, named_for};

/// Threads of a block, of every kernel here but that of levels.
const THREADS: u32 = 128;
/// Frames of a block in plain arithmetic: its kernels are written for squares of them.
const PLAIN_FRAMES: u32 = 32;

/// A kernel, and what a block of it is.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    pub(super) kernel: &'static Kernel,
    frames: u32,
    /// Blocks for the same frames, which do different things.
    kinds: u32,
    shared_bytes: u32,
}

impl Blocks {
    /// Heads, rows, pieces of the longest row. Blocks start in that order, and those with the most to do first.
    pub(super) fn grid(&self, heads: u32, rows: &Rows) -> Grid {
        let pieces = self.kinds * rows.longest().div_ceil(self.frames);
        Grid { blocks: [heads, rows.count(), pieces], threads: THREADS, shared_bytes: self.shared_bytes }
    }
}

/// What computes attention over heads of `size` columns.
pub(super) fn forward(dtype: DType, size: u32) -> Result<Blocks, EngineError> {
    if let Some(tiles) = on_tensor_cores(dtype, size) {
        return Ok(tiles.forward());
    }
    let kernel = for_real!("attention", dtype, T => &Plain::<T>::FORWARD);
    Ok(Blocks { kernel, frames: PLAIN_FRAMES, kinds: 1, shared_bytes: 0 })
}

/// What computes its gradient.
pub(super) fn backward(dtype: DType, size: u32) -> Result<Blocks, EngineError> {
    if let Some(tiles) = on_tensor_cores(dtype, size) {
        return Ok(tiles.backward());
    }
    let kernel = for_real!("attention gradient", dtype, T => &Plain::<T>::BACKWARD);
    Ok(Blocks { kernel, frames: PLAIN_FRAMES, kinds: 2, shared_bytes: 0 })
}

/// What computes levels, eight threads for each of `count`.
pub(super) fn levels(dtype: DType, count: u64) -> Result<(&'static Kernel, Grid), EngineError> {
    Ok((for_real!("attention gradient", dtype, T => &Plain::<T>::LEVELS), Grid::cover(count * 8, 256)))
}

/// Heads of one size on tensor cores. The numbers are known to the source too.
struct Tiles {
    size: u32,
    /// Sixteens of queries that a warp has.
    forward_tiles: u32,
    /// Keys that are looked at together.
    forward_keys: u32,
    /// Sixteens of keys, or of queries, that a warp has.
    backward_tiles: u32,
    /// Keys that are looked at together by a block that has queries.
    backward_keys: u32,
    /// Queries that are looked at together by a block that has keys.
    backward_queries: u32,
    forward: Kernel,
    backward: Kernel,
}

impl Tiles {
    /// The queries, and two stages of keys and values.
    fn forward(&'static self) -> Blocks {
        let frames = 64 * self.forward_tiles;
        let shared_bytes = (frames + 4 * self.forward_keys) * self.size * 2;
        Blocks { kernel: &self.forward, frames, kinds: 1, shared_bytes }
    }

    /// Keys and values, and two stages of queries and gradients with two floats each; or the other way round.
    fn backward(&'static self) -> Blocks {
        let frames = 64 * self.backward_tiles;
        let (of_keys, of_queries) =
            (4 * self.backward_queries * (self.size * 2 + 4), 4 * self.backward_keys * self.size * 2);
        let shared_bytes = 2 * frames * self.size * 2 + of_keys.max(of_queries);
        Blocks { kernel: &self.backward, frames, kinds: 2, shared_bytes }
    }
}

fn on_tensor_cores(dtype: DType, size: u32) -> Option<&'static Tiles> {
    ALL_TILES.into_iter().find(|tiles| dtype == DType::BF16 && tiles.size == size)
}

static ALL_TILES: [&Tiles; 4] = [&TILES_32, &TILES_64, &TILES_96, &TILES_128];

pub(crate) static PLAIN: Source = Source { file: "engine/attention/plain.cu", text: include_str!("plain.cu") };

pub(crate) static LEVELS: Source = Source { file: "engine/attention/levels.cu", text: include_str!("levels.cu") };

macro_rules! tiles {
    ($tiles:ident, $source:ident, $size:literal, forward $fm:literal x $fk:literal, backward $bm:literal x $bk:literal, $bq:literal) => {
        pub(crate) static $source: Source = Source {
            file: concat!("engine/attention/tiles_", $size, ".cu"),
            text: concat!(
                "#define SIZE ",
                $size,
                "\n#define NAMED(name) name##",
                $size,
                "\n#define FORWARD_TILES ",
                $fm,
                "\n#define FORWARD_KEYS ",
                $fk,
                "\n#define BACKWARD_TILES ",
                $bm,
                "\n#define BACKWARD_KEYS ",
                $bk,
                "\n#define BACKWARD_QUERIES ",
                $bq,
                "\n#line 1 \"warp.cuh\"\n",
                include_str!("warp.cuh"),
                "\n#line 1 \"tiles.cuh\"\n",
                include_str!("tiles.cuh"),
                "\n#line 1 \"forward.cu\"\n",
                include_str!("forward.cu"),
                "\n#line 1 \"backward.cu\"\n",
                include_str!("backward.cu"),
            ),
        };
        static $tiles: Tiles = Tiles {
            size: $size,
            forward_tiles: $fm,
            forward_keys: $fk,
            backward_tiles: $bm,
            backward_keys: $bk,
            backward_queries: $bq,
            forward: Kernel { name: concat!("attention_bf16_", $size), source: &$source, ..Plain::<bf16>::FORWARD },
            backward: Kernel {
                name: concat!("attention_gradient_bf16_", $size),
                source: &$source,
                ..Plain::<bf16>::BACKWARD
            },
        };
    };
}

// As large as 255 registers allow without a spill: what is kept for a frame grows with the size, what is kept for a score does
// not. Two sixteens a warp halve the loads in front of each GEMM. Heads of 64 with 64 keys in the backward pass spill 4 bytes
// on sm_86 and sm_89, and leave room for one block there instead of two.
tiles!(TILES_32, SOURCE_32, 32, forward 2 x 64, backward 2 x 64, 64);
tiles!(TILES_64, SOURCE_64, 64, forward 2 x 64, backward 2 x 32, 32);
tiles!(TILES_96, SOURCE_96, 96, forward 2 x 64, backward 1 x 64, 64);
tiles!(TILES_128, SOURCE_128, 128, forward 2 x 32, backward 1 x 64, 64);

struct Plain<T>(std::marker::PhantomData<T>);

impl<T: Real<Acc: host::GemmFloat>> Plain<T> {
    const ACC: DType = <T::Acc as Element>::DTYPE;
    const SOURCE: &'static Source = if Self::ON_CUDA { &PLAIN } else { &NOT_ON_CUDA };
    const ON_CUDA: bool = !matches!(T::DTYPE, DType::F64);

    const FORWARD: Kernel = Kernel {
        name: named_for!(T, "attention"),
        source: Self::SOURCE,
        params: &[
            Param::U32,            // batch
            Param::U32,            // heads
            Param::U32,            // columns of a head
            Param::U32,            // causal
            Param::In(T::DTYPE),   // queries, keys, values
            Param::In(DType::U32), // row starts
            Param::In(DType::I32), // lengths
            Param::Out(T::DTYPE),  // mixtures
            Param::Out(Self::ACC), // logarithms of sums
        ],
        host: &forward::host::<T>,
    };

    const BACKWARD: Kernel = Kernel {
        name: named_for!(T, "attention_gradient"),
        source: Self::SOURCE,
        params: &[
            Param::U32,            // batch
            Param::U32,            // heads
            Param::U32,            // columns of a head
            Param::U32,            // causal
            Param::In(T::DTYPE),   // queries, keys, values
            Param::In(DType::U32), // row starts
            Param::In(DType::I32), // lengths
            Param::In(Self::ACC),  // logarithms of sums
            Param::In(Self::ACC),  // levels
            Param::In(T::DTYPE),   // gradient of the mixtures
            Param::Out(T::DTYPE),  // gradient of queries, keys, values
        ],
        host: &backward::host::<T>,
    };

    const LEVELS: Kernel = Kernel {
        name: named_for!(T, "attention_levels"),
        source: if Self::ON_CUDA { &LEVELS } else { &NOT_ON_CUDA },
        params: &[
            Param::U64,            // frames · heads
            Param::U32,            // columns of a head
            Param::In(T::DTYPE),   // mixtures
            Param::In(T::DTYPE),   // gradient of the mixtures
            Param::Out(Self::ACC), // levels
        ],
        host: &backward::levels::<T>,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shared memory that a block may have on every card since sm_80: the least is that of sm_86, sm_89 and sm_120.
    const SHARED_BYTES: u32 = 99 << 10;

    #[test]
    fn blocks_fit_on_every_card() {
        for tiles in ALL_TILES {
            for blocks in [tiles.forward(), tiles.backward()] {
                assert!(blocks.shared_bytes <= SHARED_BYTES, "{:?}: {} bytes", blocks.kernel, blocks.shared_bytes);
            }
        }
    }

    #[test]
    fn tensor_cores_are_for_the_sizes_they_are_written_for() {
        let check = |dtype, size, expected: &str, kinds: [u32; 2]| {
            let (forward, backward) = (forward(dtype, size).unwrap(), backward(dtype, size).unwrap());
            assert_eq!(forward.kernel.name, format!("attention_{expected}"));
            assert_eq!(backward.kernel.name, format!("attention_gradient_{expected}"));
            let rows = Rows::new(&[129, 0]);
            let blocks = [forward, backward].map(|blocks| blocks.grid(3, &rows).blocks);
            assert_eq!(blocks, kinds.map(|pieces| [3, 2, pieces]));
        };
        check(DType::BF16, 64, "bf16_64", [2, 4]);
        check(DType::BF16, 128, "bf16_128", [2, 6]);
        check(DType::BF16, 48, "bf16", [5, 10]);
        check(DType::F32, 64, "f32", [5, 10]);
        check(DType::F64, 64, "f64", [5, 10]);
    }
}
