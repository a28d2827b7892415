//! Frames of ragged rows: how ops that see utterances check their operands, and how their host kernels cut the work.
//!
//! A host kernel's pieces come from the row table alone, so sums of pieces have one order. There are two ways to cut:
//!
//! - Into pieces of equal numbers of frames ([`frames_of_a_piece`]), whatever the rows are: for work that frames need
//!   little of each other for. [`row_parts`] says which frames of a piece belong to which row; those lie together, and so
//!   do the filled ones among them, so that loops run over plain slices without a mask.
//! - Into [`Stretch`]es, the blocks a CUDA kernel would have: a row and some frames of it, as many stretches for every row
//!   as the longest one has.

use std::ops::Range;

use tandem_device::{DType, Grid};

use crate::error::EngineError;
use crate::op::refuse;
use crate::rows::Rows;
use crate::tensor::TensorType;

/// Elements of a piece that one thread copies or adds: at 0.2 to 0.3 ns each, some 8 µs of work.
pub(super) const PIECE: usize = 32 * 1024;

/// The frames of one row that lie in one piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RowPart {
    /// Which row.
    pub(super) row: usize,
    /// The frame of the tensor at which the row begins.
    pub(super) start: usize,
    /// Its frames in the piece, as frames of the tensor.
    pub(super) frames: Range<usize>,
}

/// The rows that `frames` meets, in order; rows without frames are left out.
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

    /// The frames that are filled where `length` frames of the row are. Lengths below 0 or past the row count as its ends.
    pub(super) fn filled(&self, length: i32) -> Range<usize> {
        let end = self.start + length.max(0) as usize;
        self.frames.start..end.clamp(self.frames.start, self.frames.end)
    }
}

/// How many frames make a piece of at least [`PIECE`] elements. Work that costs several times as much for an element as a
/// copy gives a `width` of so many times its columns.
pub(super) fn frames_of_a_piece(width: usize) -> usize {
    PIECE.div_ceil(width.max(1))
}

/// Where a row begins and ends in its tensor.
pub(super) fn span(starts: &[u32], row: usize) -> Range<usize> {
    starts[row] as usize..starts[row + 1] as usize
}

/// How many frames of a row are filled.
pub(super) fn filled_of(starts: &[u32], lengths: &[i32], row: usize) -> usize {
    filled(lengths[row], span(starts, row).len())
}

/// A grid with a row of blocks for each row of frames, eight elements to a thread: 16 bytes of bf16.
///
/// Panics when a row has 2^31 elements or more: kernels count them in 32 bits.
pub(super) fn row_grid(rows: &Rows, width: u32) -> Grid {
    let elements = u64::from(rows.longest()) * u64::from(width);
    assert!(elements <= i32::MAX as u64, "a row of {elements} elements");
    let blocks = elements.div_ceil(8 * 256).max(1) as u32;
    Grid { blocks: [blocks, rows.count(), 1], threads: 256, shared_bytes: 0 }
}

/// Elements that a CUDA kernel moves at once in rows of `columns`: 16 bytes of them where that divides a row, else one.
pub(super) fn moved_at_once(dtype: DType, columns: u32) -> u32 {
    let width = (16 / dtype.bytes()) as u32;
    if columns.is_multiple_of(width) { width } else { 1 }
}

/// A stretch of frames of one row; it may be empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Which row.
    pub(crate) row: usize,
    /// Its first frame, counted from the first frame of the row.
    pub(crate) first: usize,
    /// Its number of frames.
    pub(crate) count: usize,
    /// Where the row begins in the tensor.
    pub(crate) row_start: usize,
    /// Frames of the row.
    pub(crate) row_frames: usize,
}

/// Stretches of `most` frames that every row is cut into, empty ones included.
pub(crate) fn stretches_of_a_row(longest: u32, most: u32) -> u32 {
    longest.div_ceil(most).max(1)
}

