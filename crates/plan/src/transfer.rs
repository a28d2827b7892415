//! Chooses the route of finished batches from the data role to the model role.

use std::fmt;

use tandem_device::Route;

use crate::hardware::Hardware;
use crate::placement::{Mode, Placement};
use crate::refusal::{Reason, Refusal, Suggestion};
use crate::setting::Id;
use crate::settings::Settings;
use crate::value::SettingValue;

/// The chosen route, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferPlan {
    /// The route.
    pub route: Route,
    /// Whether both ends are the same device.
    pub same_device: bool,
    /// Why this route.
    pub why: String,
    /// Whether the user gave `--transfer`: then no other route is tried.
    pub forced: bool,
    /// Measured bandwidth, once it has been tried.
    pub mb_per_s: Option<u64>,
}

impl TransferPlan {
    /// Chooses the route for `placement`. Refuses a requested route that is impossible there.
    pub(crate) fn choose(settings: &Settings, placement: &Placement, hardware: &Hardware) -> Result<Self, Refusal> {
        let same_device = placement.mode.is_one_device();
        let peers = match (placement.data, placement.model) {
            (Some(data), Some(model)) => data == model || hardware.are_peers(data, model),
            _ => false,
        };
        let wanted = settings.choice(Id::Transfer);
        let (route, why) = match wanted {
            "peer" if placement.mode == Mode::Cpu => return Err(only_handover("peer")),
            "bounce" if placement.mode == Mode::Cpu => return Err(only_handover("bounce")),
            "peer" if !peers => return Err(no_peer(placement)),
            "handover" if !same_device => return Err(no_handover(placement)),
            "peer" => (Route::Peer, "--transfer peer"),
            "bounce" => (Route::Bounce, "--transfer bounce"),
            "handover" => (Route::Handover, "--transfer handover"),
            _ if same_device => (Route::Handover, "both roles are on one device"),
            _ if peers => (Route::Peer, "the GPUs have peer access"),
            _ => (Route::Bounce, "the GPUs have no peer access"),
        };
        Ok(TransferPlan { route, same_device, why: why.to_owned(), forced: wanted != "auto", mb_per_s: None })
    }
}

impl TransferPlan {
    /// The bounce route, for peer copies that the driver offers but that fail or deliver wrong bytes. `None` if the user
    /// forced the route, or if the route is not peer.
    pub fn without_peer(&self, problem: &dyn fmt::Display) -> Option<TransferPlan> {
        let why = format!("{problem}; copying through the host instead");
        let other = TransferPlan { route: Route::Bounce, why, mb_per_s: None, ..self.clone() };
        (self.route == Route::Peer && !self.forced).then_some(other)
    }

    /// The route, why, and its measured bandwidth.
    pub fn describe(&self) -> String {
        match self.mb_per_s {
            Some(mb_per_s) => format!("{self} ({}), {:.1} GB/s measured", self.why, mb_per_s as f64 / 1000.0),
            None => format!("{self} ({})", self.why),
        }
    }
}

impl fmt::Display for TransferPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.route, self.same_device) {
            (Route::Peer | Route::Bounce, true) => write!(f, "{} (same device)", self.route.name()),
            _ => f.write_str(self.route.name()),
        }
    }
}

fn automatic() -> Suggestion {
    Suggestion::new("choose the route automatically").set(Id::Transfer, SettingValue::Choice("auto"))
}

fn only_handover(wanted: &str) -> Refusal {
    Refusal::usage(format!("❌ --transfer {wanted} requires GPUs; on the CPU batches are handed over"))
        .suggest(automatic())
}

fn no_handover(placement: &Placement) -> Refusal {
    Refusal::usage(format!(
        "❌ --transfer handover requires both roles on one device; they are on {}",
        both_cards(placement)
    ))
    .suggest(automatic())
}

fn no_peer(placement: &Placement) -> Refusal {
    let cards = both_cards(placement);
    Refusal::new(Reason::Device, format!("❌ --transfer peer is not possible: {cards} have no peer access"))
        .suggest(Suggestion::new("copy through pinned host memory").set(Id::Transfer, SettingValue::Choice("bounce")))
}

fn both_cards(placement: &Placement) -> String {
    match (placement.data, placement.model) {
        (Some(data), Some(model)) => format!("GPU {data} and GPU {model}"),
        _ => "the CPU".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{cpu_only, gpus, settings};

    fn choose(line: &str, hardware: &Hardware) -> Result<TransferPlan, Refusal> {
        let settings = settings(line);
        TransferPlan::choose(&settings, &Placement::choose(&settings, hardware)?, hardware)
    }

    fn linked() -> Hardware {
        Hardware { peer: vec![vec![true; 2]; 2], ..gpus(2, 24) }
    }

    #[test]
    fn routes_by_device_and_request() {
        let check = |line: &str, hardware: &Hardware, shown: &str| {
            assert_eq!(choose(line, hardware).unwrap().to_string(), shown, "{line}");
        };
        let pair = |request: &str| format!("--data-gpu 0 --model-gpu 1 {request}");
        check("", &cpu_only(), "handover");
        check("", &gpus(1, 24), "handover");
        check("--transfer peer", &gpus(1, 24), "peer (same device)");
        check("--transfer bounce", &gpus(1, 24), "bounce (same device)");
        check("--share-gpu", &gpus(1, 24), "handover");
        check(&pair(""), &gpus(2, 24), "bounce");
        check(&pair(""), &linked(), "peer");
        check(&pair("--transfer bounce"), &linked(), "bounce");
        check(&pair("--transfer peer"), &linked(), "peer");
    }

    #[test]
    fn impossible_routes_are_refused() {
        let check = |line: &str, hardware: &Hardware, part: &str| {
            let refusal = choose(line, hardware).unwrap_err();
            assert!(refusal.message.contains(part), "{refusal}");
        };
        check("--transfer peer", &cpu_only(), "on the CPU batches are handed over");
        check("--transfer bounce --mode cpu", &gpus(2, 24), "on the CPU batches are handed over");
        check("--data-gpu 0 --model-gpu 1 --transfer handover", &linked(), "they are on GPU 0 and GPU 1");
        check("--data-gpu 0 --model-gpu 1 --transfer peer", &gpus(2, 24), "have no peer access");
        let one_way = Hardware { peer: vec![vec![true, true], vec![false, true]], ..gpus(2, 24) };
        check("--data-gpu 0 --model-gpu 1 --transfer peer", &one_way, "have no peer access");
    }
}
