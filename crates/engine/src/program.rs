//! A program: a graph with every address settled, ready to be replayed.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use tandem_device::DType;
use tandem_device::bytes::{BLOCK_ALIGN, round_up};

use crate::error::EngineError;
use crate::graph::{Graph, Leaf, NodeKind, ParameterSpan, Value};
use crate::lower::{Launch, LaunchArg, Location, Lower, Region, Tensor};
use crate::memory_plan::{Buffer, BufferPlacement, MemoryPlan, ReusableSpan};
use crate::op::WriteMode;
use crate::schedule::{Destination, Item, lasting, meet, schedule};
use crate::tensor::TensorType;

/// A named tensor with a fixed place in its region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// What it is called.
    pub name: String,
    /// What it is.
    pub ty: TensorType,
    /// Its first byte in the region.
    pub offset: u64,
}

/// Named tensors one behind the other, each at a multiple of the block size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedLayout {
    /// The tensors.
    pub fields: Vec<Named>,
    /// All of it.
    pub bytes: u64,
}

impl NamedLayout {
    /// Puts a tensor behind the others, or finds it.
    pub fn place(&mut self, name: &str, ty: TensorType) -> Result<u64, EngineError> {
        if let Some(known) = self.fields.iter().find(|field| field.name == name) {
            if known.ty == ty {
                return Ok(known.offset);
            }
            let (what, name) = ("tensor", name.to_owned());
            return Err(EngineError::DeclaredTwice { what, name, first: known.ty, second: ty });
        }
        let offset = self.bytes;
        self.fields.push(Named { name: name.to_owned(), ty, offset });
        self.bytes = round_up(offset + ty.bytes(), BLOCK_ALIGN);
        Ok(offset)
    }

    /// The tensor of this name.
    pub fn find(&self, what: &'static str, name: &str) -> Result<&Named, EngineError> {
        self.fields.iter().find(|field| field.name == name).ok_or_else(|| EngineError::Unknown {
            what,
            name: name.to_owned(),
            known: self.fields.iter().map(|field| field.name.as_str()).collect::<Vec<_>>().join(", "),
        })
    }
}

/// A graph that was planned and lowered. Nothing in it changes from run to run but what lies in its memory.
#[derive(Clone, Debug)]
pub struct Program {
    pub(crate) steps: Vec<Launch>,
    pub(crate) inputs: NamedLayout,
    pub(crate) host: NamedLayout,
    pub(crate) results: NamedLayout,
    pub(crate) constants: Vec<(u64, Arc<[u8]>)>,
    pub(crate) constant_bytes: u64,
    pub(crate) memory: MemoryPlan,
    pub(crate) labels: Vec<Arc<str>>,
    pub(crate) asides: Vec<SideStreamOp>,
}

/// Steps that may run beside those behind them: what they make, nobody in the program reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SideStreamOp {
    pub(crate) steps: Range<usize>,
    /// The step that must not begin before they are done.
    pub(crate) until: usize,
}

/// Asides that may be under way at once: what one reads is kept until so many more begin. The more, the longer a GEMM
/// can wait for multiprocessors that the first line leaves idle; more than eight bring nothing (H200).
pub(crate) const ASIDES_AT_ONCE: usize = 8;

impl Program {
    /// Plans and lowers `graph`. `inputs` is where the fields of its batch lie; what the graph reads and the layout does
    /// not have is an error, what it does not read is no matter. `states` are those of the session so far.
    pub fn compile(graph: &Graph, inputs: &NamedLayout, states: &mut NamedLayout) -> Result<Program, EngineError> {
        Compiler::new(graph, inputs, states).run()
    }

    /// Where its batch lies.
    pub fn inputs(&self) -> &NamedLayout {
        &self.inputs
    }

    /// What the host sets before a run.
    pub fn host(&self) -> &NamedLayout {
        &self.host
    }

