//! What makes the demo corpus useful: sounds differ by phone and by voice, and the transcript says what is said.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use tandem_random::keyed;

use super::phones::{Manner, phone};
use super::*;
use crate::dataset::{Dataset, OpenOptions};
use crate::fixture::CorpusFolder;

/// A stretch of sound with the phone it is.
struct Piece {
    voice: DemoVoice,
    span: PhoneSpan,
    sound: Vec<f64>,
}

/// All phones of some utterances, with the middle half of their sound. Made once for all tests.
static PIECES: LazyLock<Vec<Piece>> = LazyLock::new(|| {
    let mut pieces = Vec::new();
    for index in 0..90 {
        let said = utterance(7, index, 6);
        let voice = DemoVoice::number(7, index as usize % 6);
        assert_eq!(voice.name, said.speaker);
        let mut start = 0;
        for span in said.phones {
            let length = span.num_samples as usize;
            let middle = &said.samples[start + length / 4..start + length * 3 / 4];
            let sound = middle.iter().map(|sample| f64::from(*sample) / 32_768.0).collect();
            pieces.push(Piece { voice: voice.clone(), span, sound });
            start += length;
        }
    }
    pieces
});

fn rms(sound: &[f64]) -> f64 {
    (sound.iter().map(|value| value * value).sum::<f64>() / sound.len().max(1) as f64).sqrt()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// How strong `sound` is at `hz`, by the definition.
fn power_at(sound: &[f64], hz: f64) -> f64 {
    let step = 2.0 * std::f64::consts::PI * hz / f64::from(RATE_HZ);
    let (mut re, mut im) = (0.0, 0.0);
    for (i, value) in sound.iter().enumerate() {
        let window = 0.5 - 0.5 * (2.0 * std::f64::consts::PI * i as f64 / sound.len() as f64).cos();
        re += window * value * (step * i as f64).cos();
        im += window * value * (step * i as f64).sin();
    }
    re * re + im * im
}

/// The mean frequency of `sound`, from 100 Hz to 10 kHz.
fn centroid_hz(sound: &[f64]) -> f64 {
    let powers: Vec<(f64, f64)> = (1..100).map(|i| f64::from(i) * 100.0).map(|hz| (hz, power_at(sound, hz))).collect();
    let total: f64 = powers.iter().map(|(_, power)| power).sum();
    powers.iter().map(|(hz, power)| hz * power).sum::<f64>() / total
}

/// Where the envelope of `sound` peaks below 4 kHz: linear prediction, evaluated every 10 Hz.
fn envelope_peaks_hz(sound: &[f64]) -> Vec<f64> {
    const LAGS: usize = 24;
    let lifted: Vec<f64> = sound.windows(2).map(|pair| pair[1] - 0.95 * pair[0]).collect();
    let windowed: Vec<f64> = lifted
        .iter()
        .enumerate()
        .map(|(i, v)| v * (0.54 - 0.46 * (2.0 * std::f64::consts::PI * i as f64 / lifted.len() as f64).cos()))
        .collect();
    let correlation = |lag: usize| windowed.iter().zip(&windowed[lag..]).map(|(a, b)| a * b).sum::<f64>();
    let (mut predictor, mut error) = (vec![1.0], correlation(0));
    for lag in 1..=LAGS {
        let sum: f64 = predictor.iter().enumerate().map(|(i, p)| p * correlation(lag - i)).sum();
        let reflection = -sum / error;
        predictor.push(0.0);
        let reversed: Vec<f64> = predictor.iter().rev().copied().collect();
        predictor.iter_mut().zip(reversed).for_each(|(p, r)| *p += reflection * r);
        error *= 1.0 - reflection * reflection;
    }
    let level = |hz: f64| {
        let step = 2.0 * std::f64::consts::PI * hz / f64::from(RATE_HZ);
        let re: f64 = predictor.iter().enumerate().map(|(i, p)| p * (step * i as f64).cos()).sum();
        let im: f64 = predictor.iter().enumerate().map(|(i, p)| p * (step * i as f64).sin()).sum();
        1.0 / (re * re + im * im)
    };
    let levels: Vec<f64> = (0..400).map(|i| level(f64::from(i) * 10.0)).collect();
    let peaks = (15..399).filter(|i| levels[*i] > levels[i - 1] && levels[*i] > levels[i + 1]);
    peaks.map(|i| i as f64 * 10.0).collect()
}

/// The pitch of `sound`: the lag at which it is most like itself.
fn pitch_hz(sound: &[f64]) -> f64 {
    let likeness = |lag: usize| {
        let pairs = || sound.iter().zip(&sound[lag..]);
        let energy: f64 = pairs().map(|(a, b)| (a * a + b * b) / 2.0).sum();
        pairs().map(|(a, b)| a * b).sum::<f64>() / energy
    };
    let lags = 60..(RATE_HZ as usize / 60).min(sound.len() / 2);
    let best = lags.clone().map(likeness).fold(0.0, f64::max);
    // Two periods are as alike as one; the first good lag is the period.
    let lag = lags.into_iter().find(|lag| likeness(*lag) > 0.93 * best && likeness(*lag) >= likeness(lag + 1));
    f64::from(RATE_HZ) / lag.unwrap() as f64
}

#[test]
fn vowels_resonate_where_they_should() {
    let mut found: BTreeMap<&str, Vec<[f64; 2]>> = BTreeMap::new();
    for piece in PIECES.iter() {
        let target = phone(piece.span.phone).unwrap();
        let steady = target.manner == Manner::Vowel && target.start == target.end && piece.span.stress == 1;
        // Between the harmonics of a high voice nobody can see a formant.
        if steady && piece.voice.pitch_hz < 150.0 && piece.sound.len() > 800 {
            let peaks = envelope_peaks_hz(&piece.sound);
            let nearest = |hz: f64| {
                let ratios = peaks.iter().map(|peak| peak / (hz * piece.voice.tract_scale));
                ratios.min_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs())).unwrap_or(0.0)
            };
            found.entry(target.name).or_default().push([nearest(target.start[0]), nearest(target.start[1])]);
        }
    }
    assert!(found.len() >= 9, "{:?}", found.keys());
    for (name, ratios) in found {
        for formant in 0..2 {
            let ratio = median(ratios.iter().map(|ratio| ratio[formant]).collect());
            assert!((0.88..1.12).contains(&ratio), "{name}: formant {} is off by {ratio:.2}", formant + 1);
        }
    }
}

