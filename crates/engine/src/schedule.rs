//! From a graph to a list of items in the order they run: what nobody needs is left out, element-wise chains become one
//! item, and sums of gradients go straight into their place.

use std::collections::HashMap;
use std::sync::Arc;

use crate::graph::{Graph, Leaf, NodeKind, ParameterSpan, Value};
use crate::op::{Op, WriteMode};
use crate::ops::pointwise::{Chain, ChainBuilder};

/// One thing to run.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) op: Arc<dyn Op>,
    pub(crate) inputs: Vec<Value>,
    pub(crate) outputs: Vec<Value>,
    /// Where outputs go straight to, one entry for each.
    pub(crate) destinations: Vec<Option<Destination>>,
    pub(crate) label: Arc<str>,
}

/// Something that lasts, which an output goes straight to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) leaf: Value,
    /// Whether it is added to what is there.
    pub(crate) adds: bool,
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
    let changes: Vec<u32> = (0..graph.nodes.len() as u32).filter(|&at| changes_something(graph, at)).collect();
    let mut fused: HashMap<u32, ChainBuilder> = HashMap::new();
    let mut items = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate().filter(|(at, _)| live[*at]) {
        let NodeKind::Op(op) = &node.kind else { continue };
        let outputs: Vec<Value> =
            (0..node.outputs.len() as u32).map(|output| Value { node: at as u32, output }).collect();
        if let Some(function) = op.pointwise() {
            let mut chain = ChainBuilder::new(node.outputs[0]);
            chain.push(graph, function, &node.inputs, |value| fused.remove(&value.node));
            if waits_for_its_only_reader(graph, outputs[0], &uses, &chain, &changes) {
                fused.insert(at as u32, chain);
                continue;
            }
            let (chain, inputs): (Chain, Vec<Value>) = chain.finish(graph);
            items.push(Item::new(Arc::new(chain), inputs, outputs, &node.label));
            continue;
        }
        items.push(Item::new(op.clone(), node.inputs.clone(), outputs, &node.label));
    }
    assert!(fused.is_empty(), "every chain has a reader");
    send_straight(graph, take_sums(graph, items, &uses), &uses)
}

/// Who reads each value, and how often.
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

/// Nodes that something which lasts depends on.
fn live_nodes(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.nodes.len()];
    for (_, value) in &graph.results {
        live[value.node as usize] = true;
    }
    for (at, node) in graph.nodes.iter().enumerate().rev() {
        live[at] |= changes_something(graph, at as u32);
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
        // A result is read once more, by the host.
        readers.entry(*value).or_default().push(u32::MAX);
    }
    Uses { readers }
}

fn changes_something(graph: &Graph, node: u32) -> bool {
    matches!(&graph.nodes[node as usize].kind, NodeKind::Op(op) if !op.mutates().is_empty())
}

/// Whether an element-wise node is left to be computed inside the one node that reads it. Not where it reads something
/// that lasts and something that lasts is changed in between; `changes` are the nodes that do, in order.
fn waits_for_its_only_reader(graph: &Graph, value: Value, uses: &Uses, chain: &ChainBuilder, changes: &[u32]) -> bool {
    let Some(at) = uses.only_reader(value).filter(|at| (*at as usize) < graph.nodes.len()) else { return false };
    let reader = &graph.nodes[at as usize];
    let NodeKind::Op(op) = &reader.kind else { return false };
    if op.pointwise().is_none() || reader.outputs[0].shape != graph.shape(value) || !chain.has_room() {
        return false;
    }
    let next_change = changes.partition_point(|change| *change < value.node);
    let unchanged = changes.get(next_change).is_none_or(|change| *change > at);
    unchanged || chain.inputs().iter().all(|input| lasting(graph, *input).is_none())
}

