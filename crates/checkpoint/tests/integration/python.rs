//! Python's `safetensors`, which most people use, opens our tensor files.
//!
//! `TANDEM_PYTHON` names the interpreter; the default is `python3`. If it has no `safetensors` and `numpy`, the test
//! is skipped, unless `TANDEM_REQUIRE_SAFETENSORS=1`.

use std::process::Command;

use serde_json::json;
use tandem_checkpoint::{Dtype, NewCheckpoint, OpenMode, RunFolder, RunIdentity, TensorRef, WEIGHTS_FILE};
use tandem_test_support::skip;

use crate::support::custom_model;

/// Prints every tensor, as `name dtype shape values`. NumPy has no bf16: for those only the header.
const SCRIPT: &str = "
import sys
from safetensors import safe_open
with safe_open(sys.argv[1], framework='np') as file:
    for name in sorted(file.keys()):
        part = file.get_slice(name)
        dtype, shape = part.get_dtype(), list(part.get_shape())
        values = '' if dtype == 'BF16' else file.get_tensor(name).ravel().tolist()
        print(name, dtype, shape, values)
";

/// An interpreter with the packages of the script.
fn python() -> Option<String> {
    let python = std::env::var("TANDEM_PYTHON").unwrap_or_else(|_| "python3".into());
    let tried = Command::new(&python).args(["-c", "import safetensors, numpy"]).output();
    let why = match tried {
        Ok(output) if output.status.success() => return Some(python),
        Ok(output) => String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("no reason given").to_owned(),
        Err(error) => error.to_string(),
    };
    skip("TANDEM_REQUIRE_SAFETENSORS", "opening a checkpoint with Python", &format!("{python}: {why}"));
    None
}

#[test]
fn pythons_safetensors_opens_the_weights() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let folder = RunFolder::open(dir.path(), &RunIdentity::new(), OpenMode::Resume).unwrap();
    let f32s: Vec<u8> = [1.5_f32, -2.0, 0.25, 3.0, 4.0, 5.0].into_iter().flat_map(f32::to_le_bytes).collect();
    let f64s = 0.1_f64.to_le_bytes();
    let i32s: Vec<u8> = [-7_i32, 8].into_iter().flat_map(i32::to_le_bytes).collect();
    let u64s = u64::MAX.to_le_bytes();
    let weights = [
        TensorRef { name: "decoder.0.weight", dtype: Dtype::F32, shape: &[2, 3], bytes: &f32s },
        TensorRef { name: "ema.decoder.0.weight", dtype: Dtype::F32, shape: &[6], bytes: &f32s },
        TensorRef { name: "half", dtype: Dtype::Bf16, shape: &[3], bytes: &f32s[..6] },
        TensorRef { name: "none", dtype: Dtype::F32, shape: &[0, 4], bytes: &[] },
        TensorRef { name: "precise", dtype: Dtype::F64, shape: &[], bytes: &f64s },
        TensorRef { name: "signed", dtype: Dtype::I32, shape: &[2, 1], bytes: &i32s },
        TensorRef { name: "wide", dtype: Dtype::U64, shape: &[1], bytes: &u64s },
    ];
    let (state, model) = (json!({}), &custom_model("python"));
    let new = NewCheckpoint { step: 1, weights: &weights, optimizer: &[], state, model, score: None };
    let path = folder.write(&new).unwrap().path.join(WEIGHTS_FILE);
    let output = Command::new(python).args(["-c", SCRIPT]).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let expected = "\
decoder.0.weight F32 [2, 3] [1.5, -2.0, 0.25, 3.0, 4.0, 5.0]
ema.decoder.0.weight F32 [6] [1.5, -2.0, 0.25, 3.0, 4.0, 5.0]
half BF16 [3] \nnone F32 [0, 4] []
precise F64 [] [0.1]
signed I32 [2, 1] [-7, 8]
wide U64 [1] [18446744073709551615]
";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}
