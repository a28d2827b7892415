//! `tandem bench verdicts`: whether `profile` says the right thing here. Not listed: it is for whoever works on `profile`.
//!
//! Work is planted slow (`TANDEM_FAULT=slow:WORK:TIMES`) by a factor drawn now, and the program is run on it as anybody would: `profile
//! --confirm --json`. Each kind of work is drawn twice: slow enough that the step must wait for it, and slow but never
//! waited for. A slow step waits for nothing. Factors near a threshold are not drawn.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};
use serde_json::{Value, json};
use tandem_launch::inventory::host_facts;

use super::table::{TextTable, sign};
use super::{BenchArgs, Found};
use crate::exit::Exit;
use crate::screen::Screen;

/// Steps of each profile, unless said.
const STEPS: usize = 60;
/// A stage that takes so many times as long as the step is waited for; one that takes this share of it is not. On one card
/// features take turns with the step, which waits for all of them.
const SLOW: [f64; 2] = [1.7, 3.0];
/// On the CPU stages take the step's own cores: one that takes up to twice its time makes it longer and is not waited for.
const SLOW_ON_CORES: [f64; 2] = [2.6, 4.0];
const QUICK: [f64; 2] = [0.3, 0.6];
const QUICK_IN_TURNS: [f64; 2] = [0.02, 0.08];
/// A prediction may be off by this.
const OFF: f64 = 0.15;
/// How near a stage must come to what was drawn, and how often the factor is corrected.
const NEAR: f64 = 0.15;
const TRIES: usize = 4;
/// Work that takes no longer than this, when it is done more often, is not done at all.
const IN_VAIN: f64 = 1.2;
/// Doing something more often than this would take longer than anybody waits.
const MOST_TIMES: f64 = 20_000.0;

/// Work that can be planted slow, the stage it is timed as, and what is said of it where the step waits for it.
const WORKS: [(&str, &str, &str); 4] = [
    ("decode", "load", "DATA_LOADING"),
    ("upload", "upload", "GPU_TRANSFER"),
    ("features", "features", "GPU_PREPROCESS"),
    ("transfer", "transfer", "GPU_TRANSFER"),
];

/// What is drawn: work, the stage it is timed as, how many times the step's time it is to take, and what is to be said.
struct Draw {
    work: &'static str,
    stage: &'static str,
    range: [f64; 2],
    expected: Option<&'static str>,
}

pub(super) fn measure(call: &BenchArgs, screen: &Screen) -> Result<Found, Exit> {
    let steps = call.steps.unwrap_or(STEPS);
    let mut dice = Dice::new();
    screen.progress(&format!("Draws of {:#x}: clean first", dice.0))?;
    let clean = profile(None, steps)?;
    let step_ms = alone(&clean, "step").context("the clean run has no step alone")?;
    let unclean = Seen::of(&clean, "").stages;
    if !unclean.is_empty() {
        let said = unclean.join(" ");
        return Err(Exit::Failed(anyhow!("the run is slow before anything is planted ({said}): more --num-workers?")));
    }
    let mode = clean["mode"].as_str().unwrap_or_default();
    let columns =
        ["plant", "÷ step", "expected", "said", "predicted /s", "measured /s", "measured ÷ predicted", "right"];
    let mut table = TextTable::new("Verdicts on planted slowness", &columns);
    let mut found = Found::default();
    for Draw { work, stage, range, expected } in draws(mode) {
        let Some(usual_ms) = alone(&clean, stage).filter(|ms| *ms > 0.0) else { continue };
        let target = dice.between(range);
        let Some(planted) = plant((work, stage), target * step_ms, usual_ms, steps, screen)? else {
            screen.progress(&format!("   {work} at {target:.2} of the step: cannot be planted here"))?;
            continue;
        };
        let (name, ratio) = (planted.name, planted.took_ms / step_ms);
        let seen = Seen::of(&planted.profile, expected.unwrap_or_default());
        // That stage and no other one.
        let is_right = seen.stages.iter().map(String::as_str).eq(expected);
        found.rows.push(row(&name, ratio, expected, &seen, is_right));
        let kept = seen.measured.zip(seen.predicted).map(|(measured, predicted)| measured / predicted);
        let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.2}"));
        table.row(vec![
            name.clone(),
            format!("{ratio:.2}"),
            expected.unwrap_or("no stage").to_owned(),
            seen.said.join(" "),
            number(seen.predicted),
            number(seen.measured),
            number(kept),
            sign(Some(is_right)),
        ]);
        if !is_right {
            found.broken.push(format!("{name}: expected {}, said {:?}", expected.unwrap_or("no stage"), seen.said));
        }
        if let Some(kept) = kept.filter(|kept| (kept - 1.0).abs() > OFF) {
            found.broken.push(format!("{name}: {kept:.2} of what was predicted"));
        }
        let paces = seen.predicted.zip(seen.measured).map_or(String::new(), |(predicted, measured)| {
            format!("; {predicted:.1} steps/s predicted, {measured:.1} measured")
        });
        let sign = sign(Some(is_right));
        screen.progress(&format!("   {sign} at {ratio:.2} of the step: {}{paces}", seen.said.join(" ")))?;
    }
    found.text = table.show();
    Ok(found)
}

