//! What each role holds, line by line.

use tandem_device::DRIVER;
use tandem_device::bytes::{POOL_GRANULE, round_up};
use tandem_events::Role;
use tandem_feed::{Bucket, FeedPlan};

use crate::hardware::Hardware;
use crate::placement::Placement;
use crate::refusal::{Reason, Refusal};
use crate::workload::{PlanLine, ProgramKind, Workload};

/// What a role needs: the driver's part, and what its arena must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Context, modules and headroom. Nothing on the CPU.
    pub(crate) driver_bytes: u64,
    /// What the arena must hold, in whole blocks.
    pub(crate) arena: Vec<PlanLine>,
}

impl Need {
    /// What the arena must hold.
    pub(crate) fn arena_bytes(&self) -> u64 {
        self.arena.iter().map(|line| line.bytes).sum()
    }

    /// The smallest limit this fits into. Pools come in granules, and so does the arena.
    pub(crate) fn smallest_limit(&self) -> u64 {
        self.driver_bytes + round_up(self.arena_bytes(), POOL_GRANULE)
    }

    /// Every line, the driver's first.
    pub(crate) fn lines(&self) -> Vec<PlanLine> {
        let driver = (self.driver_bytes > 0).then(|| PlanLine::new(DRIVER, self.driver_bytes));
        driver.into_iter().chain(self.arena.iter().cloned()).collect()
    }
}

/// The driver's part of each role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DriverShare {
    pub(crate) data: u64,
    pub(crate) model: u64,
}

impl DriverShare {
    /// On two cards each role pays for its own context; on one card the model role does.
    pub(crate) fn of(placement: &Placement, hardware: &Hardware) -> Result<DriverShare, Refusal> {
        let (Some(data_card), Some(model_card)) = (placement.data, placement.model) else {
            return Ok(DriverShare { data: 0, model: 0 });
        };
        let cost =
            |index: usize| hardware.card(index).and_then(|facts| facts.driver.as_ref()).ok_or_else(|| unread(index));
        let (data, model) = (cost(data_card)?, cost(model_card)?);
        let data_context = if data_card == model_card { 0 } else { data.context_bytes };
        Ok(DriverShare {
            data: driver_line(data_context + data.data_modules_bytes),
            model: driver_line(model.context_bytes + model.model_modules_bytes),
        })
    }
}

/// What is set aside for a driver that costs `bytes`: in whole granules, because pools beside it are capped in
/// those, and one more, because the driver's own memory moves by a few MB after it was probed.
pub(crate) fn driver_line(bytes: u64) -> u64 {
    round_up(bytes, POOL_GRANULE) + POOL_GRANULE
}

fn unread(index: usize) -> Refusal {
    Refusal::new(
        Reason::DriverUnread,
        format!("❌ What the driver itself costs on GPU {index} was not read, and no memory sum is right without it"),
    )
}

/// What the data role's arena holds.
pub(crate) fn data_lines(feed: &FeedPlan) -> Vec<PlanLine> {
    let lines = feed.data_lines();
    lines.into_iter().map(|(name, bytes)| PlanLine::new(name, bytes)).collect()
}

/// What the model role's arena holds.
pub(crate) fn model_lines(feed: &FeedPlan, workload: &dyn Workload) -> Vec<PlanLine> {
    let mut lines: Vec<PlanLine> =
        feed.model_lines().into_iter().map(|(name, bytes)| PlanLine::new(name, bytes)).collect();
    lines.extend(workload.lasting());
    let tables = workload.tables(&feed.buckets);
    lines.extend((tables > 0).then(|| PlanLine::new("tables", tables)));
    let peaks = feed.buckets.iter().enumerate().map(|(at, bucket)| (bucket, peak_bytes(workload, at, bucket)));
    if let Some((bucket, bytes)) = peaks.max_by_key(|(_, bytes)| *bytes) {
        let (rows, frames, tokens) = (bucket.batch(), bucket.frames(), bucket.tokens());
        let shape = format!("{rows} rows, {frames} frames, {tokens} tokens");
        lines.push(PlanLine::new(format!("activations (largest bucket: {shape})"), bytes));
    }
    lines
}

/// What the model role's arena holds at least: found from as little as says that it does not fit. First what no shape
/// changes, then one program of the largest shape; asking for all of them takes four times as long.
pub(crate) fn least_model_bytes(feed: &FeedPlan, workload: &dyn Workload, most: u64) -> u64 {
    let slots: u64 = feed.model_lines().iter().map(|(_, bytes)| bytes).sum();
    let lasting = slots + workload.lasting().iter().map(|line| line.bytes).sum::<u64>();
    let largest = feed.buckets.iter().max_by_key(|bucket| bucket.frames()).filter(|_| lasting <= most);
    lasting + largest.map_or(0, |bucket| workload.bytes(ProgramKind::Accumulate, bucket))
}

/// Programs take turns in the same memory. Held-out data has the first shape, so the others are only trained on.
fn peak_bytes(workload: &dyn Workload, at: usize, bucket: &Bucket) -> u64 {
    let programs = if at == 0 { &ProgramKind::ALL[..] } else { &[ProgramKind::Accumulate] };
    programs.iter().map(|program| workload.bytes(*program, bucket)).max().unwrap_or(0)
}

/// What a card or the CPU is called in messages.
pub(crate) fn place(card: Option<usize>) -> String {
    card.map_or_else(|| "the CPU".to_owned(), |index| format!("GPU {index}"))
}

/// `data` for the data role, `model` for the model role.
pub(crate) fn by_role<T>(role: Role, data: T, model: T) -> T {
    match role {
        Role::Data => data,
        Role::Model => model,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{cpu_only, gpus, settings};
    use tandem_device::bytes::MIB;

    #[test]
    fn who_pays_for_the_driver() {
        let check = |line: &str, hardware: &Hardware, data_mb: u64, model_mb: u64| {
            let placement = Placement::choose(&settings(line), hardware).unwrap();
            let share = DriverShare::of(&placement, hardware).unwrap();
            assert_eq!((share.data, share.model), (data_mb * MIB, model_mb * MIB), "{line}");
        };
        // The fixture: context 500, data modules 6, model modules 90; in granules of 32, and one more.
        check("", &cpu_only(), 0, 0);
        check("", &gpus(1, 24), 64, 640);
        check("--share-gpu", &gpus(1, 24), 64, 640);
        check("--data-gpu 1 --model-gpu 0", &gpus(2, 24), 544, 640);
    }

    #[test]
    fn a_card_nobody_probed_cannot_be_planned_for() {
        let mut hardware = gpus(1, 24);
        hardware.cards[0].driver = None;
        let placement = Placement::choose(&settings(""), &hardware).unwrap();
        assert_eq!(DriverShare::of(&placement, &hardware).unwrap_err().kind, Reason::DriverUnread);
    }

    #[test]
    fn the_smallest_limit_is_in_whole_granules() {
        let need = |bytes| Need { driver_bytes: 64 * MIB, arena: vec![PlanLine::new("x", bytes)] };
        assert_eq!(need(32 * MIB).smallest_limit(), 96 * MIB);
        assert_eq!(need(32 * MIB + 256).smallest_limit(), 128 * MIB);
    }
}
