//! What a campaign found: counts by kind, every failure with what repeats it, as JSON and as a table.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use crate::case::CaseCounts;
use crate::kind::{CaseId, TestKind};

/// What the cases of one kind add up to.
#[derive(Clone, Debug, Default)]
pub(crate) struct KindTotals {
    pub(crate) cases: u64,
    /// Cases that the end of the campaign cut short.
    pub(crate) unfinished: u64,
    pub(crate) failures: u64,
    pub(crate) wall: Duration,
    pub(crate) counts: CaseCounts,
}

/// A failed case.
#[derive(Clone, Debug)]
pub(crate) struct FailedCase {
    pub(crate) id: CaseId,
    pub(crate) reasons: Vec<String>,
    /// Inputs, commands and outputs; none if they could not be saved.
    pub(crate) folder: Option<PathBuf>,
}

/// All that a campaign found.
#[derive(Debug, Default)]
pub(crate) struct CampaignReport {
    pub(crate) seed: u64,
    pub(crate) version: String,
    pub(crate) sha256: String,
    pub(crate) minutes: f64,
    pub(crate) wall: Duration,
    pub(crate) kinds: BTreeMap<TestKind, KindTotals>,
    pub(crate) failures: Vec<FailedCase>,
    /// Why the campaign itself could not go on.
    pub(crate) errors: Vec<String>,
}

impl FailedCase {
    /// What failures of the same cause have in common: the kind, and the reason up to its first number or value.
    pub(crate) fn signature(&self) -> String {
        let reason = self.reasons.first().map_or("", String::as_str);
        let cause = reason.split(['{', '[', '"']).next().unwrap_or_default();
        let words: String = cause.chars().filter(|c| !c.is_ascii_digit()).take(80).collect();
        format!("{}: {words}", self.id.kind.name())
    }

    /// The first reason, in one line of a terminal or two.
    pub(crate) fn first_reason(&self) -> String {
        self.reasons.first().map_or("", String::as_str).chars().take(300).collect()
    }
}

impl KindTotals {
    /// Adds what a case counted.
    pub(crate) fn add(&mut self, counts: &CaseCounts) {
        let total = &mut self.counts;
        total.inputs += counts.inputs;
        total.commands += counts.commands;
        if counts.peak_rss_bytes > total.peak_rss_bytes {
            (total.peak_rss_bytes, total.peak_command) = (counts.peak_rss_bytes, counts.peak_command.clone());
        }
        total.longest_command = total.longest_command.max(counts.longest_command);
        for (name, count) in &counts.counters {
            *total.counters.entry(name).or_default() += count;
        }
        for (what, count) in &counts.not_run {
            *total.not_run.entry(what.clone()).or_default() += count;
        }
    }
}

impl CampaignReport {
    /// Whether nothing failed.
    pub(crate) fn passed(&self) -> bool {
        self.failures.is_empty() && self.errors.is_empty()
    }

    /// The arguments that repeat one case.
    fn repeat(&self, id: CaseId) -> String {
        format!("cargo run --release -p tandem-campaign -- --seed {} --only {id}", self.seed)
    }

    pub(crate) fn to_json(&self) -> Value {
        let kinds: BTreeMap<&str, Value> =
            self.kinds.iter().map(|(kind, totals)| (kind.name(), totals_json(totals))).collect();
        let failures = self.failures.iter().map(|failure| {
            json!({ "case": failure.id.to_string(), "reasons": failure.reasons, "folder": failure.folder,
                    "repeat": self.repeat(failure.id) })
        });
        json!({
            "passed": self.passed(),
            "seed": self.seed,
            "version": self.version,
            "sha256": self.sha256,
            "minutes": self.minutes,
            "wall_s": self.wall.as_secs_f64(),
            "inputs": self.kinds.values().map(|totals| totals.counts.inputs).sum::<u64>(),
            "kinds": kinds,
            "failures": failures.collect::<Vec<_>>(),
            "errors": self.errors,
        })
    }

