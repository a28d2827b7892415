use tandem_device::DType;

use super::*;
use crate::random::normal_at;
use crate::testing::{GradientCheck, check_gradients, run};

#[test]
fn gradients() {
    let check = |row_lengths: &[u32], lengths: &[i32], heads: u32, head_dim: u32| {
        let rows = Rows::new(row_lengths);
        for causal in [false, true] {
            let check =
                GradientCheck::new().input(&[rows.total(), 3 * heads * head_dim]).integers(&[rows.count()], lengths);
            check_gradients(check, |g, x| g.attention(x[0], heads, causal, &rows, x[1]));
        }
    };
    check(&[5, 0, 7, 3], &[4, 0, 7, 0], 2, 3);
    check(&[1], &[1], 1, 1);
    check(&[67, 130, 2], &[65, 130, 9], 1, 4);
}

/// The head sizes of the tensor-core kernels, with rows of several full and partial tiles. This test is for the CUDA kernels;
/// the host kernels do not depend on the head head_dim.
#[test]
fn gradients_of_the_head_sizes_with_dedicated_kernels() {
    for (heads, head_dim) in [(2, 32), (2, 64), (1, 96), (1, 128), (1, 136)] {
        let (rows, lengths) = (Rows::new(&[150, 0, 3, 64]), [131, 0, -1, 70]);
        for causal in [false, true] {
            let check =
                GradientCheck::new().input(&[rows.total(), 3 * heads * head_dim]).integers(&[rows.count()], &lengths);
            check_gradients(check, |g, x| g.attention(x[0], heads, causal, &rows, x[1]));
        }
    }
}

/// Attention by its definition, element by element.
fn reference(qkv: &[f64], heads: usize, causal: bool, rows: &Rows, lengths: &[i32]) -> Vec<f64> {
    let columns = qkv.len() / rows.total() as usize;
    let (width, head_dim) = (columns / 3, columns / 3 / heads);
    let mut out = vec![0.0; rows.total() as usize * width];
    for (row, &length) in lengths.iter().enumerate() {
        let (start, length) = (rows.starts()[row] as usize, length as usize);
        let at = |part: usize, t: usize, head: usize, i: usize| {
            qkv[(start + t) * columns + part * width + head * head_dim + i]
        };
        for (head, t) in (0..heads).flat_map(|head| (0..length).map(move |t| (head, t))) {
            let keys = if causal { t + 1 } else { length };
            let score = |s: usize| (0..head_dim).map(|i| at(0, t, head, i) * at(1, s, head, i)).sum::<f64>();
            let weights: Vec<f64> = (0..keys).map(|s| (score(s) / (head_dim as f64).sqrt()).exp()).collect();
            let total: f64 = weights.iter().sum();
            for i in 0..head_dim {
                let value: f64 = (0..keys).map(|s| weights[s] * at(2, s, head, i)).sum();
                out[(start + t) * width + head * head_dim + i] = value / total;
            }
        }
    }
    out
}

#[test]
fn values_match_the_definition_and_padding_is_zero_and_masked() {
    let (rows, lengths) = (Rows::new(&[70, 0, 5, 4]), [66, 0, 5, 0]);
    let (heads, columns) = (3, 3 * 3 * 5);
    let qkv: Vec<f64> = (0..79 * columns).map(|i| normal_at(5, i)).collect();
    for causal in [false, true] {
        let value = |qkv: &[f64]| {
            let check = GradientCheck::new().given(&[79, columns as u32], qkv).integers(&[4], &lengths);
            run(check, |g, x| g.attention(x[0], heads, causal, &rows, x[1]))
        };
        let found = value(&qkv);
        let expected = reference(&qkv, heads as usize, causal, &rows, &lengths);
        assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-12), "causal {causal}");
        let mut other = qkv.clone();
        let columns = columns as usize;
        other[66 * columns..70 * columns].fill(1e9);
        other[75 * columns..].fill(-1e9);
        assert_eq!(value(&other), found, "padding was not masked");
    }
}

#[test]
fn large_score_differences_do_not_overflow() {
    // Two keys, one 1000 above the other: all weight on it.
    let qkv = [100.0, 10.0, 1.0, 100.0, -10.0, 2.0];
    let check = GradientCheck::new().given(&[2, 3], &qkv).integers(&[1], &[2]);
    assert_eq!(run(check, |g, x| g.attention(x[0], 1, false, &Rows::even(1, 2), x[1])), [1.0, 1.0]);
}

#[test]
fn wrong_head_counts_and_lengths_are_refused() {
    let mut g = Graph::new(Default::default(), DType::F32);
    let qkv = g.input("qkv", TensorType::new(DType::F32, &[4, 12])).unwrap();
    let lengths = g.input("lengths", TensorType::new(DType::I32, &[2])).unwrap();
    let mut check = |heads: u32, rows: Rows, expected: &str| {
        let error = g.attention(qkv, heads, false, &rows, lengths).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(error.contains("F32[4, 12]") && error.contains("I32[2]"), "{error}");
    };
    check(3, Rows::even(2, 2), "attention: takes queries, keys and values of 3 heads;");
    check(0, Rows::even(2, 2), "attention: takes queries, keys and values of 0 heads;");
    check(2, Rows::even(4, 1), "attention: takes lengths as I32[4];");
    check(2, Rows::even(2, 3), "attention: takes [6, channels] of f32, bf16 or f64;");
}