/// All stretches, row by row.
pub(crate) fn stretches(starts: &[u32], most: u32) -> Vec<Stretch> {
    let longest = starts.windows(2).map(|ends| ends[1] - ends[0]).max().unwrap_or(0);
    let of_a_row = stretches_of_a_row(longest, most) as usize;
    let mut all = Vec::with_capacity(of_a_row * (starts.len() - 1));
    for (row, ends) in starts.windows(2).enumerate() {
        let (row_start, row_frames) = (ends[0] as usize, (ends[1] - ends[0]) as usize);
        for stretch in 0..of_a_row {
            let first = (stretch * most as usize).min(row_frames);
            let count = (row_frames - first).min(most as usize);
            all.push(Stretch { row, first, count, row_start, row_frames });
        }
    }
    all
}

impl Stretch {
    /// Its first frame, counted from the first frame of the tensor.
    pub(crate) fn begin(&self) -> usize {
        self.row_start + self.first
    }

    /// Its part of a tensor with `columns` numbers a frame.
    pub(crate) fn of<'a, T>(&self, x: &'a [T], columns: usize) -> &'a [T] {
        &x[self.begin() * columns..][..self.count * columns]
    }
}

/// Cuts `x` into neighbouring parts of these lengths.
pub(crate) fn cut<T>(mut x: &mut [T], lengths: impl Iterator<Item = usize>) -> Vec<&mut [T]> {
    let part = |length| {
        let (part, rest) = std::mem::take(&mut x).split_at_mut(length);
        x = rest;
        part
    };
    lengths.map(part).collect()
}

/// How much of a row is filled. Lengths come with the data: what is not possible is brought to what is.
pub(crate) fn filled(length: i32, row_frames: usize) -> usize {
    usize::try_from(length).unwrap_or(0).min(row_frames)
}

/// Refuses a tensor that is not `[frames of rows, columns]` in a floating element type.
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

/// Whether `ty` tells how far each of `rows` is filled.
pub(super) fn is_lengths(ty: &TensorType, rows: &Rows) -> bool {
    *ty == TensorType::new(DType::I32, &[rows.count()])
}

/// Whether it is an element type ops compute in.
pub(crate) fn is_real(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::BF16 | DType::F64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_alike_and_none_shares_a_stretch() {
        let rows = Rows::new(&[5, 0, 2]);
        let found: Vec<_> = stretches(rows.starts(), 2).iter().map(|s| (s.row, s.begin(), s.count)).collect();
        let expected =
            [(0, 0, 2), (0, 2, 2), (0, 4, 1), (1, 5, 0), (1, 5, 0), (1, 5, 0), (2, 5, 2), (2, 7, 0), (2, 7, 0)];
        assert_eq!(found, expected);
        assert_eq!(stretches(Rows::new(&[0]).starts(), 2).len(), 1);
    }

    #[test]
    fn lengths_of_any_batch_stay_inside_their_row() {
        assert_eq!([filled(-3, 5), filled(0, 5), filled(4, 5), filled(9, 5)], [0, 0, 4, 5]);
    }

    #[test]
    fn parts_follow_each_other() {
        let mut x = [1, 2, 3, 4];
        assert_eq!(cut(&mut x, [1, 0, 3].into_iter()), [&[1][..], &[], &[2, 3, 4]]);
    }

    #[test]
    fn a_piece_meets_the_rows_it_lies_in() {
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
    fn what_is_filled_stays_inside_the_part() {
        let part = RowPart { row: 0, start: 10, frames: 12..15 };
        for (length, expected) in [(-1, 12..12), (0, 12..12), (2, 12..12), (3, 12..13), (5, 12..15), (99, 12..15)] {
            assert_eq!(part.filled(length), expected, "{length}");
        }
        let rows = Rows::new(&[3, 2]);
        let found = [-1, 2, 9].map(|length| filled_of(rows.starts(), &[length, 9], 0));
        assert_eq!((found, filled_of(rows.starts(), &[0, 9], 1)), ([0, 2, 3], 2));
    }
}