#[test]
fn noises_differ_by_place() {
    let mut centroids: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut levels: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for piece in PIECES.iter() {
        levels.entry(piece.span.phone).or_default().push(20.0 * rms(&piece.sound).log10());
        if ["S", "SH", "F", "IY", "AA", "M", "N"].contains(&piece.span.phone) {
            centroids.entry(piece.span.phone).or_default().push(centroid_hz(&piece.sound));
        }
    }
    let check = |name: &str, hz: std::ops::Range<f64>, level: std::ops::Range<f64>| {
        let (centroid, loud) = (median(centroids[name].clone()), median(levels[name].clone()));
        assert!(hz.contains(&centroid) && level.contains(&loud), "{name}: {centroid:.0} Hz, {loud:.1} dB");
    };
    check("S", 5000.0..8000.0, -40.0..-22.0);
    check("SH", 2800.0..4800.0, -40.0..-22.0);
    check("F", 5000.0..8500.0, -52.0..-30.0);
    check("AA", 400.0..1400.0, -25.0..-14.0);
    check("IY", 250.0..1400.0, -30.0..-14.0);
    check("M", 100.0..700.0, -40.0..-18.0);
    check("N", 100.0..900.0, -40.0..-18.0);
    assert!(median(levels["T"].clone()) < median(levels["AA"].clone()) - 15.0, "a stop is closed most of the time");
}

#[test]
fn voices_differ_in_pitch() {
    let mut pitches: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for piece in PIECES.iter().filter(|piece| piece.span.stress == 1 && piece.sound.len() > 900) {
        pitches.entry(&*piece.voice.name).or_default().push(pitch_hz(&piece.sound));
    }
    for voice in &VOICES {
        let ratio = median(pitches[&*voice.name].clone()) / voice.pitch_hz;
        // Stressed vowels lie over the middle of the voice.
        assert!((0.95..1.3).contains(&ratio), "{}: {ratio:.2}", voice.name);
    }
}

