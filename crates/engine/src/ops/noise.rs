//! Noise: a standard normal number per element of a sequence (Box-Muller on Philox words), and one uniform number per
//! utterance.

use half::bf16;
use tandem_device::{DType, Grid, HostArgs, Kernel, Source, kernel_args};

use super::frames::{frames_per_chunk, row_grid, row_parts};
use super::rng_keys::{BLOCK, RngKeys, Words};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::op::Op;
use crate::ops::on_cuda;
use crate::random::unit;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::TensorType;
use crate::{for_real, named_for};

pub(super) static SOURCE: Source = Source {
    file: "engine/noise.cu",
    text: concat!(include_str!("frames.cuh"), include_str!("rng_keys.cuh"), include_str!("noise.cu")),
};

/// Normal numbers `[frames, columns]`.
#[derive(Clone, Debug)]
struct Noise {
    rows: Rows,
    draw: u32,
    output: TensorType,
}

/// Uniform numbers `[rows, 1]`.
#[derive(Clone, Debug)]
struct Uniform {
    rows: Rows,
    draw: u32,
    dtype: DType,
}

impl Op for Noise {
    fn name(&self) -> &'static str {
        "noise"
    }

    fn outputs(&self, _: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        Ok(vec![self.output])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        if self.output.shape.elements() == 0 {
            return Ok(());
        }
        let &[seed, step, utterances, starts] = at.inputs else { unreachable!("noise takes RNG keys") };
        let (draw, rows, columns) = (self.draw, self.rows.count(), self.output.shape.last());
        let args = NoiseArgs { out: at.outputs[0], seed, step, utterances, starts, draw, rows, columns };
        let kernel = for_real!("noise", self.output.dtype, T => &NoiseKernel::<T>::NORMAL);
        at.launch(kernel, row_grid(&self.rows, columns), args);
        Ok(())
    }
}

impl Op for Uniform {
    fn name(&self) -> &'static str {
        "uniform"
    }

    fn outputs(&self, _: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        Ok(vec![TensorType::new(self.dtype, &[self.rows.count(), 1])])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let &[seed, step, utterances, starts] = at.inputs else { unreachable!("uniform takes RNG keys") };
        let (draw, rows) = (self.draw, self.rows.count());
        let args = UniformArgs { out: at.outputs[0], seed, step, utterances, starts, draw, rows };
        let kernel = for_real!("uniform", self.dtype, T => &NoiseKernel::<T>::UNIFORM);
        at.launch(kernel, Grid::cover(u64::from(rows), 32), args);
        Ok(())
    }
}

kernel_args! {
    /// Arguments of `noise`.
    struct NoiseArgs<T: Real> {
        out: out T,
        seed: in u32,
        step: in u32,
        utterances: in u32,
        starts: in u32,
        draw: u32,
        rows: u32,
        columns: u32,
    }
}

kernel_args! {
    /// Arguments of `uniform`.
    struct UniformArgs<T: Real> {
        out: out T,
        seed: in u32,
        step: in u32,
        utterances: in u32,
        starts: in u32,
        draw: u32,
        rows: u32,
    }
}

struct NoiseKernel<T>(std::marker::PhantomData<T>);

impl<T: Real> NoiseKernel<T> {
    const NORMAL: Kernel = Kernel {
        name: named_for!(T, "noise"),
        source: on_cuda::<T>(&SOURCE),
        params: NoiseArgs::params::<T>(),
        host: &normal::<T>,
    };

