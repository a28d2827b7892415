//! Alignment: how many frames of a recording each of its tokens lasts, by the most likely monotonic path.
//!
//! A token's prior is the mean of a unit normal distribution over mel frames, so that a frame `y` of token `mu` scores
//! `-½‖y - mu‖²`. The best of all paths that begin at the first token and frame, end at the last ones and go to the next
//! token or stay with every frame is found by dynamic programming over `frames × tokens`, one row at a time.
//!
//! Only differences within a frame decide. So `-½‖y‖²` is left out, and each frame's scores are lowered until the best is
//! 0: sums over thousands of frames stay small where the path is good, and f32 tells paths apart.

use tandem_device::host::{self, Matrix, product_into};
use tandem_device::{DType, Element, Grid, Kernel, Param, TwinArgs};

use crate::error::EngineError;
use crate::graph::{Graph, Value};
use crate::lower::{Lower, StepArg, Tensor};
use crate::op::{Backward, Op, refuse};
use crate::ops::NOT_ON_CUDA;
use crate::real::{Float, Real};
use crate::rows::Rows;
use crate::tensor::{TensorType, accumulator};
use crate::{for_real, named_for};

/// Inputs: prior, mel, then starts and lengths of the text's and the mel's rows.
#[derive(Debug)]
struct Align {
    text: Rows,
    mel: Rows,
}

impl Align {
    /// Elements of the tables of all rows.
    fn table_elements(&self) -> u64 {
        let of_row = |row| u64::from(self.text.length(row)) * u64::from(self.mel.length(row));
        (0..self.text.count()).map(of_row).sum()
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

    fn scratch(&self, inputs: &[TensorType], _: &[TensorType]) -> Vec<u64> {
        vec![(self.table_elements() * accumulator(inputs[0].dtype).bytes()).max(1)]
    }

    fn lower(&self, at: &mut Lower<'_>) -> Result<(), EngineError> {
        let (prior, durations) = (at.inputs[0], at.outputs[0]);
        if self.text.total() == 0 {
            return Ok(());
        }
        if self.table_elements() == 0 {
            at.clear(durations);
            return Ok(());
        }
        let elements = self.table_elements() as u32;
        let table = Tensor { ty: TensorType::new(accumulator(prior.ty.dtype), &[elements]), ..at.scratch[0] };
        let kernel = for_real!("align", prior.ty.dtype, T => &AlignKernel::<T>::KERNEL);
        let mut args = vec![durations.write(), table.write()];
        args.extend(at.inputs.iter().map(Tensor::read));
        args.extend([StepArg::U32(self.text.count()), StepArg::U32(prior.ty.shape.last())]);
        let grid = Grid { blocks: [self.text.count(), 1, 1], threads: 256, shared_bytes: 0 };
        at.launch(kernel, grid, args);
        Ok(())
    }
}

struct AlignKernel<T>(std::marker::PhantomData<T>);

impl<T: Real<Wide: host::Float>> AlignKernel<T> {
    const KERNEL: Kernel = Kernel {
        name: named_for!(T, "align"),
        source: &NOT_ON_CUDA,
        params: &[
            Param::Out(DType::I32),
            Param::Out(<T::Wide as Element>::DTYPE),
            Param::In(T::DTYPE),
            Param::In(T::DTYPE),
            Param::In(DType::U32),
            Param::In(DType::I32),
            Param::In(DType::U32),
            Param::In(DType::I32),
            Param::U32,
            Param::U32,
        ],
        twin: &twin::<T>,
    };
}

/// One row of the batch: its durations, its table, and where its tokens and frames lie.
struct Row<'a, W> {
    durations: &'a mut [i32],
    table: &'a mut [W],
    first_token: usize,
    tokens: usize,
    first_frame: usize,
    frames: usize,
}

fn twin<T: Real<Wide: host::Float>>(args: &mut TwinArgs<'_>) {
    let (prior, mel, columns) = (args.read::<T>(2), args.read::<T>(3), args.u32(9) as usize);
    let (text_starts, text_lengths) = (args.read::<u32>(4), args.read::<i32>(5));
    let (mel_starts, mel_lengths) = (args.read::<u32>(6), args.read::<i32>(7));
    let workers = args.workers();
    let (mut durations, mut table) = (args.write::<i32>(0), args.write::<T::Wide>(1));
    let mut rows = Vec::with_capacity(text_lengths.len());
    for (text, mel) in text_starts.windows(2).zip(mel_starts.windows(2)) {
        let at = rows.len();
        let [room_for_tokens, room_for_frames] = [text, mel].map(|pair| (pair[1] - pair[0]) as usize);
        let row = Row {
            durations: durations.split_off_mut(..room_for_tokens).unwrap_or_default(),
            table: table.split_off_mut(..room_for_tokens * room_for_frames).unwrap_or_default(),
            first_token: text[0] as usize,
            tokens: (text_lengths[at].max(0) as usize).min(room_for_tokens),
            first_frame: mel[0] as usize,
            frames: (mel_lengths[at].max(0) as usize).min(room_for_frames),
        };
        rows.push(row);
    }
    workers.each_part(rows, |_, row| {
        row.durations.fill(0);
        if row.frames < row.tokens {
            spread_evenly(&mut row.durations[..row.tokens], row.frames);
        } else if row.tokens > 0 {
            let wide = |x: &[T], first: usize, count: usize| -> Vec<T::Wide> {
                x[first * columns..(first + count) * columns].iter().map(|x| x.load()).collect()
            };
            let tokens = wide(prior, row.first_token, row.tokens);
            let frames = wide(mel, row.first_frame, row.frames);
            let table = &mut row.table[..row.tokens * row.frames];
            score(&tokens, &frames, columns, table);
            best_paths(table, row.tokens);
            walk_back(table, &mut row.durations[..row.tokens]);
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
fn score<W: Float + host::Float>(tokens: &[W], frames: &[W], columns: usize, table: &mut [W]) {
    let (num_tokens, num_frames) = (tokens.len() / columns, frames.len() / columns);
    let (y, mu) = (Matrix::rows(frames, columns), Matrix::transposed(tokens, columns));
    product_into([num_frames, num_tokens, columns], y, mu, (table, num_tokens), W::of(1.0), false);
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
    /// product of `frames × tokens × columns` per row and a table of `frames × tokens` wide numbers; rows run in parallel.
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
        let durations = [3, 1, 4, 1, 5, 9, 2, 6];
        let token_of = durations.iter().enumerate().flat_map(|(token, &n)| vec![token; n]);
        let mean = |token: usize| [token as f64 * 3.0, -(token as f64)];
        let prior: Vec<f64> = (0..8).flat_map(mean).collect();
        let mel: Vec<f64> =
            token_of.enumerate().flat_map(|(i, token)| mean(token).map(|x| x + 0.4 * (i as f64).sin())).collect();
        let (check, text, frames) = batch(2, &[[8, 31, 8, 31]], &prior, &mel);
        // bf16 and f32 are held against f64, a simulated card and three threads against the CPU.
        check_gradients(check, |g, x| g.align(x[0], x[1], &text, x[2], &frames, x[3]));
        assert_eq!(align(2, &[[8, 31, 8, 31]], &prior, &mel), durations.map(|n| n as i32));
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
