//! The update against AdamW as a plain loop, and the guard against non-finite gradients, bit for bit.

use half::bf16;
use tandem_device::{Element, Machine, SimSpec};
use tandem_test_support::largest;

use super::*;
use crate::parameters::{Init, ParameterList};
use crate::program::NamedLayout;
use crate::random::normal_at;
use crate::real::Float;
use crate::session::{HostValue, Results, Session};
use crate::testing::session;
use crate::{ProgramId, ProgramSet};

/// Parameters with gaps between them, more than one chunk long, some of which decay.
fn parameters() -> Arc<Parameters> {
    let mut list = ParameterList::new();
    list.vector("bias", &[3], Init::Normal(0.5)).unwrap();
    list.weight("matrix", &[300, 71], Init::Normal(0.1)).unwrap();
    list.vector("gain", &[17_001], Init::Constant(1.0)).unwrap();
    list.weight("table", &[7, 5], Init::Normal(1.0)).unwrap();
    Arc::new(list.finish())
}

/// An update on a device, over the parameters above.
struct Bench {
    session: Session,
    id: ProgramId,
    precision: DType,
}

impl Bench {
    fn new(precision: DType, spec: &UpdateSpec) -> Bench {
        Bench::on(&Machine::cpu(), precision, spec)
    }

    fn on(machine: &Machine, precision: DType, spec: &UpdateSpec) -> Bench {
        let parameters = parameters();
        let graph = update_program(&parameters, precision, spec).unwrap();
        let mut set = ProgramSet::new(parameters.clone(), precision, &spec.spans());
        let id = set.add("update", &graph, &NamedLayout::default()).unwrap();
        let bench = Bench { session: session(machine, set), id, precision };
        bench.write(ParameterSpan::Parameters, &parameters.initial(5));
        bench
    }

    fn write(&self, span: ParameterSpan, values: &[f64]) {
        match self.precision {
            DType::F64 => self.session.write_span(span, values),
            _ => self.session.write_span(span, &values.iter().map(|&x| x as f32).collect::<Vec<_>>()),
        }
        .unwrap();
    }

    fn read(&self, span: ParameterSpan) -> Vec<f64> {
        match self.precision {
            DType::F64 => self.session.read_span::<f64>(span).unwrap(),
            _ => self.session.read_span::<f32>(span).unwrap().into_iter().map(f64::from).collect(),
        }
    }

    /// One update from these gradients.
    fn update(&mut self, gradients: &[f64], lr: f64, ema_decay: f64) -> Results {
        self.write(ParameterSpan::Gradients, gradients);
        let numbers = [[lr], [ema_decay]];
        let narrow = numbers.map(|[x]| [x as f32]);
        let value = |i: usize| match self.precision {
            DType::F64 => HostValue::F64(&numbers[i]),
            _ => HostValue::F32(&narrow[i]),
        };
        self.session.run(self.id, None, &[("lr", value(0)), ("ema_decay", value(1))]).unwrap();
        let fetch = self.session.fetch(self.id).unwrap();
        self.session.finish(fetch).unwrap()
    }

    fn counters(&self) -> [u32; 3] {
        ["updates", "skipped", "skipped_in_a_row"].map(|name| self.session.read_state::<u32>(name).unwrap()[0])
    }

    /// The bits of all that an update may change, except the gradients.
    fn bits(&self) -> Vec<u64> {
        let spans = [
            ParameterSpan::Parameters,
            ParameterSpan::FirstMoment,
            ParameterSpan::SecondMoment,
            ParameterSpan::Average,
        ];
        let mut bits: Vec<u64> = spans.into_iter().flat_map(|span| self.read(span)).map(f64::to_bits).collect();
        if self.precision == DType::BF16 {
            bits.extend(self.copy().into_iter().map(|x| u64::from(x.to_bits())));
        }
        bits
    }

    fn copy(&self) -> Vec<bf16> {
        self.session.read_span::<bf16>(ParameterSpan::Compute).unwrap()
    }
}

