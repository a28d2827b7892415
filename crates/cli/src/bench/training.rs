//! `tandem bench training`.

use serde_json::json;
use tandem_bench::benchmarks::training::{self, TrainingReport};
use tandem_device::DeviceKind;
use tandem_device::bytes::{MIB, mib_ceil};

use super::setup::BenchSetup;
use super::table::{TextTable, percent, sign};
use super::{BenchArgs, BenchOutput, failed};
use crate::data::{self, FoundCorpus};
use crate::exit::Exit;
use crate::scratch::Scratch;
use crate::screen::Screen;

const STEPS_ON_CARDS: usize = 2000;
/// Off CUDA, the maths runs on the CPU.
const STEPS_OFF_CUDA: usize = 20;
/// The goals: throughput ÷ model-only throughput, and variation.
const GOAL: f64 = 0.98;
const GOAL_VARIATION: f64 = 0.05;

/// Resolves the plan, with a generated corpus where none was given.
pub(super) fn prepare(args: &BenchArgs, screen: &Screen) -> Result<(BenchSetup, Scratch), Exit> {
    let inventory = super::setup::survey(args)?;
    let folder = Scratch::new()?;
    let corpus: FoundCorpus = data::open_or_generate(&args.plan, &folder, screen)?;
    let resolved = inventory.resolve(&args.plan.settings, Some(&corpus.facts));
    let mut resolved = resolved.map_err(|refusal| Exit::Refused(Box::new(refusal)))?;
    resolved.plan.cache.move_into(folder.path());
    Ok((BenchSetup::new(resolved, Some(corpus), args)?, folder))
}

pub(super) fn measure(args: &BenchArgs, setup: &BenchSetup, screen: &Screen) -> Result<BenchOutput, Exit> {
    let default = if setup.kind() == DeviceKind::Cuda { STEPS_ON_CARDS } else { STEPS_OFF_CUDA };
    let steps = args.steps.unwrap_or(default);
    let Some(corpus) = &setup.corpus else { return Ok(BenchOutput::default()) };
    screen.progress(&format!("Training for {steps} steps, then as many model-only steps..."))?;
    let report = training::run(&setup.resolved, &corpus.corpora, steps, &setup.context.emitter).map_err(failed)?;
    let mut output = BenchOutput::default();
    show(&report, setup, &mut output);
    Ok(output)
}

fn show(report: &TrainingReport, setup: &BenchSetup, output: &mut BenchOutput) {
    let plan = &setup.resolved.plan;
    let title = format!(
        "{} steps of the {} model ({} parameters), batch {}, cache {}",
        report.steps,
        plan.model_size.name(),
        report.num_parameters,
        plan.batch_size,
        plan.cache.spec.kind().slug()
    );
    let columns = [
        "steps/s",
        "model-only steps/s",
        "÷ model-only",
        "variation",
        "stall",
        "model-only step ms",
        "GEMMs ms",
        "÷ GEMMs",
        "goal",
    ];
    let mut table = TextTable::new(title, &columns);
    let met = report.of_model_only() >= GOAL && report.variation <= GOAL_VARIATION;
    let goal = (setup.kind() == DeviceKind::Cuda).then_some(met);
    table.row(vec![
        format!("{:.2}", report.steps_per_s),
        format!("{:.2}", report.model_only),
        format!("{:.3}", report.of_model_only()),
        percent(report.variation),
        percent(report.stall),
        format!("{:.3}", report.model_only_ms),
        format!("{:.3}", report.gemms_ms),
        format!("{:.2}", report.of_gemms()),
        sign(goal),
    ]);
    table.note(
        "model-only: the same buckets with batches already on the model device, without validations and checkpoints",
    );
    table.note("GEMMs: those of one step, timed alone; goal: ÷ model-only ≥ 0.98, variation ≤ 5 %");
    output.text += &table.show();
    for card in &report.cards {
        let used = card.bytes.map_or("an unknown amount".to_owned(), |bytes| format!("{} MB", mib_ceil(bytes)));
        let limit = card.limit_bytes / MIB;
        output.text +=
            &format!("GPU {}: the process used at most {used} of {limit} MB ({} samples)\n", card.card, card.samples);
        if !card.kept() {
            output.broken.push(format!("the process used {used} on GPU {}, over the limit of {limit} MB", card.card));
        }
    }
    output.rows.push(json!({
        "table": "training",
        "steps": report.steps,
        "steps_per_s": report.steps_per_s,
        "model_only_steps_per_s": report.model_only,
        "of_model_only": report.of_model_only(),
        "variation": report.variation,
        "stall": report.stall,
        "model_only_ms": report.model_only_ms,
        "gemms_ms": report.gemms_ms,
        "goal_met": goal,
    }));
}
