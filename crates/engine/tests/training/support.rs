//! A small model over ragged rows, its data, and a session that trains it.

use std::sync::Arc;

use tandem_device::{Arena, ArenaSpec, Block, DType, Machine};
use tandem_engine::{
    EngineError, Graph, HostValue, Init, NamedLayout, ParameterId, ParameterList, ParameterSpan, Parameters, ProgramId,
    ProgramSet, Recomputed, Results, Session, TensorType, UpdateSpec, update_program,
};
use tandem_events::Role;

/// Frames of a row; how many of them count is up to the data.
pub(crate) const FRAMES: u32 = 12;
pub(crate) const INPUTS: u32 = 6;
pub(crate) const OUTPUTS: u32 = 4;
const HIDDEN: u32 = 16;

/// Two linear layers with a bend between them, and a masked squared error.
pub(crate) struct TinyModel {
    pub(crate) parameters: Arc<Parameters>,
    up: [ParameterId; 2],
    down: [ParameterId; 2],
}

impl TinyModel {
    pub(crate) fn new() -> TinyModel {
        let mut list = ParameterList::new();
        let mut layer = |name: &str, dims: [u32; 2]| {
            list.scope(name, |list| {
                let weight = list.weight("weight", &dims, Init::Normal(0.4))?;
                Ok::<_, EngineError>([weight, list.vector("bias", &dims[..1], Init::Constant(0.1))?])
            })
        };
        let up = layer("up", [HIDDEN, INPUTS]).unwrap();
        let down = layer("down", [OUTPUTS, HIDDEN]).unwrap();
        TinyModel { parameters: Arc::new(list.finish()), up, down }
    }

    /// Where a batch of `rows` rows has its fields.
    pub(crate) fn layout(precision: DType, rows: u32) -> NamedLayout {
        let mut layout = NamedLayout::default();
        for (name, columns) in [("x", INPUTS), ("y", OUTPUTS), ("mask", 1)] {
            layout.place(name, TensorType::new(precision, &[rows * FRAMES, columns])).unwrap();
        }
        layout
    }

    /// `weight · Σ mask · (f(x) - y)²`, its gradients added to the sums; `weight` comes from the host with every run.
    pub(crate) fn accumulate(&self, precision: DType, rows: u32) -> Result<Graph, EngineError> {
        let mut g = Graph::new(self.parameters.clone(), precision);
        let ty = |columns| TensorType::new(precision, &[rows * FRAMES, columns]);
        let (x, y, mask) = (g.input("x", ty(INPUTS))?, g.input("y", ty(OUTPUTS))?, g.input("mask", ty(1))?);
        let weight = g.host("weight", TensorType::new(g.acc_dtype(), &[1]))?;
        let [up, up_bias] = self.up.map(|id| g.parameter(id));
        let [down, down_bias] = self.down.map(|id| g.parameter(id));
        let hidden = g.linear(x, up, Some(up_bias))?;
        let hidden = g.gelu(hidden)?;
        let found = g.linear(hidden, down, Some(down_bias))?;
        let apart = g.sub(found, y)?;
        let squares = g.mul(apart, apart)?;
        let valid = g.mul(squares, mask)?;
        let sum = g.sum_all(valid)?;
        let loss = g.mul(sum, weight)?;
        g.result("loss", loss)?;
        g.accumulate(loss, &Recomputed::new())?;
        Ok(g)
    }
}

/// A row of a batch: which recording, and how many of its frames count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TestRow {
    pub(crate) number: u32,
    pub(crate) valid: u32,
}

/// Rows of every length from none to all.
pub(crate) fn ragged(count: u32) -> Vec<TestRow> {
    (0..count).map(|number| TestRow { number, valid: (number * 7 + 3) % (FRAMES + 1) }).collect()
}

pub(crate) fn valid_frames(utterances: &[TestRow]) -> f64 {
    f64::from(utterances.iter().map(|utterance| utterance.valid).sum::<u32>())
}

/// Fields of a batch in the order of the layout. Padding holds numbers that would be noticed.
pub(crate) fn fields(utterances: &[TestRow]) -> [Vec<f64>; 3] {
    let (mut x, mut y, mut mask) = (Vec::new(), Vec::new(), Vec::new());
    for utterance in utterances {
        for frame in 0..FRAMES {
            let counts = frame < utterance.valid;
            let at = |i: u32| f64::from(utterance.number * 31 + frame * 7 + i * 3);
            let given: Vec<f64> = (0..INPUTS).map(|i| if counts { (0.7 * at(i)).sin() } else { 40.0 }).collect();
            let sum: f64 = given.iter().sum();
            y.extend((0..OUTPUTS).map(|i| if counts { (sum + f64::from(i)).cos() } else { -900.0 }));
            x.extend(given);
            mask.push(f64::from(u8::from(counts)));
        }
    }
    [x, y, mask]
}