fn one<T: Element>(results: &Results, name: &str) -> T {
    results.get::<T>(name).unwrap()[0]
}

/// Gradients of a step: zero in the gaps, of very different sizes elsewhere.
fn gradients(step: u64) -> Vec<f64> {
    let parameters = parameters();
    let mut all = vec![0.0; parameters.elements() as usize];
    for (id, parameter) in parameters.iter() {
        let key = 1000 * step + u64::from(id.0);
        let size = 10_f64.powi(-(id.0 as i32));
        let range = parameter.offset as usize..(parameter.offset + parameter.shape.elements()) as usize;
        for (i, gradient) in all[range].iter_mut().enumerate() {
            *gradient = size * normal_at(key, i as u64);
        }
    }
    all
}

/// AdamW as a plain loop, in f64.
struct Plain {
    parameters: Vec<f64>,
    first: Vec<f64>,
    second: Vec<f64>,
    average: Vec<f64>,
    decays: Vec<bool>,
    updates: i32,
}

impl Plain {
    fn new() -> Plain {
        let parameters = parameters();
        let mut decays = vec![false; parameters.elements() as usize];
        for (_, parameter) in parameters.iter().filter(|(_, parameter)| parameter.decays) {
            decays[parameter.offset as usize..][..parameter.shape.elements() as usize].fill(true);
        }
        let zeros = vec![0.0; decays.len()];
        let start = parameters.initial(5);
        Plain { parameters: start, first: zeros.clone(), second: zeros.clone(), average: zeros, decays, updates: 0 }
    }

    fn update(&mut self, spec: &UpdateSpec, gradients: &[f64], lr: f64, ema_decay: f64) -> f64 {
        let norm = gradients.iter().map(|g| g * g).sum::<f64>().sqrt();
        let clip_scale = spec.clip.map_or(1.0, |clip| (clip / norm).min(1.0));
        let before = f64::from(self.updates);
        let ema_decay = ema_decay.min(before / (10.0 + before));
        self.updates += 1;
        for (i, gradient) in gradients.iter().enumerate() {
            let gradient = gradient * clip_scale;
            if self.decays[i] {
                self.parameters[i] *= 1.0 - lr * spec.weight_decay;
            }
            self.first[i] = spec.beta1 * self.first[i] + (1.0 - spec.beta1) * gradient;
            self.second[i] = spec.beta2 * self.second[i] + (1.0 - spec.beta2) * gradient * gradient;
            let mean = self.first[i] / (1.0 - spec.beta1.powi(self.updates));
            let square = self.second[i] / (1.0 - spec.beta2.powi(self.updates));
            self.parameters[i] -= lr * mean / (square.sqrt() + spec.epsilon);
            self.average[i] = ema_decay * self.average[i] + (1.0 - ema_decay) * self.parameters[i];
        }
        norm
    }
}

/// Equal, or where they first differ.
fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &[T], expected: &[T]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let differs = found.iter().zip(expected).position(|(a, b)| a != b);
    assert!(
        differs.is_none(),
        "{what} at {differs:?}: {:?}, not {:?}",
        found[differs.unwrap_or(0)],
        expected[differs.unwrap_or(0)]
    );
}

fn close(what: &str, found: &[f64], expected: &[f64], bound: f64) {
    let worst = largest(found.iter().zip(expected).map(|(a, b)| (a - b).abs() / b.abs().max(1e-3)));
    assert!(found.len() == expected.len() && worst <= bound, "{what} is off by {worst:.2e}");
}

