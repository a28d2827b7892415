//! `plan --recommend`: settings for common card sizes. Each row is a solved plan.

use tandem_device::limits::{DATA_SHARE, MODEL_SHARE};

use crate::corpus::{BucketShapes, CorpusFacts};
use crate::hardware::Hardware;
use crate::model_memory::ModelCatalog;
use crate::placement::PLACEMENT;
use crate::plan::Plan;
use crate::setting::Id;
use crate::settings::Settings;
use crate::solve::{Detail, draft};
use crate::value::{Limit, SettingValue};

/// Settings for one kind of machine: a row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Recommendation {
    /// Number of cards.
    pub count: usize,
    /// Memory of each, in GB; of the smaller one if they differ.
    pub card_gb: u64,
    /// The cards to simulate, if this machine cannot run the row: `2x24GiB`.
    pub sim: Option<String>,
    /// The settings; `None` if not even a batch of one fits.
    pub fit: Option<Fit>,
}

/// Recommended settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// Utterances per optimizer step.
    pub batch_size: u64,
    /// Limit of the data role in MB.
    pub data_limit_mb: u64,
    /// Limit of the model role in MB.
    pub model_limit_mb: u64,
    /// Batch slots on the model side.
    pub prefetch: u64,
    /// Batches prefetched on the data side.
    pub buffer: u64,
    /// The command-line arguments, which this machine accepts.
    pub args: String,
}

const CARDS_GB: [u64; 8] = [6, 8, 10, 12, 16, 24, 48, 80];
const BATCHES: [u64; 10] = [64, 48, 32, 24, 16, 12, 8, 4, 2, 1];

/// The settings that a row decides, beside the [`PLACEMENT`]. The user's other settings stay.
const DECIDED: [Id; 2] = [Id::BatchSize, Id::PrefetchBufferSize];

/// A row for every common card size, with one and with two cards. `simulated` returns the hardware that `--sim` gives for a
/// number of cards and their GB; `settings` are the user's other settings (model size, lengths, …).
///
/// `real` is the hardware of a machine with usable cards, whose driver was read. Its own cards come first, and the arguments
/// of every row that it can run name its cards. Only the other rows simulate theirs.
pub fn recommend(
    settings: &Settings,
    simulated: &dyn Fn(usize, u64) -> Hardware,
    real: Option<&Hardware>,
    models: &dyn ModelCatalog,
    corpus: Option<&CorpusFacts>,
) -> Vec<Recommendation> {
    let (wanted, shapes) = (settings.without(&DECIDED).without(&PLACEMENT), BucketShapes::new(corpus));
    let solve = |settings: &Settings, on: &Hardware| draft(settings, on, models, &shapes, Detail::FitOnly).ok();
    let own = |count: usize| real.and_then(|hardware| Some((hardware, largest_cards(hardware, count)?)));
    let mut rows = Vec::new();
    for (count, (hardware, cards)) in [1, 2].into_iter().filter_map(|count| Some((count, own(count)?))) {
        let card_gb = smallest_gb(hardware, &cards);
        let found = best(&wanted, &cards, card_gb, &|settings| solve(settings, hardware));
        rows.push(Recommendation {
            count,
            card_gb,
            sim: None,
            fit: found.map(|(settings, plan)| fit(&settings, &plan)),
        });
    }
    for count in [1, 2] {
        for card_gb in CARDS_GB {
            let hardware = simulated(count, card_gb);
            let cards: Vec<usize> = (0..count).collect();
            let found = best(&wanted, &cards, card_gb, &|settings| solve(settings, &hardware));
            rows.push(row(count, card_gb, found, |settings| {
                let (hardware, cards) = own(count)?;
                let here = on_cards(settings, &cards);
                solve(&here, hardware).map(|_| here)
            }));
        }
    }
    rows
}

