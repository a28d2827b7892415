//! `tandem bench training`.

use serde_json::json;
use tandem_bench::benchmarks::training::{self, TrainingReport};
use tandem_device::DeviceKind;
use tandem_device::bytes::{MIB, mib_ceil};

use super::setup::BenchSetup;
use super::table::{TextTable, percent, sign};
use super::{BenchArgs, Found, failed};
use crate::data::{self, FoundCorpus};
use crate::exit::Exit;
use crate::scratch::Scratch;
use crate::screen::Screen;

const STEPS_ON_CARDS: usize = 2000;
/// Elsewhere the maths runs on the CPU.
const STEPS_ELSEWHERE: usize = 20;
/// SPEC §9: of the model_only, and the variation.
const GOAL: f64 = 0.98;
const GOAL_VARIATION: f64 = 0.05;

/// The ground for it: with a corpus of its own where none was named.
pub(super) fn ground(call: &BenchArgs, screen: &Screen) -> Result<(BenchSetup, Scratch), Exit> {
    let site = super::setup::survey(call)?;
    let folder = Scratch::new()?;
    let corpus: FoundCorpus = data::open_or_make(&call.plan, &folder, screen)?;
    let resolved = site.resolve(&call.plan.settings, Some(&corpus.facts));
    let resolved = resolved.map_err(|refusal| Exit::Refused(Box::new(refusal)))?;
    Ok((BenchSetup::of(resolved, Some(corpus), call)?, folder))
}

pub(super) fn measure(call: &BenchArgs, ground: &BenchSetup, screen: &Screen) -> Result<Found, Exit> {
    let usual = if ground.kind() == DeviceKind::Cuda { STEPS_ON_CARDS } else { STEPS_ELSEWHERE };
    let steps = call.steps.unwrap_or(usual);
    let Some(corpus) = &ground.corpus else { return Ok(Found::default()) };
    screen.progress(&format!("Training for {steps} steps, and as many without a feed..."))?;
    let report = training::run(&ground.resolved, &corpus.corpora, steps, &ground.site.emitter).map_err(failed)?;
    let mut found = Found::default();
    show(&report, ground, &mut found);
    Ok(found)
}

fn show(report: &TrainingReport, ground: &BenchSetup, found: &mut Found) {
    let plan = &ground.resolved.plan;
    let title = format!(
        "{} steps of the {} model ({} parameters), batch {}, cache {}",
        report.steps,
        plan.model_size.name(),
        report.num_parameters,
        plan.batch_size,
        plan.cache.kind.slug()
    );
    let columns = [
        "steps/s",
        "model_only /s",
        "÷ model_only",
        "variation",
        "stall",
        "step alone ms",
        "GEMMs ms",
        "÷ GEMMs",
        "goal",
    ];
    let mut table = TextTable::new(title, &columns);
    let met = report.of_model_only() >= GOAL && report.variation <= GOAL_VARIATION;
    let goal = (ground.kind() == DeviceKind::Cuda).then_some(met);
    table.row(vec![
        format!("{:.2}", report.steps_per_s),
        format!("{:.2}", report.model_only),
        format!("{:.3}", report.of_model_only()),
        percent(report.variation),
        percent(report.stall),
        format!("{:.3}", report.headspace_ms),
        format!("{:.3}", report.gemms_ms),
        format!("{:.2}", report.of_gemms()),
        sign(goal),
    ]);
    table.note(
        "model_only: the same shapes again, with batches already there; validations and checkpoints are left out",
    );
    table.note("GEMMs: the GEMMs of a step by themselves; goal: ÷ model_only ≥ 0.98, variation ≤ 5 %");
    found.text += &table.show();
    for card in &report.cards {
        let held = card.bytes.map_or("not readable".to_owned(), |bytes| format!("{} MB", mib_ceil(bytes)));
        let limit = card.limit_bytes / MIB;
        found.text +=
            &format!("GPU {}: the process held {held} of {limit} MB in {} samples\n", card.card, card.samples);
        if !card.kept() {
            found.broken.push(format!("the process held {held} on GPU {}, over the limit of {limit} MB", card.card));
        }
    }
    found.rows.push(json!({
        "table": "training",
        "steps": report.steps,
        "steps_per_s": report.steps_per_s,
        "model_only": report.model_only,
        "of_model_only": report.of_model_only(),
        "variation": report.variation,
        "stall": report.stall,
        "headspace_ms": report.headspace_ms,
        "gemms_ms": report.gemms_ms,
        "goal_met": goal,
    }));
}
