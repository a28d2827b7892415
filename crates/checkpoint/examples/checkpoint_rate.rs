//! Measures how fast checkpoints are written and verified: `checkpoint_rate FOLDER [MB]`, 1024 MB by default.
//!
//! For three checkpoints: the time to write one and sync it, to open it with every byte verified, and to read its
//! tensors. Reads come from the page cache, as after a crash of the program, not of the machine.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::time::Instant;

use serde_json::json;
use tandem_audio::FeatureSettings;
use tandem_checkpoint::{
    Architecture, ComputeDtype, Dtype, MelStatistics, ModelContract, NewCheckpoint, OpenMode, RunFolder, RunIdentity,
    TensorRef, Vocoder, latest_intact,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let dir = args.next().ok_or("expected FOLDER [MB]")?;
    let mb: usize = args.next().map_or(Ok(1024), |mb| mb.parse())?;
    let tensor_bytes = 4 << 20;
    let bytes: Vec<u8> =
        (0..tensor_bytes as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let names: Vec<_> = (0..mb / 8).map(|index| format!("layer.{index}")).collect();
    let shape = [tensor_bytes / 4];
    let tensor = |name| TensorRef { name, dtype: Dtype::F32, shape: &shape, bytes: &bytes };
    let tensors: Vec<_> = names.iter().map(|name| tensor(name)).collect();
    let folder = RunFolder::open(&dir, &RunIdentity::new().with("model", "rate"), OpenMode::Reset)?;
    let model = &ModelContract {
        architecture: Architecture::Custom { name: "rate".into() },
        text: None,
        features: FeatureSettings::default(),
        mel_statistics: MelStatistics { mean: -5.0, std: 2.0, band_means: vec![-5.0; 80] },
        compute_dtype: ComputeDtype::F32,
        vocoder: Vocoder::GriffinLim,
        duration_scale: None,
    };
    for step in 1..=3 {
        let state = json!({});
        let start = Instant::now();
        let written =
            folder.write(&NewCheckpoint { step, weights: &tensors, optimizer: &tensors, state, model, score: None })?;
        let write_s = start.elapsed().as_secs_f64();
        let start = Instant::now();
        let checkpoint = latest_intact(&dir)?.checkpoint.ok_or("no checkpoint was found")?;
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