/// Everything drawn voices differ in, with its range.
fn traits(voice: &DemoVoice) -> [(f64, f64, f64); 19] {
    let [f1, f2, f3, f4] = voice.formant_scales;
    [
        (voice.pitch_hz.ln(), 75f64.ln(), 320f64.ln()),
        (voice.tract_scale, 0.82, 1.30),
        (voice.open_share, 0.28, 0.90),
        (voice.width_scale.ln(), 0.35f64.ln(), 1.5f64.ln()),
        (f1, 0.85, 1.20),
        (f2, 0.87, 1.13),
        (f3, 0.83, 1.17),
        (f4, 0.82, 1.12),
        (voice.chest, -7.0, 1.5),
        (voice.chest_hz.ln(), 180f64.ln(), 500f64.ln()),
        (voice.nasality, 0.0, 0.15),
        (voice.breathiness, 0.01, 5.0),
        (voice.dullness, 0.0, 0.9),
        (voice.clarity, 0.65, 1.25),
        (voice.hiss_level.ln(), 0.3f64.ln(), 1.6f64.ln()),
        (voice.creak, 0.0, 0.6),
        (voice.roughness, 0.5, 12.0),
        (voice.pitch_range, 0.5, 1.3),
        (voice.speed, 0.90, 1.22),
    ]
}

/// How far two voices are apart, in ranges, over all traits.
fn apart(a: &DemoVoice, b: &DemoVoice) -> f64 {
    let (a, b) = (traits(a), traits(b));
    let squares = a.iter().zip(&b).map(|((a, from, to), (b, ..))| ((a - b) / (to - from)).powi(2));
    squares.sum::<f64>().sqrt()
}

#[test]
fn there_are_as_many_voices_as_anybody_wants() {
    let voices: Vec<DemoVoice> = (0..999).map(|number| DemoVoice::number(1, number)).collect();
    assert_eq!(voices[..6], VOICES);
    for (at, voice) in voices.iter().enumerate().skip(6) {
        for (which, (value, from, to)) in traits(voice).into_iter().enumerate() {
            // A logarithm may round to either side of an end.
            assert!(value > from - 1e-9 && value < to + 1e-9, "{which}: {value} in {voice:?}");
        }
        assert!(voices[..at].iter().all(|other| other.name != voice.name && other.pitch_hz != voice.pitch_hz));
    }
    assert_ne!(DemoVoice::number(1, 10), DemoVoice::number(2, 10));
    // They take turns, and the first six say what they said when there were no others.
    assert_eq!(utterance(1, 70, 60).speaker, voices[10].name);
    assert_eq!(utterance(1, 3, 60), utterance(1, 3, 6));
}

#[test]
fn no_two_voices_fall_together() {
    for seed in 0..20 {
        let voices: Vec<DemoVoice> = (0..64).map(|number| DemoVoice::number(seed, number)).collect();
        for (at, voice) in voices.iter().enumerate().skip(6) {
            for other in &voices[..at] {
                let apart = apart(voice, other);
                assert!(apart > 0.7, "{seed}: {} and {} are {apart:.2} apart", voice.name, other.name);
            }
        }
        // All of the range is used, and a high voice says nothing about the size of the mouth.
        let drawn = &voices[6..];
        for which in 0..19 {
            let (_, from, to) = traits(&drawn[0])[which];
            let values = || drawn.iter().map(|voice| (traits(voice)[which].0 - from) / (to - from));
            let (least, most) = (values().fold(1.0, f64::min), values().fold(0.0, f64::max));
            assert!(least < 0.2 && most > 0.75, "trait {which} of seed {seed}: {least:.2} to {most:.2}");
        }
        let pairs = || drawn.iter().map(|voice| (voice.pitch_hz.ln(), voice.tract_scale));
        assert!(correlation(pairs).abs() < 0.3, "{seed}: {}", correlation(pairs));
    }
}

fn correlation<I: Iterator<Item = (f64, f64)>>(pairs: impl Fn() -> I) -> f64 {
    let count = pairs().count() as f64;
    let mean = |value: fn((f64, f64)) -> f64| pairs().map(value).sum::<f64>() / count;
    let (x, y) = (mean(|pair| pair.0), mean(|pair| pair.1));
    let (xx, yy) = (mean(|pair| pair.0 * pair.0) - x * x, mean(|pair| pair.1 * pair.1) - y * y);
    (mean(|pair| pair.0 * pair.1) - x * y) / (xx * yy).sqrt()
}