/// The row of a common card size. `on_this_machine` returns the settings with this machine's cards, if it can run them.
fn row(
    count: usize,
    card_gb: u64,
    found: Option<(Settings, Plan)>,
    on_this_machine: impl Fn(&Settings) -> Option<Settings>,
) -> Recommendation {
    let sim = Some(format!("{count}x{card_gb}GiB"));
    let Some((settings, plan)) = found else { return Recommendation { count, card_gb, sim, fit: None } };
    match on_this_machine(&settings) {
        Some(own) => Recommendation { count, card_gb, sim: None, fit: Some(fit(&own, &plan)) },
        None => {
            let Fit { args, .. } = fit(&settings, &plan);
            let args = format!("--sim {count}x{card_gb}GiB {args}");
            Recommendation { count, card_gb, sim, fit: Some(Fit { args, ..fit(&settings, &plan) }) }
        }
    }
}

/// The rows as a table; on a machine with cards, what it can run first.
pub fn show_recommendations(rows: &[Recommendation]) -> String {
    let (here, elsewhere): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.sim.is_none());
    if here.is_empty() {
        return table(&elsewhere);
    }
    let mut text = format!("On the cards of this machine:\n{}", table(&here));
    if !elsewhere.is_empty() {
        text += &format!("\nOn cards that this machine does not have, simulated:\n{}", table(&elsewhere));
    }
    text
}

fn table(rows: &[&Recommendation]) -> String {
    let mut text = String::from("cards       batch  data MB  model MB  prefetch  buffer  arguments\n");
    for row in rows {
        let cards = format!("{} x {} GB", row.count, row.card_gb);
        let line = match &row.fit {
            None => format!("{cards:<10}  a batch of 1 does not fit: try a smaller --model-size or --max-mel-frames\n"),
            Some(fit) => format!(
                "{cards:<10}  {:>5}  {:>7}  {:>8}  {:>8}  {:>6}  {}\n",
                fit.batch_size, fit.data_limit_mb, fit.model_limit_mb, fit.prefetch, fit.buffer, fit.args
            ),
        };
        text.push_str(&line);
    }
    text
}

/// The usable cards with the most free memory: one, or two of which the model role gets the larger. `None` if there are fewer.
fn largest_cards(hardware: &Hardware, count: usize) -> Option<Vec<usize>> {
    let usable = hardware.cards.iter().filter(|facts| facts.card.hidden_by.is_none() && facts.driver.is_some());
    let mut cards: Vec<_> = usable.map(|facts| (facts.reading.free_bytes, facts.card.index)).collect();
    cards.sort_by_key(|(free_bytes, index)| (std::cmp::Reverse(*free_bytes), *index));
    let mut cards = cards.get(..count)?.to_vec();
    cards.sort_unstable();
    Some(cards.into_iter().map(|(_, index)| index).collect())
}

/// The total memory of the smallest of these cards.
fn smallest_gb(hardware: &Hardware, cards: &[usize]) -> u64 {
    let totals = cards.iter().filter_map(|index| hardware.card(*index)).map(|facts| facts.reading.total_bytes >> 30);
    totals.min().unwrap_or(0)
}

/// Starting point of the search for a row. `None` is the default limit.
struct Start {
    max_batch: u64,
    data: Option<Limit>,
    model: Option<Limit>,
}

/// Starting points, best first: limits that users run with two cards of common sizes; then the default shares; then nearly all
/// memory for the model; then the default limits, which are lowered to what is free.
fn starts(count: usize, card_gb: u64) -> Vec<Start> {
    let max_batch = largest_batch(card_gb);
    let limits = |data, model| Start { max_batch, data: Some(data), model: Some(model) };
    let shares = |data, model| limits(Limit::Auto(Some(data)), Limit::Auto(Some(model)));
    let known = match (count, card_gb) {
        (2, 10..=12) => Some(limits(Limit::Mb(4096), Limit::Mb(8192))),
        (2, 16) => Some(limits(Limit::Mb(6144), Limit::Mb(10240))),
        (2, 24) => Some(limits(Limit::Mb(8192), Limit::Mb(16384))),
        _ => None,
    };
    let last = Start { max_batch, data: None, model: None };
    known.into_iter().chain([shares(DATA_SHARE, MODEL_SHARE), shares(0.1, 0.9), last]).collect()
}

