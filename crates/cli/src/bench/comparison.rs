//! Compares our figures with those of peers, parsed from their output.
//!
//! Two kinds of lines are parsed: `NAME: … median 10.1 ms …`, and `floor NAME gemm: 1.0 ms` (or `attn`), the parts of the
//! floor: the time of the GEMMs and of attention alone. NAME ends with the label of our row.

use serde_json::{Value, json};

use super::peers::Peer;
use super::table::{TextTable, sign};

/// One of our figures.
#[derive(Clone, Debug)]
pub(super) struct OwnFigure {
    /// What was measured; peers use the same label.
    pub(super) label: String,
    pub(super) ms: f64,
    /// The largest allowed ratio to the floor, where goals apply. There, every peer must be slower too.
    pub(super) goal_over_floor: Option<f64>,
}

/// A figure from a peer's output.
#[derive(Clone, Debug, PartialEq)]
struct PeerFigure {
    name: String,
    ms: f64,
    is_floor: bool,
}

/// A table and its JSON rows. None where there is nothing to compare.
pub(super) fn compare(ours: &[OwnFigure], peers: &[Peer]) -> Option<(String, Vec<Value>)> {
    let lines = peers.iter().flat_map(|peer| peer.lines());
    let mut figures: Vec<PeerFigure> = lines.filter_map(|line| parse(line)).collect();
    if ours.is_empty() || figures.is_empty() {
        return None;
    }
    let floors: Vec<PeerFigure> = ours.iter().filter_map(|ours| total_floor(&ours.label, &figures)).collect();
    figures.extend(floors);
    let mut table = TextTable::new("Compared with peers", &["", "ms", "ours ms", "ours ÷ peer", "goal"]);
    let mut rows = Vec::new();
    for figure in &figures {
        let ours = ours.iter().find(|ours| figure.name.contains(&ours.label));
        let ratio = ours.map(|ours| ours.ms / figure.ms.max(1e-6));
        let met = ours.zip(ratio).and_then(|(ours, ratio)| is_goal_met(ours, figure, ratio));
        let text = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.3}"));
        let (ms, ratio_text) =
            (text(ours.map(|ours| ours.ms)), ratio.map_or(String::new(), |ratio| format!("{ratio:.2}")));
        table.row(vec![figure.name.clone(), text(Some(figure.ms)), ms, ratio_text, sign(met)]);
        rows.push(json!({
            "table": "peer",
            "name": figure.name,
            "median_ms": figure.ms,
            "ours_ms": ours.map(|ours| ours.ms),
            "ours_over_peer": ratio,
            "goal_met": met,
        }));
    }
    if ours.iter().any(|ours| ours.goal_over_floor.is_some()) {
        table.note("goal: faster than every peer, and at most 1.35 × the floor, the time of GEMMs and attention alone (small: 1.6 ×)");
    }
    Some((table.show(), rows))
}

/// Whether the goal is met. The sum of a floor has a goal, its parts have none; peers must be slower.
fn is_goal_met(ours: &OwnFigure, figure: &PeerFigure, ratio: f64) -> Option<bool> {
    let goal = ours.goal_over_floor?;
    match figure.is_floor {
        true => figure.name.ends_with(TOTAL).then_some(ratio <= goal),
        false => Some(ratio < 1.0),
    }
}

const TOTAL: &str = "GEMMs and attention";

/// The floor of `label`, where both of its parts are known.
fn total_floor(label: &str, figures: &[PeerFigure]) -> Option<PeerFigure> {
    let part = |which: &str| {
        let name = format!("floor {label} {which}");
        figures.iter().find(|figure| figure.is_floor && figure.name == name).map(|figure| figure.ms)
    };
    Some(PeerFigure { name: format!("floor {label} {TOTAL}"), ms: part("gemm")? + part("attn")?, is_floor: true })
}

fn parse(line: &str) -> Option<PeerFigure> {
    let (name, rest) = line.split_once(": ")?;
    let is_floor = name.starts_with("floor ");
    let value = if is_floor { rest } else { rest.split_once("median ")?.1 };
    let (number, _) = value.split_once(" ms")?;
    let ms = number.trim().parse::<f64>().ok().filter(|ms| ms.is_finite() && *ms > 0.0)?;
    Some(PeerFigure { name: name.trim().to_owned(), ms, is_floor })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_a_figure_are_parsed() {
        let check = |line: &str, expected: Option<(&str, f64, bool)>| {
            let expected = expected.map(|(name, ms, is_floor)| PeerFigure { name: name.to_owned(), ms, is_floor });
            assert_eq!(parse(line), expected, "{line}");
        };
        let eager = "torch autocast compile=False small d256 l4 b32 t400";
        let line = format!("{eager}: first 0.52s median 10.125 ms min 10.001 mem 1.52 GiB");
        check(&line, Some((eager, 10.125, false)));
        let captured = "torch compile+CUDAGraph autocast large d1024 l30 b8 t512";
        check(&format!("{captured}: median 29.5 ms, compile 92 s, peak 9.5 GiB"), Some((captured, 29.5, false)));
        let floor = "floor small d256 l4 b32 t400 gemm";
        check(&format!("{floor}: 0.913 ms"), Some((floor, 0.913, true)));
        for line in ["", "torch: first 0.5s", "x: median fast ms", "x: median -1 ms", "a median 3 ms without a name"] {
            check(line, None);
        }
    }

    #[test]
    fn goals_are_for_total_floors_and_other_peers() {
        let ours = OwnFigure { label: "small".to_owned(), ms: 1.5, goal_over_floor: Some(1.6) };
        let figure =
            |name: &str, ms: f64| PeerFigure { name: name.to_owned(), ms, is_floor: name.starts_with("floor") };
        let parts = [figure("floor small gemm", 0.75), figure("floor small attn", 0.25)];
        let total = total_floor("small", &parts).unwrap();
        assert_eq!(total, figure("floor small GEMMs and attention", 1.0));
        assert_eq!(is_goal_met(&ours, &total, 1.5), Some(true));
        assert_eq!(is_goal_met(&ours, &total, 1.7), Some(false));
        assert_eq!(is_goal_met(&ours, &parts[0], 2.0), None);
        assert_eq!(is_goal_met(&ours, &figure("torch small", 1.0), 1.5), Some(false));
        assert_eq!(is_goal_met(&OwnFigure { goal_over_floor: None, ..ours }, &total, 1.5), None);
        assert_eq!(total_floor("small", &parts[..1]), None);
    }
}