#[test]
fn the_transcript_is_what_is_said() {
    for index in 0..40 {
        let said = utterance(3, index, 6);
        let spelled = said.text.split(' ').map(|word| word.trim_matches([',', '.', '?']));
        let symbols = spelled.flat_map(|spelling| {
            let word = words::all().find(|word| word.spelling.eq_ignore_ascii_case(spelling));
            word.unwrap_or_else(|| panic!("{spelling} in {}", said.text)).phones.split(' ')
        });
        let expected: Vec<&str> = symbols.map(|symbol| symbol.trim_end_matches(['0', '1'])).collect();
        let spoken: Vec<&str> = said.phones.iter().map(|span| span.phone).filter(|phone| *phone != "SIL").collect();
        assert_eq!(spoken, expected, "{}", said.text);
        let pauses = said.phones.iter().filter(|span| span.phone == "SIL").count();
        assert_eq!(pauses, 2 + said.text.matches(',').count(), "{}", said.text);
        assert_eq!(said.phones.iter().map(|span| span.num_samples as usize).sum::<usize>(), said.samples.len());
    }
}

#[test]
fn it_is_loud_enough_and_never_too_loud_and_silent_at_the_ends() {
    for (index, voices) in (0..40).map(|index| (index, 6)).chain((6..70).map(|index| (index, 70))) {
        let said = utterance(11, index, voices);
        let sound: Vec<f64> = said.samples.iter().map(|sample| f64::from(*sample) / 32_768.0).collect();
        let peak = sound.iter().fold(0.0, |peak: f64, value| peak.max(value.abs()));
        let loudness = 20.0 * rms(&sound).log10();
        assert!(peak < 0.9 && (-32.0..-16.0).contains(&loudness), "{}: {peak:.2}, {loudness:.1} dB", said.id);
        let end = RATE_HZ as usize / 10;
        for silence in [&sound[..end], &sound[sound.len() - end..]] {
            assert!(rms(silence) < 4.0 / 32_768.0 && rms(silence) > 0.0, "{}", said.id);
        }
        let seconds = sound.len() as f64 / f64::from(RATE_HZ);
        assert!((0.9..9.0).contains(&seconds), "{}: {seconds:.1} s", said.text);
    }
}

#[test]
fn samples_never_change() {
    let print = |index| {
        let said = utterance(1234, index, 6);
        let bytes: Vec<u8> = said.samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        (said.text, keyed::hash(0, &bytes))
    };
    let text = "Maria forgot the bad shadow beyond an island.";
    assert_eq!(print(0), (text.to_owned(), 0x306c_cb28_5958_0021));
    assert_eq!(print(0), print(0));
    // Whatever else voices learn to differ in, the six that have names stay as they are.
    let prints: Vec<u64> = (0..6).map(|index| print(index).1).collect();
    let expected = [
        0x306c_cb28_5958_0021,
        0xb374_f062_2998_6c45,
        0x7cd9_d883_fc44_5d32,
        0x6a09_a1d4_1aba_742f,
        0x607d_2b33_cc64_dd96,
        0xf0fd_7c1e_a458_22aa,
    ];
    assert_eq!(prints, expected, "{prints:#x?}");
    assert_ne!(utterance(1234, 6, 6).samples, utterance(1235, 6, 6).samples);
}

#[test]
fn what_is_written_is_a_corpus() {
    let folder = CorpusFolder::new("demo");
    let write = || {
        write(folder.path(), 0.25, (5, 6), |path, samples, rate_hz| {
            assert_eq!(rate_hz, RATE_HZ);
            std::fs::write(path, samples.len().to_string())
        })
    };
    let written = write().unwrap();
    assert!((15.0..25.0).contains(&written.duration_s), "{written:?}");
    let dataset = Dataset::open(folder.path(), &OpenOptions::default()).unwrap();
    assert_eq!(dataset.problems(), []);
    assert_eq!(dataset.samples().len() as u64, written.num_utterances);
    let (_, first) = dataset.samples().iter().next().unwrap();
    let said = utterance(5, 0, 6);
    assert_eq!((first.id, first.text, first.speaker, first.lang), (&*said.id, &*said.text, Some("ada"), Some("en")));
    let lines = std::fs::read_to_string(folder.path().join("phones.jsonl")).unwrap();
    assert!(lines.starts_with(r#"{"id":"ada_00000","phones":[["SIL",0,0,"#), "{lines:.80}");
    assert_eq!(lines.lines().count() as u64, written.num_utterances);
    assert!(matches!(write(), Err(crate::CorpusError::WouldOverwrite { .. })));
}
