//! Where the context of a card comes from.
//!
//! A card is used through its primary context, which all openings in this process share. `TANDEM_TWO_CONTEXTS=1` shows the
//! first card as two, each with a context of its own: the driver then enforces between them most of what it enforces between
//! two cards. An event, a kernel or a timer of one context is refused in the other (error 400), waits cross, and memory pools
//! are opened to the other side. It does not enforce access there: every kernel of a card can read all of its memory.
//!
//! For tests on a machine with one card, and for nothing else: a second context costs about half a gigabyte, and both share
//! the card's free memory, its clock and its faults.

use std::ffi::OsStr;

use super::CudaDriver;
use super::api::{Code, DriverApi, Handle};
use crate::card::Card;
use crate::error::DeviceError;

/// Shows the first card as two if it is set.
const TWO_CONTEXTS: &str = "TANDEM_TWO_CONTEXTS";

/// A card of the list, and how the driver and NVML know it.
#[derive(Clone, Debug)]
pub(super) struct ListedCard {
    pub(super) card: Card,
    /// The driver's handle; `None` for a card hidden from this process.
    pub(super) device: Option<i32>,
    /// NVML's index, which is also the index in the order of `nvidia-smi`.
    pub(super) nvml_index: usize,
    pub(super) context: ContextKind,
}

/// The kind of a card's context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContextKind {
    /// The primary context, which the whole process shares.
    Primary,
    /// One that this opening creates and destroys. The number tells the contexts of one card apart.
    Own(i32),
}

/// Whether the environment asks for two contexts on the first card.
pub(super) fn are_two_wanted() -> bool {
    std::env::var_os(TWO_CONTEXTS).is_some_and(|value| !value.is_empty() && value != OsStr::new("0"))
}

/// The cards as matched, each with its primary context.
pub(super) fn listed(matched: Vec<(Card, Option<i32>)>) -> Vec<ListedCard> {
    let listed = |(card, device): (Card, Option<i32>)| {
        let nvml_index = card.index;
        ListedCard { card, device, nvml_index, context: ContextKind::Primary }
    };
    matched.into_iter().map(listed).collect()
}

/// The first usable card, twice. Others are not listed.
pub(super) fn shown_twice(listed: Vec<ListedCard>) -> Vec<ListedCard> {
    let Some(first) = listed.into_iter().find(|listed| listed.device.is_some()) else { return Vec::new() };
    let half = |index: usize| {
        let (uuid, name) = (format!("{}-{index}", first.card.uuid), format!("{} (context {index})", first.card.name));
        let card = Card { index, uuid, name, ..first.card.clone() };
        ListedCard { card, context: ContextKind::Own(index as i32), ..first.clone() }
    };
    vec![half(0), half(1)]
}

impl ContextKind {
    /// The key of the capture lock: the contexts of one card do not disturb each other's captures.
    pub(super) fn capture_key(self, device: i32) -> i32 {
        match self {
            ContextKind::Primary => device,
            ContextKind::Own(number) => -1 - number,
        }
    }

    /// Creates the context, or retains it.
    pub(super) fn open(self, api: &DriverApi, device: i32) -> Result<Handle, Code> {
        let mut context = 0;
        // SAFETY: one handle is written; released or destroyed by `close`.
        let code = unsafe {
            match self {
                ContextKind::Primary => (api.cuDevicePrimaryCtxRetain)(&raw mut context, device),
                ContextKind::Own(_) => (api.cuCtxCreate_v2)(&raw mut context, 0, device),
            }
        };
        if code != 0 {
            return Err(code);
        }
        if self != ContextKind::Primary {
            // A new context is pushed on the thread's stack of contexts; this pops it. Ours are made current, never pushed.
            // SAFETY: a null context is always valid.
            unsafe { (api.cuCtxSetCurrent)(0) };
        }
        Ok(context)
    }

    /// Undoes [`open`](ContextKind::open). Errors are ignored: a lost context cannot be released.
    pub(super) fn close(self, api: &DriverApi, device: i32, context: Handle) {
        // SAFETY: opened once by `open`, which this undoes, and current on no thread that will use it again.
        unsafe {
            match self {
                ContextKind::Primary => (api.cuDevicePrimaryCtxRelease_v2)(device),
                ContextKind::Own(_) => (api.cuCtxDestroy_v2)(context),
            }
        };
    }
}

impl CudaDriver {
    /// Whether the contexts of two of our cards are on the same GPU.
    pub(super) fn share_a_device(&self, a: usize, b: usize) -> Result<bool, DeviceError> {
        Ok(self.device(a)? == self.device(b)?)
    }

    /// The key of a card's context in the capture lock.
    pub(super) fn capture_key(&self, card: usize) -> Result<i32, DeviceError> {
        Ok(self.cuda_card(card)?.context.capture_key(self.device(card)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(index: usize, device: Option<i32>) -> (Card, Option<i32>) {
        let card = Card {
            index,
            name: "H200".into(),
            uuid: format!("GPU-{index}"),
            bus_id: "x".into(),
            total_bytes: 1 << 34,
            capability: (9, 0),
            hidden_by: None,
        };
        (card, device)
    }

    #[test]
    fn the_first_usable_card_is_shown_twice() {
        let shown = shown_twice(listed(vec![card(0, None), card(1, Some(0)), card(2, Some(1))]));
        let found: Vec<_> = shown
            .iter()
            .map(|half| (half.card.index, half.card.uuid.as_str(), half.device, half.nvml_index, half.context))
            .collect();
        let own = ContextKind::Own;
        assert_eq!(found, [(0, "GPU-1-0", Some(0), 1, own(0)), (1, "GPU-1-1", Some(0), 1, own(1))]);
        assert_eq!(shown_twice(listed(vec![card(0, None)])).len(), 0);
    }

    #[test]
    fn every_context_has_a_capture_key_of_its_own() {
        let keys = [ContextKind::Primary, ContextKind::Own(0), ContextKind::Own(1)].map(|kind| kind.capture_key(0));
        assert_eq!(keys, [0, -1, -2]);
    }
}
