//! From a graph to a list of items in execution order: dead code elimination, kernel fusion (chains of pointwise ops become
//! one item), and in-place accumulation (gradients are added directly to persistent memory).

use std::collections::HashMap;
use std::sync::Arc;

use crate::graph::{Graph, Leaf, NodeKind, ParameterSpan, Value};
use crate::op::{Op, WriteMode};
use crate::ops::pointwise::{Chain, ChainBuilder};

/// One scheduled op: a node of the graph, or several fused ones.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) op: Arc<dyn Op>,
    pub(crate) inputs: Vec<Value>,
    pub(crate) outputs: Vec<Value>,
    /// The persistent leaf each output is written to directly, if any.
    pub(crate) destinations: Vec<Option<Destination>>,
    pub(crate) label: Arc<str>,
}

/// A persistent leaf that an output is written to directly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) leaf: Value,
    /// Whether the output is accumulated, not overwritten.
    pub(crate) accumulates: bool,
}

impl Item {
    fn new(op: Arc<dyn Op>, inputs: Vec<Value>, outputs: Vec<Value>, label: &Arc<str>) -> Item {
        let destinations = vec![None; outputs.len()];
        Item { op, inputs, outputs, destinations, label: label.clone() }
    }
}

/// The items of `graph`, in order.
pub(crate) fn schedule(graph: &Graph) -> Vec<Item> {
    let live = live_nodes(graph);
    let uses = count_uses(graph, &live);
    let mutations: Vec<u32> = (0..graph.nodes.len() as u32).filter(|&at| mutates(graph, at)).collect();
    let mut fused: HashMap<u32, ChainBuilder> = HashMap::new();
    let mut items = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate().filter(|(at, _)| live[*at]) {
        let NodeKind::Op(op) = &node.kind else { continue };
        let outputs: Vec<Value> =
            (0..node.outputs.len() as u32).map(|output| Value { node: at as u32, output }).collect();
        if let Some(function) = op.pointwise() {
            let mut chain = ChainBuilder::new(node.outputs[0]);
            chain.push(graph, function, &node.inputs, |value| fused.remove(&value.node));
            if fuses_into_its_reader(graph, outputs[0], &uses, &chain, &mutations) {
                fused.insert(at as u32, chain);
                continue;
            }
            let (chain, inputs): (Chain, Vec<Value>) = chain.finish(graph);
            items.push(Item::new(Arc::new(chain), inputs, outputs, &node.label));
            continue;
        }
        items.push(Item::new(op.clone(), node.inputs.clone(), outputs, &node.label));
    }
    assert!(fused.is_empty(), "a fused chain without a reader");
    write_directly(graph, fuse_additions(graph, items, &uses), &uses)
}

/// The readers of each value.
struct Uses {
    readers: HashMap<Value, Vec<u32>>,
}

impl Uses {
    fn only_reader(&self, value: Value) -> Option<u32> {
        match self.readers.get(&value).map(Vec::as_slice) {
            Some([reader]) => Some(*reader),
            _ => None,
        }
    }
}

/// Liveness of nodes: results and mutations of persistent memory depend on the live ones.
fn live_nodes(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.nodes.len()];
    for (_, value) in &graph.results {
        live[value.node as usize] = true;
    }
    for (at, node) in graph.nodes.iter().enumerate().rev() {
        live[at] |= mutates(graph, at as u32);
        if live[at] {
            node.inputs.iter().for_each(|input| live[input.node as usize] = true);
        }
    }
    live
}

fn count_uses(graph: &Graph, live: &[bool]) -> Uses {
    let mut readers: HashMap<Value, Vec<u32>> = HashMap::new();
    for (at, node) in graph.nodes.iter().enumerate().filter(|(at, _)| live[*at]) {
        for input in &node.inputs {
            readers.entry(*input).or_default().push(at as u32);
        }
    }
    for (_, value) in &graph.results {
        // The host reads a result once more.
        readers.entry(*value).or_default().push(u32::MAX);
    }
    Uses { readers }
}

fn mutates(graph: &Graph, node: u32) -> bool {
    matches!(&graph.nodes[node as usize].kind, NodeKind::Op(op) if !op.mutates().is_empty())
}

/// Whether a pointwise node is fused into its only reader. Not if it reads persistent memory and persistent memory is mutated
/// before that reader; `mutations` are the mutating nodes, in order.
fn fuses_into_its_reader(graph: &Graph, value: Value, uses: &Uses, chain: &ChainBuilder, mutations: &[u32]) -> bool {
    let Some(at) = uses.only_reader(value).filter(|at| (*at as usize) < graph.nodes.len()) else { return false };
    let reader = &graph.nodes[at as usize];
    let NodeKind::Op(op) = &reader.kind else { return false };
    if op.pointwise().is_none() || reader.outputs[0].shape != graph.shape(value) || !chain.has_room() {
        return false;
    }
    let next = mutations.partition_point(|mutation| *mutation < value.node);
    let unchanged = mutations.get(next).is_none_or(|mutation| *mutation > at);
    unchanged || chain.inputs().iter().all(|input| persistent_leaf(graph, *input).is_none())
}

