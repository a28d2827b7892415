//! Recordings to mutate: wav files written here, and the flac, ogg and mp3 files of the audio crate's tests.

use tandem_test_support::raw_wav;

use crate::choices::Choices;
use crate::mutate::{extreme, mutate, number_bytes, overwrite};

/// What is known about a recording before anything reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Not mutated.
    Intact,
    /// No reader can find audio in it.
    Hopeless,
    /// Mutated: it may decode or not.
    Mutated,
}

/// A file in a format.
#[derive(Clone, Debug)]
pub(crate) struct BaseRecording {
    pub(crate) name: &'static str,
    pub(crate) bytes: Vec<u8>,
}

/// One of each format and coding.
pub(crate) fn base_recordings() -> Vec<BaseRecording> {
    let mut all: Vec<BaseRecording> = [
        ("flac", include_bytes!("../../../crates/audio/tests/data/voice.flac").as_slice()),
        ("flac 24-bit stereo", include_bytes!("../../../crates/audio/tests/data/stereo24.flac")),
        ("mp3", include_bytes!("../../../crates/audio/tests/data/voice.mp3")),
        ("ogg", include_bytes!("../../../crates/audio/tests/data/voice.ogg")),
        ("ogg stereo", include_bytes!("../../../crates/audio/tests/data/stereo.ogg")),
        ("opus", include_bytes!("../../../crates/audio/tests/data/opus.ogg")),
        ("wav adpcm", include_bytes!("../../../crates/audio/tests/data/adpcm.wav")),
        ("wav mu-law", include_bytes!("../../../crates/audio/tests/data/mu_law.wav")),
    ]
    .map(|(name, bytes)| BaseRecording { name, bytes: bytes.to_vec() })
    .into();
    for (name, format, channels, rate_hz, bits) in [
        ("wav 16-bit", 1, 1, 22_050, 16),
        ("wav 16-bit 8 kHz", 1, 1, 8_000, 16),
        ("wav 8-bit", 1, 1, 16_000, 8),
        ("wav 24-bit stereo", 1, 2, 16_000, 24),
        ("wav 32-bit", 1, 1, 11_025, 32),
        ("wav float", 3, 1, 16_000, 32),
        ("wav double", 3, 1, 8_000, 64),
        ("wav six channels", 1, 6, 8_000, 16),
    ] {
        all.push(BaseRecording { name, bytes: wav(format, channels, rate_hz, bits, 0.4) });
    }
    all
}

/// A wav file with a tone: `format` 1 is PCM, 3 is float.
pub(crate) fn wav(format: u16, channels: u16, rate_hz: u32, bits: u16, seconds: f64) -> Vec<u8> {
    let mut data = Vec::new();
    for i in 0..(f64::from(rate_hz) * seconds) as u32 {
        let value = (f64::from(i) * 900.0 / f64::from(rate_hz)).sin() * 0.3;
        for _ in 0..channels {
            match (format, bits) {
                (3, 32) => data.extend((value as f32).to_le_bytes()),
                (3, _) => data.extend(value.to_le_bytes()),
                (_, 8) => data.push((value * 127.0 + 128.0) as u8),
                (_, 24) => data.extend(&((value * 8_388_607.0) as i32).to_le_bytes()[..3]),
                (_, 32) => data.extend(((value * 2_147_483_647.0) as i32).to_le_bytes()),
                _ => data.extend(((value * 32_767.0) as i16).to_le_bytes()),
            }
        }
    }
    raw_wav(format, channels, rate_hz, bits, &data)
}

/// A recording of a mutated corpus: intact, hopeless or mutated.
pub(crate) fn mutated_recording(bases: &[BaseRecording], choices: &mut Choices) -> (Vec<u8>, Condition, usize) {
    let at = choices.below(bases.len());
    let mut bytes = bases[at].bytes.clone();
    match choices.below(40) {
        0 => return (bytes, Condition::Intact, at),
        1 => return (Vec::new(), Condition::Hopeless, at),
        2 => return (vec![0; choices.between(1, 20_000)], Condition::Hopeless, at),
        3 => {
            bytes.truncate(choices.below(12));
            return (bytes, Condition::Hopeless, at);
        }
        4..12 => header_field(&mut bytes, choices),
        _ => {
            let (other, count) = (choices.below(bases.len()), choices.between(1, 4));
            mutate(&mut bytes, &bases[other].bytes, count, choices);
        }
    }
    // Checksums of pages hide the decoder from mutations: half of the time they are right again.
    if bytes.starts_with(b"OggS") && choices.one_in(2) {
        correct_ogg_checksums(&mut bytes);
    }
    (bytes, Condition::Mutated, at)
}

