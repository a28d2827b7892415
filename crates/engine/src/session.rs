//! A session: the programs of a model with their memory on a device.
//!
//! Everything is taken when it is created. A run is: numbers of the host up from a pinned ring, the batch copied into
//! the working memory, the program's steps in order on one stream; on NVIDIA cards the steps are one recording, made when
//! the session is. Nothing waits for the device but the writer of a pinned ring that has come round to a slot still being
//! read.

mod late;
mod timing;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tandem_device::{
    Arena, Arg, Block, CapturedGraph, DeviceError, DeviceKind, Element, Event, Gemm, Kernel, LoadedKernel, Pinned,
    Stream, View,
};

use crate::error::EngineError;
use crate::graph::ParameterSpan;
use crate::lower::{Launch, LaunchArg, Location, Region};
use crate::program::{ASIDES_AT_ONCE, NamedLayout, Program};
use crate::program_set::{MemoryKind, ProgramId, ProgramSet};
use crate::tensor::TensorType;

pub use timing::StepTime;

/// Programs that can run.
pub struct Session {
    set: Arc<ProgramSet>,
    stream: Arc<Stream>,
    /// Of each program, on NVIDIA cards. Before the blocks: what was recorded goes before the memory it names.
    recordings: Vec<CapturedGraph>,
    blocks: HashMap<MemoryKind, Block>,
    /// Where the constants of each program begin.
    constants: Vec<u64>,
    /// By the address of the static: it is only compared.
    kernels: HashMap<*const Kernel, LoadedKernel>,
    /// Programs that came later, in their places, and the place of the next.
    late: Vec<Program>,
    next_late: usize,
    host: Vec<(Pinned, Event)>,
    next_host: usize,
    fetches: Vec<(Pinned, Event)>,
    /// What is written and read outside runs goes through here: a checkpoint takes no memory of its own.
    staging: RefCell<Pinned>,
    /// Raised by whoever no longer wants what is being computed.
    stop: Option<Arc<AtomicBool>>,
}

/// Bytes that are written or read at once outside runs.
const STAGING_BYTES: u64 = 4 << 20;

/// Results that are on their way to the host.
pub struct Fetch {
    layout: NamedLayout,
    memory: Pinned,
    arrived: Event,
}

/// What a program left for the host.
#[derive(Clone, Debug)]
pub struct Results {
    layout: NamedLayout,
    bytes: Vec<u8>,
}

impl Session {
    /// Takes the memory of `set` from `arena` and prepares its programs to run on `stream`. Spans and states are zero.
    /// `in_flight` runs can have their host values and results on the way at once.
    ///
    /// On NVIDIA cards every program is run once, on zeros, and then recorded; kernels that were never compiled on this
    /// machine are compiled first, which takes some 70 ms each, spread over the machine's workers.
    pub fn create(
        set: Arc<ProgramSet>,
        arena: &Arena,
        stream: Arc<Stream>,
        in_flight: usize,
    ) -> Result<Session, EngineError> {
        Session::create_with_progress(set, arena, stream, in_flight, &mut |_, _| {})
    }

