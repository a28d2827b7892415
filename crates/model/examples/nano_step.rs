//! One training step of the nano model on the CPU: its duration, a breakdown by kernel, and the throughput of its GEMMs
//! compared with the machine's best.
//!
//! `cargo run --release -p tandem-model --example nano_step`
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_device::{Arena, ArenaSpec, DType, Gemm, Machine};
use tandem_engine::{HostValue, NamedLayout, ParameterSpan, ProgramId, Rows, Session, TensorType, UpdateSpec};
use tandem_events::Role;
use tandem_model::{
    Acoustic, BatchShape, Preset, ProgramBucket, Programs, ProgramsSpec, REFERENCE_FRAMES, Vocabulary, host,
};

const MELS: u32 = 80;
const SYMBOLS: u32 = 80;
const RUNS: usize = 12;

fn main() -> Result<(), Box<dyn Error>> {
    // Sixteen utterances like those of the demo corpus: 1.5 to 5 seconds.
    let frames: Vec<u32> = (0..16).map(|row| 128 + 18 * row).collect();
    let tokens: Vec<u32> = frames.iter().map(|frames| frames / 7).collect();
    let shape = BatchShape::new(Rows::new(&tokens), Rows::new(&frames));
    let model = Acoustic::new(Preset::Nano.sizes(), Vocabulary::of_one_language(SYMBOLS), MELS)?;
    let bucket = ProgramBucket { layout: layout(&shape)?, shape };
    let spec = ProgramsSpec {
        precision: DType::F32,
        buckets: std::slice::from_ref(&bucket),
        update: UpdateSpec::default(),
        working_limit: None,
        late_slots: 0,
    };
    let programs = Programs::build(&model, &spec)?;
    let machine = Machine::cpu();
    let mut session = session(&machine, &programs)?;
    let initial: Vec<f32> = model.parameters().initial(1).into_iter().map(|x| x as f32).collect();
    session.write_span(ParameterSpan::Parameters, &initial)?;

    let step = programs.accumulate[0];
    let mut durations = Vec::new();
    for run in 0..RUNS {
        fill(&session, step, &bucket.shape)?;
        let start = Instant::now();
        accumulate(&mut session, step, &bucket.shape, run as u32)?;
        update(&mut session, programs.update)?;
        session.stream().drain()?;
        durations.push(start.elapsed());
    }
    durations.sort();
    fill(&session, step, &bucket.shape)?;
    accumulate(&mut session, step, &bucket.shape, 0)?;
    // The fastest of several runs: other load on the machine only adds time.
    let mut fastest = session.replay_timed(step)?;
    for _ in 1..RUNS {
        fill(&session, step, &bucket.shape)?;
        accumulate(&mut session, step, &bucket.shape, 0)?;
        let times = session.replay_timed(step)?;
        fastest.iter_mut().zip(times).for_each(|(least, (_, took))| least.1 = least.1.min(took));
    }
    let mut groups: BTreeMap<&str, (Duration, usize)> = BTreeMap::new();
    for (name, took) in fastest {
        let group = groups.entry(name).or_default();
        *group = (group.0 + took, group.1 + 1);
    }
    let best = best_gemm(&machine)?;
    let gemms = groups.get("gemm").map_or(Duration::ZERO, |(took, _)| *took);
    let flops = session.program(step).gemm_flops() as f64;
    let rate = flops / gemms.as_secs_f64() / 1e9;
    println!("threads            {}", machine.workers().threads());
    println!("frames, tokens     {}, {}", frames.iter().sum::<u32>(), tokens.iter().sum::<u32>());
    println!("step               {:.1} ms (median of {RUNS})", durations[RUNS / 2].as_secs_f64() * 1e3);
    println!("GEMMs              {:.2} GFLOP at {rate:.0} GFLOP/s", flops / 1e9);
    println!("best GEMM          {best:.0} GFLOP/s");
    println!("GEMMs ÷ best       {:.2}", rate / best);
    println!("working memory     {} MB", session.program(step).working_bytes().div_ceil(1 << 20));
    let mut by_time: Vec<_> = groups.into_iter().collect();
    by_time.sort_by_key(|(_, (took, _))| std::cmp::Reverse(*took));
    for (name, (took, count)) in by_time.into_iter().take(16) {
        println!("  {:8.2} ms  {count:4} x {name}", took.as_secs_f64() * 1e3);
    }
    Ok(())
}

