//! A small causal transformer against PyTorch: twenty steps of losses, and every parameter's first gradient.
//!
//! `tests/data/reference_transformer.json` was made by `tools/reference/engine/make.py`, which has the same formula for weights
//! and tokens and the same list of parameters.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test, a failed unwrap is a failed test")]

use std::sync::Arc;

use serde_json::Value as Json;
use tandem_device::{Arena, ArenaSpec, DType, Machine};
use tandem_engine::{
    EngineError, Graph, HostValue, Init, NamedLayout, ParameterId, ParameterList, Parameters, ProgramId, ProgramSet,
    Recomputed, Results, Rows, Session, Span, TensorType, UpdateSpec, Value, update_program,
};
use tandem_events::Role;

const WIDTH: u32 = 48;
const LAYERS: u32 = 2;
const HEADS: u32 = 3;
const VOCABULARY: u32 = 50;
const BATCH: u32 = 3;
const LENGTH: u32 = 17;
const TOKENS_KEY: u32 = 1000;
const TARGETS_KEY: u32 = 1001;

const REFERENCE: &str = include_str!("data/reference_transformer.json");

/// A 32-bit number for a place: two odd multipliers, two folds.
fn scrambled(key: u32, i: u32) -> u32 {
    let x = key.wrapping_mul(0x9E37_79B1).wrapping_add(i.wrapping_mul(0x85EB_CA77)).wrapping_add(0xC2B2_AE3D);
    let x = (x ^ (x >> 15)).wrapping_mul(0x2C1B_3C6D);
    x ^ (x >> 13)
}

/// In [-1/8, 1/8), a multiple of 2^-18: exact in f32, also with 1 added.
fn fraction(key: u32, i: u32) -> f64 {
    (f64::from(scrambled(key, i) >> 16) - 32768.0) / 262_144.0
}

fn tokens(key: u32) -> Vec<i32> {
    (0..BATCH * LENGTH).map(|i| (scrambled(key, i) % VOCABULARY) as i32).collect()
}

struct Layer {
    norm1: [ParameterId; 2],
    qkv: [ParameterId; 2],
    proj: [ParameterId; 2],
    norm2: [ParameterId; 2],
    up: [ParameterId; 2],
    down: [ParameterId; 2],
}

struct Transformer {
    parameters: Arc<Parameters>,
    embedding: ParameterId,
    layers: Vec<Layer>,
    norm: [ParameterId; 2],
    head: [ParameterId; 2],
}

fn norm(list: &mut ParameterList, name: &str) -> Result<[ParameterId; 2], EngineError> {
    list.scope(name, |list| {
        let gain = list.vector("gain", &[WIDTH], Init::Constant(1.0))?;
        Ok([gain, list.vector("bias", &[WIDTH], Init::Constant(0.0))?])
    })
}

fn linear(list: &mut ParameterList, name: &str, dims: [u32; 2]) -> Result<[ParameterId; 2], EngineError> {
    list.scope(name, |list| {
        let weight = list.weight("weight", &dims, Init::Constant(0.0))?;
        Ok([weight, list.vector("bias", &dims[..1], Init::Constant(0.0))?])
    })
}

impl Transformer {
    fn new() -> Result<Transformer, EngineError> {
        let mut list = ParameterList::new();
        let embedding = list.weight("embedding", &[VOCABULARY, WIDTH], Init::Constant(0.0))?;
        let mut layers = Vec::new();
        for layer in 0..LAYERS {
            layers.push(list.scope(format!("layer{layer}"), |list| {
                Ok(Layer {
                    norm1: norm(list, "norm1")?,
                    qkv: linear(list, "qkv", [3 * WIDTH, WIDTH])?,
                    proj: linear(list, "proj", [WIDTH, WIDTH])?,
                    norm2: norm(list, "norm2")?,
                    up: linear(list, "up", [4 * WIDTH, WIDTH])?,
                    down: linear(list, "down", [WIDTH, 4 * WIDTH])?,
                })
            })?);
        }
        let (norm, head) = (norm(&mut list, "norm")?, linear(&mut list, "head", [VOCABULARY, WIDTH])?);
        Ok(Transformer { parameters: Arc::new(list.finish()), embedding, layers, norm, head })
    }

