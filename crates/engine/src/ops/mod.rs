//! The ops, one file each: shape rule, gradient rule, lowering, kernel, tests.

use tandem_device::Source;

pub mod pointwise;

mod adaptive_norm;
mod add_into;
mod alignment;
mod attention;
mod columns;
mod conv1d;
mod cross_entropy;
mod depthwise;
mod draws;
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
mod reduce;
mod reshape;
mod rotary;
mod row_pool;
mod softmax;
mod to_float;
mod transpose;
mod unfold;
mod window;

pub use draws::Draws;
pub use window::Window;

/// The source of kernels that run as twins only. A session on a CUDA machine refuses programs that hold one.
pub(crate) static NOT_ON_CUDA: Source = Source { file: "engine/not-on-cuda.cu", text: "" };
