//! An image of speech: the spectrogram, and below it the alignment of symbols and frames.
//!
//! ```text
//! ┌──────────────────────────────┐
//! │ spectrogram: low bands below │  brighter is louder, on the same scale in every image
//! ├╵──────────╵──────────╵───────┤  a tick every second
//! │        ▂▂▃▃      alignment   │  a step for each symbol, as wide as its duration; the first is lowest
//! │▂▂▂▃▃▃▃▃                      │
//! └──────────────────────────────┘
//! ```
//!
//! A trained model shows formants above and a steady staircase below. Vertical stripes, or one step as wide as the image,
//! show a model that has not learned to align yet.

use std::io::{self, Write};

use tandem_audio::MelFrames;

use crate::colormap::palette;

/// Pixels of a frame and of a band.
const FRAME_PX: usize = 2;
const BAND_PX: usize = 3;
/// With more frames than this, a frame is one pixel wide.
const MAX_FRAMES_AT_FULL_WIDTH: usize = 2000;
/// Pixels between the panels, and of the ticks there.
const GAP_PX: usize = 9;
const TICK_PX: usize = 5;
/// The height of the lower panel: four pixels per symbol, clamped to a range.
const TOKEN_PX: usize = 4;
const PANEL_PX: std::ops::RangeInclusive<usize> = 96..=768;
/// The natural logarithms of the darkest and the brightest amplitude: the floor of spectrograms, and the loudest speech.
/// They are the same in every image, so that images of a run can be compared.
const DARKEST: f32 = -11.5;
const BRIGHTEST: f32 = 1.5;
/// Neighbouring symbols have different levels.
const TOKEN_LEVELS: [u8; 2] = [235, 150];
const TICK_LEVEL: u8 = 255;

/// An image, row by row from the top: one level per pixel, 0 dark to 255 bright.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpectrogramImage {
    width: usize,
    height: usize,
    levels: Vec<u8>,
}

/// Columns from the left or rows from the top.
#[derive(Clone, Copy)]
struct PixelRange {
    start: usize,
    len: usize,
}

impl SpectrogramImage {
    /// Draws a spectrogram of `frames_hz` frames per second, and the alignment with symbols of `durations` frames.
    ///
    /// Durations past the end of the spectrogram are not drawn. An empty spectrogram becomes one dark column.
    pub fn of(spectrogram: &MelFrames, durations: &[i32], frames_hz: f64) -> SpectrogramImage {
        let frames = spectrogram.num_frames();
        let frame_px = if frames > MAX_FRAMES_AT_FULL_WIDTH { 1 } else { FRAME_PX };
        let band_rows = spectrogram.n_mels * BAND_PX;
        let token_rows = (durations.len() * TOKEN_PX).clamp(*PANEL_PX.start(), *PANEL_PX.end());
        let (width, height) = ((frames * frame_px).max(1), band_rows + GAP_PX + token_rows);
        let mut image = SpectrogramImage { width, height, levels: vec![0; width * height] };
        image.draw_spectrogram(spectrogram, frame_px);
        image.draw_ticks(band_rows, frame_px as f64 * frames_hz);
        image.draw_alignment(durations, PixelRange { start: band_rows + GAP_PX, len: token_rows }, frame_px);
        image
    }

    /// Width and height in pixels.
    pub fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    /// Writes a PNG file with a palette, which takes a tenth of true colour. Fails if `out` fails.
    pub fn write_png(&self, out: impl Write) -> io::Result<()> {
        let mut encoder = png::Encoder::new(out, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Indexed);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.set_palette(palette());
        let failed = |error: png::EncodingError| match error {
            png::EncodingError::IoError(error) => error,
            other => io::Error::other(other),
        };
        let mut writer = encoder.write_header().map_err(failed)?;
        writer.write_image_data(&self.levels).map_err(failed)?;
        writer.finish().map_err(failed)
    }

    fn draw_spectrogram(&mut self, spectrogram: &MelFrames, frame_px: usize) {
        for frame in 0..spectrogram.num_frames() {
            for (band, &loudness) in spectrogram.frame(frame).iter().enumerate() {
                let columns = PixelRange { start: frame * frame_px, len: frame_px };
                let rows = PixelRange { start: (spectrogram.n_mels - 1 - band) * BAND_PX, len: BAND_PX };
                self.fill(columns, rows, level(loudness));
            }
        }
    }

    fn draw_ticks(&mut self, top: usize, second_px: f64) {
        let positions = (0..).map(|second| (f64::from(second) * second_px) as usize);
        for x in positions.take_while(|x| second_px >= 1.0 && *x < self.width).collect::<Vec<_>>() {
            self.fill(PixelRange { start: x, len: 1 }, PixelRange { start: top, len: TICK_PX }, TICK_LEVEL);
        }
    }