    /// The same; `told` hears how many programs are ready, of how many. With none at first: memory is cleared and kernels
    /// are loaded before the first of them.
    pub fn create_with_progress(
        set: Arc<ProgramSet>,
        arena: &Arena,
        stream: Arc<Stream>,
        in_flight: usize,
        told: &mut dyn FnMut(usize, usize),
    ) -> Result<Session, EngineError> {
        told(0, set.programs.len());
        assert!(in_flight > 0, "a session in which nothing can be under way");
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
            recordings: Vec::new(),
            blocks,
            constants: Vec::new(),
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
            DeviceKind::Cuda => session.warm_up(told)?,
            DeviceKind::Cpu | DeviceKind::Simulated => told(set.programs.len(), set.programs.len()),
        }
        Ok(session)
    }

    /// From now on a run ends with [`EngineError::Stopped`] once `stop` is raised, between two steps of its program. What
    /// it has computed by then is nothing. For work that somebody waits for and may give up on.
    ///
    /// On NVIDIA cards a program is queued as a whole: the flag is looked at before it, and not in it.
    pub fn stop_when(&mut self, stop: Arc<AtomicBool>) {
        self.stop = Some(stop);
    }

    /// Runs every program once as it is, results and all, records it, and makes the memory zeros again.
    ///
    /// Libraries and the driver load code when it is first used, and must not while recording. Nothing has been written
    /// yet but constants, so that running on zeros harms nothing; what it leaves is cleared.
    fn warm_up(&mut self, told: &mut dyn FnMut(usize, usize)) -> Result<(), EngineError> {
        if self.blocks.contains_key(&MemoryKind::Workspace) {
            self.stream.device().prepare_gemms()?;
        }
        let count = self.set.programs.len();
        let programs = (0..count).map(ProgramId);
        for id in programs.clone() {
            self.queue_steps(id)?;
            let fetch = self.fetch(id)?;
            self.finish(fetch)?;
        }
        let lines = Lines::new(&self.stream)?;
        for id in programs {
            let recorded = self.record(id, &lines)?;
            self.recordings.push(recorded);
            told(id.0 + 1, count);
        }
        let written = self.blocks.iter().filter(|(holder, _)| **holder != MemoryKind::Constants);
        written.into_iter().try_for_each(|(_, block)| self.stream.fill(block.view(), 0))?;
        Ok(self.stream.drain()?)
    }

    /// Records a program: on NVIDIA cards in two lines, so that what nobody waits for fills the gaps of what is waited for.
    fn record(&self, id: ProgramId, lines: &Lines) -> Result<CapturedGraph, EngineError> {
        let capture = self.stream.begin_capture()?;
        let Some(side) = &lines.side else {
            self.queue_steps(id)?;
            return Ok(capture.end()?);
        };
        let Program { steps, asides, .. } = self.program(id);
        let mark = |aside: usize| &lines.marks[aside % lines.marks.len()];
        let (mut begun, mut joined) = (0, 0);
        for at in 0..=steps.len() {
            while joined < begun && asides[joined].until <= at {
                capture.join(mark(joined))?;
                joined += 1;
            }
            let Some(step) = steps.get(at) else { break };
            match asides.get(begun).filter(|aside| aside.steps.contains(&at)) {
                Some(aside) => {
                    if aside.steps.start == at {
                        capture.fork(side, &lines.fork)?;
                    }
                    self.queue_on(Line::Side(side), id, step)?;
                    if aside.steps.end == at + 1 {
                        capture.mark(side, mark(begun))?;
                        begun += 1;
                    }
                }
                None => self.queue(id, step)?,
            }
        }
        Ok(capture.end()?)
    }

    /// The programs.
    pub fn set(&self) -> &Arc<ProgramSet> {
        &self.set
    }

    /// The stream programs run on.
    pub fn stream(&self) -> &Arc<Stream> {
        &self.stream
    }

    /// Queues one run. `batch` lies as the program's inputs do; `host` gives every number the program asks of the host.
    pub fn run(
        &mut self,
        id: ProgramId,
        batch: Option<View<'_>>,
        host: &[(&str, HostValue<'_>)],
    ) -> Result<(), EngineError> {
        self.stage_inputs(id, batch, host)?;
        self.replay(id)
    }

    /// Queues the first half of a run: its numbers and its batch to where the program reads them. Behind it the batch is
    /// nobody's business any more; [`Session::replay`] is the other half.
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

    /// A run with a batch in page-locked memory, which must stay as it is until the run has begun: for data that does
    /// not come from a feed.
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

    /// Queues a program with the inputs and host values that are there.
    pub fn replay(&self, id: ProgramId) -> Result<(), EngineError> {
        self.go_on()?;
        match self.recordings.get(id.0) {
            Some(recorded) => Ok(self.stream.replay(recorded)?),
            None => self.queue_steps(id),
        }
    }

    /// Queues the steps of a program one by one.
    fn queue_steps(&self, id: ProgramId) -> Result<(), EngineError> {
        let program = self.program(id);
        for step in &program.steps {
            self.go_on()?;
            self.queue(id, step)?;
        }
        Ok(())
    }

    fn go_on(&self) -> Result<(), EngineError> {
        match &self.stop {
            Some(stop) if stop.load(Ordering::Relaxed) => Err(EngineError::Stopped),
            _ => Ok(()),
        }
    }

    /// Runs a program piece by piece, waiting for each, and says what each was and how long it took. What is measured so is
    /// where time goes, not how long a run takes: nothing overlaps.
    pub fn replay_timed(&self, id: ProgramId) -> Result<Vec<(&'static str, Duration)>, EngineError> {
        let mut times = Vec::new();
        for step in &self.program(id).steps {
            let begun = Instant::now();
            self.queue(id, step)?;
            self.stream.drain()?;
            times.push((step.name(), begun.elapsed()));
        }
        Ok(times)
    }

    /// Starts bringing a program's results to the host. They are what the last queued run leaves.
    ///
    /// Panics when as many are under way as the session was made for: the caller takes the oldest first.
    pub fn fetch(&mut self, id: ProgramId) -> Result<Fetch, EngineError> {
        let Some((mut memory, arrived)) = self.fetches.pop() else {
            panic!("{} fetches are under way, and none was finished", self.host.len())
        };
        let layout = self.program(id).results.clone();
        let bytes = layout.bytes;
        if bytes > 0 {
            self.stream.download_small(self.part(id, Region::Results, 0, bytes), &mut memory, 0..bytes)?;
        }
        self.stream.record(&arrived)?;
        Ok(Fetch { layout, memory, arrived })
    }

    /// Waits for a fetch, and gives its memory back.
    pub fn finish(&mut self, fetch: Fetch) -> Result<Results, EngineError> {
        fetch.arrived.synchronize("session: results")?;
        let Fetch { layout, memory, arrived } = fetch;
        let bytes = memory.bytes()?[..layout.bytes as usize].to_vec();
        self.fetches.push((memory, arrived));
        Ok(Results { layout, bytes })
    }

    /// Writes a whole span. Waits for the device: for set-up and for loading a checkpoint.
    pub fn write_span<T: Element>(&self, span: ParameterSpan, values: &[T]) -> Result<(), EngineError> {
        self.write(MemoryKind::ParameterSpan(span), 0, bytemuck::cast_slice(values))
    }

    /// Reads a whole span. Waits for the device.
    pub fn read_span<T: Element>(&self, span: ParameterSpan) -> Result<Vec<T>, EngineError> {
        let length = self.set.parameters.elements() * T::DTYPE.bytes();
        Ok(bytemuck::pod_collect_to_vec(&self.read(MemoryKind::ParameterSpan(span), 0, length)?))
    }

    /// Writes one field of the input block, as a batch would. It holds until another program runs: programs take turns in
    /// one memory. Waits for the device: for tests and synthesis.
    pub fn write_input<T: Element>(&self, id: ProgramId, name: &str, values: &[T]) -> Result<(), EngineError> {
        let field = self.program(id).inputs.find("input", name)?;
        same_type::<T>("input", name, field.ty, values.len())?;
        let base = self.program(id).base(Region::Inputs);
        self.write(MemoryKind::Working, base + field.offset, bytemuck::cast_slice(values))
    }

    /// Reads a state. Waits for the device.
    pub fn read_state<T: Element>(&self, name: &str) -> Result<Vec<T>, EngineError> {
        let field = self.set.states.find("state", name)?;
        let bytes = self.read(MemoryKind::States, field.offset, field.ty.bytes())?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    /// Writes a state. Waits for the device.
    pub fn write_state<T: Element>(&self, name: &str, values: &[T]) -> Result<(), EngineError> {
        let field = self.set.states.find("state", name)?;
        same_type::<T>("state", name, field.ty, values.len())?;
        self.write(MemoryKind::States, field.offset, bytemuck::cast_slice(values))
    }

    /// Fills the working memory with what no program wrote, so that reading before writing shows.
    #[cfg(test)]
    pub(crate) fn poison(&self) -> Result<(), EngineError> {
        match self.blocks.get(&MemoryKind::Working) {
            Some(working) => Ok(self.stream.fill(working.view(), 0x7F)?),
            None => Ok(()),
        }
    }

    fn write(&self, to: MemoryKind, mut offset: u64, bytes: &[u8]) -> Result<(), EngineError> {
        let mut staging = self.staging.borrow_mut();
        let most = staging.bytes()?.len();
        for piece in bytes.chunks(most) {
            let length = piece.len() as u64;
            staging.bytes_mut()?[..piece.len()].copy_from_slice(piece);
            self.stream.upload(&staging, 0..length, self.block(to).part(offset, length))?;
            self.stream.drain()?;
            offset += length;
        }
        Ok(())
    }

    fn read(&self, from: MemoryKind, offset: u64, length: u64) -> Result<Vec<u8>, EngineError> {
        let mut staging = self.staging.borrow_mut();
        let mut bytes = Vec::with_capacity(length as usize);
        while (bytes.len() as u64) < length {
            let done = bytes.len() as u64;
            let piece = (length - done).min(staging.bytes()?.len() as u64);
            self.stream.download(self.block(from).part(offset + done, piece), &mut staging, 0..piece)?;
            self.stream.drain()?;
            bytes.extend_from_slice(&staging.bytes()?[..piece as usize]);
        }
        Ok(bytes)
    }

    fn block(&self, holder: MemoryKind) -> &Block {
        match self.blocks.get(&holder) {
            Some(block) => block,
            None => panic!("no program of this session uses {holder:?}"),
        }
    }

    /// A part of a region, as program `id` sees it.
    fn part(&self, id: ProgramId, region: Region, offset: u64, bytes: u64) -> View<'_> {
        let (holder, base) = match region {
            Region::ParameterSpan(span) => (MemoryKind::ParameterSpan(span), 0),
            Region::States => (MemoryKind::States, 0),
            Region::Constants => (MemoryKind::Constants, self.constants[id.0]),
            working => (MemoryKind::Working, self.program(id).base(working)),
        };
        self.block(holder).part(base + offset, bytes)
    }

    fn load_kernels(&mut self, programs: &[Program]) -> Result<(), EngineError> {
        let device = self.stream.device();
        let (mut kernels, mut seen) = (Vec::new(), HashSet::new());
        for step in programs.iter().flat_map(|program| &program.steps) {
            let Launch::Kernel { kernel, .. } = step else { continue };
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
            self.constants.push(base);
            base += program.constant_bytes;
        }
        let (first, each) = self.set.late_constants();
        self.constants.extend((0..self.set.late_places as u64).map(|place| first + place * each));
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
        let at = self.next_host;
        self.next_host = (at + 1) % self.host.len();
        let (memory, read) = &mut self.host[at];
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
        let (memory, read) = &self.host[at];
        self.stream.upload_small(memory, 0..layout.bytes, to)?;
        Ok(self.stream.record(read)?)
    }

    fn queue(&self, id: ProgramId, step: &Launch) -> Result<(), EngineError> {
        self.queue_on(Line::First(&self.stream), id, step)
    }

    fn queue_on(&self, line: Line<'_>, id: ProgramId, step: &Launch) -> Result<(), EngineError> {
        let (Line::First(stream) | Line::Side(stream)) = line;
        let view = |place: &Location| self.part(id, place.region, place.offset, place.bytes);
        match step {
            Launch::Kernel { kernel, grid, args } => {
                let args: Vec<Arg<'_>> = args
                    .iter()
                    .map(|arg| match arg {
                        LaunchArg::Read(place, dtype) => Arg::In(view(place), *dtype),
                        LaunchArg::Write(place, dtype) => Arg::Out(view(place), *dtype),
                        LaunchArg::U32(n) => Arg::U32(*n),
                        LaunchArg::U64(n) => Arg::U64(*n),
                        LaunchArg::F32(x) => Arg::F32(*x),
                    })
                    .collect();
                let kernel: *const Kernel = *kernel;
                stream.launch(&self.kernels[&kernel], *grid, &args)?;
            }
            Launch::Gemm { gemm, a, b, c, bias } => {
                let workspace = self.blocks.get(&MemoryKind::Workspace).map(|block| line.workspace(block));
                stream.gemm(gemm, view(a), view(b), view(c), bias.as_ref().map(view), workspace)?;
            }
            Launch::Copy { from, to } => stream.copy(view(from), view(to))?,
            Launch::Clear { to } => stream.fill(view(to), 0)?,
        }
        Ok(())
    }

    /// What one program takes of the memory of the session, for reports.
    pub fn program(&self, id: ProgramId) -> &Program {
        program_of(&self.set, &self.late, id)
    }
}

/// Where a step is queued.
#[derive(Clone, Copy)]
enum Line<'a> {
    First(&'a Stream),
    Side(&'a Stream),
}

impl Line<'_> {
    /// Its part of the memory for GEMMs: two of them may be under way at once, one in each line.
    fn workspace(self, both: &Block) -> View<'_> {
        let offset = match self {
            Line::First(_) => 0,
            Line::Side(_) => Gemm::WORKSPACE_BYTES,
        };
        both.part(offset, Gemm::WORKSPACE_BYTES)
    }
}

