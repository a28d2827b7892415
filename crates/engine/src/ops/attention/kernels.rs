//! The kernels of attention: which one a call launches, and how its frames are divided into blocks.
//!
//! bf16 with heads of 32, 64, 96 or 128 columns runs on tensor cores. Each head size has a separate source, so that a model
//! compiles only the one it uses (2 to 5 s). Everything else runs on CUDA cores in f32. All share the same host kernels.

use half::bf16;
use tandem_device::{DType, Grid, Kernel, Source, host, kernel_args};

use super::{backward, forward};
use crate::error::EngineError;
use crate::ops::on_cuda;
use crate::real::Real;
use crate::rows::Rows;
use crate::{for_real, named_for};

/// Threads per block of every kernel here except delta.
const THREADS: u32 = 128;
/// Frames per block of the kernels in `simt.cu`: their `TILE`.
const SIMT_FRAMES: u32 = 32;

/// A kernel and the shape of its blocks.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    pub(super) kernel: &'static Kernel,
    frames: u32,
    /// Kinds of blocks per tile of frames: the backward pass has blocks for keys and blocks for queries.
    kinds: u32,
    shared_bytes: u32,
}

impl Blocks {
    /// Heads, rows, tiles of the longest row. Blocks start in that order, those with the most work first.
    pub(super) fn grid(&self, heads: u32, rows: &Rows) -> Grid {
        let tiles = self.kinds * rows.longest().div_ceil(self.frames);
        Grid { blocks: [heads, rows.count(), tiles], threads: THREADS, shared_bytes: self.shared_bytes }
    }
}

/// The forward kernel for heads of `head_dim` columns.
pub(super) fn forward(dtype: DType, head_dim: u32) -> Result<Blocks, EngineError> {
    if let Some(tiles) = on_tensor_cores(dtype, head_dim) {
        return Ok(tiles.forward());
    }
    let kernel = for_real!("attention", dtype, T => &Simt::<T>::FORWARD);
    Ok(Blocks { kernel, frames: SIMT_FRAMES, kinds: 1, shared_bytes: 0 })
}

/// The backward kernel for heads of `head_dim` columns.
pub(super) fn backward(dtype: DType, head_dim: u32) -> Result<Blocks, EngineError> {
    if let Some(tiles) = on_tensor_cores(dtype, head_dim) {
        return Ok(tiles.backward());
    }
    let kernel = for_real!("attention gradient", dtype, T => &Simt::<T>::BACKWARD);
    Ok(Blocks { kernel, frames: SIMT_FRAMES, kinds: 2, shared_bytes: 0 })
}

/// The kernel that computes delta, eight threads for each of `count`.
pub(super) fn delta(dtype: DType, count: u64) -> Result<(&'static Kernel, Grid), EngineError> {
    Ok((for_real!("attention gradient", dtype, T => &Simt::<T>::DELTA), Grid::cover(count * 8, 256)))
}

/// The tile sizes of one head size on tensor cores. The source has the same numbers as `#define`s.
struct TileShape {
    head_dim: u32,
    /// Tiles of 16 queries per warp.
    forward_tiles: u32,
    /// Keys per step of the inner loop.
    forward_keys: u32,
    /// Tiles of 16 keys, or of 16 queries, per warp.
    backward_tiles: u32,
    /// Keys per step of a block that owns queries.
    backward_keys: u32,
    /// Queries per step of a block that owns keys.
    backward_queries: u32,
    forward: Kernel,
    backward: Kernel,
}

impl TileShape {
    /// Shared memory holds the queries, and two stages of keys and values.
    fn forward(&'static self) -> Blocks {
        let frames = 64 * self.forward_tiles;
        let shared_bytes = (frames + 4 * self.forward_keys) * self.head_dim * 2;
        Blocks { kernel: &self.forward, frames, kinds: 1, shared_bytes }
    }

    /// Shared memory holds keys and values, and two stages of queries and dO with lse and delta; or queries and dO, and two
    /// stages of keys and values.
    fn backward(&'static self) -> Blocks {
        let frames = 64 * self.backward_tiles;
        let query_stages = 4 * self.backward_queries * (self.head_dim * 2 + 4);
        let key_stages = 4 * self.backward_keys * self.head_dim * 2;
        let shared_bytes = 2 * frames * self.head_dim * 2 + query_stages.max(key_stages);
        Blocks { kernel: &self.backward, frames, kinds: 2, shared_bytes }
    }
}

fn on_tensor_cores(dtype: DType, head_dim: u32) -> Option<&'static TileShape> {
    TILE_SHAPES.into_iter().find(|tiles| dtype == DType::BF16 && tiles.head_dim == head_dim)
}

static TILE_SHAPES: [&TileShape; 4] = [&TILES_32, &TILES_64, &TILES_96, &TILES_128];

pub(crate) static SIMT: Source = Source { file: "engine/attention/simt.cu", text: include_str!("simt.cu") };

pub(crate) static DELTA: Source = Source { file: "engine/attention/delta.cu", text: include_str!("delta.cu") };

