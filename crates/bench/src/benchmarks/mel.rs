//! `bench mel`: how long features of a batch take.
//!
//! On a card by its own clock: the median of many launches after a warm-up. Where the maths is the host's, the same
//! the host kernels make the features of a smaller batch, timed by the host's clock.

use std::time::Instant;

use tandem_audio::{
    Arithmetic, DeviceFeatures, FeatureSettings, PitchSettings, SampleRows, Starts, TILE_FRAMES, TILE_SAMPLES,
};
use tandem_device::{Arena, ArenaSpec, Block, Device, DeviceError, DeviceKind, Event, Stream};
use tandem_events::Role;
use tandem_feed::{FeedError, RATE_HZ};

use super::{BenchContext, BenchError, Spread};

/// One thing that was timed.
#[derive(Clone, Debug)]
pub struct MelRow {
    /// What: `log-mel`, `log-mel and energy`, `pitch`, `resample 16000 Hz`; `, ragged rows` where they are, and `, two-float`
    /// in that arithmetic.
    pub work: String,
    /// Recordings of the batch.
    pub rows: u32,
    /// The length of each; of ragged rows the mean one.
    pub seconds: f64,
    /// Microseconds of a batch.
    pub us: Spread,
    /// Hours of audio a second of the device makes features of, at the median.
    pub hours_per_s: f64,
    /// Launches behind the median.
    pub rounds: usize,
    /// The median of two-float over that of f64 for the same batch; `None` for f64.
    pub over_f64: Option<f64>,
}

/// Rates that recordings often have, beside the features' own.
const RATES_HZ: [u32; 4] = [16_000, 24_000, 44_100, 48_000];
/// What the largest shape takes, tables included.
const ARENA_BYTES: u64 = 1 << 30;

/// What is timed on one kind of device.
struct Program {
    /// Recordings and seconds of log-mel batches, and whether recordings are as long as each other.
    shapes: &'static [(u32, f64, Spreads)],
    /// The batch of pitch and resampling.
    other: (u32, f64),
    warm_up: usize,
    rounds: usize,
}

const ON_CARDS: Program = Program { shapes: &ON_CARDS_SHAPES, other: (32, 6.5), warm_up: 10, rounds: 50 };
const ON_CARDS_SHAPES: [(u32, f64, Spreads); 5] = [
    (512, 8.0, Spreads::Equal),
    (512, 8.0, Spreads::Ragged),
    (8, 8.0, Spreads::Equal),
    (32, 6.5, Spreads::Equal),
    (32, 6.5, Spreads::Ragged),
];
const ELSEWHERE: Program =
    Program { shapes: &[(8, 8.0, Spreads::Equal), (8, 8.0, Spreads::Ragged)], other: (8, 8.0), warm_up: 1, rounds: 3 };

/// How lengths of a batch are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spreads {
    /// All alike.
    Equal,
    /// From a quarter of the mean to a quarter less than twice it, as the rows of a shape are.
    Ragged,
}

impl Spreads {
    /// Seconds of `row` of `rows`, `mean` of them in the mean.
    fn seconds(self, mean: f64, row: u32, rows: u32) -> f64 {
        match self {
            Spreads::Equal => mean,
            Spreads::Ragged => mean * (0.25 + 1.5 * (f64::from(row) + 0.5) / f64::from(rows)),
        }
    }
}

