//! The memory of each role, line by line.

use tandem_device::bytes::{MIB, POOL_GRANULE, round_up};
use tandem_device::{DRIVER, DeviceKind};
use tandem_events::Role;
use tandem_feed::{Bucket, FeedPlan};

use crate::hardware::Hardware;
use crate::model_memory::{ModelMemory, PlanLine, ProgramKind};
use crate::placement::Placement;
use crate::refusal::{Reason, Refusal};

/// Device memory of NCCL's channels and buffers. An assumption: it has not been measured on a card yet, and a run that finds more
/// than planned ends before its first step.
const NCCL_BYTES: u64 = 512 * MIB;

/// The memory a role needs: the driver's part and its arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Context, modules and headroom; 0 on the CPU.
    pub(crate) driver_bytes: u64,
    /// Contents of the arena, in whole blocks.
    pub(crate) arena: Vec<PlanLine>,
    /// The part of them that the other role's card accesses: the slots, over a peer route.
    pub(crate) slots_bytes: u64,
}

impl Need {
    /// Size of the contents.
    pub(crate) fn arena_bytes(&self) -> u64 {
        self.arena.iter().map(|line| line.bytes).sum()
    }

    /// Size of the part that the other role's card may access: a pool of its own.
    pub(crate) fn peer_bytes(&self) -> u64 {
        round_up(self.slots_bytes, POOL_GRANULE)
    }

    /// The smallest arena that holds the contents. Driver pools are allocated in granules.
    pub(crate) fn smallest_arena(&self) -> u64 {
        self.peer_bytes() + round_up(self.arena_bytes() - self.slots_bytes, POOL_GRANULE)
    }

    /// The smallest limit that fits.
    pub(crate) fn smallest_limit(&self) -> u64 {
        self.driver_bytes + self.smallest_arena()
    }

    /// All lines, the driver's first.
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
    /// On two cards the context of each card counts for its role; on one card it counts for the model role.
    pub(crate) fn of(placement: &Placement, hardware: &Hardware) -> Result<DriverShare, Refusal> {
        let (Some(data_card), Some(model_card)) = (placement.data, placement.model) else {
            return Ok(DriverShare { data: 0, model: 0 });
        };
        let cost = |index: usize| {
            hardware.card(index).and_then(|facts| facts.driver.as_ref()).ok_or_else(|| driver_unread(index))
        };
        let (data, model) = (cost(data_card)?, cost(model_card)?);
        // NCCL allocates outside arenas, when the ranks join and in their first sum.
        let communicator = if hardware.kind == DeviceKind::Cuda && hardware.world.size > 1 { NCCL_BYTES } else { 0 };
        let data_context = if data_card == model_card { 0 } else { data.context_bytes };
        Ok(DriverShare {
            data: driver_line(data_context + data.data_modules_bytes),
            model: driver_line(model.context_bytes + model.model_modules_bytes + communicator),
        })
    }
}

/// Memory reserved for a driver that uses `bytes`: rounded up to whole granules, because the pools next to it are capped in
/// granules, plus one granule, because the driver's own use changes by a few MB after it was probed.
pub(crate) fn driver_line(bytes: u64) -> u64 {
    round_up(bytes, POOL_GRANULE) + POOL_GRANULE
}

fn driver_unread(index: usize) -> Refusal {
    Refusal::new(
        Reason::DriverUnread,
        format!("❌ The driver's own memory use on GPU {index} was not measured, so the plan cannot be computed"),
    )
}

/// Contents of the data role's arena.
pub(crate) fn data_lines(feed: &FeedPlan) -> Vec<PlanLine> {
    let lines = feed.data_lines();
    lines.into_iter().map(|(name, bytes)| PlanLine::new(name, bytes)).collect()
}

