//! A small model over ragged rows, its data, and a session that trains it.

use std::sync::Arc;

use tandem_device::{Arena, ArenaSpec, Block, DType, Machine};
use tandem_engine::{
    EngineError, Graph, HostValue, Init, NamedLayout, ParameterId, ParameterList, ParameterSpan, Parameters, ProgramId,
    ProgramSet, Recomputed, Results, Session, TensorType, UpdateSpec, update_program,
};
use tandem_events::Role;

/// Frames of a row; the data says how many are valid.
pub(crate) const FRAMES: u32 = 12;
pub(crate) const INPUTS: u32 = 6;
pub(crate) const OUTPUTS: u32 = 4;
const HIDDEN: u32 = 16;

/// Two linear layers with a GELU between them, and a masked squared error.
pub(crate) struct TinyModel {
    pub(crate) parameters: Arc<Parameters>,
    up: LinearIds,
    down: LinearIds,
}

#[derive(Clone, Copy)]
struct LinearIds {
    weight: ParameterId,
    bias: ParameterId,
}

impl TinyModel {
    pub(crate) fn new() -> TinyModel {
        let mut list = ParameterList::new();
        let mut layer = |name: &str, outputs: u32, inputs: u32| {
            list.scope(name, |list| {
                Ok::<_, EngineError>(LinearIds {
                    weight: list.weight("weight", &[outputs, inputs], Init::Normal(0.4))?,
                    bias: list.vector("bias", &[outputs], Init::Constant(0.1))?,
                })
            })
        };
        let up = layer("up", HIDDEN, INPUTS).unwrap();
        let down = layer("down", OUTPUTS, HIDDEN).unwrap();
        TinyModel { parameters: Arc::new(list.finish()), up, down }
    }

    /// The layout of a batch of `rows` rows.
    pub(crate) fn layout(precision: DType, rows: u32) -> NamedLayout {
        let mut layout = NamedLayout::default();
        for (name, columns) in [("x", INPUTS), ("y", OUTPUTS), ("mask", 1)] {
            layout.place(name, TensorType::new(precision, &[rows * FRAMES, columns])).unwrap();
        }
        layout
    }

    /// `weight · Σ mask · (f(x) - y)²` and its accumulated gradients; `weight` is a host value.
    pub(crate) fn accumulate(&self, precision: DType, rows: u32) -> Result<Graph, EngineError> {
        let mut g = Graph::new(self.parameters.clone(), precision);
        let ty = |columns| TensorType::new(precision, &[rows * FRAMES, columns]);
        let (x, y, mask) = (g.input("x", ty(INPUTS))?, g.input("y", ty(OUTPUTS))?, g.input("mask", ty(1))?);
        let weight = g.host("weight", TensorType::new(g.acc_dtype(), &[1]))?;
        let (up, up_bias) = (g.parameter(self.up.weight), g.parameter(self.up.bias));
        let (down, down_bias) = (g.parameter(self.down.weight), g.parameter(self.down.bias));
        let hidden = g.linear(x, up, Some(up_bias))?;
        let hidden = g.gelu(hidden)?;
        let found = g.linear(hidden, down, Some(down_bias))?;
        let difference = g.sub(found, y)?;
        let squares = g.mul(difference, difference)?;
        let valid = g.mul(squares, mask)?;
        let sum = g.sum_all(valid)?;
        let loss = g.mul(sum, weight)?;
        g.result("loss", loss)?;
        g.accumulate(loss, &Recomputed::new())?;
        Ok(g)
    }
}

/// A row of a batch: the number of its utterance, and how many of its frames are valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestRow {
    pub(crate) number: u32,
    pub(crate) valid: u32,
}

/// Rows with every number of valid frames from 0 to all.
pub(crate) fn ragged(count: u32) -> Vec<TestRow> {
    (0..count).map(|number| TestRow { number, valid: (number * 7 + 3) % (FRAMES + 1) }).collect()
}

pub(crate) fn valid_frames(utterances: &[TestRow]) -> f64 {
    f64::from(utterances.iter().map(|utterance| utterance.valid).sum::<u32>())
}

