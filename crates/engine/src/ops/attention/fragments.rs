//! The index maths of the tensor-core kernels, replayed: tiles in shared memory (`tiles.cuh`), what a load of matrices gives
//! each lane and what a GEMM takes from it (`warp.cuh`, as the PTX manual has them). A lane is a loop here.

use crate::random::normal_at;

/// Columns of a head, as SIZE in the sources.
#[derive(Clone, Copy)]
struct Layout(usize);

impl Layout {
    fn group(self) -> usize {
        if self.0.is_multiple_of(64) { 8 } else { 4 }
    }

    fn frame_bytes(self) -> usize {
        self.0 * 2
    }

    fn turn_of(self, frame: usize) -> usize {
        if self.group() == 8 { frame % 8 } else { frame / 2 % 4 }
    }

    fn spot(self, frame: usize, chunk: usize) -> usize {
        frame * self.frame_bytes() + (chunk ^ self.turn_of(frame)) * 16
    }

    fn lane_down(self, lane: usize) -> usize {
        self.spot(lane % 16, lane / 16)
    }

    fn lane_across(self, lane: usize) -> usize {
        self.spot(lane % 8 + lane / 16 * 8, lane / 8 % 2)
    }

    fn further(self, at: usize, step: usize) -> usize {
        (at ^ (2 * step % self.group() * 16)) + 2 * step / self.group() * self.group() * 16
    }

    /// A tile of `frames`, two bytes a number, as copies put it there.
    fn tile(self, frames: &[Vec<f32>]) -> Vec<f32> {
        let mut tile = vec![f32::NAN; frames.len() * self.0];
        for (frame, columns) in frames.iter().enumerate() {
            for (chunk, eight) in columns.chunks(8).enumerate() {
                tile[self.spot(frame, chunk) / 2..][..8].copy_from_slice(eight);
            }
        }
        tile
    }
}

type Registers = [[[f32; 2]; 4]; 32];

/// `ldmatrix.x4`: lanes 8i.. name the rows of matrix i. Says as well that no two rows of a matrix share a bank.
fn load(tile: &[f32], rows: impl Fn(usize) -> usize, turned: bool) -> Registers {
    for matrix in 0..4 {
        let banks: std::collections::BTreeSet<usize> = (0..8).map(|row| rows(8 * matrix + row) % 128).collect();
        assert_eq!(banks.len(), 8, "rows of a matrix share banks");
    }
    let element = |matrix: usize, row: usize, column: usize| tile[rows(8 * matrix + row) / 2 + column];
    std::array::from_fn(|lane| {
        let (g, t) = (lane / 4, lane % 4);
        std::array::from_fn(|matrix| {
            [0, 1].map(|e| if turned { element(matrix, 2 * t + e, g) } else { element(matrix, g, 2 * t + e) })
        })
    })
}

/// `mma.m16n8k16`: c += a·b, with `b` the registers from `first` on of each lane.
fn multiply_add(c: &mut [[f32; 4]; 32], a: &Registers, b: &Registers, first: usize) {
    let a_at = |row: usize, k: usize| a[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2][k % 2];
    let b_at = |k: usize, column: usize| b[column * 4 + k % 8 / 2][first + k / 8][k % 2];
    for (lane, c) in c.iter_mut().enumerate() {
        for (i, c) in c.iter_mut().enumerate() {
            let (row, column) = (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2);
            *c += (0..16).map(|k| a_at(row, k) * b_at(k, column)).sum::<f32>();
        }
    }
}

/// Where number `i` of lane `lane` of a result lies.
fn place(lane: usize, i: usize) -> (usize, usize) {
    (lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2)
}

fn frames(key: u64, count: usize, size: usize) -> Vec<Vec<f32>> {
    let number = |i: usize| (normal_at(key, i as u64) * 4.0).round() as f32;
    (0..count).map(|frame| (0..size).map(|column| number(frame * size + column)).collect()).collect()
}

/// Products of 16 frames with 16 frames, and mixtures of the latter with the GEMMs as weights. Whole numbers: exact.
fn check(size: usize) {
    let layout = Layout(size);
    let (left, right) = (frames(1, 32, size), frames(2, 32, size));
    let (left_tile, right_tile) = (layout.tile(&left), layout.tile(&right));
    let second = 16 * layout.frame_bytes();
    let mut gemms = [[[0.0; 4]; 32]; 2];
    for step in 0..size / 16 {
        let a = load(&left_tile, |lane| layout.further(layout.lane_down(lane), step) + second, false);
        let b = load(&right_tile, |lane| layout.further(layout.lane_across(lane), step) + second, false);
        multiply_add(&mut gemms[0], &a, &b, 0);
        multiply_add(&mut gemms[1], &a, &b, 2);
    }
    let gemm =
        |row: usize, key: usize| -> f32 { left[16 + row].iter().zip(&right[16 + key]).map(|(a, b)| a * b).sum() };
    for (n, lane, i) in (0..2 * 32 * 4).map(|at| (at / 128, at / 4 % 32, at % 4)) {
        let (row, column) = place(lane, i);
        assert_eq!(gemms[n][lane][i], gemm(row, n * 8 + column), "size {size}, lane {lane}");
    }
    let weights: Registers =
        std::array::from_fn(|lane| std::array::from_fn(|i| [0, 1].map(|e| gemms[i / 2][lane][i % 2 * 2 + e])));
    for step in 0..size / 16 {
        let b = load(&right_tile, |lane| layout.further(layout.lane_down(lane), step) + second, true);
        for half in 0..2 {
            let mut mixed = [[0.0; 4]; 32];
            multiply_add(&mut mixed, &weights, &b, 2 * half);
            for (lane, i) in (0..128).map(|at| (at / 4, at % 4)) {
                let (row, column) = place(lane, i);
                let expected: f32 =
                    (0..16).map(|key| gemm(row, key) * right[16 + key][step * 16 + half * 8 + column]).sum();
                assert_eq!(mixed[lane][i], expected, "size {size}, lane {lane}, columns {step}.{half}");
            }
        }
    }
}

#[test]
fn fragments_meet_what_gemms_and_mixtures_want_and_no_load_waits_for_a_bank() {
    [32, 64, 96, 128].into_iter().for_each(check);
}
