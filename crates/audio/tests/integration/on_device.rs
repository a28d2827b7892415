//! Features in device memory: the host kernels give the CPU path's bits, a real card gives them too in two floats and is within
//! the bounds in f64, and every element of every output is written. The same bodies on simulated cards, on the CPU and on a real card.

use crate::common;
use tandem_audio::{
    Arithmetic, AudioError, CachedPitch, Clip, DeviceFeatures, FeaturePreset, FeatureSettings, Framing, LogMel,
    MelFrames, NOT_CACHED, PitchSettings, PitchTracker, Resampler, SampleRows, Starts, mel,
};
use tandem_device::{Arena, ArenaSpec, Block, Device, DeviceKind, Element, Machine, SimSpec, Stream};
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
on_every_device!(log_mel_and_energy_of_ragged_rows_in_two_floats);
on_every_device!(log_mel_of_hostile_clips_in_two_floats);
on_every_device!(log_mel_and_energy_of_presets);
on_every_device!(log_mel_and_energy_of_other_sizes);
on_every_device!(padding_with_a_top_range_is_silence_beside_the_row);
on_every_device!(pitch_is_the_trackers);
on_every_device!(pitch_with_other_frames_is_the_trackers);
on_every_device!(kept_pitch_is_not_looked_for_again);
on_every_device!(resampling_gives_the_same_bits);
on_every_device!(tables_take_what_was_said_and_launching_nothing);
on_every_device!(sizes_that_do_not_fit_are_refused);

/// A device with features on it.
struct Fixture {
    kind: DeviceKind,
    machine: Machine,
    device: Device,
    arena: Arena,
    stream: Stream,
    settings: FeatureSettings,
    features: DeviceFeatures,
}

impl Fixture {
    fn new(machine: &Machine) -> Fixture {
        Fixture::with(machine, FeatureSettings::default())
    }

    fn in_two_floats(machine: &Machine) -> Fixture {
        Fixture::with(machine, FeatureSettings { arithmetic: Arithmetic::TwoFloat, ..FeatureSettings::default() })
    }

    fn with(machine: &Machine, settings: FeatureSettings) -> Fixture {
        let device = machine.open(0).unwrap();
        let spec = ArenaSpec {
            role: Role::Data,
            limit_bytes: 192 * MIB,
            driver_bytes: 64 * MIB,
            arena_bytes: 128 * MIB,
            peer_bytes: 0,
            capped: false,
        };
        let arena = Arena::reserve(&device, spec).unwrap();
        let stream = device.stream(false).unwrap();
        let pitch = PitchSettings::default();
        let features = DeviceFeatures::create(&device, &arena, &stream, &settings, &pitch, &RATES_HZ).unwrap();
        Fixture { kind: machine.kind(), machine: machine.clone(), device, arena, stream, settings, features }
    }

    fn up<T: Element>(&self, data: &[T]) -> Block {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let block = self.arena.take("input", bytes.len() as u64).unwrap();
        let mut host = self.device.pinned(bytes.len() as u64).unwrap();
        host.bytes_mut().unwrap().copy_from_slice(bytes);
        self.stream.upload(&host, 0..bytes.len() as u64, block.view()).unwrap();
        block
    }

    /// Frames of a row of so many samples.
    fn frames_of(&self, num_samples: usize) -> usize {
        if num_samples < self.settings.min_samples() { 0 } else { self.settings.num_frames(num_samples) }
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

/// Where rows begin, here and on the device.
struct Table {
    host: Vec<u32>,
    device: Block,
}

impl Table {
    fn new(fixture: &Fixture, sizes: impl IntoIterator<Item = usize>) -> Table {
        let mut host = vec![0];
        for size in sizes {
            host.push(host[host.len() - 1] + size as u32);
        }
        Table { device: fixture.up(&host), host }
    }

    fn starts(&self) -> Starts<'_> {
        Starts { host: &self.host, device: self.device.view() }
    }

    fn row(&self, row: usize) -> std::ops::Range<usize> {
        self.host[row] as usize..self.host[row + 1] as usize
    }

    fn sum(&self) -> usize {
        self.host[self.host.len() - 1] as usize
    }
}

/// Rows of clips on a device.
struct Batch {
    samples: Block,
    starts: Table,
    lengths: Block,
}

impl Batch {
    /// Each row has some room to spare, another amount each. Between a row's end and the next one's start lies
    /// something loud.
    fn new(fixture: &Fixture, clips: &[Vec<i16>], spare: impl Fn(usize) -> usize) -> Batch {
        let starts = Table::new(fixture, clips.iter().enumerate().map(|(row, clip)| clip.len() + spare(row)));
        let mut samples = vec![i16::MIN; starts.sum()];
        for (row, clip) in clips.iter().enumerate() {
            samples[starts.row(row)][..clip.len()].copy_from_slice(clip);
        }
        let lengths: Vec<u32> = clips.iter().map(|clip| clip.len() as u32).collect();
        Batch { samples: fixture.up(&samples), starts, lengths: fixture.up(&lengths) }
    }