    /// What it leaves for the host.
    pub fn results(&self) -> &NamedLayout {
        &self.results
    }

    /// Its memory while it runs.
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// Its pieces of work.
    pub fn steps(&self) -> &[Launch] {
        &self.steps
    }

    /// Which part of the model each piece of work belongs to.
    pub fn labels(&self) -> &[Arc<str>] {
        &self.labels
    }

    /// Multiplications and additions of its GEMMs.
    pub fn gemm_flops(&self) -> u64 {
        let flops = |step: &Launch| match step {
            Launch::Gemm { gemm: p, .. } => 2 * u64::from(p.m) * u64::from(p.n) * u64::from(p.k) * u64::from(p.batch),
            _ => 0,
        };
        self.steps.iter().map(flops).sum()
    }

    /// Bytes it needs while it runs, in whole blocks: host values, batch, results and activations, one behind the other.
    pub fn working_bytes(&self) -> u64 {
        self.base(Region::Activations) + self.memory.peak_bytes
    }

    /// Where one of its regions begins in the working memory.
    pub(crate) fn base(&self, region: Region) -> u64 {
        let in_order = [self.host.bytes, self.inputs.bytes, self.results.bytes];
        let before = match region {
            Region::Inputs => 1,
            Region::Results => 2,
            Region::Activations => 3,
            _ => 0,
        };
        in_order[..before].iter().sum()
    }

    /// Bytes of its constants, in whole blocks.
    pub fn constant_bytes(&self) -> u64 {
        self.constant_bytes
    }
}

struct Compiler<'g> {
    graph: &'g Graph,
    states: &'g mut NamedLayout,
    items: Vec<Item>,
    /// Items that run beside those behind them, and the item that waits for each.
    asides: BTreeMap<usize, usize>,
    inputs: NamedLayout,
    host: NamedLayout,
    results: NamedLayout,
    constants: Vec<(u64, Arc<[u8]>)>,
    constant_bytes: u64,
    places: HashMap<Value, Location>,
}

/// The buffers of a program, and which of them each value lies in.
struct Buffers {
    list: Vec<Buffer>,
    of_value: HashMap<Value, usize>,
    scratch: Vec<Vec<usize>>,
    taken_over: Vec<Option<usize>>,
}