    /// The whole span as the formula has it. Keys are places in the list; gains have 1 added.
    fn start(&self) -> Vec<f64> {
        let mut span = vec![0.0; self.parameters.elements() as usize];
        for (key, (_, parameter)) in (0..).zip(self.parameters.iter()) {
            let one = f64::from(u8::from(parameter.name.ends_with("gain")));
            for i in 0..parameter.shape.elements() as u32 {
                span[parameter.offset as usize + i as usize] = one + fraction(key, i);
            }
        }
        span
    }

    fn layout() -> NamedLayout {
        let mut layout = NamedLayout::default();
        for name in ["tokens", "targets"] {
            layout.place(name, TensorType::new(DType::I32, &[BATCH * LENGTH])).unwrap();
        }
        layout.place("lengths", TensorType::new(DType::I32, &[BATCH])).unwrap();
        layout
    }

    fn accumulate(&self, precision: DType) -> Result<Graph, EngineError> {
        let mut g = Graph::new(self.parameters.clone(), precision);
        let rows = Rows::even(BATCH, LENGTH);
        let ids = TensorType::new(DType::I32, &[BATCH * LENGTH]);
        let (tokens, targets) = (g.input("tokens", ids)?, g.input("targets", ids)?);
        let lengths = g.input("lengths", TensorType::new(DType::I32, &[BATCH]))?;
        let table = g.parameter(self.embedding);
        let mut x = g.embedding(table, tokens)?;
        for layer in &self.layers {
            x = layer_forward(&mut g, layer, x, &rows, lengths)?;
        }
        let x = normed(&mut g, x, self.norm)?;
        let logits = through(&mut g, x, self.head)?;
        let weight = g.number(1.0 / f64::from(BATCH * LENGTH));
        let loss = g.cross_entropy(logits, targets, &rows, lengths, weight)?;
        g.result("loss", loss)?;
        g.accumulate(loss, &Recomputed::new())?;
        Ok(g)
    }
}

fn layer_forward(g: &mut Graph, layer: &Layer, x: Value, rows: &Rows, lengths: Value) -> Result<Value, EngineError> {
    let h = normed(g, x, layer.norm1)?;
    let h = through(g, h, layer.qkv)?;
    let h = g.attention(h, HEADS, true, rows, lengths)?;
    let h = through(g, h, layer.proj)?;
    let x = g.add(x, h)?;
    let h = normed(g, x, layer.norm2)?;
    let h = through(g, h, layer.up)?;
    let h = g.gelu(h)?;
    let h = through(g, h, layer.down)?;
    g.add(x, h)
}

fn normed(g: &mut Graph, x: Value, ids: [ParameterId; 2]) -> Result<Value, EngineError> {
    let [gain, bias] = ids.map(|id| g.parameter(id));
    g.layer_norm(x, gain, bias)
}

fn through(g: &mut Graph, x: Value, ids: [ParameterId; 2]) -> Result<Value, EngineError> {
    let [weight, bias] = ids.map(|id| g.parameter(id));
    g.linear(x, weight, Some(bias))
}

/// The transformer in a session.
struct Training {
    model: Transformer,
    session: Session,
    accumulate: ProgramId,
    update: ProgramId,
    precision: DType,
}

impl Training {
    fn new(precision: DType) -> Training {
        let model = Transformer::new().unwrap();
        let spec = UpdateSpec { average: false, ..UpdateSpec::default() };
        let mut set = ProgramSet::new(model.parameters.clone(), precision, &spec.spans());
        let accumulate = set.add("accumulate", &model.accumulate(precision).unwrap(), &Transformer::layout()).unwrap();
        let graph = update_program(&model.parameters, precision, &spec).unwrap();
        let update = set.add("update", &graph, &NamedLayout::default()).unwrap();
        let bytes = set.lines().iter().map(|line| line.bytes).sum();
        let spec =
            ArenaSpec { role: Role::Model, limit_bytes: bytes, driver_bytes: 0, arena_bytes: bytes, capped: false };
        let arena = Arena::reserve(&Machine::cpu().open(0).unwrap(), spec).unwrap();
        let stream = Arc::new(arena.device().stream(true).unwrap());
        let session = Session::create(Arc::new(set), &arena, stream, 3).unwrap();
        let training = Training { model, session, accumulate, update, precision };
        training.prepare();
        training
    }