/// The persistent leaf that `value` is, or is a view of.
pub(crate) fn persistent_leaf(graph: &Graph, value: Value) -> Option<&Leaf> {
    let node = &graph.nodes[value.node as usize];
    match &node.kind {
        NodeKind::Op(op) if op.is_view() => persistent_leaf(graph, node.inputs[0]),
        NodeKind::Leaf(Leaf::Input(_) | Leaf::Host(_) | Leaf::Constant(_)) | NodeKind::Op(_) => None,
        NodeKind::Leaf(leaf) => Some(leaf),
    }
}

/// Whether two persistent leaves may share memory.
pub(crate) fn may_alias(a: &Leaf, b: &Leaf) -> bool {
    let within = |leaf: &Leaf, span: ParameterSpan| match leaf {
        Leaf::Parameter(_) => matches!(span, ParameterSpan::Parameters | ParameterSpan::Compute),
        Leaf::Average(_) => span == ParameterSpan::Average,
        Leaf::Gradient(_) => span == ParameterSpan::Gradients,
        leaf => *leaf == Leaf::ParameterSpan(span),
    };
    match (a, b) {
        (Leaf::ParameterSpan(span), other) | (other, Leaf::ParameterSpan(span)) => within(other, *span),
        _ => a == b,
    }
}

/// The items that were not removed.
fn remaining(items: Vec<Item>, removed: &[bool]) -> Vec<Item> {
    items.into_iter().zip(removed).filter(|(_, removed)| !**removed).map(|(item, _)| item).collect()
}

/// Fuses the addition of two tensors into the producer of one of them, where that op supports it.
fn fuse_additions(graph: &Graph, mut items: Vec<Item>, uses: &Uses) -> Vec<Item> {
    let producers: HashMap<Value, usize> =
        items.iter().enumerate().flat_map(|(i, item)| item.outputs.iter().map(move |output| (*output, i))).collect();
    let mut removed = vec![false; items.len()];
    for i in 0..items.len() {
        let [a, b] = items[i].inputs[..] else { continue };
        if !items[i].op.is_addition() || a == b {
            continue;
        }
        let fused_into = |part: Value, other: Value| {
            let &producer = producers.get(&part)?;
            let item = &items[producer];
            let supported = item.op.can_fuse_addition() && item.outputs[0] == part && !removed[producer];
            // Persistent memory may be mutated between the producer and the addition.
            let ready = match producers.get(&other) {
                Some(&other) => other < producer,
                None => persistent_leaf(graph, other).is_none(),
            };
            (supported && ready && uses.only_reader(part).is_some()).then_some((producer, other))
        };
        if let Some((producer, other)) = fused_into(a, b).or_else(|| fused_into(b, a)) {
            let sum = items[i].outputs[0];
            items[producer].inputs.push(other);
            items[producer].outputs[0] = sum;
            removed[i] = true;
        }
    }
    remaining(items, &removed)
}

/// A value whose only reader stores it in persistent memory is written there, or accumulated, by its producer, if the
/// producer supports it and no item in between touches that memory.
fn write_directly(graph: &Graph, mut items: Vec<Item>, uses: &Uses) -> Vec<Item> {
    let producers: HashMap<Value, (usize, usize)> = items
        .iter()
        .enumerate()
        .flat_map(|(i, item)| item.outputs.iter().enumerate().map(move |(output, value)| (*value, (i, output))))
        .collect();
    // Accesses to persistent memory, in order.
    let touched: Vec<(usize, &Leaf)> = items
        .iter()
        .enumerate()
        .flat_map(|(i, item)| item.inputs.iter().filter_map(move |input| Some((i, persistent_leaf(graph, *input)?))))
        .collect();
    let touches = |between: std::ops::Range<usize>, leaf: Value| {
        let first = touched.partition_point(|(i, _)| *i < between.start);
        let inside = touched[first..].iter().take_while(|(i, _)| *i < between.end);
        persistent_leaf(graph, leaf).is_none_or(|leaf| inside.into_iter().any(|(_, other)| may_alias(other, leaf)))
    };
    let mut direct = Vec::new();
    let mut removed = vec![false; items.len()];
    for (i, item) in items.iter().enumerate() {
        let Some(mode) = item.op.write_mode() else { continue };
        let (leaf, value) = (item.inputs[0], item.inputs[1]);
        let Some(&(producer, output)) = producers.get(&value) else { continue };
        let op = &items[producer].op;
        let accumulates = mode == WriteMode::Accumulate;
        let supported = if accumulates { op.can_accumulate(output) } else { !op.is_view() };
        if supported && uses.only_reader(value).is_some() && !touches(producer..i, leaf) {
            direct.push((producer, output, Destination { leaf, accumulates }));
            removed[i] = true;
        }
    }
    for (producer, output, to) in direct {
        items[producer].destinations[output] = Some(to);
    }
    remaining(items, &removed)
}