/// A common starting batch on cards of this size. It grows with the card.
fn largest_batch(card_gb: u64) -> u64 {
    match card_gb {
        0..=12 => 8,
        13..=16 => 12,
        17..=24 => 24,
        _ => BATCHES[0],
    }
}

fn best(
    wanted: &Settings,
    cards: &[usize],
    card_gb: u64,
    attempt: &dyn Fn(&Settings) -> Option<Plan>,
) -> Option<(Settings, Plan)> {
    let accum = wanted.count(Id::GradAccum);
    for start in starts(cards.len(), card_gb) {
        for batch_size in BATCHES.into_iter().filter(|n| *n <= start.max_batch && n.is_multiple_of(accum)) {
            let settings = on_cards(&with_start(wanted, batch_size, &start), cards);
            if let Some(plan) = attempt(&settings) {
                return Some((with_limits(settings, &plan), plan));
            }
        }
    }
    None
}

fn with_start(wanted: &Settings, batch_size: u64, start: &Start) -> Settings {
    let mut settings = wanted.clone();
    settings.replace(Id::BatchSize, SettingValue::Count(batch_size));
    settings.replace(Id::EnableMemoryIsolation, SettingValue::Switch(true));
    for (id, limit) in [(Id::DataGpuMemory, start.data), (Id::ModelGpuMemory, start.model)] {
        if let Some(limit) = limit {
            settings.replace(id, SettingValue::Limit(limit));
        }
    }
    settings
}

/// The settings with their roles on these cards: both on one, or the data role on the first of two.
fn on_cards(settings: &Settings, cards: &[usize]) -> Settings {
    let mut settings = settings.clone();
    let index = SettingValue::gpu;
    match cards {
        [data, model] => {
            settings.replace(Id::DataGpu, index(*data));
            settings.replace(Id::ModelGpu, index(*model));
        }
        [0] => settings.replace(Id::ShareGpu, SettingValue::Switch(true)),
        _ => {
            settings.replace(Id::ShareGpu, SettingValue::Switch(true));
            cards.iter().for_each(|card| settings.replace(Id::Gpu, index(*card)));
        }
    }
    settings
}

/// The settings with the limits of their plan in MB.
fn with_limits(mut settings: Settings, plan: &Plan) -> Settings {
    settings.replace(Id::DataGpuMemory, SettingValue::Limit(Limit::Mb(plan.data.limit_mb())));
    settings.replace(Id::ModelGpuMemory, SettingValue::Limit(Limit::Mb(plan.model.limit_mb())));
    settings
}

