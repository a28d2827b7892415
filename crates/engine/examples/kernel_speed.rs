//! Memory throughput of fused pointwise chains, sums and losses: on the first NVIDIA card, or on the CPU without one.
//!
//!     cargo run --release -p tandem-engine --example kernel_speed -- [ROWS] [COLUMNS]
//!
//! Bytes are those of the operands and the result, each counted once. Tensors that fit into a card's cache exceed the
//! throughput of its memory.
#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use tandem_device::{Arena, ArenaSpec, DType, Machine};
use tandem_engine::{
    EngineError, Graph, Lower, NamedLayout, Op, ProgramSet, Recomputed, Rows, Session, TensorType, Value,
};
use tandem_events::Role;

const ROUNDS: u32 = 50;

/// Protects its input from dead code elimination, and does nothing.
#[derive(Debug)]
struct Keep;

impl Op for Keep {
    fn name(&self) -> &'static str {
        "keep"
    }
    fn outputs(&self, _: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        Ok(Vec::new())
    }
    fn mutates(&self) -> &'static [usize] {
        &[0]
    }
    fn lower(&self, _: &mut Lower<'_>) -> Result<(), EngineError> {
        Ok(())
    }
}

/// A measurement.
struct Case {
    name: &'static str,
    /// Full tensors that are read or written.
    tensors: u64,
    /// Builds it from `x`, `y` and a bias.
    build: fn(&mut Graph, [Value; 3], &Rows) -> Result<Value, EngineError>,
}

const CASES: [Case; 8] = [
    Case { name: "add", tensors: 3, build: |g, [x, y, _], _| g.add(x, y) },
    Case { name: "gelu", tensors: 2, build: |g, [x, ..], _| g.gelu(x) },
    Case {
        name: "gelu gradient",
        tensors: 3,
        build: |g, [x, y, _], _| {
            let value = g.gelu(x)?;
            let weighted = g.mul(value, y)?;
            let sum = g.sum_all(weighted)?;
            gradient(g, sum, x)
        },
    },
    Case {
        name: "silu of a sum with a bias",
        tensors: 2,
        build: |g, [x, _, bias], _| {
            let sum = g.add(x, bias)?;
            g.silu(sum)
        },
    },
    Case { name: "sum_rows", tensors: 1, build: |g, [x, ..], _| g.sum_rows(x) },
    Case { name: "sum_columns", tensors: 1, build: |g, [x, ..], _| g.sum_columns(x) },
    Case { name: "l1_loss", tensors: 2, build: |g, [x, y, _], rows| loss(g, x, y, rows) },
    Case {
        name: "l1_loss gradient",
        tensors: 3,
        build: |g, [x, y, _], rows| {
            let sum = loss(g, x, y, rows)?;
            gradient(g, sum, x)
        },
    },
];

fn loss(g: &mut Graph, x: Value, y: Value, rows: &Rows) -> Result<Value, EngineError> {
    let lengths: Vec<i32> = (0..rows.count()).map(|row| rows.length(row) as i32).collect();
    let (lengths, weight) = (g.constant(&[rows.count()], &lengths), g.number(1.0));
    g.l1_loss(x, y, rows, lengths, weight)
}

fn gradient(g: &mut Graph, loss: Value, x: Value) -> Result<Value, EngineError> {
    let gradients = g.gradients(loss, &[x], &Recomputed::new())?;
    Ok(gradients[0].unwrap_or(x))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).map(|text| text.parse::<u32>());
    let dims = [args.next().unwrap_or(Ok(8192))?, args.next().unwrap_or(Ok(1024))?];
    let machine = Machine::cuda()?.unwrap_or_else(Machine::cpu);
    for precision in [DType::F32, DType::BF16] {
        for case in &CASES {
            measure(&machine, precision, dims, case)?;
        }
    }
    Ok(())
}

fn measure(
    machine: &Machine,
    precision: DType,
    dims: [u32; 2],
    &Case { name, tensors, build }: &Case,
) -> Result<(), Box<dyn Error>> {
    let mut graph = Graph::new(Default::default(), precision);
    let mut layout = NamedLayout::default();
    let mut input = |graph: &mut Graph, name: &str, dims: &[u32]| {
        let ty = TensorType::new(precision, dims);
        layout.place(name, ty)?;
        graph.input(name, ty)
    };
    let inputs =
        [input(&mut graph, "x", &dims)?, input(&mut graph, "y", &dims)?, input(&mut graph, "bias", &dims[1..])?];
    let value = build(&mut graph, inputs, &Rows::new(&[dims[0] / 2, dims[0] - dims[0] / 2]))?;
    let state = graph.state("state", TensorType::new(DType::U32, &[1]))?;
    graph.push_many(Keep, &[state, value])?;
    let mut set = ProgramSet::new(Default::default(), precision, &[]);
    let id = set.add(name, &graph, &layout)?;
    let launches = set.program(id).launches().len();
    let bytes = set.bytes(machine.kind());
    let device = machine.open(0)?;
    let spec = ArenaSpec::new(Role::Model, bytes);
    let arena = Arena::reserve(&device, spec)?;
    let session = Session::create(Arc::new(set), &arena, Arc::new(device.stream(true)?), 1)?;
    session.replay(id)?;
    session.stream().drain()?;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        session.replay(id)?;
    }
    session.stream().drain()?;
    let seconds = start.elapsed().as_secs_f64() / f64::from(ROUNDS);
    let bytes = tensors * u64::from(dims[0]) * u64::from(dims[1]) * precision.bytes();
    println!(
        "{precision:?} {name}: {:.1} us in {launches} launches, {:.0} GB/s",
        seconds * 1e6,
        bytes as f64 / seconds / 1e9
    );
    Ok(())
}
