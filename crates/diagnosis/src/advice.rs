//! Which setting to change, and the predicted throughput.

use std::fmt;

use crate::facts::{FeedFacts, StepFact};
use crate::flow::{Flow, ServiceTime};
use crate::replay;
use crate::stage::Stage;
use crate::statistics::ratio;

/// Spare capacity for decoding: threads that are always busy are late half of the time.
const SPARE_CAPACITY: f64 = 1.25;
/// A change must predict at least this speed-up.
const MIN_SPEEDUP: f64 = 1.03;
/// Buffers grow by at most this factor.
const MAX_GROWTH: usize = 8;

/// A changed setting. `Display` is what to type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingChange {
    /// Number of decode threads.
    NumWorkers(u32),
    /// Cache decoded audio in memory.
    CacheMemory,
    /// Hand batches over inside the card.
    TransferHandover,
    /// Copy batches directly between the cards.
    TransferPeer,
    /// Both roles on this card, without copies between cards.
    ShareGpu(usize),
    /// The roles on two cards; the model stays on this one.
    SecondCard(usize),
    /// A card for the data role other than this one: a faster one, or one with a faster link.
    OtherDataCard(usize),
    /// The value of `--buffer-size`, of which two cards use half.
    BufferSize(usize),
}

/// A change and its predicted throughput.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Advice {
    /// The changed setting.
    pub change: SettingChange,
    /// Predicted steps per second.
    pub steps_per_s: f64,
    /// The prediction is an upper bound, because the speed of the other card or link is unknown.
    pub is_upper_bound: bool,
}

/// Computes advice from the facts of a diagnosis.
pub(crate) struct Adviser<'a> {
    pub(crate) flow: &'a Flow,
    /// The steps that `flow` averages.
    pub(crate) steps: &'a [StepFact],
    pub(crate) feed: &'a FeedFacts,
    /// Mean model-only time of the steps, if the log has it: without features on the same card.
    pub(crate) model_only_ns: Option<f64>,
    /// Measured throughput.
    pub(crate) steps_per_s: f64,
}

