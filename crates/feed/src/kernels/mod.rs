//! The kernels of this crate.

use tandem_device::{HostArgs, Kernel, Source, kernel_args};

use crate::batch::schema::HOP_SAMPLES;

/// The CUDA sources of this crate.
pub static SOURCES: &[&Source] = &[&COLLATE];
/// The kernels of this crate.
pub static KERNELS: &[&Kernel] = &[&GATHER_REFERENCE];

static COLLATE: Source = Source { file: "feed/collate.cu", text: include_str!("collate.cu") };

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
