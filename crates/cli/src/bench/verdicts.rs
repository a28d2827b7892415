//! `tandem bench verdicts`: whether `tandem profile` names the right bottleneck on this machine. A tool for developers of
//! `profile`.
//!
//! A fault slows one kind of work down (`TANDEM_FAULT=slow:WORK:TIMES`) by a random factor; then this program runs
//! `profile --confirm --json` on it as a user would. Each kind of work is slowed down twice: once so much that the step must
//! wait for it, once so little that the step never waits. A slow step waits for nothing. Factors near a threshold are left
//! out.

use std::hash::{BuildHasher as _, RandomState};
use std::process::Command;

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};
use tandem_launch::inventory::host_facts;

use super::table::{TextTable, sign};
use super::{BenchArgs, BenchOutput};
use crate::exit::Exit;
use crate::screen::Screen;

/// Steps of each profile, by default.
const STEPS: usize = 60;
/// Stage time ÷ step time: in this range the step waits for the stage, by over a fifth of its time.
const SLOW: [f64; 2] = [1.35, 3.0];
/// In this range the step does not wait for the stage.
const FAST: [f64; 2] = [0.3, 0.6];
/// On one GPU, features take turns with the step, which waits for all of them.
const FAST_IN_TURNS: [f64; 2] = [0.02, 0.08];
/// The largest relative error of a prediction.
const MAX_ERROR: f64 = 0.15;
/// How close a stage must come to its target time, and how often the factor is corrected for that.
const TOLERANCE: f64 = 0.15;
const MAX_TRIES: usize = 4;
/// If repeating the work takes at most this many times as long, the work is not done at all.
const NO_EFFECT: f64 = 1.2;
/// A larger factor would take too long.
const MAX_FACTOR: f64 = 20_000.0;

/// A kind of work that a fault can slow down.
struct SlowableWork {
    /// Its name in `TANDEM_FAULT`.
    name: &'static str,
    /// The stage it is timed as.
    stage: &'static str,
    /// The verdict when the step waits for it.
    verdict: &'static str,
}

const WORKS: [SlowableWork; 4] = [
    SlowableWork { name: "decode", stage: "load", verdict: "DATA_LOADING" },
    SlowableWork { name: "upload", stage: "upload", verdict: "GPU_TRANSFER" },
    SlowableWork { name: "features", stage: "features", verdict: "GPU_PREPROCESS" },
    SlowableWork { name: "transfer", stage: "transfer", verdict: "GPU_TRANSFER" },
];

/// One fault to inject, and the verdict to expect.
struct FaultCase {
    work: &'static str,
    /// The stage the work is timed as.
    stage: &'static str,
    /// The range of stage time ÷ step time.
    range: [f64; 2],
    expected: Option<&'static str>,
}

pub(super) fn measure(args: &BenchArgs, screen: &Screen) -> Result<BenchOutput, Exit> {
    let steps = args.steps.unwrap_or(STEPS);
    screen.progress("Profiling without a fault...")?;
    let clean = profile(None, steps)?;
    let step_ms = time_alone(&clean, "step").context("the profile without a fault has no time of the step alone")?;
    let slow_stages = ParsedProfile::of(&clean, "").stage_verdicts;
    if !slow_stages.is_empty() {
        let verdicts = slow_stages.join(" ");
        return Err(Exit::Failed(anyhow!(
            "the run is slow without a fault ({verdicts}): give it more decode threads with --num-workers N"
        )));
    }
    let mode = clean["mode"].as_str().unwrap_or_default();
    let columns =
        ["fault", "÷ step", "expected", "verdicts", "predicted /s", "measured /s", "measured ÷ predicted", "correct"];
    let mut table = TextTable::new("Verdicts on injected slowness", &columns);
    let mut output = BenchOutput::default();
    let mut not_injected = Vec::new();
    for FaultCase { work, stage, range, expected } in fault_cases(mode) {
        let target = random_between(range);
        let Some(usual_ms) = time_alone(&clean, stage).filter(|ms| *ms > 0.0) else {
            // For example the transfer, where there is none.
            not_injected.push(format!("{work} at {target:.2} (no such stage in this mode)"));
            continue;
        };
        let target_time =
            TargetTime { stage, target_ms: target * step_ms, range_ms: range.map(|ratio| ratio * step_ms), usual_ms };
        let Some(injected) = inject(work, &target_time, steps, screen)? else {
            screen.progress(&format!("   {work} at {target:.2} × the step: this machine cannot reach it"))?;
            not_injected.push(format!("{work} at {target:.2} (cannot be reached)"));
            continue;
        };
        let (fault, ratio) = (injected.fault, injected.took_ms / step_ms);
        let found = ParsedProfile::of(&injected.profile, expected.unwrap_or_default());
        // The expected stage and no other.
        let is_correct = found.stage_verdicts.iter().map(String::as_str).eq(expected);
        output.rows.push(row(&fault, ratio, expected, &found, is_correct));
        let accuracy = found.measured.zip(found.predicted).map(|(measured, predicted)| measured / predicted);
        let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.2}"));
        table.row(vec![
            fault.clone(),
            format!("{ratio:.2}"),
            expected.unwrap_or("no stage").to_owned(),
            found.verdicts.join(" "),
            number(found.predicted),
            number(found.measured),
            number(accuracy),
            sign(Some(is_correct)),
        ]);
        if !is_correct {
            let expected = expected.unwrap_or("no stage");
            output.broken.push(format!("{fault}: expected {expected}, got {:?}", found.verdicts));
        }
        if let Some(accuracy) = accuracy.filter(|accuracy| (accuracy - 1.0).abs() > MAX_ERROR) {
            output.broken.push(format!("{fault}: measured {accuracy:.2} × the prediction"));
        }
        let speeds = found.predicted.zip(found.measured).map_or(String::new(), |(predicted, measured)| {
            format!("; {predicted:.1} steps/s predicted, {measured:.1} measured")
        });
        let sign = sign(Some(is_correct));
        screen.progress(&format!("   {sign} at {ratio:.2} × the step: {}{speeds}", found.verdicts.join(" ")))?;
    }
    if output.rows.is_empty() {
        output.broken.push("no fault could be injected: nothing was tested".to_owned());
    }
    if !not_injected.is_empty() {
        table.note(format!("not injected: {}", not_injected.join(", ")));
        output.rows.push(json!({ "table": "not_injected", "faults": not_injected }));
    }
    output.text = table.show();
    Ok(output)
}