fn matches_the_plain_loop(precision: DType, spec: &UpdateSpec, bound: f64) {
    let (mut bench, mut plain) = (Bench::new(precision, spec), Plain::new());
    let schedule = Schedule::cosine(3e-3, 3, 18, 1e-4);
    for step in 0..20 {
        let (gradients, lr) = (gradients(step), schedule.lr(step));
        let results = bench.update(&gradients, lr, 0.5);
        let norm = plain.update(spec, &gradients, lr, 0.5);
        let found = match precision {
            DType::F64 => one::<f64>(&results, "gradient_norm"),
            _ => one::<f32>(&results, "gradient_norm").to_f64(),
        };
        close("gradient_norm", &[found], &[norm], bound);
        assert_eq!(one::<u32>(&results, "updates"), step as u32 + 1);
    }
    close("parameters", &bench.read(ParameterSpan::Parameters), &plain.parameters, bound);
    close("first moment", &bench.read(ParameterSpan::FirstMoment), &plain.first, bound);
    close("second moment", &bench.read(ParameterSpan::SecondMoment), &plain.second, bound);
    if spec.average {
        close("average", &bench.read(ParameterSpan::Average), &plain.average, bound);
    }
    assert!(bench.read(ParameterSpan::Gradients).iter().all(|gradient| *gradient == 0.0), "gradients are cleared");
    assert_eq!(bench.counters(), [20, 0, 0]);
}

#[test]
fn twenty_updates_are_those_of_a_plain_loop() {
    let spec = UpdateSpec { weight_decay: 0.3, ..UpdateSpec::default() };
    matches_the_plain_loop(DType::F64, &spec, 1e-12);
    matches_the_plain_loop(DType::F64, &UpdateSpec { clip: None, average: false, ..spec.clone() }, 1e-12);
    matches_the_plain_loop(DType::F64, &UpdateSpec { clip: Some(1e9), beta2: 0.999, ..spec.clone() }, 1e-12);
    matches_the_plain_loop(DType::F32, &spec, 2e-4);
    matches_the_plain_loop(DType::F32, &UpdateSpec { average: false, ..spec.clone() }, 2e-4);
    matches_the_plain_loop(DType::BF16, &spec, 2e-4);
    matches_the_plain_loop(DType::BF16, &UpdateSpec { average: false, ..spec }, 2e-4);
}

#[test]
fn gemms_read_the_parameters_in_bf16() {
    let mut bench = Bench::new(DType::BF16, &UpdateSpec::default());
    for step in 0..3 {
        bench.update(&gradients(step), 1e-2, 0.9);
        let expected: Vec<bf16> =
            bench.read(ParameterSpan::Parameters).into_iter().map(|x| bf16::from_f32(x as f32)).collect();
        same("copy", &bench.copy(), &expected);
    }
}

/// The gradient of a dead unit is zero, and its moments decay.
#[test]
fn moments_of_parameters_without_gradients_end_at_zero_and_are_never_subnormal() {
    for precision in [DType::F32, DType::BF16] {
        let mut bench = Bench::new(precision, &UpdateSpec::default());
        bench.update(&gradients(0), 1e-3, 0.999);
        let none = vec![0.0; gradients(0).len()];
        // From 1e-3 to the smallest normal number a first moment takes 765 updates, a second one five times as many.
        bench.write(
            ParameterSpan::SecondMoment,
            &bench.read(ParameterSpan::SecondMoment).iter().map(|x| x * 1e-25).collect::<Vec<_>>(),
        );
        for update in 1..=2000 {
            bench.update(&none, 1e-3, 0.999);
            if update % 50 == 0 {
                let moments =
                    [bench.read(ParameterSpan::FirstMoment), bench.read(ParameterSpan::SecondMoment)].concat();
                let subnormal = moments.iter().filter(|&&x| (x as f32).is_subnormal()).count();
                assert_eq!(subnormal, 0, "{precision:?}: after {update} updates");
            }
        }
        let ended = |span| bench.read(span).iter().all(|&x| x == 0.0);
        assert!(ended(ParameterSpan::FirstMoment) && ended(ParameterSpan::SecondMoment), "{precision:?}");
    }
}

