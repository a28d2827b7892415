//! Features in device memory: the twins give the CPU path's bits, a real card is within the bounds, and every element
//! of every output is written. The same bodies on simulated cards, on the CPU and on a real card.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "in a test, a failed unwrap is a failed test"
)]

mod common;

use tandem_audio::{
    AudioError, BatchShape, Clip, DeviceFeatures, FeatureSettings, LogMel, MelFrames, PitchSettings, PitchTracker,
    Resampler, Rows, mel,
};
use tandem_device::{Arena, ArenaSpec, Block, Device, Element, Kind, Machine, SimSpec, Stream};
use tandem_events::Role;

const MIB: u64 = 1 << 20;
const RATES_HZ: [u32; 6] = [8_000, 16_000, 24_000, 32_000, 44_100, 48_000];

macro_rules! on_every_device {
    ($name:ident) => {
        mod $name {
            use super::*;

            #[test]
            fn simulated() {
                for seed in 0..3 {
                    super::$name(&Machine::simulated(SimSpec::new(1, 8 << 30).with_seed(seed)));
                }
            }

            #[test]
            fn cpu() {
                super::$name(&Machine::cpu());
            }

            #[test]
            #[ignore = "needs an NVIDIA card"]
            fn cuda() {
                super::$name(
                    &Machine::cuda().expect("the driver can be used").expect("this test needs an NVIDIA card"),
                );
            }
        }
    };
}

on_every_device!(log_mel_and_energy_of_ragged_rows);
on_every_device!(log_mel_of_hostile_clips);
on_every_device!(pitch_is_the_trackers);
on_every_device!(resampling_gives_the_same_bits);
on_every_device!(tables_take_what_was_said_and_launching_nothing);
on_every_device!(sizes_that_do_not_fit_are_refused);

/// A device with features on it.
struct Site {
    kind: Kind,
    machine: Machine,
    device: Device,
    arena: Arena,
    stream: Stream,
    features: DeviceFeatures,
}

impl Site {
    fn new(machine: &Machine) -> Site {
        let device = machine.open(0).unwrap();
        let spec = ArenaSpec {
            role: Role::Data,
            limit_bytes: 192 * MIB,
            driver_bytes: 64 * MIB,
            arena_bytes: 128 * MIB,
            capped: false,
        };
        let arena = Arena::reserve(&device, spec).unwrap();
        let stream = device.stream(false).unwrap();
        let (settings, pitch) = (FeatureSettings::default(), PitchSettings::default());
        let features = DeviceFeatures::create(&device, &arena, &stream, &settings, &pitch, &RATES_HZ).unwrap();
        Site { kind: machine.kind(), machine: machine.clone(), device, arena, stream, features }
    }

    fn up<T: Element>(&self, data: &[T]) -> Block {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let block = self.arena.take("input", bytes.len() as u64).unwrap();
        let mut host = self.device.pinned(bytes.len() as u64).unwrap();
        host.bytes_mut().unwrap().copy_from_slice(bytes);
        self.stream.upload(&host, 0..bytes.len() as u64, block.view()).unwrap();
        block
    }

    /// Memory in which every float is a NaN and every integer -1.
    fn poisoned<T: Element>(&self, elements: usize) -> Block {
        let block = self.arena.take("output", elements as u64 * T::DTYPE.bytes()).unwrap();
        self.stream.fill(block.view(), 0xFF).unwrap();
        block
    }

    fn down<T: Element>(&self, block: &Block) -> Vec<T> {
        let mut host = self.device.pinned(block.len()).unwrap();
        self.stream.download(block.view(), &mut host, 0..block.len()).unwrap();
        self.stream.drain().unwrap();
        bytemuck::cast_slice(host.bytes().unwrap()).to_vec()
    }
}

/// Clips as rows, `stride` apart. Between a row's end and the next one's start lies something loud.
fn rows_of(clips: &[Vec<i16>], stride: usize) -> (Vec<i16>, Vec<u32>) {
    let mut audio = vec![i16::MIN; clips.len() * stride];
    for (row, clip) in audio.chunks_mut(stride).zip(clips) {
        row[..clip.len()].copy_from_slice(clip);
    }
    (audio, clips.iter().map(|clip| clip.len() as u32).collect())
}

fn noise(seed: u32) -> impl FnMut() -> f64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        f64::from(state >> 8) / f64::from(1 << 23) - 1.0
    }
}