/// Times features on the data role's device; `rounds` launches of each, or as many as that device is given usually.
pub fn measure(context: &BenchContext, rounds: Option<usize>) -> Result<Vec<MelRow>, BenchError> {
    let on_card = context.machine.kind() == DeviceKind::Cuda;
    let program = if on_card { ON_CARDS } else { ELSEWHERE };
    let rounds = rounds.unwrap_or(program.rounds);
    let bench = Bench::new(&context.machine.open(context.cards[0])?, program.warm_up, rounds)?;
    let mut found = Vec::new();
    for (rows, seconds, spreads) in program.shapes {
        bench.log_mel(*rows, *seconds, *spreads, &mut found)?;
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
    two_float: DeviceFeatures,
    timers: [Event; 2],
    warm_up: usize,
    rounds: usize,
}

impl Bench {
    fn new(device: &Device, warm_up: usize, rounds: usize) -> Result<Bench, BenchError> {
        let spec = ArenaSpec::new(Role::Data, ARENA_BYTES);
        let (arena, stream) = (Arena::reserve(device, spec)?, device.stream(false)?);
        let create = |arithmetic| {
            let (settings, pitch) = (FeatureSettings { arithmetic, ..Default::default() }, PitchSettings::default());
            DeviceFeatures::create(device, &arena, &stream, &settings, &pitch, &RATES_HZ).map_err(FeedError::from)
        };
        let (features, two_float) = (create(Arithmetic::F64)?, create(Arithmetic::TwoFloat)?);
        let timers = [device.timer()?, device.timer()?];
        Ok(Bench { device: device.clone(), arena, stream, features, two_float, timers, warm_up, rounds })
    }

    /// With energy and without; rows of one length also in two-float.
    fn log_mel(&self, rows: u32, seconds: f64, spreads: Spreads, found: &mut Vec<MelRow>) -> Result<(), DeviceError> {
        let batch = self.recordings((0..rows).map(|row| samples(spreads.seconds(seconds, row, rows), RATE_HZ)))?;
        let frames = self.frames(&batch)?;
        let mel = self.arena.take("mel", 4 * tandem_feed::MELS * frames.end())?;
        let energy = self.arena.take("energy", 4 * frames.end())?;
        let ragged = if spreads == Spreads::Ragged { ", ragged rows" } else { "" };
        for (work, energy) in [("log-mel", None), ("log-mel and energy", Some(energy.view()))] {
            let us =
                self.time(|| self.features.log_mel(&self.stream, batch.rows(), frames.starts(), mel.view(), energy))?;
            found.push(self.row(&format!("{work}{ragged}"), rows, seconds, us));
        }
        if spreads == Spreads::Equal {
            let us =
                self.time(|| self.two_float.log_mel(&self.stream, batch.rows(), frames.starts(), mel.view(), None))?;
            let f64 = found[found.len() - 2].us.median;
            let row = self.row("log-mel, two-float", rows, seconds, us);
            found.push(MelRow { over_f64: Some(row.us.median / f64.max(1e-3)), ..row });
        }
        Ok(())
    }

    fn pitch(&self, rows: u32, seconds: f64, found: &mut Vec<MelRow>) -> Result<(), DeviceError> {
        let batch = self.recordings((0..rows).map(|_| samples(seconds, RATE_HZ)))?;
        let frames = self.frames(&batch)?;
        let pitch = self.arena.take("pitch", 4 * frames.end())?;
        let us = self.time(|| self.features.pitch(&self.stream, batch.rows(), frames.starts(), pitch.view(), None))?;
        found.push(self.row("pitch", rows, seconds, us));
        Ok(())
    }

    fn resample(&self, rows: u32, seconds: f64, rate_hz: u32, found: &mut Vec<MelRow>) -> Result<(), DeviceError> {
        let rate = RATES_HZ.iter().position(|hz| *hz == rate_hz).map_or(u32::MAX, |rate| rate as u32);
        let batch = self.recordings((0..rows).map(|_| samples(seconds, rate_hz)))?;
        let wanted = samples(seconds, RATE_HZ);
        let starts = self.table((0..rows).map(|_| wanted.next_multiple_of(TILE_SAMPLES)))?;
        let per_row = |value: u32| self.upload(&vec![value; rows as usize]);
        let (rates, lengths) = (per_row(rate)?, per_row(wanted)?);
        let out = self.arena.take("resampled", 2 * starts.end())?;
        let to = SampleRows { samples: out.view(), starts: starts.starts(), lengths: lengths.view() };
        let us = self.time(|| self.features.resample(&self.stream, batch.rows(), rates.view(), to))?;
        found.push(self.row(&format!("resample {rate_hz} Hz"), rows, seconds, us));
        Ok(())
    }

    /// Recordings of so many samples each.
    fn recordings(&self, lengths: impl Iterator<Item = u32>) -> Result<Recordings, DeviceError> {
        let lengths: Vec<u32> = lengths.collect();
        let starts = self.table(lengths.iter().map(|length| length.next_multiple_of(8)))?;
        let samples = self.upload(&voice(starts.end()))?;
        Ok(Recordings { samples, starts, lengths: self.upload(&lengths)? })
    }

    /// The frames of those, in whole tiles.
    fn frames(&self, of: &Recordings) -> Result<Table, DeviceError> {
        let rooms = of.starts.host.windows(2).map(|pair| pair[1] - pair[0]);
        let hop_samples = tandem_feed::HOP_SAMPLES as u32;
        self.table(rooms.map(|samples| (samples / hop_samples).next_multiple_of(TILE_FRAMES)))
    }

    fn table(&self, sizes: impl Iterator<Item = u32>) -> Result<Table, DeviceError> {
        let mut host = vec![0];
        let mut end = 0;
        host.extend(sizes.map(|size| {
            end += size;
            end
        }));
        Ok(Table { device: self.upload(&host)?, host })
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
            DeviceKind::Cuda => Ok(end.ns_since(start)? as f64 / 1e3),
            // A simulated card's clock tells what was made up; here the host's work is the figure.
            DeviceKind::Cpu | DeviceKind::Simulated => Ok(began.elapsed().as_nanos() as f64 / 1e3),
        }
    }

    fn row(&self, work: &str, rows: u32, seconds: f64, us: Spread) -> MelRow {
        let hours = f64::from(rows) * seconds / 3600.0;
        let hours_per_s = hours / (us.median.max(1e-3) * 1e-6);
        MelRow { work: work.to_owned(), rows, seconds, us, hours_per_s, rounds: self.rounds, over_f64: None }
    }
}

fn samples(seconds: f64, rate_hz: u32) -> u32 {
    (seconds * f64::from(rate_hz)) as u32
}

/// Where rows begin.
struct Table {
    host: Vec<u32>,
    device: Block,
}

impl Table {
    fn starts(&self) -> Starts<'_> {
        Starts { host: &self.host, device: self.device.view() }
    }

    fn end(&self) -> u64 {
        self.host.last().copied().unwrap_or(0).into()
    }
}

/// Recordings on the device.
struct Recordings {
    samples: Block,
    starts: Table,
    lengths: Block,
}

impl Recordings {
    fn rows(&self) -> SampleRows<'_> {
        SampleRows { samples: self.samples.view(), starts: self.starts.starts(), lengths: self.lengths.view() }
    }
}

/// Something between a voice and noise.
fn voice(num_samples: u64) -> Vec<i16> {
    let mut state = 1_u32;
    let at = move |i: u64| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let noise = f64::from(state >> 16) - 32_768.0;
        let t = i as f64 / 22_050.0;
        (6000.0 * (900.0 * t).sin() + 3000.0 * (1800.0 * t).sin() + 0.05 * noise) as i16
    };
    (0..num_samples).map(at).collect()
}
