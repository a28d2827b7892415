//! Files as other programs write them, good and bad.

use std::io::{self, Cursor, Read, Seek, SeekFrom};

use crate::common::Coding::{Float, Int};
use crate::common::{data, i16s, wav};
use tandem_audio::{AudioError, Clip, Header, decode, probe};

fn decoded(file: &[u8]) -> Result<Clip, AudioError> {
    let mut clip = Clip { samples: vec![9; 9], rate_hz: 9 };
    let outcome = decode(Cursor::new(file), &mut clip);
    if outcome.is_err() {
        assert_eq!(clip, Clip::default(), "a failed clip is an empty one");
    }
    outcome.map(|()| clip)
}

#[test]
fn every_sample_format_is_rounded_once_to_the_even_step() {
    let check = |coding, data: &[u8], expected: &[i16]| {
        let clip = decoded(&wav(coding, 1, 16_000, data)).unwrap();
        assert_eq!((clip.samples.as_slice(), clip.rate_hz), (expected, 16_000));
    };
    let f32s = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
    let f64s = |values: &[f64]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>();
    check(Int(8), &[0, 127, 128, 129, 255], &[-32_768, -256, 0, 256, 32_512]);
    check(Int(16), &[0, 0x80, 0xFF, 0xFF, 0xFF, 0x7F], &[-32_768, -1, 32_767]);
    // 24 bits: 0x0080 is half a step, 0x0180 one and a half.
    check(Int(24), &[0x80, 0, 0, 0x80, 1, 0, 0x81, 0, 0, 0, 0, 0x80, 0xFF, 0xFF, 0x7F], &[0, 2, 1, -32_768, 32_767]);
    check(Int(32), &[0, 0x80, 1, 0, 0, 0x80, 0, 0, 0xFF, 0xFF, 0xFF, 0x7F], &[2, 0, 32_767]);
    check(
        Float(32),
        &f32s(&[0.0, 0.5, -1.0, 1.0, 7.0, -7.0, 1.5 / 32_768.0]),
        &[0, 16_384, -32_768, 32_767, 32_767, -32_768, 2],
    );
    check(Float(64), &f64s(&[0.25, 2.5 / 32_768.0, 1e300, -1e300]), &[8192, 2, 32_767, -32_768]);
}

#[test]
fn channels_are_averaged() {
    let check = |channels: u16, frame: &[i16], expected: i16| {
        let data: Vec<u8> = frame.repeat(3).iter().flat_map(|x| x.to_le_bytes()).collect();
        let file = wav(Int(16), channels, 192_000, &data);
        let header = Header { rate_hz: 192_000, channels: channels.into(), num_samples: Some(3) };
        assert_eq!(probe(Cursor::new(&file)).unwrap(), header);
        assert_eq!(decoded(&file).unwrap(), Clip { samples: vec![expected; 3], rate_hz: 192_000 });
    };
    check(2, &[100, 300], 200);
    check(2, &[1, 2], 2);
    check(2, &[2, 3], 2);
    check(2, &[32_767, 32_767], 32_767);
    check(5, &[1, 2, 3, 4, 5], 3);
    check(5, &[-32_768, -32_768, -32_768, -32_768, -32_767], -32_768);
    check(8, &[8, 0, 0, 0, 0, 0, 0, 0], 1);
}

#[test]
fn files_of_other_programs_are_what_libsndfile_reads() {
    // Lossless to the bit; lossy decoders may differ in the last steps.
    let check = |name: &str, expected: &str, tolerance: i32| {
        let clip = decoded(&data(name)).unwrap();
        let expected = i16s(expected);
        assert_eq!((clip.samples.len(), clip.rate_hz), (expected.len(), 22_050), "{name}");
        let off = clip.samples.iter().zip(expected).map(|(&a, b)| (i32::from(a) - i32::from(b)).abs()).max();
        assert!(off <= Some(tolerance), "{name} is off by {off:?}");
    };
    check("voice.flac", "voice", 0);
    check("voice.ogg", "voice_ogg_decoded", 1);
    check("voice.mp3", "voice_mp3_decoded", 2);
    // ADPCM decoders round every step in their own way, and the steps add up.
    check("adpcm.wav", "adpcm_wav_decoded", 100);
    check("mu_law.wav", "mu_law_wav_decoded", 0);
}

