//! Alignment: how many frames of a recording each of its tokens lasts, by the most likely monotonic path.
//!
//! A token's prior is the mean of a unit normal distribution over mel frames, so that a frame `y` of token `mu` scores
//! `-½‖y - mu‖²`. The best of all paths that begin at the first token and frame, end at the last ones and go to the next
//! token or stay with every frame is found by dynamic programming over `frames × tokens`, one row at a time.
//!
//! Only differences within a frame decide. So `-½‖y‖²` is left out, and each frame's scores are lowered until the best is
//! 0: sums over thousands of frames stay small where the path is good, and f32 tells paths apart.

use tandem_device::host::{self, Matrix, gemm_into};
use tandem_device::{DType, Element, Grid, HostArgs, Kernel, Param, Source};

use super::frames::cut;
use super::frames::{filled_of, span};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{LaunchArg, Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::{TensorType, accumulator};
use crate::{for_real, named_for};

pub(super) static SOURCE: Source =
    Source { file: "engine/alignment.cu", text: concat!(include_str!("frames.cuh"), include_str!("alignment.cu")) };

/// Frames that a block on a card scores.
const FRAMES_OF_A_TILE: u32 = 32;

/// Inputs: prior, mel, then starts and lengths of the text's and the mel's rows.
#[derive(Debug)]
struct Align {
    text: Rows,
    mel: Rows,
}

impl Align {
    /// Tokens that a frame of the table has room for: those of the longest row.
    fn stride(&self) -> u32 {
        self.text.longest()
    }

    /// Words with a bit for each of them.
    fn words(&self) -> u32 {
        self.stride().div_ceil(32)
    }

    /// Whether there is anything to score.
    fn is_empty(&self) -> bool {
        self.stride() == 0 || self.mel.total() == 0
    }
}

impl Op for Align {
    fn name(&self) -> &'static str {
        "align"
    }

    fn outputs(&self, inputs: &[TensorType]) -> Result<Vec<TensorType>, EngineError> {
        let (prior, mel, lengths) = (inputs[0], inputs[1], [inputs[3], inputs[5]]);
        let matrices = prior.shape.rank() == 2 && mel.shape.rank() == 2 && prior.shape.last() == mel.shape.last();
        if !matrices || prior.dtype != mel.dtype {
            return refuse("align", "takes [tokens, columns] and [frames, columns] of one element type", &inputs[..2]);
        }
        if [prior.shape.rows(), mel.shape.rows()] != [self.text.total(), self.mel.total()] {
            let problem = format!("its rows have {} tokens and {} frames", self.text.total(), self.mel.total());
            return refuse("align", problem, &inputs[..2]);
        }
        let expected = TensorType::new(DType::I32, &[self.text.count()]);
        if self.text.count() != self.mel.count() || lengths != [expected; 2] {
            let problem =
                format!("{} rows of text and {} of mel need I32 lengths", self.text.count(), self.mel.count());
            return refuse("align", problem, &lengths);
        }
        Ok(vec![TensorType::new(DType::I32, &[prior.shape.rows()])])
    }

    /// Durations are whole numbers: nothing flows.
    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        Ok(vec![None; at.inputs.len()])
    }

    /// The table of scores, and the bits that a card keeps for the way back.
    fn scratch(&self, inputs: &[TensorType], _: &[TensorType]) -> Vec<u64> {
        let (frames, wide) = (u64::from(self.mel.total()), accumulator(inputs[0].dtype));
        let (table, bits) = (u64::from(self.stride()) * wide.bytes(), u64::from(self.words()) * DType::U32.bytes());
        vec![(frames * table).max(1), (frames * bits).max(1)]
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (prior, mel, durations) = (at.inputs[0], at.inputs[1], at.outputs[0]);
        if self.text.total() == 0 {
            return Ok(());
        }
        if self.is_empty() {
            at.clear(durations);
            return Ok(());
        }
        let (frames, dtype) = (self.mel.total(), prior.ty.dtype);
        let table = Tensor { ty: TensorType::new(accumulator(dtype), &[frames, self.stride()]), ..at.scratch[0] };
        let bits = Tensor { ty: TensorType::new(DType::U32, &[frames, self.words()]), ..at.scratch[1] };
        let of_rows: Vec<LaunchArg> = at.inputs[2..].iter().map(Tensor::read).collect();
        let stride = LaunchArg::U32(self.stride());

        let kernel = for_real!("align", dtype, T => &Kernels::<T>::SCORES);
        let mut args = vec![table.write(), prior.read(), mel.read()];
        args.extend(of_rows.iter().copied().chain([LaunchArg::U32(prior.ty.shape.last()), stride]));
        let tiles = self.mel.longest().div_ceil(FRAMES_OF_A_TILE);
        at.launch(kernel, Grid { blocks: [tiles, self.mel.count(), 1], threads: 256, shared_bytes: 0 }, args);

        let kernel = for_real!("align", dtype, T => &Kernels::<T>::PATH);
        let mut args = vec![durations.write(), table.write(), bits.write()];
        args.extend(of_rows.into_iter().chain([stride, LaunchArg::U32(self.words())]));
        // A thread for each token, in whole warps.
        let threads = (32 * self.words()).min(1024);
        at.launch(kernel, Grid { blocks: [self.mel.count(), 1, 1], threads, shared_bytes: 0 }, args);
        Ok(())
    }
}