fn fit(settings: &Settings, plan: &Plan) -> Fit {
    Fit {
        batch_size: plan.batch_size,
        data_limit_mb: plan.data.limit_mb(),
        model_limit_mb: plan.model.limit_mb(),
        prefetch: plan.feed.model_slots,
        buffer: plan.feed.data_slots,
        args: settings.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Chains, gpus, settings};

    fn rows(line: &str) -> Vec<Recommendation> {
        recommend(&settings(line), &gpus, None, &Chains, None)
    }

    /// The row, typed on `hardware`, gives the plan that it promises.
    #[track_caller]
    fn check_typed(fit: &Fit, args: &str, hardware: &Hardware) {
        let plan = Plan::solve(&settings(args), hardware, &Chains, None).unwrap();
        assert_eq!((plan.batch_size, plan.feed.model_slots), (fit.batch_size, fit.prefetch), "{args}");
        assert_eq!((plan.data.limit_mb(), plan.model.limit_mb()), (fit.data_limit_mb, fit.model_limit_mb));
        assert_eq!(plan.feed.data_slots, fit.buffer, "{args}");
    }

    #[test]
    fn every_row_typed_back_is_accepted() {
        for line in ["", "--model-size big", "--model-size nano --grad-accum 4", "--max-mel-frames 2000 --gpu 3"] {
            for row in rows(line) {
                let Some(fit) = &row.fit else { continue };
                let (sim, args) = fit.args.strip_prefix("--sim ").and_then(|rest| rest.split_once(' ')).unwrap();
                assert_eq!(sim, format!("{}x{}GiB", row.count, row.card_gb));
                assert_eq!(Some(sim), row.sim.as_deref());
                check_typed(fit, args, &gpus(row.count, row.card_gb));
            }
        }
    }

    /// Real cards of these sizes in GB. Other processes use 1 GB of each.
    fn real_cards(sizes_gb: &[u64]) -> Hardware {
        let mut hardware = Hardware { kind: tandem_device::DeviceKind::Cuda, ..gpus(sizes_gb.len(), 24) };
        for (facts, gb) in hardware.cards.iter_mut().zip(sizes_gb) {
            (facts.reading.total_bytes, facts.reading.free_bytes) = (gb << 30, (gb - 1) << 30);
        }
        hardware
    }

    #[test]
    fn on_real_cards_every_row_that_they_can_run_is_for_them() {
        for sizes in [&[24][..], &[12, 24], &[10, 10], &[48, 16, 80]] {
            let hardware = real_cards(sizes);
            let rows = recommend(&settings("--model-size nano"), &gpus, Some(&hardware), &Chains, None);
            assert_eq!(rows.len(), 16 + sizes.len().min(2), "one row for each number of its own cards");
            for row in &rows {
                let fit = row.fit.as_ref().unwrap();
                match &row.sim {
                    None => check_typed(fit, &fit.args, &hardware),
                    Some(sim) => assert!(fit.args.starts_with(&format!("--sim {sim} ")), "{}", fit.args),
                }
                let largest = sizes.iter().max().unwrap();
                assert!(row.sim.is_none() || row.count == 2 || row.card_gb >= *largest, "{row:?}");
                assert!(row.sim.is_some() || row.count <= sizes.len(), "{row:?}");
            }
            let text = show_recommendations(&rows);
            let (here, _) = text.split_once("does not have").unwrap();
            assert!(here.starts_with("On the cards of this machine:") && !here.contains("--sim"), "{text}");
        }
        // The model role gets the larger card.
        let rows = recommend(&settings(""), &gpus, Some(&real_cards(&[24, 12])), &Chains, None);
        assert!(rows[1].fit.as_ref().unwrap().args.contains("--data-gpu 1 --model-gpu 0"), "{:?}", rows[1]);
    }

    #[test]
    fn common_sizes_start_from_proven_limits() {
        let rows = rows("");
        assert_eq!(rows.len(), 16);
        let check = |count: usize, card_gb: u64, expected: (u64, u64, u64, u64)| {
            let fit = rows.iter().find(|r| (r.count, r.card_gb) == (count, card_gb)).unwrap().fit.as_ref().unwrap();
            assert_eq!(
                (fit.batch_size, fit.data_limit_mb, fit.model_limit_mb, fit.prefetch),
                expected,
                "{count}x{card_gb}"
            );
        };
        check(2, 10, (8, 4096, 8192, 8));
        check(2, 12, (8, 4096, 8192, 8));
        check(2, 16, (12, 6144, 10240, 5));
        check(2, 24, (24, 8192, 16384, 3));
        assert!(rows.iter().all(|row| row.fit.is_some()));
        let batches = |count| rows.iter().filter(move |r| r.count == count).map(|r| r.fit.as_ref().unwrap().batch_size);
        assert!(batches(1).is_sorted() && batches(2).is_sorted());
    }

    #[test]
    fn a_card_too_small_for_the_model_says_so() {
        let rows = rows("--model-size big");
        assert!(rows.iter().any(|row| row.fit.is_none()) && rows.iter().any(|row| row.fit.is_some()));
        assert!(show_recommendations(&rows).contains("a batch of 1 does not fit"));
    }
}
