//! Where the time of a step goes: its work in groups, each timed by itself.

use std::sync::Arc;

use tandem_device::{DType, Gemm};
use tandem_engine::{Launch, LaunchArg, LaunchTime};

use super::StepSize;

/// Work of one name.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelGroup {
    /// The kernel, or the shape of the GEMM.
    pub name: String,
    /// Pieces of it in a step.
    pub count: usize,
    /// Microseconds of all of them.
    pub us: f64,
    /// Multiplications and additions of all of them, where that is what they are about.
    pub flops: Option<f64>,
    /// Bytes of their operands, each counted once, and twice where it is read and written.
    pub bytes: u64,
    /// Whether it is a GEMM or attention.
    pub in_floor: bool,
}

/// All work of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Breakdown {
    /// What takes longest first.
    pub groups: Vec<KernelGroup>,
}

impl KernelGroup {
    /// TFLOP/s.
    pub fn tera_flops(&self) -> Option<f64> {
        self.flops.map(|flops| flops / self.us.max(1e-3) / 1e6)
    }

    /// GB/s.
    pub fn giga_bytes(&self) -> f64 {
        self.bytes as f64 / self.us.max(1e-3) / 1e3
    }
}

impl Breakdown {
    /// Microseconds of everything, one after the other.
    pub fn total_us(&self) -> f64 {
        self.groups.iter().map(|group| group.us).sum()
    }

    /// Microseconds of GEMMs and attention alone: a step made of nothing else would take that.
    pub fn floor_us(&self) -> f64 {
        self.groups.iter().filter(|group| group.in_floor).map(|group| group.us).sum()
    }

    /// Takes in the times of one program: its steps, and the part of the model each belongs to.
    pub(super) fn add(&mut self, steps: &[Launch], labels: &[Arc<str>], times: &[LaunchTime], size: &StepSize) {
        for time in times {
            let (step, count) = (&steps[time.first], time.count);
            let group = KernelGroup {
                name: name_of(step, &labels[time.first]),
                count,
                us: time.us * count as f64,
                flops: flops_of(step, size).map(|flops| flops * count as f64),
                bytes: bytes_of(step) * count as u64,
                in_floor: matches!(step, Launch::Gemm { .. }) || step.name().starts_with(ATTENTION),
            };
            self.merge(group);
        }
    }

    fn merge(&mut self, group: KernelGroup) {
        match self.groups.iter_mut().find(|known| known.name == group.name) {
            Some(known) => {
                known.count += group.count;
                known.us += group.us;
                known.flops = known.flops.zip(group.flops).map(|(one, other)| one + other);
                known.bytes += group.bytes;
            }
            None => self.groups.push(group),
        }
    }

    pub(super) fn sort(&mut self) {
        self.groups.sort_by(|one, other| other.us.total_cmp(&one.us));
    }
}

/// What the kernels of attention are called, one way and back.
const ATTENTION: &str = "attention";
const ATTENTION_GRADIENT: &str = "attention_gradient";
const ATTENTION_DELTA: &str = "attention_delta";
/// Kernels that read what they write.
const IN_PLACE: [&str; 2] = ["adamw", "add_into"];

/// What element-wise kernels are called, whatever they compute.
const CHAIN: &str = "chain";

fn name_of(step: &Launch, label: &str) -> String {
    match step {
        Launch::Gemm { gemm, bias, .. } => gemm_name(gemm, bias.is_some()),
        Launch::Kernel { kernel, args, .. } if kernel.name == CHAIN => {
            let read = args.iter().filter(|arg| matches!(arg, LaunchArg::Read(..))).count();
            let elements = args.iter().rev().find_map(|arg| if let LaunchArg::U64(n) = arg { Some(*n) } else { None });
            let place = if label.is_empty() { String::new() } else { format!(" in {label}") };
            format!("{CHAIN}{place}, {} elements, {read} read", elements.unwrap_or(0))
        }
        other => other.name().to_owned(),
    }
}

