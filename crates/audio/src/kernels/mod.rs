//! Features as kernels: resampling, log-mel with energy, and pitch. Their CUDA text is beside this file, their maths
//! on the host is this crate's own CPU path.

use tandem_device::{DType, Kernel, Param, Source};

use crate::on_device::host_kernels;

/// The CUDA sources of this crate.
pub static SOURCES: &[&Source] = &[&RESAMPLE_SOURCE, &MEL_SOURCE, &PITCH_SOURCE];

/// The kernels of this crate.
pub static KERNELS: &[&Kernel] = &[&RESAMPLE, &LOG_MEL, &PITCH];

static RESAMPLE_SOURCE: Source =
    Source { file: "audio/resample.cu", text: concat!(include_str!("rows.cuh"), include_str!("resample.cu")) };
static MEL_SOURCE: Source =
    Source { file: "audio/mel.cu", text: concat!(include_str!("rows.cuh"), include_str!("mel.cu")) };
static PITCH_SOURCE: Source =
    Source { file: "audio/pitch.cu", text: concat!(include_str!("rows.cuh"), include_str!("pitch.cu")) };

/// Rows at their own rates become rows at the features' rate.
pub(crate) static RESAMPLE: Kernel = Kernel {
    name: "resample",
    source: &RESAMPLE_SOURCE,
    params: &[
        Param::In(DType::I16), // audio
        Param::In(DType::U32), // in_starts
        Param::In(DType::U32), // in_lengths
        Param::In(DType::U32), // rates
        Param::In(DType::U32), // filters
        Param::In(DType::F32), // weights
        Param::Out(DType::I16),
        Param::In(DType::U32), // out_starts
        Param::In(DType::U32), // out_lengths
        Param::U32,            // num_filters
        Param::U32,            // rows
    ],
    host: &host_kernels::resample,
};

/// A batch of rows of samples becomes log-mel frames and, if wanted, energies.
pub(crate) static LOG_MEL: Kernel = Kernel {
    name: "log_mel",
    source: &MEL_SOURCE,
    params: &[
        Param::In(DType::I16),  // audio
        Param::In(DType::U32),  // lengths
        Param::In(DType::U32),  // sample_starts
        Param::In(DType::U32),  // frame_starts
        Param::In(DType::U64),  // numbers
        Param::In(DType::F64),  // transform
        Param::In(DType::U32),  // bands
        Param::In(DType::F32),  // weights
        Param::Out(DType::F32), // mel
        Param::Out(DType::F32), // energy
        Param::U32,             // with_energy
        Param::U32,             // rows
    ],
    host: &host_kernels::log_mel,
};

/// A batch of rows of samples becomes a pitch per frame.
pub(crate) static PITCH: Kernel = Kernel {
    name: "pitch",
    source: &PITCH_SOURCE,
    params: &[
        Param::In(DType::I16), // audio
        Param::In(DType::U32), // lengths
        Param::In(DType::U32), // sample_starts
        Param::In(DType::U32), // frame_starts
        Param::In(DType::U64), // numbers
        Param::Out(DType::F32),
        Param::In(DType::U32),  // places
        Param::Out(DType::F32), // kept
        Param::U32,             // keeps
        Param::U32,             // rows
    ],
    host: &host_kernels::pitch,
};
