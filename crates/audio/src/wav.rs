//! Writes 16-bit PCM wav: a 44-byte header and the samples.

use std::io::Write;

use crate::{AudioError, Clip};

const HEADER_BYTES: u32 = 44;
const BYTES_PER_SAMPLE: u32 = 2;

/// Writes `clip` as a mono wav file.
///
/// Fails with [`AudioError::TooLong`] where the format's 32-bit lengths end, and with [`AudioError::Io`].
pub fn write(clip: &Clip, mut out: impl Write) -> Result<(), AudioError> {
    let limit = (u32::MAX - HEADER_BYTES) / BYTES_PER_SAMPLE;
    let num_samples = u32::try_from(clip.samples.len()).ok().filter(|&n| n <= limit);
    let data_bytes = num_samples.ok_or(AudioError::TooLong { limit: u64::from(limit) })? * BYTES_PER_SAMPLE;
    let mut header = Vec::with_capacity(HEADER_BYTES as usize);
    header.extend_from_slice(b"RIFF");
    header.extend_from_slice(&(HEADER_BYTES - 8 + data_bytes).to_le_bytes());
    header.extend_from_slice(b"WAVEfmt ");
    header.extend_from_slice(&16_u32.to_le_bytes());
    // PCM, one channel.
    header.extend_from_slice(&1_u16.to_le_bytes());
    header.extend_from_slice(&1_u16.to_le_bytes());
    header.extend_from_slice(&clip.rate_hz.to_le_bytes());
    header.extend_from_slice(&clip.rate_hz.saturating_mul(BYTES_PER_SAMPLE).to_le_bytes());
    // Bytes a frame, bits a sample.
    header.extend_from_slice(&2_u16.to_le_bytes());
    header.extend_from_slice(&16_u16.to_le_bytes());
    header.extend_from_slice(b"data");
    header.extend_from_slice(&data_bytes.to_le_bytes());
    out.write_all(&header)?;
    // The one platform is little-endian, as wav is.
    out.write_all(bytemuck::cast_slice(&clip.samples))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Header, decode, probe};
    use std::io::Cursor;

    #[test]
    fn what_is_written_reads_back() {
        for (samples, rate_hz) in [(vec![i16::MIN, -1, 0, 1, i16::MAX], 22_050), (vec![7; 5000], 192_000)] {
            let clip = Clip { samples, rate_hz };
            let mut file = Vec::new();
            write(&clip, &mut file).unwrap();
            let num_samples = Some(clip.samples.len() as u64);
            assert_eq!(probe(Cursor::new(&file)).unwrap(), Header { rate_hz, channels: 1, num_samples });
            let mut back = Clip::default();
            decode(Cursor::new(&file), &mut back).unwrap();
            assert_eq!(back, clip);
        }
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let mut no_room = [0; 50];
        let clip = Clip { samples: vec![0; 100], rate_hz: 8_000 };
        assert!(matches!(write(&clip, no_room.as_mut_slice()), Err(AudioError::Io(_))));
    }
}
