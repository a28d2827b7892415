//! The length regulator (Ren et al. 2019, FastSpeech): repeats the vector of each token for its duration.

use half::bf16;
use tandem_device::{DType, Grid, HostArgs, Kernel, Source, kernel_args};

use super::frames::{frames_per_chunk, is_sequence, row_grid, row_parts, row_range};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::TensorType;
use crate::{for_real, named_for};

pub(super) static SOURCE: Source =
    Source { file: "engine/expand.cu", text: concat!(include_str!("frames.cuh"), include_str!("expand.cu")) };

/// The end of each token, as a frame of the output. Inputs: durations, text row starts, mel row starts.
#[derive(Debug)]
struct TokenEnds;

/// Inputs: token vectors, ends of tokens, text row starts, mel row starts.
#[derive(Debug)]
struct Expand {
    text_rows: Rows,
    mel_rows: Rows,
}

/// The adjoint of [`Expand`]: the sum over the frames of each token.
#[derive(Debug)]
struct SumTokens {
    text_rows: Rows,
    mel_rows: Rows,
}

impl Op for TokenEnds {
    fn name(&self) -> &'static str {
        "token_ends"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        Ok(vec![inputs[0]])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        Ok(vec![None; at.inputs.len()])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let ends = at.outputs[0];
        if ends.ty.shape.elements() == 0 {
            return Ok(());
        }
        let [durations, text_starts, mel_starts] = [0, 1, 2].map(|i| at.inputs[i]);
        let rows = text_starts.ty.shape.last() - 1;
        // A block per row.
        let grid = Grid { blocks: [rows, 1, 1], threads: 256, shared_bytes: 0 };
        at.launch(&TOKEN_ENDS, grid, TokenEndsArgs { durations, text_starts, mel_starts, ends });
        Ok(())
    }
}

impl Op for Expand {
    fn name(&self) -> &'static str {
        "expand"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let x = inputs[0];
        Ok(vec![TensorType::new(x.dtype, &[self.mel_rows.total(), x.shape.last()])])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first().filter(|_| at.wanted[0]) else { return Ok(vec![None; 4]) };
        let inputs = [gradient, at.inputs[1], at.inputs[2], at.inputs[3]];
        let op = SumTokens { text_rows: self.text_rows.clone(), mel_rows: self.mel_rows.clone() };
        Ok(vec![Some(at.graph.push(op, &inputs)?), None, None, None])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let out = at.outputs[0];
        if out.ty.shape.elements() == 0 {
            return Ok(());
        }
        let kernel = for_real!("expand", out.ty.dtype, T => &Tokens::<T>::EXPAND);
        at.launch(kernel, row_grid(&self.mel_rows, out.ty.shape.last()), expand_args(at.inputs, out));
        Ok(())
    }
}

impl Op for SumTokens {
    fn name(&self) -> &'static str {
        "expand gradient"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let gradient = inputs[0];
        Ok(vec![TensorType::new(gradient.dtype, &[self.text_rows.total(), gradient.shape.last()])])
    }

    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        let Some(gradient) = at.first().filter(|_| at.wanted[0]) else { return Ok(vec![None; 4]) };
        let inputs = [gradient, at.inputs[1], at.inputs[2], at.inputs[3]];
        let op = Expand { text_rows: self.text_rows.clone(), mel_rows: self.mel_rows.clone() };
        Ok(vec![Some(at.graph.push(op, &inputs)?), None, None, None])
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let out = at.outputs[0];
        if out.ty.shape.elements() == 0 {
            return Ok(());
        }
        let kernel = for_real!("expand", out.ty.dtype, T => &Tokens::<T>::GRADIENT);
        at.launch(kernel, row_grid(&self.text_rows, out.ty.shape.last()), expand_args(at.inputs, out));
        Ok(())
    }
}

kernel_args! {
    /// Arguments of `token_ends`.
    struct TokenEndsArgs { durations: in i32, text_starts: in u32, mel_starts: in u32, ends: out i32 }
}

kernel_args! {
    /// Arguments of `expand` and `expand_gradient`.
    struct ExpandArgs<T: Real> {
        x: in T,
        ends: in i32,
        text_starts: in u32,
        mel_starts: in u32,
        out: out T,
        channels: u32,
    }
}