#[test]
fn only_parameters_that_decay_decay() {
    let spec = UpdateSpec { weight_decay: 0.5, ..UpdateSpec::default() };
    let mut bench = Bench::new(DType::F64, &spec);
    let before = bench.read(ParameterSpan::Parameters);
    bench.update(&vec![0.0; before.len()], 0.1, 0.0);
    let after = bench.read(ParameterSpan::Parameters);
    for (_, parameter) in parameters().iter() {
        let factor = if parameter.decays { 1.0 - 0.1 * 0.5 } else { 1.0 };
        for i in parameter.offset as usize..(parameter.offset + parameter.shape.elements()) as usize {
            assert!((after[i] - factor * before[i]).abs() <= 1e-15, "{} [{i}]", parameter.name);
        }
    }
}

#[test]
fn a_long_gradient_is_clipped_to_the_norm() {
    let spec = UpdateSpec { clip: Some(0.25), ..UpdateSpec::default() };
    let (mut long, mut short) = (Bench::new(DType::F64, &spec), Bench::new(DType::F64, &spec));
    let gradient = gradients(1);
    let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
    let scaled: Vec<f64> = gradient.iter().map(|g| g * (0.25 / norm)).collect();
    let found = long.update(&gradient, 1e-3, 0.0);
    short.update(&scaled, 1e-3, 0.0);
    assert!(
        (one::<f64>(&found, "gradient_norm") / norm - 1.0).abs() < 1e-12,
        "the reported norm is the one before clipping"
    );
    close("first moment", &long.read(ParameterSpan::FirstMoment), &short.read(ParameterSpan::FirstMoment), 1e-13);
    let length = long.read(ParameterSpan::FirstMoment).iter().map(|m| (m / 0.1) * (m / 0.1)).sum::<f64>().sqrt();
    assert!((length - 0.25).abs() < 1e-12, "{length}");
}

#[test]
fn a_non_finite_gradient_changes_only_the_counters() {
    for precision in [DType::F32, DType::BF16, DType::F64] {
        let mut bench = Bench::new(precision, &UpdateSpec::default());
        let mut untouched = Bench::new(precision, &UpdateSpec::default());
        for bench in [&mut bench, &mut untouched] {
            bench.update(&gradients(0), 1e-3, 0.999);
        }
        let (before, length) = (bench.bits(), gradients(0).len());
        let wrong = [(f64::NAN, 0), (f64::INFINITY, length - 200), (f64::NEG_INFINITY, 20_000), (f64::NAN, 21_299)];
        for (count, (value, at)) in (1..).zip(wrong) {
            let mut gradients = gradients(1);
            gradients[at] = value;
            let results = bench.update(&gradients, 1e-3, 0.999);
            same(&format!("{precision:?} after {value} at {at}"), &bench.bits(), &before);
            assert!(
                bench.read(ParameterSpan::Gradients).iter().all(|gradient| *gradient == 0.0),
                "gradients are cleared"
            );
            assert_eq!(bench.counters(), [1, count, count]);
            assert_eq!(one::<u32>(&results, "skipped_in_a_row"), count);
            let norm = match precision {
                DType::F64 => one::<f64>(&results, "gradient_norm"),
                _ => f64::from(one::<f32>(&results, "gradient_norm")),
            };
            assert!(!norm.is_finite(), "the reported norm is {norm}");
        }
        bench.update(&gradients(2), 1e-3, 0.999);
        untouched.update(&gradients(2), 1e-3, 0.999);
        assert_eq!(bench.counters(), [2, 4, 0]);
        same("the run after a skipped update", &bench.bits(), &untouched.bits());
    }
}

#[test]
fn a_first_update_that_is_skipped_leaves_a_usable_optimizer() {
    let mut bench = Bench::new(DType::F32, &UpdateSpec::default());
    let mut plain = Plain::new();
    bench.update(&vec![f64::NAN; gradients(0).len()], 1e-3, 0.999);
    bench.update(&gradients(0), 1e-3, 0.999);
    plain.update(&UpdateSpec::default(), &gradients(0), 1e-3, 0.999);
    close("parameters", &bench.read(ParameterSpan::Parameters), &plain.parameters, 1e-4);
}

