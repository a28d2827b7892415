//! Dropout (Srivastava et al. 2014), inverted: elements are zeroed at random, the others are scaled up. The backward pass
//! generates the same mask again, so that it need not be saved.

use half::bf16;
use tandem_device::{HostArgs, Kernel, Source, Workers, kernel_args};

use super::frames::{frames_per_chunk, row_grid, row_parts};
use super::rng_keys::{self, RngKeys, Words};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::Lower;
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::TensorType;
use crate::{for_real, named_for};

pub(super) static SOURCE: Source = Source {
    file: "engine/dropout.cu",
    text: concat!(include_str!("frames.cuh"), include_str!("rng_keys.cuh"), include_str!("dropout.cu")),
};

#[derive(Clone, Debug)]
struct Dropout {
    rows: Rows,
    draw: u32,
    /// An element is dropped if its random word is below this.
    below: u32,
}

impl Op for Dropout {
    fn name(&self) -> &'static str {
        "dropout"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        if inputs[0].shape.rank() != 2 {
            return refuse("dropout", "takes [frames, columns]", &inputs[..1]);
        }
        rng_keys::check("dropout", &self.rows, inputs[0].shape.rows(), &inputs[..1])?;
        Ok(vec![inputs[0]])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let mut all = vec![None; at.inputs.len()];
        if let Some(gradient) = at.first() {
            let mut inputs = at.inputs.to_vec();
            inputs[0] = gradient;
            all[0] = Some(at.graph.push(self.clone(), &inputs)?);
        }
        Ok(all)
    }

    fn may_overwrite(&self) -> Vec<usize> {
        vec![0]
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (&[x, seed, step, utterances, starts], out) = (at.inputs, at.outputs[0]) else {
            unreachable!("dropout takes five inputs")
        };
        if x.ty.shape.elements() == 0 {
            return Ok(());
        }
        let (rows, columns, draw, below) = (self.rows.count(), x.ty.shape.last(), self.draw, self.below);
        let grid = row_grid(&self.rows, columns);
        if at.in_place_input() == Some(0) {
            let kernel = for_real!("dropout", x.ty.dtype, T => &DropoutKernel::<T>::IN_PLACE);
            let args = DropoutInPlaceArgs { out, seed, step, utterances, starts, draw, rows, columns, below };
            at.launch(kernel, grid, args);
        } else {
            let kernel = for_real!("dropout", x.ty.dtype, T => &DropoutKernel::<T>::OUT_OF_PLACE);
            let args = DropoutArgs { out, seed, step, utterances, starts, draw, rows, columns, below, x };
            at.launch(kernel, grid, args);
        }
        Ok(())
    }
}

kernel_args! {
    /// Arguments of `dropout`.
    struct DropoutArgs<T: Real> {
        out: out T,
        seed: in u32,
        step: in u32,
        utterances: in u32,
        starts: in u32,
        draw: u32,
        rows: u32,
        columns: u32,
        below: u32,
        x: in T,
    }
}

kernel_args! {
    /// Arguments of `dropout_in_place`, whose output is also its input.
    struct DropoutInPlaceArgs<T: Real> {
        out: out T,
        seed: in u32,
        step: in u32,
        utterances: in u32,
        starts: in u32,
        draw: u32,
        rows: u32,
        columns: u32,
        below: u32,
    }
}

struct DropoutKernel<T>(std::marker::PhantomData<T>);

impl<T: Real> DropoutKernel<T> {
    const OUT_OF_PLACE: Kernel = Kernel {
        name: named_for!(T, "dropout"),
        source: on_cuda::<T>(&SOURCE),
        params: DropoutArgs::params::<T>(),
        host: &|args: &mut HostArgs<'_>| {
            let DropoutArgs { out, seed, step, utterances, starts, draw, columns, below, x, .. } =
                DropoutArgs::host::<T>(args);
            let (words, columns) = (Words::new(seed, step, utterances, starts, draw), columns as usize);
            dropout(args.workers(), words, out, columns, below, |first, out| {
                out.copy_from_slice(&x[first..first + out.len()]);
            });
        },
    };

    const IN_PLACE: Kernel = Kernel {
        name: named_for!(T, "dropout_in_place"),
        source: on_cuda::<T>(&SOURCE),
        params: DropoutInPlaceArgs::params::<T>(),
        host: &|args: &mut HostArgs<'_>| {
            let DropoutInPlaceArgs { out, seed, step, utterances, starts, draw, columns, below, .. } =
                DropoutInPlaceArgs::host::<T>(args);
            let (words, columns) = (Words::new(seed, step, utterances, starts, draw), columns as usize);
            dropout(args.workers(), words, out, columns, below, |_, _| {});
        },
    };
}

