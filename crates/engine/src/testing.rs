//! Test harness for ops: values, gradients against finite differences in f64, and bit-identical results on every kind of
//! host device.

use std::sync::Arc;

use half::bf16;
use tandem_device::{Arena, ArenaSpec, DType, Device, Machine, SimSpec};
use tandem_events::Role;

use crate::random::normal_at;
use crate::{
    EngineError, Graph, HostValue, NamedLayout, ProgramId, ProgramSet, Recomputed, Session, TensorType, Value,
};

/// Allowed relative error of a gradient.
const GRADIENT_BOUND: f64 = 1e-6;
/// Elements of each input that are compared.
const COMPARED: usize = 24;

/// Inputs of an op.
#[derive(Clone, Debug, Default)]
pub(crate) struct GradientCheck {
    inputs: Vec<Input>,
    host: Vec<(String, Vec<u32>)>,
}

#[derive(Clone, Debug)]
enum Input {
    Real { dims: Vec<u32>, values: Vec<f64>, differentiate: bool, terms: f64 },
    Integers { dims: Vec<u32>, values: Vec<i32> },
}

impl GradientCheck {
    pub(crate) fn new() -> GradientCheck {
        GradientCheck::default()
    }

    /// An input of standard normal numbers.
    pub(crate) fn input(self, dims: &[u32]) -> GradientCheck {
        let values = self.normal(dims);
        self.real(dims, values, true)
    }

    /// An input of numbers above 0.3.
    pub(crate) fn positive(self, dims: &[u32]) -> GradientCheck {
        let values = self.normal(dims).into_iter().map(|x| x.abs() + 0.3).collect();
        self.real(dims, values, true)
    }

    /// An input of numbers at least 0.05 away from zero, for functions that are not differentiable there.
    pub(crate) fn off_zero(self, dims: &[u32]) -> GradientCheck {
        let values = self.normal(dims).into_iter().map(|x| x + 0.05_f64.copysign(x)).collect();
        self.real(dims, values, true)
    }

    /// An input of these numbers.
    pub(crate) fn given(self, dims: &[u32], values: &[f64]) -> GradientCheck {
        self.real(dims, values.to_vec(), true)
    }

    /// An input of standard normal numbers that is not differentiated.
    pub(crate) fn data(self, dims: &[u32]) -> GradientCheck {
        let values = self.normal(dims);
        self.real(dims, values, false)
    }

    /// An input of integers.
    pub(crate) fn integers(mut self, dims: &[u32], values: &[i32]) -> GradientCheck {
        self.inputs.push(Input::Integers { dims: dims.to_vec(), values: values.to_vec() });
        self
    }

    /// A host value.
    pub(crate) fn host(mut self, name: &str, values: &[u32]) -> GradientCheck {
        self.host.push((name.to_owned(), values.to_vec()));
        self
    }

    /// The gradient of the last input is a difference of terms of this size, and may cancel almost completely. A card rounds
    /// the terms differently from the CPU (it fuses multiply and add), so its error is measured relative to the terms, not to
    /// the difference.
    pub(crate) fn cancels(mut self, size: f64) -> GradientCheck {
        match self.inputs.last_mut() {
            Some(Input::Real { terms, differentiate: true, .. }) => *terms = size,
            other => panic!("{other:?} has no gradient"),
        }
        self
    }

    fn real(mut self, dims: &[u32], values: Vec<f64>, differentiate: bool) -> GradientCheck {
        assert_eq!(values.len() as u32, dims.iter().product::<u32>());
        self.inputs.push(Input::Real { dims: dims.to_vec(), values, differentiate, terms: 0.0 });
        self
    }

    /// The size of the terms of each gradient, if given; else 0.
    fn terms(&self) -> Vec<f64> {
        let of = |input: &Input| match input {
            Input::Real { differentiate: true, terms, .. } => Some(*terms),
            _ => None,
        };
        self.inputs.iter().filter_map(of).collect()
    }

    fn normal(&self, dims: &[u32]) -> Vec<f64> {
        let key = 77 + self.inputs.len() as u64;
        (0..u64::from(dims.iter().product::<u32>())).map(|i| normal_at(key, i)).collect()
    }
}

/// A program of one op on a device, with the op's value and its gradients as results.
struct OpProgram {
    session: Session,
    id: ProgramId,
    precision: DType,
    check: GradientCheck,
}

type Build<'b> = &'b dyn Fn(&mut Graph, &[Value]) -> Result<Value, EngineError>;