/// Sets a field of the header to an extreme number.
fn header_field(bytes: &mut [u8], choices: &mut Choices) {
    // Offsets and widths: sizes, format, channels, rate, alignment, bits and data size of a wav file.
    const WAV: [(usize, usize); 10] =
        [(4, 4), (16, 4), (20, 2), (22, 2), (24, 4), (28, 4), (32, 2), (34, 2), (36, 4), (40, 4)];
    // Block sizes, frame sizes, then packed rate, channels, bits and number of samples of a flac file; its first block.
    const FLAC: [(usize, usize); 7] = [(4, 4), (8, 2), (10, 2), (12, 3), (15, 3), (18, 4), (22, 4)];
    // Version, flags, granule position, serial, sequence, checksum, segments; then the identification header of vorbis.
    const OGG: [(usize, usize); 11] =
        [(4, 1), (5, 1), (6, 8), (14, 4), (18, 4), (26, 1), (27, 1), (35, 4), (39, 1), (40, 4), (56, 1)];
    let fields: &[(usize, usize)] = match bytes.first() {
        Some(b'R') => &WAV,
        Some(b'f') => &FLAC,
        Some(b'O') => &OGG,
        _ => &[(0, 4), (1, 2), (2, 1), (3, 1), (4, 4)],
    };
    for _ in 0..choices.between(1, 3) {
        let (at, width) = *choices.pick(fields);
        let number = if choices.one_in(4) { choices.bits() } else { extreme(choices) };
        let big_endian = bytes.first() == Some(&b'f');
        overwrite(bytes, at, &number_bytes(number, width, big_endian));
    }
}

/// Writes the right checksum into every page that can be found.
fn correct_ogg_checksums(bytes: &mut [u8]) {
    let mut at = 0;
    while at + 27 <= bytes.len() {
        if &bytes[at..at + 4] != b"OggS" {
            at += 1;
            continue;
        }
        let num_segments = usize::from(bytes[at + 26]);
        let table = bytes.get(at + 27..at + 27 + num_segments).unwrap_or_default();
        let body: usize = table.iter().map(|length| usize::from(*length)).sum();
        let end = (at + 27 + num_segments + body).min(bytes.len());
        overwrite(bytes, at + 22, &[0; 4]);
        let sum = ogg_checksum(&bytes[at..end]);
        overwrite(bytes, at + 22, &sum.to_le_bytes());
        at = end;
    }
}

/// CRC-32 with the polynomial 0x04c11db7, most significant bit first, from 0 (RFC 3533).
fn ogg_checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |sum: u32, byte| {
        (0..8).fold(sum ^ u32::from(*byte) << 24, |sum, _| sum << 1 ^ if sum >> 31 == 1 { 0x04c1_1db7 } else { 0 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_of_an_intact_file_are_right_already() {
        let file = include_bytes!("../../../crates/audio/tests/data/voice.ogg");
        let mut corrected = file.to_vec();
        correct_ogg_checksums(&mut corrected);
        assert_eq!(corrected, file);
        corrected[100] ^= 1;
        correct_ogg_checksums(&mut corrected);
        assert!(corrected != file);
    }

    #[test]
    fn a_mutated_recording_is_a_function_of_the_seed() {
        let bases = base_recordings();
        let all = |seed| {
            let mut choices = Choices::of_case(seed, 0, 0);
            (0..200).map(|_| mutated_recording(&bases, &mut choices)).collect::<Vec<_>>()
        };
        assert_eq!(all(1), all(1));
        let conditions: Vec<Condition> = all(1).iter().map(|(_, condition, _)| *condition).collect();
        assert!(conditions.contains(&Condition::Intact) && conditions.contains(&Condition::Hopeless));
    }
}