/// What a recording of two lines is made with.
struct Lines {
    /// On NVIDIA cards. Less urgent: it takes what the first line leaves.
    side: Option<Stream>,
    fork: Event,
    /// How far the side has come, for each aside that may be under way, and one more.
    marks: Vec<Event>,
}

impl Lines {
    fn new(stream: &Stream) -> Result<Lines, DeviceError> {
        let device = stream.device();
        let is_cuda = device.machine().kind() == DeviceKind::Cuda;
        let side = is_cuda.then(|| device.stream(false)).transpose()?;
        let marks = (0..=ASIDES_AT_ONCE).map(|_| device.event()).collect::<Result<_, _>>()?;
        Ok(Lines { side, fork: device.event()?, marks })
    }
}

/// Late programs have the numbers behind those of the set.
fn program_of<'a>(set: &'a ProgramSet, late: &'a [Program], id: ProgramId) -> &'a Program {
    let known = set.programs.len();
    if id.0 < known { set.program(id) } else { &late[id.0 - known] }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Its memory goes back to the arena, and batches to those who lent them: nothing may still read or write there. A
        // lost card reads nothing any more.
        let _ = self.stream.drain();
    }
}

/// Numbers for a host value.
#[derive(Clone, Copy, Debug)]
pub enum HostValue<'a> {
    /// Real numbers.
    F32(&'a [f32]),
    /// Real numbers, in checks.
    F64(&'a [f64]),
    /// Whole numbers.
    I32(&'a [i32]),
    /// Whole numbers.
    U32(&'a [u32]),
}

impl HostValue<'_> {
    fn bytes(&self, name: &str, ty: TensorType) -> Result<&[u8], EngineError> {
        match self {
            HostValue::F32(x) => same_type::<f32>("host value", name, ty, x.len()).map(|()| bytemuck::cast_slice(x)),
            HostValue::F64(x) => same_type::<f64>("host value", name, ty, x.len()).map(|()| bytemuck::cast_slice(x)),
            HostValue::I32(x) => same_type::<i32>("host value", name, ty, x.len()).map(|()| bytemuck::cast_slice(x)),
            HostValue::U32(x) => same_type::<u32>("host value", name, ty, x.len()).map(|()| bytemuck::cast_slice(x)),
        }
    }
}

fn same_type<T: Element>(what: &'static str, name: &str, ty: TensorType, count: usize) -> Result<(), EngineError> {
    if ty.dtype == T::DTYPE && ty.shape.elements() == count as u64 {
        return Ok(());
    }
    let found = format!("{count} elements of {:?}", T::DTYPE);
    Err(EngineError::Mismatch { what, name: name.to_owned(), expected: ty, found })
}

impl Results {
    /// The elements of a result.
    pub fn get<T: Element>(&self, name: &str) -> Result<Vec<T>, EngineError> {
        let field = self.layout.find("result", name)?;
        let elements = field.ty.shape.elements() as usize;
        same_type::<T>("result", name, field.ty, elements)?;
        let bytes = &self.bytes[field.offset as usize..][..field.ty.bytes() as usize];
        Ok(bytemuck::pod_collect_to_vec(bytes))
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::{DType, Machine, SimSpec};

    use super::*;
    use crate::{Graph, Init, ParameterList, Recomputed, testing};

    /// A session with one program that adds gradients of a GEMM of weights.
    fn adding(machine: &Machine) -> (Session, ProgramId) {
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

    /// The gradients that three runs leave, in a session that was recorded or not.
    fn gradients(machine: &Machine, recorded: bool) -> Vec<f32> {
        let (mut session, id) = adding(machine);
        if recorded {
            session.warm_up(&mut |_, _| {}).unwrap();
            assert_eq!(session.recordings.len(), 1);
        }
        assert!(
            session.read_span::<f32>(ParameterSpan::Gradients).unwrap().iter().all(|&x| x == 0.0),
            "a warm-up is forgotten"
        );
        let values: Vec<f32> = (0..session.set.parameters.elements()).map(|i| i as f32 - 4.5).collect();
        session.write_span(ParameterSpan::Parameters, &values).unwrap();
        (0..3).for_each(|_| session.replay(id).unwrap());
        session.read_span(ParameterSpan::Gradients).unwrap()
    }

    #[test]
    fn a_recorded_program_does_what_its_steps_do() {
        let sim = "1x1GiB".parse::<SimSpec>().unwrap();
        for machine in [Machine::cpu(), Machine::simulated(sim)] {
            let steps = gradients(&machine, false);
            assert!(steps.iter().any(|&x| x != 0.0));
            assert_eq!(gradients(&machine, true), steps);
        }
    }

    #[test]
    fn a_card_that_breaks_in_mid_run_is_a_typed_error_and_keeps_nothing() {
        for seed in 0..8 {
            let sim = "1x1GiB".parse::<SimSpec>().unwrap().with_seed(seed);
            let machine = Machine::simulated(sim);
            let (mut session, id) = adding(&machine);
            session.replay(id).unwrap();
            session.stream().trap().unwrap();
            // What comes behind may still be taken in; the card has not come to it.
            let rest = session.replay(id).and_then(|()| session.fetch(id)).and_then(|fetch| session.finish(fetch));
            assert!(matches!(rest, Err(EngineError::Device(DeviceError::Lost { card: 0, .. }))), "{rest:?}");
            let saved = session.read_span::<f32>(ParameterSpan::Parameters);
            assert!(matches!(saved, Err(EngineError::Device(DeviceError::Lost { card: 0, .. }))), "{saved:?}");
            drop(session);
            assert_eq!(machine.sim().unwrap().alive(), Default::default(), "seed {seed}");
        }
    }

    #[test]
    fn a_span_longer_than_the_staging_comes_back_as_it_went() {
        // Two whole pieces and a short one; no two elements are alike, so that none can stand for another.
        let elements = 2 * STAGING_BYTES as u32 / 4 + 1000;
        let sim = "1x1GiB".parse::<SimSpec>().unwrap();
        for machine in [Machine::cpu(), Machine::simulated(sim)] {
            let mut list = ParameterList::new();
            list.weight("weight", &[elements], Init::Constant(0.0)).unwrap();
            let parameters = Arc::new(list.finish());
            let values: Vec<f32> = (0..parameters.elements()).map(|i| i as f32).collect();
            let session = testing::session(&machine, ProgramSet::new(parameters, DType::F32, &[]));
            assert_eq!(session.staging.borrow().len(), STAGING_BYTES);
            let before = machine.counters(0).pinned_allocations;
            session.write_span(ParameterSpan::Parameters, &values).unwrap();
            assert!(session.read_span::<f32>(ParameterSpan::Parameters).unwrap() == values, "on {:?}", machine.kind());
            assert_eq!(machine.counters(0).pinned_allocations, before, "nothing is taken for it");
        }
    }

    #[test]
    fn each_line_multiplies_in_memory_of_its_own() {
        let machine = Machine::simulated("1x1GiB".parse::<SimSpec>().unwrap());
        let (session, _) = adding(&machine);
        let (stream, both) = (session.stream(), session.block(MemoryKind::Workspace));
        for (line, sign) in [(Line::First(stream), 1), (Line::Side(stream), 2)] {
            assert_eq!(line.workspace(both).bytes(), Gemm::WORKSPACE_BYTES);
            stream.fill(line.workspace(both), sign).unwrap();
        }
        let bytes = session.read(MemoryKind::Workspace, 0, both.len()).unwrap();
        let (first, side) = bytes.split_at(bytes.len() / 2);
        assert!(first.iter().all(|&sign| sign == 1), "the side wrote where the first line multiplies");
        assert!(side.iter().all(|&sign| sign == 2));
    }

    #[test]
    fn only_cards_with_gemms_have_a_workspace() {
        let set = |multiplies: bool| {
            let mut graph = Graph::new(Default::default(), DType::F32);
            let one = graph.constant(&[1, 1], &[1.0_f32]);
            let value = if multiplies { graph.gemm(one, one, false, false, false).unwrap() } else { one };
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