fn fault_cases(mode: &str) -> Vec<FaultCase> {
    let is_cpu = mode == "cpu";
    // One GPU's work takes turns. The cores of a CPU do several things at once.
    let in_turns = mode != "multi" && !is_cpu;
    let fast = |stage: &str| if stage == "features" && in_turns { FAST_IN_TURNS } else { FAST };
    let stages = WORKS.into_iter().flat_map(|SlowableWork { name, stage, verdict }| {
        [(SLOW, Some(verdict)), (fast(stage), None)].map(|(range, expected)| FaultCase {
            work: name,
            stage,
            range,
            expected,
        })
    });
    stages.chain([FaultCase { work: "step", stage: "step", range: SLOW, expected: None }]).collect()
}

/// How long a stage alone should take with a fault, and how long it takes without.
struct TargetTime {
    stage: &'static str,
    target_ms: f64,
    /// The verdict is expected in this range only: a stage that comes close to its target may still be outside.
    range_ms: [f64; 2],
    usual_ms: f64,
}

impl TargetTime {
    fn is_met(&self, took_ms: f64) -> bool {
        let [min, max] = self.range_ms;
        (took_ms / self.target_ms - 1.0).abs() < TOLERANCE && (min..=max).contains(&took_ms)
    }
}

/// A profile with a fault injected.
struct InjectedProfile {
    fault: String,
    /// Time of the stage alone.
    took_ms: f64,
    profile: Value,
}

/// Slows `work` down until its stage alone takes about the target time. Work repeated N times takes less than N times as long,
/// so the factor is corrected by what it gave. None where the target cannot be reached.
fn inject(work: &str, target: &TargetTime, steps: usize, screen: &Screen) -> Result<Option<InjectedProfile>, Exit> {
    let TargetTime { stage, target_ms, usual_ms, .. } = *target;
    let mut factor = (target_ms / usual_ms).round();
    for _ in 0..MAX_TRIES {
        if !(1.0..=MAX_FACTOR).contains(&factor) {
            return Ok(None);
        }
        let fault = format!("slow:{work}:{factor}");
        screen.progress(&format!("   {fault}..."))?;
        let profile = profile(Some(&fault), steps)?;
        let took_ms = time_alone(&profile, stage).context("the profile with the fault lacks the stage")?;
        if target.is_met(took_ms) {
            return Ok(Some(InjectedProfile { fault, took_ms, profile }));
        }
        let next = (factor * target_ms / took_ms.max(1e-6)).round();
        // For example decoding, when the decoded audio is cached.
        let has_no_effect = factor > 1.0 && took_ms < usual_ms * NO_EFFECT;
        if has_no_effect || next == factor {
            return Ok(None);
        }
        factor = next;
    }
    Ok(None)
}

fn row(fault: &str, of_step: f64, expected: Option<&str>, found: &ParsedProfile, is_correct: bool) -> Value {
    json!({
        "table": "verdicts",
        "fault": fault,
        "of_step": of_step,
        "expected": expected,
        "verdicts": found.verdicts,
        "predicted_steps_per_s": found.predicted,
        "measured_steps_per_s": found.measured,
        "correct": is_correct,
    })
}

