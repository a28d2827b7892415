//! Ragged rows of frames: how ops check their operands, and how host kernels divide the work among worker threads.
//!
//! The division depends on the row table alone, so that partial sums are added in a fixed order. There are two:
//!
//! - Chunks of equal numbers of frames ([`frames_per_chunk`]), across rows: for work in which frames are almost
//!   independent. [`row_parts`] yields the frames of a chunk by row. The frames of a part are adjacent, and so are the
//!   valid ones, so that loops run over plain slices without a mask.
//! - [`RowTile`]s, the blocks of a CUDA kernel: some frames of one row, and the same number of tiles for every row as for
//!   the longest one.

use std::ops::Range;

use tandem_device::{DType, Grid};

use crate::error::EngineError;
use crate::op::refuse;
use crate::rows::Rows;
use crate::tensor::TensorType;

/// Elements of a chunk that one worker thread copies or adds: at 0.2 to 0.3 ns each, about 8 µs of work.
pub(super) const CHUNK: usize = 32 * 1024;

/// The frames of one row in one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowPart {
    /// Which row.
    pub(super) row: usize,
    /// The first frame of the row in the tensor.
    pub(super) start: usize,
    /// Its frames in the chunk, as frames of the tensor.
    pub(super) frames: Range<usize>,
}

/// The parts of `frames` by row, in order, without empty ones.
pub(super) fn row_parts(starts: &[u32], frames: Range<usize>) -> impl Iterator<Item = RowPart> + '_ {
    let first = starts.partition_point(|&start| start as usize <= frames.start).saturating_sub(1);
    (first..starts.len() - 1)
        .map(move |row| {
            let (start, end) = (starts[row] as usize, starts[row + 1] as usize);
            let frames = start.max(frames.start)..end.min(frames.end);
            RowPart { row, start, frames }
        })
        .take_while(move |part| part.start < frames.end)
        .filter(|part| !part.frames.is_empty())
}

impl RowPart {
    /// Its frames, counted from the first frame of the row.
    pub(super) fn in_row(&self) -> Range<usize> {
        self.frames.start - self.start..self.frames.end - self.start
    }

    /// Its valid frames, if the row has `length` valid frames. Lengths are clamped to the row.
    pub(super) fn valid(&self, length: i32) -> Range<usize> {
        let end = self.start + length.max(0) as usize;
        self.frames.start..end.clamp(self.frames.start, self.frames.end)
    }
}

/// Frames of a chunk of at least [`CHUNK`] elements. Work that costs several times as much as a copy passes a `width` of as
/// many times its columns.
pub(super) fn frames_per_chunk(width: usize) -> usize {
    CHUNK.div_ceil(width.max(1))
}

/// The frames of a row in its tensor.
pub(super) fn row_range(starts: &[u32], row: usize) -> Range<usize> {
    starts[row] as usize..starts[row + 1] as usize
}

/// The number of valid frames of a row.
pub(super) fn valid_frames(starts: &[u32], lengths: &[i32], row: usize) -> usize {
    clamp_length(lengths[row], row_range(starts, row).len())
}

/// A grid with `blockIdx.y` for the row, and eight elements a thread: 16 bytes of bf16.
///
/// Panics if a row has 2^31 elements or more: kernels index them in 32 bits.
pub(super) fn row_grid(rows: &Rows, width: u32) -> Grid {
    let elements = u64::from(rows.longest()) * u64::from(width);
    assert!(elements <= i32::MAX as u64, "a row of {elements} elements");
    let blocks = elements.div_ceil(8 * 256).max(1) as u32;
    Grid { blocks: [blocks, rows.count(), 1], threads: 256, shared_bytes: 0 }
}

/// Elements per load of a CUDA kernel in rows of `columns`: 16 bytes of them if that divides a row, else one.
pub(super) fn vector_length(dtype: DType, columns: u32) -> u32 {
    let width = (16 / dtype.bytes()) as u32;
    if columns.is_multiple_of(width) { width } else { 1 }
}

/// Adjacent frames of one row; may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowTile {
    /// Which row.
    pub(crate) row: usize,
    /// Its first frame, counted from the first frame of the row.
    pub(crate) first: usize,
    /// Its number of frames.
    pub(crate) count: usize,
    /// The first frame of the row in the tensor.
    pub(crate) row_start: usize,
    /// Frames of the row.
    pub(crate) row_frames: usize,
}

/// Tiles of up to `most` frames that every row is divided into, including empty ones.
pub(crate) fn tiles_per_row(longest: u32, most: u32) -> u32 {
    longest.div_ceil(most).max(1)
}

/// All tiles, row by row.
pub(crate) fn row_tiles(starts: &[u32], most: u32) -> Vec<RowTile> {
    let longest = starts.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0);
    let tiles = tiles_per_row(longest, most) as usize;
    let mut all = Vec::with_capacity(tiles * (starts.len() - 1));
    for (row, ends) in starts.windows(2).enumerate() {
        let (row_start, row_frames) = (ends[0] as usize, (ends[1] - ends[0]) as usize);
        for tile in 0..tiles {
            let first = (tile * most as usize).min(row_frames);
            let count = (row_frames - first).min(most as usize);
            all.push(RowTile { row, first, count, row_start, row_frames });
        }
    }
    all
}

