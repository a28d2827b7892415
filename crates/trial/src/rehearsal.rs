//! A rehearsal of training: batches made on the data side, carried across, and stepped through on the model side.
//!
//! ```text
//! host           pinned upload ──┐
//! data stream                    └─ upload ─ make batch ──┐ written
//! copy stream(s)                                          └─ transfer ──┐ arrived
//! model stream                                                          └─ checksum ─ step ─ checksum ──┐ released
//! host                                                                                      results <───┘
//! ```
//!
//! Every arrow is an event; take any one away and a batch changes under its reader. Batch *k* is a pure function of
//! `(seed, k)`, so the host knows what both checksums of every batch must be: one when the model takes it, one when
//! the model is done with it.

use std::collections::VecDeque;

use tandem_device::kernels::{Checks, pattern_word};
use tandem_device::transfer::Measured;
use tandem_device::{Arg, Block, DeviceError, Event, Grid, Isolation, Loaded, Pinned, Route, Stream, Transfer};
use tandem_feed::Bucket;
use tandem_plan::{RESULT_BYTES, RESULT_SLOTS, StandIn as Shape};

use crate::kernels::{MAKE_BATCH, batch_word};
use crate::stand_in::StandIn;

/// The waits of a rehearsal besides those of [`tandem_device::transfer::waits`].
pub mod waits {
    /// The host writes an upload only after the last copy out of that memory.
    pub const UPLOADED: &str = "host waits for the upload to be copied";
    /// A batch is made only in memory whose last batch has been sent.
    pub const SENT: &str = "batch waits for the last one to be sent";
    /// The first step waits until the data side is full.
    pub const FILLED: &str = "the start waits for the batches to be made";
    /// With a hand-over: a batch is made only in memory the model has released.
    pub const RELEASED: &str = "batch waits for the step to release its memory";
    /// The step starts only when its batch is there.
    pub const ARRIVED: &str = "step waits for its batch";
    /// The host reads results only after they were copied.
    pub const RESULTS: &str = "host waits for the results";
}

/// What is rehearsed.
#[derive(Clone, Debug)]
pub struct RehearsalSpec {
    /// Bytes of a batch: one slot.
    pub batch_bytes: u64,
    /// Bytes that are uploaded to make it.
    pub upload_bytes: u64,
    /// Batches the data side can hold.
    pub data_slots: usize,
    /// Batches the model side can hold; not used by a hand-over.
    pub model_slots: usize,
    /// How batches cross.
    pub route: Route,
    /// Why that way.
    pub why: String,
    /// The model.
    pub model: Shape,
    /// The shape of the batches.
    pub bucket: Bucket,
    /// Decides what is in the batches.
    pub seed: u64,
    /// Holds the data and the model stream up by turns for this long, so that a missing wait shows on a real card.
    /// Must be longer than the host takes for a batch; 0 for none.
    pub delay_ns: u64,
}

/// Uploads in flight: one is written while the other is copied.
const UPLOADS: usize = 2;
/// Steps whose results the host has not read yet.
const RESULTS: usize = RESULT_SLOTS as usize;
/// Which batches are held up on which side, when delays are asked for. Two delays at once would hide each other, since
/// nobody overtakes while both sides stand still: with these, each side is at times the only one that does. Batch 1
/// holds up the start.
fn data_is_held_up(batch: u64) -> bool {
    batch == 1 || batch % 8 == 6
}

fn model_is_held_up(batch: u64) -> bool {
    batch % 5 == 2
}

/// A batch was not what was sent.
#[derive(Debug, thiserror::Error)]
pub enum RehearsalError {
    /// The device said no.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The bytes were wrong.
    #[error("batch {batch} was wrong when the step {moment}: checksum {found:#018x}, expected {expected:#018x}")]
    WrongBatch {
        /// Which.
        batch: u64,
        /// `took it` or `released it`.
        moment: &'static str,
        /// What the device computed.
        found: u64,
        /// What was sent.
        expected: u64,
    },
}

/// Everything a rehearsal needs, allocated. From here on nothing is.
pub struct Rehearsal {
    spec: RehearsalSpec,
    data: DataSide,
    transfer: Option<Transfer>,
    model: ModelSide,
    /// Batches that are made, or being made, and not stepped through yet.
    ahead: VecDeque<Made>,
    made: u64,
}

/// The data side: ready to make batches, with or without a model to take them.
pub struct DataSide {
    stream: Stream,
    checks: Checks,
    make_batch: Loaded,
    uploads: Vec<Upload>,
    slots: Vec<DataSlot>,
}

struct Upload {
    host: Pinned,
    device: Block,
    copied: Event,
}

struct DataSlot {
    memory: Block,
    written: Event,
    /// When the memory may be written again: sent, or with a hand-over released.
    free: Event,
}

/// A batch that is being made: where, and what its checksum must be.
struct Made {
    batch: u64,
    slot: usize,
    checksum: u64,
}

struct ModelSide {
    stream: Stream,
    checks: Checks,
    slots: Vec<ModelSlot>,
    model: StandIn,
    results: Vec<ResultSlot>,
}

