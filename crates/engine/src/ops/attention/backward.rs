//! The backward host kernels. A piece of the gradient is one row, all heads of it, because every query adds to every key.

use tandem_device::host::{self, Matrix, gemm_into};
use tandem_device::{Element, HostArgs};

use super::{Heads, QUERIES_OF_A_TILE, widened};
use crate::ops::frames::{cut, filled};
use crate::ops::norm::dot;
use crate::real::{Float, Real};

/// Numbers whose GEMMs one thread sums: about 10 µs of work.
const NUMBERS_OF_A_PIECE: usize = 32 * 1024;

/// What the forward pass left of the valid frames of one row, and the gradient of its result.
struct Row<'a, F> {
    qkv: &'a [F],
    sums: &'a [F],
    levels: &'a [F],
    gradient: &'a [F],
    valid: usize,
}

/// Scores of one tile, and their gradients.
struct Tile<F> {
    weights: Vec<F>,
    slopes: Vec<F>,
}

/// Products of each head's mixture with its gradient. Those of padding mean nothing, and are not read.
pub(super) fn levels<T: Real>(args: &mut HostArgs<'_>) {
    let (size, mixtures, gradient) = (args.u32(1) as usize, args.read::<T>(2), args.read::<T>(3));
    let of_a_piece = (NUMBERS_OF_A_PIECE / size).max(1);
    let workers = args.workers();
    workers.each_chunk(args.write::<T::Acc>(4), of_a_piece, |piece, out| {
        let part = piece * of_a_piece * size..(piece * of_a_piece + out.len()) * size;
        let (of_mixtures, of_gradient) = (&mut Vec::new(), &mut Vec::new());
        let mixtures = widened(&mixtures[part.clone()], of_mixtures).chunks_exact(size);
        let gradient = widened(&gradient[part], of_gradient).chunks_exact(size);
        out.iter_mut().zip(mixtures.zip(gradient)).for_each(|(out, (mixture, gradient))| *out = dot(mixture, gradient));
    });
}

pub(super) fn host<T: Real<Acc: host::GemmFloat>>(args: &mut HostArgs<'_>) {
    let (batch, heads) = (args.u32(0) as usize, Heads::of(args));
    let (columns, width) = (heads.columns(), heads.width());
    let (starts, lengths) = (&args.read::<u32>(5)[..=batch], args.read::<i32>(6));
    let (qkv, gradient) = (args.read::<T>(4), args.read::<T>(9));
    let (sums, levels) = (args.read::<T::Acc>(7), args.read::<T::Acc>(8));
    let workers = args.workers();
    let out = cut(args.write::<T>(10), starts.windows(2).map(|ends| (ends[1] - ends[0]) as usize * columns));
    workers.each_part(out, |row, out| {
        let (first, valid) = (starts[row] as usize, filled(lengths[row], out.len() / columns));
        out.fill(T::store(T::Acc::zero()));
        let (of_qkv, of_gradient) = (&mut Vec::new(), &mut Vec::new());
        let row = Row {
            qkv: widened(&qkv[first * columns..][..valid * columns], of_qkv),
            sums: &sums[first * heads.count..][..valid * heads.count],
            levels: &levels[first * heads.count..][..valid * heads.count],
            gradient: widened(&gradient[first * width..][..valid * width], of_gradient),
            valid,
        };
        in_wide(&mut out[..valid * columns], |out| row.gradient_into(heads, out));
    });
}

/// Lets `work` write zeros and sums in the wide type, and stores them.
fn in_wide<T: Real>(out: &mut [T], work: impl FnOnce(&mut [T::Acc])) {
    if T::DTYPE == <T::Acc as Element>::DTYPE {
        return work(bytemuck::cast_slice_mut(out));
    }
    let mut wide = vec![T::Acc::zero(); out.len()];
    work(&mut wide);
    out.iter_mut().zip(&wide).for_each(|(out, &wide)| *out = T::store(wide));
}