    fn rows(&self) -> SampleRows<'_> {
        SampleRows { samples: self.samples.view(), starts: self.starts.starts(), lengths: self.lengths.view() }
    }
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
    // Around the shortest clips of other framings.
    clips.extend([199, 200, 201, 512, 513, 1024, 1025].map(|num_samples| made(num_samples, |_| 4000.0 * noise())));
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
    // The Nyquist frequency, a tone and a constant of one step, one step once, two frames, and both extremes by turns.
    let alternating = |low: f64, high: f64| move |i: f64| if i % 2.0 == 0.0 { high } else { low };
    clips.extend([made(9000, alternating(-32_767.0, 32_767.0)), made(9000, tone(300.0, 1.0)), made(9000, |_| 1.0)]);
    clips.push(made(9000, |i| if i == 4500.0 { 1.0 } else { 0.0 }));
    clips.extend([made(512, tone(440.0, 32_767.0)), made(9000, alternating(-32_768.0, 32_767.0))]);
    clips.push(common::i16s("speech")[..9000].to_vec());
    clips.push(common::i16s("tones")[..9000].to_vec());
    clips
}

/// The log-mel frames of `clip` in a row with room for `room` frames, and the value of its padding: the CPU's logarithms and
/// the steps after them, written once more.
fn expected_row(settings: &FeatureSettings, clip: &Clip, room: usize) -> (Vec<f32>, f32) {
    let plain = FeatureSettings { top_range: None, shift: 0.0, scale: 1.0, ..settings.clone() };
    let mut logs = MelFrames::default();
    _ = LogMel::new(&plain).unwrap().mel_into(clip, &mut logs);
    logs.values.truncate(room * settings.n_mels);
    let maximum = logs.values.iter().copied().fold(plain.silence(), f32::max);
    let lowest = settings.top_range.map_or(f32::NEG_INFINITY, |range| maximum - range as f32);
    let value = |log: f32| (log.max(lowest) + settings.shift as f32) * settings.scale as f32;
    (logs.values.iter().map(|&log| value(log)).collect(), value(plain.silence()))
}

