//! The setting to change, and the pace it would give.

use std::fmt;

use crate::facts::{FeedFacts, StepFact};
use crate::flow::{Flow, Time};
use crate::replay;
use crate::stage::Stage;
use crate::statistics::ratio;

/// Decoding is given this much more than it needs: threads that are all at work all the time are late half of the time.
const ROOM: f64 = 1.25;
/// A change that gives less than this is none.
const WORTH: f64 = 1.03;
/// Buffers are not made longer than this many times.
const MAX_LONGER: usize = 8;

/// A setting, spelt by its `Display` as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingChange {
    /// So many decode threads.
    NumWorkers(u32),
    /// Decoded audio is kept in memory.
    CacheMemory,
    /// Batches are handed over inside the card.
    TransferHandover,
    /// Batches cross directly.
    TransferPeer,
    /// Both roles on this card, where nothing has to cross.
    ShareGpu(usize),
    /// The roles on two cards; the model stays where it is.
    SecondCard(usize),
    /// Another card for the data role than this one: a faster one, or one on a faster link.
    OtherDataCard(usize),
    /// The buffer by its flag, of which two cards keep half.
    BufferSize(usize),
}

/// A change and what it is expected to give.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Advice {
    /// The setting.
    pub change: SettingChange,
    /// Steps in a second with it.
    pub steps_per_s: f64,
    /// The pace is an upper bound: how fast the other card or the way to it is cannot be known.
    pub is_at_most: bool,
}

/// What a diagnosis knows when it looks for a change.
pub(crate) struct Adviser<'a> {
    pub(crate) flow: &'a Flow,
    /// The steps it is the mean of.
    pub(crate) steps: &'a [StepFact],
    pub(crate) setting: &'a FeedFacts,
    /// The step alone, where it was measured: without features beside it on the card.
    pub(crate) headspace_ns: Option<f64>,
    /// Measured.
    pub(crate) steps_per_s: f64,
}

impl Adviser<'_> {
    /// What to change when the step waits for `stage`.
    pub(crate) fn for_stage(&self, stage: Stage) -> Option<Advice> {
        match stage {
            Stage::Load => self.for_load(),
            // Without cards there is none that could be another one.
            _ if self.setting.places.is_cpu => None,
            Stage::Upload => self.other_data_card(),
            Stage::Features if self.flow.is_one_card => self.second_card(),
            Stage::Features => self.other_data_card(),
            Stage::Transfer => self.for_transfer(),
        }
    }

    /// What to change when stages keep up in the mean and not always.
    pub(crate) fn for_variation(&self) -> Option<Advice> {
        let (flow, now) = (self.flow, self.steps_per_s);
        let replayed = |ahead: usize| replay::steps_per_s(self.steps, flow, ahead, flow.slots);
        // The replay knows no noise but the log's: what it gets wrong now it gets wrong with longer buffers too.
        let longer = |times: usize| now * ratio(replayed(flow.ahead * times), replayed(flow.ahead));
        let most = longer(MAX_LONGER);
        let enough = [2, 4, MAX_LONGER].into_iter().find(|times| longer(*times) > 0.98 * most)?;
        let typed = flow.ahead * enough * if self.setting.places.is_one_device() { 1 } else { 2 };
        let advice =
            Advice { change: SettingChange::BufferSize(typed), steps_per_s: longer(enough), is_at_most: false };
        (advice.steps_per_s > WORTH * now).then_some(advice)
    }

    fn for_load(&self) -> Option<Advice> {
        // On the CPU a step that decodes nothing has the cores to itself, as when it was measured alone.
        let alone_ns = self.headspace_ns.filter(|_| self.setting.places.is_cpu).unwrap_or(self.flow.train.mean_ns);
        let train = Time { mean_ns: alone_ns.min(self.flow.train.mean_ns), ..self.flow.train };
        let without = Flow { load_work: Time::NONE, train, ..self.flow.clone() };
        let others_ns = 1e9 / without.steps_per_s();
        let needed = (ROOM * self.flow.load_work.mean_ns / others_ns).ceil().max(1.0);
        let most = self.setting.cores.map_or(needed, f64::from);
        let threads = needed.min(most);
        let with = Flow { threads, ..self.flow.clone() };
        let is_enough = threads > self.flow.threads && with.steps_per_s() > 0.9 * without.steps_per_s();
        match is_enough {
            true => self.worth_it(SettingChange::NumWorkers(threads as u32), &with),
            false => self.worth_it(SettingChange::CacheMemory, &without),
        }
    }

    /// What crosses between the cards then is not known where batches are handed over now.
    fn second_card(&self) -> Option<Advice> {
        let advice =
            self.worth_it(SettingChange::SecondCard(self.setting.places.model().unwrap_or(0)), &self.apart())?;
        Some(Advice { is_at_most: self.flow.transfer == Time::NONE, ..advice })
    }

    /// A card so fast that it is never waited for: how fast another one really is cannot be known.
    fn other_data_card(&self) -> Option<Advice> {
        let ideal = Flow { upload: Time::NONE, features: Time::NONE, ..self.apart() };
        let advice = self.worth_it(SettingChange::OtherDataCard(self.setting.places.data().unwrap_or(0)), &ideal)?;
        Some(Advice { is_at_most: true, ..advice })
    }

    fn apart(&self) -> Flow {
        let alone_ns = self.headspace_ns.filter(|_| self.flow.is_one_card).unwrap_or(self.flow.train.mean_ns);
        let train = Time { mean_ns: alone_ns, ..self.flow.train };
        Flow { is_one_card: false, train, ..self.flow.clone() }
    }

    fn for_transfer(&self) -> Option<Advice> {
        let handed_over = Flow { transfer: Time::NONE, ..self.flow.clone() };
        if self.flow.is_one_card {
            return self.worth_it(SettingChange::TransferHandover, &handed_over);
        }
        // A bounce crosses two links one after the other.
        let direct = Flow { transfer: self.flow.transfer.shared_by(2.0), ..self.flow.clone() };
        let on_one = Flow { is_one_card: true, ..handed_over };
        let is_bounce = self.setting.route.as_deref() == Some("bounce");
        match self.setting.places.model() {
            Some(card) if !is_bounce || on_one.steps_per_s() > direct.steps_per_s() => {
                self.worth_it(SettingChange::ShareGpu(card), &on_one)
            }
            _ => self.worth_it(SettingChange::TransferPeer, &direct),
        }
    }

    fn worth_it(&self, change: SettingChange, flow: &Flow) -> Option<Advice> {
        let steps_per_s = flow.steps_per_s();
        (steps_per_s > WORTH * self.steps_per_s).then_some(Advice { change, steps_per_s, is_at_most: false })
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
            SettingChange::OtherDataCard(card) => write!(f, "another --data-gpu than {card}"),
            SettingChange::BufferSize(batches) => write!(f, "--buffer-size {batches}"),
        }
    }
}

impl fmt::Display for Advice {
    /// `--num-workers 6: 61.2 steps/s predicted`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at_most = if self.is_at_most { "at most " } else { "" };
        write!(f, "{}: {at_most}{:.1} steps/s predicted", self.change, self.steps_per_s)
    }
}