    const UNIFORM: Kernel = Kernel {
        name: named_for!(T, "uniform"),
        source: on_cuda::<T>(&SOURCE),
        params: UniformArgs::params::<T>(),
        host: &uniform::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] = &[
    &NoiseKernel::<f32>::NORMAL,
    &NoiseKernel::<f32>::UNIFORM,
    &NoiseKernel::<bf16>::NORMAL,
    &NoiseKernel::<bf16>::UNIFORM,
];

fn normal<T: Real>(args: &mut HostArgs<'_>) {
    let NoiseArgs { out, seed, step, utterances, starts, draw, columns, .. } = NoiseArgs::host::<T>(args);
    let (words, columns) = (Words::new(seed, step, utterances, starts, draw), columns as usize);
    // A normal number costs about ten times as much as cheap arithmetic: smaller chunks are worth a thread.
    let frames_per_chunk = frames_per_chunk(16 * columns);
    args.workers().each_chunk(out, frames_per_chunk * columns, |chunk, out| {
        let first = chunk * frames_per_chunk;
        for part in row_parts(words.starts, first..first + out.len() / columns) {
            let out = &mut out[(part.frames.start - first) * columns..(part.frames.end - first) * columns];
            normal_run(&words, part.row, (part.frames.start - part.start) * columns, out);
        }
    });
}

/// The normal numbers of `row` from element `first` on.
fn normal_run<T: Real>(words: &Words<'_>, row: usize, first: usize, out: &mut [T]) {
    let (mut at, end) = (first, first + out.len());
    while at < end {
        let from = at - at % 4;
        let until = (from + BLOCK).min(end);
        let numbers = normals(&words.block(row, from));
        let pairs = out[at - first..until - first].iter_mut().zip(&numbers[at - from..]);
        pairs.for_each(|(out, &x)| *out = T::store(T::Acc::of(f64::from(x))));
        at = until;
    }
}

/// A normal number per word (Box-Muller), in f32 for every storage type: loops that vectorise, where the functions of the
/// standard library took 50 ns per element.
fn normals(words: &[u32; BLOCK]) -> [f32; BLOCK] {
    let mut numbers = [0.0; BLOCK];
    for (out, pair) in numbers.chunks_exact_mut(2).zip(words.chunks_exact(2)) {
        let radius = (-2.0 * Float::ln(unit(pair[0]))).sqrt();
        let (sin, cos) = sin_cos_of_turns(unit(pair[1]));
        out[0] = radius * cos;
        out[1] = radius * sin;
    }
    numbers
}

/// Sine and cosine of 2π · `turns`: Taylor series within 1/8 turn of the nearest quarter turn.
#[inline(always)]
fn sin_cos_of_turns(turns: f32) -> (f32, f32) {
    // Adding 1.5·2^23 rounds, and leaves the quarter in the low bits.
    const SHIFT: f32 = 12_582_912.0;
    let shifted = turns * 4.0 + SHIFT;
    let quarter = shifted.to_bits() & 3;
    let x = (turns - (shifted - SHIFT) * 0.25) * std::f32::consts::TAU;
    let s = x * x;
    let sin = x + x * s * (-1.666_666_7e-1 + s * (8.333_333e-3 + s * (-1.984_127e-4 + s * 2.755_732e-6)));
    let cos = 1.0 + s * (-0.5 + s * (4.166_666_8e-2 + s * (-1.388_888_9e-3 + s * 2.480_158_7e-5)));
    let (a, b) = if quarter & 1 == 1 { (cos, sin) } else { (sin, cos) };
    let sin = if quarter & 2 == 2 { -a } else { a };
    let cos = if (quarter + 1) & 2 == 2 { -b } else { b };
    (sin, cos)
}

fn uniform<T: Real>(args: &mut HostArgs<'_>) {
    let UniformArgs { out, seed, step, utterances, starts, draw, rows } = UniformArgs::host::<T>(args);
    let words = Words::new(seed, step, utterances, starts, draw);
    for (row, out) in out[..rows as usize].iter_mut().enumerate() {
        *out = T::store(T::Acc::of(f64::from(unit(words.block(row, 0)[0]))));
    }
}

impl Graph {
    /// Standard normal numbers `[frames, columns]` in the precision of the graph, padding included.
    pub fn noise(&mut self, columns: u32, keys: &RngKeys) -> Result<Value, EngineError> {
        let (rows, draw) = (keys.rows.clone(), self.next_rng_id());
        let output = TensorType::new(self.precision(), &[rows.total(), columns]);
        let inputs = keys.inputs(self);
        self.push(Noise { rows, draw, output }, &inputs)
    }

