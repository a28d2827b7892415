//! Figures of peers beside ours, read from what they printed.
//!
//! Two kinds of lines tell one: `NAME: … median 10.1 ms …`, and `floor NAME gemm: 1.0 ms` (or `attn`), the parts of what a step
//! cannot go below. NAME ends with the label of what was measured, as our own rows have it.

use serde_json::{Value, json};

use super::peers::Peer;
use super::table::{TextTable, sign};

/// One of our figures that peers may have a figure for.
#[derive(Clone, Debug)]
pub(super) struct Ours {
    /// What was measured, as peers call it too.
    pub(super) label: String,
    pub(super) ms: f64,
    /// What we may take of a peer's floor, where goals apply at all. Then no other peer is to be faster either.
    pub(super) goal_over_floor: Option<f64>,
}

/// A figure in a peer's output.
#[derive(Clone, Debug, PartialEq)]
struct Told {
    name: String,
    ms: f64,
    is_floor: bool,
}

/// A table and its rows; none where there is nothing to compare.
pub(super) fn compare(ours: &[Ours], peers: &[Peer]) -> Option<(String, Vec<Value>)> {
    let lines = peers.iter().flat_map(|peer| peer.lines());
    let mut told: Vec<Told> = lines.filter_map(|line| read(line)).collect();
    if ours.is_empty() || told.is_empty() {
        return None;
    }
    let floors: Vec<Told> = ours.iter().filter_map(|ours| whole_floor(&ours.label, &told)).collect();
    told.extend(floors);
    let mut table = TextTable::new("Beside peers", &["", "ms", "ours ms", "ours ÷ it", "goal"]);
    let mut rows = Vec::new();
    for told in &told {
        let ours = ours.iter().find(|ours| told.name.contains(&ours.label));
        let ratio = ours.map(|ours| ours.ms / told.ms.max(1e-6));
        let met = ours.zip(ratio).and_then(|(ours, ratio)| met(ours, told, ratio));
        let text = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.3}"));
        let (ms, ratio_text) = (text(ours.map(|ours| ours.ms)), ratio.map_or(String::new(), |it| format!("{it:.2}")));
        table.row(vec![told.name.clone(), text(Some(told.ms)), ms, ratio_text, sign(met)]);
        rows.push(json!({
            "table": "peer",
            "name": told.name,
            "median_ms": told.ms,
            "ours_ms": ours.map(|ours| ours.ms),
            "ours_over_it": ratio,
            "goal_met": met,
        }));
    }
    if ours.iter().any(|ours| ours.goal_over_floor.is_some()) {
        table.note("goal: below every peer, and below 1.35 × the floor of GEMMs and attention (the small one 1.6 ×)");
    }
    Some((table.show(), rows))
}

/// Parts of a floor have no goal, their sum has; other peers are to be slower.
fn met(ours: &Ours, told: &Told, ratio: f64) -> Option<bool> {
    let goal = ours.goal_over_floor?;
    match told.is_floor {
        true => told.name.ends_with(WHOLE).then_some(ratio <= goal),
        false => Some(ratio < 1.0),
    }
}

const WHOLE: &str = "GEMMs and attention";

/// The floor of `label`, where both of its parts were told.
fn whole_floor(label: &str, told: &[Told]) -> Option<Told> {
    let part = |which: &str| {
        let name = format!("floor {label} {which}");
        told.iter().find(|told| told.is_floor && told.name == name).map(|told| told.ms)
    };
    Some(Told { name: format!("floor {label} {WHOLE}"), ms: part("gemm")? + part("attn")?, is_floor: true })
}

fn read(line: &str) -> Option<Told> {
    let (name, rest) = line.split_once(": ")?;
    let is_floor = name.starts_with("floor ");
    let behind = if is_floor { rest } else { rest.split_once("median ")?.1 };
    let (number, _) = behind.split_once(" ms")?;
    let ms = number.trim().parse::<f64>().ok().filter(|ms| ms.is_finite() && *ms > 0.0)?;
    Some(Told { name: name.trim().to_owned(), ms, is_floor })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_tell_a_figure() {
        let check = |line: &str, expected: Option<(&str, f64, bool)>| {
            let expected = expected.map(|(name, ms, is_floor)| Told { name: name.to_owned(), ms, is_floor });
            assert_eq!(read(line), expected, "{line}");
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
    fn goals_are_for_whole_floors_and_other_peers() {
        let ours = Ours { label: "small".to_owned(), ms: 1.5, goal_over_floor: Some(1.6) };
        let told = |name: &str, ms: f64| Told { name: name.to_owned(), ms, is_floor: name.starts_with("floor") };
        let parts = [told("floor small gemm", 0.75), told("floor small attn", 0.25)];
        let whole = whole_floor("small", &parts).unwrap();
        assert_eq!(whole, told("floor small GEMMs and attention", 1.0));
        assert_eq!(met(&ours, &whole, 1.5), Some(true));
        assert_eq!(met(&ours, &whole, 1.7), Some(false));
        assert_eq!(met(&ours, &parts[0], 2.0), None);
        assert_eq!(met(&ours, &told("torch small", 1.0), 1.5), Some(false));
        assert_eq!(met(&Ours { goal_over_floor: None, ..ours }, &whole, 1.5), None);
        assert_eq!(whole_floor("small", &parts[..1]), None);
    }
}
