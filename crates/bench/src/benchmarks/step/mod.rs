//! `bench step`: one training step of the reference transformers.
//!
//! The models are those that `torch_bench.py` and its like train: the same sizes, the same batch in every step, AdamW without
//! clipping and without a moving average. A step is a batch copied into its place, forward and backward, and the update, with
//! master weights in f32; the clock is the host's, around queueing it and waiting for it, as the peers' is.

mod breakdown;

use std::sync::Arc;
use std::time::Instant;

use half::bf16;
use tandem_device::{Arena, ArenaSpec, Block, DType, DeviceKind};
use tandem_engine::{
    HostValue, Launch, NamedLayout, ParameterSpan, Program, ProgramId, ProgramSet, Session, UpdateSpec, update_program,
};
use tandem_events::Role;
use tandem_model::{Transformer, TransformerSizes};

pub use breakdown::{Breakdown, KernelGroup};

use super::{BenchContext, BenchError, Spread};

/// A model and its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSize {
    /// What it is called.
    pub name: &'static str,
    /// The model.
    pub sizes: TransformerSizes,
    /// Rows of a batch.
    pub batch: u32,
    /// Symbols of a row.
    pub length: u32,
}

/// How steps are measured.
#[derive(Clone, Copy, Debug)]
pub struct StepSpec {
    /// What GEMMs compute in: f32 or bf16.
    pub precision: DType,
    /// Steps behind the median.
    pub steps: usize,
    /// Whether every kind of work is timed by itself too.
    pub breakdown: bool,
}

/// What was found of one size.
#[derive(Clone, Debug)]
pub struct StepRow {
    /// Which.
    pub size: StepSize,
    /// How.
    pub spec: StepSpec,
    /// Milliseconds of a step.
    pub ms: Spread,
    /// Seconds until the first step had ended, from nothing: planned, memory taken, kernels loaded, recorded, run.
    pub first_step_s: f64,
    /// Those of them that the session took: kernels and, on NVIDIA cards, warm-up and recording.
    pub session_s: f64,
    /// Numbers that are learnt.
    pub parameters: u64,
    /// Bytes of the arena in use at most: everything but what the driver takes for itself.
    pub arena_bytes: u64,
    /// Kernels of a step.
    pub launches: usize,
    /// GEMMs of a step.
    pub gemms: usize,
    /// Copies within the device and clears of a step.
    pub moves: usize,
    /// The loss after all of them: a model of numbers, not of noughts, was measured.
    pub loss: f64,
    /// Where the time goes.
    pub breakdown: Option<Breakdown>,
}

/// Symbols of the reference transformers.
const VOCABULARY: u32 = 1024;
const LR: [f32; 1] = [1e-4];
/// Steps before the clock counts.
const WARM_UP_ON_CARDS: usize = 5;
const WARM_UP_ELSEWHERE: usize = 1;
/// How often a kind of work is repeated to be timed.
const REPEATS_ON_CARDS: usize = 20;
const REPEATS_ELSEWHERE: usize = 2;

const fn size(name: &'static str, [width, layers, heads]: [u32; 3], [batch, length]: [u32; 2]) -> StepSize {
    StepSize { name, sizes: TransformerSizes { width, layers, heads, vocabulary: VOCABULARY }, batch, length }
}

impl StepSize {
    /// Those there are: one for computers without a card, and the three that peers train.
    pub const ALL: [StepSize; 4] = [
        size("tiny", [64, 2, 2], [2, 32]),
        size("small", [256, 4, 4], [32, 400]),
        size("middle", [768, 12, 12], [16, 512]),
        size("large", [1024, 30, 16], [8, 512]),
    ];

    /// Those that are measured when none was asked for.
    pub fn usual(kind: DeviceKind) -> &'static [StepSize] {
        match kind {
            DeviceKind::Cuda => &Self::ALL[1..],
            DeviceKind::Cpu | DeviceKind::Simulated => &Self::ALL[..1],
        }
    }

    /// `small d256 l4 b32 t400`, as peers say it.
    pub fn label(&self) -> String {
        let TransformerSizes { width, layers, .. } = self.sizes;
        format!("{} d{width} l{layers} b{} t{}", self.name, self.batch, self.length)
    }
}