impl Adviser<'_> {
    /// What to change when the step waits for `stage`.
    pub(crate) fn for_stage(&self, stage: Stage) -> Option<Advice> {
        match stage {
            Stage::Load => self.for_load(),
            // Without cards there is no other card.
            _ if self.feed.devices.is_cpu => None,
            Stage::Upload => self.other_data_card(),
            Stage::Features if self.flow.is_one_card => self.second_card(),
            Stage::Features => self.other_data_card(),
            Stage::Transfer => self.for_transfer(),
        }
    }

    /// What to change when stages are fast enough on average but vary.
    pub(crate) fn for_variation(&self) -> Option<Advice> {
        let (flow, now) = (self.flow, self.steps_per_s);
        let replayed = |ahead: usize| replay::steps_per_s(self.steps, flow, ahead, flow.slots);
        // The replay has the log's noise only. Its error is the same with the current buffers, so the ratio cancels it.
        let with_growth = |factor: usize| now * ratio(replayed(flow.ahead * factor), replayed(flow.ahead));
        let best = with_growth(MAX_GROWTH);
        let enough = [2, 4, MAX_GROWTH].into_iter().find(|factor| with_growth(*factor) > 0.98 * best)?;
        let buffer_size = flow.ahead * enough * if self.feed.devices.is_one_device() { 1 } else { 2 };
        let change = SettingChange::BufferSize(buffer_size);
        let advice = Advice { change, steps_per_s: with_growth(enough), is_upper_bound: false };
        (advice.steps_per_s > MIN_SPEEDUP * now).then_some(advice)
    }

    fn for_load(&self) -> Option<Advice> {
        // On the CPU a step without concurrent decoding has all cores, as in the model-only measurement.
        let alone_ns = self.model_only_ns.filter(|_| self.feed.devices.is_cpu).unwrap_or(self.flow.train.mean_ns);
        let train = ServiceTime { mean_ns: alone_ns.min(self.flow.train.mean_ns), ..self.flow.train };
        let without = Flow { load_work: ServiceTime::NONE, train, ..self.flow.clone() };
        let others_ns = 1e9 / without.steps_per_s();
        let needed = (SPARE_CAPACITY * self.flow.load_work.mean_ns / others_ns).ceil().max(1.0);
        let max = self.feed.cores.map_or(needed, f64::from);
        let threads = needed.min(max);
        let with = Flow { threads, ..self.flow.clone() };
        let is_enough = threads > self.flow.threads && with.steps_per_s() > 0.9 * without.steps_per_s();
        match is_enough {
            true => self.if_faster(SettingChange::NumWorkers(threads as u32), &with),
            false => self.if_faster(SettingChange::CacheMemory, &without),
        }
    }

    /// If batches are handed over now, the copy time between the cards is unknown, and the prediction is an upper bound.
    fn second_card(&self) -> Option<Advice> {
        let advice =
            self.if_faster(SettingChange::SecondCard(self.feed.devices.model().unwrap_or(0)), &self.on_two_cards())?;
        Some(Advice { is_upper_bound: self.flow.transfer == ServiceTime::NONE, ..advice })
    }

    /// An infinitely fast data card: the speed of another card is unknown, and the prediction is an upper bound.
    fn other_data_card(&self) -> Option<Advice> {
        let ideal = Flow { upload: ServiceTime::NONE, features: ServiceTime::NONE, ..self.on_two_cards() };
        let advice = self.if_faster(SettingChange::OtherDataCard(self.feed.devices.data().unwrap_or(0)), &ideal)?;
        Some(Advice { is_upper_bound: true, ..advice })
    }

    fn on_two_cards(&self) -> Flow {
        let alone_ns = self.model_only_ns.filter(|_| self.flow.is_one_card).unwrap_or(self.flow.train.mean_ns);
        let train = ServiceTime { mean_ns: alone_ns, ..self.flow.train };
        Flow { is_one_card: false, train, ..self.flow.clone() }
    }

    fn for_transfer(&self) -> Option<Advice> {
        let handed_over = Flow { transfer: ServiceTime::NONE, ..self.flow.clone() };
        if self.flow.is_one_card {
            return self.if_faster(SettingChange::TransferHandover, &handed_over);
        }
        // A bounce uses two links one after the other.
        let direct = Flow { transfer: self.flow.transfer.shared_by(2.0), ..self.flow.clone() };
        let on_one = Flow { is_one_card: true, ..handed_over };
        let is_bounce = self.feed.route.as_deref() == Some("bounce");
        match self.feed.devices.model() {
            Some(card) if !is_bounce || on_one.steps_per_s() > direct.steps_per_s() => {
                self.if_faster(SettingChange::ShareGpu(card), &on_one)
            }
            _ => self.if_faster(SettingChange::TransferPeer, &direct),
        }
    }

    fn if_faster(&self, change: SettingChange, flow: &Flow) -> Option<Advice> {
        let steps_per_s = flow.steps_per_s();
        (steps_per_s > MIN_SPEEDUP * self.steps_per_s).then_some(Advice { change, steps_per_s, is_upper_bound: false })
    }
}

impl fmt::Display for SettingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SettingChange::NumWorkers(threads) => write!(f, "--num-workers {threads}"),
            SettingChange::CacheMemory => f.write_str("--cache memory"),
            SettingChange::TransferHandover => f.write_str("--transfer handover"),
            SettingChange::TransferPeer => f.write_str("--transfer peer"),
            SettingChange::ShareGpu(card) => write!(f, "--share-gpu --gpu {card}"),
            SettingChange::SecondCard(card) => write!(f, "--data-gpu {} --model-gpu {card}", usize::from(*card == 0)),
            SettingChange::OtherDataCard(card) => write!(f, "a --data-gpu other than {card}"),
            SettingChange::BufferSize(batches) => write!(f, "--buffer-size {batches}"),
        }
    }
}

impl fmt::Display for Advice {
    /// `--num-workers 6: 61.2 steps/s predicted`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at_most = if self.is_upper_bound { "at most " } else { "" };
        write!(f, "{}: {at_most}{:.1} steps/s predicted", self.change, self.steps_per_s)
    }
}