/// The fields of a batch.
#[derive(Clone, Debug)]
pub(crate) struct TestBatch {
    pub(crate) x: Vec<f64>,
    pub(crate) y: Vec<f64>,
    pub(crate) mask: Vec<f64>,
}

/// The fields of these rows. Padding contains large values, so that using it is noticed.
pub(crate) fn fields(utterances: &[TestRow]) -> TestBatch {
    let (mut x, mut y, mut mask) = (Vec::new(), Vec::new(), Vec::new());
    for utterance in utterances {
        for frame in 0..FRAMES {
            let valid = frame < utterance.valid;
            let at = |i: u32| f64::from(utterance.number * 31 + frame * 7 + i * 3);
            let inputs: Vec<f64> = (0..INPUTS).map(|i| if valid { (0.7 * at(i)).sin() } else { 40.0 }).collect();
            let sum: f64 = inputs.iter().sum();
            y.extend((0..OUTPUTS).map(|i| if valid { (sum + f64::from(i)).cos() } else { -900.0 }));
            x.extend(inputs);
            mask.push(f64::from(u8::from(valid)));
        }
    }
    TestBatch { x, y, mask }
}

/// The bytes of numbers converted to `dtype`.
pub(crate) fn bytes_of(dtype: DType, values: &[f64]) -> Vec<u8> {
    match dtype {
        DType::F64 => bytemuck::cast_slice(values).to_vec(),
        DType::BF16 => {
            let values: Vec<half::bf16> = values.iter().map(|&x| half::bf16::from_f32(x as f32)).collect();
            bytemuck::cast_slice(&values).to_vec()
        }
        _ => bytemuck::cast_slice(&values.iter().map(|&x| x as f32).collect::<Vec<_>>()).to_vec(),
    }
}

pub(crate) fn arena(machine: &Machine, bytes: u64) -> Arena {
    let device = machine.open(0).unwrap();
    let spec = ArenaSpec::new(Role::Model, bytes);
    Arena::reserve(&device, spec).unwrap()
}

/// A session in an arena that has `spare` bytes left over.
pub(crate) fn session(machine: &Machine, set: ProgramSet, spare: u64) -> (Session, Arena) {
    let arena = arena(machine, set.bytes(machine.kind()) + spare);
    let stream = Arc::new(arena.device().stream(true).unwrap());
    (Session::create(Arc::new(set), &arena, stream, 3).unwrap(), arena)
}

/// The programs of a training run: accumulate over `rows` rows, and update.
pub(crate) fn programs(precision: DType, rows: u32, spec: &UpdateSpec) -> (ProgramSet, [ProgramId; 2]) {
    let model = TinyModel::new();
    let mut set = ProgramSet::new(model.parameters.clone(), precision, &spec.spans());
    let graph = model.accumulate(precision, rows).unwrap();
    let accumulate = set.add("accumulate", &graph, &TinyModel::layout(precision, rows)).unwrap();
    let graph = update_program(&model.parameters, precision, spec).unwrap();
    let update = set.add("update", &graph, &NamedLayout::default()).unwrap();
    (set, [accumulate, update])
}

/// A model in training.
pub(crate) struct TestTrainer {
    pub(crate) session: Session,
    pub(crate) arena: Arena,
    pub(crate) accumulate: ProgramId,
    pub(crate) update: ProgramId,
    pub(crate) precision: DType,
    rows: u32,
}

impl TestTrainer {
    pub(crate) fn new(machine: &Machine, precision: DType, rows: u32) -> TestTrainer {
        let spec = UpdateSpec::default();
        let (set, [accumulate, update]) = programs(precision, rows, &spec);
        let (session, arena) = session(machine, set, 1 << 20);
        let trainer = TestTrainer { session, arena, accumulate, update, precision, rows };
        let start = trainer.session.set().parameters().initial(11);
        trainer.write_span(ParameterSpan::Parameters, &start);
        if precision == DType::BF16 {
            let copy: Vec<half::bf16> = start.iter().map(|&x| half::bf16::from_f32(x as f32)).collect();
            trainer.session.write_span(ParameterSpan::Compute, &copy).unwrap();
        }
        trainer
    }