/// Log-mel and energy of `clips` with `frames_of` frames in each row, compared with the CPU path or the reference.
fn check_log_mel(
    fixture: &Fixture,
    clips: &[Vec<i16>],
    spare: impl Fn(usize) -> usize,
    frames_of: impl Fn(usize, usize) -> usize,
) {
    let settings = &fixture.settings;
    let n_mels = settings.n_mels;
    let batch = Batch::new(fixture, clips, spare);
    let sizes = clips.iter().enumerate().map(|(row, clip)| frames_of(row, fixture.frames_of(clip.len())));
    let frames = Table::new(fixture, sizes);
    let run = |with_energy: bool| {
        let (mel, energy) = (fixture.poisoned::<f32>(frames.sum() * n_mels), fixture.poisoned::<f32>(frames.sum()));
        let wanted = with_energy.then(|| energy.view());
        fixture.features.log_mel(&fixture.stream, batch.rows(), frames.starts(), mel.view(), wanted).unwrap();
        (fixture.down::<f32>(&mel), fixture.down::<f32>(&energy))
    };
    let (found, energies) = run(true);
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let (again, untouched) = run(false);
    assert!(bits(&found) == bits(&again), "another run gave other bits");
    assert!(untouched.iter().all(|x| x.to_bits() == u32::MAX), "energy was written that nobody asked for");

    let mut log_mel = LogMel::new(settings).unwrap();
    let (mut cpu, mut cpu_energy) = (MelFrames::default(), Vec::new());
    let same_bits = fixture.kind != DeviceKind::Cuda || settings.arithmetic == Arithmetic::TwoFloat;
    for (row, samples) in clips.iter().enumerate() {
        let clip = Clip { samples: samples.clone(), rate_hz: settings.rate_hz };
        let place = frames.row(row);
        let (expected, silence) = expected_row(settings, &clip, place.len());
        let own = expected.len() / n_mels;
        let (found, padding) = found[place.start * n_mels..place.end * n_mels].split_at(own * n_mels);
        let (energies, no_energy) = energies[place.clone()].split_at(own);
        assert!(no_energy.iter().all(|x| x.to_bits() == 0), "row {row}");
        // With a top range it depends on the row's maximum, which has its own last bit on a card.
        let is_silence = |x: &f32| match same_bits || settings.top_range.is_none() {
            true => x.to_bits() == silence.to_bits(),
            false => (x - silence).abs() < 1e-4,
        };
        assert!(padding.iter().all(is_silence), "row {row}: {silence}");
        let all = if log_mel.mel_energy_into(&clip, &mut cpu, &mut cpu_energy).is_ok() { cpu.num_frames() } else { 0 };
        assert_eq!((all, all.min(place.len())), (fixture.frames_of(clip.samples.len()), own));
        if same_bits {
            assert!(bits(found) == bits(&expected), "row {row}");
            assert!(bits(energies) == bits(&cpu_energy[..own]), "row {row}");
        }
        if own > 0 && (own == all || settings.top_range.is_none()) {
            assert!(bits(&expected) == bits(&cpu.values[..own * n_mels]), "row {row}");
            let reference = mel::reference(&clip, settings).unwrap();
            for (i, (&found, reference)) in found.iter().zip(reference).enumerate() {
                let over = common::of_the_bound(settings, found, reference);
                assert!(over <= 1.0, "row {row} frame {} band {}: {found} for {reference}", i / n_mels, i % n_mels);
            }
        } else {
            let near = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-3;
            assert!(found.iter().zip(&expected).all(near), "row {row}");
        }
        for (i, (found, expected)) in energies.iter().zip(&cpu_energy).enumerate() {
            assert!((found - expected).abs() <= 1e-5 * expected, "row {row} frame {i}: {found} for {expected}");
        }
    }
}

fn log_mel_and_energy_of_ragged_rows(machine: &Machine) {
    check_ragged_rows(&Fixture::new(machine));
}

fn log_mel_and_energy_of_ragged_rows_in_two_floats(machine: &Machine) {
    check_ragged_rows(&Fixture::in_two_floats(machine));
}

fn check_ragged_rows(fixture: &Fixture) {
    let clips = ragged();
    let whole = |own: usize| own.next_multiple_of(8);
    // Rows at odd samples; just enough frames for each.
    check_log_mel(fixture, &clips, |row| row * 37 % 61, |_, own| whole(own));
    // More than enough, another number each; fewer than a row has, or none at all.
    check_log_mel(fixture, &clips, |_| 0, |row, own| whole(own) + row % 3 * 8);
    check_log_mel(fixture, &clips, |_| 8, |row, own| own / 8 * 8 * (row % 2));
    check_log_mel(fixture, &clips[9..10], |_| 0, |_, own| whole(own));
    // All alike, and more rows than a warp looks at in one go.
    check_log_mel(fixture, &clips, |_| 100, |_, _| 24);
    let many: Vec<Vec<i16>> = (0..70).map(|row| clips[row % clips.len()].clone()).collect();
    check_log_mel(fixture, &many, |row| row % 5, |row, own| if row % 9 == 4 { 0 } else { whole(own) });
}

fn log_mel_of_hostile_clips(machine: &Machine) {
    check_log_mel(&Fixture::new(machine), &hostile(), |_| 1, |_, _| 40);
}

fn log_mel_of_hostile_clips_in_two_floats(machine: &Machine) {
    check_log_mel(&Fixture::in_two_floats(machine), &hostile(), |_| 1, |_, _| 40);
}

/// The presets that have no kernels of their own.
fn other_presets() -> impl Iterator<Item = FeatureSettings> {
    FeaturePreset::ALL.into_iter().filter(|preset| *preset != FeaturePreset::Tandem).map(FeaturePreset::settings)
}