impl<'g> Compiler<'g> {
    fn new(graph: &'g Graph, inputs: &NamedLayout, states: &'g mut NamedLayout) -> Compiler<'g> {
        let items = schedule(graph);
        Compiler {
            graph,
            states,
            asides: asides(graph, &items),
            items,
            inputs: inputs.clone(),
            host: NamedLayout::default(),
            results: NamedLayout::default(),
            constants: Vec::new(),
            constant_bytes: 0,
            places: HashMap::new(),
        }
    }

    fn run(mut self) -> Result<Program, EngineError> {
        self.place_leaves()?;
        let buffers = self.buffers();
        let memory = MemoryPlan::solve(&buffers.list, &self.gradients_to_come());
        for (value, &buffer) in &buffers.of_value {
            self.places.insert(*value, place_in(memory.placements[buffer], self.graph.ty(*value).bytes()));
        }
        let (mut steps, mut labels, mut begins) = (Vec::new(), Vec::new(), Vec::new());
        for (at, item) in self.items.iter().enumerate() {
            begins.push(steps.len());
            self.lower(item, &memory, &buffers.scratch[at], buffers.taken_over[at], &mut steps)?;
            labels.resize(steps.len(), item.label.clone());
        }
        begins.push(steps.len());
        let aside =
            |(&at, &until): (&usize, &usize)| SideStreamOp { steps: begins[at]..begins[at + 1], until: begins[until] };
        let asides: Vec<SideStreamOp> = self.asides.iter().map(aside).collect();
        for (name, value) in &self.graph.results {
            let ty = self.graph.ty(*value);
            let offset = self.results.place(name, ty)?;
            let to = Location { region: Region::Results, offset, bytes: ty.bytes() };
            steps.push(Launch::Copy { from: self.place_of(*value), to });
        }
        labels.resize(steps.len(), "results".into());
        debug_assert_eq!(race(&steps, &asides), None, "steps that run at once and touch the same memory");
        Ok(Program {
            steps,
            inputs: self.inputs,
            host: self.host,
            results: self.results,
            constants: self.constants,
            constant_bytes: self.constant_bytes,
            memory,
            labels,
            asides,
        })
    }

    fn place_leaves(&mut self) -> Result<(), EngineError> {
        let read: std::collections::BTreeSet<Value> = self
            .items
            .iter()
            .flat_map(|item| item.inputs.iter().copied().chain(item.destinations.iter().flatten().map(|to| to.leaf)))
            .chain(self.graph.results.iter().map(|(_, value)| *value))
            .collect();
        for value in read {
            let node = &self.graph.nodes[value.node as usize];
            let NodeKind::Leaf(leaf) = &node.kind else { continue };
            let place = self.place_leaf(leaf, node.outputs[0])?;
            self.places.insert(value, place);
        }
        Ok(())
    }

    fn place_leaf(&mut self, leaf: &Leaf, ty: TensorType) -> Result<Location, EngineError> {
        let at = |region, offset| Location { region, offset, bytes: ty.bytes() };
        let parameters = self.graph.parameters();
        let width = ty.dtype.bytes();
        Ok(match leaf {
            Leaf::Parameter(id) => {
                let narrow = self.graph.precision() != self.graph.acc_dtype();
                let span = if narrow { ParameterSpan::Compute } else { ParameterSpan::Parameters };
                at(Region::ParameterSpan(span), parameters.get(*id).offset * width)
            }
            Leaf::Average(id) => at(Region::ParameterSpan(ParameterSpan::Average), parameters.get(*id).offset * width),
            Leaf::Gradient(id) => {
                at(Region::ParameterSpan(ParameterSpan::Gradients), parameters.get(*id).offset * width)
            }
            Leaf::ParameterSpan(span) => at(Region::ParameterSpan(*span), 0),
            Leaf::Input(name) => {
                let field = self.inputs.find("input", name)?;
                if field.ty.bytes() != ty.bytes() || field.ty.dtype != ty.dtype {
                    let (what, name, found) = ("input", name.clone(), ty.to_string());
                    return Err(EngineError::Mismatch { what, name, expected: field.ty, found });
                }
                at(Region::Inputs, field.offset)
            }
            Leaf::Host(name) => at(Region::Host, self.host.place(name, ty)?),
            Leaf::State(name) => at(Region::States, self.states.place(name, ty)?),
            Leaf::Constant(bytes) => {
                let offset = self.constant_bytes;
                self.constants.push((offset, bytes.clone()));
                self.constant_bytes = round_up(offset + ty.bytes(), BLOCK_ALIGN);
                at(Region::Constants, offset)
            }
        })
    }

    /// Gradients that the program puts in the place of old ones without having looked at those: until then their memory
    /// is free. What lies between two parameters and what the program does not write stays as it is.
    fn gradients_to_come(&self) -> Vec<ReusableSpan> {
        let parameters = self.graph.parameters();
        // The first item that touches a gradient, and whether all it does to it is to write the whole of it.
        let mut touched: Vec<Option<(usize, bool)>> = vec![None; parameters.iter().count()];
        for (at, item) in self.items.iter().enumerate() {
            let sent = item.destinations.iter().flatten().map(|to| (to.leaf, !to.adds));
            let instead = item.op.brings() == Some(WriteMode::Overwrite);
            let given = item.inputs.iter().enumerate().map(|(i, input)| (*input, instead && i == 0));
            for (value, replaces) in given.chain(sent) {
                match lasting(self.graph, value) {
                    Some(Leaf::Gradient(id)) => {
                        let whole = self.graph.shape(value).elements() == parameters.get(*id).shape.elements();
                        touch(&mut touched[id.0 as usize], at, replaces && whole);
                    }
                    Some(Leaf::ParameterSpan(ParameterSpan::Gradients)) => {
                        touched.iter_mut().for_each(|first| touch(first, at, false));
                    }
                    _ => {}
                }
            }
        }
        let width = self.graph.acc_dtype().bytes();
        let lent = parameters.iter().zip(touched).filter_map(|((_, parameter), touched)| match touched {
            Some((until, true)) => {
                let bytes = parameter.shape.elements() * width;
                Some(ReusableSpan { offset: parameter.offset * width, bytes, until })
            }
            _ => None,
        });
        let mut lent: Vec<ReusableSpan> = lent.collect();
        lent.sort_by_key(|part| part.offset);
        lent
    }

    /// When each value and each piece of scratch memory is needed.
    fn buffers(&self) -> Buffers {
        let mut last_read: HashMap<Value, usize> = HashMap::new();
        for (at, item) in self.items.iter().enumerate() {
            for input in &item.inputs {
                let last = last_read.entry(*input).or_default();
                *last = (*last).max(self.done_by(at));
            }
        }
        for (_, value) in &self.graph.results {
            last_read.insert(*value, self.items.len());
        }
        let mut buffers = Buffers {
            list: Vec::new(),
            of_value: HashMap::new(),
            scratch: vec![Vec::new(); self.items.len()],
            taken_over: vec![None; self.items.len()],
        };
        for (at, item) in self.items.iter().enumerate() {
            self.buffers_of(at, item, &last_read, &mut buffers);
        }
        buffers
    }

    fn buffers_of(&self, at: usize, item: &Item, last_read: &HashMap<Value, usize>, buffers: &mut Buffers) {
        let types: Vec<TensorType> = item.inputs.iter().map(|input| self.graph.ty(*input)).collect();
        let outputs: Vec<TensorType> = item.outputs.iter().map(|output| self.graph.ty(*output)).collect();
        let label = |what: &str| format!("{} {what}", item.label);
        for (i, (&output, ty)) in item.outputs.iter().zip(&outputs).enumerate() {
            // What goes straight to something that lasts, and a view of a leaf, need no memory of their own.
            let of_leaf = item.op.is_view() && !buffers.of_value.contains_key(&item.inputs[0]);
            if item.destinations[i].is_some() || of_leaf {
                continue;
            }
            let last = last_read.get(&output).copied().unwrap_or(at);
            let shared = (i == 0).then(|| self.shared_with(at, item, ty, buffers)).flatten();
            if let Some((input, buffer)) = shared {
                buffers.list[buffer].last = buffers.list[buffer].last.max(last);
                buffers.of_value.insert(output, buffer);
                buffers.taken_over[at] = (!item.op.is_view()).then_some(input);
                continue;
            }
            buffers.of_value.insert(output, buffers.list.len());
            buffers.list.push(Buffer { bytes: ty.bytes(), first: at, last, label: label(item.op.name()) });
        }
        for bytes in item.op.scratch(&types, &outputs) {
            buffers.scratch[at].push(buffers.list.len());
            buffers.list.push(Buffer { bytes, first: at, last: self.done_by(at), label: label("scratch") });
        }
    }

    /// The last moment at which an item may be at work.
    fn done_by(&self, item: usize) -> usize {
        self.asides.get(&item).map_or(item, |until| until - 1)
    }

    /// The input whose buffer the first output takes over, and that buffer.
    fn shared_with(&self, at: usize, item: &Item, ty: &TensorType, buffers: &Buffers) -> Option<(usize, usize)> {
        if item.op.is_view() {
            return buffers.of_value.get(&item.inputs[0]).map(|&buffer| (0, buffer));
        }
        item.op.may_overwrite().into_iter().find_map(|input| {
            let value = item.inputs[input];
            let &buffer = buffers.of_value.get(&value)?;
            let alone = item.inputs.iter().filter(|other| buffers.of_value.get(*other) == Some(&buffer)).count() == 1;
            let same = self.graph.ty(value).bytes() == ty.bytes() && self.graph.ty(value).dtype == ty.dtype;
            let ends = buffers.list[buffer].last == at;
            (alone && same && ends).then_some((input, buffer))
        })
    }

    fn lower(
        &self,
        item: &Item,
        memory: &MemoryPlan,
        scratch: &[usize],
        taken_over: Option<usize>,
        steps: &mut Vec<Launch>,
    ) -> Result<(), EngineError> {
        let tensor = |value: &Value| Tensor { ty: self.graph.ty(*value), place: self.place_of(*value) };
        let inputs: Vec<Tensor> = item.inputs.iter().map(tensor).collect();
        let placed = |(output, to): (&Value, &Option<Destination>)| tensor(&to.map_or(*output, |to| to.leaf));
        let outputs: Vec<Tensor> = item.outputs.iter().zip(&item.destinations).map(placed).collect();
        if item.op.is_view() {
            return Ok(());
        }
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
        let out_types: Vec<TensorType> = outputs.iter().map(|output| output.ty).collect();
        let sizes = item.op.scratch(&types, &out_types);
        let scratch: Vec<Tensor> = scratch
            .iter()
            .zip(sizes)
            .map(|(&buffer, bytes)| Tensor {
                ty: TensorType::new(DType::U8, &[bytes as u32]),
                place: place_in(memory.placements[buffer], bytes),
            })
            .collect();
        let adds: Vec<bool> = item.destinations.iter().map(|to| to.is_some_and(|to| to.adds)).collect();
        let (inputs, outputs, scratch) = (&inputs, &outputs, &scratch);
        item.op.lower(&mut Lower { inputs, outputs, scratch, taken_over, adds: &adds, steps })
    }

    /// A view of a leaf lies where the leaf lies.
    fn place_of(&self, value: Value) -> Location {
        match self.places.get(&value) {
            Some(place) => *place,
            None => self.place_of(self.graph.nodes[value.node as usize].inputs[0]),
        }
    }
}