struct Kernels<T>(std::marker::PhantomData<T>);

impl<T: Real<Acc: host::GemmFloat>> Kernels<T> {
    const SCORES: Kernel = Kernel {
        name: named_for!(T, "align_scores"),
        source: on_cuda::<T>(&SOURCE),
        params: &[
            Param::Out(<T::Acc as Element>::DTYPE),
            Param::In(T::DTYPE),
            Param::In(T::DTYPE),
            Param::In(DType::U32),
            Param::In(DType::I32),
            Param::In(DType::U32),
            Param::In(DType::I32),
            Param::U32,
            Param::U32,
        ],
        host: &scores::<T>,
    };

    const PATH: Kernel = Kernel {
        name: named_for!(T::Acc, "align_path"),
        source: on_cuda::<T>(&SOURCE),
        params: &[
            Param::Out(DType::I32),
            Param::Out(<T::Acc as Element>::DTYPE),
            Param::Out(DType::U32),
            Param::In(DType::U32),
            Param::In(DType::I32),
            Param::In(DType::U32),
            Param::In(DType::I32),
            Param::U32,
            Param::U32,
        ],
        host: &paths::<T::Acc>,
    };
}

/// One row of the batch: where its tokens and frames lie, and how many of them are there.
struct Row {
    first_token: usize,
    tokens: usize,
    token_room: usize,
    first_frame: usize,
    frames: usize,
    frame_room: usize,
}

/// The rows, from four arguments of which the first is argument `at`.
fn rows(args: &HostArgs<'_>, at: usize) -> Vec<Row> {
    let (text_starts, text_lengths) = (args.read::<u32>(at), args.read::<i32>(at + 1));
    let (mel_starts, mel_lengths) = (args.read::<u32>(at + 2), args.read::<i32>(at + 3));
    let row = |row: usize| {
        let (text, mel) = (span(text_starts, row), span(mel_starts, row));
        Row {
            first_token: text.start,
            tokens: filled_of(text_starts, text_lengths, row),
            token_room: text.len(),
            first_frame: mel.start,
            frames: filled_of(mel_starts, mel_lengths, row),
            frame_room: mel.len(),
        }
    };
    (0..text_lengths.len()).map(row).collect()
}

impl Row {
    /// Whether there is a path to look for.
    fn has_path(&self) -> bool {
        self.tokens > 0 && self.frames >= self.tokens
    }
}

fn scores<T: Real<Acc: host::GemmFloat>>(args: &mut HostArgs<'_>) {
    let (prior, mel, rows) = (args.read::<T>(1), args.read::<T>(2), rows(args, 3));
    let (columns, stride) = (args.u32(7) as usize, args.u32(8) as usize);
    let workers = args.workers();
    let tables = cut(args.write::<T::Acc>(0), rows.iter().map(|row| row.frame_room * stride));
    workers.each_part(tables, |row, table| {
        let row = &rows[row];
        if row.has_path() {
            let wide = |x: &[T], first: usize, count: usize| -> Vec<T::Acc> {
                x[first * columns..(first + count) * columns].iter().map(|x| x.load()).collect()
            };
            let tokens = wide(prior, row.first_token, row.tokens);
            let frames = wide(mel, row.first_frame, row.frames);
            score(&tokens, &frames, columns, &mut table[..row.tokens * row.frames]);
        }
    });
}