macro_rules! tiles {
    ($tiles:ident, $source:ident, $size:literal, forward $fm:literal x $fk:literal, backward $bm:literal x $bk:literal, $bq:literal) => {
        pub(crate) static $source: Source = Source {
            file: concat!("engine/attention/tiles_", $size, ".cu"),
            text: concat!(
                "#define HEAD_DIM ",
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
        static $tiles: TileShape = TileShape {
            head_dim: $size,
            forward_tiles: $fm,
            forward_keys: $fk,
            backward_tiles: $bm,
            backward_keys: $bk,
            backward_queries: $bq,
            forward: Kernel { name: concat!("attention_bf16_", $size), source: &$source, ..Simt::<bf16>::FORWARD },
            backward: Kernel {
                name: concat!("attention_gradient_bf16_", $size),
                source: &$source,
                ..Simt::<bf16>::BACKWARD
            },
        };
    };
}

// As large as 255 registers allow without a spill: the registers of a frame grow with the head size, those of a score do
// not. Two tiles per warp halve the loads in front of each GEMM. Heads of 64 with 64 keys in the backward pass spill 4 bytes
// on sm_86 and sm_89, and reduce occupancy there from two blocks to one.
tiles!(TILES_32, SOURCE_32, 32, forward 2 x 64, backward 2 x 64, 64);
tiles!(TILES_64, SOURCE_64, 64, forward 2 x 64, backward 2 x 32, 32);
tiles!(TILES_96, SOURCE_96, 96, forward 2 x 64, backward 1 x 64, 64);
tiles!(TILES_128, SOURCE_128, 128, forward 2 x 32, backward 1 x 64, 64);

kernel_args! {
    /// Arguments of `attention`.
    pub(super) struct AttentionArgs<T: Real> {
        batch: u32,
        heads: u32,
        head_dim: u32,
        causal: u32,
        qkv: in T,
        starts: in u32,
        lengths: in i32,
        out: out T,
        lse: out T::Acc,
    }
}

kernel_args! {
    /// Arguments of `attention_gradient`.
    pub(super) struct AttentionGradientArgs<T: Real> {
        batch: u32,
        heads: u32,
        head_dim: u32,
        causal: u32,
        qkv: in T,
        starts: in u32,
        lengths: in i32,
        lse: in T::Acc,
        delta: in T::Acc,
        dout: in T,
        dqkv: out T,
    }
}

kernel_args! {
    /// Arguments of `attention_delta`. `count` is frames · heads.
    pub(super) struct AttentionDeltaArgs<T: Real> {
        count: u64,
        head_dim: u32,
        out: in T,
        dout: in T,
        delta: out T::Acc,
    }
}

struct Simt<T>(std::marker::PhantomData<T>);

impl<T: Real<Acc: host::GemmFloat>> Simt<T> {
    const FORWARD: Kernel = Kernel {
        name: named_for!(T, "attention"),
        source: on_cuda::<T>(&SIMT),
        params: AttentionArgs::params::<T>(),
        host: &forward::host::<T>,
    };

    const BACKWARD: Kernel = Kernel {
        name: named_for!(T, "attention_gradient"),
        source: on_cuda::<T>(&SIMT),
        params: AttentionGradientArgs::params::<T>(),
        host: &backward::host::<T>,
    };

    const DELTA: Kernel = Kernel {
        name: named_for!(T, "attention_delta"),
        source: on_cuda::<T>(&DELTA),
        params: AttentionDeltaArgs::params::<T>(),
        host: &backward::delta::<T>,
    };
}

pub(crate) static KERNELS: &[&Kernel] = &[
    &Simt::<f32>::FORWARD,
    &Simt::<f32>::BACKWARD,
    &Simt::<f32>::DELTA,
    &Simt::<bf16>::FORWARD,
    &Simt::<bf16>::BACKWARD,
    &Simt::<bf16>::DELTA,
    &TILES_32.forward,
    &TILES_32.backward,
    &TILES_64.forward,
    &TILES_64.backward,
    &TILES_96.forward,
    &TILES_96.backward,
    &TILES_128.forward,
    &TILES_128.backward,
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Shared memory per block on every card since sm_80: the smallest limit is that of sm_86, sm_89 and sm_120.
    const SHARED_BYTES: u32 = 99 << 10;

    #[test]
    fn blocks_fit_on_every_card() {
        for tiles in TILE_SHAPES {
            for blocks in [tiles.forward(), tiles.backward()] {
                assert!(blocks.shared_bytes <= SHARED_BYTES, "{:?}: {} bytes", blocks.kernel, blocks.shared_bytes);
            }
        }
    }

    #[test]
    fn tensor_cores_run_the_head_sizes_they_are_written_for() {
        let check = |dtype, head_dim, expected: &str, tiles: [u32; 2]| {
            let (forward, backward) = (forward(dtype, head_dim).unwrap(), backward(dtype, head_dim).unwrap());
            assert_eq!(forward.kernel.name, format!("attention_{expected}"));
            assert_eq!(backward.kernel.name, format!("attention_gradient_{expected}"));
            let rows = Rows::new(&[129, 0]);
            let blocks = [forward, backward].map(|blocks| blocks.grid(3, &rows).blocks);
            assert_eq!(blocks, tiles.map(|tiles| [3, 2, tiles]));
        };
        check(DType::BF16, 64, "bf16_64", [2, 4]);
        check(DType::BF16, 128, "bf16_128", [2, 6]);
        check(DType::BF16, 48, "bf16", [5, 10]);
        check(DType::F32, 64, "f32", [5, 10]);
        check(DType::F64, 64, "f64", [5, 10]);
    }
}
