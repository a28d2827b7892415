//! What was said, to look at: the spectrum above, and beneath it which symbol was spoken when.
//!
//! ```text
//! ┌──────────────────────────────┐
//! │ spectrum: low bands below    │  brighter is louder, the same in every picture
//! ├╵──────────╵──────────╵───────┤  a mark every second
//! │        ▂▂▃▃      symbols     │  a step for each symbol, as wide as it lasts; the first is lowest
//! │▂▂▂▃▃▃▃▃                      │
//! └──────────────────────────────┘
//! ```
//!
//! A model that speaks shows formants above and a steady staircase beneath. Stripes from top to bottom, or one step as wide
//! as the picture, are a model that does not yet.

use std::io::{self, Write};

use tandem_audio::MelFrames;

use crate::colours::palette;

/// Pixels of a frame and of a band.
const FRAME_PX: usize = 2;
const BAND_PX: usize = 3;
/// Frames of the widest picture in which a frame has that many: of more each has one pixel.
const WIDE_FRAMES: usize = 2000;
/// Pixels between the panels, and of the marks in there.
const GAP_PX: usize = 9;
const MARK_PX: usize = 5;
/// The lower panel: four pixels for each symbol, between these.
const TOKEN_PX: usize = 4;
const PANEL_PX: std::ops::RangeInclusive<usize> = 96..=768;
/// Natural logarithms of amplitudes that are darkest and brightest: the floor of spectra, and as loud as speech gets. The
/// same in every picture, so that two of one run can be compared.
const DARKEST: f32 = -11.5;
const BRIGHTEST: f32 = 1.5;
/// Symbols take turns, so that one can tell them apart.
const TOKEN_LEVELS: [u8; 2] = [235, 150];
const MARK_LEVEL: u8 = 255;

/// A picture, line by line from the top: one level per pixel, 0 dark to 255 bright.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    levels: Vec<u8>,
}

impl Picture {
    /// Draws a spectrum of `frames_hz` frames per second, and the symbols that last `durations` frames.
    ///
    /// Where they do not add up to the spectrum, what is over is not drawn. Nothing at all becomes one dark column.
    pub fn of(spectrum: &MelFrames, durations: &[i32], frames_hz: f64) -> Picture {
        let frames = spectrum.num_frames();
        let frame_px = if frames > WIDE_FRAMES { 1 } else { FRAME_PX };
        let band_rows = spectrum.n_mels * BAND_PX;
        let token_rows = (durations.len() * TOKEN_PX).clamp(*PANEL_PX.start(), *PANEL_PX.end());
        let (width, height) = ((frames * frame_px).max(1), band_rows + GAP_PX + token_rows);
        let mut picture = Picture { width, height, levels: vec![0; width * height] };
        picture.draw_spectrum(spectrum, frame_px);
        picture.draw_marks(band_rows, frame_px as f64 * frames_hz);
        picture.draw_durations(durations, (band_rows + GAP_PX, token_rows), frame_px);
        picture
    }

    /// Pixels from left to right, and from top to bottom.
    pub fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    /// Writes it as a PNG file with a palette: a tenth of what true colours take. Fails when `out` does.
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

    fn draw_spectrum(&mut self, spectrum: &MelFrames, frame_px: usize) {
        for frame in 0..spectrum.num_frames() {
            for (band, &loudness) in spectrum.frame(frame).iter().enumerate() {
                let top = (spectrum.n_mels - 1 - band) * BAND_PX;
                self.fill((frame * frame_px, frame_px), (top, BAND_PX), level(loudness));
            }
        }
    }

    fn draw_marks(&mut self, top: usize, second_px: f64) {
        let places = (0..).map(|second| (f64::from(second) * second_px) as usize);
        for x in places.take_while(|x| second_px >= 1.0 && *x < self.width).collect::<Vec<_>>() {
            self.fill((x, 1), (top, MARK_PX), MARK_LEVEL);
        }
    }

