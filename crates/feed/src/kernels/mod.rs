//! The kernels of this crate.

use tandem_device::{DType, HostArgs, Kernel, Param, Source};

/// The CUDA sources of this crate.
pub static SOURCES: &[&Source] = &[&COLLATE];
/// The kernels of this crate.
pub static KERNELS: &[&Kernel] = &[&GATHER_REFERENCE];

static COLLATE: Source = Source { file: "feed/collate.cu", text: include_str!("collate.cu") };

/// Cuts the reference of each row out of the features of the row it was given: one block per reference frame and row.
pub(crate) static GATHER_REFERENCE: Kernel = Kernel {
    name: "gather_reference",
    source: &COLLATE,
    params: &[
        Param::In(DType::F32),
        Param::In(DType::U32), // lengths
        Param::In(DType::U32), // frame_starts
        Param::In(DType::U32), // picks
        Param::Out(DType::F32),
        Param::U32, // reference_frames
        Param::U32, // bands
        Param::F32, // silence
    ],
    host: &gather_reference,
};

fn gather_reference(args: &mut HostArgs<'_>) {
    let (mel, lengths) = (args.read::<f32>(0), args.read::<u32>(1));
    let (starts, picks) = (args.read::<u32>(2), args.read::<u32>(3));
    let [reference_frames, bands] = [5, 6].map(|i| args.u32(i) as usize);
    let silence = args.f32(7);
    let references = args.write::<f32>(4).chunks_exact_mut(reference_frames * bands);
    for (reference, pick) in references.zip(picks.chunks_exact(2)) {
        // A pick outside the batch is nobody's: as in the CUDA source, no memory outside it is read for it.
        let (row, start) = ((pick[0] as usize).min(lengths.len() - 1), pick[1] as usize);
        let [first, end] = [0, 1].map(|i| starts[row + i] as usize);
        let real = (lengths[row] as usize / HOP).min(end - first);
        for (i, out) in reference.chunks_exact_mut(bands).enumerate() {
            match start + i < real {
                true => out.copy_from_slice(&mel[(first + start + i) * bands..][..bands]),
                false => out.fill(silence),
            }
        }
    }
}

/// Samples per frame, as in the CUDA source.
const HOP: usize = 256;
