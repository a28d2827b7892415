//! The window of a convolution over the frames of a row.

use crate::graph::{Graph, Value};
use crate::rows::Rows;

/// The input frames of an output frame: tap `j` of output frame `t` reads input frame
/// `t · stride + j · dilation - padding`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvWindow {
    /// The number of taps.
    pub kernel: u32,
    /// Input frames from one output frame to the next.
    pub stride: u32,
    /// Input frames from one tap to the next.
    pub dilation: u32,
    /// Zero frames before the first input frame and after the last.
    pub padding: u32,
}

impl ConvWindow {
    /// The window with `kernel` taps centred on each frame ("same" padding), which keeps lengths. Panics unless `kernel` is
    /// odd: an even window has no centre.
    pub fn same(kernel: u32) -> ConvWindow {
        assert!(kernel % 2 == 1, "a window of {kernel} taps has no centre");
        ConvWindow { kernel, stride: 1, dilation: 1, padding: kernel / 2 }
    }

    /// The number of output frames of `length` input frames: those whose window lies inside the frames and the padding on
    /// both sides; 0 for 0.
    ///
    /// Panics when the window has no taps, no stride or no dilation: that is a mistake in a model.
    pub fn output_length(&self, length: u32) -> u32 {
        assert!(self.kernel > 0 && self.stride > 0 && self.dilation > 0, "not a window: {self:?}");
        let span = self.dilation * (self.kernel - 1) + 1;
        match (length + 2 * self.padding).checked_sub(span) {
            Some(last) if length > 0 => last / self.stride + 1,
            _ => 0,
        }
    }

    /// The output rows of `rows`.
    pub fn output_rows(&self, rows: &Rows) -> Rows {
        let lengths: Vec<u32> = (0..rows.count()).map(|row| self.output_length(rows.length(row))).collect();
        Rows::new(&lengths)
    }

    /// The input frames under `length` that output frame `t` reads: `(tap, frame)`, in the order of taps.
    #[inline]
    pub(super) fn reads(&self, t: usize, length: usize) -> impl Iterator<Item = (usize, usize)> {
        let [kernel, stride, dilation, padding] = self.sizes();
        let frame =
            move |tap: usize| (t * stride + tap * dilation).checked_sub(padding).filter(|&frame| frame < length);
        (0..kernel).filter_map(move |tap| Some((tap, frame(tap)?)))
    }

    /// The output frames under `length` that read input frame `frame`: `(tap, output frame)`, in the order of taps.
    #[inline]
    pub(super) fn readers(&self, frame: usize, length: usize) -> impl Iterator<Item = (usize, usize)> {
        let [kernel, stride, dilation, padding] = self.sizes();
        let reader = move |tap: usize| {
            let shifted = (frame + padding).checked_sub(tap * dilation)?;
            let t = match stride {
                1 => shifted,
                _ if shifted % stride == 0 => shifted / stride,
                _ => return None,
            };
            (t < length).then_some((tap, t))
        };
        (0..kernel).filter_map(reader)
    }

    fn sizes(&self) -> [usize; 4] {
        [self.kernel, self.stride, self.dilation, self.padding].map(|size| size as usize)
    }
}

/// A window over a table of rows, with the table of output rows.
#[derive(Clone, Debug)]
pub(super) struct Windowed {
    pub(super) window: ConvWindow,
    pub(super) rows: Rows,
    pub(super) out_rows: Rows,
}

impl Windowed {
    pub(super) fn new(window: ConvWindow, rows: &Rows) -> Windowed {
        Windowed { window, rows: rows.clone(), out_rows: window.output_rows(rows) }
    }

    /// The starts of both, for kernels.
    pub(super) fn starts(&self, graph: &mut Graph) -> [Value; 2] {
        [graph.row_starts(&self.rows), graph.row_starts(&self.out_rows)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOWS: [ConvWindow; 5] = [
        ConvWindow { kernel: 3, stride: 1, dilation: 1, padding: 1 },
        ConvWindow { kernel: 4, stride: 2, dilation: 1, padding: 1 },
        ConvWindow { kernel: 3, stride: 1, dilation: 3, padding: 3 },
        ConvWindow { kernel: 2, stride: 3, dilation: 2, padding: 0 },
        ConvWindow { kernel: 1, stride: 1, dilation: 1, padding: 0 },
    ];

    #[test]
    fn output_lengths_match_the_definition() {
        let check = |window: ConvWindow, length, expected| {
            let mut count = 0;
            // Slide the window until it no longer fits.
            while length > 0
                && count * window.stride + (window.kernel - 1) * window.dilation < length + 2 * window.padding
            {
                count += 1;
            }
            assert_eq!((window.output_length(length), count), (expected, expected), "{window:?} over {length}");
        };
        check(WINDOWS[0], 5, 5);
        check(WINDOWS[0], 0, 0);
        check(WINDOWS[1], 8, 4);
        check(WINDOWS[1], 1, 0);
        check(WINDOWS[2], 7, 7);
        check(WINDOWS[3], 2, 0);
        check(WINDOWS[3], 9, 3);
        check(WINDOWS[4], 9, 9);
        assert_eq!(WINDOWS[1].output_rows(&Rows::new(&[8, 0, 3])), Rows::new(&[4, 0, 1]));
        assert_eq!(ConvWindow::same(5).output_length(11), 11);
    }

    #[test]
    fn reads_and_readers_are_inverse() {
        for window in WINDOWS {
            let (length, frames) = (11, window.output_length(11) as usize);
            let mut read: Vec<(usize, usize, usize)> =
                (0..frames).flat_map(|t| window.reads(t, length).map(move |(tap, frame)| (frame, tap, t))).collect();
            read.sort_unstable();
            let readers: Vec<(usize, usize, usize)> = (0..length)
                .flat_map(|frame| window.readers(frame, frames).map(move |(tap, t)| (frame, tap, t)))
                .collect();
            assert_eq!(read, readers, "{window:?}");
        }
    }

    #[test]
    #[should_panic(expected = "no centre")]
    fn an_even_window_has_no_centre() {
        ConvWindow::same(4);
    }
}
