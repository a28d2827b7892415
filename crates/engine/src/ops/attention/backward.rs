//! The backward host kernels. A unit of work is one row with all its heads, because every query adds to every key.

use tandem_device::host::{self, Matrix, gemm_into};
use tandem_device::{Element, HostArgs};

use super::kernels::{AttentionDeltaArgs, AttentionGradientArgs};
use super::{Heads, QUERIES_PER_TILE, to_acc};
use crate::ops::frames::{clamp_length, split_by_lengths};
use crate::ops::norm::dot;
use crate::real::{Float, Real};

/// Elements of O per unit of work of [`delta`]: about 10 µs.
const DELTA_CHUNK: usize = 32 * 1024;

/// The valid frames of one row: saved tensors of the forward pass, `delta` and `dout`.
struct Row<'a, F> {
    qkv: &'a [F],
    lse: &'a [F],
    delta: &'a [F],
    dout: &'a [F],
    valid: usize,
}

/// The probabilities of one tile, and the gradients of its scores.
struct Tile<F> {
    p: Vec<F>,
    ds: Vec<F>,
}

/// delta = rowsum(dO * O) of each head. The values of padding are meaningless and never read.
pub(super) fn delta<T: Real>(args: &mut HostArgs<'_>) {
    let AttentionDeltaArgs { head_dim, out, dout, delta, .. } = AttentionDeltaArgs::host::<T>(args);
    let head_dim = head_dim as usize;
    let rows_per_chunk = (DELTA_CHUNK / head_dim).max(1);
    args.workers().each_chunk(delta, rows_per_chunk, |chunk, delta| {
        let first = chunk * rows_per_chunk;
        let elements = first * head_dim..(first + delta.len()) * head_dim;
        let (out_buffer, dout_buffer) = (&mut Vec::new(), &mut Vec::new());
        let out = to_acc(&out[elements.clone()], out_buffer).chunks_exact(head_dim);
        let dout = to_acc(&dout[elements], dout_buffer).chunks_exact(head_dim);
        delta.iter_mut().zip(out.zip(dout)).for_each(|(delta, (out, dout))| *delta = dot(out, dout));
    });
}

pub(super) fn host<T: Real<Acc: host::GemmFloat>>(args: &mut HostArgs<'_>) {
    let AttentionGradientArgs { batch, heads, head_dim, causal, qkv, starts, lengths, lse, delta, dout, dqkv } =
        AttentionGradientArgs::host::<T>(args);
    let (starts, heads) = (&starts[..=batch as usize], Heads::new(heads, head_dim, causal));
    let (columns, width) = (heads.columns(), heads.width());
    let dqkv = split_by_lengths(dqkv, starts.windows(2).map(|ends| (ends[1] - ends[0]) as usize * columns));
    args.workers().each_part(dqkv, |row, dqkv| {
        let (first, valid) = (starts[row] as usize, clamp_length(lengths[row], dqkv.len() / columns));
        dqkv.fill(T::store(T::Acc::zero()));
        let (qkv_buffer, dout_buffer) = (&mut Vec::new(), &mut Vec::new());
        let row = Row {
            qkv: to_acc(&qkv[first * columns..][..valid * columns], qkv_buffer),
            lse: &lse[first * heads.count..][..valid * heads.count],
            delta: &delta[first * heads.count..][..valid * heads.count],
            dout: to_acc(&dout[first * width..][..valid * width], dout_buffer),
            valid,
        };
        accumulate_in_acc(&mut dqkv[..valid * columns], |dqkv| row.gradient_into(heads, dqkv));
    });
}

/// Calls `work` with zeros in the accumulator type to add to, and stores the sums in `out`.
fn accumulate_in_acc<T: Real>(out: &mut [T], work: impl FnOnce(&mut [T::Acc])) {
    if T::DTYPE == <T::Acc as Element>::DTYPE {
        return work(bytemuck::cast_slice_mut(out));
    }
    let mut acc = vec![T::Acc::zero(); out.len()];
    work(&mut acc);
    out.iter_mut().zip(&acc).for_each(|(out, &acc)| *out = T::store(acc));
}