    fn prepare(&self) {
        let start = self.model.start();
        match self.precision {
            DType::F64 => self.session.write_span(Span::Parameters, &start),
            _ => self.session.write_span(Span::Parameters, &start.iter().map(|&x| x as f32).collect::<Vec<_>>()),
        }
        .unwrap();
    }

    /// Before every run: programs take turns in one memory.
    fn write_batch(&self) {
        for (name, key) in [("tokens", TOKENS_KEY), ("targets", TARGETS_KEY)] {
            self.session.write_input(self.accumulate, name, &tokens(key)).unwrap();
        }
        self.session.write_input(self.accumulate, "lengths", &[LENGTH as i32; BATCH as usize]).unwrap();
    }

    fn gradients(&self) -> Vec<f64> {
        match self.precision {
            DType::F64 => self.session.read_span::<f64>(Span::Gradients).unwrap(),
            _ => self.session.read_span::<f32>(Span::Gradients).unwrap().into_iter().map(f64::from).collect(),
        }
    }

    fn loss(&mut self) -> f64 {
        self.write_batch();
        self.session.run(self.accumulate, None, &[]).unwrap();
        let fetch = self.session.fetch(self.accumulate).unwrap();
        number(&self.session.finish(fetch).unwrap(), "loss")
    }

    fn update(&mut self) {
        let lr = if self.precision == DType::F64 { HostValue::F64(&[1e-3]) } else { HostValue::F32(&[1e-3]) };
        self.session.run(self.update, None, &[("lr", lr)]).unwrap();
    }
}

fn number(results: &Results, name: &str) -> f64 {
    results.get::<f64>(name).map_or_else(|_| f64::from(results.get::<f32>(name).unwrap()[0]), |x| x[0])
}

/// Norm and stored entries of every parameter's gradient. An entry may be zero by symmetry (the keys' bias is), so it is
/// held against the size of a usual one.
fn compare_gradients(training: &Training, reference: &Json, bound: f64) {
    let (span, parameters) = (training.gradients(), &training.model.parameters);
    let told = reference["gradients"].as_array().unwrap();
    assert_eq!(told.len(), parameters.iter().count());
    for (told, (_, parameter)) in told.iter().zip(parameters.iter()) {
        let name = &parameter.name;
        assert_eq!(told["name"], *name);
        let found = &span[parameter.offset as usize..][..parameter.shape.elements() as usize];
        let (norm, expected) = (found.iter().map(|x| x * x).sum::<f64>().sqrt(), told["norm"].as_f64().unwrap());
        assert!((norm / expected - 1.0).abs() <= bound, "{name}: norm {norm}, PyTorch has {expected}");
        let usual = expected / (found.len() as f64).sqrt();
        for entry in told["entries"].as_array().unwrap() {
            let (at, expected) = (entry["at"].as_u64().unwrap() as usize, entry["value"].as_f64().unwrap());
            let error = (found[at] - expected).abs() / expected.abs().max(usual);
            assert!(error <= bound, "{name}[{at}]: {}, PyTorch has {expected}", found[at]);
        }
    }
}

fn check(precision: DType, name: &str, gradient_bound: f64, loss_bound: f64) {
    let reference: Json = serde_json::from_str(REFERENCE).unwrap();
    let losses = reference[name]["losses"].as_array().unwrap();
    assert_eq!(losses.len(), 20);
    let mut training = Training::new(precision);
    for (step, expected) in losses.iter().enumerate() {
        let (found, expected) = (training.loss(), expected.as_f64().unwrap());
        let error = (found / expected - 1.0).abs();
        assert!(error <= loss_bound, "{name}, step {step}: loss {found}, PyTorch has {expected}");
        if step == 0 {
            compare_gradients(&training, &reference[name], gradient_bound);
        }
        training.update();
    }
}

#[test]
fn twenty_steps_in_f32_are_those_of_pytorch() {
    check(DType::F32, "f32", 1e-4, 1e-4);
}

/// PyTorch divides by the norm plus 1e-6 when it clips, which losses see in their tenth digit or so.
#[test]
fn twenty_steps_in_f64_are_those_of_pytorch() {
    check(DType::F64, "f64", 1e-9, 1e-7);
}