    fn draw_durations(&mut self, durations: &[i32], (top, rows): (usize, usize), frame_px: usize) {
        let mut x = 0;
        let up_to = |token: usize| token * rows / durations.len();
        for (token, &frames) in durations.iter().enumerate() {
            let width = frames.max(0) as usize * frame_px;
            // Of very many symbols some share a row.
            let height = (up_to(token + 1) - up_to(token)).max(1);
            let from_top = (rows - up_to(token)).saturating_sub(height);
            self.fill((x, width), (top + from_top, height), TOKEN_LEVELS[token % 2]);
            x += width;
        }
    }

    /// Fills a rectangle, as far as it is inside.
    fn fill(&mut self, (x, width): (usize, usize), (y, height): (usize, usize), level: u8) {
        let (left, right) = (x.min(self.width), (x + width).min(self.width));
        for row in y..(y + height).min(self.height) {
            self.levels[row * self.width + left..row * self.width + right].fill(level);
        }
    }
}

fn level(loudness: f32) -> u8 {
    let share = (loudness - DARKEST) / (BRIGHTEST - DARKEST);
    // What is no number is dark.
    (share.clamp(0.0, 1.0) * 255.0).round() as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spectrum(frames: usize, n_mels: usize, loudness: impl Fn(usize, usize) -> f32) -> MelFrames {
        let values = (0..frames).flat_map(|frame| (0..n_mels).map(move |band| (frame, band)));
        MelFrames { values: values.map(|(frame, band)| loudness(frame, band)).collect(), n_mels }
    }

    fn at(picture: &Picture, x: usize, y: usize) -> u8 {
        picture.levels[y * picture.width + x]
    }

    #[test]
    fn low_bands_are_below_and_loud_ones_bright() {
        let picture =
            Picture::of(&spectrum(3, 2, |frame, band| if (frame, band) == (1, 0) { 9.0 } else { -30.0 }), &[], 1.0);
        let bright: Vec<(usize, usize)> = (0..6).flat_map(|y| (0..6).map(move |x| (x, y))).collect();
        for (x, y) in bright {
            let expected = if (2..4).contains(&x) && y >= 3 { 255 } else { 0 };
            assert_eq!(at(&picture, x, y), expected, "{x} {y}");
        }
    }

    #[test]
    fn symbols_are_a_staircase_as_wide_as_they_last() {
        let picture = Picture::of(&spectrum(6, 1, |_, _| -30.0), &[1, 3, 2], 2.0);
        let (width, height) = picture.size();
        assert_eq!((width, height), (12, 3 + GAP_PX + 96));
        let column = |x: usize| {
            let rows: Vec<usize> = (3 + GAP_PX..height).filter(|y| at(&picture, x, *y) > 0).collect();
            (height - 1 - rows[rows.len() - 1], rows.len())
        };
        let steps: Vec<_> = (0..width).map(column).collect();
        let expected: Vec<_> = [[(0, 32); 2].to_vec(), [(32, 32); 6].to_vec(), [(64, 32); 4].to_vec()].concat();
        assert_eq!(steps, expected);
        // Two frames a second: a mark every four pixels.
        let marks: Vec<usize> = (0..width).filter(|x| at(&picture, *x, 3) > 0).collect();
        assert_eq!(marks, [0, 4, 8]);
    }

    #[test]
    fn any_lengths_can_be_drawn() {
        let check = |frames: usize, n_mels: usize, durations: &[i32]| {
            let picture = Picture::of(&spectrum(frames, n_mels, |_, _| f32::NAN), durations, 86.1);
            let mut file = Vec::new();
            picture.write_png(&mut file).unwrap();
            let mut reader = png::Decoder::new(io::Cursor::new(file)).read_info().unwrap();
            let mut levels = vec![0; reader.output_buffer_size().unwrap()];
            let info = reader.next_frame(&mut levels).unwrap();
            assert_eq!((info.width as usize, info.height as usize), picture.size());
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
        let picture = Picture::of(&spectrum(10, 80, |frame, _| -(frame as f32)), &[10], 86.1);
        assert!(picture.write_png(&mut no_room[..]).is_err());
    }
}