    /// A batch in its own device memory, as a feed delivers it.
    pub(crate) fn load(&self, batch: &TestBatch) -> Block {
        let layout = TinyModel::layout(self.precision, self.rows);
        let block = self.arena.take("batch", layout.bytes).unwrap();
        let mut pinned = self.arena.device().pinned(layout.bytes).unwrap();
        for (field, values) in layout.fields.iter().zip([&batch.x, &batch.y, &batch.mask]) {
            let bytes = bytes_of(self.precision, values);
            assert_eq!(bytes.len() as u64, field.ty.bytes(), "{}", field.name);
            pinned.bytes_mut().unwrap()[field.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        self.session.stream().upload(&pinned, 0..layout.bytes, block.view()).unwrap();
        self.session.stream().drain().unwrap();
        block
    }

    pub(crate) fn accumulate(&mut self, batch: &Block, weight: f64) {
        let (in_f32, in_f64) = ([weight as f32], [weight]);
        let weight = if self.precision == DType::F64 { HostValue::F64(&in_f64) } else { HostValue::F32(&in_f32) };
        self.session.run(self.accumulate, Some(batch.view()), &[("weight", weight)]).unwrap();
    }

    pub(crate) fn update(&mut self, lr: f64) {
        let (in_f32, in_f64) = ([[lr as f32], [0.99]], [[lr], [0.99]]);
        let value = |i: usize| match self.precision {
            DType::F64 => HostValue::F64(&in_f64[i]),
            _ => HostValue::F32(&in_f32[i]),
        };
        self.session.run(self.update, None, &[("lr", value(0)), ("ema_decay", value(1))]).unwrap();
    }

    pub(crate) fn results(&mut self, id: ProgramId) -> Results {
        let fetch = self.session.fetch(id).unwrap();
        self.session.finish(fetch).unwrap()
    }

    /// One step over one batch; returns its loss.
    pub(crate) fn step(&mut self, batch: &TestBatch, weight: f64, lr: f64) -> f64 {
        let batch = self.load(batch);
        self.accumulate(&batch, weight);
        let id = self.accumulate;
        let loss = number(&self.results(id), "loss");
        self.update(lr);
        self.session.stream().drain().unwrap();
        loss
    }

    pub(crate) fn write_span(&self, span: ParameterSpan, values: &[f64]) {
        match self.precision {
            DType::F64 => self.session.write_span(span, values),
            _ => self.session.write_span(span, &values.iter().map(|&x| x as f32).collect::<Vec<_>>()),
        }
        .unwrap();
    }

    pub(crate) fn span(&self, span: ParameterSpan) -> Vec<f64> {
        match self.precision {
            DType::F64 => self.session.read_span::<f64>(span).unwrap(),
            _ => self.session.read_span::<f32>(span).unwrap().into_iter().map(f64::from).collect(),
        }
    }

    /// The bits of everything that an update changes.
    pub(crate) fn bits(&self) -> Vec<u64> {
        let spans = [
            ParameterSpan::Parameters,
            ParameterSpan::FirstMoment,
            ParameterSpan::SecondMoment,
            ParameterSpan::Average,
        ];
        spans.into_iter().flat_map(|span| self.span(span)).map(f64::to_bits).collect()
    }
}

/// A scalar result.
pub(crate) fn number(results: &Results, name: &str) -> f64 {
    match results.get::<f32>(name) {
        Ok(x) => f64::from(x[0]),
        Err(_) => results.get::<f64>(name).unwrap()[0],
    }
}

/// The distance of two tensors, relative to the norm of the second.
pub(crate) fn distance(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let difference: f64 = found.iter().zip(expected).map(|(a, b)| (a - b) * (a - b)).sum();
    let size: f64 = expected.iter().map(|x| x * x).sum();
    assert!(size > 0.0, "nothing to compare with");
    (difference / size).sqrt()
}