/// The leaf that lasts from run to run and that `value` is or is a view of, if it is.
pub(crate) fn lasting(graph: &Graph, value: Value) -> Option<&Leaf> {
    let node = &graph.nodes[value.node as usize];
    match &node.kind {
        NodeKind::Op(op) if op.is_view() => lasting(graph, node.inputs[0]),
        NodeKind::Leaf(Leaf::Input(_) | Leaf::Host(_) | Leaf::Constant(_)) | NodeKind::Op(_) => None,
        NodeKind::Leaf(leaf) => Some(leaf),
    }
}

/// Whether two leaves that last may share memory.
pub(crate) fn meet(a: &Leaf, b: &Leaf) -> bool {
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

/// The items that were not left to others.
fn kept(items: Vec<Item>, dropped: &[bool]) -> Vec<Item> {
    items.into_iter().zip(dropped).filter(|(_, dropped)| !**dropped).map(|(item, _)| item).collect()
}

/// A sum of two, of which one is made by an op that can add another to what it makes, is left to that op.
fn take_sums(graph: &Graph, mut items: Vec<Item>, uses: &Uses) -> Vec<Item> {
    let made: HashMap<Value, usize> =
        items.iter().enumerate().flat_map(|(i, item)| item.outputs.iter().map(move |output| (*output, i))).collect();
    let mut dropped = vec![false; items.len()];
    for i in 0..items.len() {
        let [a, b] = items[i].inputs[..] else { continue };
        if !items[i].op.is_sum_of_two() || a == b {
            continue;
        }
        let by_taker = |part: Value, other: Value| {
            let &maker = made.get(&part)?;
            let takes = items[maker].op.can_take_one_more() && items[maker].outputs[0] == part && !dropped[maker];
            // What lasts may have changed in between.
            let ready = match made.get(&other) {
                Some(&other) => other < maker,
                None => lasting(graph, other).is_none(),
            };
            (takes && ready && uses.only_reader(part).is_some()).then_some((maker, other))
        };
        if let Some((maker, other)) = by_taker(a, b).or_else(|| by_taker(b, a)) {
            let sum = items[i].outputs[0];
            items[maker].inputs.push(other);
            items[maker].outputs[0] = sum;
            dropped[i] = true;
        }
    }
    kept(items, &dropped)
}

/// What only goes to something that lasts is written there, or added, by the op that makes it, where that op can and nobody
/// in between looks at the place.
fn send_straight(graph: &Graph, mut items: Vec<Item>, uses: &Uses) -> Vec<Item> {
    let makers: HashMap<Value, (usize, usize)> = items
        .iter()
        .enumerate()
        .flat_map(|(i, item)| item.outputs.iter().enumerate().map(move |(output, value)| (*value, (i, output))))
        .collect();
    // Items that read or change something that lasts, in order.
    let touched: Vec<(usize, &Leaf)> = items
        .iter()
        .enumerate()
        .flat_map(|(i, item)| item.inputs.iter().filter_map(move |input| Some((i, lasting(graph, *input)?))))
        .collect();
    let touches = |between: std::ops::Range<usize>, place: Value| {
        let first = touched.partition_point(|(i, _)| *i < between.start);
        let inside = touched[first..].iter().take_while(|(i, _)| *i < between.end);
        lasting(graph, place).is_none_or(|place| inside.into_iter().any(|(_, leaf)| meet(leaf, place)))
    };
    let mut straight = Vec::new();
    let mut dropped = vec![false; items.len()];
    for (i, item) in items.iter().enumerate() {
        let Some(brings) = item.op.brings() else { continue };
        let (leaf, part) = (item.inputs[0], item.inputs[1]);
        let Some(&(maker, output)) = makers.get(&part) else { continue };
        let op = &items[maker].op;
        let can = if brings == WriteMode::Accumulate { op.can_add(output) } else { !op.is_view() };
        if can && uses.only_reader(part).is_some() && !touches(maker..i, leaf) {
            straight.push((maker, output, Destination { leaf, adds: brings == WriteMode::Accumulate }));
            dropped[i] = true;
        }
    }
    for (maker, output, to) in straight {
        items[maker].destinations[output] = Some(to);
    }
    kept(items, &dropped)
}
