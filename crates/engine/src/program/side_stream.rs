//! Ops on the side stream: the captured graph forks it for gradients that no other op of the program reads.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::graph::{Graph, Leaf};
use crate::lower::{Launch, LaunchArg, Location};
use crate::schedule::{Item, may_alias, persistent_leaf};

/// Launches of one op on the side stream. They run concurrently with the main stream's launches up to the join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SideStreamOp {
    pub(crate) launches: Range<usize>,
    /// The launch before which the main stream joins them.
    pub(crate) join_before: usize,
}

/// Side-stream ops in flight at most: the inputs of one stay allocated until this many more begin. The more, the longer a
/// GEMM can wait for multiprocessors that the main stream leaves idle; more than eight gain nothing (H200).
pub(crate) const SIDE_STREAM_OPS_IN_FLIGHT: usize = 8;

/// The items that run on the side stream, each with the item before which it is joined: the next one that touches the memory
/// it writes, the one that would exceed [`SIDE_STREAM_OPS_IN_FLIGHT`], or the end of the program.
pub(super) fn side_stream_items(graph: &Graph, items: &[Item]) -> BTreeMap<usize, usize> {
    let on_side_stream = |item: &Item| item.op.runs_on_side_stream() && item.destinations.iter().all(Option::is_some);
    let found: Vec<usize> = (0..items.len()).filter(|&at| on_side_stream(&items[at])).collect();
    let touches = |item: &Item, leaf: &Leaf| {
        let written = item.destinations.iter().flatten().map(|to| &to.leaf);
        let accessed = item.inputs.iter().chain(written).filter_map(|value| persistent_leaf(graph, *value));
        accessed.into_iter().any(|other| may_alias(other, leaf))
    };
    let join = |(i, &at): (usize, &usize)| {
        let latest = found.get(i + SIDE_STREAM_OPS_IN_FLIGHT).copied().unwrap_or(items.len());
        let written = items[at].destinations.iter().flatten().filter_map(|to| persistent_leaf(graph, to.leaf));
        let touched = written.filter_map(|leaf| (at + 1..latest).find(|&other| touches(&items[other], leaf))).min();
        (at, touched.unwrap_or(latest))
    };
    found.iter().enumerate().map(join).collect()
}

/// Two launches that may run concurrently although one of them writes memory that the other touches.
pub(super) fn race(launches: &[Launch], ops: &[SideStreamOp]) -> Option<(usize, usize)> {
    let on_side_stream = |at: usize| ops.iter().any(|op| op.launches.contains(&at));
    let concurrent =
        |op: &SideStreamOp| (op.launches.end..op.join_before).filter(|&at| !on_side_stream(at)).collect::<Vec<_>>();
    let pairs = ops.iter().flat_map(|op| {
        let others = concurrent(op);
        op.launches.clone().flat_map(move |launch| others.clone().into_iter().map(move |other| (launch, other)))
    });
    let collide = |(a, b): &(usize, usize)| {
        let (a, b) = (accesses(&launches[*a]), accesses(&launches[*b]));
        a.iter().any(|x| b.iter().any(|y| (x.writes || y.writes) && overlap(&x.location, &y.location)))
    };
    pairs.into_iter().find(collide)
}

fn overlap(x: &Location, y: &Location) -> bool {
    x.region == y.region && x.offset < y.offset + y.bytes && y.offset < x.offset + x.bytes
}

/// Memory that a launch touches.
struct Access {
    location: Location,
    writes: bool,
}

fn accesses(launch: &Launch) -> Vec<Access> {
    let read = |location: &Location| Access { location: *location, writes: false };
    let write = |location: &Location| Access { location: *location, writes: true };
    match launch {
        Launch::Kernel { args, .. } => args
            .iter()
            .filter_map(|arg| match arg {
                LaunchArg::Read(location, _) => Some(read(location)),
                LaunchArg::Write(location, _) => Some(write(location)),
                _ => None,
            })
            .collect(),
        Launch::Gemm { a, b, c, bias, .. } => {
            [read(a), read(b), write(c)].into_iter().chain(bias.as_ref().map(read)).collect()
        }
        Launch::Copy { from, to } => vec![read(from), write(to)],
        Launch::Clear { to } => vec![write(to)],
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tandem_device::DType;

    use super::*;
    use crate::gradient::Recomputed;
    use crate::op::WriteMode;
    use crate::parameters::{Init, ParameterId, ParameterList};
    use crate::program::{NamedLayout, Program};
    use crate::tensor::TensorType;

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
        graph.write_gradients(loss, WriteMode::Overwrite, &Recomputed::new()).unwrap();
        Program::compile(&graph, &layout, &mut NamedLayout::default()).unwrap()
    }

    #[test]
    fn parameter_gradients_run_on_the_side_stream_without_a_race() {
        let program = biased(8, 12);
        let ops = &program.side_stream_ops;
        assert_eq!(ops.len(), 24, "one for each weight, and one for each bias");
        assert!(ops[..20].iter().all(|op| op.join_before > op.launches.end), "{ops:?}");
        assert_eq!(race(&program.launches, ops), None);
        // Without the joins, the main stream would overwrite what the side stream reads: the check detects that.
        let join_before = program.launches.len();
        let unjoined: Vec<SideStreamOp> = ops.iter().map(|op| SideStreamOp { join_before, ..op.clone() }).collect();
        assert!(race(&program.launches, &unjoined).is_some());
    }
}
