//! `plan --recommend`: settings for cards one may have or buy, each of them solved before it is shown.

use tandem_device::limits::{DATA_SHARE, MODEL_SHARE};

use crate::corpus::{BucketShapes, CorpusFacts};
use crate::hardware::Hardware;
use crate::plan::Plan;
use crate::setting::Id;
use crate::settings::Settings;
use crate::solve::{Care, draft};
use crate::value::{Limit, SettingValue};
use crate::workload::Workloads;

/// Settings for one kind of machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Recommendation {
    /// How many cards.
    pub count: usize,
    /// Memory of each, in GB.
    pub card_gb: u64,
    /// What to set there; none where not even a batch of one fits.
    pub fit: Option<Fit>,
}

/// What to set.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// Utterances of an optimizer step.
    pub batch_size: u64,
    /// Limit of the data role in MB.
    pub data_limit_mb: u64,
    /// Limit of the model role in MB.
    pub model_limit_mb: u64,
    /// Slots towards the model device.
    pub prefetch: u64,
    /// All of it, as it is typed.
    pub args: String,
}

const CARDS_GB: [u64; 8] = [6, 8, 10, 12, 16, 24, 48, 80];
const BATCHES: [u64; 10] = [64, 48, 32, 24, 16, 12, 8, 4, 2, 1];

/// What a row decides; everything else is the user's.
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
    Id::TransferPlan,
];

/// A row for every size of card, one and two of them. `machine` makes the hardware that `--sim` would give for
/// a number of cards and their GB; `settings` says what is wanted besides (model size, lengths, …).
pub fn recommend(
    settings: &Settings,
    machine: &dyn Fn(usize, u64) -> Hardware,
    workloads: &dyn Workloads,
    corpus: Option<&CorpusFacts>,
) -> Vec<Recommendation> {
    let (wanted, shapes) = (settings.without(&DECIDED), BucketShapes::new(corpus));
    let mut rows = Vec::new();
    for count in [1, 2] {
        for card_gb in CARDS_GB {
            let hardware = machine(count, card_gb);
            let attempt = |settings: &Settings| draft(settings, &hardware, workloads, &shapes, Care::Fit).ok();
            rows.push(Recommendation { count, card_gb, fit: best(&wanted, count, card_gb, &attempt) });
        }
    }
    rows
}

/// The rows as a table.
pub fn show_recommendations(rows: &[Recommendation]) -> String {
    let mut text = String::from("cards      batch  data MB  model MB  prefetch  type\n");
    for row in rows {
        let cards = format!("{} x {} GB", row.count, row.card_gb);
        let line = match &row.fit {
            None => format!("{cards:<9}  not even a batch of 1 fits: try a smaller --model-size or --max-mel-frames\n"),
            Some(fit) => format!(
                "{cards:<9}  {:>5}  {:>7}  {:>8}  {:>8}  {}\n",
                fit.batch_size, fit.data_limit_mb, fit.model_limit_mb, fit.prefetch, fit.args
            ),
        };
        text.push_str(&line);
    }
    text
}

/// Where the search for a row begins: a largest batch, and both limits.
struct Start {
    most: u64,
    data: Limit,
    model: Limit,
}

/// Starts, best first: what two cards of usual sizes have been run with; then the usual shares; then nearly all
/// the memory there is for the model.
fn starts(count: usize, card_gb: u64) -> Vec<Start> {
    let most = largest_batch(card_gb);
    let tried = |data, model| Start { most, data: Limit::Mb(data), model: Limit::Mb(model) };
    let shares = |data, model| Start { most, data: Limit::Auto(Some(data)), model: Limit::Auto(Some(model)) };
    let known = match (count, card_gb) {
        (2, 10..=12) => Some(tried(4096, 8192)),
        (2, 16) => Some(tried(6144, 10240)),
        (2, 24) => Some(tried(8192, 16384)),
        _ => None,
    };
    known.into_iter().chain([shares(DATA_SHARE, MODEL_SHARE), shares(0.1, 0.9)]).collect()
}

/// What people start from on cards of this size. No smaller card is told a larger batch.
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
        for batch_size in BATCHES.into_iter().filter(|n| *n <= start.most && n.is_multiple_of(accum)) {
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
    fn usual_sizes_start_from_what_people_have_run() {
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
        assert!(show_recommendations(&rows).contains("not even a batch of 1 fits"));
    }
}