/// Transforms of other sizes, odd hops, and windows that are shorter than the transform.
fn other_sizes() -> impl Iterator<Item = FeatureSettings> {
    let sizes = [(400, 400, 161), (480, 399, 120), (600, 300, 599), (1536, 1536, 385), (2048, 1200, 255)];
    let framings = Framing::ALL.into_iter().cycle().skip(1);
    sizes.into_iter().zip(framings).map(|((n_fft, win_samples, hop_samples), framing)| {
        // Padding for hops needs an even one.
        let hop_samples = if framing == Framing::Hop { hop_samples / 2 * 2 } else { hop_samples };
        FeatureSettings { n_fft, win_samples, hop_samples, framing, n_mels: 40, ..FeatureSettings::default() }
    })
}

fn log_mel_and_energy_of_presets(machine: &Machine) {
    for settings in other_presets() {
        let fixture = Fixture::with(machine, settings);
        check_ragged_rows(&fixture);
        let longest = fixture.frames_of(9000).next_multiple_of(8);
        check_log_mel(&fixture, &hostile(), |_| 1, |_, _| longest);
    }
}

fn log_mel_and_energy_of_other_sizes(machine: &Machine) {
    for settings in other_sizes() {
        let fixture = Fixture::with(machine, settings);
        let whole = |own: usize| own.next_multiple_of(8);
        check_log_mel(&fixture, &ragged(), |row| row * 37 % 61, |row, own| whole(own) + row % 3 * 8);
    }
}

fn padding_with_a_top_range_is_silence_beside_the_row(machine: &Machine) {
    let fixture = Fixture::with(machine, FeaturePreset::Whisper.settings());
    // Silent, too short for a frame, soft and loud: the largest logarithm of the last is more than 8 above the floor.
    let clips = [vec![0; 1600], vec![9000; 200], made(1600, |_| 1.0), made(1600, tone(440.0, 32_767.0))];
    let (batch, frames) = (Batch::new(&fixture, &clips, |_| 0), Table::new(&fixture, [16; 4]));
    let mel = fixture.poisoned::<f32>(frames.sum() * 80);
    fixture.features.log_mel(&fixture.stream, batch.rows(), frames.starts(), mel.view(), None).unwrap();
    let found = fixture.down::<f32>(&mel);
    let padding = |row: usize| found[(16 * row + 10) * 80..16 * (row + 1) * 80].to_vec();
    assert!(padding(0).iter().chain(&padding(1)).all(|&x| x == -1.5), "silence is (log10(1e-10) + 4) / 4");
    let maximum = |row: usize| found[16 * row * 80..(16 * row + 10) * 80].iter().copied().fold(f32::MIN, f32::max);
    assert!(padding(2).iter().all(|&x| x == -1.5) && maximum(2) < 0.5);
    assert!(padding(3).iter().all(|&x| (x - (maximum(3) - 2.0)).abs() < 1e-6 && x > -1.0), "{:?}", padding(3)[0]);
}

fn pitch_is_the_trackers(machine: &Machine) {
    check_pitch(&Fixture::new(machine), 50);
}

fn pitch_with_other_frames_is_the_trackers(machine: &Machine) {
    for settings in other_presets().chain(other_sizes()) {
        check_pitch(&Fixture::with(machine, settings), 10);
    }
}

