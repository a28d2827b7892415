//! The length regulator: every token's frame as often as its duration says.

use tandem_device::{DType, Grid, HostArgs, Kernel, Param, Source};

use super::frames::{frames_of_a_piece, is_sequence, row_grid, row_parts, span};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{LaunchArg, Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::TensorType;
use crate::{for_real, named_for};

pub(super) static SOURCE: Source =
    Source { file: "engine/expand.cu", text: concat!(include_str!("frames.cuh"), include_str!("expand.cu")) };

/// Durations and both tables to the frame behind each token's last one, counted in the whole result.
#[derive(Debug)]
struct TokenEnds;

/// Token frames, ends of tokens and both tables to frames.
#[derive(Debug)]
struct Expand {
    text_rows: Rows,
    mel_rows: Rows,
}

/// The adjoint of [`Expand`]: the sum of each token's frames.
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
        let mut args: Vec<LaunchArg> = at.inputs.iter().map(Tensor::read).collect();
        args.push(ends.write());
        let rows = at.inputs[1].ty.shape.last() - 1;
        // A block for each row, which adds its durations up.
        at.launch(&TOKEN_ENDS, Grid { blocks: [rows, 1, 1], threads: 256, shared_bytes: 0 }, args);
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
        let mut args: Vec<LaunchArg> = at.inputs.iter().map(Tensor::read).collect();
        args.extend([out.write(), LaunchArg::U32(out.ty.shape.last())]);
        at.launch(kernel, row_grid(&self.mel_rows, out.ty.shape.last()), args);
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
        let kernel = for_real!("expand", out.ty.dtype, T => &Tokens::<T>::SUM);
        let mut args: Vec<LaunchArg> = at.inputs.iter().map(Tensor::read).collect();
        args.extend([out.write(), LaunchArg::U32(out.ty.shape.last())]);
        at.launch(kernel, row_grid(&self.text_rows, out.ty.shape.last()), args);
        Ok(())
    }
}

static TOKEN_ENDS: Kernel = Kernel {
    name: "token_ends",
    source: &SOURCE,
    params: &[Param::In(DType::I32), Param::In(DType::U32), Param::In(DType::U32), Param::Out(DType::I32)],
    host: &token_ends,
};

struct Tokens<T>(std::marker::PhantomData<T>);

impl<T: Real> Tokens<T> {
    /// In, ends of tokens, starts of text rows, starts of mel rows, out, channels.
    const PARAMS: &'static [Param] = &[
        Param::In(T::DTYPE),
        Param::In(DType::I32),
        Param::In(DType::U32),
        Param::In(DType::U32),
        Param::Out(T::DTYPE),
        Param::U32,
    ];

    const EXPAND: Kernel = Kernel {
        name: named_for!(T, "expand"),
        source: on_cuda::<T>(&SOURCE),
        params: Self::PARAMS,
        host: &expand::<T>,
    };

    const SUM: Kernel = Kernel {
        name: named_for!(T, "expand_sum"),
        source: on_cuda::<T>(&SOURCE),
        params: Self::PARAMS,
        host: &sum_tokens::<T>,
    };
}

fn token_ends(args: &mut HostArgs<'_>) {
    let durations = args.read::<i32>(0);
    let (text_starts, mel_starts) = (args.read::<u32>(1), args.read::<u32>(2));
    let ends = args.write::<i32>(3);
    for row in 0..text_starts.len() - 1 {
        let (tokens, frames) = (span(text_starts, row), span(mel_starts, row));
        let mut end = frames.start;
        for (out, &duration) in ends[tokens.clone()].iter_mut().zip(&durations[tokens]) {
            // Cut at the row's end with every token, so that no sum of durations is too large for a number.
            end = (end + duration.max(0) as usize).min(frames.end);
            *out = end as i32;
        }
    }
}