/// The parts of a profile that are compared.
struct ParsedProfile {
    verdicts: Vec<String>,
    /// Those about a stage.
    stage_verdicts: Vec<String>,
    /// Of the expected verdict.
    predicted: Option<f64>,
    measured: Option<f64>,
}

impl ParsedProfile {
    /// Reads the document of `profile --json`; predictions are those of the verdict `kind`.
    fn of(profile: &Value, kind: &str) -> ParsedProfile {
        let documents = profile["verdicts"].as_array().cloned().unwrap_or_default();
        let verdicts: Vec<String> =
            documents.iter().filter_map(|verdict| Some(verdict["kind"].as_str()?.to_owned())).collect();
        let expected = documents.iter().find(|verdict| verdict["kind"] == kind);
        let number = |name: &str| expected.and_then(|verdict| verdict[name].as_f64());
        let is_of_stage = |kind: &&String| WORKS.iter().any(|work| work.verdict == kind.as_str());
        ParsedProfile {
            stage_verdicts: verdicts.iter().filter(is_of_stage).cloned().collect(),
            verdicts,
            predicted: number("predicted_steps_per_s"),
            measured: number("measured_steps_per_s"),
        }
    }
}

/// Milliseconds of a stage alone.
fn time_alone(profile: &Value, name: &str) -> Option<f64> {
    profile["alone"].as_array()?.iter().find(|stage| stage["name"] == name)?["mean_ms"].as_f64()
}

/// Runs this program's `profile` with the flags of this call. Fixes the decode threads and turns the cache off: self-tuning and
/// the cache would hide the fault.
fn profile(fault: Option<&str>, steps: usize) -> Result<Value, Exit> {
    let typed: Vec<String> = std::env::args().skip(1).collect();
    let mut flags: Vec<&str> = Vec::new();
    let mut words = typed.iter().map(String::as_str).filter(|word| !["bench", "verdicts", "--json"].contains(word));
    while let Some(word) = words.next() {
        match word {
            "--steps" => drop(words.next()),
            _ => flags.push(word),
        }
    }
    // Half of the cores, so that more threads can help.
    let threads = (host_facts().cores / 2).max(1).to_string();
    for (flag, value) in [("--num-workers", threads.as_str()), ("--cache", "none")] {
        if !flags.contains(&flag) {
            flags.extend([flag, value]);
        }
    }
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.arg("profile").args(flags).args(["--confirm", "--json", "--num-steps", &steps.to_string()]);
    match fault {
        Some(fault) => command.env("TANDEM_FAULT", fault),
        None => command.env_remove("TANDEM_FAULT"),
    };
    let output = command.output().context("cannot run `tandem profile`")?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let document = serde_json::from_slice(&output.stdout)
        .map_err(|_| anyhow!("`tandem profile` printed no JSON document: {stderr}"))?;
    match output.status.success() {
        true => Ok(document),
        false => Err(Exit::Failed(anyhow!("`tandem profile` failed: {document}"))),
    }
}

/// A random number of the range, different in every call: verdicts must not be right for some factors only.
fn random_between([low, high]: [f64; 2]) -> f64 {
    // Every `RandomState` hashes with fresh random keys.
    let bits = RandomState::new().hash_one(0);
    low + (high - low) * (bits >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_near_its_target_and_outside_its_range_is_not_what_was_asked_for() {
        let target = TargetTime { stage: "load", target_ms: 14.0, range_ms: [13.5, 30.0], usual_ms: 1.0 };
        assert!(target.is_met(13.6) && target.is_met(15.9));
        assert!(!target.is_met(13.4) && !target.is_met(16.2));
    }

    #[test]
    fn a_profile_is_read_for_one_verdict() {
        let profile = json!({
            "alone": [{ "name": "load", "mean_ms": 2.5 }],
            "verdicts": [
                { "kind": "GPU_TRANSFER", "predicted_steps_per_s": 10.0, "measured_steps_per_s": 9.0 },
                { "kind": "OSCILLATION", "predicted_steps_per_s": null },
            ],
        });
        let found = ParsedProfile::of(&profile, "GPU_TRANSFER");
        assert_eq!(
            (found.stage_verdicts, found.predicted, found.measured),
            (vec!["GPU_TRANSFER".to_owned()], Some(10.0), Some(9.0))
        );
        assert_eq!(ParsedProfile::of(&profile, "DATA_LOADING").predicted, None);
        assert_eq!((time_alone(&profile, "load"), time_alone(&profile, "step")), (Some(2.5), None));
    }
}
