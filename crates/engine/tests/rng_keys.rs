//! Random numbers are a function of seed, step, utterance and op: replays with another step draw others, with the same
//! step the same, and a batch in pieces draws what the whole draws.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

use std::sync::Arc;

use tandem_device::{Arena, ArenaSpec, DType, DeviceKind, Machine};
use tandem_engine::{
    BlockId, Graph, HostValue, NamedLayout, ProgramId, ProgramSet, Recomputed, RngKeys, Rows, Session, TensorType,
    Value,
};
use tandem_events::Role;

const FRAMES: u32 = 9;
const COLUMNS: u32 = 24;

/// Dropout over rows of ones: what comes out is the mask.
struct Bench {
    session: Session,
    id: ProgramId,
    rows: u32,
}

impl Bench {
    fn new(rows: u32, build: impl FnOnce(&mut Graph, Value, &RngKeys)) -> Bench {
        let table = Rows::even(rows, FRAMES);
        let ty = TensorType::new(DType::F32, &[table.total(), COLUMNS]);
        let mut layout = NamedLayout::default();
        layout.place("x", ty).unwrap();
        let mut graph = Graph::new(Default::default(), DType::F32);
        let x = graph.input("x", ty).unwrap();
        let draws = RngKeys::new(&mut graph, &table).unwrap();
        build(&mut graph, x, &draws);
        let mut set = ProgramSet::new(Default::default(), DType::F32, &[]);
        let id = set.add("draws", &graph, &layout).unwrap();
        let bytes = set.bytes(DeviceKind::Cpu);
        let spec =
            ArenaSpec { role: Role::Model, limit_bytes: bytes, driver_bytes: 0, arena_bytes: bytes, capped: false };
        let arena = Arena::reserve(&Machine::cpu().open(0).unwrap(), spec).unwrap();
        let stream = Arc::new(arena.device().stream(true).unwrap());
        let session = Session::create(Arc::new(set), &arena, stream, 3).unwrap();
        session.write_input(id, "x", &vec![1.0_f32; ty.shape.elements() as usize]).unwrap();
        Bench { session, id, rows }
    }

    /// Two layers of dropout, so that ops can be told apart.
    fn dropout(rows: u32) -> Bench {
        Bench::new(rows, |graph, x, draws| {
            for name in ["first", "second"] {
                let out = graph.dropout(x, 0.4, draws).unwrap();
                graph.result(name, out).unwrap();
            }
        })
    }

    fn run(&mut self, seed: u32, step: u32, from_utterance: u32) -> [Vec<f32>; 2] {
        let utterances: Vec<u32> = (from_utterance..from_utterance + self.rows).collect();
        let host = [
            ("seed", HostValue::U32(&[seed, 0])),
            ("step", HostValue::U32(&[step])),
            ("utterances", HostValue::U32(&utterances)),
        ];
        self.session.run(self.id, None, &host).unwrap();
        let fetch = self.session.fetch(self.id).unwrap();
        let results = self.session.finish(fetch).unwrap();
        ["first", "second"].map(|name| results.get(name).unwrap())
    }
}

fn share_that_differs(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).filter(|(a, b)| a != b).count() as f64 / a.len() as f64
}

#[test]
fn a_replay_draws_by_its_step() {
    let mut bench = Bench::dropout(6);
    let [first, second] = bench.run(1, 10, 100);
    assert!(bench.run(1, 10, 100) == [first.clone(), second.clone()], "the same step draws the same");
    // Two masks of p = 0.4 differ in 48 % of their elements; 1296 elements have a deviation of 1.4 %.
    for (what, other) in [
        ("another step", bench.run(1, 11, 100)[0].clone()),
        ("another seed", bench.run(2, 10, 100)[0].clone()),
        ("other utterances", bench.run(1, 10, 500)[0].clone()),
        ("another op", second),
    ] {
        let share = share_that_differs(&first, &other);
        assert!((share - 0.48).abs() < 0.08, "{what}: {share} of the elements differ");
    }
    assert!(first.iter().all(|x| *x == 0.0 || (*x - 1.0 / 0.6).abs() < 1e-6));
    let kept = first.iter().filter(|x| **x != 0.0).count() as f64 / first.len() as f64;
    assert!((kept - 0.6).abs() < 0.07, "{kept} are kept");
}

#[test]
fn a_batch_in_pieces_draws_what_the_whole_draws() {
    let whole = Bench::dropout(6).run(3, 7, 40);
    let mut part = Bench::dropout(2);
    for name in [0, 1] {
        let pieces: Vec<f32> = (0..3).flat_map(|i| part.run(3, 7, 40 + 2 * i)[name].clone()).collect();
        assert!(pieces == whole[name], "a row's numbers depend on what else is in the batch");
    }
}

#[test]
fn the_backward_pass_and_a_recomputed_block_use_the_mask_of_the_forward_pass() {
    let build = |recomputes: bool| {
        Bench::new(4, move |graph, x, draws| {
            let out = graph
                .block(|graph| {
                    let out = graph.dropout(x, 0.4, draws)?;
                    graph.mul(out, x)
                })
                .unwrap();
            let loss = graph.sum_all(out).unwrap();
            let recomputed: Recomputed = if recomputes { [BlockId(0)].into() } else { Recomputed::new() };
            let gradient = graph.gradients(loss, &[x], &recomputed).unwrap()[0].unwrap();
            graph.result("first", out).unwrap();
            graph.result("second", gradient).unwrap();
        })
    };
    let [out, gradient] = build(false).run(5, 3, 0);
    // x = 1, and out = mask · x²: its slope is twice the mask.
    assert!(out.iter().zip(&gradient).all(|(out, gradient)| (2.0 * out - gradient).abs() < 1e-6));
    assert!(build(true).run(5, 3, 0) == [out, gradient]);
}