impl RowTile {
    /// Its first frame, counted from the first frame of the tensor.
    pub(crate) fn begin(&self) -> usize {
        self.row_start + self.first
    }

    /// Its elements in a tensor of `columns` columns.
    pub(crate) fn of<'a, T>(&self, x: &'a [T], columns: usize) -> &'a [T] {
        &x[self.begin() * columns..][..self.count * columns]
    }
}

/// Splits `x` into adjacent parts of these lengths.
pub(crate) fn split_by_lengths<T>(mut x: &mut [T], lengths: impl Iterator<Item = usize>) -> Vec<&mut [T]> {
    let part = |length| {
        let (part, rest) = std::mem::take(&mut x).split_at_mut(length);
        x = rest;
        part
    };
    lengths.map(part).collect()
}

/// The number of valid frames of a row. Lengths come with the data, so they are clamped.
pub(crate) fn clamp_length(length: i32, row_frames: usize) -> usize {
    usize::try_from(length).unwrap_or(0).min(row_frames)
}

/// Refuses a tensor that is not `[frames of rows, columns]` in a floating-point type.
pub(crate) fn check_frames(op: &'static str, rows: &Rows, inputs: &[TensorType]) -> Result<(), EngineError> {
    let ty = inputs[0];
    if !is_sequence(&ty, rows) {
        return refuse(op, format!("takes [{}, channels] of f32, bf16 or f64", rows.total()), inputs);
    }
    Ok(())
}

/// Refuses lengths (input `at`) that are not one I32 per row.
pub(crate) fn check_lengths(
    op: &'static str,
    rows: &Rows,
    inputs: &[TensorType],
    at: usize,
) -> Result<(), EngineError> {
    if !is_lengths(&inputs[at], rows) {
        return refuse(op, format!("takes lengths as I32[{}]", rows.count()), inputs);
    }
    Ok(())
}

/// Whether `ty` holds the frames of `rows`.
pub(super) fn is_sequence(ty: &TensorType, rows: &Rows) -> bool {
    matches!(ty.shape.dims(), [frames, _] if *frames == rows.total()) && is_real(ty.dtype)
}

/// Whether `ty` holds the lengths of `rows`.
pub(super) fn is_lengths(ty: &TensorType, rows: &Rows) -> bool {
    *ty == TensorType::new(DType::I32, &[rows.count()])
}

/// Whether ops can compute in this element type.
pub(crate) fn is_real(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::BF16 | DType::F64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_as_many_tiles_and_none_spans_rows() {
        let rows = Rows::new(&[5, 0, 2]);
        let found: Vec<_> = row_tiles(rows.starts(), 2).iter().map(|s| (s.row, s.begin(), s.count)).collect();
        let expected =
            [(0, 0, 2), (0, 2, 2), (0, 4, 1), (1, 5, 0), (1, 5, 0), (1, 5, 0), (2, 5, 2), (2, 7, 0), (2, 7, 0)];
        assert_eq!(found, expected);
        assert_eq!(row_tiles(Rows::new(&[0]).starts(), 2).len(), 1);
    }

    #[test]
    fn lengths_are_clamped_to_their_row() {
        assert_eq!([-3, 0, 4, 9].map(|length| clamp_length(length, 5)), [0, 0, 4, 5]);
    }

    #[test]
    fn parts_follow_each_other() {
        let mut x = [1, 2, 3, 4];
        assert_eq!(split_by_lengths(&mut x, [1, 0, 3].into_iter()), [&[1][..], &[], &[2, 3, 4]]);
    }

    #[test]
    fn a_chunk_is_divided_by_row() {
        let rows = Rows::new(&[0, 3, 0, 0, 4, 0]);
        let check = |frames: Range<usize>, expected: &[(usize, Range<usize>)]| {
            let found: Vec<_> =
                row_parts(rows.starts(), frames.clone()).map(|part| (part.row, part.in_row())).collect();
            assert_eq!(found, expected, "{frames:?}");
        };
        check(0..7, &[(1, 0..3), (4, 0..4)]);
        check(1..4, &[(1, 1..3), (4, 0..1)]);
        check(3..7, &[(4, 0..4)]);
        check(6..7, &[(4, 3..4)]);
        check(2..2, &[]);
        check(0..0, &[]);
    }

    #[test]
    fn valid_frames_stay_inside_the_part() {
        let part = RowPart { row: 0, start: 10, frames: 12..15 };
        for (length, expected) in [(-1, 12..12), (0, 12..12), (2, 12..12), (3, 12..13), (5, 12..15), (99, 12..15)] {
            assert_eq!(part.valid(length), expected, "{length}");
        }
        let rows = Rows::new(&[3, 2]);
        let found = [-1, 2, 9].map(|length| valid_frames(rows.starts(), &[length, 9], 0));
        assert_eq!((found, valid_frames(rows.starts(), &[0, 9], 1)), ([0, 2, 3], 2));
    }
}
