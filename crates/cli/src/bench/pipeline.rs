//! `tandem bench pipeline`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tandem_bench::benchmarks::pipeline::{self, ClipRow, SlowDecoder, StepLoad, SweepRow};
use tandem_bench::benchmarks::{BenchError, clips};
use tandem_device::{DeviceKind, host_memory};
use tandem_feed::{CacheKind, CacheSpec, TrainingSet};
use tandem_plan::setting::Id;

use super::setup::BenchSetup;
use super::table::{TextTable, percent, sign};
use super::{BenchArgs, Found, failed};
use crate::exit::Exit;
use crate::scratch::Scratch;
use crate::screen::Screen;

/// Time to produce a batch ÷ time to consume one.
const RATIOS: [f64; 8] = [0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.6, 2.0];
const SWEEP_STEP: Duration = Duration::from_millis(10);
const SWEEP_STEPS: usize = 100;
const CLIP_STEPS: usize = 300;
const CLIPS: usize = 2000;
/// Half a gigabyte of recordings is written; memory that is short is left alone.
const ROOM_BYTES: u64 = 4 << 30;

/// The strongest PyTorch steps known (compiled, one CUDA graph, autocast, on an H200), by batch and milliseconds.
const LOADS: [(&str, u32, f64); 2] = [("small", 32, 2.12), ("middle", 16, 13.8)];

/// SPEC: the share of the ceiling where the producer is faster, and the variation.
const GOAL: f64 = 0.98;
const GOAL_SIMULATED: f64 = 0.95;
const GOAL_VARIATION: f64 = 0.05;
/// The stall that is left when a feed has tuned itself.
const GOAL_STALL: f64 = 0.02;
/// The producer is faster up to here.
const FASTER: f64 = 0.8;

pub(super) fn measure(call: &BenchArgs, ground: &BenchSetup, screen: &Screen) -> Result<Found, Exit> {
    let mut found = Found::default();
    if !call.no_sweep {
        let steps = call.steps.unwrap_or(SWEEP_STEPS);
        screen.progress(&format!("Sweeping {} ratios, {steps} steps each...", RATIOS.len()))?;
        let folder = Scratch::new()?;
        let rows = pipeline::sweep(&ground.site, folder.path(), &RATIOS, SWEEP_STEP, steps).map_err(failed)?;
        show_sweep(&rows, ground.kind(), &mut found);
        screen.progress("Slowing the decoder down...")?;
        let slow = pipeline::slow_decoder(&ground.site, folder.path(), SWEEP_STEP, steps).map_err(failed)?;
        show_slow_decoder(&slow, &mut found);
    }
    match (ground.material(), ground.kind()) {
        (Some(material), _) => from_clips(call, ground, material, screen, &mut found)?,
        (None, DeviceKind::Cuda) => {
            let clips = Clips::write(call.rows.unwrap_or(CLIPS), screen)?;
            from_clips(call, ground, &clips.material, screen, &mut found)?;
        }
        (None, _) => {
            found.text +=
                "Recordings to steps: needs a GPU, or --train-data to serve (the step is then time that passes)\n";
        }
    }
    Ok(found)
}

fn from_clips(
    call: &BenchArgs,
    ground: &BenchSetup,
    material: &Arc<TrainingSet>,
    screen: &Screen,
    found: &mut Found,
) -> Result<(), Exit> {
    let given_batch = call.plan.settings.given_count(Id::BatchSize).and_then(|batch| u32::try_from(batch).ok());
    let load = |(name, batch, ms): (&str, u32, f64)| StepLoad {
        name: name.to_owned(),
        batch: given_batch.unwrap_or(batch),
        step_ns: ms * 1e6,
    };
    let everything = CacheSpec { kind: CacheKind::Memory, budget_bytes: u64::MAX / 2, folder: None };
    let caches = ground.asked_cache(call)?.map_or(vec![CacheSpec::default(), everything], |cache| vec![cache]);
    let steps = call.steps.unwrap_or(CLIP_STEPS);
    screen.progress(&format!("Serving {} recordings, {steps} steps each...", material.rows().len()))?;
    let rows = pipeline::from_clips(&ground.site, material, &LOADS.map(load), &caches, steps).map_err(failed)?;
    show_clips(&rows, ground, found);
    Ok(())
}

/// Recordings of our own, gone when this is.
struct Clips {
    material: Arc<TrainingSet>,
    _folder: Scratch,
}

impl Clips {
    /// In memory where there is room for them: what is measured is the pipeline, not the disk.
    fn write(count: usize, screen: &Screen) -> Result<Clips, Exit> {
        screen.progress(&format!("Writing {count} recordings..."))?;
        let (_, available_bytes) = host_memory();
        let memory = Path::new("/dev/shm");
        if memory.is_dir() && available_bytes > ROOM_BYTES {
            let written = Scratch::new_in(memory).map_err(|error| BenchError::Clips(error.to_string()));
            if let Ok(clips) = written.and_then(|folder| Clips::write_into(folder, count)) {
                return Ok(clips);
            }
        }
        Clips::write_into(Scratch::new()?, count).map_err(failed)
    }

