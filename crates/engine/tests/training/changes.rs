//! What lasts may be read and changed in one program: whoever reads it sees what was there at that line of the graph,
//! however lines are fused, and wherever sums are taken.

use tandem_device::{DType, Machine};
use tandem_engine::{EngineError, Graph, NamedLayout, ProgramSet, TensorType, Value};

use crate::support::session;

const SIDE: u32 = 3;

fn square() -> TensorType {
    TensorType::new(DType::F32, &[SIDE, SIDE])
}

/// Runs a program over a state that holds `x` at first; the state afterwards, and `out` where there is one.
fn check(build: impl FnOnce(&mut Graph, Value, Value) -> Result<Value, EngineError>, state: &[f32], out: &[f32]) {
    let mut graph = Graph::new(Default::default(), DType::F32);
    let mut layout = NamedLayout::default();
    layout.place("x", square()).unwrap();
    let (kept, x) = (graph.state("kept", square()).unwrap(), graph.input("x", square()).unwrap());
    let result = build(&mut graph, kept, x).unwrap();
    graph.result("out", result).unwrap();
    let mut set = ProgramSet::new(Default::default(), DType::F32, &[]);
    let id = set.add("changes", &graph, &layout).unwrap();
    let (mut session, _arena) = session(&Machine::cpu(), set, 0);
    session.write_state("kept", &X).unwrap();
    session.write_input(id, "x", &X).unwrap();
    session.run(id, None, &[]).unwrap();
    let fetch = session.fetch(id).unwrap();
    assert_eq!(session.finish(fetch).unwrap().get::<f32>("out").unwrap(), out);
    assert_eq!(session.read_state::<f32>("kept").unwrap(), state);
}

const X: [f32; 9] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
/// X·X.
const SQUARED: [f32; 9] = [30.0, 36.0, 42.0, 66.0, 81.0, 96.0, 102.0, 126.0, 150.0];

fn times(factor: f32) -> [f32; 9] {
    X.map(|x| x * factor)
}

#[test]
fn a_chain_reads_what_was_there_before_the_change() {
    let build = |through_a_view: bool| {
        move |g: &mut Graph, kept: Value, x: Value| {
            let seen = if through_a_view { g.detach(kept)? } else { kept };
            let before = g.scale(seen, 10.0)?;
            g.add_into(kept, x)?;
            g.add(before, x)
        }
    };
    check(build(false), &times(2.0), &times(11.0));
    check(build(true), &times(2.0), &times(11.0));
}

#[test]
fn a_sum_is_not_taken_before_those_who_read_it() {
    let sum = [31.0, 38.0, 45.0, 70.0, 86.0, 102.0, 109.0, 134.0, 159.0];
    check(
        |g, kept, x| {
            let part = g.matmul(x, x)?;
            let seen = g.scale(kept, 10.0)?;
            g.add_into(kept, part)?;
            Ok(seen)
        },
        &sum,
        &times(10.0),
    );
    // Who makes the part reads the sum itself.
    check(
        |g, kept, x| {
            let part = g.matmul(kept, x)?;
            g.add_into(kept, part)?;
            g.scale(x, 1.0)
        },
        &sum,
        &X,
    );
    // Nobody reads it: the GEMM adds to it.
    check(
        |g, kept, x| {
            let part = g.matmul(x, x)?;
            let other = g.matmul(x, x)?;
            g.add_into(kept, part)?;
            Ok(other)
        },
        &sum,
        &SQUARED,
    );
}
