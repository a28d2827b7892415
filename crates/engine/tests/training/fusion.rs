//! Element-wise chains become one pass, memory is used again, views are free; and none of it can be seen in the numbers.

use tandem_device::{DType, Machine};
use tandem_engine::{
    EngineError, Graph, Launch, LaunchArg, Location, NamedLayout, ProgramId, ProgramSet, TensorType, Value,
};

use crate::support::session;

const ROWS: u32 = 37;
const COLUMNS: u32 = 24;

type Build = fn(&mut Graph, [Value; 2]) -> Result<Value, EngineError>;

/// A program over `x` `[ROWS, COLUMNS]` and a square `w`, with one result.
struct Made {
    set: ProgramSet,
    id: ProgramId,
}

impl Made {
    fn new(build: impl FnOnce(&mut Graph, [Value; 2]) -> Result<Value, EngineError>) -> Made {
        let mut graph = Graph::new(Default::default(), DType::F32);
        let types = [TensorType::new(DType::F32, &[ROWS, COLUMNS]), TensorType::new(DType::F32, &[COLUMNS, COLUMNS])];
        let mut layout = NamedLayout::default();
        layout.place("x", types[0]).unwrap();
        layout.place("w", types[1]).unwrap();
        let inputs = [graph.input("x", types[0]).unwrap(), graph.input("w", types[1]).unwrap()];
        let out = build(&mut graph, inputs).unwrap();
        graph.result("out", out).unwrap();
        let mut set = ProgramSet::new(Default::default(), DType::F32, &[]);
        let id = set.add("made", &graph, &layout).unwrap();
        Made { set, id }
    }

    fn steps(&self) -> &[Launch] {
        self.set.program(self.id).steps()
    }

    fn launches(&self) -> usize {
        self.steps().iter().filter(|step| matches!(step, Launch::Kernel { .. })).count()
    }

    fn peak(&self) -> u64 {
        self.set.program(self.id).memory().peak_bytes
    }

    fn run(self) -> Vec<f32> {
        let id = self.id;
        let (mut session, _arena) = session(&Machine::cpu(), self.set, 0);
        session.write_input(id, "x", &x()).unwrap();
        session.write_input(id, "w", &w()).unwrap();
        session.run(id, None, &[]).unwrap();
        let fetch = session.fetch(id).unwrap();
        session.finish(fetch).unwrap().get("out").unwrap()
    }
}

fn x() -> Vec<f32> {
    (0..ROWS * COLUMNS).map(|i| (i as f32 * 0.61).sin()).collect()
}

fn w() -> Vec<f32> {
    (0..COLUMNS * COLUMNS).map(|i| (i as f32 * 0.37).cos() * 0.3).collect()
}

/// x·wᵀ by a plain loop.
fn times_w(x: &[f32]) -> Vec<f32> {
    let (w, columns) = (w(), COLUMNS as usize);
    let dot = |row: &[f32], column: usize| {
        let w = &w[column * columns..][..columns];
        row.iter().zip(w).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
    };
    x.chunks(columns).flat_map(|row| (0..columns).map(|column| dot(row, column)).collect::<Vec<_>>()).collect()
}

fn gelu(x: f32) -> f32 {
    let x = f64::from(x);
    (0.5 * x * (1.0 + libm::erf(x / std::f64::consts::SQRT_2))) as f32
}

fn close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 2e-5, "off by {worst}");
}

/// Six functions; each intermediate is told to the host, or none.
fn long_chain(graph: &mut Graph, x: Value, told: bool) -> Result<Value, EngineError> {
    let per_row = graph.constant(&[ROWS, 1], &(0..ROWS).map(|i| i as f32 * 0.1).collect::<Vec<_>>());
    let per_column = graph.constant(&[COLUMNS], &(0..COLUMNS).map(|i| 1.0 - i as f32 * 0.02).collect::<Vec<_>>());
    let mut values = vec![graph.add(x, per_column)?];
    values.push(graph.gelu(values[0])?);
    values.push(graph.mul(values[1], per_row)?);
    values.push(graph.sub(x, values[2])?);
    values.push(graph.gelu_tanh(values[3])?);
    let out = graph.shift(values[4], 0.25)?;
    if told {
        for (i, value) in values.into_iter().enumerate() {
            graph.result(&format!("value {i}"), value)?;
        }
    }
    Ok(out)
}

