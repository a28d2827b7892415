//! `bench mel`: how long features of a batch take.
//!
//! On a card by its own clock: the median of many launches after a warm-up. Where the maths is the host's, the same
//! features are made by the kernels' twins, for a smaller batch, by the host's clock.

use std::time::Instant;

use tandem_audio::{BatchShape, DeviceFeatures, FeatureSettings, PitchSettings, Rows};
use tandem_device::{Arena, ArenaSpec, Block, Device, DeviceError, Event, Kind, Stream};
use tandem_events::Role;
use tandem_feed::{FeedError, RATE_HZ};

use super::{BenchError, BenchSite, Spread};

/// One thing that was timed.
#[derive(Clone, Debug)]
pub struct MelRow {
    /// What: `log-mel`, `log-mel and energy`, `pitch`, `resample 16000 Hz`.
    pub work: String,
    /// Recordings of the batch.
    pub rows: u32,
    /// The length of each.
    pub seconds: f64,
    /// Microseconds of a batch.
    pub us: Spread,
    /// Hours of audio a second of the device makes features of, at the median.
    pub hours_per_s: f64,
    /// Launches behind the median.
    pub rounds: usize,
}

/// Rates that recordings often have, beside the features' own.
const RATES_HZ: [u32; 4] = [16_000, 24_000, 44_100, 48_000];
/// What the largest shape takes, tables included.
const ARENA_BYTES: u64 = 1 << 30;

/// What is timed on one kind of device.
struct Program {
    /// Recordings and seconds of log-mel batches.
    shapes: &'static [(u32, f64)],
    /// The batch of pitch and resampling.
    other: (u32, f64),
    warm_up: usize,
    rounds: usize,
}

const ON_CARDS: Program =
    Program { shapes: &[(512, 8.0), (8, 8.0), (32, 6.5)], other: (32, 6.5), warm_up: 10, rounds: 50 };
const ELSEWHERE: Program = Program { shapes: &[(8, 8.0)], other: (8, 8.0), warm_up: 1, rounds: 3 };

/// Times features on the data role's device; `rounds` launches of each, or as many as that device is given usually.
pub fn measure(site: &BenchSite, rounds: Option<usize>) -> Result<Vec<MelRow>, BenchError> {
    let on_card = site.machine.kind() == Kind::Cuda;
    let program = if on_card { ON_CARDS } else { ELSEWHERE };
    let rounds = rounds.unwrap_or(program.rounds);
    let bench = Bench::new(&site.machine.open(site.cards[0])?, program.warm_up, rounds)?;
    let mut found = Vec::new();
    for (rows, seconds) in program.shapes {
        bench.log_mel(*rows, *seconds, &mut found)?;
    }
    let (rows, seconds) = program.other;
    bench.pitch(rows, seconds, &mut found)?;
    for rate_hz in RATES_HZ {
        bench.resample(rows, seconds, rate_hz, &mut found)?;
    }
    Ok(found)
}

struct Bench {
    device: Device,
    arena: Arena,
    stream: Stream,
    features: DeviceFeatures,
    timers: [Event; 2],
    warm_up: usize,
    rounds: usize,
}

impl Bench {
    fn new(device: &Device, warm_up: usize, rounds: usize) -> Result<Bench, BenchError> {
        let spec = ArenaSpec {
            role: Role::Data,
            limit_bytes: ARENA_BYTES,
            driver_bytes: 0,
            arena_bytes: ARENA_BYTES,
            capped: false,
        };
        let (arena, stream) = (Arena::reserve(device, spec)?, device.stream(false)?);
        let (settings, pitch) = (FeatureSettings::default(), PitchSettings::default());
        let features = DeviceFeatures::create(device, &arena, &stream, &settings, &pitch, &RATES_HZ);
        let features = features.map_err(FeedError::from)?;
        let timers = [device.timer()?, device.timer()?];
        Ok(Bench { device: device.clone(), arena, stream, features, timers, warm_up, rounds })
    }

    /// With energy and without.
    fn log_mel(&self, rows: u32, seconds: f64, found: &mut Vec<MelRow>) -> Result<(), DeviceError> {
        let shape = shape(rows, seconds);
        let frames = u64::from(rows) * u64::from(shape.frames);
        let (audio, lengths) = self.recordings(rows, shape.stride_samples)?;
        let mel = self.arena.take("mel", 4 * tandem_feed::MELS * frames)?;
        let energy = self.arena.take("energy", 4 * frames)?;
        for (work, energy) in [("log-mel", None), ("log-mel and energy", Some(energy.view()))] {
            let us = self.time(|| {
                self.features.log_mel(&self.stream, shape, audio.view(), lengths.view(), mel.view(), energy)
            })?;
            found.push(self.row(work, rows, seconds, us));
        }
        Ok(())
    }