/// Numbers as `dtype` has them in memory.
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
    let spec = ArenaSpec { role: Role::Model, limit_bytes: bytes, driver_bytes: 0, arena_bytes: bytes, capped: false };
    Arena::reserve(&device, spec).unwrap()
}

/// A session in an arena with `spare` bytes more than it takes.
pub(crate) fn session(machine: &Machine, set: ProgramSet, spare: u64) -> (Session, Arena) {
    let arena = arena(machine, set.bytes(machine.kind()) + spare);
    let stream = Arc::new(arena.device().stream(true).unwrap());
    (Session::create(Arc::new(set), &arena, stream, 3).unwrap(), arena)
}

/// The programs of a training: accumulate over `rows` rows, update.
pub(crate) fn programs(precision: DType, rows: u32, spec: &UpdateSpec) -> (ProgramSet, [ProgramId; 2]) {
    let model = TinyModel::new();
    let mut set = ProgramSet::new(model.parameters.clone(), precision, &spec.spans());
    let graph = model.accumulate(precision, rows).unwrap();
    let accumulate = set.add("accumulate", &graph, &TinyModel::layout(precision, rows)).unwrap();
    let graph = update_program(&model.parameters, precision, spec).unwrap();
    let update = set.add("update", &graph, &NamedLayout::default()).unwrap();
    (set, [accumulate, update])
}

/// A model under training.
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

    /// A batch in memory of its own, as the feed would bring it.
    pub(crate) fn load(&self, fields: &[Vec<f64>; 3]) -> Block {
        let layout = TinyModel::layout(self.precision, self.rows);
        let block = self.arena.take("batch", layout.bytes).unwrap();
        let mut pinned = self.arena.device().pinned(layout.bytes).unwrap();
        for (field, values) in layout.fields.iter().zip(fields) {
            let bytes = bytes_of(self.precision, values);
            assert_eq!(bytes.len() as u64, field.ty.bytes(), "{}", field.name);
            pinned.bytes_mut().unwrap()[field.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        self.session.stream().upload(&pinned, 0..layout.bytes, block.view()).unwrap();
        self.session.stream().drain().unwrap();
        block
    }

    pub(crate) fn accumulate(&mut self, batch: &Block, weight: f64) {
        let (narrow, wide) = ([weight as f32], [weight]);
        let weight = if self.precision == DType::F64 { HostValue::F64(&wide) } else { HostValue::F32(&narrow) };
        self.session.run(self.accumulate, Some(batch.view()), &[("weight", weight)]).unwrap();
    }

    pub(crate) fn update(&mut self, lr: f64) {
        let (narrow, wide) = ([[lr as f32], [0.99]], [[lr], [0.99]]);
        let value = |i: usize| match self.precision {
            DType::F64 => HostValue::F64(&wide[i]),
            _ => HostValue::F32(&narrow[i]),
        };
        self.session.run(self.update, None, &[("lr", value(0)), ("average_decay", value(1))]).unwrap();
    }

    pub(crate) fn results(&mut self, id: ProgramId) -> Results {
        let fetch = self.session.fetch(id).unwrap();
        self.session.finish(fetch).unwrap()
    }

    /// One step over one batch: its loss.
    pub(crate) fn step(&mut self, fields: &[Vec<f64>; 3], weight: f64, lr: f64) -> f64 {
        let batch = self.load(fields);
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

    /// Everything an update may change, to the bit.
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

/// A result of one number.
pub(crate) fn number(results: &Results, name: &str) -> f64 {
    match results.get::<f32>(name) {
        Ok(x) => f64::from(x[0]),
        Err(_) => results.get::<f64>(name).unwrap()[0],
    }
}

/// Distance of two tensors against the size of the second.
pub(crate) fn distance(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let apart: f64 = found.iter().zip(expected).map(|(a, b)| (a - b) * (a - b)).sum();
    let size: f64 = expected.iter().map(|x| x * x).sum();
    assert!(size > 0.0, "nothing to compare with");
    (apart / size).sqrt()
}
