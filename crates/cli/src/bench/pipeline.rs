//! `tandem bench pipeline`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tandem_bench::benchmarks::pipeline::{self, ClipRow, SlowDecoder, StepLoad, SweepRow};
use tandem_bench::benchmarks::{BenchError, clips};
use tandem_device::{DeviceKind, HostReading};
use tandem_feed::{CacheKind, CacheSpec, TrainingSet};
use tandem_plan::setting::Id;

use super::setup::BenchSetup;
use super::table::{TextTable, percent, sign};
use super::{BenchArgs, BenchOutput, failed};
use crate::exit::Exit;
use crate::scratch::Scratch;
use crate::screen::Screen;

/// Time to produce a batch ÷ time to consume it.
const RATIOS: [f64; 8] = [0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.6, 2.0];
const SWEEP_STEP: Duration = Duration::from_millis(10);
const SWEEP_STEPS: usize = 100;
const CLIP_STEPS: usize = 300;
const CLIPS: usize = 2000;
/// Half a gigabyte of recordings is written to memory only if this much is free.
const MIN_FREE_BYTES: u64 = 4 << 30;

/// A consumer whose step takes as long as the fastest known PyTorch step of that model.
struct PyTorchLoad {
    name: &'static str,
    batch: u32,
    step_ms: f64,
}

/// Measured on an H200: compiled, one CUDA graph, autocast.
const LOADS: [PyTorchLoad; 2] =
    [PyTorchLoad { name: "small", batch: 32, step_ms: 2.12 }, PyTorchLoad { name: "middle", batch: 16, step_ms: 13.8 }];

/// The goals: throughput ÷ ceiling where the producer is faster, and variation.
const GOAL: f64 = 0.98;
const GOAL_SIMULATED: f64 = 0.95;
const GOAL_VARIATION: f64 = 0.05;
/// The goal: stall after self-tuning.
const GOAL_STALL: f64 = 0.02;
/// Up to this ratio the goal applies: the producer is faster.
const FAST_PRODUCER_RATIO: f64 = 0.8;

pub(super) fn measure(args: &BenchArgs, setup: &BenchSetup, screen: &Screen) -> Result<BenchOutput, Exit> {
    let mut output = BenchOutput::default();
    if !args.no_sweep {
        let steps = args.steps.unwrap_or(SWEEP_STEPS);
        screen.progress(&format!("Sweeping {} producer/consumer ratios, {steps} steps each...", RATIOS.len()))?;
        let folder = Scratch::new()?;
        let rows = pipeline::sweep(&setup.context, folder.path(), &RATIOS, SWEEP_STEP, steps).map_err(failed)?;
        show_sweep(&rows, setup.kind(), &mut output);
        screen.progress("Slowing the decoder down...")?;
        let slow = pipeline::slow_decoder(&setup.context, folder.path(), SWEEP_STEP, steps).map_err(failed)?;
        show_slow_decoder(&slow, &mut output);
    }
    match (setup.training_set(), setup.kind()) {
        (Some(training_set), _) => from_clips(args, setup, training_set, screen, &mut output)?,
        (None, DeviceKind::Cuda) => {
            let clips = GeneratedClips::write(args.rows.unwrap_or(CLIPS), screen)?;
            from_clips(args, setup, &clips.training_set, screen, &mut output)?;
        }
        (None, _) => {
            output.text +=
                "Recordings to steps: skipped; needs a GPU, or --train-data (then the step is a timed wait)\n";
        }
    }
    Ok(output)
}