impl OpProgram {
    fn new(machine: &Machine, precision: DType, check: &GradientCheck, build: Build<'_>) -> OpProgram {
        let mut graph = Graph::new(Default::default(), precision);
        let mut layout = NamedLayout::default();
        let mut values = Vec::new();
        for (i, input) in check.inputs.iter().enumerate() {
            let (dims, dtype) = match input {
                Input::Real { dims, .. } => (dims, precision),
                Input::Integers { dims, .. } => (dims, DType::I32),
            };
            let ty = TensorType::new(dtype, dims);
            layout.place(&format!("input {i}"), ty).unwrap();
            values.push(graph.input(&format!("input {i}"), ty).unwrap());
        }
        let value = build(&mut graph, &values).unwrap();
        graph.result("value", value).unwrap();
        let loss = weighted_sum(&mut graph, value);
        graph.result("loss", loss).unwrap();
        let wrt: Vec<Value> =
            check.inputs.iter().zip(&values).filter(|(input, _)| input.is_differentiated()).map(|(_, v)| *v).collect();
        let gradients = graph.gradients(loss, &wrt, &Recomputed::new()).unwrap();
        for (i, gradient) in gradients.into_iter().enumerate() {
            let gradient = gradient.unwrap_or_else(|| {
                let zero = graph.number(0.0);
                graph.broadcast_to(zero, graph.shape(wrt[i])).unwrap()
            });
            graph.result(&format!("gradient {i}"), gradient).unwrap();
        }
        let mut set = ProgramSet::new(Default::default(), precision, &[]);
        let id = set.add("op", &graph, &layout).unwrap();
        OpProgram { session: session(machine, set), id, precision, check: check.clone() }
    }

    /// Runs on these inputs.
    fn run(&mut self, inputs: &[Input]) -> crate::Results {
        for (i, input) in inputs.iter().enumerate() {
            let name = format!("input {i}");
            match (input, self.precision) {
                (Input::Integers { values, .. }, _) => self.session.write_input(self.id, &name, values),
                (Input::Real { values, .. }, DType::F64) => self.session.write_input(self.id, &name, values),
                (Input::Real { values, .. }, DType::BF16) => {
                    let values: Vec<bf16> = values.iter().map(|&x| bf16::from_f64(x)).collect();
                    self.session.write_input(self.id, &name, &values)
                }
                (Input::Real { values, .. }, _) => {
                    let values: Vec<f32> = values.iter().map(|&x| x as f32).collect();
                    self.session.write_input(self.id, &name, &values)
                }
            }
            .unwrap();
        }
        let host: Vec<_> =
            self.check.host.iter().map(|(name, values)| (name.as_str(), HostValue::U32(values))).collect();
        self.session.run(self.id, None, &host).unwrap();
        let fetch = self.session.fetch(self.id).unwrap();
        self.session.finish(fetch).unwrap()
    }

    fn run_on_check(&mut self) -> crate::Results {
        let inputs = self.check.inputs.clone();
        self.run(&inputs)
    }
}

impl Input {
    fn is_differentiated(&self) -> bool {
        matches!(self, Input::Real { differentiate: true, .. })
    }
}

/// A result converted to f64.
fn numbers(results: &crate::Results, name: &str) -> Vec<f64> {
    if let Ok(x) = results.get::<f64>(name) {
        return x;
    }
    if let Ok(x) = results.get::<f32>(name) {
        return x.into_iter().map(f64::from).collect();
    }
    if let Ok(x) = results.get::<bf16>(name) {
        return x.into_iter().map(|x| x.to_f64()).collect();
    }
    results.get::<i32>(name).unwrap().into_iter().map(f64::from).collect()
}

/// A loss that depends on every element of `value` with a different weight.
fn weighted_sum(graph: &mut Graph, value: Value) -> Value {
    if graph.ty(value).dtype == DType::I32 {
        // Integers have no gradient.
        return graph.number(0.0);
    }
    let shape = graph.shape(value);
    let weights: Vec<f64> = (0..shape.elements()).map(|i| 0.5 + normal_at(3, i)).collect();
    let weights = match graph.acc_dtype() {
        DType::F64 => graph.constant(shape.dims(), &weights),
        _ => graph.constant(shape.dims(), &weights.iter().map(|&x| x as f32).collect::<Vec<_>>()),
    };
    let value = graph.cast(value, graph.acc_dtype()).unwrap();
    let weighted = graph.mul(weights, value).unwrap();
    graph.sum_all(weighted).unwrap()
}

/// A session for `set` on the first card.
pub(crate) fn session(machine: &Machine, set: ProgramSet) -> Session {
    let device: Device = machine.open(0).unwrap();
    let bytes: u64 = set.bytes(machine.kind()).max(1);
    let spec = ArenaSpec::new(Role::Model, bytes);
    let arena = Arena::reserve(&device, spec).unwrap();
    let stream = Arc::new(device.stream(true).unwrap());
    Session::create(Arc::new(set), &arena, stream, 1).unwrap()
}