fn made(num_samples: usize, mut at: impl FnMut(f64) -> f64) -> Vec<i16> {
    (0..num_samples).map(|i| at(i as f64).clamp(-32_768.0, 32_767.0).round_ties_even() as i16).collect()
}

fn tone(hz: f64, amplitude: f64) -> impl Fn(f64) -> f64 {
    move |i| amplitude * (std::f64::consts::TAU * hz * i / 22_050.0).sin()
}

fn ragged() -> Vec<Vec<i16>> {
    let mut noise = noise(1);
    let mut clips: Vec<Vec<i16>> = [0, 1, 384, 385, 511, 512, 1023, 2048, 2049, 5003, 6001]
        .into_iter()
        .map(|num_samples| made(num_samples, |i| 4000.0 * noise() + tone(200.0, 3000.0)(i)))
        .collect();
    clips.push(common::i16s("speech")[..6001].to_vec());
    clips
}

fn hostile() -> Vec<Vec<i16>> {
    let (mut soft, mut loud) = (noise(2), noise(3));
    let click = |i: f64| if i == 3000.0 { 32_767.0 } else { 0.0 };
    let square = |i: f64| if tone(441.0, 1.0)(i) >= 0.0 { 32_767.0 } else { -32_768.0 };
    let mut clips: Vec<Vec<i16>> =
        [50.0, 440.0, 1000.0, 3333.3, 7900.0, 10_500.0].into_iter().map(|hz| made(9000, tone(hz, 32_767.0))).collect();
    clips.extend([made(9000, square), made(9000, click), made(9000, |i| tone(1000.0, 32_767.0)(i) + soft())]);
    clips.extend([made(9000, |_| -32_768.0), made(9000, |_| 0.0), made(9000, |_| 9000.0 * loud())]);
    clips.push(common::i16s("speech")[..9000].to_vec());
    clips.push(common::i16s("tones")[..9000].to_vec());
    clips
}

/// What a fast path promises at this log-mel value.
fn bound(log_mel: f64) -> f64 {
    if log_mel >= 1e-4_f64.ln() { 1e-3 } else { 1e-2 }
}

/// Log-mel and energy of `clips` with `frames` frames a row, compared with the CPU path or the reference.
fn check_log_mel(site: &Site, clips: &[Vec<i16>], stride: usize, frames: usize) {
    let settings = FeatureSettings::default();
    let (audio, lengths) = rows_of(clips, stride);
    let (audio, lengths) = (site.up(&audio), site.up(&lengths));
    let shape = BatchShape { rows: clips.len() as u32, stride_samples: stride as u32, frames: frames as u32 };
    let run = |with_energy: bool| {
        let (mel, energy) =
            (site.poisoned::<f32>(clips.len() * frames * 80), site.poisoned::<f32>(clips.len() * frames));
        let wanted = with_energy.then(|| energy.view());
        site.features.log_mel(&site.stream, shape, audio.view(), lengths.view(), mel.view(), wanted).unwrap();
        (site.down::<f32>(&mel), site.down::<f32>(&energy))
    };
    let (found, energies) = run(true);
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let (again, untouched) = run(false);
    assert!(bits(&found) == bits(&again), "another run gave other bits");
    assert!(untouched.iter().all(|x| x.to_bits() == u32::MAX), "energy was written that nobody asked for");

    let mut log_mel = LogMel::new(&settings).unwrap();
    let (mut cpu, mut cpu_energy) = (MelFrames::default(), Vec::new());
    for (row, samples) in clips.iter().enumerate() {
        let clip = Clip { samples: samples.clone(), rate_hz: 22_050 };
        let own = if log_mel.mel_energy_into(&clip, &mut cpu, &mut cpu_energy).is_ok() { cpu.num_frames() } else { 0 };
        let own = own.min(frames);
        let (found, padding) = found[row * frames * 80..][..frames * 80].split_at(own * 80);
        let (energies, silence) = energies[row * frames..][..frames].split_at(own);
        assert!(padding.iter().all(|x| x.to_bits() == 1e-5_f32.ln().to_bits()), "row {row}");
        assert!(silence.iter().all(|x| x.to_bits() == 0), "row {row}");
        if site.kind != Kind::Cuda {
            assert!(bits(found) == bits(&cpu.values[..own * 80]), "row {row}");
            assert!(bits(energies) == bits(&cpu_energy[..own]), "row {row}");
        } else if own > 0 {
            let expected = mel::reference(&clip, &settings).unwrap();
            for (i, (&found, expected)) in found.iter().zip(expected).enumerate() {
                let off = (f64::from(found) - expected).abs();
                assert!(off <= bound(expected), "row {row} frame {} band {}: {found} for {expected}", i / 80, i % 80);
            }
            for (i, (found, expected)) in energies.iter().zip(&cpu_energy).enumerate() {
                assert!((found - expected).abs() <= 1e-5 * expected, "row {row} frame {i}: {found} for {expected}");
            }
        }
    }
}