impl<F: Float + host::GemmFloat> Row<'_, F> {
    /// Adds dQ, dK and dV to `out`, which is zero.
    fn gradient_into(&self, heads: Heads, out: &mut [F]) {
        let most = (QUERIES_PER_TILE as usize).min(self.valid);
        let zeros = || vec![F::zero(); most * self.valid];
        let mut tile = Tile { p: zeros(), ds: zeros() };
        for head in 0..heads.count {
            for first in (0..self.valid).step_by(QUERIES_PER_TILE as usize) {
                self.add_tile(heads, head, first, &mut tile, out);
            }
        }
    }

    /// Adds the gradients of one head that come from the tile of queries from `first` on.
    fn add_tile(&self, heads: Heads, head: usize, first: usize, tile: &mut Tile<F>, out: &mut [F]) {
        let (columns, width, head_dim) = (heads.columns(), heads.width(), heads.head_dim);
        let queries = (self.valid - first).min(QUERIES_PER_TILE as usize);
        let keys = heads.visible_keys(first + queries, self.valid);
        let (p, ds) = (&mut tile.p[..queries * keys], &mut tile.ds[..queries * keys]);
        let (at, softmax_scale, one) = (head * head_dim, heads.softmax_scale(), F::of(1.0));
        let (q, k, v) = (&self.qkv[first * columns + at..], &self.qkv[width + at..], &self.qkv[2 * width + at..]);
        let dout = Matrix::rows(&self.dout[first * width + at..], width);
        let dims = [queries, keys, head_dim];
        gemm_into(dims, Matrix::rows(q, columns), Matrix::transposed(k, columns), (p, keys), softmax_scale, false);
        gemm_into(dims, dout, Matrix::transposed(v, columns), (ds, keys), one, false);
        for (i, (p, ds)) in p.chunks_exact_mut(keys).zip(ds.chunks_exact_mut(keys)).enumerate() {
            self.softmax_backward(heads, head, first + i, p, ds);
        }
        let dv = (&mut out[2 * width + at..], columns);
        gemm_into([keys, head_dim, queries], Matrix::transposed(p, keys), dout, dv, one, true);
        let dq = (&mut out[first * columns + at..], columns);
        let (ds_rows, k_rows) = (Matrix::rows(ds, keys), Matrix::rows(k, columns));
        gemm_into([queries, head_dim, keys], ds_rows, k_rows, dq, softmax_scale, false);
        let dk = (&mut out[width + at..], columns);
        let ds_transposed = Matrix::transposed(ds, keys);
        gemm_into([keys, head_dim, queries], ds_transposed, Matrix::rows(q, columns), dk, softmax_scale, true);
    }

    /// Scores to probabilities P, and dP to dS = P * (dP - delta), for one query.
    fn softmax_backward(&self, heads: Heads, head: usize, query: usize, p: &mut [F], ds: &mut [F]) {
        let visible = heads.visible_keys(query + 1, p.len());
        let (lse, delta) = (self.lse[query * heads.count + head], self.delta[query * heads.count + head]);
        p[visible..].fill(F::zero());
        ds[visible..].fill(F::zero());
        for (p, ds) in p[..visible].iter_mut().zip(&mut ds[..visible]) {
            *p = (*p - lse).exp();
            *ds = (*p * (*ds - delta)).flushed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two GEMMs read them, each element once per channel.
    #[test]
    fn probabilities_and_score_gradients_of_distant_keys_are_not_subnormal() {
        let heads = Heads { count: 1, head_dim: 4, causal: false };
        let row = Row { qkv: &[], lse: &[0.0_f32], delta: &[0.0], dout: &[], valid: 1 };
        let mut p: Vec<f32> = (0..400).map(|i| -0.3 * i as f32).collect();
        let mut ds = vec![1e-6; 400];
        row.softmax_backward(heads, 0, 0, &mut p, &mut ds);
        assert!(p.iter().chain(&ds).all(|x| !x.is_subnormal()));
        assert!(ds.iter().any(|&x| x > 0.0 && x < 1e-37), "the smallest normal numbers are not flushed");
    }
}