pub(super) static KERNELS: &[&Kernel] = &[
    &DropoutKernel::<f32>::OUT_OF_PLACE,
    &DropoutKernel::<bf16>::OUT_OF_PLACE,
    &DropoutKernel::<f32>::IN_PLACE,
    &DropoutKernel::<bf16>::IN_PLACE,
];

/// Drops elements of `out`. `load` copies the elements from the given one on into a chunk, if they are not there yet.
fn dropout<T: Real>(
    workers: &Workers,
    words: Words<'_>,
    out: &mut [T],
    columns: usize,
    below: u32,
    load: impl Fn(usize, &mut [T]) + Sync,
) {
    let chunk_frames = frames_per_chunk(2 * columns);
    let scale = T::Acc::of(scale_of(below));
    workers.each_chunk(out, chunk_frames * columns, |chunk, out| {
        let first = chunk * chunk_frames;
        load(first * columns, out);
        for part in row_parts(words.starts, first..first + out.len() / columns) {
            let out = &mut out[(part.frames.start - first) * columns..(part.frames.end - first) * columns];
            let in_row = (part.frames.start - part.start) * columns;
            words.each_run(part.row, in_row, in_row + out.len(), |at, words| {
                apply_mask(&mut out[at..at + words.len()], words, below, scale);
            });
        }
    });
}

fn apply_mask<T: Real>(out: &mut [T], words: &[u32], below: u32, scale: T::Acc) {
    for (out, &word) in out.iter_mut().zip(words) {
        let factor = if word < below { T::Acc::zero() } else { scale };
        *out = T::store(out.load() * factor);
    }
}

/// `1 / (1 - p)`, which preserves the mean.
fn scale_of(below: u32) -> f64 {
    const ALL: f64 = 4_294_967_296.0;
    ALL / (ALL - f64::from(below))
}

impl Graph {
    /// Sets elements of `x` to zero with probability `p` and scales the others by `1 / (1 - p)`; `x` itself for `p = 0`.
    /// A dropped NaN stays a NaN: dropout hides no fault.
    ///
    /// Fails unless `0 ≤ p < 1` and `x` has the frames of `keys`.
    pub fn dropout(&mut self, x: Value, p: f64, keys: &RngKeys) -> Result<Value, EngineError> {
        if !(0.0..1.0).contains(&p) {
            return refuse("dropout", format!("takes a probability from 0 to less than 1, not {p}"), &[self.ty(x)]);
        }
        if p == 0.0 {
            return Ok(x);
        }
        let (rows, draw, below) = (keys.rows.clone(), self.next_rng_id(), (p * 4_294_967_296.0) as u32);
        let [seed, step, utterances, starts] = keys.inputs(self);
        self.push(Dropout { rows, draw, below }, &[x, seed, step, utterances, starts])
    }
}

#[cfg(test)]
mod tests {
    use tandem_device::DType;

    use super::*;
    use crate::random::philox;
    use crate::testing::{GradientCheck, check_gradients, run};
    use crate::{BlockId, Recomputed};

    fn drawing(check: GradientCheck, utterances: &[u32]) -> GradientCheck {
        check.host("seed", &[5, 6]).host("step", &[9]).host("utterances", utterances)
    }

    #[test]
    fn gradients() {
        let rows = Rows::new(&[3, 0, 200, 7]);
        for columns in [1, 5, 16, 333] {
            let check = drawing(GradientCheck::new().input(&[210, columns]), &[11, 12, 13, 14]);
            check_gradients(check, |g, x| {
                let keys = RngKeys::new(g, &rows)?;
                // Once out of place, and once in place.
                let y = g.dropout(x[0], 0.3, &keys)?;
                g.dropout(y, 0.5, &keys)
            });
        }
    }