fn log_mel_and_energy_of_ragged_rows(machine: &Machine) {
    let site = Site::new(machine);
    // Odd strides put rows at odd samples; frames past every row, exactly the longest row's, and fewer.
    for (stride, frames) in [(6001, 23), (6001, 41), (7777, 24), (6002, 8), (6144, 5)] {
        check_log_mel(&site, &ragged(), stride, frames);
    }
    check_log_mel(&site, &ragged()[9..10], 5003, 19);
}

fn log_mel_of_hostile_clips(machine: &Machine) {
    check_log_mel(&Site::new(machine), &hostile(), 9001, 36);
}

fn pitch_is_the_trackers(machine: &Machine) {
    let site = Site::new(machine);
    let clips: Vec<Vec<i16>> = ragged().into_iter().chain(hostile()).chain([common::i16s("speech")]).collect();
    let (stride, frames) = (clips.iter().map(Vec::len).max().unwrap() + 1, 107);
    let (audio, lengths) = rows_of(&clips, stride);
    let (audio, lengths) = (site.up(&audio), site.up(&lengths));
    let out = site.poisoned::<f32>(clips.len() * frames);
    let shape = BatchShape { rows: clips.len() as u32, stride_samples: stride as u32, frames: frames as u32 };
    site.features.pitch(&site.stream, shape, audio.view(), lengths.view(), out.view()).unwrap();
    let found = site.down::<f32>(&out);

    let mut tracker = PitchTracker::new(&FeatureSettings::default(), &PitchSettings::default()).unwrap();
    let (mut expected, mut voiced, mut other) = (Vec::new(), 0, 0);
    for (row, samples) in clips.into_iter().enumerate() {
        // A refused clip leaves no frames, or those of the one before: there are none to compare either way.
        if tracker.pitch_into(&Clip { samples, rate_hz: 22_050 }, &mut expected).is_err() {
            expected.clear();
        }
        let own = expected.len().min(frames);
        let (found, padding) = found[row * frames..][..frames].split_at(own);
        assert!(padding.iter().all(|x| x.to_bits() == 0), "row {row}");
        voiced += found.iter().filter(|&&hz| hz > 0.0).count();
        if site.kind == Kind::Cuda {
            let agrees = |(found, expected): (&f32, &f32)| (found - expected).abs() <= 1e-3 * expected;
            other += found.iter().zip(&expected).filter(|pair| !agrees(*pair)).count();
        } else {
            assert!(found == &expected[..own], "row {row}");
        }
    }
    assert!(voiced > 50, "{voiced}");
    println!("{other} frames differ from the CPU's, {voiced} are voiced");
    // Only a frame within a rounding of a threshold may fall to the other side.
    assert!(other <= 1, "{other}");
}

