//! A program may read and mutate persistent memory: every read sees the value at that point of the graph, whatever is fused
//! or accumulated in place.

use tandem_device::{DType, Machine};
use tandem_engine::{EngineError, Graph, NamedLayout, ProgramSet, TensorType, Value};

use super::support::session;

const SIDE: u32 = 3;

fn square() -> TensorType {
    TensorType::new(DType::F32, &[SIDE, SIDE])
}

/// Runs a program over a state that starts as `x`, and compares the state afterwards and the result.
fn check(build: impl FnOnce(&mut Graph, Value, Value) -> Result<Value, EngineError>, state: &[f32], out: &[f32]) {
    let mut graph = Graph::new(Default::default(), DType::F32);
    let mut layout = NamedLayout::default();
    layout.place("x", square()).unwrap();
    let (value, x) = (graph.state("state", square()).unwrap(), graph.input("x", square()).unwrap());
    let result = build(&mut graph, value, x).unwrap();
    graph.result("out", result).unwrap();
    let mut set = ProgramSet::new(Default::default(), DType::F32, &[]);
    let id = set.add("mutations", &graph, &layout).unwrap();
    let (mut session, _arena) = session(&Machine::cpu(), set, 0);
    session.write_state("state", &X).unwrap();
    session.write_input(id, "x", &X).unwrap();
    session.run(id, None, &[]).unwrap();
    let fetch = session.fetch(id).unwrap();
    assert_eq!(session.finish(fetch).unwrap().get::<f32>("out").unwrap(), out);
    assert_eq!(session.read_state::<f32>("state").unwrap(), state);
}

const X: [f32; 9] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
/// X·X.
const SQUARED: [f32; 9] = [30.0, 36.0, 42.0, 66.0, 81.0, 96.0, 102.0, 126.0, 150.0];

fn times(factor: f32) -> [f32; 9] {
    X.map(|x| x * factor)
}

#[test]
fn a_fused_chain_reads_the_state_before_the_mutation() {
    let build = |through_a_view: bool| {
        move |g: &mut Graph, state: Value, x: Value| {
            let read = if through_a_view { g.detach(state)? } else { state };
            let before = g.scale(read, 10.0)?;
            g.add_into(state, x)?;
            g.add(before, x)
        }
    };
    check(build(false), &times(2.0), &times(11.0));
    check(build(true), &times(2.0), &times(11.0));
}

#[test]
fn a_gemm_accumulates_in_place_only_if_nothing_reads_the_state_in_between() {
    let sum = [31.0, 38.0, 45.0, 70.0, 86.0, 102.0, 109.0, 134.0, 159.0];
    check(
        |g, state, x| {
            let part = g.matmul(x, x)?;
            let read = g.scale(state, 10.0)?;
            g.add_into(state, part)?;
            Ok(read)
        },
        &sum,
        &times(10.0),
    );
    // The GEMM itself reads the state.
    check(
        |g, state, x| {
            let part = g.matmul(state, x)?;
            g.add_into(state, part)?;
            g.scale(x, 1.0)
        },
        &sum,
        &X,
    );
    // Nothing reads the state: the GEMM accumulates into it.
    check(
        |g, state, x| {
            let part = g.matmul(x, x)?;
            let other = g.matmul(x, x)?;
            g.add_into(state, part)?;
            Ok(other)
        },
        &sum,
        &SQUARED,
    );
}
