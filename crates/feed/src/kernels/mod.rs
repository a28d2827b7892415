//! The kernels of this crate.

use tandem_device::{HostArgs, Kernel, Source, kernel_args};

use crate::batch::schema::{BatchSchema, HOP_SAMPLES};

/// The CUDA sources of this crate.
pub static SOURCES: &[&Source] = &[&COLLATE, &WAVEFORM_SOURCE];
/// The kernels of this crate.
pub static KERNELS: &[&Kernel] = &[&GATHER_REFERENCE, &WAVEFORM];

/// The kernels that batches of `schema` need.
pub fn kernels_for(schema: &BatchSchema) -> Vec<&'static Kernel> {
    let waveform = schema.has("waveform").then_some(&WAVEFORM);
    [&GATHER_REFERENCE].into_iter().chain(waveform).collect()
}

static COLLATE: Source = Source { file: "feed/collate.cu", text: include_str!("collate.cu") };
static WAVEFORM_SOURCE: Source = Source { file: "feed/waveform.cu", text: include_str!("waveform.cu") };

kernel_args! {
    /// Arguments of `gather_reference`. `picks` holds, per row, the row its reference is copied from and the first frame.
    pub(crate) struct GatherReferenceArgs {
        mel: in f32,
        lengths: in u32,
        frame_starts: in u32,
        picks: in u32,
        reference: out f32,
        reference_frames: u32,
        bands: u32,
        silence: f32,
    }
}

/// Copies the reference of each row out of the log-mel frames of the row that was picked for it: one block per reference
/// frame and row.
pub(crate) static GATHER_REFERENCE: Kernel = Kernel {
    name: "gather_reference",
    source: &COLLATE,
    params: GatherReferenceArgs::params(),
    host: &gather_reference,
};

kernel_args! {
    /// Arguments of `waveform`: rows of int16 samples at the rate of the features, and how many of each are used.
    pub(crate) struct WaveformArgs {
        audio: in i16,
        sample_starts: in u32,
        lengths: in u32,
        frame_starts: in u32,
        out: out f32,
        hop: u32,
    }
}

/// Samples as f32, full scale 1, with zeros after the end of a recording.
pub(crate) static WAVEFORM: Kernel =
    Kernel { name: "waveform", source: &WAVEFORM_SOURCE, params: WaveformArgs::params(), host: &waveform };

fn waveform(args: &mut HostArgs<'_>) {
    let WaveformArgs { audio, sample_starts, lengths, frame_starts, out, hop } = WaveformArgs::host(args);
    let hop = hop as usize;
    for ((frames, start), length) in frame_starts.windows(2).zip(sample_starts).zip(lengths) {
        let row = &mut out[frames[0] as usize * hop..frames[1] as usize * hop];
        let (used, rest) = row.split_at_mut((*length as usize).min(row.len()));
        for (out, sample) in used.iter_mut().zip(&audio[*start as usize..]) {
            *out = f32::from(*sample) * (1.0 / 32768.0);
        }
        rest.fill(0.0);
    }
}

fn gather_reference(args: &mut HostArgs<'_>) {
    let GatherReferenceArgs { mel, lengths, frame_starts, picks, reference, reference_frames, bands, silence } =
        GatherReferenceArgs::host(args);
    let (reference_frames, bands) = (reference_frames as usize, bands as usize);
    let references = reference.chunks_exact_mut(reference_frames * bands);
    for (reference, pick) in references.zip(picks.chunks_exact(2)) {
        // A pick outside the batch is clamped, as in the CUDA source: no memory outside the batch is read.
        let (row, start) = ((pick[0] as usize).min(lengths.len() - 1), pick[1] as usize);
        let [first, end] = [0, 1].map(|i| frame_starts[row + i] as usize);
        let valid = (lengths[row] as usize / HOP_SAMPLES as usize).min(end - first);
        for (i, out) in reference.chunks_exact_mut(bands).enumerate() {
            match start + i < valid {
                true => out.copy_from_slice(&mel[(first + start + i) * bands..][..bands]),
                false => out.fill(silence),
            }
        }
    }
}
