//! `tandem bench ranks`: how long ranks take to sum gradients here, and how more cards would scale.

use anyhow::Context as _;
use serde_json::json;
use tandem_bench::auto_mode::{Candidate, Seen, TimedRuns};
use tandem_bench::benchmarks::ranks::{self, PredictedScaling, RankLinkSpeed};
use tandem_bench::benchmarks::spread::Spread;
use tandem_plan::{CardFacts, Plan};

use super::setup::BenchSetup;
use super::table::{TextTable, percent};
use super::{BenchArgs, BenchOutput};
use crate::exit::Exit;
use crate::pair_checks;
use crate::scratch::Scratch;
use crate::screen::Screen;

/// Ranks whose sum over TCP is measured.
const TCP_RANKS: [u32; 2] = [2, 4];
const TCP_ROUNDS: usize = 10;
const GRADIENT_BYTES: f64 = 4.0;

pub(super) fn measure(args: &BenchArgs, setup: &BenchSetup, screen: &Screen) -> Result<BenchOutput, Exit> {
    let Some(corpus) = &setup.corpus else { return Ok(BenchOutput::default()) };
    let (plan, folder) = (&setup.resolved.plan, Scratch::new()?);
    let survey = || pair_checks::survey(&args.plan);
    let emitter = setup.context.emitter.clone();
    let mut timed_runs = TimedRuns::new(&survey, &corpus.facts, &corpus.corpora, folder.path(), emitter);
    timed_runs = timed_runs.of_steps(args.steps);
    screen.progress("Timing steps of one rank...")?;
    let cards = plan.data.card.zip(plan.model.card).map(|(data, model)| [data, model]);
    let candidate = Candidate { mode: plan.mode, cards, ranks: Vec::new(), settings: args.plan.settings.clone() };
    let seen = timed_runs.run(&candidate).context("cannot time steps")?;
    let mut links = Vec::new();
    if let Some(pair) = first_pair(&setup.resolved.hardware.cards) {
        let gb_per_s = timed_runs.link_gb_per_s(&args.plan.settings, pair).context("cannot measure the link")?;
        let [one, other] = pair;
        links.push(RankLinkSpeed { name: format!("GPU {one} to GPU {other}"), gb_per_s, measured: true });
    }
    links.extend(RankLinkSpeed::usual());
    let mut output = BenchOutput::default();
    for ranks in TCP_RANKS {
        screen.progress(&format!("Summing the gradients of {ranks} ranks over TCP..."))?;
        let spread =
            ranks::measure_tcp(seen.num_parameters as usize, ranks, TCP_ROUNDS).context("cannot sum over TCP")?;
        output.rows.push(tcp_row(ranks, &seen, &spread));
    }
    let step_ms = 1e3 / seen.rate.steps_per_s;
    let predicted = ranks::predict(seen.num_parameters, step_ms, &links);
    output.text = show_tcp(&output, plan) + &show_predicted(&predicted, step_ms, plan);
    output.rows.extend(predicted.iter().map(|row| predicted_row(row, step_ms)));
    Ok(output)
}

/// The first two cards that this process may use.
fn first_pair(cards: &[CardFacts]) -> Option<[usize; 2]> {
    let mut visible = cards.iter().filter(|facts| facts.card.hidden_by.is_none()).map(|facts| facts.card.index);
    visible.next().zip(visible.next()).map(|(one, other)| [one, other])
}

fn tcp_row(ranks: u32, seen: &Seen, spread: &Spread) -> serde_json::Value {
    let bytes = seen.num_parameters as f64 * GRADIENT_BYTES;
    json!({
        "table": "tcp",
        "ranks": ranks,
        "bytes": bytes,
        "ms": spread.median,
        "low_ms": spread.low,
        "high_ms": spread.high,
        "gb_per_s": bytes / (spread.median * 1e6),
    })
}

fn predicted_row(row: &PredictedScaling, step_ms: f64) -> serde_json::Value {
    json!({
        "table": "predicted",
        "gpus": row.ranks,
        "link": row.link.name,
        "gb_per_s": row.link.gb_per_s,
        "link_measured": row.link.measured,
        "step_ms": step_ms,
        "sum_ms": row.sum_ms,
        "efficiency": row.efficiency,
    })
}

fn show_tcp(output: &BenchOutput, plan: &Plan) -> String {
    let title = format!("Sum of the gradients of the {} model over TCP, on this host", plan.model_size.name());
    let mut table = TextTable::new(title, &["ranks", "MB", "ms", "p25 to p75", "GB/s"]);
    for row in &output.rows {
        let number = |name: &str| row[name].as_f64().unwrap_or(0.0);
        table.row(vec![
            row["ranks"].to_string(),
            format!("{:.1}", number("bytes") / 1e6),
            format!("{:.2}", number("ms")),
            format!("{:.2} to {:.2}", number("low_ms"), number("high_ms")),
            format!("{:.2}", number("gb_per_s")),
        ]);
    }
    table.note("for the CPU and simulated cards; NVIDIA cards use NCCL");
    table.show()
}

fn show_predicted(rows: &[PredictedScaling], step_ms: f64, plan: &Plan) -> String {
    let title = format!("Predicted, not measured: more GPUs like this one, each with a batch of {}", plan.batch_size);
    let mut table = TextTable::new(title, &["GPUs", "link", "GB/s", "sum ms", "efficiency", ""]);
    for row in rows {
        let remark = if row.link.measured { "measured link" } else { "" };
        table.row(vec![
            row.ranks.to_string(),
            row.link.name.clone(),
            format!("{:.1}", row.link.gb_per_s),
            format!("{:.2}", row.sum_ms),
            percent(row.efficiency),
            remark.to_owned(),
        ]);
    }
    table.note(format!(
        "efficiency: step ÷ (step + sum), with a measured step of {step_ms:.2} ms; a ring sends 2 (n − 1) ÷ n of the gradients \
         over its slowest link, in 2 (n − 1) steps of 10 µs, after the backward pass"
    ));
    table.show()
}
