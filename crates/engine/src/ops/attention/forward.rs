//! The forward host kernel. A unit of work is a tile of queries of one row, with all its heads.

use tandem_device::HostArgs;
use tandem_device::host::{self, Matrix, gemm_into};

use super::kernels::AttentionArgs;
use super::{Heads, QUERIES_PER_TILE, to_acc};
use crate::ops::frames::{RowTile, clamp_length, row_tiles, split_by_lengths};
use crate::ops::softmax::exponentials;
use crate::real::{Float, Real};

pub(super) fn host<T: Real<Acc: host::GemmFloat>>(args: &mut HostArgs<'_>) {
    let AttentionArgs { batch, heads, head_dim, causal, qkv, starts, lengths, out, lse } =
        AttentionArgs::host::<T>(args);
    let heads = Heads::new(heads, head_dim, causal);
    let tiles = row_tiles(&starts[..=batch as usize], QUERIES_PER_TILE);
    let out = split_by_lengths(out, tiles.iter().map(|tile| tile.count * heads.width()));
    let lse = split_by_lengths(lse, tiles.iter().map(|tile| tile.count * heads.count));
    args.workers().each_part(out.into_iter().zip(lse).collect(), |i, (out, lse)| {
        let tile: RowTile = tiles[i];
        let valid = clamp_length(lengths[tile.row], tile.row_frames);
        let queries = valid.saturating_sub(tile.first).min(tile.count);
        let (out, padding) = out.split_at_mut(queries * heads.width());
        padding.fill(T::store(T::Acc::zero()));
        let (lse, padding) = lse.split_at_mut(queries * heads.count);
        padding.fill(T::Acc::zero());
        if queries > 0 {
            let row = &qkv[tile.row_start * heads.columns()..][..valid * heads.columns()];
            attend(row, heads, tile.first, out, lse);
        }
    });
}

/// All heads of the queries from `first` on, as many as `lse` has entries for. `qkv` has the valid frames of the row.
fn attend<T: Real<Acc: host::GemmFloat>>(qkv: &[T], heads: Heads, first: usize, out: &mut [T], lse: &mut [T::Acc]) {
    let (columns, width, head_dim) = (heads.columns(), heads.width(), heads.head_dim);
    let (valid, queries) = (qkv.len() / columns, lse.len() / heads.count);
    let keys = heads.visible_keys(first + queries, valid);
    let (zero, one) = (T::Acc::zero(), T::Acc::of(1.0));
    let mut buffer = Vec::new();
    let qkv = to_acc(qkv, &mut buffer);
    let (mut scores, mut acc_o) = (vec![zero; queries * keys], vec![zero; queries * head_dim]);
    let mut inverse_sums = vec![zero; queries];
    for head in 0..heads.count {
        let q = Matrix::rows(&qkv[first * columns + head * head_dim..], columns);
        let k = Matrix::transposed(&qkv[width + head * head_dim..], columns);
        let v = Matrix::rows(&qkv[2 * width + head * head_dim..], columns);
        gemm_into([queries, keys, head_dim], q, k, (&mut scores, keys), heads.softmax_scale(), false);
        for (i, scores) in scores.chunks_exact_mut(keys).enumerate() {
            let (visible, masked) = scores.split_at_mut(heads.visible_keys(first + i + 1, keys));
            masked.fill(zero);
            let (row_max, row_sum) = exponentials(visible);
            lse[i * heads.count + head] = row_max + row_sum.ln();
            inverse_sums[i] = one / row_sum;
        }
        gemm_into([queries, head_dim, keys], Matrix::rows(&scores, keys), v, (&mut acc_o, head_dim), one, false);
        for (i, (acc_o, &inverse_sum)) in acc_o.chunks_exact(head_dim).zip(&inverse_sums).enumerate() {
            let out = &mut out[i * width + head * head_dim..][..head_dim];
            out.iter_mut().zip(acc_o).for_each(|(out, &acc_o)| *out = T::store(acc_o * inverse_sum));
        }
    }
}
