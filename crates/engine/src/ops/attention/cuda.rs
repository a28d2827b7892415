//! The CUDA kernels of attention, launched directly: their results against the host kernels, and their run time. No other op
//! takes part, so a wrong number comes from one of these kernels.

use std::io::Write as _;

use bytemuck::Pod;
use half::bf16;
use tandem_device::{Arena, ArenaSpec, Block, DType, Device, Machine, SimSpec, Stream, View};
use tandem_events::Role;

use super::kernels::{self, AttentionArgs, AttentionDeltaArgs, AttentionGradientArgs, Blocks};
use crate::random::normal_at;
use crate::rows::Rows;

/// A call of attention and of its gradient.
struct Case {
    dtype: DType,
    rows: Rows,
    lengths: Vec<i32>,
    heads: u32,
    head_dim: u32,
    causal: bool,
}

/// The tensors of a case on a machine, in the order of [`Case::bytes`].
struct Harness {
    case: Case,
    device: Device,
    stream: Stream,
    tensors: Vec<Block>,
    _arena: Arena,
}

const QKV: usize = 0;
const DOUT: usize = 1;
const STARTS: usize = 2;
const LENGTHS: usize = 3;
const OUT: usize = 4;
const LSE: usize = 5;
const DELTA: usize = 6;
const DQKV: usize = 7;

impl Case {
    /// Elements of O.
    fn elements(&self) -> u64 {
        u64::from(self.rows.total() * self.heads * self.head_dim)
    }

    /// Bytes of each tensor.
    fn bytes(&self) -> [u64; 8] {
        let (element, rows) = (self.dtype.bytes(), u64::from(self.rows.count()));
        let (out, per_head) = (self.elements() * element, u64::from(self.rows.total() * self.heads) * 4);
        [3 * out, out, (rows + 1) * 4, rows * 4, out, per_head, per_head, 3 * out]
    }
}

impl Harness {
    fn new(machine: &Machine, case: Case) -> Harness {
        let device = machine.open(0).unwrap();
        let limit: u64 = case.bytes().iter().map(|bytes| bytes + 4096).sum();
        let spec = ArenaSpec::new(Role::Model, limit);
        let arena = Arena::reserve(&device, spec).unwrap();
        let tensors = case.bytes().map(|bytes| arena.take("attention", bytes).unwrap()).into();
        let harness = Harness { stream: device.stream(true).unwrap(), device, tensors, _arena: arena, case };
        harness.write(STARTS, harness.case.rows.starts());
        harness.write(LENGTHS, &harness.case.lengths);
        for (tensor, count) in [(QKV, 3 * harness.case.elements()), (DOUT, harness.case.elements())] {
            let numbers = (0..count).map(|i| normal_at(9 + tensor as u64, i));
            match harness.case.dtype {
                DType::BF16 => harness.write(tensor, &numbers.map(bf16::from_f64).collect::<Vec<_>>()),
                _ => harness.write(tensor, &numbers.map(|x| x as f32).collect::<Vec<_>>()),
            }
        }
        // All bytes 0xff: NaN in every element type.
        for tensor in [OUT, LSE, DELTA, DQKV] {
            harness.stream.fill(harness.tensors[tensor].view(), 0xff).unwrap();
        }
        harness
    }

    fn write<T: Pod>(&self, tensor: usize, values: &[T]) {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let mut pinned = self.device.pinned(bytes.len() as u64).unwrap();
        pinned.bytes_mut().unwrap().copy_from_slice(bytes);
        self.stream.upload(&pinned, 0..bytes.len() as u64, self.tensors[tensor].part(0, bytes.len() as u64)).unwrap();
        self.stream.drain().unwrap();
    }

    fn read(&self, tensor: usize, dtype: DType) -> Vec<f64> {
        let bytes = self.case.bytes()[tensor];
        let mut pinned = self.device.pinned(bytes).unwrap();
        self.stream.download(self.tensors[tensor].part(0, bytes), &mut pinned, 0..bytes).unwrap();
        self.stream.drain().unwrap();
        let bytes = pinned.bytes().unwrap().to_vec();
        match dtype {
            DType::BF16 => bytemuck::pod_collect_to_vec::<u8, bf16>(&bytes).iter().map(|x| x.to_f64()).collect(),
            _ => bytemuck::pod_collect_to_vec::<u8, f32>(&bytes).iter().map(|&x| f64::from(x)).collect(),
        }
    }

