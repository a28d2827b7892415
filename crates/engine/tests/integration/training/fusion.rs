//! Pointwise chains are fused into one kernel, memory is reused, views are free, and results do not change.

use tandem_device::{DType, Machine};
use tandem_engine::{
    EngineError, Graph, Launch, LaunchArg, Location, NamedLayout, ProgramId, ProgramSet, TensorType, Value,
};
use tandem_test_support::largest;

use super::support::session;

const ROWS: u32 = 37;
const COLUMNS: u32 = 24;

type Build = fn(&mut Graph, [Value; 2]) -> Result<Value, EngineError>;

/// A program over `x` `[ROWS, COLUMNS]` and a square `w`, with one result.
struct Compiled {
    set: ProgramSet,
    id: ProgramId,
}

impl Compiled {
    fn new(build: impl FnOnce(&mut Graph, [Value; 2]) -> Result<Value, EngineError>) -> Compiled {
        let mut graph = Graph::new(Default::default(), DType::F32);
        let types = [TensorType::new(DType::F32, &[ROWS, COLUMNS]), TensorType::new(DType::F32, &[COLUMNS, COLUMNS])];
        let mut layout = NamedLayout::default();
        layout.place("x", types[0]).unwrap();
        layout.place("w", types[1]).unwrap();
        let inputs = [graph.input("x", types[0]).unwrap(), graph.input("w", types[1]).unwrap()];
        let out = build(&mut graph, inputs).unwrap();
        graph.result("out", out).unwrap();
        let mut set = ProgramSet::new(Default::default(), DType::F32, &[]);
        let id = set.add("program", &graph, &layout).unwrap();
        Compiled { set, id }
    }

    fn launches(&self) -> &[Launch] {
        self.set.program(self.id).launches()
    }

