//! Monotonic alignment search (Kim et al. 2020, Glow-TTS): the duration of each token in frames, by the most likely
//! monotonic path.
//!
//! The prior of a token is the mean of a unit normal distribution over mel frames, so that the log-likelihood of frame `y`
//! at token `mu` is `-½‖y - mu‖²`. Dynamic programming over `frames × tokens` (Viterbi), one row at a time, finds the best
//! of all paths from the first token and frame to the last ones that stay at the token or advance by one with every frame.
//!
//! Only differences within a frame matter. So `-½‖y‖²` is left out, and the maximum of each frame is subtracted from its
//! scores: sums over thousands of frames stay small along a good path, and f32 can distinguish paths.

use half::bf16;
use tandem_device::host::{self, Matrix, gemm_into};
use tandem_device::{DType, Grid, HostArgs, Kernel, Source, kernel_args};

use super::frames::{row_range, split_by_lengths, valid_frames};
use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{Lower, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::on_cuda;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::{TensorType, accumulator};
use crate::{for_real, named_for};

pub(super) static SOURCE: Source =
    Source { file: "engine/alignment.cu", text: concat!(include_str!("frames.cuh"), include_str!("alignment.cu")) };

/// Frames per block of the score kernel.
const FRAMES_PER_TILE: u32 = 32;

/// Inputs: prior, mel, then starts and lengths of the text's and the mel's rows.
#[derive(Debug)]
struct Align {
    text: Rows,
    mel: Rows,
}

impl Align {
    /// Tokens per frame of the score table: those of the longest row.
    fn stride(&self) -> u32 {
        self.text.longest()
    }

    /// Words with a bit for each token.
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

    /// Durations are integers: no gradient.
    fn gradient(&self, at: &mut Backward<'_>) -> Result<Vec<Option<Value>>, EngineError> {
        Ok(vec![None; at.inputs.len()])
    }

    /// The score table, and the bits for backtracking on a card.
    fn scratch(&self, inputs: &[TensorType], _: &[TensorType]) -> Vec<u64> {
        let (frames, acc) = (u64::from(self.mel.total()), accumulator(inputs[0].dtype));
        let (table, bits) = (u64::from(self.stride()) * acc.bytes(), u64::from(self.words()) * DType::U32.bytes());
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
        let [text_starts, text_lengths, mel_starts, mel_lengths] = [2, 3, 4, 5].map(|i| at.inputs[i]);
        let (columns, stride, words) = (prior.ty.shape.last(), self.stride(), self.words());

        let kernel = for_real!("align", dtype, T => &Kernels::<T>::SCORES);
        let args =
            ScoresArgs { table, prior, mel, text_starts, text_lengths, mel_starts, mel_lengths, columns, stride };
        let tiles = self.mel.longest().div_ceil(FRAMES_PER_TILE);
        at.launch(kernel, Grid { blocks: [tiles, self.mel.count(), 1], threads: 256, shared_bytes: 0 }, args);

        let kernel = for_real!("align", dtype, T => &Kernels::<T>::PATH);
        let args =
            PathArgs { durations, table, bits, text_starts, text_lengths, mel_starts, mel_lengths, stride, words };
        // A thread per token, in full warps.
        let threads = (32 * words).min(1024);
        at.launch(kernel, Grid { blocks: [self.mel.count(), 1, 1], threads, shared_bytes: 0 }, args);
        Ok(())
    }
}

kernel_args! {
    /// Arguments of `align_scores`.
    struct ScoresArgs<T: Real> {
        table: out T::Acc,
        prior: in T,
        mel: in T,
        text_starts: in u32,
        text_lengths: in i32,
        mel_starts: in u32,
        mel_lengths: in i32,
        columns: u32,
        stride: u32,
    }
}

kernel_args! {
    /// Arguments of `align_path`.
    struct PathArgs<A: Float> {
        durations: out i32,
        table: out A,
        bits: out u32,
        text_starts: in u32,
        text_lengths: in i32,
        mel_starts: in u32,
        mel_lengths: in i32,
        stride: u32,
        words: u32,
    }
}

struct Kernels<T>(std::marker::PhantomData<T>);

impl<T: Real<Acc: host::GemmFloat>> Kernels<T> {
    const SCORES: Kernel = Kernel {
        name: named_for!(T, "align_scores"),
        source: on_cuda::<T>(&SOURCE),
        params: ScoresArgs::params::<T>(),
        host: &scores::<T>,
    };

    const PATH: Kernel = Kernel {
        name: named_for!(T::Acc, "align_path"),
        source: on_cuda::<T>(&SOURCE),
        params: PathArgs::params::<T::Acc>(),
        host: &paths::<T::Acc>,
    };
}

pub(super) static KERNELS: &[&Kernel] =
    &[&Kernels::<f32>::SCORES, &Kernels::<bf16>::SCORES, &Kernels::<f32>::PATH, &Kernels::<bf16>::PATH];

/// One row of the batch: its tokens and frames, how many are valid, and how many there is room for.
struct RowPair {
    first_token: usize,
    tokens: usize,
    token_capacity: usize,
    first_frame: usize,
    frames: usize,
    frame_capacity: usize,
}

/// The rows of a batch, from the starts and lengths of its text and mel rows.
fn row_pairs(
    (text_starts, text_lengths): (&[u32], &[i32]),
    (mel_starts, mel_lengths): (&[u32], &[i32]),
) -> Vec<RowPair> {
    let row = |row: usize| {
        let (text, mel) = (row_range(text_starts, row), row_range(mel_starts, row));
        RowPair {
            first_token: text.start,
            tokens: valid_frames(text_starts, text_lengths, row),
            token_capacity: text.len(),
            first_frame: mel.start,
            frames: valid_frames(mel_starts, mel_lengths, row),
            frame_capacity: mel.len(),
        }
    };
    (0..text_lengths.len()).map(row).collect()
}

impl RowPair {
    /// Whether a path exists.
    fn has_path(&self) -> bool {
        self.tokens > 0 && self.frames >= self.tokens
    }
}

fn scores<T: Real<Acc: host::GemmFloat>>(args: &mut HostArgs<'_>) {
    let ScoresArgs { table, prior, mel, text_starts, text_lengths, mel_starts, mel_lengths, columns, stride } =
        ScoresArgs::host::<T>(args);
    let (columns, stride) = (columns as usize, stride as usize);
    let rows = row_pairs((text_starts, text_lengths), (mel_starts, mel_lengths));
    let tables = split_by_lengths(table, rows.iter().map(|row| row.frame_capacity * stride));
    args.workers().each_part(tables, |row, table| {
        let row = &rows[row];
        if row.has_path() {
            let load = |x: &[T], first: usize, count: usize| -> Vec<T::Acc> {
                x[first * columns..(first + count) * columns].iter().map(|x| x.load()).collect()
            };
            let tokens = load(prior, row.first_token, row.tokens);
            let frames = load(mel, row.first_frame, row.frames);
            score(&tokens, &frames, columns, &mut table[..row.tokens * row.frames]);
        }
    });
}

fn paths<A: Float>(args: &mut HostArgs<'_>) {
    let PathArgs { durations, table, text_starts, text_lengths, mel_starts, mel_lengths, stride, .. } =
        PathArgs::host::<A>(args);
    let rows = row_pairs((text_starts, text_lengths), (mel_starts, mel_lengths));
    let durations = split_by_lengths(durations, rows.iter().map(|row| row.token_capacity));
    let tables = split_by_lengths(table, rows.iter().map(|row| row.frame_capacity * stride as usize));
    args.workers().each_part(durations.into_iter().zip(tables).collect(), |row, (durations, table)| {
        let row = &rows[row];
        durations.fill(0);
        let durations = &mut durations[..row.tokens];
        if row.has_path() {
            let table = &mut table[..row.tokens * row.frames];
            best_paths(table, row.tokens);
            backtrack(table, durations);
        } else {
            spread_evenly(durations, row.frames);
        }
    });
}

/// Fewer frames than tokens: every token gets one frame or none, spread evenly.
fn spread_evenly(durations: &mut [i32], frames: usize) {
    let tokens = durations.len();
    for (token, duration) in durations.iter_mut().enumerate() {
        *duration = ((token + 1) * frames / tokens - token * frames / tokens) as i32;
    }
}

/// `table[frame][token] = y·mu - ½‖mu‖²`, minus the maximum of the frame.
fn score<A: Float + host::GemmFloat>(tokens: &[A], frames: &[A], columns: usize, table: &mut [A]) {
    let (num_tokens, num_frames) = (tokens.len() / columns, frames.len() / columns);
    let (y, mu) = (Matrix::rows(frames, columns), Matrix::transposed(tokens, columns));
    gemm_into([num_frames, num_tokens, columns], y, mu, (table, num_tokens), A::of(1.0), false);
    let norms: Vec<A> =
        tokens.chunks_exact(columns).map(|mu| A::of(0.5) * mu.iter().map(|&x| x * x).sum::<A>()).collect();
    for scores in table.chunks_exact_mut(num_tokens) {
        scores.iter_mut().zip(&norms).for_each(|(score, &norm)| *score = *score - norm);
        let best = scores.iter().fold(A::of(f64::NEG_INFINITY), |best, &score| Float::max(score, best));
        scores.iter_mut().for_each(|score| *score = *score - best);
    }
}

/// The forward pass of Viterbi: scores become those of the best path to each frame and token. At the first frame only the
/// first token is reachable.
fn best_paths<A: Float>(table: &mut [A], tokens: usize) {
    table[1..tokens].fill(A::of(f64::NEG_INFINITY));
    for frame in 1..table.len() / tokens {
        let (before, rest) = table.split_at_mut(frame * tokens);
        let (before, scores) = (&before[(frame - 1) * tokens..], &mut rest[..tokens]);
        scores[0] += before[0];
        for ((score, &stay), &step) in scores[1..].iter_mut().zip(&before[1..]).zip(before) {
            *score += stay.max(step);
        }
    }
}

/// Backtracking: counts the frames of each token, from the last frame to the first. A tie stays with the token. A NaN cannot
/// break the path: there are always at least as many frames left as tokens.
fn backtrack<A: Float>(table: &[A], durations: &mut [i32]) {
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
    /// Monotonic alignment search: the duration of each token in frames, I32 `[tokens]`, by the most likely monotonic path
    /// through `-½‖mel frame - prior of token‖²`. Every valid token gets at least one frame, and the durations of a row add
    /// up to its mel length; padding tokens get 0. If a row has fewer frames than tokens, its tokens get one frame or none,
    /// spread evenly; if it has no tokens, its frames belong to none.
    ///
    /// `prior` is `[tokens, columns]`, `mel` `[frames, columns]`, lengths are I32 `[rows]`. No gradient passes. Cost: a GEMM
    /// of `frames × tokens × columns` per row and a table of accumulators, all frames × the tokens of the longest row; rows
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

    /// Durations of one batch. `rows`: capacity for tokens and frames, and how many of each are valid.
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
        (check.integers(&[count], &filled(2)).integers(&[count], &filled(3)), text, frames)
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

    /// All ways to distribute `frames` over `tokens`, at least one each.
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
    fn the_path_is_the_best_of_all_paths() {
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
    fn rows_are_independent_and_padding_is_ignored() {
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
    fn every_precision_and_device_finds_the_path() {
        // Adjacent tokens have distant means, and no number is large.
        let mean = |token: usize| [0.0, 0.5].map(|turn| 9.0 * (2.5 * token as f64 + std::f64::consts::PI * turn).sin());
        let check = |durations: &[usize]| {
            let token_of = durations.iter().enumerate().flat_map(|(token, &n)| vec![token; n]);
            let prior: Vec<f64> = (0..durations.len()).flat_map(mean).collect();
            let mel: Vec<f64> =
                token_of.enumerate().flat_map(|(i, token)| mean(token).map(|x| x + 0.4 * (i as f64).sin())).collect();
            let (tokens, frames) = (durations.len() as u32, (mel.len() / 2) as u32);
            let rows = [[tokens, frames, tokens, frames]];
            let (check, text, frames) = batch(2, &rows, &prior, &mel);
            // bf16 and f32 are compared with f64, a simulated card and three threads with the CPU.
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
    fn with_non_finite_frames_every_token_still_gets_a_frame() {
        for bad in [f64::NAN, f64::INFINITY, 1e300] {
            let mut mel = waves(20 * 3, 0.9);
            mel[30..45].fill(bad);
            let found = align(3, &[[6, 20, 6, 20]], &waves(18, 1.7), &mel);
            assert!(found.iter().all(|&n| n >= 1) && found.iter().sum::<i32>() == 20, "{found:?}");
        }
    }

    #[test]
    fn wrong_operands_are_named() {
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
