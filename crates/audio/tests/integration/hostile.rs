//! Bytes nobody meant as audio, and audio somebody damaged: an answer every time, without panic and in bounded memory.

use std::io::Cursor;

use crate::common::Coding::{Float, Int};
use crate::common::{data, wav};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use tandem_audio::{AudioError, Clip, MAX_SAMPLES, decode, probe};

/// Far above what any file here needs, far below what some of them claim.
const MAX_PEAK_KIB: u64 = 1 << 20;

/// Asks both questions; any answer will do, if it is one.
fn survive(file: &[u8]) -> Result<Clip, AudioError> {
    let _ = probe(Cursor::new(file));
    let mut clip = Clip::default();
    let outcome = decode(Cursor::new(file), &mut clip);
    assert!(clip.samples.len() as u64 <= MAX_SAMPLES);
    assert_eq!(outcome.is_ok(), !clip.samples.is_empty(), "a clip with samples is a good one");
    assert!(peak_kib() < MAX_PEAK_KIB, "{} KiB at the peak", peak_kib());
    outcome.map(|()| clip)
}

/// The most address space this process ever had. Reserving without touching counts as well.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmPeak:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn good_files() -> Vec<Vec<u8>> {
    let noise: Vec<u8> = (0..12_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut files: Vec<Vec<u8>> =
        ["voice.ogg", "stereo.ogg", "voice.flac", "stereo24.flac", "voice.mp3", "adpcm.wav", "mu_law.wav", "opus.ogg"]
            .map(data)
            .to_vec();
    for (coding, channels) in [(Int(8), 1), (Int(16), 2), (Int(24), 5), (Int(32), 1), (Float(32), 8), (Float(64), 1)] {
        files.push(wav(coding, channels, 44_100, &noise));
    }
    files
}

fn good_file() -> impl Strategy<Value = Vec<u8>> {
    select(good_files())
}

/// Every 32-bit and 16-bit field near the start of a file, set to the numbers that break sums.
#[test]
fn headers_with_numbers_at_the_edge() {
    for file in good_files() {
        for at in 0..file.len().min(120) - 4 {
            for value in [0_u32, 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFE, 0xFFFF_FFFF, 0xFFFF_0000] {
                let mut mutated = file.clone();
                mutated[at..at + 4].copy_from_slice(&value.to_le_bytes());
                let _ = survive(&mutated);
            }
        }
    }
}

#[test]
fn every_start_of_a_file() {
    for file in good_files() {
        for len in (0..file.len().min(600)).chain((600..file.len()).step_by(61)) {
            let _ = survive(&file[..len]);
        }
    }
}

#[test]
fn a_wav_that_claims_four_gigabytes_gets_what_is_there() {
    let mut file = wav(Int(16), 1, 22_050, &[0; 1000]);
    file[4..8].fill(0xF0);
    file[40..44].fill(0xEF);
    assert!(survive(&file).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in vec(any::<u8>(), 0..3000)) {
        let _ = survive(&bytes);
    }

    #[test]
    fn random_bytes_behind_a_magic_word(
        magic in select(vec![
            b"RIFF____WAVEfmt ".to_vec(), b"fLaC\0\0\0\x22".to_vec(), b"OggS\0\x02".to_vec(), b"ID3\x03\0\0".to_vec(),
            vec![0xFF, 0xFB, 0x90, 0x64], vec![0xFF, 0xF3, 0x40, 0xC0],
        ]),
        bytes in vec(any::<u8>(), 0..3000),
    ) {
        let _ = survive(&[magic, bytes].concat());
    }

    #[test]
    fn a_few_bytes_changed(file in good_file(), changes in vec((any::<Index>(), any::<u8>()), 1..8)) {
        let mut mutated = file;
        for (at, value) in changes {
            let at = at.index(mutated.len());
            mutated[at] = value;
        }
        let _ = survive(&mutated);
    }

    #[test]
    fn a_piece_missing_or_doubled(file in good_file(), a in any::<Index>(), b in any::<Index>(), twice in any::<bool>()) {
        let (a, b) = (a.index(file.len()), b.index(file.len()));
        let (from, to) = (a.min(b), a.max(b));
        let rest = if twice { &file[from..] } else { &file[to..] };
        let _ = survive(&[&file[..if twice { to } else { from }], rest].concat());
    }
}
