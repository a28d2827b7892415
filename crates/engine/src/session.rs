//! A session: the programs of a model with their memory on a device.
//!
//! All memory is allocated at creation. A run uploads the host values from a pinned ring, copies the batch into the working
//! memory, and queues the program's launches in order on one stream; on NVIDIA cards the launches are one captured graph,
//! captured at creation. Nothing waits for the device, except a writer of the pinned ring whose slot is still being read.

mod capture;
mod late;
mod spans;
mod timing;
mod values;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tandem_device::{
    Arena, Arg, Block, CapturedGraph, DeviceError, DeviceKind, Event, Kernel, LoadedKernel, Pinned, Stream, View,
};

use crate::error::EngineError;
use crate::graph::ParameterSpan;
use crate::lower::{Launch, LaunchArg, Location, Region};
use crate::program::{NamedLayout, Program};
use crate::program_set::{MemoryKind, ProgramId, ProgramSet};

use capture::LaunchStream;
use spans::STAGING_BYTES;
pub use timing::LaunchTime;
pub use values::{HostValue, Results};

/// Programs that can run.
pub struct Session {
    set: Arc<ProgramSet>,
    stream: Arc<Stream>,
    /// One per program, on NVIDIA cards. Declared before the blocks: a captured graph is dropped before the memory it uses.
    captured: Vec<CapturedGraph>,
    blocks: HashMap<MemoryKind, Block>,
    /// The offset of the constants of each program.
    constant_bases: Vec<u64>,
    /// Keyed by the address of the static, which is only compared.
    kernels: HashMap<*const Kernel, LoadedKernel>,
    /// Late programs by slot, and the slot of the next.
    late: Vec<Program>,
    next_late: usize,
    host: Vec<(Pinned, Event)>,
    next_host: usize,
    fetches: Vec<(Pinned, Event)>,
    /// Staging memory for reads and writes outside runs: a checkpoint allocates nothing.
    staging: RefCell<Pinned>,
    /// Set by the caller to cancel a run.
    stop: Option<Arc<AtomicBool>>,
}

/// Results in flight to the host.
pub struct Fetch {
    layout: NamedLayout,
    memory: Pinned,
    arrived: Event,
}

impl Fetch {
    /// Whether the results have arrived; waits for `longest` at most.
    pub fn arrives_within(&self, longest: Duration) -> Result<bool, EngineError> {
        Ok(self.arrived.synchronize_within(longest)?)
    }
}

impl Session {
    /// Allocates the memory of `set` from `arena` and prepares its programs to run on `stream`. Spans and states are zero.
    /// Host values and results of `in_flight` runs can be in flight at once.
    ///
    /// On NVIDIA cards every program runs once, on zeros, and is then captured. Kernels that this machine has not compiled
    /// before are compiled first, which takes about 70 ms each, spread over the machine's workers.
    pub fn create(
        set: Arc<ProgramSet>,
        arena: &Arena,
        stream: Arc<Stream>,
        in_flight: usize,
    ) -> Result<Session, EngineError> {
        Session::create_with_progress(set, arena, stream, in_flight, &mut |_, _| {})
    }

