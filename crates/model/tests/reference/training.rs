//! The transformer in a session, with weights and tokens from the formula that `tools/reference/engine` uses as well.

use std::sync::Arc;

use half::bf16;
use tandem_device::{Arena, ArenaSpec, DType, Machine, Pinned};
use tandem_engine::{
    HostValue, NamedLayout, ParameterSpan, Parameters, ProgramId, ProgramSet, Results, Session, UpdateSpec,
    update_program,
};
use tandem_events::Role;
use tandem_model::{Transformer, TransformerSizes};

const TOKENS_KEY: u32 = 1000;
const TARGETS_KEY: u32 = 1001;

/// A training configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) sizes: TransformerSizes,
    pub(crate) batch: u32,
    pub(crate) length: u32,
    /// Factor of the fractions, a power of two.
    pub(crate) scale: f64,
    pub(crate) lr: f64,
}

/// A 32-bit hash of key and index: two odd multipliers, two xor-shifts.
fn scrambled(key: u32, i: u32) -> u32 {
    let x = key.wrapping_mul(0x9E37_79B1).wrapping_add(i.wrapping_mul(0x85EB_CA77)).wrapping_add(0xC2B2_AE3D);
    let x = (x ^ (x >> 15)).wrapping_mul(0x2C1B_3C6D);
    x ^ (x >> 13)
}

/// In [-1/8, 1/8), a multiple of 2^-18: exact in f32, also with 1 added.
fn fraction(key: u32, i: u32) -> f64 {
    (f64::from(scrambled(key, i) >> 16) - 32768.0) / 262_144.0
}

impl Case {
    fn tokens(&self, key: u32) -> Vec<i32> {
        let count = self.batch * self.length;
        (0..count).map(|i| (scrambled(key, i) % self.sizes.vocabulary) as i32).collect()
    }

    /// The initial span. The key of a parameter is its index in the list; gains have 1 added.
    fn start(&self, parameters: &Parameters) -> Vec<f64> {
        let mut span = vec![0.0; parameters.elements() as usize];
        for (key, (_, parameter)) in (0..).zip(parameters.iter()) {
            let one = f64::from(u8::from(parameter.name.ends_with("gain")));
            for i in 0..parameter.shape.elements() as u32 {
                span[parameter.offset as usize + i as usize] = one + self.scale * fraction(key, i);
            }
        }
        span
    }
}

/// A training run. Every step has the same batch.
pub(crate) struct Training {
    case: Case,
    parameters: Arc<Parameters>,
    session: Session,
    batch: Pinned,
    accumulate: ProgramId,
    update: ProgramId,
    precision: DType,
}

impl Training {
    /// On the first card of `machine`, in an arena of exactly the size it needs. Without an EMA, whatever `update` says.
    pub(crate) fn new(machine: &Machine, case: Case, precision: DType, update: &UpdateSpec) -> Training {
        let model = Transformer::new(case.sizes).unwrap();
        let spec = UpdateSpec { average: false, ..update.clone() };
        let parameters = model.parameters().clone();
        let mut set = ProgramSet::new(parameters.clone(), precision, &spec.spans());
        let layout = model.layout(case.batch, case.length).unwrap();
        let graph = model.accumulate(precision, (case.batch, case.length), spec.gradient_mode()).unwrap();
        let accumulate = set.add("accumulate", &graph, &layout).unwrap();
        let graph = update_program(&parameters, precision, &spec).unwrap();
        let update = set.add("update", &graph, &NamedLayout::default()).unwrap();
        let session = session(machine, set);
        let batch = batch(&session, &case, &layout);
        let training = Training { case, parameters, session, batch, accumulate, update, precision };
        training.prepare();
        training
    }

    fn prepare(&self) {
        let start = self.case.start(&self.parameters);
        let in_f32 = || start.iter().map(|&x| x as f32).collect::<Vec<_>>();
        match self.precision {
            DType::F64 => self.session.write_span(ParameterSpan::Parameters, &start),
            _ => self.session.write_span(ParameterSpan::Parameters, &in_f32()),
        }
        .unwrap();
        if self.precision == DType::BF16 {
            let compute: Vec<bf16> = in_f32().into_iter().map(bf16::from_f32).collect();
            self.session.write_span(ParameterSpan::Compute, &compute).unwrap();
        }
    }

    pub(crate) fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn gradients(&self) -> Vec<f64> {
        match self.precision {
            DType::F64 => self.session.read_span::<f64>(ParameterSpan::Gradients).unwrap(),
            _ => self.session.read_span::<f32>(ParameterSpan::Gradients).unwrap().into_iter().map(f64::from).collect(),
        }
    }

    /// Queues forward and backward pass.
    pub(crate) fn accumulate(&mut self) {
        self.session.run_from(self.accumulate, &self.batch, &[]).unwrap();
    }

    /// Forward and backward pass; waits for the loss.
    pub(crate) fn loss(&mut self) -> f64 {
        self.accumulate();
        let fetch = self.session.fetch(self.accumulate).unwrap();
        number(&self.session.finish(fetch).unwrap(), "loss")
    }

    pub(crate) fn update(&mut self) {
        let (in_f64, in_f32) = ([self.case.lr], [self.case.lr as f32]);
        let lr = if self.precision == DType::F64 { HostValue::F64(&in_f64) } else { HostValue::F32(&in_f32) };
        self.session.run(self.update, None, &[("lr", lr)]).unwrap();
    }

    /// The losses of `steps` steps.
    pub(crate) fn losses(&mut self, steps: usize) -> Vec<f64> {
        let step = |_| {
            let loss = self.loss();
            self.update();
            loss
        };
        (0..steps).map(step).collect()
    }

    /// The bits of parameters and both moments, in f32.
    pub(crate) fn bits(&self) -> Vec<u32> {
        let spans = [ParameterSpan::Parameters, ParameterSpan::FirstMoment, ParameterSpan::SecondMoment];
        spans.into_iter().flat_map(|span| self.session.read_span::<u32>(span).unwrap()).collect()
    }
}

fn session(machine: &Machine, set: ProgramSet) -> Session {
    let bytes = set.bytes(machine.kind());
    let spec = ArenaSpec::new(Role::Model, bytes);
    let arena = Arena::reserve(&machine.open(0).unwrap(), spec).unwrap();
    let stream = Arc::new(arena.device().stream(true).unwrap());
    Session::create(Arc::new(set), &arena, stream, 3).unwrap()
}

fn batch(session: &Session, case: &Case, layout: &NamedLayout) -> Pinned {
    let mut batch = session.stream().device().pinned(layout.bytes).unwrap();
    let lengths = vec![case.length as i32; case.batch as usize];
    for (name, values) in
        [("tokens", case.tokens(TOKENS_KEY)), ("targets", case.tokens(TARGETS_KEY)), ("lengths", lengths)]
    {
        let at = layout.find("input", name).unwrap().offset as usize;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        batch.bytes_mut().unwrap()[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    batch
}

fn number(results: &Results, name: &str) -> f64 {
    results.get::<f64>(name).map_or_else(|_| f64::from(results.get::<f32>(name).unwrap()[0]), |x| x[0])
}
