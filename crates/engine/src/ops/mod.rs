//! The ops, one file each: shape rule, gradient rule, lowering, kernel, tests.

use tandem_device::{DType, Element, Kernel, Source};

pub mod pointwise;

mod adaptive_norm;
mod add_into;
mod alignment;
mod attention;
mod columns;
mod conv1d;
mod cross_entropy;
mod depthwise;
mod dropout;
mod embedding;
mod expand;
mod frame_loss;
mod frames;
mod group_norm;
mod layer_norm;
mod length_mask;
mod matmul;
mod noise;
mod norm;
mod output_lengths;
mod overwrite;
mod reduce;
mod reshape;
mod rng_keys;
mod rotary;
mod row_pool;
mod softmax;
mod to_float;
mod transpose;
mod unfold;
mod window;

pub use rng_keys::RngKeys;
pub use window::ConvWindow;

/// The CUDA sources of the ops. Fused pointwise chains are not among them: their sources are generated.
pub static SOURCES: &[&Source] = &[
    &adaptive_norm::SOURCE,
    &add_into::SOURCE,
    &alignment::SOURCE,
    &attention::DELTA,
    &attention::SIMT,
    &attention::SOURCE_32,
    &attention::SOURCE_64,
    &attention::SOURCE_96,
    &attention::SOURCE_128,
    &columns::SOURCE,
    &cross_entropy::SOURCE,
    &depthwise::SOURCE,
    &dropout::SOURCE,
    &embedding::SOURCE,
    &expand::SOURCE,
    &frame_loss::BCE,
    &frame_loss::L1,
    &frame_loss::L2,
    &group_norm::SOURCE,
    &layer_norm::SOURCE,
    &length_mask::SOURCE,
    &noise::SOURCE,
    &norm::SOURCE,
    &output_lengths::SOURCE,
    &reduce::SOURCE,
    &rotary::SOURCE,
    &row_pool::SOURCE,
    &softmax::SOURCE,
    &to_float::SOURCE,
    &transpose::SOURCE,
    &unfold::SOURCE,
];

/// The kernels of [`SOURCES`].
pub static KERNELS: &[&[&Kernel]] = &[
    adaptive_norm::KERNELS,
    add_into::KERNELS,
    alignment::KERNELS,
    attention::KERNELS,
    columns::KERNELS,
    cross_entropy::KERNELS,
    depthwise::KERNELS,
    dropout::KERNELS,
    embedding::KERNELS,
    expand::KERNELS,
    frame_loss::KERNELS,
    group_norm::KERNELS,
    layer_norm::KERNELS,
    length_mask::KERNELS,
    noise::KERNELS,
    norm::KERNELS,
    output_lengths::KERNELS,
    reduce::KERNELS,
    rotary::KERNELS,
    row_pool::KERNELS,
    softmax::KERNELS,
    to_float::KERNELS,
    transpose::KERNELS,
    unfold::KERNELS,
];

/// The source of kernels without CUDA code. A session on a CUDA machine refuses programs that contain one.
pub(crate) static NOT_ON_CUDA: Source = Source { file: "engine/not-on-cuda.cu", text: "" };

/// The source of a kernel over elements of `T`: `source`, or no CUDA code for f64, which is for gradient checks on the host.
pub(crate) const fn on_cuda<T: Element>(source: &'static Source) -> &'static Source {
    match T::DTYPE {
        DType::F64 => &NOT_ON_CUDA,
        _ => source,
    }
}