/// The value of an op in f64.
pub(crate) fn run(
    check: GradientCheck,
    build: impl Fn(&mut Graph, &[Value]) -> Result<Value, EngineError>,
) -> Vec<f64> {
    let mut program = OpProgram::new(&Machine::cpu(), DType::F64, &check, &build);
    numbers(&program.run_on_check(), "value")
}

/// Checks the gradients of every floating-point input against central differences in f64, that f32 and bf16 are close to f64,
/// and that a simulated card and other thread counts give the bits of the CPU.
pub(crate) fn check_gradients(
    check: GradientCheck,
    build: impl Fn(&mut Graph, &[Value]) -> Result<Value, EngineError>,
) {
    let mut exact = OpProgram::new(&Machine::cpu(), DType::F64, &check, &build);
    let results = exact.run_on_check();
    let mut which = 0;
    for (i, input) in check.inputs.iter().enumerate() {
        if !input.is_differentiated() {
            continue;
        }
        let found = numbers(&results, &format!("gradient {which}"));
        which += 1;
        compare_with_differences(&mut exact, i, &found);
    }
    let f32_results = OpProgram::new(&Machine::cpu(), DType::F32, &check, &build).run_on_check();
    let no_terms = vec![0.0; which];
    close_to(&f32_results, &results, &no_terms, 1e-4, "f32");
    let sim = "1x1GiB".parse::<SimSpec>().unwrap();
    let threads = Machine::cpu();
    threads.set_compute_threads(3);
    for (what, machine) in [("a simulated card", Machine::simulated(sim)), ("three threads", threads)] {
        let other = OpProgram::new(&machine, DType::F32, &check, &build).run_on_check();
        assert_eq!(bits(&f32_results, which), bits(&other, which), "{what} gives different bits");
    }
    let bf16_results = OpProgram::new(&Machine::cpu(), DType::BF16, &check, &build).run_on_check();
    close_to(&bf16_results, &results, &no_terms, 6e-2, "bf16");
    check_on_card(&check, &build, CpuResults { in_f32: &f32_results, in_bf16: &bf16_results });
}

/// Runs an op in f32 and bf16 with tiny incoming gradients; neither its value nor its gradients may contain subnormals.
pub(crate) fn check_no_subnormals(
    check: GradientCheck,
    build: impl Fn(&mut Graph, &[Value]) -> Result<Value, EngineError>,
) {
    let scaled = |g: &mut Graph, x: &[Value]| {
        let value = build(g, x)?;
        g.scale(value, 1e-6)
    };
    for precision in [DType::F32, DType::BF16] {
        let results = OpProgram::new(&Machine::cpu(), precision, &check, &scaled).run_on_check();
        let names = (0..check.terms().len()).map(|i| format!("gradient {i}")).chain(["value".to_owned()]);
        for name in names {
            let found = numbers(&results, &name).into_iter().filter(|&x| (x as f32).is_subnormal());
            assert_eq!(found.collect::<Vec<_>>(), [0.0; 0], "{precision:?}: {name}");
        }
    }
}

/// If this environment variable is set, every op is tested on the first NVIDIA card as well.
const ON_CUDA: &str = "TANDEM_TEST_CUDA";
/// Allowed difference between a card and the CPU. GEMMs sum in another order, and functions differ in the last digits.
const CARD_F32: f64 = 2e-5;
const CARD_BF16: f64 = 2e-2;

/// The results of the CPU that a card is compared with.
struct CpuResults<'r> {
    in_f32: &'r crate::Results,
    in_bf16: &'r crate::Results,
}

/// Runs the op on a card twice, with poisoned memory: the results are close to the CPU's, and bit-identical both times.
fn check_on_card(check: &GradientCheck, build: Build<'_>, cpu: CpuResults<'_>) {
    if std::env::var_os(ON_CUDA).is_none() {
        return;
    }
    let machine = Machine::cuda().unwrap().expect("a machine with an NVIDIA card");
    let terms = check.terms();
    for (precision, cpu, bound) in [(DType::F32, cpu.in_f32, CARD_F32), (DType::BF16, cpu.in_bf16, CARD_BF16)] {
        let mut program = OpProgram::new(&machine, precision, check, build);
        program.session.poison().unwrap();
        let first = program.run_on_check();
        close_to(&first, cpu, &terms, bound, "a card against the CPU");
        program.session.poison().unwrap();
        let second = program.run_on_check();
        let [first, second] = [first, second].map(|results| bits(&results, terms.len()));
        assert_eq!(first, second, "a second run on the card gives different bits");
    }
}