/// `gemm 12800×768×256 nt bf16 + bias`: m×n×k, which operands are transposed, and what is done on the way out.
fn gemm_name(gemm: &Gemm, bias: bool) -> String {
    let Gemm { m, n, k, batch, dtype, out, accumulate, .. } = *gemm;
    let letter = |transposed: bool| if transposed { 't' } else { 'n' };
    let (a, b) = (letter(gemm.a.transposed), letter(gemm.b.transposed));
    let word = |dtype: DType| format!("{dtype:?}").to_lowercase();
    let mut name = format!("gemm {m}×{n}×{k} {a}{b} {}", word(dtype));
    if batch > 1 {
        name += &format!(" × {batch}");
    }
    if out != dtype {
        name += &format!(" to {}", word(out));
    }
    if accumulate {
        name += ", added";
    }
    if bias {
        name += " + bias";
    }
    name
}

/// Attention with a causal mask: two GEMMs of half the scores forward, five backward.
fn flops_of(step: &Launch, size: &StepSize) -> Option<f64> {
    let (batch, length, width) = (f64::from(size.batch), f64::from(size.length), f64::from(size.sizes.width));
    let one_gemm = batch * length * (length + 1.0) * width;
    match step {
        Launch::Gemm { gemm, .. } => Some(gemm.flops()),
        other if other.name().starts_with(ATTENTION_DELTA) => None,
        other if other.name().starts_with(ATTENTION_GRADIENT) => Some(5.0 * one_gemm),
        other if other.name().starts_with(ATTENTION) => Some(2.0 * one_gemm),
        _ => None,
    }
}

fn bytes_of(step: &Launch) -> u64 {
    match step {
        Launch::Kernel { kernel, args, .. } => {
            let writes = if IN_PLACE.iter().any(|name| kernel.name.starts_with(name)) { 2 } else { 1 };
            let bytes = |arg: &LaunchArg| match arg {
                LaunchArg::Read(place, _) => place.bytes,
                LaunchArg::Write(place, _) => writes * place.bytes,
                _ => 0,
            };
            args.iter().map(bytes).sum()
        }
        Launch::Gemm { gemm, a, b, c, .. } => a.bytes + b.bytes + c.bytes * (1 + u64::from(gemm.accumulate)),
        Launch::Copy { from, to } => from.bytes + to.bytes,
        Launch::Clear { to } => to.bytes,
    }
}

#[cfg(test)]
mod tests {
    use tandem_engine::{Location, Region};

    use super::*;

    fn gemm(bias: bool) -> Launch {
        let at = |elements: u64| Location { region: Region::Activations, offset: 0, bytes: 2 * elements };
        let gemm = Gemm::dense(DType::BF16, [10, 20, 30]).with_b_transposed();
        Launch::Gemm { gemm, a: at(300), b: at(600), c: at(200), bias: bias.then(|| at(20)) }
    }

    #[test]
    fn times_of_one_name_are_one_group_and_rates_are_of_all_of_it() {
        let steps = [gemm(false), gemm(true), gemm(false)];
        let times = [LaunchTime { first: 0, count: 2, us: 3.0 }, LaunchTime { first: 1, count: 1, us: 100.0 }];
        let mut found = Breakdown::default();
        let labels = ["".into(), "".into(), "".into()];
        found.add(&steps, &labels, &times, &StepSize::ALL[0]);
        found.add(&steps, &labels, &times[..1], &StepSize::ALL[0]);
        found.sort();
        let names: Vec<&str> = found.groups.iter().map(|group| group.name.as_str()).collect();
        assert_eq!(names, ["gemm 10×20×30 nt bf16 + bias", "gemm 10×20×30 nt bf16"]);
        let plain = &found.groups[1];
        assert_eq!((plain.count, plain.us, plain.bytes), (4, 12.0, 4 * 2 * 1100));
        assert_eq!(plain.tera_flops(), Some(4.0 * 12_000.0 / 12.0 / 1e6));
        assert_eq!((found.total_us(), found.floor_us()), (112.0, 112.0));
    }

    #[test]
    fn what_is_read_and_written_counts_twice() {
        let at = |bytes| Location { region: Region::Activations, offset: 0, bytes };
        let Launch::Gemm { gemm, .. } = gemm(false) else { unreachable!() };
        let gemm = Gemm { accumulate: true, ..gemm };
        let step = Launch::Gemm { gemm, a: at(1), b: at(10), c: at(100), bias: None };
        assert_eq!(bytes_of(&step), 211);
        assert_eq!(bytes_of(&Launch::Copy { from: at(7), to: at(7) }), 14);
    }
}
