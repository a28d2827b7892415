//! The command line.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use tandem_random::split_mix;

use crate::campaign::CampaignOptions;
use crate::kind::{Selection, TestKind};

/// The parsed command line.
pub(crate) struct CampaignArgs {
    pub(crate) options: CampaignOptions,
    /// Where the report is written; standard output otherwise.
    pub(crate) json: Option<PathBuf>,
}

pub(crate) fn parse() -> Result<CampaignArgs, clap::Error> {
    Ok(from_matches(&command().try_get_matches()?))
}

fn command() -> Command {
    let kinds = TestKind::ALL.map(TestKind::name).join(", ");
    let value = |name: &'static str, value: &'static str| Arg::new(name).long(name).value_name(value);
    Command::new("tandem-campaign")
        .about("Repeats a fault campaign against the built tandem binary")
        .arg(value("minutes", "N").value_parser(minutes).default_value("10").help("Length of the whole campaign"))
        .arg(value("seed", "N").value_parser(value_parser!(u64)).help("Seed of all choices [default: a new one]"))
        .arg(
            value("tandem", "PATH")
                .value_parser(value_parser!(PathBuf))
                .help("The binary under test [default: tandem beside this program]"),
        )
        .arg(value("json", "FILE").value_parser(value_parser!(PathBuf)).help("Write the report to this file"))
        .arg(
            value("only", "KIND[:CASE]")
                .value_parser(|given: &str| given.parse::<Selection>().map_err(|error| error.to_string()))
                .help(format!("Only this kind of test, or this case: {kinds}")),
        )
        .arg(
            value("failures", "DIR")
                .value_parser(value_parser!(PathBuf))
                .default_value("target/campaign")
                .help("Folder for the files of failed cases"),
        )
        .arg(
            Arg::new("keep-going")
                .long("keep-going")
                .action(ArgAction::SetTrue)
                .help("Do not stop at the first failure"),
        )
}

fn minutes(given: &str) -> Result<f64, String> {
    let minutes: f64 = given.parse().map_err(|_| "expected a number of minutes".to_owned())?;
    if (0.1..=100_000.0).contains(&minutes) { Ok(minutes) } else { Err("expected 0.1 to 100000 minutes".to_owned()) }
}

fn from_matches(matches: &ArgMatches) -> CampaignArgs {
    let path = |name: &str| matches.get_one::<PathBuf>(name).cloned();
    CampaignArgs {
        options: CampaignOptions {
            minutes: matches.get_one("minutes").copied().unwrap_or(10.0),
            seed: matches.get_one("seed").copied().unwrap_or_else(new_seed),
            tandem: path("tandem").unwrap_or_else(beside),
            only: matches.get_one("only").copied().unwrap_or(Selection::All),
            keep_going: matches.get_flag("keep-going"),
            failures: path("failures").unwrap_or_else(|| Path::new("target/campaign").to_owned()),
        },
        json: path("json"),
    }
}

/// A seed that is short enough to type.
fn new_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    split_mix(now) % 1_000_000_000
}

/// `tandem` in the folder of this program.
fn beside() -> PathBuf {
    let here = std::env::current_exe().unwrap_or_default();
    here.with_file_name("tandem")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<CampaignArgs, clap::Error> {
        let words = std::iter::once("tandem-campaign").chain(line.split_whitespace());
        command().try_get_matches_from(words).map(|matches| from_matches(&matches))
    }

    #[test]
    fn flags_are_read() {
        let args = parsed("--minutes 0.5 --seed 7 --only kills:3 --keep-going --json a.json --tandem ./t").unwrap();
        let CampaignOptions { minutes, seed, tandem, only, keep_going, .. } = args.options;
        assert_eq!((minutes, seed, keep_going, tandem, args.json), (0.5, 7, true, "./t".into(), Some("a.json".into())));
        assert_eq!(only, "kills:3".parse().unwrap());
        assert!(parsed("").unwrap().options.only == Selection::All);
        for wrong in ["--minutes 0", "--minutes x", "--only nothing", "--seed -1", "--frobnicate"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