#[test]
fn a_chain_is_one_pass_and_the_numbers_are_those_of_many() {
    let fused = Made::new(|graph, [x, _]| long_chain(graph, x, false));
    let apart = Made::new(|graph, [x, _]| long_chain(graph, x, true));
    assert_eq!((fused.launches(), apart.launches()), (1, 6));
    assert!(fused.peak() < apart.peak());
    assert!(fused.run() == apart.run(), "fusing has changed a bit");
}

#[test]
fn a_chain_longer_than_a_kernel_may_be_is_cut_and_still_right() {
    let long = Made::new(|graph, [x, _]| {
        let mut y = x;
        for _ in 0..40 {
            y = graph.shift(y, 0.5)?;
            y = graph.scale(y, 0.9)?;
        }
        Ok(y)
    });
    assert!(long.launches() > 1 && long.launches() < 40, "{} launches", long.launches());
    let expected: Vec<f32> = x().into_iter().map(|x| (0..40).fold(x, |y, _| (y + 0.5) * 0.9)).collect();
    assert!(long.run() == expected);
}

/// Where the GEMM's result lies, and where the launch behind it writes.
fn gemm_and_bend(steps: &[Launch]) -> (Location, Location) {
    let gemm = steps.iter().find_map(|step| match step {
        Launch::Gemm { c, .. } => Some(*c),
        _ => None,
    });
    let written = steps.iter().find_map(|step| match step {
        Launch::Kernel { args, .. } => args.iter().find_map(|arg| match arg {
            LaunchArg::Write(place, _) => Some(*place),
            _ => None,
        }),
        _ => None,
    });
    (gemm.unwrap(), written.unwrap())
}

const BENT: Build = |graph, [x, w]| {
    let h = graph.linear(x, w, None)?;
    let bent = graph.gelu(h)?;
    graph.linear(bent, w, None)
};

/// The first GEMM is read once more after the bend.
const BENT_AND_KEPT: Build = |graph, [x, w]| {
    let h = graph.linear(x, w, None)?;
    let bent = graph.gelu(h)?;
    let out = graph.linear(bent, w, None)?;
    graph.add(out, h)
};

/// The same, but it is read through a view that was made before the bend.
const BENT_AND_VIEWED: Build = |graph, [x, w]| {
    let h = graph.linear(x, w, None)?;
    let turned = graph.reshape(h, &[COLUMNS, ROWS])?;
    let seen = graph.detach(turned)?;
    let bent = graph.gelu(h)?;
    let out = graph.linear(bent, w, None)?;
    let back = graph.reshape(seen, &[ROWS, COLUMNS])?;
    graph.add(out, back)
};

#[test]
fn what_nobody_reads_any_more_is_written_over() {
    let made = Made::new(BENT);
    let (gemm, bent) = gemm_and_bend(made.steps());
    assert_eq!(gemm, bent, "the bend is done in place");
    let kept = Made::new(BENT_AND_KEPT);
    assert!(made.peak() < kept.peak());
    close(&made.run(), &times_w(&times_w(&x()).into_iter().map(gelu).collect::<Vec<_>>()));
}

#[test]
fn what_is_read_later_is_not_written_over() {
    for build in [BENT_AND_KEPT, BENT_AND_VIEWED] {
        let made = Made::new(build);
        let (gemm, bent) = gemm_and_bend(made.steps());
        assert_ne!(gemm.offset, bent.offset);
        let h = times_w(&x());
        let out = times_w(&h.iter().copied().map(gelu).collect::<Vec<_>>());
        close(&made.run(), &out.iter().zip(&h).map(|(a, b)| a + b).collect::<Vec<_>>());
    }
}

#[test]
fn a_view_is_neither_work_nor_memory() {
    let (plain, viewed) = (Made::new(BENT_AND_KEPT), Made::new(BENT_AND_VIEWED));
    assert_eq!((plain.steps().len(), plain.peak()), (viewed.steps().len(), viewed.peak()));
    let of_an_input = Made::new(|graph, [x, _]| {
        let turned = graph.reshape(x, &[COLUMNS * ROWS])?;
        graph.detach(turned)
    });
    assert_eq!((of_an_input.launches(), of_an_input.peak()), (0, 0));
    assert!(of_an_input.run() == x(), "a view of an input is the input");
}

#[test]
fn what_nobody_asks_for_is_not_computed() {
    let made = Made::new(|graph, [x, w]| {
        let unused = graph.linear(x, w, None)?;
        graph.gelu(unused)?;
        graph.scale(x, 2.0)
    });
    assert_eq!(made.steps().len(), 2, "one launch, and the copy of the result");
}