    fn write_into(folder: Scratch, count: usize) -> Result<Clips, BenchError> {
        let list = clips::write(folder.path(), count)?;
        Ok(Clips { material: clips::open(&list)?, _folder: folder })
    }
}

fn show_slow_decoder(slow: &SlowDecoder, found: &mut Found) {
    let [before, after] = slow.threads;
    let goal = (!slow.fixed).then_some(slow.stall[1] <= GOAL_STALL);
    let threads = match slow.fixed {
        true => format!("{before} threads given by hand stay {after}"),
        false => format!("{before} -> {after} threads by itself"),
    };
    let [first, last] = slow.stall.map(percent);
    found.text += &format!("A decoder 4 × too slow: {threads}; stall {first} at first, {last} in the end");
    found.text += &goal.map_or("\n".to_owned(), |_| format!(" (goal: ≤ {}) {}\n", percent(GOAL_STALL), sign(goal)));
    found.text += &slow.notes.iter().map(|note| format!("  {note}\n")).collect::<String>();
    found.rows.push(json!({
        "table": "slow_decoder",
        "threads_at_first": before,
        "threads": after,
        "threads_given": slow.fixed,
        "stall_at_first": slow.stall[0],
        "stall": slow.stall[1],
        "goal_met": goal,
    }));
}

fn show_sweep(rows: &[SweepRow], kind: DeviceKind, found: &mut Found) {
    let columns = ["producer ÷ consumer", "model_only /s", "steps/s", "÷ ceiling", "variation", "goal"];
    let title = format!("Planted producer, consumer of {} ms", SWEEP_STEP.as_millis());
    let mut table = TextTable::new(title, &columns);
    let goal = match kind {
        DeviceKind::Cuda => Some(GOAL),
        DeviceKind::Simulated => Some(GOAL_SIMULATED),
        DeviceKind::Cpu => None,
    };
    for row in rows {
        let goal = goal.filter(|_| row.ratio <= FASTER);
        let met = goal.map(|goal| row.of_ceiling >= goal && row.variation <= GOAL_VARIATION);
        table.row(vec![
            format!("{:.2}", row.ratio),
            format!("{:.1}", row.model_only),
            format!("{:.1}", row.steps_per_s),
            format!("{:.3}", row.of_ceiling),
            percent(row.variation),
            sign(met),
        ]);
        found.rows.push(json!({
            "table": "sweep",
            "ratio": row.ratio,
            "headspace_steps_per_s": row.model_only,
            "steps_per_s": row.steps_per_s,
            "of_ceiling": row.of_ceiling,
            "variation": row.variation,
            "goal_met": met,
        }));
    }
    if let Some(goal) = goal {
        let variation = percent(GOAL_VARIATION);
        table.note(format!(
            "goal: ≥ {goal} of the ceiling where the ratio is at most {FASTER}; variation ≤ {variation}"
        ));
    }
    found.text += &table.show();
}

fn show_clips(rows: &[ClipRow], ground: &BenchSetup, found: &mut Found) {
    let columns = [
        "load",
        "cache",
        "batch",
        "step ms",
        "data ms",
        "model_only /s",
        "ceiling /s",
        "steps/s",
        "÷ ceiling",
        "÷ model_only",
        "variation",
        "stall",
        "threads",
        "h audio/s",
        "goal",
    ];
    let mut table = TextTable::new("Recordings to steps", &columns);
    for row in rows {
        // With audio cached the data work is small enough that model_only itself is the goal.
        let cached = row.cache != CacheKind::None;
        let share = if cached { row.of_model_only() } else { row.of_ceiling() };
        let met = (ground.kind() == DeviceKind::Cuda).then_some(share >= GOAL && row.variation <= GOAL_VARIATION);
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
        found.rows.push(clip_json(row, met));
    }
    if ground.kind() == DeviceKind::Cuda {
        let variation = percent(GOAL_VARIATION);
        table.note(format!("goal: ≥ {GOAL} of the ceiling, of the model_only with a cache; variation ≤ {variation}"));
    } else {
        table.note("no goal here: the step is time that passes, not work of a card");
    }
    let num_bad = rows.iter().map(|row| row.num_bad).max().unwrap_or(0);
    if num_bad > 0 {
        let listed = ground.site.bad_samples.as_ref();
        let listed =
            listed.map_or("--bench-dir DIR lists them".to_owned(), |path| format!("listed in {}", path.display()));
        table.note(format!("⚠️ {num_bad} recordings could not be used and were replaced; {listed}"));
    }
    for row in rows {
        row.notes.iter().for_each(|note| table.note(format!("{}, cache {}: {note}", row.load.name, row.cache.slug())));
    }
    found.text += &table.show();
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
        "headspace_steps_per_s": row.model_only,
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