    fn num_kernels(&self) -> usize {
        self.launches().iter().filter(|launch| matches!(launch, Launch::Kernel { .. })).count()
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
    let worst = largest(found.iter().zip(expected).map(|(a, b)| (a - b).abs()));
    assert!(worst < 2e-5, "off by {worst}");
}

/// Six functions; either every intermediate is a result, or none.
fn long_chain(graph: &mut Graph, x: Value, with_results: bool) -> Result<Value, EngineError> {
    let per_row = graph.constant(&[ROWS, 1], &(0..ROWS).map(|i| i as f32 * 0.1).collect::<Vec<_>>());
    let per_column = graph.constant(&[COLUMNS], &(0..COLUMNS).map(|i| 1.0 - i as f32 * 0.02).collect::<Vec<_>>());
    let mut values = vec![graph.add(x, per_column)?];
    values.push(graph.gelu(values[0])?);
    values.push(graph.mul(values[1], per_row)?);
    values.push(graph.sub(x, values[2])?);
    values.push(graph.gelu_tanh(values[3])?);
    let out = graph.shift(values[4], 0.25)?;
    if with_results {
        for (i, value) in values.into_iter().enumerate() {
            graph.result(&format!("value {i}"), value)?;
        }
    }
    Ok(out)
}

#[test]
fn a_chain_is_fused_into_one_kernel_and_gives_the_same_bits() {
    let fused = Compiled::new(|graph, [x, _]| long_chain(graph, x, false));
    let separate = Compiled::new(|graph, [x, _]| long_chain(graph, x, true));
    assert_eq!((fused.num_kernels(), separate.num_kernels()), (1, 6));
    assert!(fused.peak() < separate.peak());
    assert!(fused.run() == separate.run(), "fusion has changed a bit");
}

#[test]
fn a_chain_too_long_for_one_kernel_is_split_and_still_correct() {
    let long = Compiled::new(|graph, [x, _]| {
        let mut y = x;
        for _ in 0..40 {
            y = graph.shift(y, 0.5)?;
            y = graph.scale(y, 0.9)?;
        }
        Ok(y)
    });
    assert!(long.num_kernels() > 1 && long.num_kernels() < 40, "{} kernels", long.num_kernels());
    let expected: Vec<f32> = x().into_iter().map(|x| (0..40).fold(x, |y, _| (y + 0.5) * 0.9)).collect();
    assert!(long.run() == expected);
}

/// Where the first GEMM writes, and where the activation kernel writes.
fn gemm_and_activation(launches: &[Launch]) -> (Location, Location) {
    let gemm = launches.iter().find_map(|launch| match launch {
        Launch::Gemm { c, .. } => Some(*c),
        _ => None,
    });
    let activation = launches.iter().find_map(|launch| match launch {
        Launch::Kernel { args, .. } => args.iter().find_map(|arg| match arg {
            LaunchArg::Write(location, _) => Some(*location),
            _ => None,
        }),
        _ => None,
    });
    (gemm.unwrap(), activation.unwrap())
}

const FEED_FORWARD: Build = |graph, [x, w]| {
    let h = graph.linear(x, w, None)?;
    let activated = graph.gelu(h)?;
    graph.linear(activated, w, None)
};

/// The output of the first GEMM is read again after the activation.
const RESIDUAL: Build = |graph, [x, w]| {
    let h = graph.linear(x, w, None)?;
    let activated = graph.gelu(h)?;
    let out = graph.linear(activated, w, None)?;
    graph.add(out, h)
};

/// The same, but read through a view that is created before the activation.
const RESIDUAL_THROUGH_VIEW: Build = |graph, [x, w]| {
    let h = graph.linear(x, w, None)?;
    let reshaped = graph.reshape(h, &[COLUMNS, ROWS])?;
    let view = graph.detach(reshaped)?;
    let activated = graph.gelu(h)?;
    let out = graph.linear(activated, w, None)?;
    let back = graph.reshape(view, &[ROWS, COLUMNS])?;
    graph.add(out, back)
};

#[test]
fn an_activation_overwrites_a_dead_input_in_place() {
    let program = Compiled::new(FEED_FORWARD);
    let (gemm, activation) = gemm_and_activation(program.launches());
    assert_eq!(gemm, activation, "the activation runs in place");
    let residual = Compiled::new(RESIDUAL);
    assert!(program.peak() < residual.peak());
    close(&program.run(), &times_w(&times_w(&x()).into_iter().map(gelu).collect::<Vec<_>>()));
}

#[test]
fn an_activation_does_not_overwrite_an_input_that_is_read_later() {
    for build in [RESIDUAL, RESIDUAL_THROUGH_VIEW] {
        let program = Compiled::new(build);
        let (gemm, activation) = gemm_and_activation(program.launches());
        assert_ne!(gemm.offset, activation.offset);
        let h = times_w(&x());
        let out = times_w(&h.iter().copied().map(gelu).collect::<Vec<_>>());
        close(&program.run(), &out.iter().zip(&h).map(|(a, b)| a + b).collect::<Vec<_>>());
    }
}

#[test]
fn a_view_costs_no_launch_and_no_memory() {
    let (plain, viewed) = (Compiled::new(RESIDUAL), Compiled::new(RESIDUAL_THROUGH_VIEW));
    assert_eq!((plain.launches().len(), plain.peak()), (viewed.launches().len(), viewed.peak()));
    let of_an_input = Compiled::new(|graph, [x, _]| {
        let reshaped = graph.reshape(x, &[COLUMNS * ROWS])?;
        graph.detach(reshaped)
    });
    assert_eq!((of_an_input.num_kernels(), of_an_input.peak()), (0, 0));
    assert!(of_an_input.run() == x(), "a view of an input is the input");
}

#[test]
fn dead_code_is_eliminated() {
    let program = Compiled::new(|graph, [x, w]| {
        let unused = graph.linear(x, w, None)?;
        graph.gelu(unused)?;
        graph.scale(x, 2.0)
    });
    assert_eq!(program.launches().len(), 2, "one kernel, and the copy of the result");
}
