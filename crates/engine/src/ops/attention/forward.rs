//! The forward host kernel: a piece is a tile of queries of one row, all heads of it.

use tandem_device::HostArgs;
use tandem_device::host::{self, Matrix, gemm_into};

use super::{Heads, QUERIES_OF_A_TILE, widened};
use crate::ops::frames::{Stretch, cut, filled, stretches};
use crate::ops::softmax::exponentials;
use crate::real::{Float, Real};

pub(super) fn host<T: Real<Acc: host::GemmFloat>>(args: &mut HostArgs<'_>) {
    let (batch, heads) = (args.u32(0) as usize, Heads::of(args));
    let (qkv, lengths) = (args.read::<T>(4), args.read::<i32>(6));
    let tiles = stretches(&args.read::<u32>(5)[..=batch], QUERIES_OF_A_TILE);
    let workers = args.workers();
    let out = cut(args.write::<T>(7), tiles.iter().map(|tile| tile.count * heads.width()));
    let sums = cut(args.write::<T::Acc>(8), tiles.iter().map(|tile| tile.count * heads.count));
    workers.each_part(out.into_iter().zip(sums).collect(), |i, (out, sums)| {
        let tile: Stretch = tiles[i];
        let valid = filled(lengths[tile.row], tile.row_frames);
        let queries = valid.saturating_sub(tile.first).min(tile.count);
        let (out, padding) = out.split_at_mut(queries * heads.width());
        padding.fill(T::store(T::Acc::zero()));
        let (sums, padding) = sums.split_at_mut(queries * heads.count);
        padding.fill(T::Acc::zero());
        if queries > 0 {
            let row = &qkv[tile.row_start * heads.columns()..][..valid * heads.columns()];
            attend(row, heads, tile.first, out, sums);
        }
    });
}

/// All heads of the queries from `first` on that `sums` has room for. `qkv` holds the valid frames of the row.
fn attend<T: Real<Acc: host::GemmFloat>>(qkv: &[T], heads: Heads, first: usize, out: &mut [T], sums: &mut [T::Acc]) {
    let (columns, width, size) = (heads.columns(), heads.width(), heads.size);
    let (valid, queries) = (qkv.len() / columns, sums.len() / heads.count);
    let keys = heads.keys_before(first + queries, valid);
    let (zero, one) = (T::Acc::zero(), T::Acc::of(1.0));
    let mut buffer = Vec::new();
    let qkv = widened(qkv, &mut buffer);
    let (mut scores, mut mixed) = (vec![zero; queries * keys], vec![zero; queries * size]);
    let mut shares = vec![zero; queries];
    for head in 0..heads.count {
        let q = Matrix::rows(&qkv[first * columns + head * size..], columns);
        let k = Matrix::transposed(&qkv[width + head * size..], columns);
        let v = Matrix::rows(&qkv[2 * width + head * size..], columns);
        gemm_into([queries, keys, size], q, k, (&mut scores, keys), heads.scale(), false);
        for (i, scores) in scores.chunks_exact_mut(keys).enumerate() {
            let (seen, unseen) = scores.split_at_mut(heads.keys_before(first + i + 1, keys));
            unseen.fill(zero);
            let (highest, sum) = exponentials(seen);
            sums[i * heads.count + head] = highest + sum.ln();
            shares[i] = one / sum;
        }
        gemm_into([queries, size, keys], Matrix::rows(&scores, keys), v, (&mut mixed, size), one, false);
        for (i, (mixed, &share)) in mixed.chunks_exact(size).zip(&shares).enumerate() {
            let out = &mut out[i * width + head * size..][..size];
            out.iter_mut().zip(mixed).for_each(|(out, &mixed)| *out = T::store(mixed * share));
        }
    }
}