    fn draw_alignment(&mut self, durations: &[i32], panel: PixelRange, frame_px: usize) {
        let mut x = 0;
        let up_to = |token: usize| token * panel.len / durations.len();
        for (token, &frames) in durations.iter().enumerate() {
            let width = frames.max(0) as usize * frame_px;
            // With very many symbols, some share a row.
            let height = (up_to(token + 1) - up_to(token)).max(1);
            let from_top = (panel.len - up_to(token)).saturating_sub(height);
            let rows = PixelRange { start: panel.start + from_top, len: height };
            self.fill(PixelRange { start: x, len: width }, rows, TOKEN_LEVELS[token % 2]);
            x += width;
        }
    }

    /// Fills a rectangle, clipped to the image.
    fn fill(&mut self, columns: PixelRange, rows: PixelRange, level: u8) {
        let (left, right) = (columns.start.min(self.width), (columns.start + columns.len).min(self.width));
        for row in rows.start..(rows.start + rows.len).min(self.height) {
            self.levels[row * self.width + left..row * self.width + right].fill(level);
        }
    }
}

fn level(loudness: f32) -> u8 {
    let fraction = (loudness - DARKEST) / (BRIGHTEST - DARKEST);
    // NaN becomes 0.
    (fraction.clamp(0.0, 1.0) * 255.0).round() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spectrogram(frames: usize, n_mels: usize, loudness: impl Fn(usize, usize) -> f32) -> MelFrames {
        let values = (0..frames).flat_map(|frame| (0..n_mels).map(move |band| (frame, band)));
        MelFrames { values: values.map(|(frame, band)| loudness(frame, band)).collect(), n_mels }
    }

    fn at(image: &SpectrogramImage, x: usize, y: usize) -> u8 {
        image.levels[y * image.width + x]
    }

    #[test]
    fn low_bands_are_below_and_loud_bands_bright() {
        let image = SpectrogramImage::of(
            &spectrogram(3, 2, |frame, band| if (frame, band) == (1, 0) { 9.0 } else { -30.0 }),
            &[],
            1.0,
        );
        let bright: Vec<(usize, usize)> = (0..6).flat_map(|y| (0..6).map(move |x| (x, y))).collect();
        for (x, y) in bright {
            let expected = if (2..4).contains(&x) && y >= 3 { 255 } else { 0 };
            assert_eq!(at(&image, x, y), expected, "{x} {y}");
        }
    }

    #[test]
    fn the_alignment_is_a_staircase_with_steps_as_wide_as_the_durations() {
        let image = SpectrogramImage::of(&spectrogram(6, 1, |_, _| -30.0), &[1, 3, 2], 2.0);
        let (width, height) = image.size();
        assert_eq!((width, height), (12, 3 + GAP_PX + 96));
        let column = |x: usize| {
            let rows: Vec<usize> = (3 + GAP_PX..height).filter(|y| at(&image, x, *y) > 0).collect();
            (height - 1 - rows[rows.len() - 1], rows.len())
        };
        let steps: Vec<_> = (0..width).map(column).collect();
        let expected: Vec<_> = [[(0, 32); 2].to_vec(), [(32, 32); 6].to_vec(), [(64, 32); 4].to_vec()].concat();
        assert_eq!(steps, expected);
        // Two frames a second: a tick every four pixels.
        let ticks: Vec<usize> = (0..width).filter(|x| at(&image, *x, 3) > 0).collect();
        assert_eq!(ticks, [0, 4, 8]);
    }

    #[test]
    fn any_length_can_be_drawn() {
        let check = |frames: usize, n_mels: usize, durations: &[i32]| {
            let image = SpectrogramImage::of(&spectrogram(frames, n_mels, |_, _| f32::NAN), durations, 86.1);
            let mut file = Vec::new();
            image.write_png(&mut file).unwrap();
            let mut reader = png::Decoder::new(io::Cursor::new(file)).read_info().unwrap();
            let mut levels = vec![0; reader.output_buffer_size().unwrap()];
            let info = reader.next_frame(&mut levels).unwrap();
            assert_eq!((info.width as usize, info.height as usize), image.size());
        };
        check(0, 80, &[]);
        check(5, 0, &[3, 2]);
        check(4, 80, &[100, 100]);
        check(4, 80, &[-1, 0, 4]);
        check(2500, 80, &vec![1; 2500]);
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let mut no_room = [0; 50];
        let image = SpectrogramImage::of(&spectrogram(10, 80, |frame, _| -(frame as f32)), &[10], 86.1);
        assert!(image.write_png(&mut no_room[..]).is_err());
    }
}