fn draws(mode: &str) -> Vec<Draw> {
    let is_cpu = mode == "cpu";
    // One card's. The cores of a CPU do several things at once.
    let in_turns = mode != "multi" && !is_cpu;
    let slow = if is_cpu { SLOW_ON_CORES } else { SLOW };
    let quick = |stage: &str| if stage == "features" && in_turns { QUICK_IN_TURNS } else { QUICK };
    let stages = WORKS.into_iter().flat_map(|(work, stage, kind)| {
        [(slow, Some(kind)), (quick(stage), None)].map(|(range, expected)| Draw { work, stage, range, expected })
    });
    stages.chain([Draw { work: "step", stage: "step", range: SLOW, expected: None }]).collect()
}

/// A profile of slow work.
struct Planted {
    name: String,
    /// What the stage took by itself.
    took_ms: f64,
    profile: Value,
}

/// Plants `work` so slow that its stage takes about `target_ms` by itself, which takes `usual_ms`. What is done many times
/// over takes less than so many times as long: the factor is corrected by what it gave. None where it cannot be met.
fn plant(
    (work, stage): (&str, &str),
    target_ms: f64,
    usual_ms: f64,
    steps: usize,
    screen: &Screen,
) -> Result<Option<Planted>, Exit> {
    let mut times = (target_ms / usual_ms).round();
    for _ in 0..TRIES {
        if !(1.0..=MOST_TIMES).contains(&times) {
            return Ok(None);
        }
        let name = format!("slow:{work}:{times}");
        screen.progress(&format!("   {name}..."))?;
        let profile = profile(Some(&name), steps)?;
        let took_ms = alone(&profile, stage).context("the planted run has no such stage")?;
        if (took_ms / target_ms - 1.0).abs() < NEAR {
            return Ok(Some(Planted { name, took_ms, profile }));
        }
        let next = (times * target_ms / took_ms.max(1e-6)).round();
        // Decoding where what was decoded is kept.
        let is_in_vain = times > 1.0 && took_ms < usual_ms * IN_VAIN;
        if is_in_vain || next == times {
            return Ok(None);
        }
        times = next;
    }
    Ok(None)
}

fn row(plant: &str, of_step: f64, expected: Option<&str>, seen: &Seen, is_right: bool) -> Value {
    json!({
        "table": "verdicts",
        "plant": plant,
        "of_step": of_step,
        "expected": expected,
        "said": seen.said,
        "predicted_steps_per_s": seen.predicted,
        "measured_steps_per_s": seen.measured,
        "right": is_right,
    })
}