fn layout(shape: &BatchShape) -> Result<NamedLayout, Box<dyn Error>> {
    let mut layout = NamedLayout::default();
    let count = shape.count();
    layout.place("text", TensorType::new(DType::I32, &[shape.text.total()]))?;
    layout.place("text_lengths", TensorType::new(DType::I32, &[count]))?;
    layout.place("mel", TensorType::new(DType::F32, &[shape.mel.total(), MELS]))?;
    layout.place("mel_lengths", TensorType::new(DType::I32, &[count]))?;
    layout.place("reference", TensorType::new(DType::F32, &[count * REFERENCE_FRAMES, MELS]))?;
    layout.place("pitch", TensorType::new(DType::F32, &[shape.mel.total()]))?;
    layout.place("energy", TensorType::new(DType::F32, &[shape.mel.total()]))?;
    Ok(layout)
}

fn session(machine: &Machine, programs: &Programs) -> Result<Session, Box<dyn Error>> {
    let bytes = programs.set.bytes(machine.kind());
    let spec = ArenaSpec::new(Role::Model, bytes);
    let device = machine.open(0)?;
    let arena = Arena::reserve(&device, spec)?;
    Ok(Session::create(programs.set.clone(), &arena, Arc::new(device.stream(true)?), 2)?)
}

/// A batch of synthetic data with the shape, and so the cost, of speech.
fn fill(session: &Session, id: ProgramId, shape: &BatchShape) -> Result<(), Box<dyn Error>> {
    let wave = |n: u32| (0..n).map(|i| (i as f32 * 0.37).sin() * 2.0 - 5.0).collect::<Vec<f32>>();
    let lengths = |rows: &Rows| (0..rows.count()).map(|row| rows.length(row) as i32).collect::<Vec<_>>();
    let text: Vec<i32> = (0..shape.text.total()).map(|i| (i * 7 % SYMBOLS) as i32).collect();
    session.write_input(id, "text", &text)?;
    session.write_input(id, "text_lengths", &lengths(&shape.text))?;
    session.write_input(id, "mel", &wave(shape.mel.total() * MELS))?;
    session.write_input(id, "mel_lengths", &lengths(&shape.mel))?;
    session.write_input(id, "reference", &wave(shape.count() * REFERENCE_FRAMES * MELS))?;
    Ok(())
}

fn accumulate(session: &mut Session, id: ProgramId, shape: &BatchShape, step: u32) -> Result<(), Box<dyn Error>> {
    let keys: Vec<u32> = (0..shape.count()).collect();
    let (per_element, per_token) = (1.0 / (shape.mel.total() * MELS) as f32, 1.0 / shape.text.total() as f32);
    let host = [
        (host::PER_ELEMENT, HostValue::F32(&[per_element])),
        (host::PER_TOKEN, HostValue::F32(&[per_token])),
        (host::MEL_MEAN, HostValue::F32(&[-5.0])),
        (host::MEL_SCALE, HostValue::F32(&[0.5])),
        ("seed", HostValue::U32(&[1, 0])),
        ("step", HostValue::U32(&[step])),
        ("utterances", HostValue::U32(&keys)),
    ];
    Ok(session.run(id, None, &host)?)
}

fn update(session: &mut Session, id: ProgramId) -> Result<(), Box<dyn Error>> {
    Ok(session.run(id, None, &[("lr", HostValue::F32(&[1e-4])), ("ema_decay", HostValue::F32(&[0.999]))])?)
}

/// Throughput of the fastest large square GEMM, in GFLOP/s.
fn best_gemm(machine: &Machine) -> Result<f64, Box<dyn Error>> {
    let mut best: f64 = 0.0;
    for size in [512_u32, 1024] {
        let bytes = u64::from(size) * u64::from(size) * 4;
        let all = 3 * bytes;
        let spec = ArenaSpec::new(Role::Model, all);
        let arena = Arena::reserve(&machine.open(0)?, spec)?;
        let [a, b, c] = [arena.take("a", bytes)?, arena.take("b", bytes)?, arena.take("c", bytes)?];
        let stream = machine.open(0)?.stream(false)?;
        let gemm = Gemm::dense(DType::F32, [size; 3]);
        for _ in 0..12 {
            let start = Instant::now();
            stream.gemm(&gemm, a.view(), b.view(), c.view(), None, None)?;
            stream.drain()?;
            best = best.max(gemm.flops() / start.elapsed().as_secs_f64() / 1e9);
        }
    }
    Ok(best)
}
