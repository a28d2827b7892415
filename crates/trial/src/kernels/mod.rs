//! The rehearsal's kernels: a batch made from an upload, rows read from a batch, and matrix products.

use half::bf16;
use tandem_device::{DType, Element, Kernel, Param, Source, TwinArgs};

/// The CUDA sources of this crate.
pub static SOURCES: &[&Source] = &[&REHEARSAL];

static REHEARSAL: Source = Source { file: "trial/rehearsal.cu", text: include_str!("rehearsal.cu") };

/// The upload of a batch becomes the batch.
pub static MAKE_BATCH: Kernel = Kernel {
    name: "make_batch",
    source: &REHEARSAL,
    params: &[Param::In(DType::U32), Param::Out(DType::U32), Param::U64, Param::U64],
    twin: &|args: &mut TwinArgs<'_>| {
        let (upload, words) = (args.read::<u32>(0), args.u64(2));
        for (i, word) in args.write::<u32>(1).iter_mut().enumerate() {
            *word = batch_word(upload[i % words as usize], i as u64);
        }
    },
};

/// Word `i` of a batch, from the word of the upload it is made of.
pub fn batch_word(upload: u32, i: u64) -> u32 {
    upload.wrapping_mul(2_654_435_761).wrapping_add(i as u32)
}

const fn rows_params(dtype: DType) -> [Param; 3] {
    [Param::In(DType::U32), Param::Out(dtype), Param::U64]
}

const fn product_params(dtype: DType) -> [Param; 5] {
    [Param::In(dtype), Param::In(dtype), Param::Out(dtype), Param::U32, Param::U32]
}

/// Rows of small reals from a batch, in f32.
pub static ROWS_F32: Kernel =
    Kernel { name: "rows_f32", source: &REHEARSAL, params: &rows_params(DType::F32), twin: &rows_twin::<f32> };
/// Rows of small reals from a batch, in bf16.
pub static ROWS_BF16: Kernel =
    Kernel { name: "rows_bf16", source: &REHEARSAL, params: &rows_params(DType::BF16), twin: &rows_twin::<bf16> };
/// Rows times a square matrix, in f32.
pub static PRODUCT_F32: Kernel =
    Kernel { name: "product_f32", source: &REHEARSAL, params: &product_params(DType::F32), twin: &product_twin::<f32> };
/// Rows times a square matrix, in bf16 with f32 sums.
pub static PRODUCT_BF16: Kernel = Kernel {
    name: "product_bf16",
    source: &REHEARSAL,
    params: &product_params(DType::BF16),
    twin: &product_twin::<bf16>,
};

/// The kernels the data role uses.
pub static DATA_KERNELS: &[&Kernel] = &[&MAKE_BATCH];
/// The kernels the model role uses.
pub static MODEL_KERNELS: &[&Kernel] = &[&ROWS_F32, &ROWS_BF16, &PRODUCT_F32, &PRODUCT_BF16];

trait Real: Element + Copy {
    fn from_f32(x: f32) -> Self;
    fn to_f32(self) -> f32;
}

impl Real for f32 {
    fn from_f32(x: f32) -> f32 {
        x
    }
    fn to_f32(self) -> f32 {
        self
    }
}

impl Real for bf16 {
    fn from_f32(x: f32) -> bf16 {
        bf16::from_f32(x)
    }
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
}

fn rows_twin<T: Real>(args: &mut TwinArgs<'_>) {
    let (batch, count) = (args.read::<u32>(0), args.u64(2) as usize);
    for (out, word) in args.write::<T>(1)[..count].iter_mut().zip(batch) {
        *out = T::from_f32(*word as i32 as f32 * 2f32.powi(-31));
    }
}

fn product_twin<T: Real>(args: &mut TwinArgs<'_>) {
    let (input, weights) = (args.read::<T>(0), args.read::<T>(1));
    let (rows, width) = (args.u32(3) as usize, args.u32(4) as usize);
    let out = args.write::<T>(2);
    let mut sums = vec![0f32; width];
    for row in 0..rows {
        sums.fill(0.0);
        for k in 0..width {
            let x = input[row * width + k].to_f32();
            let line = &weights[k * width..(k + 1) * width];
            sums.iter_mut().zip(line).for_each(|(sum, w)| *sum += x * w.to_f32());
        }
        out[row * width..(row + 1) * width].iter_mut().zip(&sums).for_each(|(out, sum)| *out = T::from_f32(*sum));
    }
}