/// Items that run beside those behind them, and the item that waits for each: the one that would be one too many at once,
/// or whoever touches what it writes, or the end.
fn asides(graph: &Graph, items: &[Item]) -> BTreeMap<usize, usize> {
    let is_aside = |item: &Item| item.op.runs_beside() && item.destinations.iter().all(Option::is_some);
    let found: Vec<usize> = (0..items.len()).filter(|&at| is_aside(&items[at])).collect();
    let touches = |item: &Item, leaf: &Leaf| {
        let sent = item.destinations.iter().flatten().map(|to| &to.leaf);
        item.inputs.iter().chain(sent).filter_map(|value| lasting(graph, *value)).any(|other| meet(other, leaf))
    };
    let until = |(i, &at): (usize, &usize)| {
        let most = found.get(i + ASIDES_AT_ONCE).copied().unwrap_or(items.len());
        let written = items[at].destinations.iter().flatten().filter_map(|to| lasting(graph, to.leaf));
        let touched = written.filter_map(|leaf| (at + 1..most).find(|&other| touches(&items[other], leaf))).min();
        (at, touched.unwrap_or(most))
    };
    found.iter().enumerate().map(until).collect()
}

/// The place of a buffer.
fn place_in(spot: BufferPlacement, bytes: u64) -> Location {
    match spot {
        BufferPlacement::Own(offset) => Location { region: Region::Activations, offset, bytes },
        BufferPlacement::Aliased(offset) => {
            Location { region: Region::ParameterSpan(ParameterSpan::Gradients), offset, bytes }
        }
    }
}

