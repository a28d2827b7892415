//! Random numbers are a function of seed, step, utterance and op: a replay with another step generates other numbers, with
//! the same step the same numbers, and micro-batches generate those of the full batch.

use std::sync::Arc;

use tandem_device::{Arena, ArenaSpec, DType, DeviceKind, Machine};
use tandem_engine::{
    BlockId, Graph, HostValue, NamedLayout, ProgramId, ProgramSet, Recomputed, RngKeys, Rows, Session, TensorType,
    Value,
};
use tandem_events::Role;

const FRAMES: u32 = 9;
const COLUMNS: u32 = 24;

/// Dropout over rows of ones: the output is the mask.
struct DropoutProgram {
    session: Session,
    id: ProgramId,
    rows: u32,
}

impl DropoutProgram {
    fn new(count: u32, build: impl FnOnce(&mut Graph, Value, &RngKeys)) -> DropoutProgram {
        let rows = Rows::even(count, FRAMES);
        let ty = TensorType::new(DType::F32, &[rows.total(), COLUMNS]);
        let mut layout = NamedLayout::default();
        layout.place("x", ty).unwrap();
        let mut graph = Graph::new(Default::default(), DType::F32);
        let x = graph.input("x", ty).unwrap();
        let keys = RngKeys::new(&mut graph, &rows).unwrap();
        build(&mut graph, x, &keys);
        let mut set = ProgramSet::new(Default::default(), DType::F32, &[]);
        let id = set.add("dropout", &graph, &layout).unwrap();
        let bytes = set.bytes(DeviceKind::Cpu);
        let spec = ArenaSpec::new(Role::Model, bytes);
        let arena = Arena::reserve(&Machine::cpu().open(0).unwrap(), spec).unwrap();
        let stream = Arc::new(arena.device().stream(true).unwrap());
        let session = Session::create(Arc::new(set), &arena, stream, 3).unwrap();
        session.write_input(id, "x", &vec![1.0_f32; ty.shape.elements() as usize]).unwrap();
        DropoutProgram { session, id, rows: count }
    }

    /// Two layers of dropout, so that the masks of two ops can be compared.
    fn two_layers(rows: u32) -> DropoutProgram {
        DropoutProgram::new(rows, |graph, x, keys| {
            for name in ["first", "second"] {
                let out = graph.dropout(x, 0.4, keys).unwrap();
                graph.result(name, out).unwrap();
            }
        })
    }

    /// The results "first" and "second".
    fn run(&mut self, keys: Keys) -> [Vec<f32>; 2] {
        let Keys { seed, step, first_utterance } = keys;
        let utterances: Vec<u32> = (first_utterance..first_utterance + self.rows).collect();
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

/// The keys of a run: its rows are the utterances from `first_utterance` on.
#[derive(Clone, Copy)]
struct Keys {
    seed: u32,
    step: u32,
    first_utterance: u32,
}

fn share_that_differs(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).filter(|(a, b)| a != b).count() as f64 / a.len() as f64
}

#[test]
fn random_numbers_depend_on_seed_step_utterance_and_op() {
    let mut program = DropoutProgram::two_layers(6);
    let keys = Keys { seed: 1, step: 10, first_utterance: 100 };
    let [first, second] = program.run(keys);
    assert!(program.run(keys) == [first.clone(), second.clone()], "the same step generates the same numbers");
    // Two masks of p = 0.4 differ in 48 % of their elements, with a standard deviation of 1.4 % over 1296 elements.
    for (what, other) in [
        ("another step", program.run(Keys { step: 11, ..keys })[0].clone()),
        ("another seed", program.run(Keys { seed: 2, ..keys })[0].clone()),
        ("other utterances", program.run(Keys { first_utterance: 500, ..keys })[0].clone()),
        ("another op", second),
    ] {
        let share = share_that_differs(&first, &other);
        assert!((share - 0.48).abs() < 0.08, "{what}: {share} of the elements differ");
    }
    assert!(first.iter().all(|x| *x == 0.0 || (*x - 1.0 / 0.6).abs() < 1e-6));
    let nonzero = first.iter().filter(|x| **x != 0.0).count() as f64 / first.len() as f64;
    assert!((nonzero - 0.6).abs() < 0.07, "{nonzero} are not dropped");
}

#[test]
fn micro_batches_generate_the_random_numbers_of_the_full_batch() {
    let keys = Keys { seed: 3, step: 7, first_utterance: 40 };
    let full = DropoutProgram::two_layers(6).run(keys);
    let mut micro = DropoutProgram::two_layers(2);
    for layer in [0, 1] {
        let mut run = |i: u32| micro.run(Keys { first_utterance: 40 + 2 * i, ..keys })[layer].clone();
        let masks: Vec<f32> = (0..3).flat_map(&mut run).collect();
        assert!(masks == full[layer], "a row's random numbers depend on the rest of the batch");
    }
}

#[test]
fn the_backward_pass_and_a_recomputed_block_use_the_mask_of_the_forward_pass() {
    let build = |recomputes: bool| {
        DropoutProgram::new(4, move |graph, x, keys| {
            let out = graph
                .block(|graph| {
                    let out = graph.dropout(x, 0.4, keys)?;
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
    let keys = Keys { seed: 5, step: 3, first_utterance: 0 };
    let [out, gradient] = build(false).run(keys);
    // x = 1, and out = mask · x²: the derivative is twice the mask.
    assert!(out.iter().zip(&gradient).all(|(out, gradient)| (2.0 * out - gradient).abs() < 1e-6));
    assert!(build(true).run(keys) == [out, gradient]);
}