    /// One failure of each cause, then a line for each kind.
    pub(crate) fn table(&self) -> String {
        let mut text = String::new();
        let mut causes: BTreeMap<String, (&FailedCase, usize)> = BTreeMap::new();
        for failure in &self.failures {
            causes.entry(failure.signature()).or_insert((failure, 0)).1 += 1;
        }
        for (failure, count) in causes.values() {
            text += &format!("❌ {}: {}\n", failure.id, failure.first_reason());
            if let Some(folder) = &failure.folder {
                text += &format!("   saved in {}\n", folder.display());
            }
            text += &format!("   repeat: {}\n", self.repeat(failure.id));
            if *count > 1 {
                text += &format!("   and {} more of this cause\n", count - 1);
            }
        }
        for error in &self.errors {
            text += &format!("❌ {error}\n");
        }
        text += &format!(
            "{:<13} {:>7} {:>9} {:>9} {:>9} {:>8} {:>8}  inputs are\n",
            "kind", "cases", "inputs", "commands", "failures", "not run", "peak MB"
        );
        for (kind, totals) in &self.kinds {
            let counts = &totals.counts;
            text += &format!(
                "{:<13} {:>7} {:>9} {:>9} {:>9} {:>8} {:>8}  {}\n",
                kind.name(),
                totals.cases,
                counts.inputs,
                counts.commands,
                totals.failures,
                counts.not_run.values().sum::<u64>(),
                counts.peak_rss_bytes >> 20,
                kind.inputs()
            );
        }
        for (kind, totals) in &self.kinds {
            for (what, count) in &totals.counts.not_run {
                text += &format!("not run ({}, {count} times): {what}\n", kind.name());
            }
        }
        let mark = if self.passed() { "✅" } else { "❌" };
        text += &format!(
            "{mark} {} failures in {:.1} minutes, seed {}, {}\n",
            self.failures.len(),
            self.wall.as_secs_f64() / 60.0,
            self.seed,
            self.version
        );
        text
    }
}

fn totals_json(totals: &KindTotals) -> Value {
    let counts = &totals.counts;
    json!({
        "cases": totals.cases,
        "unfinished": totals.unfinished,
        "failures": totals.failures,
        "inputs": counts.inputs,
        "commands": counts.commands,
        "wall_s": totals.wall.as_secs_f64(),
        "longest_command_s": counts.longest_command.as_secs_f64(),
        "peak_rss_bytes": counts.peak_rss_bytes,
        "peak_command": counts.peak_command,
        "counters": counts.counters,
        "not_run": counts.not_run,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_named_with_what_repeats_it() {
        let mut report = CampaignReport { seed: 7, version: "tandem 1".to_owned(), ..CampaignReport::default() };
        assert!(report.passed());
        let id = CaseId { kind: TestKind::Kills, number: 3 };
        report.failures.push(FailedCase { id, reasons: vec!["it panicked".to_owned()], folder: None });
        let mut totals = KindTotals { cases: 4, ..KindTotals::default() };
        totals.add(&CaseCounts { inputs: 5, not_run: [("no mount".to_owned(), 1)].into(), ..CaseCounts::default() });
        totals.add(&CaseCounts { inputs: 6, not_run: [("no mount".to_owned(), 1)].into(), ..CaseCounts::default() });
        report.kinds.insert(TestKind::Kills, totals);
        let (table, document) = (report.table(), report.to_json());
        assert!(!report.passed());
        for part in ["❌ kills:3: it panicked", "--seed 7 --only kills:3", "not run (kills, 2 times): no mount"] {
            assert!(table.contains(part), "{table}");
        }
        assert_eq!((&document["passed"], &document["inputs"]), (&json!(false), &json!(11)));
        assert_eq!(document["kinds"]["kills"]["not_run"]["no mount"], 2);
    }

    #[test]
    fn failures_of_one_cause_are_shown_once() {
        let failure = |number, reason: &str| {
            let id = CaseId { kind: TestKind::Lists, number };
            FailedCase { id, reasons: vec![reason.to_owned()], folder: None }
        };
        let failures = vec![
            failure(1, "silent loss: 24 rows, but 23 [tandem a]"),
            failure(2, "silent loss: 7 rows, but 6 [tandem b]"),
            failure(3, "panic: exit code 101"),
        ];
        let table = CampaignReport { failures, ..CampaignReport::default() }.table();
        assert_eq!(table.matches("❌ lists:").count(), 2, "{table}");
        assert!(table.contains("and 1 more of this cause") && table.contains("3 failures"), "{table}");
    }
}