    /// [`Session::create`] that reports progress: `on_progress` receives the number of programs that are ready, and of all
    /// programs. The first call has 0 ready: clearing memory and loading kernels come before the first program.
    pub fn create_with_progress(
        set: Arc<ProgramSet>,
        arena: &Arena,
        stream: Arc<Stream>,
        in_flight: usize,
        on_progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Session, EngineError> {
        on_progress(0, set.programs.len());
        assert!(in_flight > 0, "a session needs room for at least one run in flight");
        let mut blocks = HashMap::new();
        for line in set.lines(stream.device().machine().kind()).into_iter().filter(|line| line.bytes > 0) {
            let block = arena.take(line.name, line.bytes)?;
            stream.fill(block.view(), 0)?;
            blocks.insert(line.kind, block);
        }
        let device = stream.device();
        let pair = |bytes: u64| Ok::<_, DeviceError>((device.pinned(bytes.max(1))?, device.event()?));
        let largest = |bytes: fn(&Program) -> u64| set.programs.iter().map(bytes).max().unwrap_or(0);
        let host_bytes = largest(|program| program.host.bytes);
        let result_bytes = largest(|program| program.results.bytes);
        let host = (0..in_flight).map(|_| pair(host_bytes)).collect::<Result<_, _>>()?;
        let fetches = (0..in_flight).map(|_| pair(result_bytes)).collect::<Result<_, _>>()?;
        let largest_line = set.lines(device.machine().kind()).iter().map(|line| line.bytes).max().unwrap_or(0);
        let staging = RefCell::new(device.pinned(largest_line.clamp(1, STAGING_BYTES))?);
        let mut session = Session {
            set,
            stream,
            captured: Vec::new(),
            blocks,
            constant_bases: Vec::new(),
            kernels: HashMap::new(),
            late: Vec::new(),
            next_late: 0,
            host,
            next_host: 0,
            fetches,
            staging,
            stop: None,
        };
        let set = Arc::clone(&session.set);
        session.load_kernels(&set.programs)?;
        session.upload_constants(&set.programs)?;
        match session.stream.device().machine().kind() {
            DeviceKind::Cuda => session.warm_up_and_capture(on_progress)?,
            DeviceKind::Cpu | DeviceKind::Simulated => on_progress(set.programs.len(), set.programs.len()),
        }
        Ok(session)
    }

    /// Makes runs cancellable: once `stop` is set, a run ends with [`EngineError::Stopped`] before its next launch, and its
    /// results are undefined.
    ///
    /// On NVIDIA cards a program is queued as one captured graph, so the flag is read once, before the run.
    pub fn stop_when(&mut self, stop: Arc<AtomicBool>) {
        self.stop = Some(stop);
    }

    /// The programs.
    pub fn set(&self) -> &Arc<ProgramSet> {
        &self.set
    }

    /// The stream programs run on.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Queues one run. `batch` has the layout of the program's inputs; `host` has a value for every host value of the
    /// program.
    pub fn run(
        &mut self,
        id: ProgramId,
        batch: Option<View<'_>>,
        host: &[(&str, HostValue<'_>)],
    ) -> Result<(), EngineError> {
        self.stage_inputs(id, batch, host)?;
        self.replay(id)
    }

    /// Queues the first half of a run: copies the host values and the batch into the program's input memory. Once these
    /// copies have completed, the batch can be overwritten. [`Session::replay`] is the second half.
    pub fn stage_inputs(
        &mut self,
        id: ProgramId,
        batch: Option<View<'_>>,
        host: &[(&str, HostValue<'_>)],
    ) -> Result<(), EngineError> {
        self.upload_host(id, host)?;
        match batch {
            Some(batch) => {
                let to = self.part(id, Region::Inputs, 0, self.program(id).inputs.bytes);
                Ok(self.stream.copy(batch, to)?)
            }
            None => Ok(()),
        }
    }

    /// Queues a run with a batch in page-locked host memory, for data that does not come from a feed. The batch must stay
    /// unchanged until the run has begun.
    pub fn run_from(
        &mut self,
        id: ProgramId,
        batch: &Pinned,
        host: &[(&str, HostValue<'_>)],
    ) -> Result<(), EngineError> {
        self.upload_host(id, host)?;
        let bytes = self.program(id).inputs.bytes;
        self.stream.upload(batch, 0..bytes, self.part(id, Region::Inputs, 0, bytes))?;
        self.replay(id)
    }

    /// Queues a program with the staged inputs and host values.
    pub fn replay(&self, id: ProgramId) -> Result<(), EngineError> {
        self.check_stop()?;
        match self.captured.get(id.0) {
            Some(captured) => Ok(self.stream.replay(captured)?),
            None => self.queue_launches(id),
        }
    }

    /// Queues the launches of a program one by one.
    fn queue_launches(&self, id: ProgramId) -> Result<(), EngineError> {
        let program = self.program(id);
        for launch in &program.launches {
            self.check_stop()?;
            self.queue(id, launch)?;
        }
        Ok(())
    }

    fn check_stop(&self) -> Result<(), EngineError> {
        match &self.stop {
            Some(stop) if stop.load(Ordering::Relaxed) => Err(EngineError::Stopped),
            _ => Ok(()),
        }
    }

    /// Runs a program launch by launch, waits for each, and returns the name and duration of each. The durations show where
    /// time goes, not how long a run takes: nothing overlaps.
    pub fn replay_timed(&self, id: ProgramId) -> Result<Vec<(&'static str, Duration)>, EngineError> {
        let mut times = Vec::new();
        for launch in &self.program(id).launches {
            let start = Instant::now();
            self.queue(id, launch)?;
            self.stream.drain()?;
            times.push((launch.name(), start.elapsed()));
        }
        Ok(times)
    }

    /// Queues the download of a program's results: those of the last queued run.
    ///
    /// Panics if as many fetches are in flight as the session was created for: the caller finishes the oldest first.
    pub fn fetch(&mut self, id: ProgramId) -> Result<Fetch, EngineError> {
        let Some((mut memory, arrived)) = self.fetches.pop() else {
            panic!("{} fetches are in flight, and none was finished", self.host.len())
        };
        let layout = self.program(id).results.clone();
        let bytes = layout.bytes;
        if bytes > 0 {
            self.stream.download_small(self.part(id, Region::Results, 0, bytes), &mut memory, 0..bytes)?;
        }
        self.stream.record(&arrived)?;
        Ok(Fetch { layout, memory, arrived })
    }

    /// The memory of a span, for work that is queued on [`stream`](Session::stream) between two programs.
    pub fn span_view(&self, span: ParameterSpan) -> View<'_> {
        self.block(MemoryKind::ParameterSpan(span)).view()
    }

    /// Waits for a fetch, and recycles its memory.
    pub fn finish(&mut self, fetch: Fetch) -> Result<Results, EngineError> {
        fetch.arrived.synchronize("session: results")?;
        let Fetch { layout, memory, arrived } = fetch;
        let bytes = memory.bytes()?[..layout.bytes as usize].to_vec();
        self.fetches.push((memory, arrived));
        Ok(Results::new(layout, bytes))
    }

    fn block(&self, kind: MemoryKind) -> &Block {
        match self.blocks.get(&kind) {
            Some(block) => block,
            None => panic!("no program of this session uses {kind:?}"),
        }
    }

    /// A part of a region of program `id`.
    fn part(&self, id: ProgramId, region: Region, offset: u64, bytes: u64) -> View<'_> {
        let (kind, base) = match region {
            Region::ParameterSpan(span) => (MemoryKind::ParameterSpan(span), 0),
            Region::States => (MemoryKind::States, 0),
            Region::Constants => (MemoryKind::Constants, self.constant_bases[id.0]),
            working => (MemoryKind::Working, self.program(id).base(working)),
        };
        self.block(kind).part(base + offset, bytes)
    }

    fn load_kernels(&mut self, programs: &[Program]) -> Result<(), EngineError> {
        let device = self.stream.device();
        let (mut kernels, mut seen) = (Vec::new(), HashSet::new());
        for launch in programs.iter().flat_map(|program| &program.launches) {
            let Launch::Kernel { kernel, .. } = launch else { continue };
            if device.machine().kind() == DeviceKind::Cuda && kernel.source.text.is_empty() {
                return Err(EngineError::NotOnCuda { kernel: kernel.name });
            }
            let address = std::ptr::from_ref::<Kernel>(kernel);
            if !self.kernels.contains_key(&address) && seen.insert(address) {
                kernels.push(*kernel);
            }
        }
        let loaded = device.load_all(&kernels)?;
        self.kernels.extend(kernels.into_iter().map(std::ptr::from_ref).zip(loaded));
        Ok(())
    }

    fn upload_constants(&mut self, programs: &[Program]) -> Result<(), EngineError> {
        let mut base = 0;
        for program in programs {
            self.write_constants(program, base)?;
            self.constant_bases.push(base);
            base += program.constant_bytes;
        }
        let (first, each) = self.set.late_constants();
        self.constant_bases.extend((0..self.set.late_slots as u64).map(|slot| first + slot * each));
        Ok(())
    }

    fn write_constants(&self, program: &Program, base: u64) -> Result<(), EngineError> {
        let mut constants = program.constants.iter();
        constants.try_for_each(|(offset, bytes)| self.write(MemoryKind::Constants, base + offset, bytes))
    }

    fn upload_host(&mut self, id: ProgramId, given: &[(&str, HostValue<'_>)]) -> Result<(), EngineError> {
        let layout = &program_of(&self.set, &self.late, id).host;
        if layout.bytes == 0 {
            return Ok(());
        }
        let slot = self.next_host;
        self.next_host = (slot + 1) % self.host.len();
        let (memory, read) = &mut self.host[slot];
        read.synchronize("session: host values read")?;
        let bytes = memory.bytes_mut()?;
        for field in &layout.fields {
            let value = given.iter().find(|(name, _)| *name == field.name).map(|(_, value)| value);
            let Some(value) = value else {
                let known = given.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
                return Err(EngineError::Unknown { what: "host value", name: field.name.clone(), known });
            };
            let from = value.bytes(&field.name, field.ty)?;
            bytes[field.offset as usize..][..from.len()].copy_from_slice(from);
        }
        let to = self.part(id, Region::Host, 0, layout.bytes);
        let (memory, read) = &self.host[slot];
        self.stream.upload_small(memory, 0..layout.bytes, to)?;
        Ok(self.stream.record(read)?)
    }

    fn queue(&self, id: ProgramId, launch: &Launch) -> Result<(), EngineError> {
        self.queue_on(LaunchStream::Main(&self.stream), id, launch)
    }

    fn queue_on(&self, to: LaunchStream<'_>, id: ProgramId, launch: &Launch) -> Result<(), EngineError> {
        let (LaunchStream::Main(stream) | LaunchStream::Side(stream)) = to;
        let view = |location: &Location| self.part(id, location.region, location.offset, location.bytes);
        match launch {
            Launch::Kernel { kernel, grid, args } => {
                let args: Vec<Arg<'_>> = args
                    .iter()
                    .map(|arg| match arg {
                        LaunchArg::Read(location, dtype) => Arg::In(view(location), *dtype),
                        LaunchArg::Write(location, dtype) => Arg::Out(view(location), *dtype),
                        LaunchArg::U32(n) => Arg::U32(*n),
                        LaunchArg::U64(n) => Arg::U64(*n),
                        LaunchArg::F32(x) => Arg::F32(*x),
                    })
                    .collect();
                let kernel: *const Kernel = *kernel;
                stream.launch_args(&self.kernels[&kernel], *grid, &args)?;
            }
            Launch::Gemm { gemm, a, b, c, bias } => {
                let workspace = self.blocks.get(&MemoryKind::Workspace).map(|block| to.workspace(block));
                stream.gemm(gemm, view(a), view(b), view(c), bias.as_ref().map(view), workspace)?;
            }
            Launch::Copy { from, to } => stream.copy(view(from), view(to))?,
            Launch::Clear { to } => stream.fill(view(to), 0)?,
        }
        Ok(())
    }

    /// A program of this session, also a late one.
    pub fn program(&self, id: ProgramId) -> &Program {
        program_of(&self.set, &self.late, id)
    }
}

/// The ids of late programs follow those of the set.
fn program_of<'a>(set: &'a ProgramSet, late: &'a [Program], id: ProgramId) -> &'a Program {
    let known = set.programs.len();
    if id.0 < known { set.program(id) } else { &late[id.0 - known] }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The session's memory returns to the arena, and batches to their slots: no launch may still access them. A lost card
        // accesses nothing, so its error does not matter.
        let _ = self.stream.drain();
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::{DType, Machine, SimSpec};

    use super::*;
    use crate::graph::ParameterSpan;
    use crate::{Graph, Init, ParameterList, Recomputed, testing};

    /// A session with one program, which accumulates the gradients of a GEMM of weights.
    pub(super) fn gemm_session(machine: &Machine) -> (Session, ProgramId) {
        let mut list = ParameterList::new();
        let id = list.weight("weight", &[5, 3], Init::Constant(0.0)).unwrap();
        let parameters = Arc::new(list.finish());
        let mut graph = Graph::new(parameters.clone(), DType::F32);
        let weight = graph.parameter(id);
        let squares = graph.gemm(weight, weight, false, true, false).unwrap();
        let loss = graph.sum_all(squares).unwrap();
        graph.accumulate(loss, &Recomputed::new()).unwrap();
        let mut set = ProgramSet::new(parameters, DType::F32, &[ParameterSpan::Gradients]);
        let id = set.add("accumulate", &graph, &NamedLayout::default()).unwrap();
        (testing::session(machine, set), id)
    }

    #[test]
    fn a_card_lost_during_a_run_is_a_typed_error_and_leaks_nothing() {
        for seed in 0..8 {
            let sim = "1x1GiB".parse::<SimSpec>().unwrap().with_seed(seed);
            let machine = Machine::simulated(sim);
            let (mut session, id) = gemm_session(&machine);
            session.replay(id).unwrap();
            session.stream().trap().unwrap();
            // Later calls may still be accepted: the card has not reached them.
            let rest = session.replay(id).and_then(|()| session.fetch(id)).and_then(|fetch| session.finish(fetch));
            assert!(matches!(rest, Err(EngineError::Device(DeviceError::Lost { card: 0, .. }))), "{rest:?}");
            let saved = session.read_span::<f32>(ParameterSpan::Parameters);
            assert!(matches!(saved, Err(EngineError::Device(DeviceError::Lost { card: 0, .. }))), "{saved:?}");
            drop(session);
            assert_eq!(machine.sim().unwrap().alive(), Default::default(), "seed {seed}");
        }
    }

    #[test]
    fn only_cards_with_gemms_have_a_workspace() {
        let set = |with_gemm: bool| {
            let mut graph = Graph::new(Default::default(), DType::F32);
            let one = graph.constant(&[1, 1], &[1.0_f32]);
            let value = if with_gemm { graph.gemm(one, one, false, false, false).unwrap() } else { one };
            graph.result("value", value).unwrap();
            let mut set = ProgramSet::new(Default::default(), DType::F32, &[]);
            set.add("program", &graph, &NamedLayout::default()).unwrap();
            set
        };
        let workspace = |set: &ProgramSet, kind| {
            let lines = set.lines(kind);
            lines.iter().find(|line| line.kind == MemoryKind::Workspace).map(|line| line.bytes)
        };
        assert_eq!(workspace(&set(true), DeviceKind::Cpu), Some(0));
        for kind in [DeviceKind::Simulated, DeviceKind::Cuda] {
            assert_eq!(workspace(&set(true), kind), Some(64 << 20));
            assert_eq!(workspace(&set(false), kind), Some(0));
        }
    }
}