fn expand<T: Real>(args: &mut HostArgs<'_>) {
    let (x, ends) = (args.read::<T>(0), args.read::<i32>(1));
    let (text_starts, mel_starts, channels) = (args.read::<u32>(2), args.read::<u32>(3), args.u32(5) as usize);
    let of_a_piece = frames_of_a_piece(channels);
    let workers = args.workers();
    workers.each_chunk(args.write::<T>(4), of_a_piece * channels, |piece, out| {
        let mut out = out.chunks_exact_mut(channels);
        for run in row_parts(mel_starts, piece * of_a_piece..piece * of_a_piece + out.len()) {
            let tokens = span(text_starts, run.row);
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
    let (gradient, ends) = (args.read::<T>(0), args.read::<i32>(1));
    let (text_starts, mel_starts, channels) = (args.read::<u32>(2), args.read::<u32>(3), args.u32(5) as usize);
    // A token has some six frames.
    let of_a_piece = frames_of_a_piece(6 * channels);
    let workers = args.workers();
    workers.each_chunk(args.write::<T>(4), of_a_piece * channels, |piece, out| {
        let mut sum = vec![T::Acc::zero(); channels];
        let mut out = out.chunks_exact_mut(channels);
        for run in row_parts(text_starts, piece * of_a_piece..piece * of_a_piece + out.len()) {
            let first = run.frames.start;
            let mut frame = match first - run.start {
                0 => span(mel_starts, run.row).start,
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
    /// Repeats the frame of each token as often as `durations` `[tokens]` says: `x` `[tokens, channels]` with `text_rows` to
    /// `[frames, channels]` with `mel_rows`.
    ///
    /// Frames past the sum of a row's durations are zero; what would lie past the row's end is left out. A negative duration
    /// counts as none. No gradient goes to the durations.
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

    /// Fits with room behind, nothing at all, too long, and numbers that are no durations.
    const DURATIONS: [i32; 9] = [2, 0, 3, 5, i32::MAX, i32::MAX, -4, 1, i32::MIN];

    fn rows() -> (Rows, Rows) {
        (Rows::new(&[3, 0, 3, 3]), Rows::new(&[7, 2, 6, 4]))
    }

    #[test]
    fn gradients() {
        let (text, mel) = rows();
        for channels in [3, 16] {
            let check = GradientCheck::new().input(&[9, channels]).whole(&[9], &DURATIONS);
            check_gradients(check, |g, x| g.expand(x[0], x[1], &text, &mel));
        }
        // More than one piece.
        let (text, mel) = (Rows::new(&[1000, 800]), Rows::new(&[4000, 3000]));
        let durations: Vec<i32> = (0..1800).map(|i| i * 7 % 9).collect();
        check_gradients(GradientCheck::new().input(&[1800, 5]).whole(&[1800], &durations), |g, x| {
            g.expand(x[0], x[1], &text, &mel)
        });
    }

    #[test]
    fn tokens_are_repeated() {
        let (text, mel) = rows();
        let x: Vec<f64> = (1..=9).map(f64::from).collect();
        let check = GradientCheck::new().given(&[9, 1], &x).whole(&[9], &DURATIONS);
        let found = run(check, |g, x| g.expand(x[0], x[1], &text, &mel));
        let expected: [&[f64]; 4] =
            [&[1.0, 1.0, 3.0, 3.0, 3.0, 0.0, 0.0], &[0.0, 0.0], &[4.0, 4.0, 4.0, 4.0, 4.0, 5.0], &[8.0, 0.0, 0.0, 0.0]];
        assert_eq!(found, expected.concat());
    }

    #[test]
    fn many_pieces_are_one_tensor() {
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
        let check = GradientCheck::new().given(&[1800, 9], &x).whole(&[1800], &durations);
        assert_eq!(run(check, |g, x| g.expand(x[0], x[1], &text, &mel)), expected);
    }

    #[test]
    fn what_does_not_match_the_rows_is_named() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let x = g.input("x", TensorType::new(DType::F32, &[9, 2])).unwrap();
        let durations = g.input("durations", TensorType::new(DType::I32, &[8])).unwrap();
        let (text, mel) = rows();
        let error = g.expand(x, durations, &text, &mel).unwrap_err().to_string();
        let expected = "expand: takes tokens [9, channels] and durations I32[9]; the operands are F32[9, 2] and I32[8]";
        assert_eq!(error, expected);
    }
}
