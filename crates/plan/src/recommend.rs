//! `plan --recommend`: settings for common card sizes. Each row is a solved plan.

use tandem_device::limits::{DATA_SHARE, MODEL_SHARE};

use crate::corpus::{BucketShapes, CorpusFacts};
use crate::hardware::Hardware;
use crate::model_memory::ModelCatalog;
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
    /// Memory of each, in GB.
    pub card_gb: u64,
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
    /// The command-line arguments.
    pub args: String,
}

const CARDS_GB: [u64; 8] = [6, 8, 10, 12, 16, 24, 48, 80];
const BATCHES: [u64; 10] = [64, 48, 32, 24, 16, 12, 8, 4, 2, 1];

/// The settings that a row decides. The user's other settings stay.
const DECIDED: [Id; 11] = [
    Id::BatchSize,
    Id::PrefetchBufferSize,
    Id::Mode,
    Id::DataGpu,
    Id::ModelGpu,
    Id::Gpu,
    Id::ShareGpu,
    Id::EnableMemoryIsolation,
    Id::DataGpuMemory,
    Id::ModelGpuMemory,
    Id::Transfer,
];

/// A row for every card size, with one and with two cards. `machine` returns the hardware that `--sim` gives for a number of
/// cards and their GB; `settings` are the user's other settings (model size, lengths, …).
pub fn recommend(
    settings: &Settings,
    machine: &dyn Fn(usize, u64) -> Hardware,
    models: &dyn ModelCatalog,
    corpus: Option<&CorpusFacts>,
) -> Vec<Recommendation> {
    let (wanted, shapes) = (settings.without(&DECIDED), BucketShapes::new(corpus));
    let mut rows = Vec::new();
    for count in [1, 2] {
        for card_gb in CARDS_GB {
            let hardware = machine(count, card_gb);
            let attempt = |settings: &Settings| draft(settings, &hardware, models, &shapes, Detail::FitOnly).ok();
            rows.push(Recommendation { count, card_gb, fit: best(&wanted, count, card_gb, &attempt) });
        }
    }
    rows
}

/// The rows as a table.
pub fn show_recommendations(rows: &[Recommendation]) -> String {
    let mut text = String::from("cards      batch  data MB  model MB  prefetch  arguments\n");
    for row in rows {
        let cards = format!("{} x {} GB", row.count, row.card_gb);
        let line = match &row.fit {
            None => format!("{cards:<9}  a batch of 1 does not fit: try a smaller --model-size or --max-mel-frames\n"),
            Some(fit) => format!(
                "{cards:<9}  {:>5}  {:>7}  {:>8}  {:>8}  {}\n",
                fit.batch_size, fit.data_limit_mb, fit.model_limit_mb, fit.prefetch, fit.args
            ),
        };
        text.push_str(&line);
    }
    text
}

/// Starting point of the search for a row.
struct Start {
    max_batch: u64,
    data: Limit,
    model: Limit,
}

/// Starting points, best first: limits that users run with two cards of common sizes; then the default shares; then nearly all
/// memory for the model.
fn starts(count: usize, card_gb: u64) -> Vec<Start> {
    let max_batch = largest_batch(card_gb);
    let proven = |data, model| Start { max_batch, data: Limit::Mb(data), model: Limit::Mb(model) };
    let shares = |data, model| Start { max_batch, data: Limit::Auto(Some(data)), model: Limit::Auto(Some(model)) };
    let known = match (count, card_gb) {
        (2, 10..=12) => Some(proven(4096, 8192)),
        (2, 16) => Some(proven(6144, 10240)),
        (2, 24) => Some(proven(8192, 16384)),
        _ => None,
    };
    known.into_iter().chain([shares(DATA_SHARE, MODEL_SHARE), shares(0.1, 0.9)]).collect()
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

fn best(wanted: &Settings, count: usize, card_gb: u64, attempt: &dyn Fn(&Settings) -> Option<Plan>) -> Option<Fit> {
    let accum = wanted.count(Id::GradAccum);
    for start in starts(count, card_gb) {
        for batch_size in BATCHES.into_iter().filter(|n| *n <= start.max_batch && n.is_multiple_of(accum)) {
            let settings = with_start(wanted, count, batch_size, &start);
            if let Some(plan) = attempt(&settings) {
                return Some(fit(settings, &plan, count, card_gb));
            }
        }
    }
    None
}

fn with_start(wanted: &Settings, count: usize, batch_size: u64, start: &Start) -> Settings {
    let mut settings = wanted.clone();
    settings.replace(Id::BatchSize, SettingValue::Count(batch_size));
    settings.replace(Id::EnableMemoryIsolation, SettingValue::Switch(true));
    settings.replace(Id::DataGpuMemory, SettingValue::Limit(start.data));
    settings.replace(Id::ModelGpuMemory, SettingValue::Limit(start.model));
    if count == 1 {
        settings.replace(Id::ShareGpu, SettingValue::Switch(true));
    } else {
        settings.replace(Id::DataGpu, SettingValue::Count(0));
        settings.replace(Id::ModelGpu, SettingValue::Count(1));
    }
    settings
}

fn fit(mut settings: Settings, plan: &Plan, count: usize, card_gb: u64) -> Fit {
    let (data_limit_mb, model_limit_mb) = (plan.data.limit_mb(), plan.model.limit_mb());
    settings.replace(Id::DataGpuMemory, SettingValue::Limit(Limit::Mb(data_limit_mb)));
    settings.replace(Id::ModelGpuMemory, SettingValue::Limit(Limit::Mb(model_limit_mb)));
    let args = format!("--sim {count}x{card_gb}GiB {settings}");
    Fit { batch_size: plan.batch_size, data_limit_mb, model_limit_mb, prefetch: plan.feed.model_slots, args }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Chains, gpus, settings};

    fn rows(line: &str) -> Vec<Recommendation> {
        recommend(&settings(line), &gpus, &Chains, None)
    }

    #[test]
    fn every_row_typed_back_is_accepted() {
        for line in ["", "--model-size big", "--model-size nano --grad-accum 4", "--max-mel-frames 2000 --gpu 3"] {
            for row in rows(line) {
                let Some(fit) = row.fit else { continue };
                let (sim, args) = fit.args.strip_prefix("--sim ").and_then(|rest| rest.split_once(' ')).unwrap();
                assert_eq!(sim, format!("{}x{}GiB", row.count, row.card_gb));
                let plan = Plan::solve(&settings(args), &gpus(row.count, row.card_gb), &Chains, None).unwrap();
                assert_eq!((plan.batch_size, plan.feed.model_slots), (fit.batch_size, fit.prefetch), "{args}");
                assert_eq!((plan.data.limit_mb(), plan.model.limit_mb()), (fit.data_limit_mb, fit.model_limit_mb));
            }
        }
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
