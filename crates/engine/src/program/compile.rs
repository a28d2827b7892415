//! Compiling a graph: schedule it, place every buffer, lower every op to launches.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use tandem_device::DType;
use tandem_device::bytes::{BLOCK_ALIGN, round_up};

use super::side_stream::{SideStreamOp, race, side_stream_items};
use super::{NamedLayout, Program};
use crate::error::EngineError;
use crate::graph::{Graph, Leaf, NodeKind, ParameterSpan, Value};
use crate::lower::{Launch, Location, Lower, Region, Tensor};
use crate::memory_plan::{Buffer, BufferPlacement, MemoryPlan, ReusableSpan};
use crate::op::WriteMode;
use crate::schedule::{Destination, Item, persistent_leaf, schedule};
use crate::tensor::TensorType;

pub(super) struct GraphCompiler<'g> {
    graph: &'g Graph,
    states: &'g mut NamedLayout,
    items: Vec<Item>,
    /// Items that run on the side stream, each with the item before which it is joined.
    side_stream: BTreeMap<usize, usize>,
    inputs: NamedLayout,
    host: NamedLayout,
    results: NamedLayout,
    constants: Vec<(u64, Arc<[u8]>)>,
    constant_bytes: u64,
    locations: HashMap<Value, Location>,
}

/// The buffers of a program.
struct Buffers {
    list: Vec<Buffer>,
    /// The buffer of each value.
    of_value: HashMap<Value, usize>,
    /// The scratch buffers of each item.
    scratch: Vec<Vec<usize>>,
    /// The input that each item overwrites in place, if any.
    overwritten: Vec<Option<usize>>,
}