/// Finds at least `min_voiced` frames with a pitch.
fn check_pitch(fixture: &Fixture, min_voiced: usize) {
    let clips: Vec<Vec<i16>> = ragged().into_iter().chain(hostile()).chain([common::i16s("speech")]).collect();
    let batch = Batch::new(fixture, &clips, |row| row % 4);
    let sizes = clips.iter().enumerate().map(|(row, clip)| fixture.frames_of(clip.len()) + row % 3 * 4);
    let frames = Table::new(fixture, sizes);
    let out = fixture.poisoned::<f32>(frames.sum());
    fixture.features.pitch(&fixture.stream, batch.rows(), frames.starts(), out.view(), None).unwrap();
    let found = fixture.down::<f32>(&out);

    let mut tracker = PitchTracker::new(&fixture.settings, &PitchSettings::default()).unwrap();
    let (mut expected, mut voiced, mut other) = (Vec::new(), 0, 0);
    for (row, samples) in clips.into_iter().enumerate() {
        // A refused clip leaves no frames, or those of the one before: there are none to compare either way.
        if tracker.pitch_into(&Clip { samples, rate_hz: fixture.settings.rate_hz }, &mut expected).is_err() {
            expected.clear();
        }
        let place = frames.row(row);
        let own = expected.len().min(place.len());
        let (found, padding) = found[place].split_at(own);
        assert!(padding.iter().all(|x| x.to_bits() == 0), "row {row}");
        voiced += found.iter().filter(|&&hz| hz > 0.0).count();
        if fixture.kind == DeviceKind::Cuda {
            let agrees = |(found, expected): (&f32, &f32)| (found - expected).abs() <= 1e-3 * expected;
            other += found.iter().zip(&expected).filter(|pair| !agrees(*pair)).count();
        } else {
            assert!(found == &expected[..own], "row {row}");
        }
    }
    assert!(voiced > min_voiced, "{voiced}");
    println!("{other} frames differ from the CPU's, {voiced} are voiced");
    // Only a frame within a rounding of a threshold may fall to the other side.
    assert!(other <= 1, "{other}");
}

fn kept_pitch_is_not_looked_for_again(machine: &Machine) {
    let fixture = Fixture::new(machine);
    let hum = |hz: f64| made(9000, |i| 8000.0 * (i * hz * std::f64::consts::TAU / 22_050.0).sin());
    let frames = Table::new(&fixture, [40; 3]);
    // The last row has no place; the memory is longer than what is cached in it.
    let (offsets, memory) = (fixture.up(&[100, 0, NOT_CACHED]), fixture.poisoned::<f32>(150));
    let pitch = |rows: [f64; 3], cached: bool| {
        let batch = Batch::new(&fixture, &rows.map(hum), |_| 0);
        let out = fixture.poisoned::<f32>(frames.sum());
        let cached = cached.then(|| CachedPitch { offsets: offsets.view(), memory: memory.view() });
        fixture.features.pitch(&fixture.stream, batch.rows(), frames.starts(), out.view(), cached).unwrap();
        fixture.down::<f32>(&out)
    };
    let (low, high) = (pitch([120.0, 150.0, 180.0], false), pitch([220.0, 250.0, 280.0], false));
    assert!(low.iter().zip(&high).any(|(low, high)| low != high));
    assert_eq!(pitch([120.0, 150.0, 180.0], true), low, "at first everything is looked for");
    let second = pitch([220.0, 250.0, 280.0], true);
    assert_eq!((&second[..80], &second[80..]), (&low[..80], &high[80..]), "and then what has no place");
    let own = 9000 / 256;
    let cached = fixture.down::<f32>(&memory);
    assert_eq!((&cached[100..100 + own], &cached[..own]), (&low[..own], &low[40..40 + own]));
    let untouched = cached[own..100].iter().chain(&cached[100 + own..]);
    assert!(untouched.into_iter().all(|x| x.to_bits() == u32::MAX), "padding is not cached");
}

fn resampling_gives_the_same_bits(machine: &Machine) {
    let fixture = Fixture::new(machine);
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
    let (batch, rates) = (Batch::new(&fixture, &clips, |row| row % 3), fixture.up(&rates));
    let whole = |len: usize| len.next_multiple_of(256);
    let check = |room: &dyn Fn(usize) -> usize, wanted: &dyn Fn(usize) -> usize| {
        let starts = Table::new(&fixture, expected.iter().map(|row| room(row.len())));
        let lengths: Vec<u32> = expected.iter().map(|row| wanted(row.len()) as u32).collect();
        let (out_lengths, out) = (fixture.up(&lengths), fixture.poisoned::<i16>(starts.sum()));
        let to = SampleRows { samples: out.view(), starts: starts.starts(), lengths: out_lengths.view() };
        fixture.features.resample(&fixture.stream, batch.rows(), rates.view(), to).unwrap();
        let found = fixture.down::<i16>(&out);
        for (row, expected) in expected.iter().enumerate() {
            let found = &found[starts.row(row)];
            let own = expected.len().min(lengths[row] as usize).min(found.len());
            assert!(found[..own] == expected[..own], "row {row}");
            assert!(found[own..].iter().all(|&x| x == 0), "row {row}");
        }
    };
    // As much as there is; less of it, by what is asked for and by what there is room for; more than the ratio gives.
    check(&whole, &|len| len);
    check(&whole, &|_| 501);
    check(&|len| len / 512 * 256, &|len| len);
    check(&|len| whole(len) + 512, &|_| 100_000);
}