/// What a profile said.
struct Seen {
    said: Vec<String>,
    /// Those that are about a stage.
    stages: Vec<String>,
    predicted: Option<f64>,
    measured: Option<f64>,
}

impl Seen {
    fn of(profile: &Value, kind: &str) -> Seen {
        let verdicts = profile["verdicts"].as_array().cloned().unwrap_or_default();
        let said: Vec<String> =
            verdicts.iter().filter_map(|verdict| Some(verdict["kind"].as_str()?.to_owned())).collect();
        let own = verdicts.iter().find(|verdict| verdict["kind"] == kind);
        let number = |name: &str| own.and_then(|verdict| verdict[name].as_f64());
        Seen {
            stages: said.iter().filter(|said| WORKS.iter().any(|(_, _, kind)| kind == said)).cloned().collect(),
            said,
            predicted: number("predicted_steps_per_s"),
            measured: number("measured_steps_per_s"),
        }
    }
}

/// Milliseconds of a stage by itself.
fn alone(profile: &Value, name: &str) -> Option<f64> {
    profile["alone"].as_array()?.iter().find(|one| one["name"] == name)?["mean_ms"].as_f64()
}

/// This program, as it was called but for the command. Self-tuning and the cache would cure what is planted.
fn profile(plant: Option<&str>, steps: usize) -> Result<Value, Exit> {
    let typed: Vec<String> = std::env::args().skip(1).collect();
    let mut flags: Vec<&str> = Vec::new();
    let mut words = typed.iter().map(String::as_str).filter(|word| !["bench", "verdicts", "--json"].contains(word));
    while let Some(word) = words.next() {
        match word {
            "--steps" => drop(words.next()),
            _ => flags.push(word),
        }
    }
    // Some of the cores: more threads must be able to help.
    let threads = (host_facts().cores / 2).max(1).to_string();
    for (flag, value) in [("--num-workers", threads.as_str()), ("--cache", "none")] {
        if !flags.contains(&flag) {
            flags.extend([flag, value]);
        }
    }
    let mut command = Command::new(std::env::current_exe().context("this program has no name")?);
    command.arg("profile").args(flags).args(["--confirm", "--json", "--num-steps", &steps.to_string()]);
    match plant {
        Some(plant) => command.env("TANDEM_FAULT", plant),
        None => command.env_remove("TANDEM_FAULT"),
    };
    let output = command.output().context("this program cannot be run again")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let document = serde_json::from_slice(&output.stdout).map_err(|_| anyhow!("`profile` said no JSON: {said}"))?;
    match output.status.success() {
        true => Ok(document),
        false => Err(Exit::Failed(anyhow!("`profile` failed: {document}"))),
    }
}

/// Other numbers at every call: verdicts must not be right for some factors only.
struct Dice(u64);

impl Dice {
    fn new() -> Dice {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64);
        Dice(now ^ u64::from(std::process::id()) << 40)
    }

    fn between(&mut self, [low, high]: [f64; 2]) -> f64 {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        low + (high - low) * ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_read_for_one_verdict() {
        let profile = json!({
            "alone": [{ "name": "load", "mean_ms": 2.5 }],
            "verdicts": [
                { "kind": "GPU_TRANSFER", "predicted_steps_per_s": 10.0, "measured_steps_per_s": 9.0 },
                { "kind": "OSCILLATION", "predicted_steps_per_s": null },
            ],
        });
        let seen = Seen::of(&profile, "GPU_TRANSFER");
        assert_eq!(
            (seen.stages, seen.predicted, seen.measured),
            (vec!["GPU_TRANSFER".to_owned()], Some(10.0), Some(9.0))
        );
        assert_eq!(Seen::of(&profile, "DATA_LOADING").predicted, None);
        assert_eq!((alone(&profile, "load"), alone(&profile, "step")), (Some(2.5), None));
    }
}
