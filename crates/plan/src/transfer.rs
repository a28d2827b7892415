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
    /// Every route that was tried, in this order.
    pub tried: Vec<TriedRoute>,
}

/// A route that was tried between the cards of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TriedRoute {
    /// The route.
    pub route: Route,
    /// Its bandwidth in MB/s, or why it does not work.
    pub result: Result<u64, String>,
}

/// A route further down the ladder must be faster by this factor to be taken: measurements differ by a few percent.
const CLEARLY_FASTER: f64 = 1.05;

impl TransferPlan {
    /// Chooses the route for `placement`. Refuses a requested route that is impossible there.
    pub(crate) fn choose(settings: &Settings, placement: &Placement, hardware: &Hardware) -> Result<Self, Refusal> {
        let same_device = placement.mode.is_one_device();
        let peers = match (placement.data, placement.model) {
            (Some(data), Some(model)) => data == model || hardware.are_peers(data, model),
            _ => false,
        };
        let wanted = settings.choice(Id::Transfer);
        let (route, why) = match Route::named(wanted) {
            Some(Route::Handover) if !same_device => return Err(no_handover(placement)),
            Some(Route::Handover) => (Route::Handover, "--transfer handover".to_owned()),
            Some(route) if placement.mode == Mode::Cpu => return Err(only_handover(route)),
            Some(route) if route.needs_peer_access() && !peers => return Err(no_peer(route, placement)),
            Some(route) => (route, format!("--transfer {wanted}")),
            None if same_device => (Route::Handover, "both roles are on one device".to_owned()),
            None if peers => (Route::Peer, "the GPUs have peer access".to_owned()),
            None => (Route::Bounce, "the GPUs have no peer access".to_owned()),
        };
        let forced = wanted != "auto";
        Ok(TransferPlan { route, same_device, why, forced, mb_per_s: None, tried: Vec::new() })
    }
}

impl TransferPlan {
    /// Whether the card of one role may access memory of the other's.
    pub fn needs_peer_access(&self) -> bool {
        self.route.needs_peer_access() && !self.same_device
    }

    /// The routes to try: that of the plan if the user forced it, otherwise all that the cards offer.
    pub fn candidates(&self) -> Vec<Route> {
        let offered = |route: &Route| self.route.needs_peer_access() || !route.needs_peer_access();
        match self.route {
            route if self.forced || route == Route::Handover => vec![route],
            _ => Route::LADDER.into_iter().filter(offered).collect(),
        }
    }

    /// The same with the fastest of `tried`, which is in the order of [`candidates`](TransferPlan::candidates). `None` if none
    /// of them works.
    pub fn with_fastest(&self, tried: Vec<TriedRoute>) -> Option<TransferPlan> {
        let mut best: Option<(Route, u64)> = None;
        for (route, mb_per_s) in tried.iter().filter_map(|tried| Some((tried.route, *tried.result.as_ref().ok()?))) {
            if best.is_none_or(|(_, most)| mb_per_s as f64 > CLEARLY_FASTER * most as f64) {
                best = Some((route, mb_per_s));
            }
        }
        let (route, mb_per_s) = best?;
        let why = match route == self.route {
            true => self.why.clone(),
            false if tried.iter().any(|tried| tried.route == self.route && tried.result.is_err()) => {
                format!("{} does not work", self.route.name())
            }
            false => format!("faster than {}", self.route.name()),
        };
        Some(TransferPlan { route, why, mb_per_s: Some(mb_per_s), tried, ..self.clone() })
    }

    /// The next route, for one that does not work in the memory of the run: the other kind of peer copy, then the faster way
    /// through the host, as far as that was measured. `None` if the user forced the route, or if there is no other.
    pub fn instead(&self, problem: &dyn fmt::Display) -> Option<TransferPlan> {
        let measured = |route: Route| {
            let tried = self.tried.iter().find(|tried| tried.route == route)?;
            tried.result.as_ref().ok().copied()
        };
        let next = match self.route {
            _ if self.forced => None,
            Route::Peer => Some(Route::PeerCopy),
            Route::PeerCopy if measured(Route::Staged) > measured(Route::Bounce) => Some(Route::Staged),
            Route::PeerCopy | Route::Staged => Some(Route::Bounce),
            Route::Bounce | Route::Handover => None,
        }?;
        let mut tried = self.tried.clone();
        tried.retain(|tried| tried.route != self.route);
        tried.push(TriedRoute { route: self.route, result: Err(problem.to_string()) });
        let why = format!("{} does not work", self.route.name());
        Some(TransferPlan { route: next, why, mb_per_s: None, tried, ..self.clone() })
    }

    /// The route, and its bandwidth if that was measured.
    pub fn with_bandwidth(&self) -> String {
        let bandwidth = self.mb_per_s.map(|mb_per_s| format!(" at {:.1} GB/s", mb_per_s as f64 / 1000.0));
        format!("{self}{}", bandwidth.unwrap_or_default())
    }