fn from_clips(
    args: &BenchArgs,
    setup: &BenchSetup,
    training_set: &Arc<TrainingSet>,
    screen: &Screen,
    output: &mut BenchOutput,
) -> Result<(), Exit> {
    let given_batch = args.plan.settings.given_count(Id::BatchSize).and_then(|batch| u32::try_from(batch).ok());
    let load = |load: PyTorchLoad| StepLoad {
        name: load.name.to_owned(),
        batch: given_batch.unwrap_or(load.batch),
        step_ns: load.step_ms * 1e6,
    };
    let everything = CacheSpec::Memory { budget_bytes: u64::MAX / 2 };
    let caches = setup.requested_cache(args)?.map_or(vec![CacheSpec::default(), everything], |cache| vec![cache]);
    let steps = args.steps.unwrap_or(CLIP_STEPS);
    screen.progress(&format!("Feeding {} recordings, {steps} steps each...", training_set.rows().len()))?;
    let rows = pipeline::from_clips(&setup.context, training_set, &LOADS.map(load), &caches, steps).map_err(failed)?;
    show_clips(&rows, setup, output);
    Ok(())
}

/// Generated recordings, removed on drop.
struct GeneratedClips {
    training_set: Arc<TrainingSet>,
    _folder: Scratch,
}

impl GeneratedClips {
    /// Writes them to memory if there is room: the benchmark measures the pipeline, not the disk.
    fn write(count: usize, screen: &Screen) -> Result<GeneratedClips, Exit> {
        screen.progress(&format!("Writing {count} recordings..."))?;
        let available_bytes = HostReading::now().available_bytes;
        let memory = Path::new("/dev/shm");
        if memory.is_dir() && available_bytes > MIN_FREE_BYTES {
            let written = Scratch::new_in(memory).map_err(|error| BenchError::Clips(error.to_string()));
            if let Ok(clips) = written.and_then(|folder| GeneratedClips::write_into(folder, count)) {
                return Ok(clips);
            }
        }
        GeneratedClips::write_into(Scratch::new()?, count).map_err(failed)
    }

    fn write_into(folder: Scratch, count: usize) -> Result<GeneratedClips, BenchError> {
        let list = clips::write(folder.path(), count)?;
        Ok(GeneratedClips { training_set: clips::open(&list)?, _folder: folder })
    }
}

fn show_slow_decoder(slow: &SlowDecoder, output: &mut BenchOutput) {
    let [before, after] = slow.threads;
    let goal = (!slow.fixed).then_some(slow.stall[1] <= GOAL_STALL);
    let threads = match slow.fixed {
        true => format!("--num-workers keeps {after} threads"),
        false => format!("self-tuning raised the threads from {before} to {after}"),
    };
    let [first, last] = slow.stall.map(percent);
    output.text += &format!("Decoder slowed down 4 ×: {threads}; stall {first} at first, {last} at the end");
    output.text += &goal.map_or("\n".to_owned(), |_| format!(" (goal: ≤ {}) {}\n", percent(GOAL_STALL), sign(goal)));
    output.text += &slow.notes.iter().map(|note| format!("  {note}\n")).collect::<String>();
    output.rows.push(json!({
        "table": "slow_decoder",
        "threads_at_first": before,
        "threads": after,
        "threads_given": slow.fixed,
        "stall_at_first": slow.stall[0],
        "stall": slow.stall[1],
        "goal_met": goal,
    }));
}

fn show_sweep(rows: &[SweepRow], kind: DeviceKind, output: &mut BenchOutput) {
    let columns = ["producer ÷ consumer", "model-only steps/s", "steps/s", "÷ ceiling", "variation", "goal"];
    let title = format!("Synthetic producer, consumer of {} ms per batch", SWEEP_STEP.as_millis());
    let mut table = TextTable::new(title, &columns);
    let goal = match kind {
        DeviceKind::Cuda => Some(GOAL),
        DeviceKind::Simulated => Some(GOAL_SIMULATED),
        DeviceKind::Cpu => None,
    };
    for row in rows {
        let goal = goal.filter(|_| row.ratio <= FAST_PRODUCER_RATIO);
        let met = goal.map(|goal| row.of_ceiling >= goal && row.variation <= GOAL_VARIATION);
        table.row(vec![
            format!("{:.2}", row.ratio),
            format!("{:.1}", row.model_only),
            format!("{:.1}", row.steps_per_s),
            format!("{:.3}", row.of_ceiling),
            percent(row.variation),
            sign(met),
        ]);
        output.rows.push(json!({
            "table": "sweep",
            "ratio": row.ratio,
            "model_only_steps_per_s": row.model_only,
            "steps_per_s": row.steps_per_s,
            "of_ceiling": row.of_ceiling,
            "variation": row.variation,
            "goal_met": met,
        }));
    }
    if let Some(goal) = goal {
        let variation = percent(GOAL_VARIATION);
        table.note(format!(
            "goal: ÷ ceiling ≥ {goal} where the ratio is at most {FAST_PRODUCER_RATIO}; variation ≤ {variation}"
        ));
    }
    output.text += &table.show();
}

