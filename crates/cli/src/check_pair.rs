//! `tandem check-pair`: checks of two cards, one JSON line before and one after each. Not for people: `train`, `plan` and
//! `doctor` run it as a child process, because a check may take its process down.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Arg, ArgMatches, Command, value_parser};
use serde_json::{Value, json};
use tandem_bench::pair::{Pair, PairCheck};
use tandem_device::{DeviceError, Machine, SimSpec};
use tandem_launch::route_proof::RouteProof;

use crate::args::sim;
use crate::exit::{Exit, FAILED};
use crate::screen;

pub(crate) const NAME: &str = "check-pair";

/// Arguments of `tandem check-pair`.
pub(crate) struct CheckPairArgs {
    sim: Option<SimSpec>,
    /// The UUIDs of both cards.
    cards: [String; 2],
    batch_bytes: u64,
    slots: usize,
    checks: Vec<PairCheck>,
}

/// Parses the words behind the program's name. This command is in no help page, manual or completion.
pub(crate) fn parse(words: &[OsString]) -> Result<CheckPairArgs, Exit> {
    let required = |name: &'static str| Arg::new(name).long(name).required(true);
    let command = Command::new(NAME)
        .arg(required("from"))
        .arg(required("to"))
        .arg(required("bytes").value_parser(value_parser!(u64)))
        .arg(required("slots").value_parser(value_parser!(usize)))
        .arg(sim())
        .arg(Arg::new("checks").num_args(1..).required(true));
    let matches = command.try_get_matches_from(words).map_err(|error| Exit::Usage(error.to_string()))?;
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let spec = matches.get_one::<String>("sim").map(|text| text.parse::<SimSpec>()).transpose();
    Ok(CheckPairArgs {
        sim: spec.map_err(|error| Exit::Usage(format!("❌ {error}")))?,
        cards: [text("from"), text("to")],
        batch_bytes: matches.get_one("bytes").copied().unwrap_or_default(),
        slots: matches.get_one("slots").copied().unwrap_or_default(),
        checks: checks_of(&matches)?,
    })
}

fn checks_of(matches: &ArgMatches) -> Result<Vec<PairCheck>, Exit> {
    let unknown = |name: &String| Exit::Usage(format!("❌ {NAME}: no check has the name {name}"));
    let names = matches.get_many::<String>("checks").unwrap_or_default();
    names.map(|name| PairCheck::named(name).ok_or_else(|| unknown(name))).collect()
}

pub(crate) fn run(args: &CheckPairArgs) -> Result<ExitCode, Exit> {
    let mut pair = match open(args) {
        Ok(pair) => pair,
        Err(error) => {
            // That is the result of every check.
            let line = |check: &PairCheck| json!({ "check": check.name(), "error": format!("{error:#}") });
            args.checks.iter().try_for_each(|check| write_line(&line(check)))?;
            return Ok(ExitCode::from(FAILED));
        }
    };
    for check in &args.checks {
        write_line(&json!({ "started": check.name() }))?;
        match pair.run(*check) {
            Ok(figures) => write_line(&json!({ "check": check.name(), "result": figures }))?,
            Err(error) => {
                // Without its cards, this process ends.
                let is_last = matches!(error, DeviceError::Lost { .. } | DeviceError::TimedOut { .. });
                write_line(&json!({ "check": check.name(), "error": error.to_string(), "is_last": is_last }))?;
                if is_last {
                    return Ok(ExitCode::from(FAILED));
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn open(args: &CheckPairArgs) -> anyhow::Result<Pair> {
    let machine = match &args.sim {
        Some(spec) => Machine::simulated(spec.clone()),
        None => Machine::cuda()?.context("this machine has no NVIDIA card")?,
    };
    let index = |uuid: &str| {
        let index = machine.cards().iter().position(|card| card.uuid == uuid);
        index.with_context(|| format!("no GPU has the UUID {uuid}"))
    };
    let (from, to) = (index(&args.cards[0])?, index(&args.cards[1])?);
    Ok(Pair::new(&machine, RouteProof { from, to, batch_bytes: args.batch_bytes, slots: args.slots }))
}

fn write_line(line: &Value) -> Result<(), Exit> {
    screen::write(&format!("{line}\n"))
}

/// A line of this command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CheckLine {
    /// The next check has started.
    Started,
    /// It has ended.
    Ended {
        /// The figures, or why there are none.
        result: Result<Value, String>,
        /// The process checks nothing more.
        is_last: bool,
    },
}

/// Reads a line of this command; `None` for any other text, such as a message of a library.
pub(crate) fn parse_line(line: &str) -> Option<CheckLine> {
    let parsed: Value = serde_json::from_str(line).ok()?;
    if parsed["started"].is_string() {
        return Some(CheckLine::Started);
    }
    let result = match parsed["error"].as_str() {
        Some(error) => Err(error.to_owned()),
        None => Ok(parsed.get("result")?.clone()),
    };
    Some(CheckLine::Ended { result, is_last: parsed["is_last"] == true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_start_a_result_or_a_message_of_others() {
        let check =
            |line: &str, result, is_last| assert_eq!(parse_line(line), Some(CheckLine::Ended { result, is_last }));
        check(r#"{"check":"peer","result":{"ns":1}}"#, Ok(json!({ "ns": 1 })), false);
        check(r#"{"check":"peer","error":"wrong bytes","is_last":false}"#, Err("wrong bytes".to_owned()), false);
        check(r#"{"check":"peer","error":"lost","is_last":true}"#, Err("lost".to_owned()), true);
        assert_eq!(parse_line(r#"{"started":"peer"}"#), Some(CheckLine::Started));
        for line in ["", "a driver's message", "7", "{}"] {
            assert_eq!(parse_line(line), None, "{line}");
        }
    }
}
