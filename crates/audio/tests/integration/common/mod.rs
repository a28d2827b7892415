//! What several test files need: stored numbers, and wav files made to order.
#![allow(dead_code, reason = "every test file uses its own part of this")]

use std::path::{Path, PathBuf};

use tandem_audio::{Clip, FeatureSettings, LogBase, Spectrum};
use tandem_test_support::real_voice;

pub(crate) fn data(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The numbers of a stored array, in order, whatever its shape.
fn array<const N: usize>(name: &str, descr: &str) -> Vec<[u8; N]> {
    let file = data(&format!("{name}.npy"));
    let header_len = usize::from(u16::from_le_bytes([file[8], file[9]]));
    let (header, numbers) = file[10..].split_at(header_len);
    let header = std::str::from_utf8(header).unwrap();
    assert!(header.contains(descr) && header.contains("'fortran_order': False"), "{name}: {header}");
    numbers.as_chunks::<N>().0.to_vec()
}

pub(crate) fn f32s(name: &str) -> Vec<f32> {
    array(name, "'<f4'").into_iter().map(f32::from_le_bytes).collect()
}

pub(crate) fn i16s(name: &str) -> Vec<i16> {
    array(name, "'<i2'").into_iter().map(i16::from_le_bytes).collect()
}

pub(crate) fn clip(name: &str) -> Clip {
    Clip { samples: i16s(name), rate_hz: 22_050 }
}

/// The error of a log-mel value relative to what every fast path promises: within 1e-3 where the mel magnitude is 1e-4 or
/// more, and within 1e-2 below, in natural logarithms.
pub(crate) fn of_the_bound(settings: &FeatureSettings, found: f32, expected: f64) -> f64 {
    let base = if settings.log == LogBase::E { 1.0 } else { std::f64::consts::LN_10 };
    let root = if settings.spectrum == Spectrum::Power { 0.5 } else { 1.0 };
    let magnitude = (expected / settings.scale - settings.shift) * base * root;
    let bound = if magnitude >= 1e-4_f64.ln() { 1e-3 } else { 1e-2 };
    (f64::from(found) - expected).abs() / settings.scale * base / bound
}

/// How a wav stores a sample.
#[derive(Clone, Copy)]
pub(crate) enum Coding {
    Int(u16),
    Float(u16),
}

/// A wav file around `data`, with a plain header, or the extensible one that more than two channels ask for.
pub(crate) fn wav(coding: Coding, channels: u16, rate_hz: u32, data: &[u8]) -> Vec<u8> {
    let (tag, bits) = match coding {
        Coding::Int(bits) => (1_u16, bits),
        Coding::Float(bits) => (3, bits),
    };
    let extensible = channels > 2;
    let frame_bytes = channels * bits / 8;
    let mut fmt = Vec::new();
    fmt.extend(if extensible { 0xFFFE_u16 } else { tag }.to_le_bytes());
    fmt.extend(channels.to_le_bytes());
    fmt.extend(rate_hz.to_le_bytes());
    fmt.extend((rate_hz * u32::from(frame_bytes)).to_le_bytes());
    fmt.extend(frame_bytes.to_le_bytes());
    fmt.extend(bits.to_le_bytes());
    if extensible {
        fmt.extend(22_u16.to_le_bytes());
        fmt.extend(bits.to_le_bytes());
        fmt.extend(((1_u32 << channels) - 1).to_le_bytes());
        fmt.extend(tag.to_le_bytes());
        fmt.extend(b"\x00\x00\x00\x00\x10\x00\x80\x00\x00\xAA\x00\x38\x9B\x71");
    }
    let mut file = b"RIFF\0\0\0\0WAVEfmt ".to_vec();
    file.extend((fmt.len() as u32).to_le_bytes());
    file.extend(fmt);
    file.extend(b"data");
    file.extend((data.len() as u32).to_le_bytes());
    file.extend(data);
    let riff_len = (file.len() - 8) as u32;
    file[4..8].copy_from_slice(&riff_len.to_le_bytes());
    file
}

/// The recordings of a real voice, if this machine has them.
pub(crate) fn voice_folder() -> Option<PathBuf> {
    real_voice("the round trip of a recorded voice").map(|voice| voice.join("wavs"))
}