#[test]
fn a_changed_learning_rate_takes_effect_in_the_next_run() {
    let mut bench = Bench::new(DType::F64, &UpdateSpec { weight_decay: 0.0, ..UpdateSpec::default() });
    let moved = |bench: &mut Bench, lr: f64| {
        let before = bench.read(ParameterSpan::Parameters);
        bench.update(&gradients(0), lr, 0.0);
        bench.read(ParameterSpan::Parameters).iter().zip(&before).map(|(a, b)| (a - b).abs()).sum::<f64>()
    };
    // With a constant gradient, the step of Adam is the learning rate.
    let (one, ten, none) = (moved(&mut bench, 1e-4), moved(&mut bench, 1e-3), moved(&mut bench, 0.0));
    assert!((ten / one - 10.0).abs() < 1e-3 && none == 0.0, "{one} {ten} {none}");
}

#[test]
fn the_average_starts_at_the_parameters_and_then_lags() {
    let mut bench = Bench::new(DType::F64, &UpdateSpec::default());
    bench.update(&gradients(0), 1e-2, 0.999);
    let first = bench.read(ParameterSpan::Parameters);
    same("first average", &bench.read(ParameterSpan::Average), &first);
    bench.update(&gradients(1), 1e-2, 0.999);
    let second = bench.read(ParameterSpan::Parameters);
    let expected: Vec<f64> = first.iter().zip(&second).map(|(a, b)| a / 11.0 + b * (10.0 / 11.0)).collect();
    close("average", &bench.read(ParameterSpan::Average), &expected, 1e-12);
    bench.update(&gradients(2), 1e-2, 0.0);
    same("average without decay", &bench.read(ParameterSpan::Average), &bench.read(ParameterSpan::Parameters));
}

#[test]
fn a_resumed_optimizer_continues_bit_for_bit() {
    let spec = UpdateSpec::default();
    let mut uninterrupted = Bench::new(DType::F32, &spec);
    (0..3).for_each(|step| drop(uninterrupted.update(&gradients(step), 1e-3, 0.9)));
    let mut resumed = Bench::new(DType::F32, &spec);
    for span in
        [ParameterSpan::Parameters, ParameterSpan::FirstMoment, ParameterSpan::SecondMoment, ParameterSpan::Average]
    {
        resumed.session.write_span(span, &uninterrupted.session.read_span::<f32>(span).unwrap()).unwrap();
    }
    resumed.session.write_state("updates", &uninterrupted.session.read_state::<u32>("updates").unwrap()).unwrap();
    for step in 3..6 {
        uninterrupted.update(&gradients(step), 1e-3, 0.9);
        resumed.update(&gradients(step), 1e-3, 0.9);
    }
    same("resumed", &resumed.bits(), &uninterrupted.bits());
}

#[test]
fn any_number_of_threads_and_a_simulated_card_give_the_same_bits() {
    for precision in [DType::F32, DType::BF16] {
        let run = |machine: &Machine| {
            let mut bench = Bench::on(machine, precision, &UpdateSpec::default());
            (0..4).for_each(|step| drop(bench.update(&gradients(step), 1e-2, 0.99)));
            assert_eq!(bench.counters(), [4, 0, 0]);
            bench.bits()
        };
        let expected = run(&Machine::cpu());
        for threads in [1, 3, 7] {
            let machine = Machine::cpu();
            machine.set_compute_threads(threads);
            same(&format!("{threads} threads"), &run(&machine), &expected);
        }
        let card = Machine::simulated("1x1GiB".parse::<SimSpec>().unwrap());
        same("a simulated card", &run(&card), &expected);
    }
}

#[test]
#[should_panic(expected = "betas of 1 and 0.98")]
fn settings_out_of_range_panic() {
    let _ = update_program(&parameters(), DType::F32, &UpdateSpec { beta1: 1.0, ..UpdateSpec::default() });
}