/// Fails if the ops were not tested on a card.
#[test]
#[ignore = "needs an NVIDIA card: TANDEM_TEST_CUDA=1 tests every op of this crate on it"]
fn ops_are_tested_on_a_card() {
    assert!(std::env::var_os(ON_CUDA).is_some(), "set {ON_CUDA}=1 and run all tests of this binary");
}

fn bits(results: &crate::Results, gradients: usize) -> Vec<u64> {
    let names = (0..gradients).map(|i| format!("gradient {i}")).chain(["value".to_owned()]);
    names.flat_map(|name| numbers(results, &name)).map(f64::to_bits).collect()
}

/// Compares norms of whole tensors, because single elements may cancel; if a whole gradient cancels, relative to its terms.
fn close_to(found: &crate::Results, exact: &crate::Results, terms: &[f64], bound: f64, what: &str) {
    let gradients = terms.iter().enumerate().map(|(i, terms)| (format!("gradient {i}"), *terms));
    for (name, terms) in gradients.chain([("value".to_owned(), 0.0)]) {
        let error = distance(&numbers(found, &name), &numbers(exact, &name), terms);
        assert!(error <= bound, "{what}: {name} is off by {error:.2e}");
    }
}

fn distance(found: &[f64], exact: &[f64], terms: f64) -> f64 {
    assert_eq!(found.len(), exact.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(exact).map(|(a, b)| a - b));
    let size = norm(&mut exact.iter().copied());
    if difference == 0.0 { 0.0 } else { difference / size.max(terms).max(1e-6) }
}

#[test]
fn a_gradient_that_cancels_may_leave_rounding_errors_only() {
    // One channel equals its mean: of terms of 316 only a rounding error is left, and a missing mean leaves all of them.
    let terms = 1.0 / 1e-5_f64.sqrt();
    let noise = terms * f64::from(f32::EPSILON);
    assert!(distance(&[noise], &[0.0], terms) <= CARD_F32);
    assert!(distance(&[noise], &[0.0], 0.0) > CARD_F32, "without terms this is an error");
    assert!(distance(&[0.3 * terms], &[0.0], terms) > CARD_BF16);
}

fn compare_with_differences(program: &mut OpProgram, which: usize, found: &[f64]) {
    let count = found.len();
    let (mut compared, mut expected) = (Vec::new(), Vec::new());
    // An odd stride, coprime to most dimensions, visits all rows and columns.
    let stride = if count <= COMPARED { 1 } else { (count / COMPARED) | 1 };
    for at in (0..count).step_by(stride) {
        compared.push(found[at]);
        expected.push(finite_difference(program, which, at));
    }
    let error = distance(&compared, &expected, 0.0);
    assert!(error <= GRADIENT_BOUND, "input {which}: gradient off by {error:.2e}\n{compared:?}\n{expected:?}");
}

/// The derivative of the loss by a fourth-order central difference.
fn finite_difference(program: &mut OpProgram, which: usize, at: usize) -> f64 {
    let h = 1e-3;
    let mut loss = |shift: f64| {
        let mut inputs = program.check.inputs.clone();
        if let Input::Real { values, .. } = &mut inputs[which] {
            values[at] += shift;
        }
        numbers(&program.run(&inputs), "loss")[0]
    };
    (8.0 * (loss(h) - loss(-h)) - (loss(2.0 * h) - loss(-2.0 * h))) / (12.0 * h)
}

/// The gradient of a parameter of zeros after `runs` runs, in f32: tests in-place accumulation.
pub(crate) fn accumulated(
    runs: usize,
    dims: &[u32],
    loss: impl Fn(&mut Graph, Value) -> Result<Value, EngineError>,
) -> Vec<f32> {
    let mut list = crate::ParameterList::new();
    let id = list.weight("weight", dims, crate::Init::Constant(0.0)).unwrap();
    let parameters = Arc::new(list.finish());
    let mut graph = Graph::new(parameters.clone(), DType::F32);
    let weight = graph.parameter(id);
    let loss = loss(&mut graph, weight).unwrap();
    graph.accumulate(loss, &Recomputed::new()).unwrap();
    let mut set = ProgramSet::new(parameters, DType::F32, &[crate::ParameterSpan::Gradients]);
    let id = set.add("accumulate", &graph, &NamedLayout::default()).unwrap();
    let session = session(&Machine::cpu(), set);
    (0..runs).for_each(|_| session.replay(id).unwrap());
    let mut sums = session.read_span(crate::ParameterSpan::Gradients).unwrap();
    sums.truncate(dims.iter().product::<u32>() as usize);
    sums
}