    fn dropped(rows: &[u32], utterances: &[u32], columns: u32) -> Vec<f64> {
        let rows = Rows::new(rows);
        let ones = vec![1.0; (rows.total() * columns) as usize];
        let check = drawing(GradientCheck::new().given(&[rows.total(), columns], &ones), utterances);
        run(check, |g, x| {
            let keys = RngKeys::new(g, &rows)?;
            g.dropout(x[0], 0.25, &keys)
        })
    }

    #[test]
    fn the_mask_is_that_of_the_counters() {
        let found = dropped(&[2, 3], &[70, 80], 5);
        let of_row = |utterance: u32, elements: u32| {
            (0..elements).map(move |e| philox([5, 6], [e / 4, utterance, 1, 9])[(e % 4) as usize])
        };
        let expected: Vec<f64> =
            of_row(70, 10).chain(of_row(80, 15)).map(|word| if word < 1 << 30 { 0.0 } else { 4.0 / 3.0 }).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn an_utterance_has_the_same_mask_in_any_batch_and_bucket() {
        let whole = dropped(&[40, 40], &[70, 80], 3);
        assert_eq!(dropped(&[50], &[80], 3)[..120], whole[120..]);
        assert_ne!(whole[..120], whole[120..], "two utterances have different masks");
    }

    #[test]
    fn the_probability_and_the_mean_are_right() {
        let found = dropped(&[400], &[3], 50);
        let out = found.iter().filter(|&&x| x == 0.0).count() as f64 / 20_000.0;
        let mean = found.iter().sum::<f64>() / 20_000.0;
        assert!((out - 0.25).abs() < 0.015 && (mean - 1.0).abs() < 0.02, "{out} {mean}");
    }

    #[test]
    fn two_steps_and_two_ops_have_different_masks() {
        let rows = Rows::new(&[50]);
        let run_at = |step: u32, before: bool| {
            let check = GradientCheck::new().given(&[50, 4], &[1.0; 200]);
            let check = check.host("seed", &[5, 6]).host("step", &[step]).host("utterances", &[1]);
            run(check, |g, x| {
                if before {
                    g.next_rng_id();
                }
                let keys = RngKeys::new(g, &rows)?;
                g.dropout(x[0], 0.5, &keys)
            })
        };
        assert_ne!(run_at(1, false), run_at(2, false));
        assert_ne!(run_at(1, false), run_at(1, true));
        assert_eq!(run_at(1, true), run_at(1, true));
    }

    #[test]
    fn a_recomputed_block_has_the_same_mask() {
        let rows = Rows::new(&[9, 4]);
        let gradient = |recomputed: &Recomputed| {
            let check = drawing(GradientCheck::new().input(&[13, 3]), &[1, 2]);
            run(check, |g, x| {
                let keys = RngKeys::new(g, &rows)?;
                let y = g.block(|g| {
                    let y = g.square(x[0])?;
                    let y = g.dropout(y, 0.4, &keys)?;
                    g.square(y)
                })?;
                let loss = g.sum_all(y)?;
                let gradient = g.gradients(loss, &[x[0]], recomputed)?[0].unwrap();
                g.detach(gradient)
            })
        };
        let again = gradient(&Recomputed::from([BlockId(0)]));
        assert_eq!(again, gradient(&Recomputed::new()));
        assert!(again.contains(&0.0) && again.iter().any(|&x| x != 0.0));
    }

    #[test]
    fn wrong_operands_are_named() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let x = g.input("x", TensorType::new(DType::F32, &[4, 3])).unwrap();
        let keys = RngKeys::new(&mut g, &Rows::new(&[5])).unwrap();
        let error = g.dropout(x, 1.0, &keys).unwrap_err().to_string();
        assert_eq!(error, "dropout: takes a probability from 0 to less than 1, not 1; the operands are F32[4, 3]");
        let error = g.dropout(x, 0.5, &keys).unwrap_err().to_string();
        assert_eq!(error, "dropout: its RNG keys are for rows of 5 frames; the operands are F32[4, 3]");
        assert_eq!(g.dropout(x, 0.0, &keys).unwrap(), x);
    }
}