    /// One number in (0, 1) per row: `[rows, 1]`, in the accumulator type.
    pub fn uniform(&mut self, keys: &RngKeys) -> Result<Value, EngineError> {
        let (rows, draw, dtype) = (keys.rows.clone(), self.next_rng_id(), self.acc_dtype());
        let inputs = keys.inputs(self);
        self.push(Uniform { rows, draw, dtype }, &inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{normal_pair, philox};
    use crate::testing::{GradientCheck, check_gradients, run};

    fn with_keys(utterances: &[u32]) -> GradientCheck {
        GradientCheck::new().host("seed", &[5, 6]).host("step", &[9]).host("utterances", utterances)
    }

    fn noise(rows: &[u32], utterances: &[u32], columns: u32) -> Vec<f64> {
        let rows = Rows::new(rows);
        run(with_keys(utterances), |g, _| {
            let keys = RngKeys::new(g, &rows)?;
            g.noise(columns, &keys)
        })
    }

    #[test]
    fn noise_is_box_muller_of_philox_words() {
        let of_row = |utterance: u32, elements: u32| {
            (0..elements).map(move |e| {
                let [a, b, c, d] = philox([5, 6], [e / 4, utterance, 1, 9]);
                let four = [normal_pair(a, b), normal_pair(c, d)].concat();
                four[(e % 4) as usize]
            })
        };
        for columns in [1, 3, 7] {
            let expected: Vec<f64> = of_row(70, 5 * columns).chain(of_row(80, 9 * columns)).collect();
            let found = noise(&[5, 0, 9], &[70, 75, 80], columns);
            assert!(found.len() == expected.len() && found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 3e-6));
        }
    }

    #[test]
    fn sine_and_cosine_are_accurate_over_a_full_turn() {
        for i in 0..=60_000_u16 {
            let turns = f32::from(i) / 60_000.0;
            let ((sin, cos), exact) = (sin_cos_of_turns(turns), f64::from(turns) * std::f64::consts::TAU);
            assert!(
                (f64::from(sin) - exact.sin()).abs() < 3e-7 && (f64::from(cos) - exact.cos()).abs() < 3e-7,
                "{turns}"
            );
        }
    }

    #[test]
    fn noise_has_mean_0_and_variance_1_and_does_not_depend_on_the_batch() {
        let found = noise(&[300], &[1], 80);
        let (count, sum) = (found.len() as f64, found.iter().sum::<f64>());
        let variance = found.iter().map(|x| x * x).sum::<f64>() / count;
        assert!((sum / count).abs() < 0.03 && (variance - 1.0).abs() < 0.03, "{sum} {variance}");
        // Rows long enough for many chunks, which begin in the middle of a row.
        assert_eq!(noise(&[7, 200], &[2, 1], 80)[560..], found[..16_000]);
    }

    /// The same bits on every device, and no gradient into the noise.
    #[test]
    fn every_device_generates_the_same_noise() {
        let rows = Rows::new(&[5, 0, 90]);
        for columns in [31, 32] {
            check_gradients(with_keys(&[1, 2, 3]).input(&[95, columns]), |g, x| {
                let keys = RngKeys::new(g, &rows)?;
                let noise = g.noise(columns, &keys)?;
                g.mul(x[0], noise)
            });
        }
        check_gradients(with_keys(&[1, 2, 3]).input(&[3, 4]), |g, x| {
            let keys = RngKeys::new(g, &rows)?;
            let time = g.uniform(&keys)?;
            g.mul(x[0], time)
        });
    }

    #[test]
    fn uniform_gives_one_number_per_utterance() {
        let found = run(with_keys(&[4, 0, 4]), |g, _| {
            let keys = RngKeys::new(g, &Rows::new(&[3, 0, 8]))?;
            g.uniform(&keys)
        });
        let expected = |utterance| f64::from(unit(philox([5, 6], [0, utterance, 1, 9])[0]));
        assert_eq!(found, [expected(4), expected(0), expected(4)]);
        assert!(found.iter().all(|x| (0.0..1.0).contains(x)));
    }
}