struct ModelSlot {
    memory: Block,
    arrived: Event,
    released: Event,
}

struct ResultSlot {
    device: Block,
    host: Pinned,
    copied: Event,
    /// The batch whose checksums are on their way, and what they must be.
    due: Option<(u64, u64)>,
}

impl Rehearsal {
    /// Takes all memory of both sides and loads all kernels.
    pub fn prepare(roles: &Isolation, spec: RehearsalSpec) -> Result<Rehearsal, DeviceError> {
        let data = DataSide::create(roles, &spec)?;
        Rehearsal::join(data, roles, spec)
    }

    /// The same for a data side that stands already.
    pub fn join(data: DataSide, roles: &Isolation, spec: RehearsalSpec) -> Result<Rehearsal, DeviceError> {
        let transfer = match spec.route {
            Route::Handover => None,
            route => Some(Transfer::open(route, &spec.why, &roles.data.arena, &roles.model.arena, spec.batch_bytes)?),
        };
        let model = ModelSide::create(roles, &spec)?;
        Ok(Rehearsal { spec, data, transfer, model, ahead: VecDeque::new(), made: 0 })
    }

    /// Sends a pattern across, compares every byte, and times it. Returns what was measured, on which route, and the
    /// route's description.
    pub fn prove(&mut self) -> Result<(Measured, Route, String), DeviceError> {
        match (&mut self.transfer, self.data.slots.first(), self.model.slots.first()) {
            (Some(transfer), Some(from), Some(to)) => {
                let measured = transfer.prove(from.memory.view(), to.memory.view())?;
                Ok((measured, transfer.route(), transfer.describe()))
            }
            _ => unreachable!("a hand-over copies nothing, so there is nothing to prove"),
        }
    }

    /// Takes another way across. Nothing may be under way: before the first step, or after a proof that failed.
    pub fn reroute(&mut self, roles: &Isolation, route: Route, why: &str) -> Result<(), DeviceError> {
        let (from, to) = (&roles.data.arena, &roles.model.arena);
        self.transfer = Some(Transfer::open(route, why, from, to, self.spec.batch_bytes)?);
        self.spec.route = route;
        Ok(())
    }

    /// The model, to ask where it lies.
    pub fn model(&self) -> &StandIn {
        &self.model.model
    }

    /// Fills the data side before the first step, for `longest_ns` at most. Returns how many of how many batches are
    /// ready.
    pub fn fill(&mut self, longest_ns: u64, now_ns: impl Fn() -> u64) -> Result<(usize, usize), DeviceError> {
        let start = now_ns();
        while self.ahead.len() < self.data.slots.len() && now_ns().saturating_sub(start) < longest_ns {
            self.make()?;
        }
        if let Some(last) = self.ahead.back() {
            self.data.slots[last.slot].written.synchronize(waits::FILLED)?;
        }
        let mut ready = 0;
        for made in &self.ahead {
            ready += usize::from(self.data.slots[made.slot].written.reached()?);
        }
        Ok((ready, self.data.slots.len()))
    }

    /// Rehearses `steps` more steps and checks every batch of them.
    pub fn run(&mut self, steps: u64) -> Result<(), RehearsalError> {
        for _ in 0..steps {
            // The data side runs ahead as far as its memory goes; a slot's next batch is queued after its last step.
            while self.ahead.len() < self.data.slots.len() {
                self.make()?;
            }
            if let Some(made) = self.ahead.pop_front() {
                self.step(made)?;
            }
        }
        // All results but the last few were read on the way.
        (0..RESULTS).try_for_each(|turn| self.read_results(turn))
    }

    /// Queues the making of the next batch on the data side.
    fn make(&mut self) -> Result<(), DeviceError> {
        let batch = self.made;
        let DataSide { stream, checks, make_batch, uploads, slots } = &mut self.data;
        let turn = batch as usize % uploads.len();
        let upload = &mut uploads[turn];
        upload.copied.synchronize(waits::UPLOADED)?;
        write_upload(upload.host.bytes_mut()?, self.spec.seed, batch);
        let checksum = expected_checksum(upload.host.bytes()?, self.spec.batch_bytes / 4);
        stream.upload(&upload.host, 0..upload.host.len(), upload.device.view())?;
        stream.record(&upload.copied)?;
        if self.spec.delay_ns > 0 && data_is_held_up(batch) {
            checks.delay(stream, self.spec.delay_ns)?;
        }
        let at = batch as usize % slots.len();
        let slot = &slots[at];
        let site = if self.spec.route == Route::Handover { waits::RELEASED } else { waits::SENT };
        stream.wait(&slot.free, site)?;
        let (upload_words, batch_words) = (upload.device.len() / 4, slot.memory.len() / 4);
        let args = [
            Arg::read::<u32>(upload.device.view()),
            Arg::write::<u32>(slot.memory.view()),
            Arg::U64(upload_words),
            Arg::U64(batch_words),
        ];
        stream.launch(make_batch, Grid { blocks: [512, 1, 1], threads: 256, shared_bytes: 0 }, &args)?;
        stream.record(&slot.written)?;
        self.ahead.push_back(Made { batch, slot: at, checksum });
        self.made += 1;
        Ok(())
    }

