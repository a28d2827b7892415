//! Duration and memory throughput of one optimizer update on this machine's CPU.
//!
//!     cargo run --release -p tandem-engine --example update_speed -- [MILLIONS OF PARAMETERS]
#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use tandem_device::{Arena, ArenaSpec, DType, Machine};
use tandem_engine::{
    HostValue, Init, NamedLayout, ParameterList, ParameterSpan, Parameters, ProgramSet, Session, UpdateSpec,
    update_program,
};
use tandem_events::Role;

const ROUNDS: usize = 15;

fn main() -> Result<(), Box<dyn Error>> {
    let millions: u32 = std::env::args().nth(1).map_or(Ok(12), |arg| arg.parse())?;
    let mut list = ParameterList::new();
    list.weight("matrices", &[millions * 990, 1000], Init::Constant(0.1))?;
    list.vector("vectors", &[millions * 10_000], Init::Constant(1.0))?;
    let parameters = Arc::new(list.finish());
    for (precision, average) in [(DType::F32, false), (DType::F32, true), (DType::BF16, true)] {
        measure(&parameters, precision, average)?;
    }
    Ok(())
}

fn measure(parameters: &Arc<Parameters>, precision: DType, average: bool) -> Result<(), Box<dyn Error>> {
    let spec = UpdateSpec { average, ..UpdateSpec::default() };
    let mut set = ProgramSet::new(parameters.clone(), precision, &spec.spans());
    let graph = update_program(parameters, precision, &spec)?;
    let update = set.add("update", &graph, &NamedLayout::default())?;
    let device = Machine::cpu().open(0)?;
    let bytes = set.bytes(device.machine().kind());
    let spec = ArenaSpec::new(Role::Model, bytes);
    let arena = Arena::reserve(&device, spec)?;
    let mut session = Session::create(Arc::new(set), &arena, Arc::new(device.stream(true)?), 3)?;
    let gradients = vec![1e-3_f32; parameters.elements() as usize];
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        session.write_span(ParameterSpan::Gradients, &gradients)?;
        let host = [("lr", HostValue::F32(&[1e-3])), ("ema_decay", HostValue::F32(&[0.999]))];
        let start = Instant::now();
        session.run(update, None, &host)?;
        session.stream().drain()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    // The norm reads the gradients; the update reads and writes every span, and writes the bf16 copy.
    let spans = if average { 5 } else { 4 };
    let copy = if precision == DType::BF16 { 2 } else { 0 };
    let moved = parameters.elements() * (4 + 8 * spans + copy);
    println!(
        "{precision:?}, average {average}: {:.2} ms for {:.1} M parameters, {:.1} GB/s",
        best * 1e3,
        parameters.elements() as f64 / 1e6,
        moved as f64 / best / 1e9
    );
    Ok(())
}