    fn view(&self, tensor: usize) -> View<'_> {
        self.tensors[tensor].part(0, self.case.bytes()[tensor])
    }

    /// Runs each of the three kernels `times` times. Returns the mean time of each, in microseconds.
    fn run(&self, times: u32) -> [f64; 3] {
        let (dtype, head_dim) = (self.case.dtype, self.case.head_dim);
        let (forward, backward) =
            (kernels::forward(dtype, head_dim).unwrap(), kernels::backward(dtype, head_dim).unwrap());
        let count = u64::from(self.case.rows.total() * self.case.heads);
        let (delta, delta_grid) = kernels::delta(dtype, count).unwrap();
        let load = |kernel| self.device.load(kernel).unwrap();
        let loaded = [load(forward.kernel), load(delta), load(backward.kernel)];
        let (batch, heads, causal) = (self.case.rows.count(), self.case.heads, u32::from(self.case.causal));
        let [qkv, dout, starts, lengths, out, lse, delta, dqkv] =
            [QKV, DOUT, STARTS, LENGTHS, OUT, LSE, DELTA, DQKV].map(|tensor| self.view(tensor));
        let grid = |blocks: Blocks| blocks.grid(heads, &self.case.rows);
        let work: [&dyn Fn(); 3] = [
            &|| {
                let args = AttentionArgs { batch, heads, head_dim, causal, qkv, starts, lengths, out, lse };
                self.stream.launch(&loaded[0], grid(forward), args).unwrap();
            },
            &|| {
                let args = AttentionDeltaArgs { count, head_dim, out, dout, delta };
                self.stream.launch(&loaded[1], delta_grid, args).unwrap();
            },
            &|| {
                let args = AttentionGradientArgs {
                    batch,
                    heads,
                    head_dim,
                    causal,
                    qkv,
                    starts,
                    lengths,
                    lse,
                    delta,
                    dout,
                    dqkv,
                };
                self.stream.launch(&loaded[2], grid(backward), args).unwrap();
            },
        ];
        work.map(|work| self.time(times, work))
    }

    fn time(&self, times: u32, work: &dyn Fn()) -> f64 {
        let (before, after) = (self.device.timer().unwrap(), self.device.timer().unwrap());
        work();
        self.stream.record(&before).unwrap();
        (1..times).for_each(|_| work());
        self.stream.record(&after).unwrap();
        self.stream.drain().unwrap();
        after.ns_since(&before).unwrap() as f64 / 1e3 / f64::from(times.max(2) - 1)
    }

    /// `out`, `lse` and `dqkv`.
    fn results(machine: &Machine, case: Case) -> [Vec<f64>; 3] {
        let harness = Harness::new(machine, case);
        harness.run(1);
        let dtype = harness.case.dtype;
        [harness.read(OUT, dtype), harness.read(LSE, DType::F32), harness.read(DQKV, dtype)]
    }
}

/// Compares with the host kernels, and two runs with each other bit by bit.
fn compare(machine: &Machine, dtype: DType, heads: u32, head_dim: u32, bound: f64) {
    for causal in [false, true] {
        let rows = Rows::new(&[150, 0, 257, 3, 64, 300]);
        let case =
            || Case { dtype, rows: rows.clone(), lengths: vec![131, 0, 300, -1, 64, 299], heads, head_dim, causal };
        let expected = Harness::results(&Machine::cpu(), case());
        let found = Harness::results(machine, case());
        let again = Harness::results(machine, case());
        for (i, name) in ["out", "lse", "dqkv"].into_iter().enumerate() {
            let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
            let difference = norm(&mut found[i].iter().zip(&expected[i]).map(|(a, b)| a - b));
            let error = difference / norm(&mut expected[i].iter().copied());
            assert!(error <= bound, "{dtype:?}, head_dim {head_dim}, causal {causal}: {name} off by {error:.2e}");
            let same = found[i].iter().zip(&again[i]).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{dtype:?}, head_dim {head_dim}, causal {causal}: {name} differs between two runs");
        }
    }
}

#[test]
fn a_simulated_card_gives_the_bits_of_the_host() {
    let machine = Machine::simulated("1x1GiB".parse::<SimSpec>().unwrap());
    compare(&machine, DType::BF16, 2, 32, 0.0);
    compare(&machine, DType::F32, 1, 5, 0.0);
}

#[test]
#[ignore = "needs an NVIDIA card"]
fn cuda_kernels_match_the_host_kernels() {
    let machine = Machine::cuda().unwrap().expect("a machine with an NVIDIA card");
    for head_dim in [32, 64, 96, 128, 1, 3, 40, 130] {
        compare(&machine, DType::F32, 2, head_dim, 5e-6);
        compare(&machine, DType::BF16, 2, head_dim, 8e-3);
    }
}

#[test]
#[ignore = "needs an NVIDIA card, and prints figures"]
fn times() {
    let machine = Machine::cuda().unwrap().expect("a machine with an NVIDIA card");
    let measure = |dtype, batch: u32, frames: u32, heads, head_dim, causal| {
        let rows = Rows::even(batch, frames);
        let case = Case { dtype, rows, lengths: vec![frames as i32; batch as usize], heads, head_dim, causal };
        let [forward, delta, backward] = Harness::new(&machine, case).run(100);
        let work = if causal { 0.5 } else { 1.0 };
        let operations = 4.0 * f64::from(batch * heads * head_dim) * f64::from(frames).powi(2) * work;
        let _ = writeln!(
            std::io::stderr(),
            "{dtype:?} {batch} x {frames}, {heads} heads of {head_dim}, causal {causal}: forward {forward:.1} us \
             ({:.0} TFLOP/s), delta {delta:.1} us, backward {backward:.1} us ({:.0} TFLOP/s)",
            operations / forward / 1e6,
            2.5 * operations / (delta + backward) / 1e6
        );
    };
    for causal in [true, false] {
        measure(DType::BF16, 16, 512, 12, 64, causal);
        measure(DType::BF16, 16, 512, 24, 32, causal);
        measure(DType::BF16, 16, 512, 8, 96, causal);
        measure(DType::BF16, 16, 512, 6, 128, causal);
        measure(DType::BF16, 4, 2048, 12, 64, causal);
        measure(DType::F32, 16, 512, 12, 64, causal);
    }
}