/// The arguments of both kernels, from the inputs of their ops.
fn expand_args(inputs: &[Tensor], out: Tensor) -> ExpandArgs<Tensor, Tensor, Tensor, Tensor, Tensor> {
    let [x, ends, text_starts, mel_starts] = [0, 1, 2, 3].map(|i| inputs[i]);
    ExpandArgs { x, ends, text_starts, mel_starts, out, channels: out.ty.shape.last() }
}

static TOKEN_ENDS: Kernel =
    Kernel { name: "token_ends", source: &SOURCE, params: TokenEndsArgs::params(), host: &token_ends };

struct Tokens<T>(std::marker::PhantomData<T>);

impl<T: Real> Tokens<T> {
    const EXPAND: Kernel = Kernel {
        name: named_for!(T, "expand"),
        source: on_cuda::<T>(&SOURCE),
        params: ExpandArgs::params::<T>(),
        host: &expand::<T>,
    };

    const GRADIENT: Kernel = Kernel {
        name: named_for!(T, "expand_gradient"),
        source: on_cuda::<T>(&SOURCE),
        params: ExpandArgs::params::<T>(),
        host: &sum_tokens::<T>,
    };
}

pub(super) static KERNELS: &[&Kernel] = &[
    &TOKEN_ENDS,
    &Tokens::<f32>::EXPAND,
    &Tokens::<bf16>::EXPAND,
    &Tokens::<f32>::GRADIENT,
    &Tokens::<bf16>::GRADIENT,
];

fn token_ends(args: &mut HostArgs<'_>) {
    let TokenEndsArgs { durations, text_starts, mel_starts, ends } = TokenEndsArgs::host(args);
    for row in 0..text_starts.len() - 1 {
        let (tokens, frames) = (row_range(text_starts, row), row_range(mel_starts, row));
        let mut end = frames.start;
        for (out, &duration) in ends[tokens.clone()].iter_mut().zip(&durations[tokens]) {
            // Clamped to the row's end after every token, so that the sum cannot overflow.
            end = (end + duration.max(0) as usize).min(frames.end);
            *out = end as i32;
        }
    }
}

fn expand<T: Real>(args: &mut HostArgs<'_>) {
    let ExpandArgs { x, ends, text_starts, mel_starts, out, channels } = ExpandArgs::host::<T>(args);
    let channels = channels as usize;
    let chunk_frames = frames_per_chunk(channels);
    args.workers().each_chunk(out, chunk_frames * channels, |chunk, out| {
        let mut out = out.chunks_exact_mut(channels);
        for run in row_parts(mel_starts, chunk * chunk_frames..chunk * chunk_frames + out.len()) {
            let tokens = row_range(text_starts, run.row);
            let passed = ends[tokens.clone()].partition_point(|&end| end as usize <= run.frames.start);
            let mut token = tokens.start + passed;
            for (frame, out) in run.frames.zip(&mut out) {
                while token < tokens.end && ends[token] as usize <= frame {
                    token += 1;
                }
                match token < tokens.end {
                    true => out.copy_from_slice(&x[token * channels..][..channels]),
                    false => out.fill(T::store(T::Acc::zero())),
                }
            }
        }
    });
}

fn sum_tokens<T: Real>(args: &mut HostArgs<'_>) {
    let ExpandArgs { x: gradient, ends, text_starts, mel_starts, out, channels } = ExpandArgs::host::<T>(args);
    let channels = channels as usize;
    // A token has about six frames.
    let chunk_tokens = frames_per_chunk(6 * channels);
    args.workers().each_chunk(out, chunk_tokens * channels, |chunk, out| {
        let mut sum = vec![T::Acc::zero(); channels];
        let mut out = out.chunks_exact_mut(channels);
        for run in row_parts(text_starts, chunk * chunk_tokens..chunk * chunk_tokens + out.len()) {
            let first = run.frames.start;
            let mut frame = match first - run.start {
                0 => row_range(mel_starts, run.row).start,
                _ => ends[first - 1] as usize,
            };
            for (&end, out) in ends[run.frames].iter().zip(&mut out) {
                sum.fill(T::Acc::zero());
                for part in gradient[frame * channels..end as usize * channels].chunks_exact(channels) {
                    sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part.load());
                }
                out.iter_mut().zip(&sum).for_each(|(out, &sum)| *out = T::store(sum));
                frame = end as usize;
            }
        }
    });
}