/// Two steps that may run at once although one of them writes what the other touches.
fn race(steps: &[Launch], asides: &[SideStreamOp]) -> Option<(usize, usize)> {
    let is_aside = |at: usize| asides.iter().any(|aside| aside.steps.contains(&at));
    let beside = |aside: &SideStreamOp| (aside.steps.end..aside.until).filter(|&at| !is_aside(at)).collect::<Vec<_>>();
    let pairs = asides.iter().flat_map(|aside| {
        let others = beside(aside);
        aside.steps.clone().flat_map(move |step| others.clone().into_iter().map(move |other| (step, other)))
    });
    let collide = |(a, b): &(usize, usize)| {
        let (a, b) = (touched_by(&steps[*a]), touched_by(&steps[*b]));
        let meet = |x: &Location, y: &Location| {
            x.region == y.region && x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes
        };
        a.iter().any(|(x, writes)| b.iter().any(|(y, also)| (*writes || *also) && meet(x, y)))
    };
    pairs.into_iter().find(collide)
}

/// The memory a step touches, and whether it writes there.
fn touched_by(step: &Launch) -> Vec<(Location, bool)> {
    match step {
        Launch::Kernel { args, .. } => args
            .iter()
            .filter_map(|arg| match arg {
                LaunchArg::Read(place, _) => Some((*place, false)),
                LaunchArg::Write(place, _) => Some((*place, true)),
                _ => None,
            })
            .collect(),
        Launch::Gemm { a, b, c, bias, .. } => {
            [(*a, false), (*b, false), (*c, true)].into_iter().chain(bias.map(|bias| (bias, false))).collect()
        }
        Launch::Copy { from, to } => vec![(*from, false), (*to, true)],
        Launch::Clear { to } => vec![(*to, true)],
    }
}