#[test]
fn headers_are_read_without_decoding() {
    let check = |name: &str, rate_hz, channels, num_samples| {
        let file = data(name);
        let header = probe(Cursor::new(&file)).unwrap();
        assert_eq!(header, Header { rate_hz, channels, num_samples: Some(num_samples) }, "{name}");
        assert_eq!(decoded(&file).unwrap().samples.len() as u64, num_samples, "{name}");
    };
    check("voice.flac", 22_050, 1, 11_025);
    check("stereo24.flac", 48_000, 2, 11_025);
    check("voice.ogg", 22_050, 1, 11_025);
    check("stereo.ogg", 44_100, 2, 11_025);
    check("voice.mp3", 22_050, 1, 11_025);
    check("mu_law.wav", 22_050, 1, 2000);
}

#[test]
fn probing_reads_little_of_a_long_file() {
    struct Counting<'f>(Cursor<&'f [u8]>, &'f std::sync::atomic::AtomicUsize);
    impl Read for Counting<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let n = self.0.read(buf)?;
            self.1.fetch_add(n, std::sync::atomic::Ordering::Relaxed);
            Ok(n)
        }
    }
    impl Seek for Counting<'_> {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }
    let file = wav(Int(16), 1, 22_050, &vec![0; 4_000_000]);
    let read = std::sync::atomic::AtomicUsize::new(0);
    assert_eq!(probe(Counting(Cursor::new(&file), &read)).unwrap().num_samples, Some(2_000_000));
    assert!(read.into_inner() < 100_000);
}

#[test]
fn tags_in_front_of_an_mp3_do_not_matter() {
    let plain = decoded(&data("voice.mp3")).unwrap();
    // A picture frame full of what looks like the start of an mp3 frame.
    let picture: Vec<u8> = [0xFF, 0xFB, 0x90, 0x64].repeat(5000);
    let mut tagged = b"ID3\x03\x00\x00".to_vec();
    let len = picture.len() as u32 + 10;
    tagged.extend([21, 14, 7, 0].map(|shift| (len >> shift & 0x7F) as u8));
    tagged.extend(b"APIC");
    tagged.extend((picture.len() as u32).to_be_bytes());
    tagged.extend([0, 0]);
    tagged.extend(picture);
    tagged.extend(data("voice.mp3"));
    assert!(decoded(&tagged).unwrap() == plain);
}

#[test]
fn an_mp3_without_an_encoders_tag_promises_no_length() {
    let file = data("voice.mp3");
    let next_frame = 100 + file[100..].windows(2).position(|pair| pair == &file[..2]).unwrap();
    let header = probe(Cursor::new(&file[next_frame..])).unwrap();
    assert_eq!(header, Header { rate_hz: 22_050, channels: 1, num_samples: None });
    // Without the tag nobody knows which samples are the encoder's own: some more come out.
    let num_samples = decoded(&file[next_frame..]).unwrap().samples.len();
    assert!((11_025..11_025 + 4000).contains(&num_samples), "{num_samples}");
}

#[test]
fn a_cut_file_says_how_much_was_there() {
    let check = |name: &str, file: &[u8], whole: u64, promised: bool| {
        for percent in [95, 50, 30] {
            match decoded(&file[..file.len() * percent / 100]) {
                // Inside its last block, a flac may as well be damaged.
                Err(AudioError::Corrupt { detail }) if name == "flac" && percent == 95 => {
                    assert!(detail.contains("cut off") && detail.contains("of 11025 samples"), "{detail}");
                }
                Err(AudioError::Truncated { got, expected }) => {
                    // A flac of half a second has three frames.
                    assert!(got < whole && (got > 0 || percent < 50), "{name} {percent} %: {got}");
                    assert_eq!(expected, promised.then_some(whole), "{name} {percent} %");
                }
                other => panic!("{name} cut to {percent} %: {:?}", other.map(|clip| clip.samples.len())),
            }
        }
    };
    let long = Clip { samples: i16s("speech"), rate_hz: 22_050 };
    let mut as_wav = Vec::new();
    tandem_audio::wav::write(&long, &mut as_wav).unwrap();
    check("wav", &as_wav, long.samples.len() as u64, true);
    check("flac", &data("voice.flac"), 11_025, true);
    check("flac", &data("stereo24.flac"), 11_025, true);
    check("mp3", &data("voice.mp3"), 11_025, true);
    check("ogg", &data("long.ogg"), 88_200, false);
}