    fn pitch(&self, rows: u32, seconds: f64, found: &mut Vec<MelRow>) -> Result<(), DeviceError> {
        let shape = shape(rows, seconds);
        let (audio, lengths) = self.recordings(rows, shape.stride_samples)?;
        let pitch = self.arena.take("pitch", 4 * u64::from(rows) * u64::from(shape.frames))?;
        let (audio, lengths) = (audio.view(), lengths.view());
        let us = self.time(|| self.features.pitch(&self.stream, shape, audio, lengths, pitch.view()))?;
        found.push(self.row("pitch", rows, seconds, us));
        Ok(())
    }

    fn resample(&self, rows: u32, seconds: f64, rate_hz: u32, found: &mut Vec<MelRow>) -> Result<(), DeviceError> {
        let (stride_in, stride_out) = (samples(seconds, rate_hz), samples(seconds, RATE_HZ));
        let rate = RATES_HZ.iter().position(|hz| *hz == rate_hz).map_or(u32::MAX, |rate| rate as u32);
        let per_row = |value: u32| self.upload(&vec![value; rows as usize]);
        let (audio, in_lengths) = self.recordings(rows, stride_in)?;
        let (rates, out_lengths) = (per_row(rate)?, per_row(stride_out)?);
        let out = self.arena.take("resampled", 2 * u64::from(rows) * u64::from(stride_out))?;
        let from = Rows { samples: audio.view(), stride_samples: stride_in, lengths: in_lengths.view() };
        let to = Rows { samples: out.view(), stride_samples: stride_out, lengths: out_lengths.view() };
        let us = self.time(|| self.features.resample(&self.stream, rows, from, rates.view(), to))?;
        found.push(self.row(&format!("resample {rate_hz} Hz"), rows, seconds, us));
        Ok(())
    }

    /// `rows` recordings of `stride` samples each, and their lengths.
    fn recordings(&self, rows: u32, stride: u32) -> Result<(Block, Block), DeviceError> {
        Ok((self.upload(&voice(rows, stride))?, self.upload(&vec![stride; rows as usize])?))
    }

    fn upload<T: tandem_device::Element>(&self, data: &[T]) -> Result<Block, DeviceError> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let block = self.arena.take("input", bytes.len() as u64)?;
        let mut host = self.device.pinned(bytes.len() as u64)?;
        host.bytes_mut()?.copy_from_slice(bytes);
        self.stream.upload(&host, 0..bytes.len() as u64, block.view())?;
        self.stream.drain()?;
        Ok(block)
    }

    /// Microseconds of `work`, many times.
    fn time(&self, work: impl Fn() -> Result<(), DeviceError>) -> Result<Spread, DeviceError> {
        let mut times_us = Vec::with_capacity(self.rounds);
        for round in 0..self.warm_up + self.rounds {
            let us = self.time_once(&work)?;
            if round >= self.warm_up {
                times_us.push(us);
            }
        }
        Ok(Spread::of(times_us))
    }

    fn time_once(&self, work: &dyn Fn() -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
        let [start, end] = &self.timers;
        let began = Instant::now();
        self.stream.record(start)?;
        work()?;
        self.stream.record(end)?;
        self.stream.drain()?;
        match self.device.machine().kind() {
            Kind::Cuda => Ok(end.ns_since(start)? as f64 / 1e3),
            // A simulated card's clock tells what was made up; here the host's work is the figure.
            Kind::Cpu | Kind::Simulated => Ok(began.elapsed().as_nanos() as f64 / 1e3),
        }
    }

    fn row(&self, work: &str, rows: u32, seconds: f64, us: Spread) -> MelRow {
        let hours = f64::from(rows) * seconds / 3600.0;
        let hours_per_s = hours / (us.median.max(1e-3) * 1e-6);
        MelRow { work: work.to_owned(), rows, seconds, us, hours_per_s, rounds: self.rounds }
    }
}

fn samples(seconds: f64, rate_hz: u32) -> u32 {
    (seconds * f64::from(rate_hz)) as u32
}

fn shape(rows: u32, seconds: f64) -> BatchShape {
    let stride_samples = samples(seconds, RATE_HZ);
    BatchShape { rows, stride_samples, frames: stride_samples / tandem_feed::HOP_SAMPLES as u32 }
}

/// Something between a voice and noise, different in every row.
fn voice(rows: u32, num_samples: u32) -> Vec<i16> {
    let mut state = 1_u32;
    let at = move |i: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let noise = f64::from(state >> 16) - 32_768.0;
        let t = f64::from(i) / 22_050.0;
        (6000.0 * (900.0 * t).sin() + 3000.0 * (1800.0 * t).sin() + 0.05 * noise) as i16
    };
    (0..rows * num_samples).map(at).collect()
}