/// Something is touched at a moment: the first is kept, and of several things at once all must replace it.
fn touch(first: &mut Option<(usize, bool)>, at: usize, replaces: bool) {
    match first {
        None => *first = Some((at, replaces)),
        Some((moment, whole)) if *moment == at => *whole &= replaces,
        Some(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::Machine;

    use super::*;
    use crate::gradient::{Earlier, Recomputed};
    use crate::parameters::{Init, ParameterId, ParameterList, Parameters};
    use crate::program_set::ProgramSet;
    use crate::testing::session;

    const WIDTH: u32 = 24;

    /// Thirty matrices of 24 × 24, which do not fill their places, and one parameter that nothing reads.
    fn stack() -> (Arc<Parameters>, Vec<ParameterId>) {
        let mut list = ParameterList::new();
        let weights: Vec<ParameterId> =
            (0..30).map(|i| list.weight(&format!("layer {i}"), &[WIDTH, WIDTH], Init::Normal(0.3)).unwrap()).collect();
        list.weight("unread", &[WIDTH, WIDTH], Init::Normal(0.3)).unwrap();
        (Arc::new(list.finish()), weights)
    }

    /// A stack of layers with biases.
    fn biased(width: u32, layers: u32) -> Program {
        let mut list = ParameterList::new();
        let weights: Vec<[ParameterId; 2]> = (0..layers)
            .map(|i| {
                let weight = list.weight(&format!("weight {i}"), &[width, width], Init::Normal(0.3)).unwrap();
                [weight, list.vector(&format!("bias {i}"), &[width], Init::Constant(0.0)).unwrap()]
            })
            .collect();
        let ty = TensorType::new(DType::F32, &[16, width]);
        let mut layout = NamedLayout::default();
        layout.place("x", ty).unwrap();
        let mut graph = Graph::new(Arc::new(list.finish()), DType::F32);
        let mut x = graph.input("x", ty).unwrap();
        for [weight, bias] in weights {
            let (weight, bias) = (graph.parameter(weight), graph.parameter(bias));
            x = graph.linear(x, weight, Some(bias)).unwrap();
            x = graph.gelu(x).unwrap();
        }
        let loss = graph.sum_all(x).unwrap();
        graph.write_gradients(loss, Earlier::Forgotten, &Recomputed::new()).unwrap();
        Program::compile(&graph, &layout, &mut NamedLayout::default()).unwrap()
    }

    #[test]
    fn gradients_of_parameters_are_made_beside_what_follows_and_touch_nothing_of_it() {
        let program = biased(8, 12);
        assert_eq!(program.asides.len(), 24, "one for each weight, and one for each bias");
        assert!(program.asides[..20].iter().all(|aside| aside.until > aside.steps.end), "{:?}", program.asides);
        assert_eq!(race(&program.steps, &program.asides), None);
        // Were one not waited for, what it reads would be written over: the check can tell.
        let endless: Vec<SideStreamOp> =
            program.asides.iter().map(|aside| SideStreamOp { until: program.steps.len(), ..aside.clone() }).collect();
        assert!(race(&program.steps, &endless).is_some());
    }

    /// The gradients of a run on top of those that were there, and the memory of its own that it took.
    fn run(earlier: Earlier, before: f32) -> (Vec<f32>, u64) {
        let (parameters, weights) = stack();
        let ty = TensorType::new(DType::F32, &[16, WIDTH]);
        let mut layout = NamedLayout::default();
        layout.place("x", ty).unwrap();
        let mut graph = Graph::new(parameters.clone(), DType::F32);
        let mut x = graph.input("x", ty).unwrap();
        for weight in weights {
            let weight = graph.parameter(weight);
            x = graph.linear(x, weight, None).unwrap();
            x = graph.gelu(x).unwrap();
        }
        let loss = graph.mul(x, x).unwrap();
        let loss = graph.sum_all(loss).unwrap();
        graph.write_gradients(loss, earlier, &Recomputed::new()).unwrap();
        let mut set = ProgramSet::new(parameters.clone(), DType::F32, &[ParameterSpan::Gradients]);
        let id = set.add("accumulate", &graph, &layout).unwrap();
        let own = set.program(id).memory().peak_bytes;
        let mut session = session(&Machine::cpu(), set);
        let start: Vec<f32> = parameters.initial(3).into_iter().map(|x| x as f32).collect();
        session.write_span(ParameterSpan::Parameters, &start).unwrap();
        session.write_span(ParameterSpan::Gradients, &vec![before; start.len()]).unwrap();
        let x: Vec<f32> = (0..16 * WIDTH).map(|i| (i as f32 * 0.37).sin()).collect();
        session.write_input(id, "x", &x).unwrap();
        session.run(id, None, &[]).unwrap();
        (session.read_span(ParameterSpan::Gradients).unwrap(), own)
    }

    #[test]
    fn activations_lie_where_gradients_will_be_and_nowhere_else_in_their_span() {
        let (added, apart) = run(Earlier::Kept, 0.0);
        let (instead, guests) = run(Earlier::Forgotten, 7.0);
        assert!(3 * guests < 2 * apart, "{guests} of {apart} bytes");
        let (parameters, weights) = stack();
        let learnt = |i: u64| {
            let inside = |id: &ParameterId| {
                let parameter = parameters.get(*id);
                (parameter.offset..parameter.offset + parameter.shape.elements()).contains(&i)
            };
            weights.iter().any(inside)
        };
        let unread = parameters.iter().find(|(_, parameter)| parameter.name == "unread").unwrap().1;
        for (i, (added, instead)) in (0..).zip(added.iter().zip(&instead)) {
            let is_unread = (unread.offset..unread.offset + unread.shape.elements()).contains(&i);
            // The gradient of what is not read is zero; what lies between parameters is nobody's.
            let expected = if learnt(i) {
                *added
            } else if is_unread {
                0.0
            } else {
                7.0
            };
            assert_eq!(instead.to_bits(), expected.to_bits(), "element {i}");
        }
    }
}
