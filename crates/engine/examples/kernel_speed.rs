//! How fast element-wise chains, sums and losses go through memory: on the first NVIDIA card, or on the CPU without one.
//!
//!     cargo run --release -p tandem-engine --example kernel_speed -- [ROWS] [COLUMNS]
//!
//! Bytes are those of the operands and the result, each once. Tensors that fit a card's cache look faster than its memory.
#![allow(clippy::print_stdout, reason = "an example tells what it found")]

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use tandem_device::{Arena, ArenaSpec, DType, Machine};
use tandem_engine::{
    EngineError, Graph, Lower, NamedLayout, Op, ProgramSet, Recomputed, Rows, Session, TensorType, Value,
};
use tandem_events::Role;

const ROUNDS: u32 = 50;

/// Keeps what it reads from being left out, and does nothing.
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

/// What is measured: its name, full tensors that are moved, and how it is written.
type Case = (&'static str, u64, fn(&mut Graph, [Value; 3], &Rows) -> Result<Value, EngineError>);

const CASES: [Case; 8] = [
    ("add", 3, |g, [x, y, _], _| g.add(x, y)),
    ("gelu", 2, |g, [x, ..], _| g.gelu(x)),
    ("gelu gradient", 3, |g, [x, y, _], _| {
        let value = g.gelu(x)?;
        let gemm = g.mul(value, y)?;
        let sum = g.sum_all(gemm)?;
        slope(g, sum, x)
    }),
    ("silu of a sum with a bias", 2, |g, [x, _, bias], _| {
        let sum = g.add(x, bias)?;
        g.silu(sum)
    }),
    ("sum_rows", 1, |g, [x, ..], _| g.sum_rows(x)),
    ("sum_columns", 1, |g, [x, ..], _| g.sum_columns(x)),
    ("l1_loss", 2, |g, [x, y, _], rows| loss(g, x, y, rows)),
    ("l1_loss gradient", 3, |g, [x, y, _], rows| {
        let sum = loss(g, x, y, rows)?;
        slope(g, sum, x)
    }),
];

fn loss(g: &mut Graph, x: Value, y: Value, rows: &Rows) -> Result<Value, EngineError> {
    let lengths: Vec<i32> = (0..rows.count()).map(|row| rows.length(row) as i32).collect();
    let (lengths, weight) = (g.constant(&[rows.count()], &lengths), g.number(1.0));
    g.l1_loss(x, y, rows, lengths, weight)
}

fn slope(g: &mut Graph, loss: Value, x: Value) -> Result<Value, EngineError> {
    let gradients = g.gradients(loss, &[x], &Recomputed::new())?;
    Ok(gradients[0].unwrap_or(x))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut given = std::env::args().skip(1).map(|text| text.parse::<u32>());
    let dims = [given.next().unwrap_or(Ok(8192))?, given.next().unwrap_or(Ok(1024))?];
    let machine = Machine::cuda()?.unwrap_or_else(Machine::cpu);
    for precision in [DType::F32, DType::BF16] {
        for case in CASES {
            measure(&machine, precision, dims, case)?;
        }
    }
    Ok(())
}

fn measure(
    machine: &Machine,
    precision: DType,
    dims: [u32; 2],
    (name, moved, build): Case,
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
    let kept = graph.state("kept", TensorType::new(DType::U32, &[1]))?;
    graph.push_many(Keep, &[kept, value])?;
    let mut set = ProgramSet::new(Default::default(), precision, &[]);
    let id = set.add(name, &graph, &layout)?;
    let steps = set.program(id).steps().len();
    let bytes = set.bytes(machine.kind());
    let device = machine.open(0)?;
    let spec = ArenaSpec { role: Role::Model, limit_bytes: bytes, driver_bytes: 0, arena_bytes: bytes, capped: false };
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
    let bytes = moved * u64::from(dims[0]) * u64::from(dims[1]) * precision.bytes();
    println!(
        "{precision:?} {name}: {:.1} us in {steps} steps, {:.0} GB/s",
        seconds * 1e6,
        bytes as f64 / seconds / 1e9
    );
    Ok(())
}