/// Contents of the model role's arena.
pub(crate) fn model_lines(feed: &FeedPlan, model: &dyn ModelMemory) -> Vec<PlanLine> {
    let mut lines: Vec<PlanLine> =
        feed.model_lines().into_iter().map(|(name, bytes)| PlanLine::new(name, bytes)).collect();
    lines.extend(model.persistent());
    let tables = model.tables(&feed.buckets);
    lines.extend((tables > 0).then(|| PlanLine::new("tables", tables)));
    let peaks = feed.buckets.iter().enumerate().map(|(at, bucket)| (bucket, peak_bytes(model, at, bucket)));
    if let Some((bucket, bytes)) = peaks.max_by_key(|(_, bytes)| *bytes) {
        let (rows, frames, tokens) = (bucket.batch(), bucket.frames(), bucket.tokens());
        let shape = format!("{rows} rows, {frames} frames, {tokens} tokens");
        lines.push(PlanLine::new(format!("activations (largest bucket: {shape})"), bytes));
    }
    lines
}

/// A lower bound on the model role's arena that is cheap to compute, to reject plans that exceed `limit`: first what does not
/// depend on the shape, then one program of the largest shape. Computing all programs takes four times as long.
pub(crate) fn min_model_bytes(feed: &FeedPlan, model: &dyn ModelMemory, limit: u64) -> u64 {
    let slots: u64 = feed.model_lines().iter().map(|(_, bytes)| bytes).sum();
    let persistent = slots + model.persistent().iter().map(|line| line.bytes).sum::<u64>();
    let largest = feed.buckets.iter().max_by_key(|bucket| bucket.frames()).filter(|_| persistent <= limit);
    persistent + largest.map_or(0, |bucket| model.bytes(ProgramKind::Accumulate, bucket))
}

/// The largest program on this bucket: programs share their memory. Validation uses the first bucket only.
fn peak_bytes(model: &dyn ModelMemory, at: usize, bucket: &Bucket) -> u64 {
    let programs = if at == 0 { &ProgramKind::ALL[..] } else { &[ProgramKind::Accumulate] };
    programs.iter().map(|program| model.bytes(*program, bucket)).max().unwrap_or(0)
}

/// The name of a card or the CPU in messages.
pub(crate) fn device_name(card: Option<usize>) -> String {
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
    fn driver_memory_counts_for_the_role_on_its_card() {
        let check = |line: &str, hardware: &Hardware, data_mb: u64, model_mb: u64| {
            let placement = Placement::choose(&settings(line), hardware).unwrap();
            let share = DriverShare::of(&placement, hardware).unwrap();
            assert_eq!((share.data, share.model), (data_mb * MIB, model_mb * MIB), "{line}");
        };
        // The fixture: context 500, data modules 6, model modules 90; rounded up to 32, plus 32.
        check("", &cpu_only(), 0, 0);
        check("", &gpus(1, 24), 64, 640);
        check("--share-gpu", &gpus(1, 24), 64, 640);
        check("--data-gpu 1 --model-gpu 0", &gpus(2, 24), 544, 640);
    }

    #[test]
    fn a_card_whose_driver_was_not_measured_is_refused() {
        let mut hardware = gpus(1, 24);
        hardware.cards[0].driver = None;
        let placement = Placement::choose(&settings(""), &hardware).unwrap();
        assert_eq!(DriverShare::of(&placement, &hardware).unwrap_err().kind, Reason::DriverUnread);
    }

    #[test]
    fn the_smallest_limit_is_rounded_up_to_whole_granules() {
        let need = |bytes, slots_bytes| {
            let need = Need { driver_bytes: 64 * MIB, arena: vec![PlanLine::new("x", bytes)], slots_bytes };
            (need.smallest_limit() / MIB, need.peer_bytes() / MIB)
        };
        assert_eq!(need(32 * MIB, 0), (96, 0));
        assert_eq!(need(32 * MIB + 256, 0), (128, 0));
        // The slots are a pool of their own.
        assert_eq!(need(32 * MIB, 256), (128, 32));
        assert_eq!(need(33 * MIB, 33 * MIB), (128, 64));
    }
}