fn tables_take_what_was_said_and_launching_nothing(machine: &Machine) {
    let fixture = Fixture::new(machine);
    let said = DeviceFeatures::table_bytes(&FeatureSettings::default(), &RATES_HZ).unwrap();
    assert_eq!(fixture.arena.memory().used_bytes, 64 * MIB + said);
    let (batch, frames) = (Batch::new(&fixture, &ragged()[..12], |_| 7), Table::new(&fixture, [24; 12]));
    let (mel, energy) = (fixture.poisoned::<f32>(12 * 24 * 80), fixture.poisoned::<f32>(12 * 24));
    let pitch = fixture.poisoned::<f32>(12 * 24);
    let none = Table::new(&fixture, [0; 12]);
    let before = (fixture.machine.counters(0), fixture.arena.memory());
    fixture.features.log_mel(&fixture.stream, batch.rows(), frames.starts(), mel.view(), Some(energy.view())).unwrap();
    fixture.features.pitch(&fixture.stream, batch.rows(), frames.starts(), pitch.view(), None).unwrap();
    fixture.stream.drain().unwrap();
    let after = (fixture.machine.counters(0), fixture.arena.memory());
    assert_eq!(before.0.allocations, after.0.allocations);
    assert_eq!(before.0.pinned_allocations, after.0.pinned_allocations);
    assert_eq!(before.1, after.1);
    for settings in other_presets().chain(other_sizes()) {
        let said = DeviceFeatures::table_bytes(&settings, &RATES_HZ).unwrap();
        assert_eq!(Fixture::with(machine, settings).arena.memory().used_bytes, 64 * MIB + said);
    }
    // Nothing to do is nothing to launch.
    fixture.features.pitch(&fixture.stream, batch.rows(), none.starts(), pitch.view(), None).unwrap();
}

fn sizes_that_do_not_fit_are_refused(machine: &Machine) {
    let fixture = Fixture::new(machine);
    let batch = Batch::new(&fixture, &[vec![0; 1000], vec![0; 1000]], |_| 0);
    let (out, short) = (fixture.poisoned::<f32>(16 * 80), fixture.up(&[1000_u32]));
    let check = |rows: SampleRows<'_>, frames: &[u32], what: &str| {
        let device = fixture.up(frames);
        let frames = Starts { host: frames, device: device.view() };
        let refused = fixture.features.log_mel(&fixture.stream, rows, frames, out.view(), None);
        let message = refused.expect_err(what).to_string();
        assert!(message.contains(what), "{message}");
    };
    let whole = || batch.rows();
    check(whole(), &[0, 8, 24], "the mel frames need 1920");
    check(whole(), &[0, 8], "the samples have 2 rows, and others 1");
    check(whole(), &[0, 8, 12], "multiples of 8");
    check(whole(), &[0, 16, 8], "in ascending order");
    check(whole(), &[8, 8, 16], "in ascending order");
    check(SampleRows { lengths: short.view(), ..whole() }, &[0, 8, 16], "the lengths need 2");
    check(SampleRows { samples: short.view(), ..whole() }, &[0, 8, 16], "the samples need 2000");
    check(
        SampleRows { starts: Starts { device: short.view(), ..whole().starts }, ..whole() },
        &[0, 8, 16],
        "the starts of",
    );
    let refusal = |settings: FeatureSettings| {
        let (device, pitch) = (&fixture.device, PitchSettings::default());
        match DeviceFeatures::create(device, &fixture.arena, &fixture.stream, &settings, &pitch, &[]) {
            Err(AudioError::Settings { what }) => what,
            _ => panic!("not refused: {settings:?}"),
        }
    };
    let what = refusal(FeatureSettings { n_fft: 1022, win_samples: 1022, ..Default::default() });
    assert!(what.ends_with("use 1000 or 1024"), "{what}");
    let what = refusal(FeatureSettings { arithmetic: Arithmetic::TwoFloat, ..FeaturePreset::Whisper.settings() });
    assert!(what.contains("two-float supports"), "{what}");
}