impl Graph {
    /// Repeats the vector of each token for its duration in `durations` `[tokens]`: `x` `[tokens, channels]` with
    /// `text_rows` to `[frames, channels]` with `mel_rows`.
    ///
    /// Frames past the sum of a row's durations are zero; frames past the row's end are dropped. A negative duration counts
    /// as 0. The durations get no gradient.
    pub fn expand(
        &mut self,
        x: Value,
        durations: Value,
        text_rows: &Rows,
        mel_rows: &Rows,
    ) -> Result<Value, EngineError> {
        let types = [self.ty(x), self.ty(durations)];
        let tokens = text_rows.total();
        if !is_sequence(&types[0], text_rows) || types[1] != TensorType::new(DType::I32, &[tokens]) {
            return refuse("expand", format!("takes tokens [{tokens}, channels] and durations I32[{tokens}]"), &types);
        }
        let (texts, mels) = (text_rows.count(), mel_rows.count());
        if texts != mels {
            return refuse("expand", format!("{texts} rows of tokens cannot become {mels} rows of frames"), &types);
        }
        let [text_starts, mel_starts] = [self.row_starts(text_rows), self.row_starts(mel_rows)];
        let ends = self.push(TokenEnds, &[durations, text_starts, mel_starts])?;
        let op = Expand { text_rows: text_rows.clone(), mel_rows: mel_rows.clone() };
        self.push(op, &[x, ends, text_starts, mel_starts])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GradientCheck, check_gradients, run};

    /// Shorter than the row, none, longer than the row, and negative durations.
    const DURATIONS: [i32; 9] = [2, 0, 3, 5, i32::MAX, i32::MAX, -4, 1, i32::MIN];

    fn rows() -> (Rows, Rows) {
        (Rows::new(&[3, 0, 3, 3]), Rows::new(&[7, 2, 6, 4]))
    }

    #[test]
    fn gradients() {
        let (text, mel) = rows();
        for channels in [3, 16] {
            let check = GradientCheck::new().input(&[9, channels]).integers(&[9], &DURATIONS);
            check_gradients(check, |g, x| g.expand(x[0], x[1], &text, &mel));
        }
        // More than one chunk.
        let (text, mel) = (Rows::new(&[1000, 800]), Rows::new(&[4000, 3000]));
        let durations: Vec<i32> = (0..1800).map(|i| i * 7 % 9).collect();
        check_gradients(GradientCheck::new().input(&[1800, 5]).integers(&[1800], &durations), |g, x| {
            g.expand(x[0], x[1], &text, &mel)
        });
    }

    #[test]
    fn tokens_are_repeated() {
        let (text, mel) = rows();
        let x: Vec<f64> = (1..=9).map(f64::from).collect();
        let check = GradientCheck::new().given(&[9, 1], &x).integers(&[9], &DURATIONS);
        let found = run(check, |g, x| g.expand(x[0], x[1], &text, &mel));
        let expected: [&[f64]; 4] =
            [&[1.0, 1.0, 3.0, 3.0, 3.0, 0.0, 0.0], &[0.0, 0.0], &[4.0, 4.0, 4.0, 4.0, 4.0, 5.0], &[8.0, 0.0, 0.0, 0.0]];
        assert_eq!(found, expected.concat());
    }

    #[test]
    fn many_chunks_are_one_tensor() {
        let (text, mel) = (Rows::new(&[1000, 800]), Rows::new(&[4000, 3000]));
        let durations: Vec<i32> = (0..1800).map(|i| i * 7 % 9).collect();
        let x: Vec<f64> = (0..1800 * 9).map(f64::from).collect();
        let mut expected = Vec::new();
        for (tokens, frames) in [(0..1000, 4000), (1000..1800, 3000)] {
            let mut row = Vec::new();
            for token in tokens {
                for _ in 0..durations[token] {
                    row.extend_from_slice(&x[token * 9..][..9]);
                }
            }
            row.resize(frames * 9, 0.0);
            expected.extend(row);
        }
        let check = GradientCheck::new().given(&[1800, 9], &x).integers(&[1800], &durations);
        assert_eq!(run(check, |g, x| g.expand(x[0], x[1], &text, &mel)), expected);
    }

    #[test]
    fn operands_that_do_not_match_the_rows_are_named() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let x = g.input("x", TensorType::new(DType::F32, &[9, 2])).unwrap();
        let durations = g.input("durations", TensorType::new(DType::I32, &[8])).unwrap();
        let (text, mel) = rows();
        let error = g.expand(x, durations, &text, &mel).unwrap_err().to_string();
        let expected = "expand: takes tokens [9, channels] and durations I32[9]; the operands are F32[9, 2] and I32[8]";
        assert_eq!(error, expected);
    }
}