fn resampling_gives_the_same_bits(machine: &Machine) {
    let site = Site::new(machine);
    let mut loud = noise(5);
    // Every rate, with a smooth and a clipping sound, at odd lengths; then rows that are copied.
    let mut clips: Vec<Vec<i16>> = Vec::new();
    let mut rates = Vec::new();
    for rate in 0..RATES_HZ.len() as u32 {
        for num_samples in [0, 1, 2, 777, 4001] {
            clips.push(made(num_samples, |i| 40_000.0 * loud() * (i / 300.0).sin()));
            rates.push(rate);
        }
    }
    for num_samples in [0, 3001] {
        clips.push(made(num_samples, |_| 9000.0 * loud()));
        rates.push(u32::MAX);
    }
    let mut resampler = Resampler::new(22_050);
    let mut expected: Vec<Vec<i16>> = Vec::new();
    for (samples, &rate) in clips.iter().zip(&rates) {
        let rate_hz = RATES_HZ.get(rate as usize).copied().unwrap_or(22_050);
        let mut out = Clip::default();
        resampler.clip_into(&Clip { samples: samples.clone(), rate_hz }, &mut out).unwrap();
        expected.push(out.samples);
    }
    let longest = expected.iter().map(Vec::len).max().unwrap();
    let rows = clips.len() as u32;
    let (audio, in_lengths) = rows_of(&clips, 4003);
    let (audio, in_lengths, rates) = (site.up(&audio), site.up(&in_lengths), site.up(&rates));
    // As much as there is; less; more than the ratio gives.
    for (stride_out, cut) in [(longest + 1, usize::MAX), (longest / 2 * 2 - 1000, 501), (longest + 514, longest + 514)]
    {
        let lengths: Vec<u32> = match cut {
            usize::MAX => expected.iter().map(|row| row.len() as u32).collect(),
            cut => vec![cut as u32; clips.len()],
        };
        let (out_lengths, out) = (site.up(&lengths), site.poisoned::<i16>(clips.len() * stride_out));
        let from = Rows { samples: audio.view(), stride_samples: 4003, lengths: in_lengths.view() };
        let to = Rows { samples: out.view(), stride_samples: stride_out as u32, lengths: out_lengths.view() };
        site.features.resample(&site.stream, rows, from, rates.view(), to).unwrap();
        for (row, (found, expected)) in site.down::<i16>(&out).chunks(stride_out).zip(&expected).enumerate() {
            let own = expected.len().min(lengths[row] as usize);
            assert!(found[..own] == expected[..own], "row {row}");
            assert!(found[own..].iter().all(|&x| x == 0), "row {row}");
        }
    }
}

fn tables_take_what_was_said_and_launching_nothing(machine: &Machine) {
    let site = Site::new(machine);
    let said = DeviceFeatures::table_bytes(&FeatureSettings::default(), &RATES_HZ).unwrap();
    assert_eq!(site.arena.memory().used_bytes, 64 * MIB + said);
    let (audio, lengths) = rows_of(&ragged(), 6001);
    let (audio, lengths) = (site.up(&audio), site.up(&lengths));
    let (mel, energy) = (site.poisoned::<f32>(12 * 24 * 80), site.poisoned::<f32>(12 * 24));
    let pitch = site.poisoned::<f32>(12 * 24);
    let before = (site.machine.counters(0), site.arena.memory());
    let shape = BatchShape { rows: 12, stride_samples: 6001, frames: 24 };
    let (audio, lengths) = (audio.view(), lengths.view());
    site.features.log_mel(&site.stream, shape, audio, lengths, mel.view(), Some(energy.view())).unwrap();
    site.features.pitch(&site.stream, shape, audio, lengths, pitch.view()).unwrap();
    site.stream.drain().unwrap();
    let after = (site.machine.counters(0), site.arena.memory());
    assert_eq!(before.0.allocations, after.0.allocations);
    assert_eq!(before.0.pinned_allocations, after.0.pinned_allocations);
    assert_eq!(before.1, after.1);
    // Nothing to do is nothing to launch.
    let none = BatchShape { rows: 0, ..shape };
    site.features.pitch(&site.stream, none, audio, lengths, pitch.view()).unwrap();
}

fn sizes_that_do_not_fit_are_refused(machine: &Machine) {
    let site = Site::new(machine);
    let (audio, lengths) = (site.up(&[0_i16; 2000]), site.up(&[1000_u32; 2]));
    let out = site.poisoned::<f32>(2 * 3 * 80);
    let check = |shape: BatchShape, what: &str| {
        let refused = site.features.log_mel(&site.stream, shape, audio.view(), lengths.view(), out.view(), None);
        let message = refused.expect_err(what).to_string();
        assert!(message.contains(what), "{message}");
    };
    let fits = BatchShape { rows: 2, stride_samples: 1000, frames: 3 };
    check(BatchShape { rows: 3, stride_samples: 500, ..fits }, "the lengths need 3");
    check(BatchShape { stride_samples: 1001, ..fits }, "the samples need 2002");
    check(BatchShape { frames: 4, ..fits }, "the mel frames need 640");
    let (settings, pitch) = (FeatureSettings { hop_samples: 128, ..Default::default() }, PitchSettings::default());
    let refused = DeviceFeatures::create(&site.device, &site.arena, &site.stream, &settings, &pitch, &[]);
    assert!(matches!(refused, Err(AudioError::Settings { .. })));
}