fn paths<W: Float>(args: &mut HostArgs<'_>) {
    let (rows, stride) = (rows(args, 3), args.u32(7) as usize);
    let workers = args.workers();
    let durations = cut(args.write::<i32>(0), rows.iter().map(|row| row.token_room));
    let tables = cut(args.write::<W>(1), rows.iter().map(|row| row.frame_room * stride));
    workers.each_part(durations.into_iter().zip(tables).collect(), |row, (durations, table)| {
        let row = &rows[row];
        durations.fill(0);
        let durations = &mut durations[..row.tokens];
        if row.has_path() {
            let table = &mut table[..row.tokens * row.frames];
            best_paths(table, row.tokens);
            walk_back(table, durations);
        } else {
            spread_evenly(durations, row.frames);
        }
    });
}

/// Too few frames for all tokens: every token gets one or none, as evenly as it goes.
fn spread_evenly(durations: &mut [i32], frames: usize) {
    let tokens = durations.len();
    for (token, duration) in durations.iter_mut().enumerate() {
        *duration = ((token + 1) * frames / tokens - token * frames / tokens) as i32;
    }
}

/// `table[frame][token] = y·mu - ½‖mu‖²`, less the best of the frame.
fn score<W: Float + host::GemmFloat>(tokens: &[W], frames: &[W], columns: usize, table: &mut [W]) {
    let (num_tokens, num_frames) = (tokens.len() / columns, frames.len() / columns);
    let (y, mu) = (Matrix::rows(frames, columns), Matrix::transposed(tokens, columns));
    gemm_into([num_frames, num_tokens, columns], y, mu, (table, num_tokens), W::of(1.0), false);
    let norms: Vec<W> =
        tokens.chunks_exact(columns).map(|mu| W::of(0.5) * mu.iter().map(|&x| x * x).sum::<W>()).collect();
    for scores in table.chunks_exact_mut(num_tokens) {
        scores.iter_mut().zip(&norms).for_each(|(score, &norm)| *score = *score - norm);
        let best = scores.iter().fold(W::of(f64::NEG_INFINITY), |best, &score| Float::max(score, best));
        scores.iter_mut().for_each(|score| *score = *score - best);
    }
}

/// Turns scores into those of the best path up to each place. Before its turn a token is out of reach.
fn best_paths<W: Float>(table: &mut [W], tokens: usize) {
    table[1..tokens].fill(W::of(f64::NEG_INFINITY));
    for frame in 1..table.len() / tokens {
        let (before, rest) = table.split_at_mut(frame * tokens);
        let (before, scores) = (&before[(frame - 1) * tokens..], &mut rest[..tokens]);
        scores[0] += before[0];
        for ((score, &stay), &step) in scores[1..].iter_mut().zip(&before[1..]).zip(before) {
            *score += stay.max(step);
        }
    }
}

/// Counts the frames of each token from the last place to the first. A tie stays with the token. What is not a number
/// decides nothing: there are always as many frames left as tokens.
fn walk_back<W: Float>(table: &[W], durations: &mut [i32]) {
    let tokens = durations.len();
    let mut token = tokens - 1;
    for frame in (0..table.len() / tokens).rev() {
        durations[token] += 1;
        if token == 0 || frame == 0 {
            continue;
        }
        let before = &table[(frame - 1) * tokens..frame * tokens];
        if token == frame || before[token - 1] > before[token] {
            token -= 1;
        }
    }
}

