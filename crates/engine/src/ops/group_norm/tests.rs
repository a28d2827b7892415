use tandem_device::DType;

use super::*;
use crate::random::normal_at;
use crate::testing::{GradientCheck, check_gradients, run};

#[test]
fn gradients() {
    let check = |row_lengths: &[u32], lengths: &[i32], channels: u32, groups: u32| {
        let rows = Rows::new(row_lengths);
        let check = GradientCheck::new()
            .input(&[rows.total(), channels])
            .input(&[channels])
            .input(&[channels])
            .integers(&[rows.count()], lengths);
        check_gradients(check, |g, x| g.group_norm(x[0], x[1], x[2], groups, &rows, x[3]));
    };
    check(&[5, 0, 7, 3], &[4, 0, 7, 0], 6, 3);
    check(&[4], &[4], 5, 1);
    check(&[40, 0, 13], &[37, 0, 13], 48, 3);
    check(&[3], &[2], 2080, 1);
    check(&[2, 9], &[-1, 20], 4, 4);
    check(&[70, 3], &[66, 2], 8, 2);
}

/// Group norm by its definition, element by element.
fn reference(x: &[f64], gain: &[f64], bias: &[f64], groups: usize, rows: &Rows, lengths: &[i32]) -> Vec<f64> {
    let columns = gain.len();
    let mut out = vec![0.0; x.len()];
    for (row, &length) in lengths.iter().enumerate() {
        let first = rows.starts()[row] as usize;
        for group in 0..groups {
            let inside = |c: &usize| c * groups / columns == group;
            let elements: Vec<(usize, usize)> = (first..first + length as usize)
                .flat_map(|t| (0..columns).filter(inside).map(move |c| (t * columns + c, c)))
                .collect();
            let mean = elements.iter().map(|&(at, _)| x[at]).sum::<f64>() / elements.len() as f64;
            let variance = elements.iter().map(|&(at, _)| (x[at] - mean).powi(2)).sum::<f64>() / elements.len() as f64;
            for (at, c) in elements {
                out[at] = (x[at] - mean) / (variance + 1e-5).sqrt() * gain[c] + bias[c];
            }
        }
    }
    out
}

#[test]
fn values_match_the_definition_and_padding_is_zero() {
    let (rows, lengths) = (Rows::new(&[3, 0, 5]), [3, 0, 4]);
    let normal = |key, count| (0..count).map(|i| normal_at(key, i) + 0.5).collect::<Vec<f64>>();
    let (x, gain, bias) = (normal(1, 48), normal(2, 6), normal(3, 6));
    let value = |x: &[f64]| {
        let check =
            GradientCheck::new().given(&[8, 6], x).given(&[6], &gain).given(&[6], &bias).integers(&[3], &lengths);
        run(check, |g, x| g.group_norm(x[0], x[1], x[2], 3, &rows, x[3]))
    };
    let found = value(&x);
    let expected = reference(&x, &gain, &bias, 3, &rows, &lengths);
    assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-12), "{found:?}\n{expected:?}");
    let mut other = x.clone();
    other[42..].fill(1e9);
    assert_eq!(value(&other), found, "padding changed the result");
}

#[test]
fn groups_that_do_not_divide_and_lengths_of_another_batch_are_refused() {
    let mut g = Graph::new(Default::default(), DType::F32);
    let x = g.input("x", TensorType::new(DType::F32, &[4, 6])).unwrap();
    let gain = g.input("gain", TensorType::new(DType::F32, &[6])).unwrap();
    let lengths = g.input("lengths", TensorType::new(DType::I32, &[2])).unwrap();
    let error = g.group_norm(x, gain, gain, 4, &Rows::even(2, 2), lengths).unwrap_err().to_string();
    assert!(error.starts_with("group_norm: takes channels in 4 equal groups; the operands are F32[4, 6]"), "{error}");
    let error = g.group_norm(x, gain, gain, 3, &Rows::even(1, 4), lengths).unwrap_err().to_string();
    assert!(error.starts_with("group_norm: takes lengths as I32[1];"), "{error}");
    assert!(error.contains("I32[2]"), "{error}");
}
