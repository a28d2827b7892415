//! A sample of a run: its sound, and the pictures beside it, as TensorBoard wants them.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use super::proto::{ProtoSummary, Sound};

/// No sample comes near this: a file that does is none, and would stay in memory for a while.
const LARGEST_BYTES: u64 = 64 << 20;

/// The values of the sample whose sound is at `wav`. A file that is not there is left out: not every sentence has an
/// alignment, and samples of long ago are cleared up.
///
/// Fails when a file cannot be read or is not what its name says.
pub(crate) fn sample_summary(wav: &Path) -> io::Result<ProtoSummary> {
    let mut summary = ProtoSummary::default();
    let stem = wav.file_stem().unwrap_or_default().to_string_lossy();
    let tag = format!("sample/{}", sentence_of(&stem));
    for (end, name) in [("", "spectrum"), ("-alignment", "alignment")] {
        let path = wav.with_file_name(format!("{stem}{end}.png"));
        if let Some(file) = file_at(&path)? {
            let size = png_size(&file).ok_or_else(|| unreadable(&path, "PNG"))?;
            summary.image(&format!("{tag}/{name}"), size, &file);
        }
    }
    if let Some(file) = file_at(wav)? {
        let sound = wav_sound(&file).ok_or_else(|| unreadable(wav, "WAV"))?;
        summary.audio(&format!("{tag}/sound"), &sound, &file);
    }
    Ok(summary)
}

/// `step-00001000-ID` without its step: the same sentence has the same tag at every step.
fn sentence_of(stem: &str) -> &str {
    let after = stem.strip_prefix("step-").map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
    after.and_then(|rest| rest.strip_prefix('-')).unwrap_or(stem)
}

fn file_at(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let with_path = |error: io::Error| io::Error::new(error.kind(), format!("{error}: {}", path.display()));
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(with_path(error)),
    };
    let mut bytes = Vec::new();
    let read = file.take(LARGEST_BYTES + 1).read_to_end(&mut bytes).map_err(with_path)?;
    if read as u64 > LARGEST_BYTES {
        return Err(with_path(ErrorKind::FileTooLarge.into()));
    }
    Ok(Some(bytes))
}

fn unreadable(path: &Path, kind: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("no {kind} file: {}", path.display()))
}

/// Width and height, from the header that begins every PNG file.
fn png_size(file: &[u8]) -> Option<[u32; 2]> {
    let header = file.strip_prefix(b"\x89PNG\r\n\x1a\n")?.get(4..16)?.strip_prefix(b"IHDR")?;
    Some([0, 4].map(|at| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])))
}

/// Rate, channels and length, from the chunks `fmt ` and `data`.
fn wav_sound(file: &[u8]) -> Option<Sound> {
    let mut chunks = file.strip_prefix(b"RIFF")?.get(4..)?.strip_prefix(b"WAVE")?;
    let mut format: Option<(u16, u32, u16)> = None;
    loop {
        let (head, rest) = chunks.split_at_checked(8)?;
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        match (&head[..4], format) {
            (b"fmt ", _) => format = Some(wav_format(rest.get(..length)?)?),
            (b"data", Some((channels, rate_hz, frame_bytes))) => {
                let frames = length.min(rest.len()) as u64 / u64::from(frame_bytes.max(1));
                return Some(Sound { rate_hz, channels, frames });
            }
            _ => {}
        }
        // Chunks begin at even places.
        chunks = rest.get(length.checked_add(length % 2)?..)?;
    }
}

fn wav_format(chunk: &[u8]) -> Option<(u16, u32, u16)> {
    let two = |at: usize| Some(u16::from_le_bytes([*chunk.get(at)?, *chunk.get(at + 1)?]));
    let rate_hz = u32::from(two(4)?) | u32::from(two(6)?) << 16;
    Some((two(2)?, rate_hz, two(12)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_sentence_has_the_same_tag_at_every_step() {
        let check = |stem, sentence| assert_eq!(sentence_of(stem), sentence);
        check("step-00001000-b0440", "b0440");
        check("step-00002000-b0440", "b0440");
        check("step-5-p248_065-x", "p248_065-x");
        check("hello", "hello");
        check("step-up", "step-up");
    }

    fn wav(chunks: &[(&[u8; 4], &[u8])]) -> Vec<u8> {
        let mut body = b"WAVE".to_vec();
        for (name, bytes) in chunks {
            body.extend_from_slice(*name);
            body.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            body.extend_from_slice(bytes);
            body.resize(body.len().next_multiple_of(2), 0);
        }
        [&b"RIFF"[..], &(body.len() as u32).to_le_bytes(), &body].concat()
    }

    #[test]
    fn sounds_are_found_among_chunks_and_garbage_is_no_sound() {
        let format = [&[1, 0, 2, 0][..], &44_100_u32.to_le_bytes(), &[0; 4], &[4, 0, 16, 0]].concat();
        let sound = Some(Sound { rate_hz: 44_100, channels: 2, frames: 3 });
        let whole = wav(&[(b"LIST", b"odd"), (b"fmt ", &format), (b"data", &[0; 12])]);
        let check = |file: &[u8], expected| assert_eq!(wav_sound(file), expected, "{file:02x?}");
        check(&whole, sound);
        check(&wav(&[(b"data", &[0; 12]), (b"fmt ", &format)]), None);
        check(&wav(&[(b"fmt ", &format[..5]), (b"data", &[0; 12])]), None);
        check(b"", None);
        for cut in 0..whole.len() - 12 {
            check(&whole[..cut], None);
        }
    }

    #[test]
    fn pictures_say_their_size_and_garbage_is_no_picture() {
        let header = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x01\x02\0\0\0\x03";
        assert_eq!(png_size(header), Some([258, 3]));
        for cut in 0..header.len() {
            assert_eq!(png_size(&header[..cut]), None);
        }
    }
}
