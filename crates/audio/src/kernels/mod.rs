//! The feature kernels: resampling, log-mel with energy, and pitch. The CUDA text is beside this file; the host kernels
//! are this crate's CPU path.

use tandem_device::{Kernel, Source, kernel_args};

use crate::normalization::Normalization;
use crate::on_device::host_kernels;
use crate::on_device::supported::{fits_mel_1024, fits_pitch_1024};
use crate::{Arithmetic, FeatureSettings};

/// The CUDA sources of this crate.
pub static SOURCES: &[&Source] =
    &[&RESAMPLE_SOURCE, &MEL_SOURCE, &MEL_TWO_FLOAT_SOURCE, &MEL_ANY_SOURCE, &PITCH_SOURCE, &PITCH_ANY_SOURCE];

/// The kernels of this crate.
pub static KERNELS: &[&Kernel] =
    &[&RESAMPLE, &LOG_MEL, &LOG_MEL_TWO_FLOAT, &LOG_MEL_ANY, &NORMALIZE_LOG_MEL, &PITCH, &PITCH_ANY];

/// The kernels that features with these settings need.
pub fn kernels_for(settings: &FeatureSettings) -> Vec<&'static Kernel> {
    let normalize = Normalization::of(settings).needs_maximum().then_some(&NORMALIZE_LOG_MEL);
    [&RESAMPLE, log_mel_for(settings)].into_iter().chain(normalize).chain([pitch_for(settings)]).collect()
}

/// The log-mel kernel for these settings.
pub(crate) fn log_mel_for(settings: &FeatureSettings) -> &'static Kernel {
    match (fits_mel_1024(settings), settings.arithmetic) {
        (true, Arithmetic::F64) => &LOG_MEL,
        (true, Arithmetic::TwoFloat) => &LOG_MEL_TWO_FLOAT,
        (false, _) => &LOG_MEL_ANY,
    }
}

/// The pitch kernel for these settings.
pub(crate) fn pitch_for(settings: &FeatureSettings) -> &'static Kernel {
    if fits_pitch_1024(settings) { &PITCH } else { &PITCH_ANY }
}

static RESAMPLE_SOURCE: Source =
    Source { file: "audio/resample.cu", text: concat!(include_str!("rows.cuh"), include_str!("resample.cu")) };
static MEL_SOURCE: Source = Source {
    file: "audio/mel.cu",
    text: concat!(include_str!("rows.cuh"), include_str!("f64.cuh"), include_str!("mel.cu")),
};
static MEL_TWO_FLOAT_SOURCE: Source = Source {
    file: "audio/mel.cu in two_float.cuh",
    text: concat!(include_str!("rows.cuh"), include_str!("two_float.cuh"), include_str!("mel.cu")),
};
static MEL_ANY_SOURCE: Source = Source {
    file: "audio/mel_any.cu",
    text: concat!(include_str!("rows.cuh"), include_str!("frames.cuh"), include_str!("mel_any.cu")),
};
static PITCH_SOURCE: Source = Source {
    file: "audio/pitch.cu",
    text: concat!(
        include_str!("rows.cuh"),
        include_str!("frames.cuh"),
        include_str!("pitch.cuh"),
        include_str!("pitch.cu")
    ),
};
static PITCH_ANY_SOURCE: Source = Source {
    file: "audio/pitch_any.cu",
    text: concat!(
        include_str!("rows.cuh"),
        include_str!("frames.cuh"),
        include_str!("pitch.cuh"),
        include_str!("pitch_any.cu")
    ),
};

kernel_args! {
    /// Arguments of `resample`: rows of samples in and out, a filter index per row, the filters.
    pub(crate) struct ResampleArgs {
        audio: in i16,
        in_starts: in u32,
        in_lengths: in u32,
        rates: in u32,
        filters: in u32,
        weights: in f32,
        out: out i16,
        out_starts: in u32,
        out_lengths: in u32,
        num_filters: u32,
        rows: u32,
    }
}

kernel_args! {
    /// Arguments of `log_mel`: rows of samples, the packed settings, the tables of the transform and of the filterbank.
    pub(crate) struct LogMelArgs {
        audio: in i16,
        lengths: in u32,
        sample_starts: in u32,
        frame_starts: in u32,
        settings: in u64,
        twiddles: in u64,
        bands: in u32,
        weights: in f32,
        mel: out f32,
        energy: out f32,
        with_energy: u32,
        rows: u32,
    }
}

kernel_args! {
    /// Arguments of `normalize_log_mel`: rows of log-mel frames, which it replaces.
    pub(crate) struct NormalizeArgs {
        lengths: in u32,
        sample_starts: in u32,
        frame_starts: in u32,
        settings: in u64,
        mel: out f32,
        rows: u32,
    }
}

kernel_args! {
    /// Arguments of `pitch`: rows of samples, the packed settings, and the cache of earlier results.
    pub(crate) struct PitchArgs {
        audio: in i16,
        lengths: in u32,
        sample_starts: in u32,
        frame_starts: in u32,
        settings: in u64,
        out: out f32,
        cache_offsets: in u32,
        cache: out f32,
        has_cache: u32,
        rows: u32,
    }
}

/// Resamples rows to the sample rate of the features.
pub(crate) static RESAMPLE: Kernel = Kernel {
    name: "resample",
    source: &RESAMPLE_SOURCE,
    params: ResampleArgs::params(),
    host: &host_kernels::resample,
};

/// Log-mel frames, and optionally energies, of a batch of rows, in f64.
static LOG_MEL: Kernel =
    Kernel { name: "log_mel", source: &MEL_SOURCE, params: LogMelArgs::params(), host: &host_kernels::log_mel };

/// The same in pairs of f32.
static LOG_MEL_TWO_FLOAT: Kernel = Kernel {
    name: "log_mel_two_float",
    source: &MEL_TWO_FLOAT_SOURCE,
    params: LogMelArgs::params(),
    host: &host_kernels::log_mel,
};

/// The same with any settings, in f64. With a top range it leaves the last steps to [`NORMALIZE_LOG_MEL`].
static LOG_MEL_ANY: Kernel =
    Kernel { name: "log_mel_any", source: &MEL_ANY_SOURCE, params: LogMelArgs::params(), host: &host_kernels::log_mel };

/// The last steps of log-mel frames that need the maximum of a row.
pub(crate) static NORMALIZE_LOG_MEL: Kernel = Kernel {
    name: "normalize_log_mel",
    source: &MEL_ANY_SOURCE,
    params: NormalizeArgs::params(),
    host: &host_kernels::normalize_log_mel,
};

/// The pitch of every frame of a batch of rows.
static PITCH: Kernel =
    Kernel { name: "pitch", source: &PITCH_SOURCE, params: PitchArgs::params(), host: &host_kernels::pitch };

/// The same with any settings.
static PITCH_ANY: Kernel =
    Kernel { name: "pitch_any", source: &PITCH_ANY_SOURCE, params: PitchArgs::params(), host: &host_kernels::pitch };