    /// The route, why, its measured bandwidth, and the routes that were refused.
    pub fn describe(&self) -> String {
        let mut text = format!("{self} ({})", self.why);
        if let Some(mb_per_s) = self.mb_per_s {
            text += &format!(", {:.1} GB/s measured", mb_per_s as f64 / 1000.0);
        }
        for (route, why) in self.refused() {
            text += &format!("; {} refused: {why}", route.name());
        }
        text
    }

    /// The routes that do not work, and why.
    pub fn refused(&self) -> impl Iterator<Item = (Route, &str)> {
        self.tried.iter().filter_map(|tried| Some((tried.route, tried.result.as_ref().err()?.as_str())))
    }
}

impl fmt::Display for TransferPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.route, self.same_device) {
            (Route::Handover, _) | (_, false) => f.write_str(self.route.name()),
            (_, true) => write!(f, "{} (same device)", self.route.name()),
        }
    }
}

fn automatic() -> Suggestion {
    Suggestion::new("choose the route automatically").set(Id::Transfer, SettingValue::Choice("auto"))
}

fn only_handover(wanted: Route) -> Refusal {
    let wanted = wanted.name();
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

fn no_peer(wanted: Route, placement: &Placement) -> Refusal {
    let (wanted, cards) = (wanted.name(), both_cards(placement));
    Refusal::new(Reason::Device, format!("❌ --transfer {wanted} is not possible: {cards} have no peer access"))
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

    fn tried(route: Route, gb_per_s: Option<u64>) -> TriedRoute {
        TriedRoute { route, result: gb_per_s.map(|gb| 1000 * gb).ok_or_else(|| "wrong bytes".to_owned()) }
    }

    #[test]
    fn the_fastest_route_that_works_is_taken() {
        let planned = choose("--data-gpu 0 --model-gpu 1", &linked()).unwrap();
        assert_eq!(planned.candidates(), Route::LADDER);
        let check = |speeds: [Option<u64>; 4], expected: &str| {
            let all = Route::LADDER.into_iter().zip(speeds);
            let chosen = planned.with_fastest(all.map(|(route, gb)| tried(route, gb)).collect());
            assert_eq!(chosen.map(|chosen| chosen.describe()).unwrap_or_default(), expected);
        };
        let fastest = planned.with_fastest(vec![tried(Route::Peer, Some(40))]).unwrap();
        assert_eq!([planned.with_bandwidth(), fastest.with_bandwidth()], ["peer", "peer at 40.0 GB/s"]);
        let peer = "peer (the GPUs have peer access), 40.0 GB/s measured";
        check([Some(40), Some(41), Some(9), Some(12)], peer);
        check([Some(40), Some(50), Some(9), Some(12)], "peer-copy (faster than peer), 50.0 GB/s measured");
        let refused = "peer-copy (peer does not work), 40.0 GB/s measured; peer refused: wrong bytes";
        check([None, Some(40), Some(9), Some(12)], refused);
        let host = "bounce (peer does not work), 12.0 GB/s measured; peer refused: wrong bytes; peer-copy refused: wrong bytes";
        check([None, None, Some(9), Some(12)], host);
        check([None; 4], "");
    }

    #[test]
    fn without_peer_access_and_when_forced_fewer_routes_are_tried() {
        let pair = |request: &str, hardware: &Hardware| {
            choose(&format!("--data-gpu 0 --model-gpu 1 {request}"), hardware).unwrap().candidates()
        };
        assert_eq!(pair("", &gpus(2, 24)), [Route::Staged, Route::Bounce]);
        assert_eq!(pair("--transfer bounce", &linked()), [Route::Bounce]);
        assert_eq!(pair("--transfer peer-copy", &linked()), [Route::PeerCopy]);
        assert_eq!(choose("", &gpus(1, 24)).unwrap().candidates(), [Route::Handover]);
    }

    #[test]
    fn a_route_that_stops_working_is_replaced_step_by_step() {
        let steps = |mut plan: TransferPlan| {
            let mut names = vec![plan.route.name()];
            while let Some(next) = plan.instead(&"wrong bytes") {
                names.push(next.route.name());
                plan = next;
            }
            (names.join(" "), plan.refused().count())
        };
        let planned = choose("--data-gpu 0 --model-gpu 1", &linked()).unwrap();
        assert_eq!(steps(planned.clone()), ("peer peer-copy bounce".to_owned(), 2));
        let staged_is_faster = vec![tried(Route::Staged, Some(9)), tried(Route::Bounce, Some(8))];
        let measured = TransferPlan { tried: staged_is_faster, ..planned };
        assert_eq!(steps(measured), ("peer peer-copy staged bounce".to_owned(), 3));
        let forced = choose("--data-gpu 0 --model-gpu 1 --transfer peer", &linked()).unwrap();
        assert_eq!(steps(forced), ("peer".to_owned(), 0));
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