fn show_clips(rows: &[ClipRow], setup: &BenchSetup, output: &mut BenchOutput) {
    let columns = [
        "consumer",
        "cache",
        "batch",
        "step ms",
        "data ms",
        "model-only steps/s",
        "ceiling steps/s",
        "steps/s",
        "÷ ceiling",
        "÷ model-only",
        "variation",
        "stall",
        "threads",
        "audio h/s",
        "goal",
    ];
    let mut table = TextTable::new("Recordings to steps", &columns);
    for row in rows {
        // With cached audio the data work is so small that the goal is relative to model-only throughput.
        let cached = row.cache != CacheKind::None;
        let share = if cached { row.of_model_only() } else { row.of_ceiling() };
        let met = (setup.kind() == DeviceKind::Cuda).then_some(share >= GOAL && row.variation <= GOAL_VARIATION);
        table.row(vec![
            row.load.name.clone(),
            row.cache.slug().to_owned(),
            row.load.batch.to_string(),
            format!("{:.3}", row.step_ms),
            format!("{:.3}", row.data_ms),
            format!("{:.1}", row.model_only),
            format!("{:.1}", row.ceiling),
            format!("{:.1}", row.steps_per_s),
            format!("{:.3}", row.of_ceiling()),
            format!("{:.3}", row.of_model_only()),
            percent(row.variation),
            percent(row.stall),
            row.threads.to_string(),
            format!("{:.2}", row.hours_per_s),
            sign(met),
        ]);
        output.rows.push(clip_json(row, met));
    }
    if setup.kind() == DeviceKind::Cuda {
        let variation = percent(GOAL_VARIATION);
        table.note(format!("goal: ÷ ceiling ≥ {GOAL} (with a cache: ÷ model-only); variation ≤ {variation}"));
    } else {
        table.note("no goal: the step is a timed wait, not GPU work");
    }
    let num_bad = rows.iter().map(|row| row.num_bad).max().unwrap_or(0);
    if num_bad > 0 {
        let listed = match &setup.context.bad_samples {
            Some(path) => format!("listed in {}", path.display()),
            None => "to list them: --bench-dir DIR".to_owned(),
        };
        table.note(format!("⚠️ {num_bad} unreadable recordings were replaced; {listed}"));
    }
    for row in rows {
        row.notes.iter().for_each(|note| table.note(format!("{}, cache {}: {note}", row.load.name, row.cache.slug())));
    }
    output.text += &table.show();
}

fn clip_json(row: &ClipRow, met: Option<bool>) -> serde_json::Value {
    json!({
        "table": "clips",
        "load": row.load.name,
        "cache": row.cache.slug(),
        "batch": row.load.batch,
        "steps": row.steps,
        "step_ms": row.step_ms,
        "data_ms": row.data_ms,
        "model_only_steps_per_s": row.model_only,
        "ceiling_steps_per_s": row.ceiling,
        "steps_per_s": row.steps_per_s,
        "of_ceiling": row.of_ceiling(),
        "of_model_only": row.of_model_only(),
        "variation": row.variation,
        "stall": row.stall,
        "threads": row.threads,
        "audio_hours_per_s": row.hours_per_s,
        "bad_samples": row.num_bad,
        "notes": row.notes,
        "goal_met": met,
    })
}
