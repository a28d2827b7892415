//! The consumer of batches in a benchmark: a step of a given duration.
//!
//! On a card it is filled with GEMMs; where the host does the maths, it sleeps. Either way the step begins like a captured
//! one: the batch is copied to its fixed place, and its slot is free again.

use std::time::{Duration, Instant};

use tandem_device::{Block, Device, DeviceError, DeviceKind, Event, Grid, Isolation, LoadedKernel, Stream, View};
use tandem_pipeline::StopFlag;

use crate::kernels::{GEMM_BF16, GemmArgs};

/// Rows and width of one GEMM: a wave of blocks on the largest card there is, and a few tens of microseconds.
const ROWS: u32 = 512;
const WIDTH: u32 = 512;
/// Steps in flight, as in a training run.
pub(crate) const RUN_AHEAD: usize = 2;

/// A step.
pub(crate) struct Consumer {
    pub(crate) stream: Stream,
    input: Block,
    matrices: [Block; 3],
    gemm: LoadedKernel,
    kind: DeviceKind,
    gemm_ns: f64,
}

/// Marks in the consumer's stream, one per step.
pub(crate) struct StepEnds {
    events: Vec<Event>,
    host: Vec<Instant>,
    kind: DeviceKind,
}

impl Consumer {
    /// Bytes it takes from the model role's arena, for batches of up to `slot_bytes`: twice that, so that a batch can
    /// stand still beside the one in work.
    pub(crate) fn bytes(slot_bytes: u64) -> u64 {
        2 * slot_bytes + 3 * u64::from(ROWS) * u64::from(WIDTH) * 2
    }

    pub(crate) fn create(roles: &Isolation, slot_bytes: u64) -> Result<Consumer, DeviceError> {
        let (device, arena) = (&roles.model.device, &roles.model.arena);
        let stream = device.stream(true)?;
        let matrix = || arena.take("matrices", u64::from(ROWS) * u64::from(WIDTH) * 2);
        let matrices = [matrix()?, matrix()?, matrix()?];
        matrices.iter().try_for_each(|block| stream.fill(block.view(), 0x3C))?;
        let mut consumer = Consumer {
            stream,
            input: arena.take("input block", 2 * slot_bytes)?,
            matrices,
            gemm: device.load(&GEMM_BF16)?,
            kind: device.machine().kind(),
            gemm_ns: 0.0,
        };
        if consumer.kind == DeviceKind::Cuda {
            consumer.gemm_ns = consumer.time_a_gemm(device)?;
        }
        Ok(consumer)
    }

    /// Nanoseconds of a GEMM in a row of many, after a warm-up.
    fn time_a_gemm(&self, device: &Device) -> Result<f64, DeviceError> {
        let (start, end, many) = (device.timer()?, device.timer()?, 200);
        for _ in 0..2 {
            self.stream.record(&start)?;
            (0..many).try_for_each(|_| self.multiply())?;
            self.stream.record(&end)?;
            self.stream.drain()?;
        }
        Ok(end.ns_since(&start)? as f64 / f64::from(many))
    }

    fn multiply(&self) -> Result<(), DeviceError> {
        let [a, b, c] = &self.matrices;
        let args = GemmArgs { x: a.view(), weights: b.view(), out: c.view(), rows: ROWS, width: WIDTH };
        let grid = Grid { blocks: [WIDTH / 16, ROWS / 16, 1], threads: 256, shared_bytes: 0 };
        self.stream.launch(&self.gemm, grid, args)
    }

    /// Copies the batch to its place. Its slot can be released after that.
    pub(crate) fn take_in(&self, batch: View<'_>) -> Result<(), DeviceError> {
        self.stream.copy(batch, self.input.part(0, batch.bytes()))
    }

    /// A resident batch, to be copied in again and again.
    pub(crate) fn standing(&self, bytes: u64) -> View<'_> {
        self.input.part(self.input.len() / 2, bytes)
    }

    /// The rest of a step: about `ns` of work.
    pub(crate) fn work(&self, ns: f64) -> Result<(), DeviceError> {
        if self.kind == DeviceKind::Cuda {
            let gemms = (ns / self.gemm_ns).round().max(1.0) as u64;
            return (0..gemms).try_for_each(|_| self.multiply());
        }
        // The batch is there once its copy is done; then the step takes a fixed time.
        self.stream.drain()?;
        StopFlag::new().wait_timeout(Duration::from_nanos(ns as u64));
        Ok(())
    }
}

impl StepEnds {
    pub(crate) fn new(device: &Device) -> Result<StepEnds, DeviceError> {
        let events = (0..RUN_AHEAD + 2).map(|_| device.timer()).collect::<Result<_, _>>()?;
        Ok(StepEnds { events, host: Vec::new(), kind: device.machine().kind() })
    }

    /// Step `number` (from 0) was queued on `stream`. Waits for the one `RUN_AHEAD` before it, and returns its number
    /// and how long it took from the end of the one before; none for the first ones.
    pub(crate) fn mark(&mut self, stream: &Stream, number: usize) -> Result<Option<(usize, u64)>, DeviceError> {
        let event = |number: usize| &self.events[number % self.events.len()];
        if self.kind != DeviceKind::Cuda {
            self.host.push(Instant::now());
            let before = number.checked_sub(1).map(|before| self.host[before]);
            return Ok(before.map(|before| (number, self.host[number].duration_since(before).as_nanos() as u64)));
        }
        stream.record(event(number))?;
        let Some(done) = number.checked_sub(RUN_AHEAD) else { return Ok(None) };
        event(done).synchronize("the step loop runs ahead by so much")?;
        match done.checked_sub(1) {
            Some(before) => event(done).ns_since(event(before)).map(|ns| Some((done, ns))),
            None => Ok(None),
        }
    }
}