#[test]
fn bad_files_have_distinct_errors() {
    let check = |what: &str, file: &[u8], expected: fn(&AudioError) -> bool| {
        let error = decoded(file).map(|clip| clip.samples.len()).expect_err(what);
        assert!(expected(&error), "{what}: {error:?}");
    };
    let samples = vec![1_u8; 4000];
    let good = wav(Int(16), 1, 22_050, &samples);
    check("nothing", b"", |e| matches!(e, AudioError::Empty));
    check("text", &b"id|text\nLJ001|hello\n".repeat(100), |e| matches!(e, AudioError::NotAudio));
    check("zeros", &[0; 70_000], |e| matches!(e, AudioError::NotAudio));
    check("riff that is no wav", b"RIFF\x10\0\0\0AVI LIST____________", |e| matches!(e, AudioError::NotAudio));
    check("no samples", &wav(Int(16), 1, 22_050, &[]), |e| matches!(e, AudioError::ZeroLength));
    check("opus", &data("opus.ogg"), |e| matches!(e, AudioError::Unsupported { .. }));
    check("no rate", &wav(Int(16), 1, 0, &samples), |e| matches!(e, AudioError::Unsupported { .. }));
    check("header only", &good[..30], |e| matches!(e, AudioError::Truncated { got: 0, .. }));
    let not_a_number: Vec<u8> = f32::NAN.to_le_bytes().repeat(100);
    check("not a number", &wav(Float(32), 1, 22_050, &not_a_number), |e| matches!(e, AudioError::Corrupt { .. }));
    let mut claims = good.clone();
    claims[4..8].copy_from_slice(&(u32::MAX - 1).to_le_bytes());
    claims[40..44].copy_from_slice(&(u32::MAX - 100).to_le_bytes());
    check("claims 4 GB", &claims, |e| matches!(e, AudioError::Truncated { got: 2000, expected: Some(2_147_483_597) }));
    let mut two = data("voice.ogg");
    two.extend(data("stereo.ogg"));
    check("two streams in a row", &two, |e| matches!(e, AudioError::Unsupported { .. }));
    let mut damaged = data("voice.flac");
    let middle = damaged.len() / 2;
    damaged[middle..middle + 50].fill(0x55);
    check("damaged flac", &damaged, |e| matches!(e, AudioError::Corrupt { .. }));
}

#[test]
fn a_flac_with_a_flipped_bit_is_damaged_and_not_cut_off() {
    for name in ["voice.flac", "stereo24.flac"] {
        let whole = data(name);
        let first_block = whole.windows(2).position(|pair| pair[0] == 0xFF && pair[1] & 0xFE == 0xF8).unwrap();
        for at in (first_block..whole.len()).step_by(97) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << (at % 8);
            let error = decoded(&damaged).map(|clip| clip.samples.len()).unwrap_err();
            assert!(matches!(error, AudioError::Corrupt { .. }), "{name}, byte {at}: {error:?}");
        }
    }
    // The first two of three blocks: more than one block is missing, and not at the end.
    let mut damaged = data("voice.flac");
    let middle = damaged.len() / 2;
    damaged[200] ^= 1;
    damaged[middle] ^= 1;
    let error = decoded(&damaged).map(|clip| clip.samples.len()).unwrap_err();
    assert!(error.to_string().contains("samples 0 to 8192 cannot be decoded"), "{error}");
}

#[test]
fn a_piped_wav_of_unknown_length_is_whole() {
    let mut piped = wav(Int(16), 1, 22_050, &[1; 4000]);
    piped[4..8].fill(0xFF);
    piped[40..44].fill(0xFF);
    assert_eq!(probe(Cursor::new(&piped)).unwrap().num_samples, None);
    assert_eq!(decoded(&piped).unwrap().samples, vec![0x0101; 2000]);
}

#[test]
fn a_source_that_fails_is_not_a_bad_recording() {
    /// Gives bytes up to a point, then an error, as a file on a lost network drive does.
    struct Failing(Cursor<Vec<u8>>, u64);
    impl Read for Failing {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            if self.0.position() >= self.1 {
                return Err(io::Error::other("the drive is gone"));
            }
            self.0.read(buf)
        }
    }
    impl Seek for Failing {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.0.seek(to)
        }
    }
    let long = wav(Int(16), 1, 22_050, &vec![0; 1_000_000]);
    for readable in [0, 200_000] {
        let source = Failing(Cursor::new(long.clone()), readable);
        let outcome = decode(source, &mut Clip::default());
        assert!(matches!(outcome, Err(AudioError::Io(_))), "{readable}: {outcome:?}");
    }
}