impl Graph {
    /// The number of frames of each token: I32 `[tokens]`, by the most likely monotonic path through
    /// `-½‖mel frame - prior of token‖²`. Every token that is there gets at least one frame, and a row's durations add up
    /// to its mel length; padding tokens get 0. Where a row has fewer frames than tokens, its tokens get one frame or none,
    /// evenly; where it has no tokens, its frames belong to nobody.
    ///
    /// `prior` is `[tokens, columns]`, `mel` `[frames, columns]`, lengths are I32 `[rows]`. No gradient passes. Costs a
    /// GEMM of `frames × tokens × columns` per row and a table of wide numbers, all frames × the longest row's tokens; rows
    /// run in parallel.
    pub fn align(
        &mut self,
        prior: Value,
        mel: Value,
        text_rows: &Rows,
        text_lengths: Value,
        mel_rows: &Rows,
        mel_lengths: Value,
    ) -> Result<Value, EngineError> {
        let (text_starts, mel_starts) = (self.row_starts(text_rows), self.row_starts(mel_rows));
        let inputs = [prior, mel, text_starts, text_lengths, mel_starts, mel_lengths];
        self.push(Align { text: text_rows.clone(), mel: mel_rows.clone() }, &inputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{GradientCheck, check_gradients, run};

    /// Durations of one batch: columns, then per row the room for tokens and frames and how much of it is filled.
    fn align(columns: u32, rows: &[[u32; 4]], prior: &[f64], mel: &[f64]) -> Vec<i32> {
        let (check, text, frames) = batch(columns, rows, prior, mel);
        let found = run(check, |g, x| g.align(x[0], x[1], &text, x[2], &frames, x[3]));
        found.into_iter().map(|x| x as i32).collect()
    }

    fn batch(columns: u32, rows: &[[u32; 4]], prior: &[f64], mel: &[f64]) -> (GradientCheck, Rows, Rows) {
        let of = |i: usize| rows.iter().map(|row| row[i]).collect::<Vec<u32>>();
        let filled = |i: usize| rows.iter().map(|row| row[i] as i32).collect::<Vec<i32>>();
        let (text, frames, count) = (Rows::new(&of(0)), Rows::new(&of(1)), rows.len() as u32);
        let check = GradientCheck::new().given(&[text.total(), columns], prior).given(&[frames.total(), columns], mel);
        (check.whole(&[count], &filled(2)).whole(&[count], &filled(3)), text, frames)
    }

    fn waves(count: usize, of: f64) -> Vec<f64> {
        (0..count).map(|i| 2.0 * (i as f64 * of).sin()).collect()
    }

    /// The log-likelihood of durations.
    fn likelihood(durations: &[i32], prior: &[f64], mel: &[f64], columns: usize) -> f64 {
        let tokens = durations.iter().enumerate().flat_map(|(token, &n)| std::iter::repeat_n(token, n as usize));
        let distance = |token: usize, frame: usize| {
            let (mu, y) = (&prior[token * columns..], &mel[frame * columns..]);
            (0..columns).map(|c| -0.5 * (y[c] - mu[c]).powi(2)).sum::<f64>()
        };
        tokens.enumerate().map(|(frame, token)| distance(token, frame)).sum()
    }

    /// All ways to share `frames` among `tokens`, at least one each.
    fn all_durations(tokens: usize, frames: usize) -> Vec<Vec<i32>> {
        if tokens == 1 {
            return vec![vec![frames as i32]];
        }
        let first = 1..=frames + 1 - tokens;
        first
            .flat_map(|n| {
                all_durations(tokens - 1, frames - n).into_iter().map(move |rest| [vec![n as i32], rest].concat())
            })
            .collect()
    }

    #[test]
    fn the_path_is_the_best_of_all_there_are() {
        for (tokens, frames) in [(1, 1), (1, 6), (2, 2), (3, 9), (4, 10), (5, 5)] {
            let (prior, mel) = (waves(tokens * 3, 1.7), waves(frames * 3, 0.9));
            let shape = [tokens as u32, frames as u32, tokens as u32, frames as u32];
            let found = align(3, &[shape], &prior, &mel);
            let score = |durations: &Vec<i32>| likelihood(durations, &prior, &mel, 3);
            let best = all_durations(tokens, frames).into_iter().max_by(|a, b| score(a).total_cmp(&score(b))).unwrap();
            assert_eq!(found, best, "{tokens} tokens, {frames} frames");
        }
    }

    #[test]
    fn rows_do_not_meet_and_padding_does_not_count() {
        let rows = [[4, 9, 3, 7], [0, 5, 0, 5], [3, 3, 3, 2], [5, 12, 5, 12], [2, 0, 2, 0], [3, 4, 0, 4]];
        let (tokens, frames) = (17, 33);
        let (mut prior, mut mel) = (waves(tokens * 3, 1.7), waves(frames * 3, 0.9));
        let found = align(3, &rows, &prior, &mel);
        assert_eq!(found[..3], align(3, &[[3, 7, 3, 7]], &prior[..9], &mel[..21]));
        assert_eq!(found[3], 0, "padding");
        assert_eq!(found[4..7], [0, 1, 1], "fewer frames than tokens");
        assert_eq!(found[7..12], align(3, &[[5, 12, 5, 12]], &prior[21..36], &mel[51..87]));
        assert_eq!(found[12..], [0; 5], "no frames, and no tokens");
        prior[3 * 3..4 * 3].fill(f64::NAN);
        mel[7 * 3..9 * 3].fill(f64::INFINITY);
        assert_eq!(align(3, &rows, &prior, &mel), found);
    }

    #[test]
    fn every_precision_and_device_finds_a_plain_path() {
        // In turn, so that neighbours are far apart and no number is large.
        let mean = |token: usize| [0.0, 0.5].map(|turn| 9.0 * (2.5 * token as f64 + std::f64::consts::PI * turn).sin());
        let check = |durations: &[usize]| {
            let token_of = durations.iter().enumerate().flat_map(|(token, &n)| vec![token; n]);
            let prior: Vec<f64> = (0..durations.len()).flat_map(mean).collect();
            let mel: Vec<f64> =
                token_of.enumerate().flat_map(|(i, token)| mean(token).map(|x| x + 0.4 * (i as f64).sin())).collect();
            let (tokens, frames) = (durations.len() as u32, (mel.len() / 2) as u32);
            let rows = [[tokens, frames, tokens, frames]];
            let (check, text, frames) = batch(2, &rows, &prior, &mel);
            // bf16 and f32 are held against f64, a simulated card and three threads against the CPU.
            check_gradients(check, |g, x| g.align(x[0], x[1], &text, x[2], &frames, x[3]));
            assert_eq!(align(2, &rows, &prior, &mel), durations.iter().map(|&n| n as i32).collect::<Vec<_>>());
        };
        check(&[3, 1, 4, 1, 5, 9, 2, 6]);
        // More than a warp has lanes, and more than a block has threads.
        check(&(0..70).map(|i| 1 + i * 5 % 7).collect::<Vec<_>>());
        check(&(0..1030).map(|i| 1 + usize::from(i % 9 == 0)).collect::<Vec<_>>());
    }

    #[test]
    fn a_tie_stays_with_the_later_token() {
        assert_eq!(align(2, &[[3, 7, 3, 7]], &[0.0; 6], &waves(14, 0.9)), [1, 1, 5]);
        assert_eq!(align(1, &[[2, 4, 2, 4]], &[0.0, 2.0], &[0.0, 1.0, 1.0, 2.0]), [1, 3]);
    }

    #[test]
    fn what_is_not_a_number_still_gives_every_token_a_frame() {
        for bad in [f64::NAN, f64::INFINITY, 1e300] {
            let mut mel = waves(20 * 3, 0.9);
            mel[30..45].fill(bad);
            let found = align(3, &[[6, 20, 6, 20]], &waves(18, 1.7), &mel);
            assert!(found.iter().all(|&n| n >= 1) && found.iter().sum::<i32>() == 20, "{found:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        let mut g = Graph::new(Default::default(), DType::F32);
        let prior = g.input("prior", TensorType::new(DType::F32, &[4, 3])).unwrap();
        let mel = g.input("mel", TensorType::new(DType::F32, &[9, 2])).unwrap();
        let lengths = g.input("lengths", TensorType::new(DType::I32, &[1])).unwrap();
        let (text, frames) = (Rows::new(&[4]), Rows::new(&[9]));
        let error = g.align(prior, mel, &text, lengths, &frames, lengths).unwrap_err().to_string();
        let expected = "align: takes [tokens, columns] and [frames, columns] of one element type; \
                        the operands are F32[4, 3] and F32[9, 2]";
        assert_eq!(error, expected);
        let error = g.align(prior, prior, &text, lengths, &Rows::new(&[1, 3]), lengths).unwrap_err().to_string();
        assert_eq!(error, "align: 1 rows of text and 2 of mel need I32 lengths; the operands are I32[1] and I32[1]");
    }
}
