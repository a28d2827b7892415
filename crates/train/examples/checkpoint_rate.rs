//! How fast checkpoints are written and checked here: `checkpoint_rate FOLDER [MB]`, 1024 MB unless told.
//!
//! Three checkpoints: the time to write one with everything on the disk, to open it with every byte compared, and to
//! read its tensors. Reading comes from memory that the system keeps files in, as after a crash of
//! the program, not of the machine.

#![allow(clippy::print_stdout, reason = "it is there to print")]

use std::time::Instant;

use serde_json::json;
use tandem_train::{Dtype, NewCheckpoint, Opening, RunFolder, RunIdentity, TensorRef, latest_usable};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("which folder?")?;
    let mb: usize = args.next().map_or(Ok(1024), |mb| mb.parse())?;
    let tensor_bytes = 4 << 20;
    let bytes: Vec<u8> =
        (0..tensor_bytes as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let names: Vec<_> = (0..mb / 8).map(|index| format!("layer.{index}")).collect();
    let shape = [tensor_bytes / 4];
    let tensor = |name| TensorRef { name, dtype: Dtype::F32, shape: &shape, bytes: &bytes };
    let tensors: Vec<_> = names.iter().map(|name| tensor(name)).collect();
    let folder = RunFolder::open(&dir, &RunIdentity::new().with("model", "rate"), Opening::Reset)?;
    for step in 1..=3 {
        let (state, model) = (json!({}), json!({}));
        let start = Instant::now();
        let written =
            folder.write(&NewCheckpoint { step, weights: &tensors, optimizer: &tensors, state, model, score: None })?;
        let write_s = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let checkpoint = latest_usable(&dir)?.checkpoint.ok_or("it is gone")?;
        let open_s = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let mut out = vec![0; tensor_bytes];
        for name in &names {
            checkpoint.weights.read_into(name, &mut out)?;
            checkpoint.optimizer.read_into(name, &mut out)?;
        }
        let read_s = start.elapsed().as_secs_f64();
        println!("step {step}: {} bytes", written.bytes);
        for (what, seconds) in [("written", write_s), ("opened", open_s), ("read", read_s)] {
            println!("  {what:<8} {seconds:7.3} s {:7.0} MB/s", written.bytes as f64 / (1 << 20) as f64 / seconds);
        }
    }
    Ok(())
}
