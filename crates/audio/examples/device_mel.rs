//! How long features of a batch take on an NVIDIA card, by the card's own clock.
//!
//!     cargo run --release -p tandem-audio --example device_mel [-- ROUNDS]
//!
//! Prints the median, the fastest and the slowest of some launches after a warm-up, and how many hours of sound a
//! second of the card makes features of.
#![expect(clippy::print_stdout, reason = "an example prints what it found")]

use std::error::Error;

use tandem_audio::{AudioError, BatchShape, DeviceFeatures, FeatureSettings, PitchSettings, Rows};
use tandem_device::{Arena, ArenaSpec, Block, Device, DeviceError, Machine, Stream};
use tandem_events::Role;

const MIB: u64 = 1 << 20;
const ARENA_BYTES: u64 = 1024 * MIB;
const WARM_UP: usize = 10;

fn main() -> Result<(), Box<dyn Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(50), |rounds| rounds.parse())?;
    let machine = Machine::cuda()?.ok_or("no NVIDIA card here")?;
    let device = machine.open(0)?;
    println!("{}, driver {}; median of {rounds}", device.card(), machine.driver_version());
    let bench = Bench::new(&device, rounds)?;
    for (rows, seconds) in [(512, 8.0), (8, 8.0), (32, 6.5)] {
        bench.features(rows, seconds)?;
    }
    for rate_hz in RATES_HZ {
        bench.resample(32, 6.5, rate_hz)?;
    }
    Ok(())
}

const RATES_HZ: [u32; 4] = [16_000, 24_000, 44_100, 48_000];

struct Bench {
    device: Device,
    arena: Arena,
    stream: Stream,
    features: DeviceFeatures,
    rounds: usize,
}

impl Bench {
    fn new(device: &Device, rounds: usize) -> Result<Bench, AudioError> {
        let spec = ArenaSpec {
            role: Role::Data,
            limit_bytes: ARENA_BYTES,
            driver_bytes: 0,
            arena_bytes: ARENA_BYTES,
            capped: false,
        };
        let arena = Arena::reserve(device, spec)?;
        let stream = device.stream(false)?;
        let (settings, pitch) = (FeatureSettings::default(), PitchSettings::default());
        let features = DeviceFeatures::create(device, &arena, &stream, &settings, &pitch, &RATES_HZ)?;
        Ok(Bench { device: device.clone(), arena, stream, features, rounds })
    }

    /// Log-mel with and without energy, and pitch.
    fn features(&self, rows: u32, seconds: f64) -> Result<(), DeviceError> {
        let stride = (seconds * 22_050.0) as u32;
        let shape = BatchShape { rows, stride_samples: stride, frames: stride / 256 };
        let frames = u64::from(rows) * u64::from(shape.frames);
        let (audio, lengths) = (self.upload(&voice(rows, stride))?, self.upload(&vec![stride; rows as usize])?);
        let (mel, energy) = (self.arena.take("mel", 4 * 80 * frames)?, self.arena.take("energy", 4 * frames)?);
        let pitch = self.arena.take("pitch", 4 * frames)?;
        let hours = f64::from(rows) * seconds / 3600.0;
        let name = |what: &str| format!("{what} {rows} x {seconds} s");
        let (audio, lengths) = (audio.view(), lengths.view());
        self.report(&name("log-mel and energy"), hours, || {
            self.features.log_mel(&self.stream, shape, audio, lengths, mel.view(), Some(energy.view()))
        })?;
        self.report(&name("log-mel"), hours, || {
            self.features.log_mel(&self.stream, shape, audio, lengths, mel.view(), None)
        })?;
        self.report(&name("pitch"), hours, || self.features.pitch(&self.stream, shape, audio, lengths, pitch.view()))
    }

    fn resample(&self, rows: u32, seconds: f64, rate_hz: u32) -> Result<(), DeviceError> {
        let (stride_in, stride_out) = ((seconds * f64::from(rate_hz)) as u32, (seconds * 22_050.0) as u32);
        let rate = RATES_HZ.iter().position(|hz| *hz == rate_hz).map_or(u32::MAX, |rate| rate as u32);
        let per_row = |value: u32| self.upload(&vec![value; rows as usize]);
        let (audio, in_lengths) = (self.upload(&voice(rows, stride_in))?, per_row(stride_in)?);
        let (rates, out_lengths) = (per_row(rate)?, per_row(stride_out)?);
        let out = self.arena.take("out", 2 * u64::from(rows) * u64::from(stride_out))?;
        let from = Rows { samples: audio.view(), stride_samples: stride_in, lengths: in_lengths.view() };
        let to = Rows { samples: out.view(), stride_samples: stride_out, lengths: out_lengths.view() };
        let hours = f64::from(rows) * seconds / 3600.0;
        self.report(&format!("resample {rate_hz} Hz {rows} x {seconds} s"), hours, || {
            self.features.resample(&self.stream, rows, from, rates.view(), to)
        })
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

    fn report(&self, name: &str, hours: f64, work: impl Fn() -> Result<(), DeviceError>) -> Result<(), DeviceError> {
        let (start, end) = (self.device.timer()?, self.device.timer()?);
        let mut times_us = Vec::new();
        for round in 0..WARM_UP + self.rounds {
            self.stream.record(&start)?;
            work()?;
            self.stream.record(&end)?;
            end.synchronize("a timed launch")?;
            if round >= WARM_UP {
                times_us.push(end.ns_since(&start)? as f64 / 1000.0);
            }
        }
        times_us.sort_by(f64::total_cmp);
        let (median, fastest, slowest) = (times_us[times_us.len() / 2], times_us[0], times_us[times_us.len() - 1]);
        let hours_per_second = hours / (median * 1e-6);
        println!("{name:<34} {median:>8.1} us ({fastest:.1} to {slowest:.1})  {hours_per_second:>6.0} h/s");
        Ok(())
    }
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