/// Measures steps of one size on the model role's device, in an arena of exactly what they take.
pub fn measure(context: &BenchContext, size: StepSize, spec: StepSpec) -> Result<StepRow, BenchError> {
    let on_card = context.machine.kind() == DeviceKind::Cuda;
    let begun = Instant::now();
    let mut bench = Bench::new(context, size, spec.precision)?;
    bench.step()?;
    let first_step_s = begun.elapsed().as_secs_f64();
    for _ in 0..if on_card { WARM_UP_ON_CARDS } else { WARM_UP_ELSEWHERE } {
        bench.step()?;
    }
    let mut times_ms = Vec::with_capacity(spec.steps);
    for _ in 0..spec.steps {
        let begun = Instant::now();
        bench.step()?;
        times_ms.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let loss = bench.loss()?;
    let repeats = if on_card { REPEATS_ON_CARDS } else { REPEATS_ELSEWHERE };
    let breakdown = spec.breakdown.then(|| bench.breakdown(size, repeats)).transpose()?;
    let count = |is: fn(&Launch) -> bool| bench.steps().filter(|step| is(step)).count();
    Ok(StepRow {
        size,
        spec,
        ms: Spread::of(times_ms),
        first_step_s,
        session_s: bench.session_s,
        parameters: bench.session.set().parameters().count(),
        arena_bytes: bench.arena.memory().peak_bytes,
        launches: count(|step| matches!(step, Launch::Kernel { .. })),
        gemms: count(|step| matches!(step, Launch::Gemm { .. })),
        moves: count(|step| matches!(step, Launch::Copy { .. } | Launch::Clear { .. })),
        loss,
        breakdown,
    })
}

/// A model in its arena, with a batch beside it.
struct Bench {
    // Before the arena: it gives its memory back first.
    session: Session,
    batch: Block,
    arena: Arena,
    accumulate: ProgramId,
    update: ProgramId,
    session_s: f64,
}

impl Bench {
    fn new(context: &BenchContext, size: StepSize, precision: DType) -> Result<Bench, BenchError> {
        let model = Transformer::new(size.sizes)?;
        let layout = model.layout(size.batch, size.length)?;
        let update_spec = UpdateSpec { clip: None, average: false, clears: false, ..UpdateSpec::default() };
        let mut set = ProgramSet::new(model.parameters().clone(), precision, &update_spec.spans());
        let graph = model.accumulate(precision, (size.batch, size.length), update_spec.gradient_mode())?;
        let accumulate = set.add("accumulate", &graph, &layout)?;
        let graph = update_program(model.parameters(), precision, &update_spec)?;
        let update = set.add("update", &graph, &NamedLayout::default())?;

        let device = context.machine.open(context.cards[1])?;
        let lines = set.lines(context.machine.kind());
        let bytes = lines.iter().map(|line| line.bytes).sum::<u64>() + layout.bytes;
        let spec = ArenaSpec::new(Role::Model, bytes);
        let arena = Arena::reserve(&device, spec)?;
        let stream = Arc::new(device.stream(true)?);
        let begun = Instant::now();
        let session = Session::create(Arc::new(set), &arena, stream, 2)?;
        let session_s = begun.elapsed().as_secs_f64();
        let batch = arena.take("batch", layout.bytes)?;
        let bench = Bench { session, batch, arena, accumulate, update, session_s };
        bench.write_batch(&size, &layout)?;
        bench.write_parameters(precision)?;
        Ok(bench)
    }

    fn write_batch(&self, size: &StepSize, layout: &NamedLayout) -> Result<(), BenchError> {
        let stream = self.session.stream();
        let mut host = stream.device().pinned(layout.bytes)?;
        let places = (size.batch * size.length) as usize;
        let mut symbols = symbols(size.sizes.vocabulary);
        let mut draw = || symbols.by_ref().take(places).collect::<Vec<i32>>();
        let lengths = vec![size.length as i32; size.batch as usize];
        for (name, values) in [("tokens", draw()), ("targets", draw()), ("lengths", lengths)] {
            let (at, bytes) = (layout.find("input", name)?.offset as usize, bytemuck::cast_slice::<i32, u8>(&values));
            host.bytes_mut()?[at..at + bytes.len()].copy_from_slice(bytes);
        }
        stream.upload(&host, 0..layout.bytes, self.batch.part(0, layout.bytes))?;
        Ok(stream.drain()?)
    }

    fn write_parameters(&self, precision: DType) -> Result<(), BenchError> {
        let initial = self.session.set().parameters().initial(0);
        let initial: Vec<f32> = initial.into_iter().map(|x| x as f32).collect();
        self.session.write_span(ParameterSpan::Parameters, &initial)?;
        if precision == DType::BF16 {
            let compute: Vec<bf16> = initial.iter().map(|&x| bf16::from_f32(x)).collect();
            self.session.write_span(ParameterSpan::Compute, &compute)?;
        }
        Ok(())
    }

    /// One step, queued and waited for.
    fn step(&mut self) -> Result<(), BenchError> {
        self.queue_accumulate()?;
        self.queue_update()?;
        Ok(self.session.stream().drain()?)
    }

    fn queue_accumulate(&mut self) -> Result<(), BenchError> {
        let bytes = self.session.program(self.accumulate).inputs().bytes;
        Ok(self.session.run(self.accumulate, Some(self.batch.part(0, bytes)), &[])?)
    }

    fn queue_update(&mut self) -> Result<(), BenchError> {
        Ok(self.session.run(self.update, None, &[("lr", HostValue::F32(&LR))])?)
    }

    /// The loss of the batch now. Leaves its gradients behind.
    fn loss(&mut self) -> Result<f64, BenchError> {
        self.queue_accumulate()?;
        let fetch = self.session.fetch(self.accumulate)?;
        let results = self.session.finish(fetch)?;
        Ok(f64::from(results.get::<f32>("loss")?[0]))
    }

    /// The update first: what timing the rest leaves as gradients may be no numbers, and an update would leave them out.
    fn breakdown(&mut self, size: StepSize, repeats: usize) -> Result<Breakdown, BenchError> {
        self.step()?;
        let update = self.session.time_launches(self.update, repeats)?;
        self.queue_accumulate()?;
        let accumulate = self.session.time_launches(self.accumulate, repeats)?;
        let mut breakdown = Breakdown::default();
        for (id, times) in [(self.accumulate, accumulate), (self.update, update)] {
            let program = self.session.program(id);
            breakdown.add(program.launches(), program.labels(), &times, &size);
        }
        breakdown.sort();
        Ok(breakdown)
    }

    fn steps(&self) -> impl Iterator<Item = &Launch> {
        [self.accumulate, self.update].into_iter().flat_map(|id| Program::launches(self.session.program(id)))
    }
}

/// Symbols that follow no rule.
fn symbols(vocabulary: u32) -> impl Iterator<Item = i32> {
    let mut state = 1_u32;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((state >> 8) % vocabulary) as i32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_called_what_peers_call_them() {
        let labels: Vec<String> = StepSize::usual(DeviceKind::Cuda).iter().map(StepSize::label).collect();
        assert_eq!(labels, ["small d256 l4 b32 t400", "middle d768 l12 b16 t512", "large d1024 l30 b8 t512"]);
        assert_eq!(StepSize::usual(DeviceKind::Simulated), &[StepSize::ALL[0]]);
    }

    #[test]
    fn symbols_are_of_the_vocabulary_and_many() {
        let drawn: Vec<i32> = symbols(50).take(1000).collect();
        assert!(drawn.iter().all(|symbol| (0..50).contains(symbol)));
        assert_eq!(drawn.iter().collect::<std::collections::BTreeSet<_>>().len(), 50);
    }
}