    /// Carries the batch across and steps through it.
    fn step(&mut self, made: Made) -> Result<(), RehearsalError> {
        let batch = made.batch;
        self.read_results(batch as usize % RESULTS)?;
        let source = &self.data.slots[made.slot];
        let ModelSide { stream, checks, slots, model, results } = &mut self.model;
        let (memory, arrived, released) = match &mut self.transfer {
            None => (&source.memory, &source.written, &source.free),
            Some(transfer) => {
                let target = &slots[batch as usize % slots.len()];
                let from = (source.memory.view(), &source.written, &source.free);
                transfer.send(from, (target.memory.view(), &target.released, &target.arrived))?;
                (&target.memory, &target.arrived, &target.released)
            }
        };
        let result = &mut results[batch as usize % RESULTS];
        stream.wait(arrived, waits::ARRIVED)?;
        if self.spec.delay_ns > 0 && model_is_held_up(batch) {
            checks.delay(stream, self.spec.delay_ns)?;
        }
        checks.checksum(stream, memory.view(), result.device.part(0, 8))?;
        model.step(stream, batch, memory.view())?;
        checks.checksum(stream, memory.view(), result.device.part(8, 8))?;
        stream.record(released)?;
        stream.download(result.device.view(), &mut result.host, 0..RESULT_BYTES)?;
        stream.record(&result.copied)?;
        result.due = Some((batch, made.checksum));
        Ok(())
    }

    /// Compares what the device saw with what was sent.
    fn read_results(&mut self, turn: usize) -> Result<(), RehearsalError> {
        let result = &mut self.model.results[turn];
        let Some((batch, expected)) = result.due.take() else { return Ok(()) };
        result.copied.synchronize(waits::RESULTS)?;
        let numbers = result.host.bytes()?.chunks_exact(8);
        for (bytes, moment) in numbers.zip(["took it", "released it"]) {
            let found = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            if found != expected {
                return Err(RehearsalError::WrongBatch { batch, moment, found, expected });
            }
        }
        Ok(())
    }
}

impl DataSide {
    /// Takes the data role's memory and loads its kernels.
    pub fn create(roles: &Isolation, spec: &RehearsalSpec) -> Result<DataSide, DeviceError> {
        let (device, arena) = (&roles.data.device, &roles.data.arena);
        let upload = |_| {
            Ok::<_, DeviceError>(Upload {
                host: device.pinned(spec.upload_bytes)?,
                device: arena.take("upload int16", spec.upload_bytes)?,
                copied: device.event()?,
            })
        };
        let slot = |_| {
            let memory = arena.take("prefetched batches", spec.batch_bytes)?;
            Ok::<_, DeviceError>(DataSlot { memory, written: device.event()?, free: device.event()? })
        };
        Ok(DataSide {
            stream: device.stream(false)?,
            checks: Checks::load(device)?,
            make_batch: device.load(&MAKE_BATCH)?,
            uploads: (0..UPLOADS).map(upload).collect::<Result<_, _>>()?,
            slots: (0..spec.data_slots).map(slot).collect::<Result<_, _>>()?,
        })
    }
}

impl ModelSide {
    fn create(roles: &Isolation, spec: &RehearsalSpec) -> Result<ModelSide, DeviceError> {
        let (device, arena) = (&roles.model.device, &roles.model.arena);
        let slot = |_| {
            let memory = arena.take("input slots", spec.batch_bytes)?;
            Ok::<_, DeviceError>(ModelSlot { memory, arrived: device.event()?, released: device.event()? })
        };
        let result = |_| {
            Ok::<_, DeviceError>(ResultSlot {
                device: arena.take("results", RESULT_BYTES)?,
                host: device.pinned(RESULT_BYTES)?,
                copied: device.event()?,
                due: None,
            })
        };
        let stream = device.stream(true)?;
        let slots = if spec.route == Route::Handover { 0 } else { spec.model_slots };
        Ok(ModelSide {
            checks: Checks::load(device)?,
            slots: (0..slots).map(slot).collect::<Result<_, _>>()?,
            model: StandIn::create(device, arena, spec.model, &spec.bucket, &stream)?,
            results: (0..RESULTS).map(result).collect::<Result<_, _>>()?,
            stream,
        })
    }
}

/// Fills an upload with what batch `batch` is made of.
fn write_upload(bytes: &mut [u8], seed: u64, batch: u64) {
    let stream = seed ^ batch.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    for (i, word) in bytes.chunks_exact_mut(4).enumerate() {
        word.copy_from_slice(&pattern_word(stream, i as u64).to_le_bytes());
    }
}

/// The checksum of the batch that is made from an upload.
fn expected_checksum(upload: &[u8], batch_words: u64) -> u64 {
    let words = upload.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    let term = |(i, word): (u64, u32)| u64::from(batch_word(word, i)).wrapping_mul(2 * i + 1);
    (0..batch_words).zip(words.cycle()).map(term).fold(0, u64::wrapping_add)
}
