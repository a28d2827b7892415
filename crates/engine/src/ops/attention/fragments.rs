//! The index arithmetic of the tensor-core kernels, on the host: swizzled tiles in shared memory (`tiles.cuh`), and the
//! fragments that `ldmatrix` gives each lane and `mma` takes from it (`warp.cuh`, as the PTX ISA defines them). A loop stands
//! for the lanes of a warp.

use crate::random::normal_at;

/// Columns of a head: HEAD_DIM in the sources.
#[derive(Clone, Copy)]
struct Layout(usize);

impl Layout {
    fn swizzle_chunks(self) -> usize {
        if self.0.is_multiple_of(64) { 8 } else { 4 }
    }

    fn frame_bytes(self) -> usize {
        self.0 * 2
    }

    fn swizzle(self, frame: usize) -> usize {
        if self.swizzle_chunks() == 8 { frame % 8 } else { frame / 2 % 4 }
    }

    fn chunk_offset(self, frame: usize, chunk: usize) -> usize {
        frame * self.frame_bytes() + (chunk ^ self.swizzle(frame)) * 16
    }

    fn lane_offset_a(self, lane: usize) -> usize {
        self.chunk_offset(lane % 16, lane / 16)
    }

    fn lane_offset_b(self, lane: usize) -> usize {
        self.chunk_offset(lane % 8 + lane / 16 * 8, lane / 8 % 2)
    }

    fn advance_columns(self, at: usize, step: usize) -> usize {
        (at ^ (2 * step % self.swizzle_chunks() * 16)) + 2 * step / self.swizzle_chunks() * self.swizzle_chunks() * 16
    }

    /// A tile of `frames` as the kernels copy it to shared memory, two bytes per element.
    fn tile(self, frames: &[Vec<f32>]) -> Vec<f32> {
        let mut tile = vec![f32::NAN; frames.len() * self.0];
        for (frame, columns) in frames.iter().enumerate() {
            for (chunk, eight) in columns.chunks(8).enumerate() {
                tile[self.chunk_offset(frame, chunk) / 2..][..8].copy_from_slice(eight);
            }
        }
        tile
    }
}

type Registers = [[[f32; 2]; 4]; 32];

/// `ldmatrix.x4`: lanes 8i.. address the rows of matrix i. Asserts that the rows of a matrix have no bank conflict.
fn ldmatrix_x4(tile: &[f32], rows: impl Fn(usize) -> usize, transposed: bool) -> Registers {
    for matrix in 0..4 {
        let banks: std::collections::BTreeSet<usize> = (0..8).map(|row| rows(8 * matrix + row) % 128).collect();
        assert_eq!(banks.len(), 8, "bank conflict between rows of a matrix");
    }
    let element = |matrix: usize, row: usize, column: usize| tile[rows(8 * matrix + row) / 2 + column];
    std::array::from_fn(|lane| {
        let (g, t) = (lane / 4, lane % 4);
        std::array::from_fn(|matrix| {
            [0, 1].map(|e| if transposed { element(matrix, 2 * t + e, g) } else { element(matrix, g, 2 * t + e) })
        })
    })
}

/// `mma.m16n8k16`: c += a·b, with `b` the registers from `first` on of each lane.
fn mma_m16n8k16(c: &mut [[f32; 4]; 32], a: &Registers, b: &Registers, first: usize) {
    let a_at = |row: usize, k: usize| a[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2][k % 2];
    let b_at = |k: usize, column: usize| b[column * 4 + k % 8 / 2][first + k / 8][k % 2];
    for (lane, c) in c.iter_mut().enumerate() {
        for (i, c) in c.iter_mut().enumerate() {
            let (row, column) = (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
            *c += (0..16).map(|k| a_at(row, k) * b_at(k, column)).sum::<f32>();
        }
    }
}

/// The row and column of accumulator `i` of lane `lane`.
fn accumulator_index(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2)
}

fn frames(key: u64, count: usize, head_dim: usize) -> Vec<Vec<f32>> {
    let number = |i: usize| (normal_at(key, i as u64) * 4.0).round() as f32;
    (0..count).map(|frame| (0..head_dim).map(|column| number(frame * head_dim + column)).collect()).collect()
}

/// The scores of 16 queries and 16 keys, and the GEMM of the scores with the keys. Integers, so exact.
fn check(head_dim: usize) {
    let layout = Layout(head_dim);
    let (queries, keys) = (frames(1, 32, head_dim), frames(2, 32, head_dim));
    let (q_tile, k_tile) = (layout.tile(&queries), layout.tile(&keys));
    let second = 16 * layout.frame_bytes();
    let mut scores = [[[0.0; 4]; 32]; 2];
    for step in 0..head_dim / 16 {
        let a = ldmatrix_x4(&q_tile, |lane| layout.advance_columns(layout.lane_offset_a(lane), step) + second, false);
        let b = ldmatrix_x4(&k_tile, |lane| layout.advance_columns(layout.lane_offset_b(lane), step) + second, false);
        mma_m16n8k16(&mut scores[0], &a, &b, 0);
        mma_m16n8k16(&mut scores[1], &a, &b, 2);
    }
    let score =
        |row: usize, key: usize| -> f32 { queries[16 + row].iter().zip(&keys[16 + key]).map(|(a, b)| a * b).sum() };
    for (n, lane, i) in (0..2 * 32 * 4).map(|at| (at / 128, at / 4 % 32, at % 4)) {
        let (row, column) = accumulator_index(lane, i);
        assert_eq!(scores[n][lane][i], score(row, n * 8 + column), "head_dim {head_dim}, lane {lane}");
    }
    let p: Registers =
        std::array::from_fn(|lane| std::array::from_fn(|i| [0, 1].map(|e| scores[i / 2][lane][i % 2 * 2 + e])));
    for step in 0..head_dim / 16 {
        let b = ldmatrix_x4(&k_tile, |lane| layout.advance_columns(layout.lane_offset_a(lane), step) + second, true);
        for half in 0..2 {
            let mut acc = [[0.0; 4]; 32];
            mma_m16n8k16(&mut acc, &p, &b, 2 * half);
            for (lane, i) in (0..128).map(|at| (at / 4, at % 4)) {
                let (row, column) = accumulator_index(lane, i);
                let expected: f32 =
                    (0..16).map(|key| score(row, key) * keys[16 + key][step * 16 + half * 8 + column]).sum();
                assert_eq!(acc[lane][i], expected, "head_dim {head_dim}, lane {lane}, columns {step}.{half}");
            }
        }
    }
}

#[test]
fn fragments_are_what_both_gemms_take_and_no_load_has_a_bank_conflict() {
    [32, 64, 96, 128].into_iter().for_each(check);
}