impl<F: Float + host::GemmFloat> Row<'_, F> {
    /// The gradient of queries, keys and values, added to `out`, which is zero.
    fn gradient_into(&self, heads: Heads, out: &mut [F]) {
        let most = (QUERIES_OF_A_TILE as usize).min(self.valid);
        let room = || vec![F::zero(); most * self.valid];
        let mut tile = Tile { weights: room(), slopes: room() };
        for head in 0..heads.count {
            for first in (0..self.valid).step_by(QUERIES_OF_A_TILE as usize) {
                self.add_tile(heads, head, first, &mut tile, out);
            }
        }
    }

    /// What the queries from `first` on add for one head.
    fn add_tile(&self, heads: Heads, head: usize, first: usize, tile: &mut Tile<F>, out: &mut [F]) {
        let (columns, width, size) = (heads.columns(), heads.width(), heads.size);
        let queries = (self.valid - first).min(QUERIES_OF_A_TILE as usize);
        let keys = heads.keys_before(first + queries, self.valid);
        let (weights, slopes) = (&mut tile.weights[..queries * keys], &mut tile.slopes[..queries * keys]);
        let (at, scale, one) = (head * size, heads.scale(), F::of(1.0));
        let (q, k, v) = (&self.qkv[first * columns + at..], &self.qkv[width + at..], &self.qkv[2 * width + at..]);
        let gradient = Matrix::rows(&self.gradient[first * width + at..], width);
        let wide = [queries, keys, size];
        gemm_into(wide, Matrix::rows(q, columns), Matrix::transposed(k, columns), (weights, keys), scale, false);
        gemm_into(wide, gradient, Matrix::transposed(v, columns), (slopes, keys), one, false);
        for (i, (weights, slopes)) in weights.chunks_exact_mut(keys).zip(slopes.chunks_exact_mut(keys)).enumerate() {
            self.finish_query(heads, (head, first + i), weights, slopes);
        }
        let turned = Matrix::transposed(weights, keys);
        gemm_into([keys, size, queries], turned, gradient, (&mut out[2 * width + at..], columns), one, true);
        let of_queries = (&mut out[first * columns + at..], columns);
        gemm_into(
            [queries, size, keys],
            Matrix::rows(slopes, keys),
            Matrix::rows(k, columns),
            of_queries,
            scale,
            false,
        );
        let (turned, of_keys) = (Matrix::transposed(slopes, keys), (&mut out[width + at..], columns));
        gemm_into([keys, size, queries], turned, Matrix::rows(q, columns), of_keys, scale, true);
    }

    /// From scores to weights, and from the gradients of weights to those of scores, for one query.
    fn finish_query(&self, heads: Heads, (head, query): (usize, usize), weights: &mut [F], slopes: &mut [F]) {
        let seen = heads.keys_before(query + 1, weights.len());
        let (sum, level) = (self.sums[query * heads.count + head], self.levels[query * heads.count + head]);
        weights[seen..].fill(F::zero());
        slopes[seen..].fill(F::zero());
        for (weight, slope) in weights[..seen].iter_mut().zip(&mut slopes[..seen]) {
            *weight = (*weight - sum).exp();
            *slope = (*weight * (*slope - level)).flushed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They are what two GEMMs read, each of them once per channel.
    #[test]
    fn weights_and_slopes_of_far_keys_are_no_subnormals() {
        let heads = Heads { count: 1, size: 4, causal: false };
        let row = Row { qkv: &[], sums: &[0.0_f32], levels: &[0.0], gradient: &[], valid: 1 };
        let mut weights: Vec<f32> = (0..400).map(|i| -0.3 * i as f32).collect();
        let mut slopes = vec![1e-6; 400];
        row.finish_query(heads, (0, 0), &mut weights, &mut slopes);
        assert!(weights.iter().chain(&slopes).all(|x| !x.is_subnormal()));
        assert!(slopes.iter().any(|&x| x > 0.0 && x < 1e-37), "the smallest that are normal are kept");
    }
}