impl<'g> GraphCompiler<'g> {
    pub(super) fn new(graph: &'g Graph, inputs: &NamedLayout, states: &'g mut NamedLayout) -> GraphCompiler<'g> {
        let items = schedule(graph);
        GraphCompiler {
            graph,
            states,
            side_stream: side_stream_items(graph, &items),
            items,
            inputs: inputs.clone(),
            host: NamedLayout::default(),
            results: NamedLayout::default(),
            constants: Vec::new(),
            constant_bytes: 0,
            locations: HashMap::new(),
        }
    }

    pub(super) fn run(mut self) -> Result<Program, EngineError> {
        self.place_leaves()?;
        let buffers = self.buffers();
        let memory = MemoryPlan::solve(&buffers.list, &self.reusable_gradients());
        for (value, &buffer) in &buffers.of_value {
            self.locations.insert(*value, location(memory.placements[buffer], self.graph.ty(*value).bytes()));
        }
        let (mut launches, mut labels, mut starts) = (Vec::new(), Vec::new(), Vec::new());
        for (at, item) in self.items.iter().enumerate() {
            starts.push(launches.len());
            self.lower(at, &buffers, &memory, &mut launches)?;
            labels.resize(launches.len(), item.label.clone());
        }
        starts.push(launches.len());
        let side_stream_op = |(&at, &join): (&usize, &usize)| SideStreamOp {
            launches: starts[at]..starts[at + 1],
            join_before: starts[join],
        };
        let side_stream_ops: Vec<SideStreamOp> = self.side_stream.iter().map(side_stream_op).collect();
        for (name, value) in &self.graph.results {
            let ty = self.graph.ty(*value);
            let offset = self.results.place(name, ty)?;
            let to = Location { region: Region::Results, offset, bytes: ty.bytes() };
            launches.push(Launch::Copy { from: self.location_of(*value), to });
        }
        labels.resize(launches.len(), "results".into());
        debug_assert_eq!(race(&launches, &side_stream_ops), None, "concurrent launches touch the same memory");
        Ok(Program {
            launches,
            inputs: self.inputs,
            host: self.host,
            results: self.results,
            constants: self.constants,
            constant_bytes: self.constant_bytes,
            memory,
            labels,
            side_stream_ops,
        })
    }

    fn place_leaves(&mut self) -> Result<(), EngineError> {
        let read: BTreeSet<Value> = self
            .items
            .iter()
            .flat_map(|item| item.inputs.iter().copied().chain(item.destinations.iter().flatten().map(|to| to.leaf)))
            .chain(self.graph.results.iter().map(|(_, value)| *value))
            .collect();
        for value in read {
            let node = &self.graph.nodes[value.node as usize];
            let NodeKind::Leaf(leaf) = &node.kind else { continue };
            let location = self.place_leaf(leaf, node.outputs[0])?;
            self.locations.insert(value, location);
        }
        Ok(())
    }

    fn place_leaf(&mut self, leaf: &Leaf, ty: TensorType) -> Result<Location, EngineError> {
        let at = |region, offset| Location { region, offset, bytes: ty.bytes() };
        let parameters = self.graph.parameters();
        let width = ty.dtype.bytes();
        Ok(match leaf {
            Leaf::Parameter(id) => {
                let has_compute_copy = self.graph.precision() != self.graph.acc_dtype();
                let span = if has_compute_copy { ParameterSpan::Compute } else { ParameterSpan::Parameters };
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

    /// The gradients that the program overwrites without having read them: activations may alias their memory until then.
    /// Alignment gaps between parameters, and gradients that the program does not write, stay untouched.
    fn reusable_gradients(&self) -> Vec<ReusableSpan> {
        let parameters = self.graph.parameters();
        let mut first_access: Vec<Option<FirstAccess>> = vec![None; parameters.iter().count()];
        for (at, item) in self.items.iter().enumerate() {
            let written = item.destinations.iter().flatten().map(|to| (to.leaf, !to.accumulates));
            let stores = item.op.write_mode() == Some(WriteMode::Overwrite);
            let read = item.inputs.iter().enumerate().map(|(i, input)| (*input, stores && i == 0));
            for (value, overwrites) in read.chain(written) {
                match persistent_leaf(self.graph, value) {
                    Some(Leaf::Gradient(id)) => {
                        let complete = self.graph.shape(value).elements() == parameters.get(*id).shape.elements();
                        FirstAccess::note(&mut first_access[id.0 as usize], at, overwrites && complete);
                    }
                    Some(Leaf::ParameterSpan(ParameterSpan::Gradients)) => {
                        first_access.iter_mut().for_each(|access| FirstAccess::note(access, at, false));
                    }
                    _ => {}
                }
            }
        }
        let width = self.graph.acc_dtype().bytes();
        let reusable = parameters.iter().zip(first_access).filter_map(|((_, parameter), access)| {
            let until = access.filter(|access| access.overwrites)?.item;
            let bytes = parameter.shape.elements() * width;
            Some(ReusableSpan { offset: parameter.offset * width, bytes, until })
        });
        let mut reusable: Vec<ReusableSpan> = reusable.collect();
        reusable.sort_by_key(|span| span.offset);
        reusable
    }

    /// The live range of each value and of each scratch buffer.
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
            overwritten: vec![None; self.items.len()],
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
            // An output written directly to a persistent leaf, and a view of a leaf, need no buffer.
            let view_of_leaf = item.op.is_view() && !buffers.of_value.contains_key(&item.inputs[0]);
            if item.destinations[i].is_some() || view_of_leaf {
                continue;
            }
            let last = last_read.get(&output).copied().unwrap_or(at);
            let shared = (i == 0).then(|| self.shared_with(at, item, ty, buffers)).flatten();
            if let Some((input, buffer)) = shared {
                buffers.list[buffer].last = buffers.list[buffer].last.max(last);
                buffers.of_value.insert(output, buffer);
                buffers.overwritten[at] = (!item.op.is_view()).then_some(input);
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

    /// The last item during which an item may still run: itself, unless it runs on the side stream.
    fn done_by(&self, item: usize) -> usize {
        self.side_stream.get(&item).map_or(item, |join| join - 1)
    }

    /// The input that the first output shares a buffer with (as a view, or in place), and that buffer.
    fn shared_with(&self, at: usize, item: &Item, ty: &TensorType, buffers: &Buffers) -> Option<(usize, usize)> {
        if item.op.is_view() {
            return buffers.of_value.get(&item.inputs[0]).map(|&buffer| (0, buffer));
        }
        item.op.may_overwrite().into_iter().find_map(|input| {
            let value = item.inputs[input];
            let &buffer = buffers.of_value.get(&value)?;
            let alone = item.inputs.iter().filter(|other| buffers.of_value.get(*other) == Some(&buffer)).count() == 1;
            let same = self.graph.ty(value).bytes() == ty.bytes() && self.graph.ty(value).dtype == ty.dtype;
            let dies_here = buffers.list[buffer].last == at;
            (alone && same && dies_here).then_some((input, buffer))
        })
    }

    /// Emits the launches of the item at `at`.
    fn lower(
        &self,
        at: usize,
        buffers: &Buffers,
        memory: &MemoryPlan,
        launches: &mut Vec<Launch>,
    ) -> Result<(), EngineError> {
        let item = &self.items[at];
        if item.op.is_view() {
            return Ok(());
        }
        let tensor = |value: &Value| Tensor { ty: self.graph.ty(*value), location: self.location_of(*value) };
        let inputs: Vec<Tensor> = item.inputs.iter().map(tensor).collect();
        let placed = |(output, to): (&Value, &Option<Destination>)| tensor(&to.map_or(*output, |to| to.leaf));
        let outputs: Vec<Tensor> = item.outputs.iter().zip(&item.destinations).map(placed).collect();
        let input_types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
        let output_types: Vec<TensorType> = outputs.iter().map(|output| output.ty).collect();
        let sizes = item.op.scratch(&input_types, &output_types);
        let scratch: Vec<Tensor> = buffers.scratch[at]
            .iter()
            .zip(sizes)
            .map(|(&buffer, bytes)| Tensor {
                ty: TensorType::new(DType::U8, &[bytes as u32]),
                location: location(memory.placements[buffer], bytes),
            })
            .collect();
        let accumulates: Vec<bool> = item.destinations.iter().map(|to| to.is_some_and(|to| to.accumulates)).collect();
        item.op.lower(&mut Lower {
            inputs: &inputs,
            outputs: &outputs,
            scratch: &scratch,
            in_place_input: buffers.overwritten[at],
            accumulates: &accumulates,
            launches,
        })
    }

    /// A view of a leaf has the location of the leaf.
    fn location_of(&self, value: Value) -> Location {
        match self.locations.get(&value) {
            Some(location) => *location,
            None => self.location_of(self.graph.nodes[value.node as usize].inputs[0]),
        }
    }
}

/// The location of a buffer.
fn location(placement: BufferPlacement, bytes: u64) -> Location {
    match placement {
        BufferPlacement::Own(offset) => Location { region: Region::Activations, offset, bytes },
        BufferPlacement::Aliased(offset) => {
            Location { region: Region::ParameterSpan(ParameterSpan::Gradients), offset, bytes }
        }
    }
}

/// The first item that accesses a gradient.
#[derive(Clone, Copy)]
struct FirstAccess {
    item: usize,
    /// Whether it only overwrites the gradient, and completely.
    overwrites: bool,
}

impl FirstAccess {
    /// Notes an access by `item`, which comes in order. Of several accesses by one item, all must overwrite.
    fn note(first: &mut Option<FirstAccess>, item: usize, overwrites: bool) {
        match first {
            None => *first = Some(FirstAccess { item, overwrites }),
            Some(access) if access.item == item => access.overwrites &= overwrites,
            Some(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::Machine;

    use super::*;
    use crate::gradient::Recomputed;
    use crate::parameters::{Init, ParameterId, ParameterList, Parameters};
    use crate::program_set::ProgramSet;
    use crate::testing::session;

    const WIDTH: u32 = 24;

    /// Thirty matrices of 24 × 24, which leave alignment gaps, and one parameter that no op reads.
    fn stack() -> (Arc<Parameters>, Vec<ParameterId>) {
        let mut list = ParameterList::new();
        let weights: Vec<ParameterId> =
            (0..30).map(|i| list.weight(&format!("layer {i}"), &[WIDTH, WIDTH], Init::Normal(0.3)).unwrap()).collect();
        list.weight("unread", &[WIDTH, WIDTH], Init::Normal(0.3)).unwrap();
        (Arc::new(list.finish()), weights)
    }

    /// The gradients after a run that starts with gradients of `before`, and the activation memory of the program.
    fn run(mode: WriteMode, before: f32) -> (Vec<f32>, u64) {
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
        graph.write_gradients(loss, mode, &Recomputed::new()).unwrap();
        let mut set = ProgramSet::new(parameters.clone(), DType::F32, &[ParameterSpan::Gradients]);
        let id = set.add("accumulate", &graph, &layout).unwrap();
        let activation_bytes = set.program(id).memory().peak_bytes;
        let mut session = session(&Machine::cpu(), set);
        let start: Vec<f32> = parameters.initial(3).into_iter().map(|x| x as f32).collect();
        session.write_span(ParameterSpan::Parameters, &start).unwrap();
        session.write_span(ParameterSpan::Gradients, &vec![before; start.len()]).unwrap();
        let x: Vec<f32> = (0..16 * WIDTH).map(|i| (i as f32 * 0.37).sin()).collect();
        session.write_input(id, "x", &x).unwrap();
        session.run(id, None, &[]).unwrap();
        (session.read_span(ParameterSpan::Gradients).unwrap(), activation_bytes)
    }

    #[test]
    fn activations_alias_gradients_that_are_written_later_and_nothing_else_in_their_span() {
        let (accumulated, without_aliasing) = run(WriteMode::Accumulate, 0.0);
        let (overwritten, with_aliasing) = run(WriteMode::Overwrite, 7.0);
        assert!(3 * with_aliasing < 2 * without_aliasing, "{with_aliasing} of {without_aliasing} bytes");
        let (parameters, weights) = stack();
        let is_trained = |i: u64| {
            let inside = |id: &ParameterId| {
                let parameter = parameters.get(*id);
                (parameter.offset..parameter.offset + parameter.shape.elements()).contains(&i)
            };
            weights.iter().any(inside)
        };
        let unread = parameters.iter().find(|(_, parameter)| parameter.name == "unread").unwrap().1;
        for (i, (accumulated, overwritten)) in (0..).zip(accumulated.iter().zip(&overwritten)) {
            let is_unread = (unread.offset..unread.offset + unread.shape.elements()).contains(&i);
            // The gradient of the unread parameter is zero; alignment gaps are untouched.
            let expected = if is_trained(i) {
                *accumulated
            } else if is_unread {
                0.0
            } else {
                7.0
            };
            assert_eq!(overwritten.to_bits(), expected.to_bits(), "element {i}");
        }
    }
}
